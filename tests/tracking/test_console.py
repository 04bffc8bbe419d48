"""What a person sees: lines that read well in a file, a live display on a terminal."""

import io
import json
import math
import random
import re
import sys
from pathlib import Path

import pytest

from dp_prior.checkpoints.clock import Progress
from dp_prior.job.work import Done
from dp_prior.tracking.console import ConsoleConfig, ConsoleLogger, summaries
from dp_prior.tracking.identity import RunIdentity
from dp_prior.tracking.logger import RunFacts
from tests.messages import told


class Stream(io.StringIO):
    def __init__(self, is_terminal=False):
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self):
        return self.is_terminal


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def logger_of(stream=None, style="auto", interval_s=5.0, total_samples=1000):
    clock = Clock()
    stream = stream or Stream()
    record = ConsoleConfig(style=style, interval_s=interval_s)
    return ConsoleLogger(record, stream, total_samples, clock), stream, clock


TRAINING = {
    "train/loss": 0.0123456,
    "train/loss_q0": 1.0,
    "train/lr": 1e-4,
    "train/samples_per_second": 12345.6,
    "train/ema_decay": 0.99912,
    "train/skipped_steps": 0,
}


def test_a_plain_line_tells_progress_time_left_rate_loss_rate_of_learning_and_average():
    logger, stream, clock = logger_of()
    logger.rewind(Progress(0, 0))
    clock.now += 60
    logger.log(TRAINING, Progress(250, 10))
    assert stream.getvalue() == (
        "step 10  250/1,000 samples (25.0%)  0:03:00 left  12,346 samples/s  loss 0.01235  lr 0.0001  "
        "ema_decay 0.9991\n"
    )


def test_without_a_budget_there_is_no_share_of_it_and_no_bar():
    logger, stream, clock = logger_of(total_samples=None)
    logger.rewind(Progress(0, 0))
    clock.now += 60
    logger.log({"train/loss": 0.5}, Progress(250, 10))
    assert stream.getvalue() == "step 10  250 samples  loss 0.5\n"
    live, _, _ = logger_of(Stream(True), "live", total_samples=None)
    live.log({"train/loss": 0.5}, Progress(250, 10))
    (line,) = live._line(120).columns
    assert [str(cell) for cell in line.cells] == ["250 samples  loss 0.5"]
    live.close()


def test_skipped_steps_are_shown_once_there_are_any():
    logger, stream, _ = logger_of()
    logger.log({**TRAINING, "train/skipped_steps": 3}, Progress(250, 10))
    assert "3 steps skipped" in stream.getvalue()


def test_plain_lines_keep_their_distance_and_the_last_one_is_not_lost():
    logger, stream, clock = logger_of(interval_s=5)
    for step in range(1, 21):
        logger.log({"train/loss": step}, Progress(10 * step, step))
        clock.now += 1
    logger.close()
    steps = [int(line.split()[1]) for line in stream.getvalue().splitlines()]
    assert steps == [1, 6, 11, 16, 20]


def test_results_are_printed_at_once_below_the_progress_they_belong_to():
    logger, stream, _ = logger_of()
    logger.log({"train/loss": 1.0}, Progress(10, 1))
    logger.log({"train/loss": 0.5, "validation/ema/loss": 0.25, "rollout/score": math.nan, "n": 50}, Progress(20, 2))
    lines = stream.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines] == ["step 1", *["step 2"] * 4]
    assert told(lines[2], "validation ema", 0.25) and told(lines[3], "rollout", "nan") and told(lines[4], "n", 50)


ROLLOUT = {
    "rollout/score": 0.2713,
    "rollout/score_std": 0.2,
    "rollout/score_ci_low": 0.21,
    "rollout/score_ci_high": 0.3349,
    "rollout/success_rate": 0.06,
    "rollout/success_ci_low": 0.01,
    "rollout/success_ci_high": 0.2,
    "rollout/episodes": 50.0,
    "rollout/episode_steps": 40.0,
    "rollout/worst_tenth": 0.0,
}


