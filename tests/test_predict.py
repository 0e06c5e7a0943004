"""Windows, spans, thresholds, and the explanation of what was predicted."""

from __future__ import annotations

import copy
import json
from fractions import Fraction
from itertools import chain, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertlift.config import AttributionSettings
from bertlift.errors import InputError
from bertlift.methods.explain import METHODS, explain
from bertlift.reader.description import Description
from bertlift.reader.load import load_model, load_reader, save_reader
from bertlift.reader.predict import (
    Prediction,
    Span,
    best_spans,
    collate,
    decode,
    predict,
    span_logits,
    tune_null_threshold,
)
from bertlift.reader.windows import PASSAGE, QUESTION, SPECIAL, Window, batches, windows_of
from bertlift.squad.metrics import question_scores
from bertlift.squad.schema import Answer, Question
from conftest import PASSAGES, make_question

LONG = " ".join(PASSAGES.values())
DESCRIPTION = Description("tiny", "here", None, "x", None, True, 32, 8, 5, 20, 0.0, 0.0, 1)


def long_question(answer=None, identity="long"):
    answers = () if answer is None else (Answer(answer, LONG.index(answer)),)
    return Question(identity, "Where does the Danube end?", LONG, "All", answers)


@pytest.fixture(scope="module")
def reader(tiny_reader, tmp_path_factory):
    directory = tmp_path_factory.mktemp("reader")
    model, tokenizer = load_model(tiny_reader, new_head=False)
    with torch.no_grad():
        model.qa_outputs.weight.mul_(30)  # logits that differ
    save_reader(directory, model, tokenizer, DESCRIPTION)
    return load_reader(directory)


