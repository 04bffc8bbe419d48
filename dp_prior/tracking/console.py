"""Progress on the console: a live display on a terminal, lines of text in a file."""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Literal, TextIO

from pydantic import Field

from dp_prior.checkpoints.clock import Progress
from dp_prior.files.printable import printable, wrapped
from dp_prior.job.work import Done
from dp_prior.tracking.jsonl import placed_rows
from dp_prior.tracking.logger import Logger, LoggerRecord, RunFacts

BAR, WIDE = 20, 100  # columns of the bar, and of the narrowest terminal that shows a bar
WORK_S = 60.0  # between two plain lines about the same evaluation
LEAST_SHARE = 0.01  # of an evaluation that must be over for its time left; an environment's first steps are the slowest
_DETAILS = re.compile(
    r"(.*_)?(std|q\d|ci_low|ci_high)(\[.*)?|success_rate|episodes|episode_steps|worst_tenth|(mse.*|mae_.*|lower_.*)\[.*"
)
"""Numbers of an evaluation that the logs have, and the summary of the evaluation leaves out or folds into others."""


def show(line: str) -> None:
    """Print a line where progress is printed."""
    sys.stdout.write(printable(line) + "\n")
    sys.stdout.flush()


class ConsoleConfig(LoggerRecord):
    """Progress on the console."""

    type: Literal["console"] = "console"

    is_synchronous: ClassVar = True

    style: Literal["auto", "live", "plain"] = "auto"
    """`live` draws a progress display, `plain` prints lines; `auto` is live on a terminal, and plain elsewhere or if
    TERM declares a dumb terminal."""

    interval_s: float = Field(default=5.0, ge=0)
    """Minimum seconds between plain progress lines; results and errors are always printed. An evaluation has one plain
    line a minute."""

    def create(self, stream: TextIO | None, total_samples: int | None) -> ConsoleLogger:
        """Create a logger that writes to `stream`, or to standard output."""
        return ConsoleLogger(self, stream or sys.stdout, total_samples)


class ConsoleLogger(Logger):
    """Training metrics become progress; all other metrics are results and get a line of their own."""

    name = "console"

    def __init__(
        self,
        record: ConsoleConfig,
        stream: TextIO,
        total_samples: int | None,
        clock: Callable[[], float] = time.monotonic,
    ):
        """
        Args:
            stream: output.
            total_samples: budget of the run; None if unknown.
            clock: monotonic seconds, for the remaining time.
        """
        self._stream = stream
        self._interval_s = record.interval_s
        self._total = total_samples
        self._clock = clock
        self._began: tuple[float, int] = (clock(), 0)
        self._is_warming_up = True
        self._shown_at = float("-inf")
        self._pending: str | None = None
        self._frame: tuple[int, list[str]] = (0, [])
        self._work: tuple[Done, float] | None = None  # the present evaluation as it began, and when
        self._work_shown = 0.0
        self._work_words: list[str] = []
        self._media: list[str] = []  # of the present evaluation, shown below its numbers
        self._monitor: dict[str, str] = {}
        self._monitored: list[float] = []  # values of the metric that selects the best checkpoint
        self._live: Any = self._live_display(record.style) if record.style == "live" or stream.isatty() else None

    def begin(self, run: RunFacts) -> None:
        """Note the metric that selects the best checkpoint, and where the log of the run is."""
        self._directory, self._monitor = run.directory, run.config.get("train", {}).get("monitor", {})

    def log(self, metrics: dict[str, float], progress: Progress) -> None:
        """Show progress, and a line for each evaluation."""
        training = {name.removeprefix("train/"): v for name, v in metrics.items() if name.startswith("train/")}
        results = {name: value for name, value in metrics.items() if not name.startswith("train/")}
        self._work, self._work_words = None, []
        if training:
            self._show(progress, training)
        for name, text in summaries(results).items():
            self._print_event(f"{name} {text}{self._best_so_far(name, results)}".lstrip(), progress)
        self._print_media()

    def log_images(self, images: dict[str, Path], progress: Progress) -> None:
        """Print the paths of pictures, during an evaluation below its numbers."""
        self._media += [f"step {progress.global_step:,}  {name}: {path}" for name, path in images.items()]
        if self._work is None:
            self._flush()
            self._print_media()

    def log_file(self, name: str, path: Path, progress: Progress) -> None:
        """Print the path of a file."""
        self._print_event(f"{name}: {path}", progress)

    def log_error(self, message: str, progress: Progress) -> None:
        """Print an error."""
        self._print_event(f"error: {message}", progress)

    def log_end(self, message: str, progress: Progress) -> None:
        """Print nothing: the command prints the error, or Python shows the exception."""

    def log_work(self, done: Done) -> None:
        """Show a moving line on a terminal, or print a line a minute to other outputs."""
        now = self._clock()
        if self._work is None or self._work[0].name != done.name or done.share < self._work[0].share:
            self._work, self._work_shown = (done, now), now
        first, began = self._work
        words, share = [str(done)], done.share - first.share
        if share >= LEAST_SHARE:
            words += _time_left(1 - done.share, share, now - began)
        if self._live is not None:
            self._work_words = words
            self._live.start()
        elif now - self._work_shown >= WORK_S:
            self._flush()
            self._work_shown = now
            self._print("  ".join(words))

    def rewind(self, progress: Progress) -> None:
        """Estimate the remaining time from this clock, and read the best value so far."""
        self._began, self._is_warming_up = (self._clock(), progress.samples_seen), True
        if metric := self._monitor.get("metric"):
            rows = [row for _, row in placed_rows(self._directory, 0)]
            self._monitored = [row[metric] for row in rows if row.get(metric) is not None]

    def close(self) -> None:
        """Print the last progress and release the terminal."""
        self._flush()
        self._print_media()
        if self._live is not None:
            self._work_words = []
            self._live.transient = not self._frame[1]  # only evaluations were shown
            self._live.stop()
            self._live = None

    def _live_display(self, style: str) -> Any:
        """Create a display on the stream; None for plain output or a dumb terminal."""
        if style == "plain":
            return None
        from rich.console import Console
        from rich.live import Live

        console = Console(file=self._stream)
        if style == "auto" and console.is_dumb_terminal:
            return None
        hears_errors = sys.stderr.isatty()  # print stderr above the display, unless redirected
        return Live(
            get_renderable=lambda: self._line(console.width),
            console=console,
            refresh_per_second=2,
            redirect_stderr=hears_errors,
        )

    def _line(self, width: int) -> Any:
        """Draw the display: a bar on a wide terminal, then the most important metrics that fit."""
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        samples, words = self._frame[0], self._work_words or self._frame[1]
        has_bar = width >= WIDE and self._total is not None
        room = width - 3 - (BAR + 1) * has_bar  # 3 columns for the echo of Ctrl-C
        visible = words[:1]
        for word in words[1:]:
            if len("  ".join([*visible, word])) > room:
                break
            visible.append(word)
        line = Table.grid(padding=(0, 1))
        bar = [ProgressBar(total=self._total, completed=samples, width=BAR)] if has_bar else []
        line.add_row(*bar, Text(printable("  ".join(visible))[:room], no_wrap=True))
        return line

    def _show(self, progress: Progress, training: dict[str, float]) -> None:
        samples, now = progress.samples_seen, self._clock()
        words = [*self._share_done(samples, now), *_brief(training)]
        if self._is_warming_up:  # the first steps are the slowest; they count in the first line only
            self._began, self._is_warming_up = (now, samples), False
        if self._live is not None:
            self._frame = samples, words
            self._live.start()
            return
        self._pending = f"step {progress.global_step:,}  " + "  ".join(words)
        if now - self._shown_at >= self._interval_s or samples >= (self._total or math.inf):
            self._flush()

    def _share_done(self, samples: int, now: float) -> list[str]:
        """The samples seen; with a known budget also their share and the remaining time."""
        if self._total is None:
            return [f"{samples:,} samples"]
        began, first = self._began
        share = f"{samples:,}/{self._total:,} samples ({100 * samples / max(1, self._total):.1f}%)"
        return [share, *_time_left(max(0, self._total - samples), samples - first, now - began)]

    def _flush(self) -> None:
        """Print the progress that the minimum interval delayed."""
        if self._pending is not None:
            line, self._pending, self._shown_at = self._pending, None, self._clock()
            self._print(line)

    def _best_so_far(self, evaluation: str, results: dict[str, float]) -> str:
        """The best value of the metric that selects the best checkpoint, behind the results of its evaluation."""
        metric, choose = self._monitor.get("metric", ""), max if self._monitor.get("mode") == "max" else min
        name, *words = metric.removesuffix("/score").split("/")
        if name != evaluation or not math.isfinite(results.get(metric, math.nan)):
            return ""
        self._monitored.append(results[metric])
        return f"; {' '.join(['best', *words])} so far {_short(choose(self._monitored), 3)}"

    def _print_media(self) -> None:
        """Print the paths of pictures that waited for the numbers."""
        while self._media:
            self._print(self._media.pop(0))

    def _print_event(self, text: str, progress: Progress) -> None:
        """Print a separate line, after the delayed progress."""
        self._flush()
        self._print(f"step {progress.global_step:,}  {text}")

    def _print(self, line: str) -> None:
        line = printable(line)
        if self._live is not None:
            line = wrapped(line, self._live.console.width)
            self._live.console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            self._stream.write(line + "\n")
            self._stream.flush()