def test_an_evaluation_is_one_line_with_interval_solved_episodes_and_the_best_so_far(tmp_path):
    results = {**ROLLOUT, "validation/ema/loss": 0.25, "validation/ema/loss_q0": 0.1, "validation/online/loss": 0.5}
    for metric, mode, behind in (
        ("rollout/score", "max", ["best so far 0.31", ""]),
        ("rollout/score", "min", ["best so far 0.271", ""]),
        ("validation/ema/loss", "min", ["", "best ema loss so far 0.2"]),
        ("other/score", "max", ["", ""]),
    ):
        earlier = [
            {"step": 1, metric: 0.31},
            {"step": 2, metric: None},
            {"step": 3, metric: 0.31 if "score" in metric else 0.2},
        ]
        (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in earlier))
        logger, stream, _ = logger_of()
        config = {"train": {"monitor": {"metric": metric, "mode": mode}}}
        logger.begin(RunFacts(tmp_path, RunIdentity("a", "a"), config, 1.0, print))
        logger.rewind(Progress(30, 3))
        logger.log(results, Progress(40, 4))
        lines = ["rollout 0.271 (0.21 to 0.335), 3 of 50 solved", "validation ema loss 0.25, online loss 0.5"]
        lines = [f"step 4  {'; '.join(filter(None, words))}" for words in zip(lines, behind, strict=True)]
        assert stream.getvalue().splitlines() == lines


def test_episodes_without_success_are_told_by_their_score_and_no_number_is_lost_outside_of_evaluations():
    assert summaries({**ROLLOUT, "rollout/success_rate": math.nan}) == {"rollout": "0.271 (0.21 to 0.335)"}
    assert summaries({"episodes": 3, "score_std": 0.5}) == {"": "episodes 3, score_std 0.5"}
    assert summaries({"rollout/mean_score": 0.5}) == {"rollout": "mean_score 0.5"}
    one = {"similarity/ema/margin_over_text[steps=4]": 0.1}
    ends = {f"similarity/ema/margin_over_text_ci_{end}[steps=4]": value for end, value in (("low", 0), ("high", 0.2))}
    assert summaries(one | ends) == {"similarity": "ema margin_over_text[steps=4] 0.1 (0 to 0.2)"}


def test_pictures_of_an_evaluation_come_below_its_numbers():
    logger, stream, _ = logger_of()
    for _ in range(2):
        logger.log_work(Done("rollout", 0.5, 50))
        logger.log_images({"film": Path("a.mp4")}, Progress(10, 1))
        assert "film" not in stream.getvalue().partition("0.5\nstep 1  film: a.mp4\n")[2]
        logger.log({"rollout/score": 0.5}, Progress(10, 1))
    assert stream.getvalue().splitlines() == ["step 1  rollout 0.5", "step 1  film: a.mp4"] * 2
    logger.log_work(Done("rollout", 0.5, 50))
    logger.log_images({"film": Path("b.mp4")}, Progress(10, 1))
    logger.close()
    assert stream.getvalue().endswith("step 1  film: b.mp4\n")


def test_results_break_between_words_on_a_narrow_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    logger, stream, _ = logger_of(Stream(True), "live")
    path = Path("a/" + "long" * 20)
    logger.log_images({"film": path}, Progress(10, 1))
    logger.log(ROLLOUT, Progress(10, 1))
    logger.close()
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r", "", stream.getvalue()).splitlines()
    assert str(path) in "".join(lines) and " ".join(" ".join(lines).split()).endswith("3 of 50 solved")
    assert {"rollout", "0.271", "(0.21", "0.335),", "solved"} <= {word for line in lines for word in line.split()}
    assert all(len(line) <= 40 for line in lines if str(path) not in line)


