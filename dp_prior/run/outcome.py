"""How a run ended: its status, scores, rows, and checkpoints to load a model from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dp_prior.checkpoints.clock import Progress
from dp_prior.files.printable import facts_table
from dp_prior.job.stop import LACK_OF_TIME
from dp_prior.run.scores import read_result
from dp_prior.tasks.pretrained import Pretrained
from dp_prior.tracking.jsonl import read_rows


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        status: `finished`; `stopped` before the budget was spent; `complete` when there was nothing left to do.
        progress: the clock at the end.
        best: directory of the best checkpoint, of the newest one if none was measured; None without checkpoints.
        directory: the run directory; after the run its `result.json` holds the scores of the best weights.
        failures: one line for each logger or saver that failed.
        stopped_by: the reason of the stop request, see `job.stop.STOP_REASONS`; None without a request. A finished run
            has a reason if the request came after its last step.
        diverged_at: the step at which the training loss diverged; None if it did not.
        is_measured: whether the monitored metric selected `best`.
    """

    status: Literal["finished", "stopped", "complete"]
    progress: Progress
    best: Path | None
    directory: Path
    failures: list[str]
    stopped_by: str | None = None
    diverged_at: int | None = None
    is_measured: bool = True

    @property
    def samples_seen(self) -> int:
        """Samples trained on since the start of the run."""
        return self.progress.samples_seen

    @property
    def latest(self) -> Path | None:
        """Directory of the newest checkpoint; None for a run without checkpoints."""
        from dp_prior.places.reference import resolve

        return self.best and resolve(self.directory, "latest")

    @property
    def scores(self) -> dict[str, float]:
        """Metrics of the evaluators in `test`, of the best weights; empty until the run has finished once."""
        metrics = (self.result() or {"test": {}})["test"]
        return {name: math.nan if value is None else value for name, value in metrics.items()}

    def rows(self) -> list[dict[str, Any]]:
        """All that was logged, a row per step: what `metrics.jsonl` holds."""
        return read_rows(self.directory)

    def load(self, weights: str | None = None, device: str = "cpu") -> Any:
        """The model of the best checkpoint, of any task, as `load_policy` loads a policy.

        Raises:
            FileNotFoundError: the run has saved no checkpoint.
        """
        return Pretrained.from_pretrained(self.best or self.directory, weights=weights, device=device)

    @property
    def label(self) -> str:
        """Describe `best` in words."""
        return "best checkpoint" if self.is_measured else "newest checkpoint"

    @property
    def wants_more_time(self) -> bool:
        """Whether a time limit stopped it before its budget was spent."""
        return self.status == "stopped" and self.stopped_by in LACK_OF_TIME

    def _repr_html_(self) -> str:
        facts = {
            "samples": f"{self.progress.samples_seen:,} in {self.progress.global_step:,} steps",
            self.label: self.best,
            "directory": self.directory,
            **{name: f"{value:.6g}" for name, value in self.scores.items() if not math.isnan(value)},
            **{f"failure {number}": line for number, line in enumerate(self.failures, 1)},
        }
        return facts_table(f"run {self.directory.name}: {self.status}", facts)

    def result(self) -> dict | None:
        """Scores of the best weights when the run last finished, and paths of media; None if it never did."""
        return read_result(self.directory)
