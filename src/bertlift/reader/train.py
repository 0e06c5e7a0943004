"""Fine-tuning a reader with the ``transformers`` Trainer."""

from __future__ import annotations

import bisect
import hashlib
import json
import math
import random
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from dvclive import Live
from safetensors.torch import save_file
from torch import nn
from tqdm import tqdm
from transformers import Trainer, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint

from bertlift.config import Reader as ReaderSettings
from bertlift.config import Training
from bertlift.errors import InputError
from bertlift.reader.load import ADAPTER, load_model, quiet
from bertlift.reader.predict import all_windows, collate, decode
from bertlift.reader.windows import PASSAGE, Window, batches
from bertlift.squad.metrics import evaluate
from bertlift.squad.schema import Question, sentence_spans

TRIALS = 4  # times that a run is tried on the held-out questions and kept
NOWHERE = -1e4  # the logit of a position where no answer can stand
POOL = 16  # batches that are put together from windows sorted by length
CURVES = ("loss", "learning_rate", "eval_loss", "eval_exact", "eval_f1", "eval_HasAns_f1", "eval_NoAns_f1")


def write_curves(directory: Path, history: Sequence[dict[str, Any]]) -> None:
    """Write the Trainer's log as DVCLive curves: loss and learning rate, exact match and F1 on the held-out questions.

    Written once, from the whole log, so that a run that was resumed has the curves of one that was not.
    Clock times are left out: they differ in each run.
    """
    with Live(dir=str(directory), save_dvc_exp=False, dvcyaml=None, report=None) as live:
        for entry in history:
            live.step = int(entry["step"])
            for key in CURVES:
                if key in entry:
                    group = "held_out" if key.startswith("eval_") else "train"
                    live.log_metric(f"{group}/{key.removeprefix('eval_')}", float(entry[key]))
            live.make_summary()


def calibration_split(questions: list[Question], share: float, seed: int) -> tuple[list[Question], list[Question]]:
    """Set questions aside that are not trained on, to set the null threshold.

    Whole articles are set aside, in a random order, until at least ``share`` of the questions are;
    where there is one article only, whole passages. With ``share`` 0, or a single passage, nothing is
    set aside and the threshold is set on the training questions themselves.

    Returns:
        The questions to train on and those to calibrate on.
    """
    by_article = len({q.title for q in questions}) > 1
    unit = {q.id: q.title if by_article else q.context for q in questions}
    units = sorted(set(unit.values()))
    if share == 0 or len(units) == 1:
        return questions, questions
    random.Random(seed).shuffle(units)  # noqa: S311 - a split, not a secret
    aside: set[str] = set()
    while len(aside) < len(units) - 1 and sum(unit[q.id] in aside for q in questions) < share * len(questions):
        aside.add(units[len(aside)])
    return [q for q in questions if unit[q.id] not in aside], [q for q in questions if unit[q.id] in aside]


def sentences(questions: Sequence[Question], seed: int) -> list[Question]:
    """Every question over a part of its passage: the sentence of the first gold answer, with a neighbour or not.

    An unanswerable question gets a sentence at random. So short a text costs a third of the time of a passage, and
    what is learned on it, which words answer a question, holds for the passage. Questions whose answer runs over a
    sentence's end are left out.
    """
    choose = random.Random(seed)  # noqa: S311 - no secret
    found = []
    for question in questions:
        spans = sentence_spans(question.context)
        at = question.answers[0].start if question.answers else choose.randrange(len(question.context))
        number = bisect.bisect_right([start for start, _ in spans], at) - 1
        first = max(0, number - choose.randrange(2))
        start, end = spans[first][0], spans[min(len(spans), max(first + 2, number + 1)) - 1][1]
        answers = [replace(answer, start=answer.start - start) for answer in question.answers[:1]]
        if all(answer.start + len(answer.text) <= end - start for answer in answers):
            found.append(replace(question, context=question.context[start:end].rstrip(), answers=tuple(answers)))
    return found