def test_lines_come_in_the_order_of_their_steps():
    logger, stream, clock = logger_of(interval_s=5)
    draw = random.Random(0)
    for step in range(1, 60):
        clock.now += draw.random() * 3
        now = Progress(10 * step, step)
        if draw.random() < 0.2:
            logger.log_images({"film": Path("a.mp4")}, now)
        if draw.random() < 0.2:
            logger.log_error("skipped", now)
        if draw.random() < 0.2:
            logger.log_file("result.json", Path("result.json"), now)
        logger.log({"train/loss": step} | ({"validation/ema/loss": 1.0} if draw.random() < 0.2 else {}), now)
    logger.close()
    steps = [int(line.split()[1]) for line in stream.getvalue().splitlines()]
    assert steps == sorted(steps) and len(set(steps)) > 20


def test_the_end_of_the_budget_is_always_printed():
    logger, stream, _ = logger_of()
    logger.log({"train/loss": 1.0}, Progress(10, 1))
    logger.log({"train/loss": 0.5}, Progress(1000, 100))
    assert "1,000/1,000 samples (100.0%)" in stream.getvalue()


def test_a_resumed_run_reckons_the_time_left_from_where_it_began():
    logger, stream, clock = logger_of()
    logger.rewind(Progress(800, 80))
    clock.now += 10
    logger.log({"train/loss": 1.0}, Progress(900, 90))
    assert "0:00:10 left" in stream.getvalue()


