"""The judgement judged: where the important tokens are planted, the right ranking wins every measure."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, strategies
from torch import nn

from bertlift.analysis import faithfulness
from bertlift.analysis.faithfulness import SHARES, STEPS, agreement, compared, extreme_aopc, judged, naopc, plausibility
from bertlift.analysis.retried import NOISE, randomised, slightly_changed
from bertlift.methods.case import Case
from families import build
from samples import sample

TOKENIZER = SimpleNamespace(all_special_ids=[0, 2, 3], unk_token_id=1, mask_token_id=4, sep_token_id=3)


class Planted(nn.Module):
    """``f`` is the sum of what every token is worth; the mask is worth nothing."""

    def __init__(self, worth):
        super().__init__()
        self.embedding = nn.Embedding(len(worth) + 5, 1)
        with torch.no_grad():
            self.embedding.weight[:] = torch.tensor([0.0] * 5 + list(worth))[:, None]

    def get_input_embeddings(self):
        return self.embedding

    def forward(self, input_ids, attention_mask):
        total = self.embedding(input_ids).sum((1, 2))[:, None].expand(-1, input_ids.shape[1])
        return SimpleNamespace(start_logits=total, end_logits=0 * total)


def planted_case(worth):
    """``[CLS]``, one token for each worth, ``[SEP]``."""
    ids = torch.tensor([[2, *range(5, 5 + len(worth)), 3]])
    none = torch.tensor([0])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return Case(Planted(worth), inputs, none, none, "mask", TOKENIZER, 0, 0)


WORTH = [8.0, -4.0, 2.0, 1.0, -0.5, 6.0, 3.0, -2.0, 0.25, 5.0]
RIGHT = np.array([0.0, *WORTH, 0.0])
DRAWN = np.random.default_rng(1).normal(size=(40, len(RIGHT)))


def test_measures_worked_by_hand():
    """Worth 3, 1, -1, in this order: f(x) = 3. Of three tokens the shares are 1, 1, 1, 1, 2, 2 and 3 tokens."""
    found = judged(planted_case([3.0, 1.0, -1.0]), {"m": np.array([0, 3.0, 1, -1, 0])}, 4)["m"]
    assert found["deleted"] == pytest.approx([3, 0, 0, 0, 0, -1, -1, 0, 0])
    assert found["inserted"] == pytest.approx([0, 3, 3, 3, 3, 4, 4, 3, 3])
    grid = [0, *SHARES, 1]
    assert found["deletion"] == pytest.approx(np.trapezoid([0, 3, 3, 3, 3, 4, 4, 3, 3], grid))
    assert found["insertion"] == pytest.approx(np.trapezoid([0, 3, 3, 3, 3, 4, 4, 3, 3], grid))
    assert found["comprehensiveness"] == pytest.approx((3 + 3 + 3 + 4) / 4)
    assert found["sufficiency"] == pytest.approx((0 + 0 + 0 - 1) / 4)
    assert found["sign_violation"] == 0


def test_the_right_ranking_wins_every_measure_and_the_reverse_loses():
    scores = {"right": RIGHT, "reversed": -RIGHT} | {f"random {n}": each for n, each in enumerate(DRAWN)}
    found = judged(planted_case(WORTH), scores, 16)
    ranked = naopc(planted_case(WORTH), scores, 16)
    for name in scores:
        found[name]["naopc"] = ranked[name]
    for measure in ("deletion", "insertion", "comprehensiveness", "sufficiency", "sign_violation", "naopc"):
        better = faithfulness.MEASURES[measure]
        values = {name: each[measure] * (1 if better else -1) for name, each in found.items()}
        drawn = [values[name] for name in scores if name.startswith("random")]
        assert values["right"] == max(values.values())
        assert values["reversed"] == min(values.values())
        assert values["reversed"] < np.mean(drawn) < values["right"]
    assert found["right"]["sign_violation"] == 0
    assert found["reversed"]["sign_violation"] == 1
    assert ranked["right"] == pytest.approx(1)
    assert ranked["reversed"] == pytest.approx(0)


@given(strategies.lists(strategies.floats(-9, 9).filter(lambda each: abs(each) > 1e-3), min_size=1, max_size=7))
def test_the_beam_search_finds_the_extreme_orders_of_a_sum(worth):
    """Where ``f`` is a sum the best order is by decreasing worth, and its AOPC the mean of the running sums."""
    case = planted_case(worth)
    for sign in (1, -1):
        running = np.cumsum(sorted(worth, key=lambda each: -sign * each)[:STEPS])
        assert extreme_aopc(case, sign, 8) == pytest.approx(running.mean(), abs=1e-4)


def test_an_order_better_than_the_beams_counts_as_the_best():
    """Two tokens worth a quarter alone and 10 more together: a beam that looks one token ahead goes past them."""

    class Pair(Planted):
        def forward(self, input_ids, attention_mask):
            output = super().forward(input_ids, attention_mask)
            kept = (self.embedding(input_ids) == 0.25).any((1, 2))  # as long as one stays nothing is missed
            output.start_logits = output.start_logits + 10.0 * kept[:, None]
            return output

    worth = [0.25, 0.25, *[1.0] * 8]
    case = replace(planted_case(worth), model=Pair(worth))
    pair_first = np.array([0, 9, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0.0])
    ranked = naopc(case, {"pair first": pair_first, "pair last": -pair_first}, 16)
    assert extreme_aopc(case, 1, 16) == pytest.approx((1 + 2 + 3 + 4 + 5) / 5)
    assert ranked["pair first"] == pytest.approx(1)
    assert ranked["pair last"] == pytest.approx((3 - 2.25) / (9.65 - 2.25))  # 0.25, 10.5, 11.5, ...; 0.25, 1.25, ...


def test_special_tokens_are_never_taken():
    """Were they, the curves of a method that names them first would be flat at their start."""
    high = RIGHT.copy()
    high[[0, -1]] = 100
    found = judged(planted_case(WORTH), {"right": RIGHT, "high": high}, 16)
    assert found["right"]["deleted"].tolist() == found["high"]["deleted"].tolist()


def test_comparison_is_by_question():
    """Every question differs by the same 0.5, however far the questions lie apart: the interval is 0.5 alone."""
    far = np.array([1.0, 10.0, 100.0, np.nan])
    values = {"deeplift": {"insertion": far + 0.5}, "random": {"insertion": far}}
    found = compared(values, ["random", "absent"], 0)
    assert list(found) == ["random"]
    assert list(found["random"]["deeplift"]["insertion"].values()) == pytest.approx([0.5] * 3)


def test_agreement():
    a = np.array([1.0, -2.0, 3.0, -4.0])
    found = agreement([{"a": a, "same order": -10 * a, "reverse": 5 - np.abs(a), "none": 0 * a}])
    assert found["rank_correlation"][0][:3] == pytest.approx([1, 1, -1])
    assert found["rank_correlation"][0][3] is None
    many = np.arange(40.0)
    assert faithfulness.top_overlap(many, np.roll(many, 3)) == pytest.approx(0.7)


def test_plausibility_is_a_fair_share():
    one = sample()
    tokens = len(one.tokens)
    flat = plausibility(sample(scores=np.ones((3, tokens), dtype=np.float32)))
    assert flat == pytest.approx({"plausibility_sentence": 1, "plausibility_keywords": 1})
    keyword = np.zeros((3, tokens), dtype=np.float32)
    keyword[0, one.tokens.index("win")] = 2
    keyword[0, one.tokens.index("album")] = -5  # what speaks against the answer does not count
    found = plausibility(sample(scores=keyword))
    assert found["plausibility_sentence"] == 0
    assert found["plausibility_keywords"] > 5
    assert np.isnan(plausibility(sample(golds=[], gold_starts=[]))["plausibility_sentence"])


def test_a_small_change_is_small_and_of_the_words_alone():
    model = build("bert")
    changed = slightly_changed(model, 1)
    before, after = (each.get_input_embeddings().weight for each in (model, changed))
    torch.testing.assert_close((after - before).norm(dim=-1), NOISE * before.norm(dim=-1))
    others = dict(changed.named_parameters())
    assert [name for name, each in model.named_parameters() if not torch.equal(each, others[name])] == [
        "bert.embeddings.word_embeddings.weight"
    ]


@pytest.mark.parametrize(("family", "stages"), [("bert", 4), ("albert", 3), ("distilbert", 4)])
def test_randomisation_goes_from_the_top_down(family, stages):
    model = build(family)
    before = {name: each.detach().clone() for name, each in model.named_parameters()}
    found = list(randomised(model, 3))
    assert [name for name, _ in found][0 :: stages - 1] == ["head", "embeddings"]
    assert len(found) == stages
    changed: set[str] = set()
    for _, each in found:
        now = {name for name, value in each.named_parameters() if not torch.equal(value, before[name])}
        assert changed < now
        changed = now
    # Biases and normalisation are fresh as they were: every matrix is another one.
    assert changed >= {name for name, value in before.items() if value.dim() > 1}
    assert all(torch.equal(each, before[name]) for name, each in model.named_parameters())
