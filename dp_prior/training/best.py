"""Which checkpoint is the best: one monitored metric, its direction, and the best value so far."""

from __future__ import annotations

import math
from typing import Literal

from dp_prior.config import Config


class MonitorConfig(Config):
    """The metric that selects the best checkpoint. It must be one that the evaluators of the run produce."""

    metric: str = "validation/ema/loss"
    """Name of the metric; only validation and rollout metrics exist during training, so no test can leak in."""

    mode: Literal["min", "max"] = "min"
    """Whether small or large values are good."""


class Best:
    """The best value of the monitored metric and the optimizer step that reached it; part of every checkpoint."""

    def __init__(self, monitor: MonitorConfig):
        self.monitor = monitor
        self.value: float | None = None
        self.step: int | None = None

    def improves(self, metrics: dict[str, float], step: int) -> bool:
        """Take note of the metrics measured at `step`; True if they are the best so far.

        A metric that is missing or not a finite number is never best, and of two equal ones the older stays.
        """
        value = metrics.get(self.monitor.metric)
        if value is None or not math.isfinite(value):
            return False
        if self.value is not None:
            better = value < self.value if self.monitor.mode == "min" else value > self.value
            if not better:
                return False
        self.value, self.step = value, step
        return True

    def state(self) -> dict:
        """What a checkpoint keeps."""
        return {"metric": self.monitor.metric, "mode": self.monitor.mode, "value": self.value, "step": self.step}

    def load(self, state: dict) -> None:
        """Restore `state`; a value of another metric or direction does not count and is forgotten."""
        if (state["metric"], state["mode"]) == (self.monitor.metric, self.monitor.mode):
            self.value, self.step = state["value"], state["step"]
