"""Explaining a reader's answers: predict, choose window and target, run the method, keep the result."""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from bertlift.attribution import Attribution
from bertlift.config import AttributionSettings
from bertlift.engine import deeplift
from bertlift.engine.tape import UnsupportedOperationError
from bertlift.errors import InputError
from bertlift.reader.load import Reader
from bertlift.reader.predict import Prediction, collate
from bertlift.reader.windows import PASSAGE, Window, batches, windows_of

METHODS = ("deeplift", "paper2019")
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
    precision: torch.dtype = torch.float64,
) -> list[Attribution]:
    """One attribution a prediction, in their order.

    In double precision by default: where f(x) and f(x0) are nearly equal, single precision would leave few digits
    of their difference, and so of the check that the scores add up to it.

    Args:
        reader: the model that made the predictions.
        predictions: what it said.
        settings: method, reference, windows at a time.
        splits: question id -> the split it is in.
        targets: what to explain, one a prediction; None: the predicted answers.
        precision: to compute the scores in.

    Raises:
        InputError: for an unknown method or reference.
    """
    if settings.method not in METHODS:
        raise InputError(f"attribution.method is {settings.method!r}; allowed: {', '.join(METHODS)}")
    if targets is None:
        targets = [target_of(prediction, reader) for prediction in predictions]
    found: dict[int, Attribution] = {}
    model = copy.deepcopy(reader.model).to(precision)
    chosen = [window for window, _, _ in targets]
    with tqdm(total=len(chosen), desc=settings.method, unit="window", disable=None) as bar:
        for indices in batches(chosen, settings.batch_size):
            inputs = collate([chosen[index] for index in indices], reader.tokenizer)
            inputs = {key: value.to(model.device) for key, value in inputs.items()}
            ends = [torch.tensor([targets[index][side] for index in indices]) for side in (1, 2)]
            contributions = _contributions(model, inputs, settings, ends, reader.tokenizer)
            contributions |= _states(reader.model, inputs, ends, contributions["scores"])
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


def _contributions(
    model: Any, inputs: dict[str, Tensor], settings: AttributionSettings, ends: list[Tensor], tokenizer: Any
) -> dict[str, Tensor]:
    """The fields of an :class:`Attribution` that are numbers, for a batch (first axis)."""
    reference = settings.reference
    if settings.method == "paper2019":
        found = deeplift(model, inputs, target=ends, rule="paper2019")
    else:
        try:
            found = deeplift(model, inputs, reference, ends, heads=True, tokenizer=tokenizer)
        except UnsupportedOperationError:  # perhaps only of the split by heads, which not every layer allows
            found = deeplift(model, inputs, reference, ends, tokenizer=tokenizer)
    names = ("scores", "positive", "negative", "delta", "target_value", "reference_value")
    tensors = {name: getattr(found, name) for name in names}
    rows = torch.arange(len(ends[0]))
    if found.residual is None:
        none = torch.zeros(len(rows), 0, 0)
        tensors |= {"value_path": none, "attention_path": none, "residual": none.flatten(1), "attention": none}
    else:
        assert found.attention is not None
        tensors |= {name: getattr(found, name) for name in ("value_path", "attention_path", "residual")}
        tensors["attention"] = torch.stack([found.attention[rows, :, :, end].mean(2) for end in ends]).mean(0)
    output, plain = found.output, found.reference_output
    for name in ("start_logits", "end_logits"):
        logits = getattr(output, name)
        tensors[name] = logits
        # The paper's rule has no reference: nothing is taken off.
        tensors[f"reference_{name}"] = torch.zeros_like(logits) if plain is None else getattr(plain, name)
    return tensors


def _states(model: Any, inputs: dict[str, Tensor], ends: list[Tensor], scores: Tensor) -> dict[str, Tensor]:
    """``hidden`` and ``gradient`` of an :class:`Attribution`, for a batch; in the model's own precision."""
    rows = torch.arange(len(ends[0]))
    with torch.enable_grad():
        output = model(**inputs, output_hidden_states=True)
        target = output.start_logits[rows, ends[0]] + output.end_logits[rows, ends[1]]
        (gradient,) = torch.autograd.grad(target.sum(), output.hidden_states[0])
    weights = scores.abs().to(gradient)
    weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-12)
    states = torch.stack([each.detach() for each in output.hidden_states], 1)  # (batch, rows, tokens, units)
    return {"gradient": gradient.flatten(1).norm(dim=1), "hidden": torch.einsum("brt,brtu->bru", weights, states)}


def _attribution(
    prediction: Prediction,
    target: Target,
    threshold: float,
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
        reference=settings.reference,
        tokens=window.tokens,
        offsets=[list(pair) for pair in window.offsets],
        segments=window.segments,
        words=window.words,
        start=start,
        end=end,
        **found,
    )
