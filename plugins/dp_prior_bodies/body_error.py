"""Action error of one body of a network for many, on the held-out samples of its data set."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field

from dp_prior.evaluation.action_error import ActionErrorConfig, ActionErrorEvaluator
from dp_prior.evaluation.samples import pick_samples
from dp_prior.tensors.metrics import ReducingRanks
from dp_prior_bodies.network import BodyWindows
from dp_prior_bodies.recorded import Bodies


class BodyErrorConfig(ActionErrorConfig):
    """The action error of one body, `data_set`, in the units of that body; see `action_error`. Name each evaluator."""

    type: Literal["body_error"] = "body_error"

    tasks: ClassVar = ("bodies",)

    data_set: str = Field()
    """Name of the body (`data.sets`)."""

    filmed: ClassVar = 0

    def create(self, data: Bodies, output_dir: Path | None = None) -> BodyErrorEvaluator:
        """See `ActionErrorConfig.create`."""
        padded = pick_samples(data, self.split, self.name, self.data_set)
        windows = BodyWindows(padded, torch.arange(len(padded)), data.spec.bodies[self.data_set])

        def place(sample: int) -> tuple[int, int]:
            return data.sets[self.data_set].recorded_at(self.split, sample)

        return BodyErrorEvaluator(self, windows, output_dir, place=place)


class BodyErrorEvaluator(ActionErrorEvaluator):
    """See `BodyErrorConfig`."""

    def measure(self, model: Any, name: str, ranks: ReducingRanks | None, result: Any) -> None:
        """See `ActionErrorEvaluator`; of the policy of the body."""
        super().measure(model.body(self.config.data_set), name, ranks, result)