def schedule(windows: Sequence[Window], size: int, epochs: float, seed: int) -> list[list[Window]]:
    """Batches for so many passes over the windows: in random order, windows of like length together."""
    choose = random.Random(seed)  # noqa: S311 - no secret
    steps = math.ceil(epochs * math.ceil(len(windows) / size))
    plan: list[list[Window]] = []
    while len(plan) < steps:
        order = list(windows)
        choose.shuffle(order)
        pools = [order[start : start + POOL * size] for start in range(0, len(order), POOL * size)]
        one_pass = [[pool[index] for index in indices] for pool in pools for indices in batches(pool, size)]
        choose.shuffle(one_pass)
        plan += one_pass
    return plan[:steps]


def fast_bfloat16() -> bool:
    """Whether this machine multiplies bfloat16 matrices in hardware."""
    if torch.cuda.is_available():
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return bool(torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported())


def fingerprint(*parts: Any) -> str:
    """A short name for everything that decides a training run, so that only the same run is resumed."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def labelled(windows: Sequence[Window], tokenizer: Any) -> dict[str, torch.Tensor]:
    """A batch with what :func:`span_loss` takes: ``start_positions``, ``end_positions`` and ``readable``."""
    labels = torch.tensor([window.label() for window in windows])
    batch = collate(windows, tokenizer)
    readable = torch.zeros_like(batch["input_ids"], dtype=torch.bool)
    for row, window in enumerate(windows):
        readable[row, : len(window.segments)] = torch.tensor(window.segments) == PASSAGE
        readable[row, window.cls] = True
    return batch | {"start_positions": labels[:, 0], "end_positions": labels[:, 1], "readable": readable}


def span_loss(
    start_logits: Any,
    end_logits: Any,
    start_positions: Any,
    end_positions: Any,
    readable: Any,
    answerability: float = 0,
) -> Any:
    """The mean cross-entropy of start and end over passage tokens and ``[CLS]`` (``readable``, ``(batch, tokens)``).

    The model need not learn that answers do not stand in the question or the padding. ``answerability`` times the
    cross-entropy of "is there an answer" is added: how sure ``[CLS]``, the first token, is against all others together.
    """
    loss = torch.zeros(())
    for logits, at in ((start_logits, start_positions), (end_logits, end_positions)):
        shares = logits.float().masked_fill(~readable, NOWHERE).log_softmax(-1)
        loss = loss + F.nll_loss(shares, at) / 2
        if answerability:
            null = shares[:, 0]
            some = torch.log1p(-null.exp().clamp(max=1 - 1e-6))
            loss = loss - answerability * torch.where(at == 0, null, some).mean() / 2
    return loss


class SpanTrainer(Trainer):
    """The Trainer with the loss over the positions that an answer may have, as they are decoded: :func:`span_loss`."""

    answerability = 0.0

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The loss, and with ``return_outputs`` the model's output as well."""
        names = ("start_positions", "end_positions", "readable")
        output = model(**{name: value for name, value in inputs.items() if name not in names})
        labels = {name: inputs[name] for name in names}
        loss = span_loss(output.start_logits, output.end_logits, **labels, answerability=self.answerability)
        return (loss, output) if return_outputs else loss


