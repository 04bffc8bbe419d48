"""Charts of any values are whole elements of a page, and small."""

import re

import numpy as np
import pytest

from dp_prior.evaluation.curve import learning_curves
from dp_prior.evaluation.picture import draw_scores, import_figure
from dp_prior_studio.pages.charts import bars, curve, overlay, sampled, spark, svg
from tests.plugins.dp_prior_studio.pages.test_report import Outline
from tests.quiet import quiet


@quiet
@pytest.mark.parametrize(
    "shape", [(2, 3, 4), *[pytest.param(shape, marks=pytest.mark.slow) for shape in ((3, 1, 2), (2, 8, 1))]]
)
def test_chunks_of_any_shape_and_value_are_drawn(shape):
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    for chunks in (values * 1e37, values * np.nan, np.where(values > 0, np.inf, 0)):
        figure = sampled(chunks, "a moment", 1, (1, 2))
        panels = figure.get_axes()
        assert len(panels) == shape[2] + (shape[2] == 2)
        assert all(len(axes.get_lines()) == shape[0] for axes in panels)
        Outline(svg(figure, "a moment"))


def test_a_long_log_has_a_small_chart():
    x = np.arange(20_000.0)
    chart = svg(overlay([("noise", x, np.random.default_rng(0).normal(size=len(x)))], "y", "x", log=False), "long")
    assert len(chart) < 1 << 18
    metrics = {"train/loss": 1.0, "validation/ema/loss": 1.0, "a/mse[steps=4]": 1.0, "rollout/score": 0.5}
    for figure in learning_curves([{"samples_seen": number, **metrics} for number in range(2000)]):
        assert len(svg(figure, "curve")) < 1 << 16


@pytest.mark.parametrize("count", [1, 8, 18])
def test_lines_of_many_runs_differ_and_no_name_covers_them(count):
    x = np.arange(3.0)
    figure = overlay([(f"run {number}", x, x + number) for number in range(count)], "y", "x", log=False)
    figure.draw_without_rendering()
    [axes], [legend] = figure.get_axes(), figure.legends
    styles = [(line.get_color(), line._unscaled_dash_pattern) for line in axes.get_lines()]
    assert len({*map(str, styles)}) == count
    names = legend.get_window_extent()
    assert names.y1 <= axes.get_tightbbox().y0 and names.y0 >= 0
    assert [text.get_text() for text in legend.get_texts()] == [f"run {number}" for number in range(count)]


@quiet
@pytest.mark.parametrize("name", ["task.objective.type=v, task.backbone.type=unet1d, " * 3, "x" * 300])
def test_long_names_are_whole_and_leave_the_chart_its_room(name):
    x = np.arange(3.0)
    for figure in (
        overlay([(name + str(number), x, x + number) for number in range(4)], "y", "x", log=False),
        bars(x, [name] * 3, "title", "y", "x"),
        *learning_curves([{"samples_seen": 1, f"{name}/ema/loss": 1.0, "train/loss": 2.0, f"{name}/score": 0.5}]),
    ):
        figure.draw_without_rendering()
        axes = figure.axes[0]
        assert axes.get_window_extent().width > 0.4 * figure.bbox.width
        legends = [*figure.legends, *(legend for one in figure.axes if (legend := one.get_legend()))]
        for text in [text for legend in legends for text in legend.get_texts()] or axes.get_yticklabels():
            extent = text.get_window_extent()
            assert extent.x0 >= 0 and extent.x1 <= figure.bbox.width and extent.y0 >= 0, text
        assert all(legend.get_window_extent().y1 <= axes.get_window_extent().y0 for legend in legends)


