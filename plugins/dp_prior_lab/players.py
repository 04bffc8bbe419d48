"""The policies of a comparison, each at the environment of its evaluator."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from dp_prior.config import ConfigError
from dp_prior.envs.fingerprint import versions
from dp_prior.evaluation import EvaluatorConfig
from dp_prior.evaluation.rollout import RolloutConfig
from dp_prior.evaluation.rollout_evaluator import RolloutEvaluator
from dp_prior.evaluation.rollouts import Rollouts
from dp_prior.run.config import TrainConfig
from dp_prior.run.stored import check_origin
from dp_prior_lab.trained_configuration import stored_config
from dp_prior_robot.candidate import Candidate

Play = Callable[[range], list[dict[str, Any]]]
"""Plays episodes; gives a row for each, with its seed, score, success, steps and executed actions."""

_HARMLESS = {"n_episodes", "every", "videos", "show", "workers", "first_seed"}


class Player:
    """A policy and the rollouts in which it is scored.

    Attributes:
        name: see `Candidate`.
        record: the evaluator.
    """

    def __init__(
        self,
        reference: str,
        evaluator: str | None = None,
        configuration: TrainConfig | None = None,
        device: str = "cpu",
    ):
        """
        Args:
            reference: of a checkpoint, a run, or an export.
            evaluator: its name; None for the only rollouts of `test`, or of `evaluate` without rollouts in `test`.
            configuration: the configuration that has the evaluator; None for the policy's own.
            device: where the policy computes.

        Raises:
            ConfigError: there is no such evaluator.
            FileNotFoundError, CheckpointError, RemoteError: the policy is missing, see `resolve`.
        """
        self._candidate = Candidate(reference)
        self.name = self._candidate.name
        config = configuration or stored_config(self._candidate.directory)
        self.record = _rollouts(config, evaluator, reference if configuration is None else "--config_file")
        if configuration is None:
            remedy = "Name a file with the rollouts by --config_file"
            check_origin(reference, {"rollouts": self.record}, remedy=remedy)
        is_exported = configuration is not None or self.record.model == next(iter(config.train.ema), "online")
        self._options = {"weights": None if is_exported else self.record.model, "device": device}

    @property
    def identity(self) -> dict[str, Any]:
        """The policy's files, the settings of its rollouts and the packages that simulate, which must not change while
        it is compared."""
        settings = json.loads(self.record.model_dump_json(exclude=_HARMLESS))
        return {"files": self._candidate.files, "evaluator": settings, "packages": versions(self.record.env)}

    @contextlib.contextmanager
    def playing(self, first_seed: int) -> Iterator[Play]:
        """The policy at its environment, loaded and opened; nothing is filmed or written.

        A row also has the executed `actions` (steps, A).

        Args:
            first_seed: of episode 0.

        Raises:
            ConfigError: the policy cannot be loaded, or does not fit the environment.
        """
        record = self.record.model_copy(update={"first_seed": first_seed, "videos": 0})
        evaluator, policy = RolloutEvaluator(record, None), self._candidate.load(None, **self._options)
        with contextlib.closing(evaluator.open(policy, None, record.env.n_envs)) as env:
            rollouts = Rollouts(record, env, policy)

            def play(episodes: range) -> list[dict[str, Any]]:
                lines = []
                for start in range(0, len(episodes), env.n_envs):
                    executed: list[np.ndarray] = []
                    table = evaluator.table(rollouts.run(episodes[start : start + env.n_envs], keep=executed.append))
                    paths = np.stack(executed, axis=1)
                    lines += [{**row, "actions": path[: row["steps"]]} for row, path in zip(table, paths, strict=True)]
                return lines

            yield play


def score_limits(players: Sequence[Player]) -> tuple[float, float]:
    """The lowest and highest score of the environment in which all play.

    Raises:
        ConfigError: the environments differ, or state no limits.
    """
    first, *rest = players
    environment = first.record.env.model_dump(exclude={"n_envs"})
    for player in rest:
        other = player.record.env.model_dump(exclude={"n_envs"})
        keys = [f"env.{key}" for key in environment | other if environment.get(key) != other.get(key)]
        if keys:
            remedy = "give all the same rollouts by --config_file"
            raise ConfigError(player.name, [f"is evaluated with another {', '.join(keys)} than {first.name}; {remedy}"])
    low, high = first.record.score_range
    if not (math.isfinite(low) and math.isfinite(high)):
        problem = f"environment {first.record.env.type!r} states no limits of its scores"
        raise ConfigError(
            "--measure score", [f"{problem}; compare by --measure success, or by the environment's `score`"]
        )
    return low, high


def _playing(evaluators: Iterable[EvaluatorConfig]) -> dict[str, RolloutConfig]:
    """The rollouts of the evaluators that act in an environment, by name."""
    records = {evaluator.name: evaluator.rollouts() for evaluator in evaluators}
    return {name: record for name, record in records.items() if record is not None}


def _rollouts(config: TrainConfig | None, name: str | None, source: str) -> RolloutConfig:
    """The evaluator of a name, see `Player`."""
    if config is None:
        raise ConfigError(source, ["holds no configuration of a run; name a file with rollouts by --config_file"])
    tests, evaluations = _playing(config.test), _playing(config.evaluate)
    names = [*tests, *evaluations]
    chosen = list(tests or evaluations) if name is None else [evaluator for evaluator in names if evaluator == name]
    if len(chosen) == 1:
        return tests.get(chosen[0]) or evaluations[chosen[0]]
    if not names:
        remedy = "without a simulator compare trials on the robot (docs/comparing.md#a-real-robot)"
        problem = f"has no evaluator of type 'rollout'; name a file with one by --config_file; {remedy}"
        raise ConfigError(source, [problem])
    has = "has the rollouts" if name is None else f"has no rollouts {name!r}, but"
    raise ConfigError(source, [f"{has} {', '.join(names)}; choose one by --evaluator"])
