"""Explaining a reader's answers: predict, choose window and target, run the method, keep the result."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from bertlift.attribution import Attribution
from bertlift.config import AttributionSettings
from bertlift.engine import Contributions, deeplift
from bertlift.engine.tape import UnsupportedOperationError
from bertlift.errors import InputError
from bertlift.methods import attentions, gradients, perturbations
from bertlift.methods.case import Case, Scores
from bertlift.reader.load import Reader
from bertlift.reader.predict import Prediction, collate
from bertlift.reader.windows import PASSAGE, Window, batches, windows_of


@dataclass(frozen=True)
class Method:
    """How to run a method: what it makes of a batch, its samples if it draws any, whether it needs a reference."""

    run: Callable[[Case], dict[str, Tensor]]
    samples: int = 0
    reference: bool = False
    precise: bool = False  # in double precision, since its scores are to add up


Target = tuple[Window, int, int]  # and the token positions of its start and end


def target_of(prediction: Prediction, reader: Reader) -> Target:
    """The window and the token positions (start, end) to explain: those of the predicted answer.

    For the null answer it is the window of the smallest null score, and ``[CLS]`` for both ends.
    """
    description = reader.description
    windows = windows_of(prediction.question, reader.tokenizer, description.max_length, description.doc_stride)
    if prediction.answer(description.null_threshold) == "":
        window = windows[prediction.null_window]
        return window, window.cls, window.cls
    best = prediction.spans[0]
    return windows[best.window], best.start, best.end


def wrong_target(prediction: Prediction, reader: Reader, seed: int) -> Target:
    """A span of the passage, as long as the predicted answer, that touches neither it nor a gold answer.

    Where the passage leaves no such room, one of a single token; the predicted answer itself if there is none.
    """
    window, start, end = target_of(prediction, reader)
    golds = [(answer.start, answer.start + len(answer.text)) for answer in prediction.question.answers]

    def touches(position: int) -> bool:
        first, last = window.offsets[position]
        return start <= position <= end or any(a < last and first < b for a, b in golds)

    passage = [position for position, segment in enumerate(window.segments) if segment == PASSAGE]
    for length in sorted({min(end - start, len(passage) - 1), 0}, reverse=True):
        free = [a for a in passage[: len(passage) - length] if not any(map(touches, range(a, a + length + 1)))]
        if free:
            first = random.Random(f"{seed} {prediction.question.id}").choice(free)  # noqa: S311 - no secret
            return window, first, first + length
    return window, start, end


def explain(
    reader: Reader,
    predictions: Sequence[Prediction],
    settings: AttributionSettings,
    splits: Mapping[str, str],
    targets: Sequence[Target] | None = None,
    precision: torch.dtype | None = None,
    layers: bool = True,
    heads: bool = True,
) -> list[Attribution]:
    """One attribution a prediction, in their order.

    DeepLIFT in double precision by default: where f(x) and f(x0) are nearly equal, single precision would leave few
    digits of their difference, and so of the check that the scores add up to it.

    Args:
        reader: the model that made the predictions.
        predictions: what it said.
        settings: method, reference, windows at a time.
        splits: question id -> the split it is in.
        targets: what to explain, one a prediction; None: the predicted answers.
        precision: to compute the scores in; None: the method's own.
        layers: whether rows for the layers are wanted of a method that has to pay for them.
        heads: whether a split by heads is wanted, where there is one.

    Raises:
        InputError: for an unknown method or reference.
    """
    if settings.method not in METHODS:
        raise InputError(f"attribution.method is {settings.method!r}; allowed: {', '.join(METHODS)}")
    method = METHODS[settings.method]
    precision = precision or (torch.float64 if method.precise else torch.float32)
    samples = method.samples if settings.samples is None else settings.samples
    if targets is None:
        targets = [target_of(prediction, reader) for prediction in predictions]
    found: dict[int, Attribution] = {}
    model = copy.deepcopy(reader.model).to(precision)
    chosen = [window for window, _, _ in targets]
    with tqdm(total=len(chosen), desc=settings.method, unit="window", disable=None) as bar:
        for indices in batches(chosen, settings.batch_size):
            inputs = collate([chosen[index] for index in indices], reader.tokenizer)
            inputs = {key: value.to(model.device) for key, value in inputs.items()}
            starts, ends = (torch.tensor([targets[index][side] for index in indices]) for side in (1, 2))
            draws = (samples, settings.seed)
            case = Case(model, inputs, starts, ends, settings.reference, reader.tokenizer, *draws, layers, heads)
            contributions = method.run(case)
            contributions |= _states(reader.model, inputs, case, contributions["scores"])
            for row, index in enumerate(indices):
                size = len(chosen[index].input_ids)
                values = {name: each[row].float().cpu().numpy() for name, each in contributions.items()}
                per_token = {name: values[name][..., :size] for name in TOKENWISE}
                found[index] = _attribution(
                    predictions[index],
                    targets[index],
                    reader.description.null_threshold,
                    settings,
                    splits[predictions[index].question.id],
                    target_value=float(contributions["target_value"][row]),
                    reference_value=float(contributions["reference_value"][row]),
                    gradient=float(contributions["gradient"][row]),
                    **{name: values[name] for name in ("delta", "value_path", "attention_path", "residual", "hidden")},
                    **per_token,
                )
            bar.update(len(indices))
    return [found[index] for index in range(len(predictions))]


TOKENWISE = (
    *("scores", "positive", "negative", "attention"),
    *("start_logits", "end_logits", "reference_start_logits", "reference_end_logits"),
)


def _found(
    scores: Contributions | Scores, output: Any, values: tuple[Tensor, Tensor], reference_output: Any = None
) -> dict[str, Tensor]:
    """The fields of an :class:`Attribution` that are numbers, for a batch (first axis); ``values``: f(x), f(x0)."""
    tensors = {name: getattr(scores, name) for name in ("scores", "positive", "negative")}
    if isinstance(scores, Contributions):
        tensors["delta"] = scores.delta
    elif scores.complete:
        tensors["delta"] = scores.scores.sum(-1) - (values[0] - values[1])[:, None]
    else:
        tensors["delta"] = torch.zeros(len(values[0]), 0)
    tensors |= {"target_value": values[0], "reference_value": values[1]}
    none = torch.zeros(len(values[0]), 0, 0)
    tensors |= {"value_path": none, "attention_path": none, "residual": none.flatten(1), "attention": none}
    for name in ("start_logits", "end_logits"):
        tensors[name] = getattr(output, name)
        # Without a reference nothing is taken off.
        tensors[f"reference_{name}"] = getattr(reference_output, name, torch.zeros_like(tensors[name]))
    return tensors


def _deeplift(case: Case) -> dict[str, Tensor]:
    given = (case.model, case.inputs, case.reference, [case.starts, case.ends])
    try:
        found = deeplift(*given, heads=case.heads, tokenizer=case.tokenizer)
    except UnsupportedOperationError:  # perhaps only of the split by heads, which not every layer allows
        found = deeplift(*given, tokenizer=case.tokenizer)
    tensors = _found(found, found.output, (found.target_value, found.reference_value), found.reference_output)
    if found.residual is not None and found.attention is not None:
        tensors |= {name: getattr(found, name) for name in ("value_path", "attention_path", "residual")}
        rows = torch.arange(len(case.starts))
        ends = [found.attention[rows, :, :, end].mean(2) for end in (case.starts, case.ends)]
        tensors["attention"] = torch.stack(ends).mean(0)
    return tensors


def _by_rule(rule: str, complete: bool) -> Callable[[Case], dict[str, Tensor]]:
    def run(case: Case) -> dict[str, Tensor]:
        found = deeplift(case.model, case.inputs, target=[case.starts, case.ends], rule=rule)
        scores = Scores(found.scores, found.positive, found.negative, complete)
        return _found(scores, found.output, (found.target_value, found.reference_value))

    return run


def _scored(method: Callable[[Case], Scores], samples: int = 0, reference: bool = False) -> Method:
    def run(case: Case) -> dict[str, Tensor]:
        scores = method(case)
        with torch.no_grad():
            output = case.model(**case.inputs)
            value = case.span(output)
            value0 = case.forward(case.reference_embedded, *case.arguments) if reference else torch.zeros_like(value)
        return _found(scores, output, (value, value0))

    return Method(run, samples, reference)


METHODS = {
    "deeplift": Method(_deeplift, reference=True, precise=True),
    "paper2019": Method(_by_rule("paper2019", complete=True), precise=True),
    "lrp": Method(_by_rule("attnlrp", complete=False)),
    "gradient": _scored(gradients.gradient),
    "gradient_x_input": _scored(gradients.gradient_x_input),
    "smoothgrad": _scored(gradients.smoothgrad, samples=20),
    "integrated_gradients": _scored(gradients.integrated_gradients, samples=50, reference=True),
    "gradcam": _scored(gradients.gradcam),
    "attention": _scored(attentions.attention),
    "rollout": _scored(attentions.rollout),
    "attention_x_gradient": _scored(attentions.attention_x_gradient),
    "occlusion": _scored(perturbations.occlusion, reference=True),
    "lime": _scored(perturbations.lime, samples=500, reference=True),
    "kernel_shap": _scored(perturbations.kernel_shap, samples=500, reference=True),
    "random": _scored(perturbations.random),
}


def _states(model: Any, inputs: dict[str, Tensor], case: Case, scores: Tensor) -> dict[str, Tensor]:
    """``hidden`` and ``gradient`` of an :class:`Attribution`, for a batch; in the model's own precision."""
    with torch.enable_grad():
        output = model(**inputs, output_hidden_states=True)
        (gradient,) = torch.autograd.grad(case.span(output).sum(), output.hidden_states[0])
    weights = scores.abs().to(gradient)
    weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-12)
    # (batch, rows, tokens, units); of a method that scores the input alone, the input's
    states = torch.stack([each.detach() for each in output.hidden_states[: scores.shape[1]]], 1)
    return {"gradient": gradient.flatten(1).norm(dim=1), "hidden": torch.einsum("brt,brtu->bru", weights, states)}


def _attribution(
    prediction: Prediction,
    target: Target,
    threshold: float | None,
    settings: AttributionSettings,
    split: str,
    **found: Any,
) -> Attribution:
    question, (window, start, end) = prediction.question, target
    best = prediction.spans[0]
    return Attribution(
        question_id=question.id,
        name=question.name,
        split=split,
        title=question.title,
        question=" ".join(question.question.split()),
        context=question.context,
        golds=question.golds,
        gold_starts=[answer.start for answer in question.answers],
        answer=prediction.answer(threshold),
        best_span=best.text,
        span_score=best.score,
        null_score=prediction.null_score,
        method=settings.method,
        reference=settings.reference if METHODS[settings.method].reference else "none",
        tokens=window.tokens,
        offsets=[list(pair) for pair in window.offsets],
        segments=window.segments,
        words=window.words,
        start=start,
        end=end,
        **found,
    )