def test_slow_first_steps_do_not_count_in_the_time_left():
    logger, stream, clock = logger_of()
    logger.rewind(Progress(0, 0))
    for seen, passed in ((100, 600), (200, 10), (300, 10)):
        clock.now += passed
        logger.log({"train/loss": 1.0}, Progress(seen, seen // 10))
    assert "0:01:10 left" in stream.getvalue().splitlines()[-1]


def test_pictures_files_and_errors_have_lines():
    logger, stream, _ = logger_of()
    logger.log_images({"rollout": Path("a.mp4")}, Progress(10, 1))
    logger.log_file("curve", Path("curve.png"), Progress(10, 1))
    logger.log_error("out of luck", Progress(10, 1))
    assert stream.getvalue().splitlines() == [
        "step 1  rollout: a.mp4",
        "step 1  curve: curve.png",
        "step 1  error: out of luck",
    ]


def test_plain_text_holds_no_control_characters():
    logger, stream, _ = logger_of()
    logger.log(TRAINING, Progress(10, 1))
    logger.log({"a [red]": 1.0}, Progress(10, 1))
    logger.sync()
    logger.close()
    logger.close()
    assert "\x1b" not in stream.getvalue() and "\r" not in stream.getvalue()
    assert "a [red] 1" in stream.getvalue()


@pytest.mark.parametrize(
    ("style", "is_terminal", "is_live"),
    [("auto", True, True), ("auto", False, False), ("live", False, True), ("plain", True, False)],
)
def test_live_on_a_terminal_plain_elsewhere(style, is_terminal, is_live):
    logger, stream, _ = logger_of(Stream(is_terminal), style)
    assert (logger._live is not None) == is_live
    logger.close()


def test_the_live_display_shows_progress_and_prints_results_above():
    logger, stream, clock = logger_of(Stream(True), "live")
    clock.now += 10
    logger.log(TRAINING, Progress(500, 10))
    logger.log({"validation/loss [x]": 0.5}, Progress(500, 10))
    logger.close()
    text = stream.getvalue()
    assert "500/1,000 samples (50.0%)" in text and "loss 0.01235" in text
    assert "step 10  validation loss [x] 0.5" in text
    logger.log_error("after the end", Progress(500, 10))
    assert stream.getvalue().endswith("error: after the end\n")


@pytest.mark.parametrize("width", [*range(24, 160, 8), 120])
def test_the_display_shows_whole_words_the_most_wanted_first_on_one_line_of_any_width(width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    logger, stream, clock = logger_of(Stream(True), "live", total_samples=160_000)
    logger.rewind(Progress(0, 0))
    clock.now += 60
    logger.log(TRAINING, Progress(30_080, 3760))
    logger.close()
    [line] = [line for line in re.split(r"\x1b\[[0-9;?]*[a-zA-Z]|[\r\n]+", stream.getvalue()) if "/160" in line]
    words = ["30,080/160,000 samples (18.8%)", "0:04:19 left", "12,346 samples/s", "loss 0.01235", "lr 0.0001"]
    shown = line.strip().split("  ")
    assert shown == [*words, "ema_decay 0.9991"][: len(shown)] or words[0].startswith(*shown)
    assert len(shown) >= {80: 4, 120: 5}.get(width, 1) and len(line) <= width


@pytest.mark.parametrize("terminal", ["dumb", "unknown"])
def test_a_terminal_that_cannot_go_back_in_a_line_gets_lines(terminal, monkeypatch):
    monkeypatch.setenv("TERM", terminal)
    logger, stream, _ = logger_of(Stream(True))
    logger.log(TRAINING, Progress(500, 10))
    assert "500/1,000 samples (50.0%)" in stream.getvalue()


def test_warnings_stay_out_of_the_display_and_in_their_file(monkeypatch):
    for errors in (Stream(True), Stream(False)):
        monkeypatch.setattr(sys, "stderr", errors)
        logger, stream, _ = logger_of(Stream(True), "live")
        logger.log(TRAINING, Progress(500, 10))
        sys.stderr.write("a warning\n")
        logger.close()
        assert ("a warning" in errors.getvalue()) is not errors.isatty()
        assert ("a warning" in stream.getvalue()) is errors.isatty()


def test_every_knob_changes_something():
    stream = Stream(True)
    assert ConsoleConfig().create(stream, 10)._live is not None
    assert ConsoleConfig(style="plain").create(stream, 10)._live is None
    assert ConsoleConfig(interval_s=0.5).create(Stream(), 10)._interval_s == 0.5
    assert ConsoleConfig().type == "console"


def test_an_evaluation_in_a_file_is_one_line_a_minute_with_the_time_left():
    logger, stream, clock = logger_of()
    for episode in range(51):
        logger.log_work(Done("rollout", episode / 50, 50))
        clock.now += 10
    assert stream.getvalue().splitlines()[:2] == ["rollout 6/50  0:07:20 left", "rollout 12/50  0:06:20 left"]
    assert len(stream.getvalue().splitlines()) == 8


def test_the_first_step_of_a_slow_environment_estimates_no_time_left():
    logger, stream, clock = logger_of()
    for share in (0.0, 0.002, 0.25):
        logger.log_work(Done("replay", share, 30))
        clock.now += 60
    assert stream.getvalue().splitlines() == ["replay 0/30", "replay 7/30  0:06:00 left"]


def test_a_short_evaluation_in_a_file_is_silent_also_after_a_longer_one():
    logger, stream, clock = logger_of()
    for _ in range(3):
        for share in (0.0, 0.5, 0.99):
            logger.log_work(Done("validation", share))
            clock.now += 25
        logger.log({"validation/ema/loss": 0.5}, Progress(10, 1))
    assert stream.getvalue().splitlines() == ["step 1  validation ema loss 0.5"] * 3


def test_a_terminal_shows_a_moving_line_until_the_results_are_there():
    logger, stream, clock = logger_of(Stream(True), "live")
    logger.log({"train/loss": 0.5}, Progress(250, 10))
    logger.log_work(Done("rollout", 0.0, 50))
    clock.now += 60
    logger.log_work(Done("rollout", 0.25, 50))
    (line,) = logger._line(80).columns
    assert [str(cell) for cell in line.cells] == ["rollout 12/50  0:03:00 left"]
    logger.log({"rollout/score": 0.5}, Progress(250, 10))
    (line,) = logger._line(80).columns
    assert "250/1,000 samples" in str(next(line.cells))
    logger.close()
    assert "rollout 0.5" in stream.getvalue()


def test_a_terminal_that_showed_evaluations_only_keeps_no_line_of_them():
    logger, stream, clock = logger_of(Stream(True), "live", total_samples=None)
    logger.log_work(Done("rollout", 0.25, 50))
    logger._live.refresh()
    logger.close()
    assert "rollout 12/50" in stream.getvalue() and stream.getvalue().endswith("\x1b[2K")
