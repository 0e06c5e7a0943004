"""Figures and the page, also as a browser shows it."""

from __future__ import annotations

import os
import shutil
from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_hex

from bertlift.analysis.groups import GROUPS
from bertlift.config import Colors
from bertlift.config import Report as Settings
from bertlift.errors import InputError
from bertlift.reader.description import Description
from bertlift.report import figures, heatmaps, theme
from bertlift.report.page import render
from bertlift.stages.report import draw_example
from samples import sample

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
    figure = figures.umap_map(np.random.default_rng(0).random((len(labels), 2)), labels, "Kinds")
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


@pytest.fixture
def page(cmap, tmp_path):
    one = sample(
        question=f"When did Beyoncé win $5?{EVIL}",
        title=EVIL,
        answer=EVIL,
        best_span=EVIL,
        golds=[EVIL],
        name="example",
    )
    example = draw_example(one, tmp_path / "example", cmap, SETTINGS)
    picture = example.output
    reader = Description(EVIL, EVIL, None, "x", None, True, 32, 8, 5, 20, 0.25, 50.0, 9)
    metrics = {
        "evaluation": {"exact": 50.0, "f1": 61.26, "total": 4, "NoAns_exact": 1.0, "NoAns_f1": 1.0, "NoAns_total": 2},
        "attribution": {
            "questions": 4,
            "layers": 2,
            "heads": 2,
            "method": EVIL,
            "reference": "mask",
            "relative_delta": [1e-6] * 3,
        },
        "clusters": {
            "k": 1,
            "silhouette": None,
            "stability": None,
            "sizes": [4],
            "association": {EVIL: {"mutual_information": 0.1, "p_value": 0.5}},
        },
    }
    names = ("clusters", "map_clusters", "map_question_words")
    rows = [[{"question": EVIL, "answer": EVIL}]]
    return render(EVIL, reader, metrics, [example], rows, dict.fromkeys(names, picture))


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
