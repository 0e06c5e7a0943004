"""Explaining a reader's answers: predict, choose window and target, run the method, keep the result."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tqdm import tqdm

from bertlift.attribution import Attribution
from bertlift.config import AttributionSettings
from bertlift.engine import deeplift
from bertlift.errors import InputError
from bertlift.reader.load import Reader
from bertlift.reader.predict import Prediction, collate
from bertlift.reader.windows import Window, batches, windows_of

METHODS = ("deeplift",)


def target_of(prediction: Prediction, reader: Reader) -> tuple[Window, int, int]:
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


def explain(
    reader: Reader,
    predictions: Sequence[Prediction],
    settings: AttributionSettings,
    splits: Mapping[str, str],
) -> list[Attribution]:
    """One attribution a prediction, in their order.

    Computed in double precision: where f(x) and f(x0) are nearly equal, single precision would leave few digits
    of their difference, and so of the check that the scores add up to it.

    Args:
        reader: the model that made the predictions.
        predictions: what it said.
        settings: method, reference, windows at a time.
        splits: question id -> the split it is in.

    Raises:
        InputError: for an unknown method or reference.
    """
    if settings.method not in METHODS:
        raise InputError(f"attribution.method is {settings.method!r}; allowed: {', '.join(METHODS)}")
    threshold = reader.description.null_threshold
    targets = [target_of(prediction, reader) for prediction in predictions]
    found: dict[int, Attribution] = {}
    model = copy.deepcopy(reader.model).double()
    chosen = [window for window, _, _ in targets]
    with tqdm(total=len(chosen), desc=settings.method, unit="window", disable=None) as bar:
        for indices in batches(chosen, settings.batch_size):
            inputs = collate([chosen[index] for index in indices], reader.tokenizer)
            inputs = {key: value.to(model.device) for key, value in inputs.items()}
            contributions = deeplift(
                model,
                inputs,
                settings.reference,
                [torch.tensor([targets[index][side] for index in indices]) for side in (1, 2)],
                tokenizer=reader.tokenizer,
            )
            output, plain = contributions.output, contributions.reference_output
            tensors = {name: getattr(contributions, name) for name in ("scores", "positive", "negative")}
            tensors |= {"start_logits": output.start_logits, "end_logits": output.end_logits}
            tensors |= {"reference_start_logits": plain.start_logits, "reference_end_logits": plain.end_logits}
            arrays = {name: each.float().cpu().numpy() for name, each in tensors.items()}
            for row, index in enumerate(indices):
                window, start, end = targets[index]
                size = len(window.input_ids)
                found[index] = _attribution(
                    predictions[index],
                    window,
                    threshold,
                    settings,
                    splits[window.question.id],
                    start=start,
                    end=end,
                    target_value=float(contributions.target_value[row]),
                    reference_value=float(contributions.reference_value[row]),
                    delta=contributions.delta[row].float().cpu().numpy(),
                    **{name: values[row, ..., :size] for name, values in arrays.items()},
                )
            bar.update(len(indices))
    return [found[index] for index in range(len(predictions))]


def _attribution(
    prediction: Prediction,
    window: Window,
    threshold: float,
    settings: AttributionSettings,
    split: str,
    **found: Any,
) -> Attribution:
    question = window.question
    best = prediction.spans[0]
    return Attribution(
        question_id=question.id,
        name=question.name,
        split=split,
        title=question.title,
        question=" ".join(question.question.split()),
        context=question.context,
        golds=question.golds,
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
        **found,
    )