def finetune(
    directory: Path,
    train: Sequence[Question],
    held_out: Sequence[Question],
    settings: ReaderSettings,
    training: Training,
    checkpoints: Path,
) -> tuple[Any, Any, list[dict[str, Any]]]:
    """Fine-tune the checkpoint in ``directory``: the best model by held-out F1, its tokenizer, the log.

    An unanswerable question's span is ``[CLS]``, as is that of a window that does not hold the answer.
    Training is deterministic for one machine, seed and number of threads. If ``checkpoints`` holds
    checkpoints of the very same run that was cut short, it goes on from the last; they are removed at
    the end.

    Args:
        directory: a checkpoint directory, with or without a QA head.
        train: questions to train on.
        held_out: questions whose F1 chooses the best of the checkpoints, of which there are ``TRIALS``.
        settings: layers, window sizes, batch size for evaluation.
        training: epochs, learning rate and so on.
        checkpoints: where checkpoints are kept while training.
    """
    set_seed(training.seed)
    torch.use_deterministic_algorithms(True)
    model, tokenizer = load_model(directory, new_head=True, dropout=training.dropout, layers=settings.layers)
    if training.freeze_embeddings:
        model.base_model.embeddings.requires_grad_(False)
    size, seed = training.batch_size, training.seed
    parts, wholes = (
        all_windows(each, tokenizer, settings.max_length, settings.doc_stride)
        for each in (sentences(train, seed) if training.sentence_epochs else [], train)
    )
    # Twice as many sentences fit into a batch.
    plan = schedule(parts, 2 * size, training.sentence_epochs, seed) + schedule(wholes, size, training.epochs, seed)
    plan = plan[: max(1, len(plan) // TRIALS) * TRIALS]
    held_out_windows = all_windows(held_out, tokenizer, settings.max_length, settings.doc_stride)

    def collator(items: list[list[Window]]) -> dict[str, torch.Tensor]:
        return labelled([window for item in items for window in item], tokenizer)

    def metrics(output: Any) -> dict[str, float]:
        starts, ends = (np.asarray(each, dtype=np.float64) for each in output.predictions[:2])
        logits = [
            (starts[row, : len(window.input_ids)], ends[row, : len(window.input_ids)])
            for row, window in enumerate(held_out_windows)
        ]
        predictions = decode(held_out_windows, logits, settings.n_best, settings.max_answer_length)
        threshold = None if settings.answerable_only else 0.0
        found = evaluate(held_out, {p.question.id: p.answer(threshold) for p in predictions})
        return {key: float(value) for key, value in found.items() if not key.endswith("total")}

    arguments = TrainingArguments(
        output_dir=str(checkpoints),
        num_train_epochs=1,  # of the plan
        learning_rate=training.learning_rate,
        per_device_train_batch_size=1,  # an item of the plan is a batch
        per_device_eval_batch_size=settings.batch_size,
        warmup_steps=round(training.warmup * len(plan)),
        weight_decay=training.weight_decay,
        seed=training.seed,
        use_cpu=not torch.cuda.is_available(),
        bf16=training.bfloat16 and fast_bfloat16(),
        eval_strategy="steps",
        eval_steps=math.ceil(len(plan) / TRIALS),
        save_strategy="steps",
        save_steps=math.ceil(len(plan) / TRIALS),
        save_total_limit=2,
        train_sampling_strategy="sequential",
        logging_steps=max(1, len(plan) // 50),
        load_best_model_at_end=True,
        metric_for_best_model="f1",
        greater_is_better=True,
        remove_unused_columns=False,
        label_names=["start_positions", "end_positions"],
        dataloader_pin_memory=False,
        disable_tqdm=not sys.stderr.isatty(),
        report_to=[],
    )
    resume = get_last_checkpoint(str(checkpoints)) if checkpoints.is_dir() else None
    trainer = SpanTrainer(
        model=model,
        args=arguments,
        train_dataset=plan,
        eval_dataset=[[window] for window in held_out_windows],
        data_collator=collator,
        compute_metrics=metrics,
    )
    trainer.answerability = training.answerability
    trainer.train(resume_from_checkpoint=resume)
    shutil.rmtree(checkpoints, ignore_errors=True)
    # Without the wrapper that autocasts to bfloat16.
    best = trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False)
    return best.eval(), tokenizer, trainer.state.log_history


def train_head(
    directory: Path, questions: Sequence[Question], settings: ReaderSettings, seed: int, steps: int = 200
) -> tuple[Any, Any]:
    """The checkpoint in ``directory`` with a QA head that alone was trained; the encoder stays as it is.

    The encoder reads the questions once; the head, a linear map of its states, is then fitted by Adam on all of them.

    Returns:
        The model and its tokenizer.
    """
    set_seed(seed)
    model, tokenizer = load_model(directory, new_head=True, layers=settings.layers)
    windows = all_windows(questions, tokenizer, settings.max_length, settings.doc_stride)
    read = []
    for indices in tqdm(list(batches(windows, settings.batch_size)), desc="encoder as it was", disable=None):
        batch = labelled([windows[index] for index in indices], tokenizer)
        labels = [batch.pop(name) for name in ("start_positions", "end_positions", "readable")]
        with torch.no_grad():
            read.append((model(**batch, output_hidden_states=True).hidden_states[-1], *labels))
    head = model.qa_outputs
    optimizer = torch.optim.Adam(head.parameters(), lr=0.01)
    for _ in range(steps):
        for states, starts, ends, readable in read:
            start_logits, end_logits = head(states).unbind(-1)
            (span_loss(start_logits, end_logits, starts, ends, readable) * len(starts) / len(windows)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval(), tokenizer


def write_adapter(directory: Path, base: Any, tuned: Any, rank: int, origin: str) -> None:
    """Write what training changed as a low-rank adapter that ``peft`` reads, in half precision.

    A matrix's change is cut to its ``rank`` largest singular values, the nearest matrix of that rank (Eckart and
    Young 1936), and split into LoRA's two factors (Hu et al. 2022); biases, normalisation and QA head are kept whole.

    Args:
        directory: to write ``adapter_config.json`` and safetensors into.
        base: the model before training; is changed.
        tuned: the model afterwards.
        rank: of each matrix's change.
        origin: what to call the base model in the adapter's description.

    Raises:
        InputError: if an embedding was trained, which an adapter does not hold.
    """
    # Imported here: only an adapter needs it, and it takes seconds.
    from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
    from peft.tuners.lora import LoraLayer
    from peft.utils import ModulesToSaveWrapper

    tuned_modules: dict[str, Any] = dict(tuned.named_modules())
    for name, module in base.named_modules():
        if isinstance(module, nn.Embedding) and not torch.equal(module.weight, tuned_modules[name].weight):
            raise InputError(
                f"training.adapter_rank is {rank}, but {name} was trained; set training.freeze_embeddings=true"
            )
    norms = sorted({name.split(".")[-1] for name, each in base.named_modules() if isinstance(each, nn.LayerNorm)})
    config = LoraConfig(
        r=rank,
        lora_alpha=rank,  # a factor of 1
        lora_bias=True,
        target_modules="all-linear",
        exclude_modules=["qa_outputs"],
        modules_to_save=["qa_outputs", *norms],
        inference_mode=True,
    )
    with quiet():
        adapted: Any = get_peft_model(base, config)
    config = adapted.peft_config["default"]
    config.base_model_name_or_path = origin
    modules = dict(adapted.base_model.model.named_modules())
    matrices: dict[str, Any] = {name: each for name, each in modules.items() if isinstance(each, LoraLayer)}
    whole: dict[str, Any] = {name: each for name, each in modules.items() if isinstance(each, ModulesToSaveWrapper)}
    with torch.no_grad():
        for name, layer in matrices.items():
            after, before = tuned_modules[name], layer.base_layer
            left, values, right = torch.linalg.svd(after.weight - before.weight, full_matrices=False)
            root = values[:rank].sqrt()
            layer.lora_B["default"].weight[:, : len(root)] = left[:, :rank] * root
            layer.lora_A["default"].weight[: len(root)] = root[:, None] * right[:rank]
            layer.lora_B["default"].bias.copy_(after.bias - before.bias)
        for name, wrapper in whole.items():
            wrapper.modules_to_save["default"].load_state_dict(tuned_modules[name].state_dict())
    config.save_pretrained(str(directory))
    with quiet():
        tensors = {name: value.half().contiguous() for name, value in get_peft_model_state_dict(adapted).items()}
    save_file(tensors, directory / ADAPTER, metadata={"format": "pt"})


def run_name(weights: str, train: Sequence[Question], settings: ReaderSettings, training: Training) -> str:
    """The :func:`fingerprint` of a run: base weights, questions and settings."""
    return fingerprint(weights, [asdict(q) for q in train], asdict(settings), asdict(training))