@pytest.mark.parametrize("counts", [[0, 0, 0], [1, 2, 4], [5], [0, 1_000_000, 1]])
def test_a_spark_has_a_bar_for_each_count_that_shows_as_high_as_its_share_of_the_largest(counts):
    drawn = spark(np.array(counts))
    heights = {int(x) // 4: int(height) for x, height in re.findall(r"M(\d+) 20v-(\d+)h", drawn)}
    share = [round(20 * count / max(1, *counts)) for count in [*counts, 0][: len(counts)]]
    assert heights == {place: height for place, height in enumerate(share) if height}
    Outline(drawn)


def test_two_charts_on_a_page_share_no_id_and_the_same_chart_has_the_same_bytes():
    def chart(title):
        return svg(bars([1.0, 2.0], ["a", "b"], title, "y", "x"), title)

    one, other = Outline(chart("one")), Outline(chart("other"))
    assert one.ids and not set(one.ids) & set(other.ids)
    assert chart("one") == chart("one")


def test_a_title_of_a_user_is_shown_as_it_is():
    chart = svg(bars([1.0], ["a"], "a < b & $c^2$", "y", "x"), "a < b & $c^2$")
    assert "a < b & $c^2$" in "".join(Outline(chart).texts)


def test_names_that_look_like_parts_of_an_svg_are_shown_as_they_are():
    names = ["#000000 and #1f4e8c", 'id="a"', "url(#a)", "a > b"]
    x = np.arange(3.0)
    chart = svg(overlay([(name, x, x) for name in names], "y", "x", log=False), "t")
    texts = [text.strip() for text in Outline(chart).texts]
    assert set(names) <= set(texts) and "var(--blue)" in chart


@pytest.mark.parametrize("count", [1, 3, 40])
def test_bars_are_named_by_their_labels_at_even_steps(count):
    labels = [f"t {number}" for number in range(count)]
    texts = Outline(svg(bars(np.arange(count) + 0.5, labels, "scores", "y", "x"), "scores")).texts
    shown = [text for text in texts if text.startswith("t ")]
    assert shown == labels[:: max(1, count // 12)]


@pytest.mark.slow
def test_dimensions_have_their_names_and_many_of_them_a_row_of_their_own():
    chunks = np.random.default_rng(0).normal(size=(3, 4, 8)).astype(np.float32)
    names = [f"left_joint_{number}.position" for number in range(8)]
    page = svg(sampled(chunks, "a", 1, None, names), "a")
    assert all(f">{name}</text>" in page for name in names) and 'class="wide"' in page
    few = svg(sampled(chunks[..., :2], "a", 1, None), "a")
    assert ">dimension 1</text>" in few and 'class="wide"' not in few


def test_labels_that_are_words_stand_beside_their_bars():
    names = [f"{number} left_joint_{number}" for number in range(8)]
    figure = bars(range(8), names, "t", "mse", "dimension name")
    assert [tick.get_text() for tick in figure.axes[0].get_yticklabels()] == names
    assert figure.axes[0].get_xlabel() == "mse"


def test_nothing_of_a_figure_is_black():
    rows = [{"seed": seed, "score": seed / 4, "success": True, "steps": 5} for seed in range(4)]
    scores = import_figure()()
    draw_scores(scores.subplots(), rows)
    chunks = np.zeros((3, 4, 2), np.float32)
    for figure in (scores, sampled(chunks, "a", 1, None), bars([1, 2], ["a", "b"], "t", "y", "x")):
        page = svg(figure, "a")
        assert "#000000" not in page
        assert all(
            "fill: var(--" in text or "stroke" in text for text in re.findall(r"<text[^>]*style=\"([^\"]*)", page)
        )


def test_a_curve_goes_from_the_first_value_to_the_last_and_breaks_where_a_value_is_missing():
    path = re.search(r' d="([^"]*)"', curve(np.array([0.0, 1.0, np.nan, 0.5, 0.0])))[1]
    assert path == "M0 38L50 2M150 20L200 38"
    for values in ([np.nan, np.inf], [], [3.0], [2.0, 2.0]):
        drawn = curve(np.array(values))
        assert "nan" not in drawn and "inf" not in drawn


def test_a_long_title_of_bars_is_broken_where_the_chart_ends():
    title = "action_error/ema, by number of the action, 2 sampling steps: mean squared error, in squared units"
    lines = bars([1, 2], ["a", "b"], title, "y", "x").axes[0].get_title(loc="left").splitlines()
    assert " ".join(lines) == title and len(lines) == 2 and max(map(len, lines)) <= 72
