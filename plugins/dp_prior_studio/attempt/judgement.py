"""A judgement of a trained policy: its errors on held-out episodes beside those of two simple predictions, in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from dp_prior.data.split_data import SplitData
from dp_prior.evaluation.action_error import CONSTANT, ActionErrorConfig
from dp_prior.evaluation.measured_models import evaluation_mode, with_steps
from dp_prior.evaluation.open_loop import OpenLoop, episode_runs
from dp_prior.evaluation.samples import evenly_spread

MOMENTS, TRAINED = 512, 2048
"""Most held-out samples that are predicted, and most training samples whose mean action is taken."""

SAMPLING_STEPS = 8

CLEAR_GAIN = 0.1
"""Share by which a policy must be closer than the better simple prediction before the words say that it learns."""

OVERFITTED = 1.1
"""Factor of the lowest held-out loss from which the last one has risen again."""

HOLD, MEAN = "holding the last action", "the mean action"

MOST_LISTED = 6
"""Numbers of an action that are listed on the console; the page has all of them."""

_Part = Literal["train", "val"]


@dataclass(frozen=True)
class Judgement:
    """Mean absolute errors of the executed actions, of the policy, of the last action held, and of the mean action.

    Attributes:
        checkpoint: name of the checkpoint that was measured.
        part: `val`, or `train` where nothing is held out.
        moments: predictions that were compared.
        scaled: the errors in standard deviations of the recorded actions, by predictor; empty where none vary.
        by_episode: the same of each episode, by its number.
        dimensions: name, spread and errors of each number of an action, in the units of the data.
        losses: samples seen and held-out loss, untrained weights first.
    """

    checkpoint: str
    part: str = "val"
    moments: int = 0
    scaled: dict[str, float] = field(default_factory=dict)
    by_episode: dict[str, dict[str, float]] = field(default_factory=dict)
    dimensions: list[dict[str, Any]] = field(default_factory=list)
    losses: list[tuple[int, float]] = field(default_factory=list)

    def to_document(self) -> dict[str, Any]:
        """The JSON of the judgement."""
        return asdict(self)

    @classmethod
    def of_document(cls, document: Mapping[str, Any], checkpoint: str) -> Self | None:
        """The stored judgement of a checkpoint; None if there is none, or if it is of another version."""
        if document.get("checkpoint") != checkpoint:
            return None
        try:
            stored = cls(**document)
            stored.lines()
        except (TypeError, ValueError, KeyError, AttributeError):
            return None
        return stored

    @property
    def where(self) -> str:
        """The episodes of the measurement, in words."""
        count = f"{len(self.by_episode)} episode{'s' * (len(self.by_episode) != 1)}"
        not_trained = "not trained on" if self.part == "val" else "trained on, for nothing is held out"
        return f"{self.moments:,} moments of {count} {not_trained}"

    @property
    def simple(self) -> tuple[str, float]:
        """Name and scaled error of the better simple prediction."""
        return min(((name, self.scaled[name]) for name in _rivals(self.scaled)), key=lambda pair: pair[1])

    @property
    def gain(self) -> float:
        """Share by which the policy is closer than the better simple prediction; negative if it is further away."""
        _, error = self.simple
        return 1 - self.scaled["policy"] / error if error > 0 else -math.inf

    @property
    def wins(self) -> int:
        """Episodes in which the policy is closer than both simple predictions."""
        return sum(errors["policy"] < min(map(errors.get, _rivals(errors))) for errors in self.by_episode.values())

    @property
    def learns(self) -> bool:
        """Whether the policy is clearly closer than both simple predictions, in most episodes too."""
        return bool(self.scaled) and self.gain >= CLEAR_GAIN and 2 * self.wins > len(self.by_episode)

    @property
    def overfits(self) -> bool:
        """Whether the held-out loss has risen again."""
        trained = [loss for _, loss in self.losses[1:]]
        return self.part == "val" and len(trained) > 1 and trained[-1] > OVERFITTED * min(trained)

    def verdict(self) -> str:
        """Sum up the numbers in a sentence."""
        if not self.scaled:
            fell = len(self.losses) > 1 and self.losses[-1][1] < self.losses[0][1]
            subject = "the loss alone"
            if self.dimensions:
                cause = "do not vary" if self.moments else "of the held-out episodes have none before them"
                subject = f"the recorded actions {cause}, so nothing is compared"
            return f"{subject}; the loss {'fell' if fell else 'did not fall'}"
        name, _ = self.simple
        data = "" if self.part == "val" else ", on the training data themselves"
        if self.learns:
            return f"the policy learns: its actions are {self.gain:.0%} closer to the recorded ones than {name}{data}"
        if self.gain > 0:
            return f"not clear yet: the policy's actions are {self.gain:.0%} closer than {name}{data}"
        times = f"{1 - self.gain:.2g} times as far" if math.isfinite(self.gain) else "farther"
        return f"not yet: the policy's actions are {times} from the recorded ones as {name}{data}"

    def lines(self) -> list[tuple[str, str]]:
        """The numbers for the console and the page, each with the word in front."""
        rows = [("verdict", self.verdict())]
        if self.scaled:
            errors = f"{self.scaled['policy']:.3g} standard deviations of the recorded actions"
            beside = " and ".join(f"{self.scaled[name]:.3g} of {name}" for name in _rivals(self.scaled))
            rows.append(("error", f"{errors}, beside {beside}; {self.where}"))
            rows.append(("episodes", f"closer than the simple predictions in {self.wins} of {len(self.by_episode)}"))
        for row in self.dimensions[: MOST_LISTED * (self.moments > 0)]:
            beside = " and ".join(f"{row[name]:.3g} of {name}" for name in _rivals(row))
            units = f"{row['name']}: {row['policy']:.3g} in units of the data, beside {beside}"
            rows.append(("action", f"{units}; recorded values spread by {row['spread']:.3g}"))
        if len(self.dimensions) > MOST_LISTED and self.moments:
            rows.append(("action", f"{len(self.dimensions) - MOST_LISTED} further numbers are on the page"))
        if len(self.losses) > 1:
            (_, first), (_, last) = self.losses[0], self.losses[-1]
            part = "held-out" if self.part == "val" else "training"
            again = f", but {min(loss for _, loss in self.losses):.3g} before: it has risen again" * self.overfits
            rows.append(("loss", f"{part} loss {first:.3g} untrained, {last:.3g} at the end{again}"))
        return rows


def judge(
    policy: Any, data: SplitData, part: _Part, checkpoint: str, losses: Sequence[tuple[int, float]]
) -> tuple[Judgement, OpenLoop | None]:
    """Compare a policy with the last action held and with the mean action.

    Returns:
        The judgement, and recorded and predicted actions of the first episode of the part, if there are any.
    """
    samples = data.val if part == "val" else data.train
    evaluator = ActionErrorConfig(split=part, shown=0).create(data)
    sampler = with_steps(policy.sampler, SAMPLING_STEPS)
    rows = evenly_spread(len(samples), MOMENTS)
    with evaluation_mode(policy):
        error, recorded, mask = evaluator.errors(policy, sampler, None, rows)
        runs = episode_runs(lambda sample: data.recorded_at(part, sample), len(samples), 1)
        curves = None
        if runs:
            episode, run = runs[0]
            curves = evaluator.open_loop(policy, sampler, episode, run[: MOMENTS * policy.n_action_steps], None)
    places = [data.recorded_at(part, row) or (0, row) for row in rows.tolist()]
    has_last = torch.tensor([step > 0 for _, step in places])
    if policy.n_obs_steps > 1:  # otherwise no chunk holds the action before its newest observation
        has_last &= mask[:, policy.n_obs_steps - 2]
    episodes = np.array([number for number, _ in places])[has_last.numpy()]
    mean, deviation = _moments_of(policy, data)
    errors, real = _executed_errors(policy, mean, error[has_last], recorded[has_last], mask[has_last])
    varies = deviation > CONSTANT * recorded[has_last].abs().amax((0, 1)) if has_last.any() else deviation > 0
    names = policy.spec.names_inside("x") or [f"dimension {number}" for number in range(error.shape[-1])]
    dimensions = []
    for number, name in enumerate(names):
        means = {key: _mean(values[..., number : number + 1], real) for key, values in errors.items()}
        dimensions.append({"name": name, "spread": float(deviation[number]), **means})
    ratios = {name: values[..., varies] / deviation[varies] for name, values in errors.items()}
    scaled, by_episode = _scaled_means(ratios, real, episodes) if varies.any() and real.any() else ({}, {})
    judgement = Judgement(checkpoint, part, len(episodes), scaled, by_episode, dimensions, list(losses))
    return judgement, curves


def _executed_errors(
    policy: Any, mean: Tensor, error: Tensor, recorded: Tensor, mask: Tensor
) -> tuple[dict[str, Tensor], Tensor]:
    """The errors of the policy and of the simple predictions, of the actions of each chunk that are executed.

    Args:
        mean: (D,) of the recorded training actions.
        error, recorded: (n, H, D) of the predicted chunks, and the recorded ones.
        mask: (n, H) real actions.

    Returns:
        (n, steps, D) absolute errors by name, 0 where padded; and (n, steps, 1) whether an action is real.
    """
    first = policy.n_obs_steps - 1
    executed = slice(first, first + policy.n_action_steps)
    real, targets = mask[:, executed, None], recorded[:, executed]
    errors = {"policy": error[:, executed].abs(), MEAN: (mean - targets).abs()}
    if first > 0:
        errors[HOLD] = (recorded[:, first - 1, None] - targets).abs()
    return {name: torch.where(real, values, 0.0) for name, values in errors.items()}, real


def _scaled_means(
    ratios: Mapping[str, Tensor], real: Tensor, episodes: np.ndarray
) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """The mean scaled errors over all moments, and over the moments of each episode that has real actions.

    Args:
        ratios: (n, steps, D) errors in standard deviations of the recorded actions, by name.
        real: (n, steps, 1) whether an action is real.
        episodes: (n,) number of the episode of each moment.
    """
    by_episode: dict[str, dict[str, float]] = {}
    for number in np.unique(episodes):
        chosen = torch.from_numpy(episodes == number)
        if real[chosen].any():
            by_episode[str(number)] = {name: _mean(values[chosen], real[chosen]) for name, values in ratios.items()}
    return {name: _mean(values, real) for name, values in ratios.items()}, by_episode


def _rivals(errors: Mapping[str, Any]) -> list[str]:
    """The simple predictions among the keys of some errors."""
    return [name for name in (HOLD, MEAN) if name in errors]


def _mean(values: Tensor, real: Tensor) -> float:
    """The mean of (n, H, D) values over the real actions of (n, H, 1); NaN without any."""
    return float(values.mean(-1).sum() / real.sum()) if real.any() else math.nan


def _moments_of(policy: Any, data: SplitData) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the recorded training actions, (D,) float64, rotations as 6D."""
    samples = data.train.seeing(())
    batch = samples.fetch(evenly_spread(len(samples), TRAINED).to(samples.device))
    layout = policy.spec.layout("x")
    actions = batch.x if layout is None else layout.encode(batch.x)
    actions = actions[batch.mask].cpu().double()
    return actions.mean(0), actions.std(0, correction=0)