@pytest.mark.parametrize(("length", "stride"), [(32, 8), (48, 20), (16, 6)])
def test_windows_cover_the_passage_and_overlap_by_the_stride(tokenizer, length, stride):
    windows = windows_of(long_question(), tokenizer, length, stride)
    assert len(windows) > 2
    passage = [
        [offset for offset, segment in zip(each.offsets, each.segments, strict=True) if segment == PASSAGE]
        for each in windows
    ]
    for before, after in pairwise(passage):
        assert before[-stride:] == after[:stride]
        assert not set(before[:-stride]) & set(after)
    whole = tokenizer(LONG, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    assert sorted(set(chain.from_iterable(passage))) == [tuple(offset) for offset in whole]
    for window in windows:
        assert len(window.input_ids) <= length
        assert window.input_ids[window.cls] == tokenizer.cls_token_id
        for position, (start, end) in enumerate(window.offsets):
            if window.segments[position] == PASSAGE and window.tokens[position] != "[UNK]":
                assert LONG[start:end].lower() == window.tokens[position].removeprefix("##")


@pytest.mark.parametrize("answer", ["the Black Sea", "ten minutes", "Philadelphia", None])
def test_labels_are_the_answers_tokens_or_cls_where_the_window_cuts_it_off(tokenizer, answer):
    question = long_question(answer)
    held = 0
    for window in windows_of(question, tokenizer, 32, 8):
        start, end = window.label()
        passage = [
            offset for offset, segment in zip(window.offsets, window.segments, strict=True) if segment == PASSAGE
        ]
        first = question.answers[0].start if answer else 0
        inside = answer is not None and passage[0][0] <= first and first + len(answer) <= passage[-1][1]
        if inside:
            assert LONG[window.offsets[start][0] : window.offsets[end][1]] == answer
            held += 1
        else:
            assert (start, end) == (window.cls, window.cls)
    assert (held > 0) is (answer is not None)


def test_a_window_that_holds_a_part_of_the_answer_has_no_answer(tokenizer):
    # Tokens 20 to 31 of the passage; the windows hold 0 to 22, 15 to 37, 30 to 52 and 45 to 62.
    question = long_question("was formed. Bakers knead the dough for ten minutes. Yeast")
    windows = windows_of(question, tokenizer, 32, 8)
    cls = (windows[0].cls, windows[0].cls)
    front = windows[0].segments.index(PASSAGE)
    assert [window.label() for window in windows] == [cls, (front + 5, front + 16), cls, cls]


def test_the_label_is_the_first_of_several_golds(tokenizer):
    golds = tuple(Answer(gold, LONG.index(gold)) for gold in ("silk kite", "Yeast"))
    (window,) = windows_of(Question("q", "What?", LONG, "All", golds), tokenizer, 128, 8)
    start, end = window.label()
    assert LONG[window.offsets[start][0] : window.offsets[end][1]] == "silk kite"


def test_an_answer_no_longer_than_the_overlap_is_whole_in_some_window(tokenizer):
    offsets = tokenizer(LONG, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    for first in range(len(offsets) - 7):
        text = LONG[offsets[first][0] : offsets[first + 7][1]]
        question = Question("q", "Where?", LONG, "All", (Answer(text, offsets[first][0]),))
        windows = windows_of(question, tokenizer, 32, 8)
        labels = [each.label() for each in windows if each.label() != (each.cls, each.cls)]
        assert labels, text
        assert {end - start for start, end in labels} == {7}


def test_blanks_in_a_question_are_squeezed_before_its_offsets_are_taken(tokenizer):
    (window,) = windows_of(Question("q", "  Who \n flew?", PASSAGES["Kites"], "A", ()), tokenizer, 64, 8)
    asked = [
        "Who flew?"[start:end]
        for (start, end), segment in zip(window.offsets, window.segments, strict=True)
        if segment == QUESTION
    ]
    assert asked == ["Who", "flew", "?"]


def test_a_question_that_leaves_no_room_is_refused(tokenizer):
    question = Question("q9", "Where " * 20 + "?", LONG, "All", ())
    with pytest.raises(InputError) as refused:
        windows_of(question, tokenizer, 32, 8)
    said = str(refused.value)
    assert said.startswith("article 'All': question q9: the question has 21 tokens, which leaves 8 for the passage")
    assert "raise reader.max_length" in said
    assert len(said.splitlines()) == 1
    # One token less, and there is just enough: nine tokens of the passage, one of them new.
    windows = windows_of(Question("q9", "Where " * 20, LONG, "All", ()), tokenizer, 32, 8)
    assert {each.segments.count(PASSAGE) for each in windows} == {9}


def test_a_passage_without_a_token_is_refused(tokenizer):
    with pytest.raises(InputError, match="article 'A': question q: the tokenizer finds no token in the passage"):
        windows_of(Question("q", "Who?", "\u200b", "A", ()), tokenizer, 32, 8)


def test_batches_are_padded_and_hold_every_window_once(tokenizer, questions):
    windows = [window for question in questions for window in windows_of(question, tokenizer, 64, 8)]
    parts = list(batches(windows, 3))
    assert sorted(chain.from_iterable(parts)) == list(range(len(windows)))
    assert max(map(len, parts)) == 3
    padded = collate(windows, tokenizer)
    assert set(padded) == {"input_ids", "attention_mask", "token_type_ids"}
    for row, window in enumerate(windows):
        size = len(window.input_ids)
        assert padded["input_ids"][row].tolist()[:size] == window.input_ids
        assert padded["attention_mask"][row].sum() == size
        assert padded["attention_mask"][row, :size].all()
        assert (padded["input_ids"][row, size:] == tokenizer.pad_token_id).all()
        assert padded["token_type_ids"][row].sum() == window.segments.count(PASSAGE) + 1  # and the last [SEP]
    assert "token_type_ids" not in collate([toy_window(8)], tokenizer)


def toy_window(size, question_tokens=2, number=0, identity="toy"):
    """``[CLS] q q [SEP] p p p ... [SEP]``; the passage's k-th token is the k-th letter."""
    letters = size - question_tokens - 3
    segments = [SPECIAL, *[0] * question_tokens, SPECIAL, *[PASSAGE] * letters, SPECIAL]
    offsets = [(0, 0)] * (question_tokens + 2) + [(k, k + 1) for k in range(letters)] + [(0, 0)]
    question = Question(identity, "q q", "abcdefghijklmnopqrstuvwxyz", "A", ())
    words = [-1] * size
    return Window(question, number, list(range(size)), None, ["t"] * size, offsets, segments, words, 0)


@given(st.data(), st.integers(6, 14), st.integers(1, 12), st.integers(1, 8))
def test_the_best_spans_are_those_of_brute_force(data, size, n_best, longest):
    values = st.lists(st.integers(-3, 3).map(float), min_size=size, max_size=size)  # few values: many ties
    start, end = np.array(data.draw(values)), np.array(data.draw(values))
    window = toy_window(size)
    found = best_spans(window, start, end, n_best, longest)
    everything = [
        (-(start[i] + end[j]), i, j) for i in range(4, size - 1) for j in range(i, min(i + longest, size - 1))
    ]
    assert [(-span.score, span.start, span.end) for span in found] == sorted(everything)[:n_best]
    assert [span.text for span in found] == ["abcdefghijkl"[span.start - 4 : span.end - 3] for span in found]


def test_decoding_takes_the_best_span_and_the_smallest_null_score_over_windows():
    windows = [toy_window(8, number=number) for number in range(2)] + [toy_window(7, identity="other")]
    logits = [(np.zeros(len(window.input_ids)), np.zeros(len(window.input_ids))) for window in windows]
    logits[0][0][0], logits[1][0][0], logits[2][0][0] = 5.0, 3.0, 1.0  # null scores
    logits[0][0][5], logits[1][1][6] = 2.0, 4.0
    first, second = decode(windows, logits, 20, 30)
    assert (first.null_score, first.null_window) == (3.0, 1)
    best = first.spans[0]
    assert (best.score, best.window, best.start, best.end, best.text) == (4.0, 1, 4, 6, "abc")
    assert first.null_margin == -1.0
    assert second.question.id == "other"
    assert second.null_score == 1.0
    assert [span.score for span in decode(windows, logits, 3, 30)[0].spans] == [4.0, 4.0, 4.0]
    assert [span.score for span in first.spans] == sorted((span.score for span in first.spans), reverse=True)


def test_equal_spans_and_null_scores_go_to_the_earlier_window():
    windows = [toy_window(8, number=number) for number in range(3)]
    logits = [(np.zeros(8), np.zeros(8)) for _ in windows]
    for start, _ in logits[1:]:
        start[0], start[5] = -1.0, 2.0
    (found,) = decode(windows, logits, 20, 1)
    assert (found.null_score, found.null_window) == (-1.0, 1)
    # Nine spans of one token: those of score 2 by window, then those of 0 by window and position.
    rest = [(0, 4), (0, 5), (0, 6), (1, 4), (1, 6), (2, 4), (2, 6)]
    assert [(span.window, span.start) for span in found.spans] == [(1, 5), (2, 5), *rest]


def prediction(margin, text="Ann", golds=("Ann",)):
    answers = tuple(Answer(gold, 0) for gold in golds)
    return Prediction(Question("q", "Who?", "Ann", "A", answers), [Span(1.0, 0, 4, 4, text)], 1.0 + margin, 0)


def test_no_answer_is_said_above_the_threshold_only():
    one = prediction(0.5)
    assert [one.answer(threshold) for threshold in (0.4, 0.5, 0.6)] == ["", "Ann", "Ann"]
    assert prediction(0.0).na_prob == 0.5
    assert prediction(np.log(3)).na_prob == pytest.approx(0.75)
    assert prediction(-5000.0).na_prob == 0
    assert prediction(5000.0).na_prob == 1
    assert Prediction.from_json(one.question, json.loads(json.dumps(one.to_json()))) == one


@given(
    st.lists(
        st.tuples(st.integers(-4, 4), st.sampled_from(["Ann", "Ann did", "Bob"]), st.sampled_from([(), ("Ann",)])),
        min_size=1,
        max_size=8,
    )
)
def test_the_null_threshold_is_the_best_there_is_and_nearest_to_zero(rows):
    predictions = [prediction(float(margin), text, golds) for margin, text, golds in rows]
    threshold, score = tune_null_threshold(predictions)

    def at(value):
        return 100 * np.mean([question_scores(p.question, p.answer(value))[1] for p in predictions])

    assert score == pytest.approx(at(threshold))
    halves = [half / 2 + 0.25 for half in range(-12, 12)]  # between all margins that can occur
    assert score == pytest.approx(max(at(value) for value in halves))
    assert threshold == 0 or at(0.0) < score - 1e-9


F1 = {"Ann": Fraction(1), "Ann did": Fraction(2, 3), "Bob": Fraction(0)}  # against the gold "Ann"
ROW = st.tuples(st.integers(-4, 4), st.sampled_from(sorted(F1)), st.sampled_from([(), ("Ann",)]))


@given(st.lists(ROW, min_size=1, max_size=8))
def test_no_null_threshold_is_as_good_and_nearer_to_zero(rows):
    threshold, _ = tune_null_threshold([prediction(float(margin), text, golds) for margin, text, golds in rows])

    def f1(value):  # a fraction, so that equal sums are equal
        return sum(Fraction(not golds) if margin > value else F1[text] * len(golds) for margin, text, golds in rows)

    def silent(value):
        return [margin > value for margin, _, _ in rows]

    everywhere = [0, *(half / 2 + 0.25 for half in range(-12, 12))]  # on both sides of every margin
    best = max(map(f1, everywhere))
    assert f1(threshold) == best
    assert threshold == 0 or f1(0) < best
    # What is as good on the same side of 0 and nearer to it lies between the same two margins.
    for value in everywhere:
        if value * threshold > 0 and abs(value) < abs(threshold) and f1(value) == best:
            assert silent(value) == silent(threshold)


def test_rounding_does_not_break_a_tie_between_null_thresholds():
    # Above 1.5 are one right silence and one wrong; three answers of 2/3 remain: 3. Silence throughout, at -2, is
    # right three times: 3 as well. 1.5 is nearer to 0.
    gold = ("Ann",)
    rows = [(2, "Bob", ()), (1, "Ann did", gold), (1, "Ann did", gold), (4, "Bob", gold), (-1, "Ann did", gold)]
    rows += [(1, "Bob", ()), (-1, "Ann did", ())]
    threshold, score = tune_null_threshold([prediction(float(margin), text, golds) for margin, text, golds in rows])
    assert (threshold, score) == (1.5, pytest.approx(300 / 7))


# Margins, and whether answering is right (+) or there is nothing to answer (-); answered from the margin on.
# A question is answered from its margin on.
@pytest.mark.parametrize(
    ("rows", "threshold", "score"),
    [
        ([(-3, "+"), (3, "-")], 0.0, 100.0),  # anything between
        ([(3, "+")], 4.0, 100.0),  # anything above
        ([(-3, "-")], -4.0, 100.0),  # anything below
        ([(1, "+"), (3, "-"), (4, "+")], 2.0, 200 / 3),  # (1, 3) is as good as above 4
        ([(-8, "+"), (-6, "-"), (-4, "+"), (-1, "-")], -2.5, 75.0),  # (-4, -1) is as good as (-8, -6)
    ],
)
def test_of_equally_good_null_thresholds_the_one_nearest_to_zero_is_taken(rows, threshold, score):
    predictions = [prediction(float(margin), golds=("Ann",) if sign == "+" else ()) for margin, sign in rows]
    assert tune_null_threshold(predictions) == (threshold, pytest.approx(score))


def test_the_batch_size_does_not_matter(reader, questions):
    one, other = (predict(reader, [*questions, long_question()], size) for size in (1, 7))
    for first, second in zip(one, other, strict=True):
        assert [(span.window, span.start, span.end) for span in first.spans[:3]] == [
            (span.window, span.start, span.end) for span in second.spans[:3]
        ]
        assert first.null_score == pytest.approx(second.null_score, abs=1e-4)


def explained(reader, questions, threshold=0.0, **settings):
    chosen = type(reader)(
        reader.model, reader.tokenizer, Description(**(vars(DESCRIPTION) | {"null_threshold": threshold}))
    )
    predictions = predict(chosen, questions, 4)
    splits = dict.fromkeys((question.id for question in questions), "dev")
    return predictions, explain(chosen, predictions, AttributionSettings(**settings), splits)


def several_windows():
    texts = ["Where does the Danube end?", "Who flew?", "Why?"]
    return [Question(f"long{number}", text, LONG, "All", ()) for number, text in enumerate(texts)]


@pytest.mark.parametrize("threshold", [1e9, -1e9])
def test_what_is_explained_is_what_was_predicted(reader, questions, threshold):
    asked = [*questions[::3], *several_windows()]
    predictions, found = explained(reader, asked, threshold)
    plain = copy.deepcopy(reader.model).double()
    explained_windows = set()
    assert [each.question_id for each in found] == [question.id for question in asked]
    for one, guess in zip(found, predictions, strict=True):
        windows = windows_of(guess.question, reader.tokenizer, 32, 8)
        logits = [span_logits(plain, reader.tokenizer, [each], 1)[0] for each in windows]
        nulls = [start[each.cls] + end[each.cls] for each, (start, end) in zip(windows, logits, strict=True)]
        number = guess.spans[0].window if one.answer else int(np.argmin(nulls))
        explained_windows.add(number)
        window = windows[number]
        assert one.tokens == window.tokens
        if threshold > 0:
            assert one.answer == one.best_span == guess.spans[0].text
            assert one.context[one.offsets[one.start][0] : one.offsets[one.end][1]] == one.answer
        else:
            assert (one.answer, one.start, one.end) == ("", window.cls, window.cls)
        start, end = logits[number]
        assert one.target_value == pytest.approx(start[one.start] + end[one.end], abs=1e-8)
        np.testing.assert_allclose(one.start_logits, start, atol=1e-4)
        np.testing.assert_allclose(one.end_logits, end, atol=1e-4)
        difference = one.target_value - one.reference_value
        np.testing.assert_allclose(one.scores.sum(1), difference, rtol=0, atol=1e-4 * max(abs(difference), 0.01))
        np.testing.assert_allclose(one.positive + one.negative, one.scores, atol=1e-4)
        assert one.relative_delta.max() < 1e-6
        names = "tokens offsets segments words start_logits end_logits reference_start_logits reference_end_logits"
        assert {len(getattr(one, name)) for name in names.split()} == {len(window.input_ids)}
        assert one.scores.shape == one.positive.shape == one.negative.shape == (4, len(window.input_ids))
        assert len(one.delta) == 4
    assert len(explained_windows) > 1  # else the first window would do for all


def test_the_batch_size_of_explaining_does_not_matter(reader, questions):
    asked = [*questions, long_question()]
    (_, one), (_, other) = (explained(reader, asked, batch_size=size) for size in (1, 5))
    for first, second in zip(one, other, strict=True):
        np.testing.assert_allclose(first.scores, second.scores, atol=1e-5)


def test_the_reader_stays_in_single_precision(reader, questions):
    explained(reader, questions[:1])
    assert {parameter.dtype for parameter in reader.model.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"method": "magic"}, f"attribution.method is 'magic'; allowed: {', '.join(METHODS)}"),
        (
            {"reference": "none"},
            "reference is 'none'; allowed: mask, pad, unk, zero, blank_passage, blank_question, "
            "token ids or embeddings",
        ),
    ],
)
def test_an_unknown_method_or_reference_is_refused(reader, settings, said):
    with pytest.raises(InputError) as refused:
        explained(reader, [make_question("Bread", "Why?", "Yeast")], **settings)
    assert str(refused.value) == said