def _brief(training: dict[str, float]) -> list[str]:
    """The training metrics to show, in fixed order."""
    words = []
    if "samples_per_second" in training:
        words.append(f"{training['samples_per_second']:,.0f} samples/s")
    words += [f"{name} {_short(training[name])}" for name in ("loss", "lr") if name in training]
    words += [f"{name} {value:.4f}" for name, value in training.items() if name.endswith("_decay")]
    if training.get("skipped_steps"):
        words.append(f"{training['skipped_steps']:,.0f} steps skipped")
    return words


def summaries(results: dict[str, float]) -> dict[str, str]:
    """Summarise each evaluation, by its name: `0.27 (0.21 to 0.33), 0 of 50 solved`."""
    parts: dict[str, list[str]] = {}
    for name, value in results.items():
        (group, _, key), (word, bracket, steps) = name.rpartition("/"), name.partition("[")
        evaluation, _, model = group.partition("/")
        ends = [f"{word}_ci_{side}{bracket}{steps}" for side in ("low", "high")]
        ends = [_short(results[end], 3) for end in ends if end in results]
        if group and _DETAILS.fullmatch(key):
            continue
        text = " ".join(filter(None, [model, "" if key == "score" else key, _short(value, 3 if ends else 4)]))
        text += f" ({' to '.join(ends)})" if ends else ""
        rate, n = results.get(f"{group}/success_rate", math.nan), results.get(f"{group}/episodes", 0)
        text += f", {rate * n:.0f} of {n:.0f} solved" if key == "score" and math.isfinite(rate) else ""
        parts.setdefault(evaluation, []).append(text)
    return {evaluation: ", ".join(texts) for evaluation, texts in parts.items()}


def _short(value: float, digits: int = 4) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.{digits}g}"


def _time_left(rest: float, done: float, took_s: float) -> list[str]:
    """The remaining time at the present pace; an empty list while the pace is unknown."""
    if done <= 0 or took_s <= 0:
        return []
    seconds = round(rest * took_s / done)
    return [f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d} left"]
