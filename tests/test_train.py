"""Fine-tuning: it learns, repeats, goes on where it was cut short, and keeps the best checkpoint."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import TrainerCallback

from bertlift.config import Reader as ReaderSettings
from bertlift.config import Training
from bertlift.reader import train
from bertlift.reader.load import load_model
from bertlift.reader.train import (
    calibration_split,
    finetune,
    run_name,
    schedule,
    sentences,
    span_loss,
    write_curves,
)
from bertlift.squad.schema import Answer, Question
from conftest import ASKED, make_question

SETTINGS = ReaderSettings(name="tiny", max_length=64, doc_stride=16, batch_size=4)
TRAINING = Training(epochs=4, learning_rate=3e-3, batch_size=2, dropout=0.1, seed=3)


def run(directory, questions, checkpoints, **changes):
    training = Training(**(vars(TRAINING) | changes))
    return finetune(directory, questions, questions, SETTINGS, training, checkpoints)


def weights(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)
    yield
    torch.use_deterministic_algorithms(False)


def test_a_run_repeats_exactly_and_another_seed_does_not(tiny_encoder, questions, tmp_path):
    first, second = (weights(run(tiny_encoder, questions, tmp_path / name)[0]) for name in ("a", "b"))
    other = weights(run(tiny_encoder, questions, tmp_path / "c", seed=4)[0])
    assert same(first, second)
    assert not same(first, other)


def test_it_learns(tiny_encoder, questions, tmp_path):
    _, _, history = run(tiny_encoder, questions, tmp_path / "a", epochs=40, dropout=0.0)
    scores = [entry["eval_f1"] for entry in history if "eval_f1" in entry]
    losses = [entry["loss"] for entry in history if "loss" in entry]
    assert losses[-1] < losses[0] / 3
    assert len(scores) == 4
    assert max(scores) > 70
    assert max(scores) > scores[0]
    assert not (tmp_path / "a").exists()


def test_the_best_of_the_trials_is_kept_not_the_last(tiny_encoder, questions, tmp_path, monkeypatch):
    """F1 is made to say that the second of the four trials was the best."""
    told = iter([10.0, 50.0, 20.0, 30.0])
    monkeypatch.setattr(train, "evaluate", lambda *_: {"f1": next(told)})
    kept, _, _ = run(tiny_encoder, questions, tmp_path / "a")
    taken = {}

    class Watch(TrainerCallback):
        def on_step_end(self, args, state, control, model=None, **kwargs):
            taken[4 * state.global_step / state.max_steps] = weights(model)

    told = iter([10.0, 50.0, 20.0, 30.0])
    plain = train.SpanTrainer
    monkeypatch.setattr(train, "SpanTrainer", lambda **given: plain(callbacks=[Watch()], **given))
    run(tiny_encoder, questions, tmp_path / "b")
    assert same(weights(kept), taken[2])
    assert not same(weights(kept), taken[4])


def test_a_run_that_was_cut_short_goes_on_and_ends_the_same(tiny_encoder, questions, tmp_path, monkeypatch):
    whole, _, history = run(tiny_encoder, questions, tmp_path / "whole")

    class Stop(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step > 0.6 * state.max_steps:
                raise KeyboardInterrupt

    plain = train.SpanTrainer
    monkeypatch.setattr(train, "SpanTrainer", lambda **given: plain(callbacks=[Stop()], **given))
    with pytest.raises(KeyboardInterrupt):
        run(tiny_encoder, questions, tmp_path / "cut")
    monkeypatch.setattr(train, "SpanTrainer", plain)
    resumed, _, resumed_history = run(tiny_encoder, questions, tmp_path / "cut")
    assert same(weights(whole), weights(resumed))
    curves = [(entry["step"], entry["eval_f1"]) for entry in history if "eval_f1" in entry]
    assert [(entry["step"], entry["eval_f1"]) for entry in resumed_history if "eval_f1" in entry] == curves


def test_only_the_very_same_run_has_the_same_name(questions):
    name = run_name("abc", questions, SETTINGS, TRAINING)
    assert name == run_name("abc", questions, SETTINGS, Training(**vars(TRAINING)))
    assert name != run_name("abd", questions, SETTINGS, TRAINING)
    assert name != run_name("abc", questions[1:], SETTINGS, TRAINING)
    assert name != run_name("abc", questions, SETTINGS, Training(**(vars(TRAINING) | {"epochs": 5})))


def test_calibration_sets_whole_articles_aside(questions):
    fitting, aside = calibration_split(questions, 0.2, 13)
    assert sorted(q.id for q in fitting + aside) == sorted(q.id for q in questions)
    assert not {q.title for q in fitting} & {q.title for q in aside}
    assert len(aside) >= 0.2 * len(questions)
    assert calibration_split(questions, 0.2, 13) == (fitting, aside)


def test_calibration_of_one_passage_is_on_the_training_questions():
    one = [make_question(*each) for each in ASKED if each[0] == "Rivers"]
    assert calibration_split(one, 0.5, 1) == (one, one)


def test_curves_hold_the_log_without_clock_times(tmp_path):
    history = [
        {"loss": 2.0, "learning_rate": 0.1, "epoch": 0.5, "step": 5},
        {"eval_f1": 40.0, "eval_runtime": 3.3, "epoch": 1.0, "step": 10},
        {"train_runtime": 9.0, "step": 10},
    ]
    write_curves(tmp_path / "curves", history)
    assert (tmp_path / "curves/plots/metrics/train/loss.tsv").read_text().split() == ["step", "loss", "5", "2.0"]
    assert (tmp_path / "curves/plots/metrics/held_out/f1.tsv").read_text().split() == ["step", "f1", "10", "40.0"]
    assert "runtime" not in "".join(path.read_text() for path in (tmp_path / "curves").rglob("*") if path.is_file())


def over(context, answer):
    return Question("q", "Where?", context, "Rivers", (Answer(answer, context.index(answer)),))


def test_sentences_hold_the_answer_with_one_neighbour():
    question = over("The Ob is long. The Po is short. It rises in the Alps. Milan is near it.", "the Alps")
    found = {sentences([question], seed)[0] for seed in range(20)}
    assert {part.context for part in found} == {
        "It rises in the Alps. Milan is near it.",
        "The Po is short. It rises in the Alps.",
    }
    for part in found:
        (answer,) = part.answers
        assert part.context[answer.start : answer.start + len(answer.text)] == "the Alps"


def test_sentences_of_an_unanswerable_question_are_taken_at_random(questions):
    unanswerable = next(q for q in questions if q.is_impossible)
    parts = {sentences([unanswerable], seed)[0].context for seed in range(50)}
    assert all(part in unanswerable.context for part in parts)
    assert len(parts) > 1


def test_an_answer_over_the_end_of_its_sentence_is_left_out():
    assert sentences([over("A b. Two ends here. Three is so. Four.", "b. Two ends here. Three")], 1) == []


@settings(deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 8), st.floats(0, 3), st.integers(0, 99))
def test_a_schedule_passes_over_all_windows(lengths, size, epochs, seed):
    windows = [SimpleNamespace(input_ids=[0] * length, number=number) for number, length in enumerate(lengths)]
    batches = schedule(windows, size, epochs, seed)
    each = -(-len(lengths) // size)
    assert len(batches) == math.ceil(epochs * each)
    assert all(1 <= len(batch) <= size for batch in batches)
    for start in range(0, len(batches) - each + 1, each):
        one_pass = [window.number for batch in batches[start : start + each] for window in batch]
        assert sorted(one_pass) == list(range(len(lengths)))


def test_the_loss_counts_only_where_an_answer_can_stand():
    """By hand: two readable positions with logits 0 and ln 3; others, however high, do not matter."""
    starts, ends = torch.tensor([[0.0, 9.0, math.log(3)]]), torch.tensor([[0.0, 9.0, 0.0]])
    loss = span_loss(starts, ends, torch.tensor([2]), torch.tensor([0]), torch.tensor([[True, False, True]]))
    assert loss.item() == pytest.approx((-math.log(3 / 4) - math.log(1 / 2)) / 2)


def test_a_head_alone_learns_and_the_encoder_stays(tiny_encoder, questions):
    model, tokenizer = train.train_head(tiny_encoder, questions, SETTINGS, 3, steps=100)
    plain, _ = load_model(tiny_encoder, new_head=True)
    before, after = plain.state_dict(), model.state_dict()
    assert {name for name in before if not torch.equal(before[name], after[name])} == {
        "qa_outputs.weight",
        "qa_outputs.bias",
    }
    batch = train.labelled(train.all_windows(questions, tokenizer, 64, 16), tokenizer)
    labels = [batch.pop(name) for name in ("start_positions", "end_positions", "readable")]
    losses = []
    for each in (plain.eval(), model):
        with torch.no_grad():
            output = each(**batch)
        losses.append(float(span_loss(output.start_logits, output.end_logits, *labels)))
    assert losses[1] < 0.7 * losses[0]


def test_embeddings_can_be_frozen(tiny_encoder, questions, tmp_path):
    before = load_model(tiny_encoder, new_head=True)[0].state_dict()
    after = weights(run(tiny_encoder, questions, tmp_path / "a", freeze_embeddings=True, sentence_epochs=2)[0])
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert not any("embeddings" in name for name in changed)
    assert any("layer.0" in name for name in changed)
