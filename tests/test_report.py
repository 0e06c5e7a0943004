"""Figures and the page, also as a browser shows it."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_hex

from bertlift.analysis.claims import judge
from bertlift.analysis.groups import GROUPS
from bertlift.analysis.trajectories import summary, trajectory
from bertlift.analysis.words import word_scores, words_of
from bertlift.config import Colors
from bertlift.config import Report as Settings
from bertlift.errors import InputError
from bertlift.reader.description import Description
from bertlift.report import figures, heatmaps, theme
from bertlift.report.page import findings, methods, render
from bertlift.stages.report import draw_example
from samples import planted, sample

EVIL = "<script>window.broken = 1</script>"
SETTINGS = Settings(dpi=60)


@pytest.fixture(autouse=True)
def themed():
    theme.apply()
    yield
    plt.close("all")


@pytest.fixture
def cmap():
    return theme.diverging(Colors())


def texts(figure):
    return [each.get_text() for each in figure.texts]


def boxes(figure):
    """Word -> the colour that it lies on, by the order in which both are drawn."""
    words = figure.texts[2:]  # the first two are the headline
    return [(word.get_text(), to_hex(box.get_facecolor())) for word, box in zip(words, figure.artists, strict=True)]


def test_zero_is_white_and_the_signs_have_their_colours(cmap):
    norm = theme.symmetric(2.0)
    assert to_hex(cmap(norm(0.0))) == "#ffffff"
    assert to_hex(cmap(norm(2.0))) == Colors().positive
    assert to_hex(cmap(norm(-2.0))) == Colors().negative


def test_a_word_that_is_no_colour_is_refused():
    with pytest.raises(InputError, match=r"report.colors.positive is 'rouge'; allowed: a colour"):
        theme.diverging(Colors(positive="rouge"))


def test_text_on_dark_colours_is_white():
    assert theme.ink_on((0.13, 0.4, 0.67, 1)) == "white"
    assert theme.ink_on((0.95, 0.9, 0.9, 1)) == theme.INK


def test_a_layer_shows_every_word_in_running_order_on_its_own_colour(cmap):
    scores = np.zeros_like(sample().scores)
    scores[1, 3], scores[1, 4] = 1.0, 1.0  # the two pieces of "Beyoncé" in the question
    scores[1, 1] = -2.0  # "When"
    scores[2] = scores[1]
    found = boxes(heatmaps.layer(sample(scores=scores), 1, cmap))
    assert [word for word, _ in found][:5] == ["[CLS]", "When", "did", "Beyoncé", "win"]
    colours = dict(found[:5])
    assert colours["When"] == Colors().negative
    assert colours["Beyoncé"] == Colors().positive
    assert colours["did"] == "#ffffff"
    assert not [word for word, _ in found if word.startswith("##")]


def test_words_do_not_overlap_and_stay_on_the_page(cmap):
    one = sample(context=sample().context)
    figure = heatmaps.layer(one, 1, cmap)
    edges = [(p.get_y(), p.get_x(), p.get_x() + p.get_width()) for p in figure.artists]
    for (line, _, right), (following, left, end) in pairwise(edges):
        assert end <= 1
        assert following < line or left >= right - 1e-9


def test_a_hundredth_of_the_largest_score_has_a_tenth_of_its_colour(cmap):
    norm = theme.symmetric(8.0, root=True)
    values = np.array([-8.0, -0.08, 0.0, 0.08, 8.0])
    # From 0 (negative end) over 1/2 (zero) to 1 (positive end).
    np.testing.assert_allclose(norm(values), [0, 0.45, 0.5, 0.55, 1])


def test_all_layers_of_a_question_share_one_scale(cmap):
    one = sample()
    limits = {heatmaps.layer(one, row, cmap).axes[-1].get_xlim() for row in (1, 2)}
    assert len(limits) == 1


def test_dollar_signs_are_no_mathematics(cmap, tmp_path):
    theme.save(heatmaps.layer(sample(), 1, cmap), tmp_path / "layer", SETTINGS)
    assert "$" in texts(heatmaps.layer(sample(), 1, cmap))


def test_figures_repeat_byte_by_byte(cmap, tmp_path):
    for name in ("one", "two"):
        theme.save(heatmaps.overview(sample(), cmap), tmp_path / name, SETTINGS)
    for kind in ("png", "pdf"):
        assert (tmp_path / f"one.{kind}").read_bytes() == (tmp_path / f"two.{kind}").read_bytes()


def test_the_output_figure_names_what_is_true_by_construction(cmap):
    assert any("by construction" in text for text in texts(heatmaps.output(sample(), cmap)))


def test_a_map_with_many_labels_keeps_the_most_frequent_and_says_other(cmap):
    labels = [f"kind {number}" for number in range(12) for _ in range(number + 1)]
    figure = figures.umap_maps(np.random.default_rng(0).random((len(labels), 2)), {"kind": labels})
    shown = [each.get_text() for each in figure.axes[0].get_legend().get_texts()]
    assert shown[0] == "kind 11 (12)"
    assert shown[-1] == "other (15)"  # 1 + 2 + 3 + 4 + 5
    assert len(shown) == len(theme.CATEGORIES)


def test_the_clusters_figure_draws_the_net_share(cmap):
    profiles = np.zeros((2, 2, 3, len(GROUPS)))
    profiles[0, 0, 1, 6], profiles[0, 1, 1, 6] = 0.75, -0.25
    figure = figures.cluster_profiles(profiles, [4, 3], cmap)
    assert figure.axes[0].images[0].get_array()[6, 1] == pytest.approx(0.5)
    assert figure.axes[0].get_title() == "cluster 0 (4)"


SHARES = {"answer": [0.1, 0.2, 0.4, 0.8, 9.0], "punctuation": [1, 1, 0.5, 0.1, 0], "question_word": [1, 1, 1, 0.5, 0]}


@pytest.fixture(scope="module")
def judged():
    """Claims and trajectories of a dozen planted answers; half of them unanswerable, to another half right."""
    many = []
    for seed in range(24):
        golds = {"golds": [], "gold_starts": []} if seed % 2 else {}
        many.append(trajectory(planted(SHARES, seed=seed, question_id=f"q{seed}", gradient=1.0 + seed % 3, **golds)))
    return judge(many, {"random_weights": many[:12]}, 1, "q0"), {"subsets": summary(many, 1), "controls": {}}


def test_a_panel_shows_the_groups_own_line(judged):
    measures = judged[1]["subsets"]["all"]["measures"]
    figure = figures.trajectories({"DeepLIFT": (measures, "fair")}, "All")
    (panel,) = [axes for axes in figure.axes if axes.get_title(loc="left") == "answer"]
    drawn = panel.lines[0].get_ydata()
    assert drawn.tolist() == [row[GROUPS.index("answer")] for row in measures["fair"]["mean"]]
    assert "gold answer" not in [axes.get_title(loc="left") for axes in figure.axes]  # nobody missed one


def test_attention_begins_at_the_first_layer_and_may_be_missing(judged):
    measures = judged[1]["subsets"]["all"]["measures"]
    series = {"attention": (measures, "fair"), "other": (measures, "attention_fair")}
    drawn = [(line.get_label(), line.get_xdata()[0]) for line in figures.trajectories(series, "All").axes[0].lines[:2]]
    assert drawn == [("attention", 0), ("other", 1)]
    assert [line.get_xdata()[0] for line in figures.spread(measures, "attention").axes[0].lines] == [0, 1]
    nothing = {side: [] for side in ("mean", "low", "high")}
    series["other"] = (measures | {"attention_fair": nothing}, "attention_fair")
    assert len(figures.trajectories(series, "All").axes[0].lines) == 2  # and the line of a fair share


def test_the_claims_figure_tells_every_verdict(judged):
    figure = figures.claims(judged[0])
    told = [text.get_text() for axes in figure.axes for text in axes.texts]
    for claim in judged[0]:
        if claim["statistic"] is not None:
            assert claim["verdict"] in told
    assert figures.claims([claim | {"statistic": None} for claim in judged[0]]).axes  # nothing to tell is no fault


def test_the_atlas_has_a_cell_for_every_head(cmap):
    atlas = {"labels": [["broad", "same word"], ["mixed", "separators"]], "positive": [[1.0, 0], [0.5, 0]]}
    atlas |= {"negative": [[0, -2.0], [0, 0]], "value_path": [[1, 0], [0, 0]], "attention_path": [[0, 0], [0, 0]]}
    figure = figures.head_atlas(atlas, cmap)
    assert [text.get_text() for text in figure.axes[0].texts] == ["broad", "same", "", "sep"]
    assert [axes.images[0].get_clim() for axes in figure.axes[1:5]] == [(-2, 2)] * 4
    assert len(figures.head_atlas({"labels": atlas["labels"]}, cmap).axes) == 1  # a method without a split by heads


def test_the_rules_stand_side_by_side_with_all_layers_and_the_output(cmap):
    one = sample()
    figure = heatmaps.side_by_side(one, replace(one, method="paper2019"), cmap)
    shown = texts(figure)
    assert [shown.count(name) for name in ("Layer 1", "Layer 2", "Output")] == [2, 2, 2]
    assert shown.count("Beyoncé") == 2 * 3 * 2
    assert max(box.get_x() + box.get_width() for box in figure.artists) <= 1


def estimate(mean, width=0.5):
    return {"mean": mean, "ci_low": mean - width, "ci_high": mean + width}


def judged_method(insertion):
    stages = {"head": estimate(0.5), "embeddings": estimate(0.0)}
    curves = {"deleted": [3.0, 1.0, 0.0], "inserted": [0.0, insertion, 3.0], "randomised": stages}
    return {"insertion": estimate(insertion), "deletion": estimate(1.0), "seconds_per_question": 0.25} | curves


# Three methods: the second is the best, the third cannot be told from random.
JUDGED = {
    "questions": 4,
    "checked_questions": 2,
    "naopc_questions": 0,
    "naopc_steps": 5,
    "reference": "mask",
    "shares": [0.0, 0.5, 1.0],
    "methods": {"random": judged_method(0.1), "deeplift": judged_method(2.0), EVIL: judged_method(0.2)},
    "against": {"random": {"deeplift": {"insertion": estimate(1.9)}, EVIL: {"insertion": estimate(0.1)}}},
    "agreement": {
        "methods": ["random", "deeplift", EVIL],
        "rank_correlation": [[1, 0.0, 0.1], [0.0, 1, 0.3], [0.1, 0.3, 1]],
        "top_overlap": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    },
}


def area(mean):
    return {"auroc": mean, "ci_low": mean - 0.1, "ci_high": mean + 0.1} | {
        name: estimate(0.25) for name in ("auprc", "aurc", "ece")
    }


TOLD_APART = {
    "questions": 40,
    "right": 30,
    "features": {"softmax": area(0.6), "span": area(0.7), "explanation": area(0.65), "both": area(0.8)},
    "differences": {"both - span": {"auroc": {"mean": 0.1, "ci_low": 0.05, "ci_high": 0.15}}},
    "weights": {"entropy": -0.5, "Gini": 1.0},
    "span_features": ["entropy"],
    "risk_coverage": {name: [[0.5, 1.0], [0.1, 0.25]] for name in ("softmax", "span", "explanation", "both")},
    "calibration": {name: [[0.2, 0.3, 20], [0.8, 0.9, 20]] for name in ("softmax", "span", "explanation", "both")},
}


def test_the_confidence_figure_draws_the_metrics():
    figure = figures.confidence(TOLD_APART)
    assert [line.get_label() for line in figure.axes[0].lines][-1] == "both, fitted"
    assert list(figure.axes[0].lines[0].get_ydata()) == [0.1, 0.25]
    assert list(figure.axes[1].lines[0].get_ydata()) == [0.3, 0.9]
    assert [bar.get_width() for bar in figure.axes[2].patches] == [-0.5, 1.0]
    assert [label.get_text() for label in figure.axes[2].get_yticklabels()] == ["entropy", "Gini"]


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [(0.05, 0.15, "adds to the"), (-0.05, 0.15, "cannot be told to add anything"), (-0.2, -0.1, "takes from the")],
)
def test_what_the_explanation_adds_is_said_with_its_interval(told, judged, low, high, said):
    gain = {"mean": (low + high) / 2, "ci_low": low, "ci_high": high}
    told["confidence"] = TOLD_APART | {"differences": {"both - span": {"auroc": gain}}}
    assert said in render("title", READER, told, [], [], {})
    assert f"{low:+.3f} to {high:+.3f}" in findings(READER, told, judged[1])
    told["confidence"] = {"features": {}}
    assert "too few right or wrong answers" in render("title", READER, told, [], [], {})
    assert "Explanation and confidence" not in findings(READER, told, judged[1])


def test_the_judgement_shows_the_best_first_and_every_estimate(cmap):
    figure = figures.judgement(JUDGED)
    first = figure.axes[0]
    assert [label.get_text() for label in first.get_yticklabels()] == ["deeplift", EVIL, "random"]
    assert [line.get_xdata()[0] for line in first.lines[1::2]][:2] == [2.0, 0.2]
    assert first.get_ylim()[0] > first.get_ylim()[1]
    curves = figures.perturbation_curves(JUDGED)
    drawn = {line.get_label(): list(line.get_ydata()) for line in curves.axes[1].lines}
    assert drawn["deeplift"] == [0, 2, 3]
    table = figures.agreement(JUDGED, cmap).axes[0]
    assert [text.get_text() for text in table.texts] == "1.00 0.30 0.00 0.30 1.00 0.10 0.00 0.10 1.00".split()
    stages = figures.randomised(JUDGED, cmap).axes[0]
    assert [label.get_text() for label in stages.get_xticklabels()] == ["head", "embeddings"]


def test_the_methods_page_tells_which_beat_random():
    text = methods(READER, JUDGED, "judged.json")
    assert f"better `deeplift`; worse none; not\nto be told apart `{EVIL}`" in text
    assert "| `deeplift` | 2.00 (1.50 to 2.50) | 1.00 (0.50 to 1.50) | n/a" in text
    assert "Hardly: the mean rank correlation of two methods' absolute scores is 0.30" in text
    assert "{{" not in text
    assert "None" not in text


def test_bars_have_the_height_of_the_words_scores(cmap):
    one = sample()
    figure = heatmaps.bars(one, cmap)
    drawn = [bar for axes in figure.axes for bar in axes.patches]
    scores = word_scores(words_of(one), one.scores[0])
    np.testing.assert_allclose([bar.get_height() for bar in drawn], scores)
    colors = {value > 0: bar.get_facecolor() for bar, value in zip(drawn, scores, strict=True)}
    assert colors == {True: cmap(1.0), False: cmap(0.0)}


def test_every_method_has_the_text_on_its_own_scale(cmap):
    one = sample()
    loud = replace(one, method="loud", scores=100 * one.scores)
    figure = heatmaps.overlays({"deeplift": one, "loud": loud}, "Two methods", cmap)
    boxes = [box.get_facecolor() for box in figure.artists]
    assert boxes[: len(boxes) // 2] == boxes[len(boxes) // 2 :]
    assert [text for text in texts(figure) if text in ("deeplift", "loud")] == ["deeplift", "loud"]


def test_readers_that_cut_a_text_differently_have_it_each_in_its_own_words(cmap):
    one = sample()
    short = replace(one, scores=one.scores[:, :8], offsets=one.offsets[:8], tokens=one.tokens[:8], answer="")
    short = replace(short, segments=one.segments[:8], words=one.words[:8], start=0, end=0)
    shown = texts(heatmaps.overlays({"one reader": one, EVIL: short}, "Two readers", cmap))
    assert [shown.count(name) for name in ("one reader", EVIL, "answer: none ([CLS])")] == [1, 1, 1]
    assert shown.count("[CLS]") == 2
    counts = [len(words_of(each)) for each in (one, short)]
    assert len(shown) == sum(counts) + 5  # the title, two names and two answers


def reader_row(name, **changes):
    answers = {"questions": 9, "answered": 8, "correct": 5, "exact": 4, "seconds_per_question": 0.0312}
    explained = {name: estimate(0.5, 0.25) for name in ("beats_random", "plausibility_sentence")}
    explained |= {"method": "gradient", "questions": 20, "plausibility_keywords": {"mean": None}}
    row = {"reader": name, "family": "bert", "layers": 3, "parameters": 1234567, "megabytes": 45.2}
    row |= {"always_answers": False, "dev": {"f1": 61.26, "HasAns_f1": 50.0}, "explanations": explained}
    return row | answers | changes


def test_the_page_compares_readers_where_there_are_several(told, judged):
    told["readers"] = [reader_row("own")]
    assert "Several readers" not in render("title", READER, told, [], [], {})
    told["readers"].append(reader_row(EVIL, always_answers=True, seconds_per_question=None))
    page = render("title", READER, told, [], [], {})
    assert EVIL not in page
    assert "(always answers)" in page
    assert "1,234,567" in page
    assert ">0.031<" in page
    assert "0.50 (0.25 to 0.75)" in page


def heatmaps_scale(one):
    norm = heatmaps.shared_scale(one)
    return norm.vmin, norm.vmax


@pytest.mark.parametrize(("delta", "unit"), [([], "score of gradient"), ([0.0], "contribution to start + end logit")])
def test_a_method_that_scores_the_input_alone_is_drawn_too(cmap, tmp_path, told, delta, unit):
    one = sample()
    one = replace(one, method="gradient", scores=one.scores[:1], delta=np.array(delta, dtype=np.float32))
    assert unit in heatmaps.overview(one, cmap).axes[-1].get_xlabel()
    assert texts(heatmaps.overview(one, cmap))[0].startswith("The input by gradient")
    example = draw_example(one, tmp_path / "example", cmap, SETTINGS)
    assert example.layers == []
    # The output is in logits, whatever the scores are in.
    largest = max(abs(heatmaps._own_logits(one)))
    shown = heatmaps.output(one, cmap).axes[0].get_xlim()
    assert shown == pytest.approx((-largest, largest) if unit == "score of gradient" else heatmaps_scale(one))
    told["attribution"] |= {"layers": 0, "max_relative_delta": None, "relative_delta": [], "reference": "none"}
    shown = render("title", READER, told, [example], [], {})
    assert "Does it add up?" not in shown
    assert 'type="range"' not in shown
    assert "against the reference" not in shown


@pytest.fixture
def told(judged):
    """Metrics files with an evil string wherever one of the user's can stand."""
    return {
        "evaluation": {"exact": 50.0, "f1": 61.26, "total": 4, "NoAns_exact": 1.0, "NoAns_f1": 1.0, "NoAns_total": 2},
        "attribution": {
            "questions": 4,
            "layers": 4,
            "heads": 2,
            "method": EVIL,
            "reference": "mask",
            "max_relative_delta": 1e-6,
            "relative_delta": [1e-6] * 3,
        },
        "claims": judged[0],
        "heads": {
            "counts": [1, 2],
            "questions": 4,
            "curves": {"contribution": {"mean": [1.0, 2.0]}, "at random": {"mean": [0.5, 0.75]}},
            "against": {"at random": {"mean": 0.875, "low": 0.5, "high": 1.0}},
            "carry_most": [{"layer": 1, "head": 0, "label": "broad"}],
        },
        "faithfulness": JUDGED,
        "confidence": TOLD_APART,
        "readers": [reader_row("own")],
        "clusters": {
            "k": 2,
            "silhouette": 0.5,
            "choices": {"2": {"silhouette": 0.5, "stability": 0.9, "null": [0.1, 0.2, 0.3]}},
            "stability": 0.9,
            "beats_null": True,
            "sizes": [3, 1],
            "noise": 0,
            "representation": "profile",
            "algorithm": "kmeans",
            "association": {EVIL: {"mutual_information": 0.1, "p_value": 0.5}},
            "compared": [{"representation": EVIL, "algorithm": "hdbscan", "k": 0, "silhouette": None, "noise": 1.0}],
        },
    }


