"""The learning curve: which rows and metrics it reads. How it looks was judged by eye."""

import json

import numpy as np
import pytest

from dp_prior.evaluation.curve import _minutes, _series, _smooth, draw_learning_curve, read_rows

pytest.importorskip("matplotlib")

ROWS = [
    {"step": 50, "samples_seen": 6000, "train/loss": 0.9, "train/samples_per_second": 100.0},
    {"step": 100, "samples_seen": 12000, "train/loss": 0.5, "validation/ema/loss": 0.6, "rollout/score": 0.3},
    {"step": 150, "samples_seen": 24000, "train/loss": None, "nonfinite": ["train/loss"], "rollout/score": 0.5}
    | {"train/samples_per_second": 200.0, "action_error/ema/mse[steps=4]": 16.0},
]


def write(path, rows, tail=""):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + tail)
    return path


def test_rows_end_before_a_line_that_was_cut_off(tmp_path):
    assert read_rows(write(tmp_path / "m.jsonl", ROWS, '{"step": 2')) == ROWS


@pytest.mark.parametrize(
    ("against", "x"), [("samples_seen", [6000, 12000]), ("step", [50, 100]), ("minutes", [1.0, 2.0])]
)
def test_series_leave_out_what_is_no_number(against, x):
    series = _series(ROWS, against)
    assert series["train/loss"][0].tolist() == x and series["train/loss"][1].tolist() == [0.9, 0.5]
    assert "nonfinite" not in series and "step" not in series


def test_minutes_add_up_the_time_of_each_stretch_at_its_own_speed():
    """6000 at 100/s, 6000 more at the last known speed, 12000 at 200/s."""
    assert _minutes(ROWS) == [1.0, 2.0, 3.0]
    assert _minutes([{"samples_seen": 10}, *ROWS])[0] is None


def test_smoothing_is_the_mean_of_a_window():
    y = np.random.default_rng(0).normal(size=200)
    expected = [y[max(i - 5, 0) : i + 6].mean() for i in range(200)]
    np.testing.assert_allclose(_smooth(y), expected)
    np.testing.assert_array_equal(_smooth(y[:5]), y[:5])


@pytest.mark.parametrize("against", ["samples_seen", "step", "minutes"])
def test_picture_has_a_panel_for_each_kind_of_metric(tmp_path, against):
    from PIL import Image

    def width(rows):
        metrics = write(tmp_path / "m.jsonl", rows)
        with Image.open(
            draw_learning_curve(metrics, tmp_path / "new" / "c.png", title="t", against=against)
        ) as picture:
            assert picture.format == "PNG"
            return picture.size[0]

    one, three = width(ROWS[:1]), width(ROWS)
    assert three > 2.5 * one


def test_curve_of_a_run_without_metrics_says_so(tmp_path):
    metrics = write(tmp_path / "m.jsonl", [{"step": 1, "samples_seen": 2}])
    with pytest.raises(ValueError, match="holds no loss, action error or score against 'samples_seen' yet"):
        draw_learning_curve(metrics, tmp_path / "c.png")