READER = Description(EVIL, EVIL, None, "x", None, True, 32, 8, 5, 20, 0.25, 50.0, 9)


@pytest.fixture
def page(cmap, tmp_path, told):
    one = sample(
        question=f"When did Beyoncé win $5?{EVIL}",
        title=EVIL,
        answer=EVIL,
        best_span=EVIL,
        golds=[EVIL],
        gold_starts=[0],
        name="example",
    )
    example = draw_example(one, tmp_path / "example", cmap, SETTINGS)
    names = ("trajectories", "claims", "heads", "clusters", "map", "rules")
    rows = [{"description": EVIL, "nearest": [{"question": EVIL, "answer": EVIL}]}]
    return render(EVIL, READER, told, [example], rows, dict.fromkeys(names, example.output))


def test_the_findings_read_like_sentences_with_the_metrics_numbers(told, judged):
    text = findings(READER, told, judged[1])
    assert "exact 50.0 and F1 61.3 on\n4 dev questions" in text
    assert "2 clusters of 3, 1 questions, with a\nsilhouette of 0.50" in text
    assert "contribution costs 0.88 (0.50 to 1.00) logits more than at random" in text
    assert "{{" not in text
    assert "None" not in text
    assert " nan" not in text


def test_every_string_is_escaped(page):
    assert EVIL not in page
    assert "&lt;script&gt;window.broken" in page


def test_the_page_says_the_numbers_of_the_metrics(page):
    assert "61.3" in page
    assert "1.0e-06" in page


def test_a_browser_shows_the_page_and_its_slider_changes_the_layer(page, tmp_path):
    chromium = shutil.which("chromium")
    if chromium is None and "CI" not in os.environ:
        pytest.skip("no chromium on this machine")
    from playwright.sync_api import sync_playwright

    (tmp_path / "index.html").write_text(page, encoding="utf-8")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        tab = browser.new_page()
        errors, asked = [], []
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        tab.on("request", lambda request: asked.append(request.url) if request.url.startswith("http") else None)
        tab.goto((tmp_path / "index.html").as_uri())
        visible = "[...document.querySelectorAll('.layers figure')].map(each => each.offsetHeight > 0)"
        assert tab.evaluate(visible) == [True, False]
        slider = tab.get_by_label("layer").first
        slider.fill("2")
        assert tab.evaluate(visible) == [False, True]
        assert tab.locator(".layers output").first.inner_text() == "2"
        assert tab.evaluate("[...document.images].every(each => each.naturalWidth > 100)")
        assert tab.evaluate("window.broken") is None
        assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        browser.close()
    assert errors == []
    assert asked == []
