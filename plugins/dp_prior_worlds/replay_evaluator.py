"""ReplayEvaluator: plays recorded actions in an environment, from recorded starts.

A policy that imitates the recorded actions can hardly solve more than they do. If they leave their recording, simulator
or actions have changed. Episodes run in blocks of `n_envs`, which ranks divide.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from dp_prior.checkpoints.clock import Progress
from dp_prior.config import Config
from dp_prior.envs.fingerprint import fingerprint, versions
from dp_prior.envs.vector import VectorEnv, check_step, reset_to
from dp_prior.evaluation.blocks import run_blocks
from dp_prior.evaluation.episode_metrics import told_success, with_failures
from dp_prior.evaluation.interval import mean_interval, share_interval
from dp_prior.evaluation.measurement import Measurement, WritingEvaluator
from dp_prior.evaluation.samples import heartbeat, work_of
from dp_prior.tensors.metrics import ReducingRanks
from dp_prior_worlds.ceiling import Ceiling
from dp_prior_worlds.departure import Compared, Departures


@dataclass(frozen=True)
class Replayable:
    """n recorded episodes.

    Attributes:
        numbers: (n,) the data set's own number of each episode.
        starts: (n, ...) by name, see `StartsAsRecorded`.
        actions: of each episode, (T, A).
        obs: by key, of each episode (T, *shape): the observation before each action.
    """

    numbers: np.ndarray
    starts: dict[str, np.ndarray]
    actions: list[np.ndarray]
    obs: dict[str, list[np.ndarray]]


COLUMNS = np.dtype(
    [("episode", int), ("score", float), ("success", float), ("steps", int)]
    + [("departs_at", int), ("departure", float), ("number", int)]
)
"""Of an episode that was played; `episode` is its place in `Replayable`, the last three are of `Departures`."""


class ReplayEvaluator(WritingEvaluator):
    """See `ReplayConfig`, the record that creates it."""

    def __init__(self, config: Config, episodes: Replayable, output_dir: Path | None):
        super().__init__(config, output_dir)
        self._episodes = episodes
        recorded = {key: np.concatenate(parts) for key, parts in episodes.obs.items()}
        self._compared = Compared.of(recorded, config.env.angles)
        self._played: Measurement | None = None

    def run(self, models: dict[str, nn.Module], ranks: ReducingRanks | None, progress: Progress) -> Measurement:
        """Play all episodes, once; a collective after each round of blocks when there are several ranks.

        Raises:
            RuntimeError: on every rank, when a block failed on one of them.
        """
        return self.report(self.measure(ranks), progress, ranks)

    def measure(self, ranks: ReducingRanks | None = None) -> Measurement:
        """See `run`; no report is written."""
        if self._played is None:
            config, n = self.config, len(self._episodes.numbers)
            env = config.env.model_copy(update={"n_envs": min(config.env.n_envs, n)}).create()
            env.is_watched = False  # pictures are not compared
            try:
                world = fingerprint(config.env, env, 0)
                with work_of(ranks).named(config.name, n):
                    rows = run_blocks(
                        lambda block: self._play(env, block, ranks), n, env.n_envs, COLUMNS, ranks, config.name
                    )
            finally:
                env.close()
            self._played = replace(self._measurement(rows), environment=world)
        return self._played

    def warnings(self, ranks: ReducingRanks | None = None) -> list[str]:
        """What to know before training: a line if the ceiling is low. A collective."""
        ceiling = self.ceiling(ranks)
        return [str(ceiling)] if ceiling.is_low else []

    def ceiling(self, ranks: ReducingRanks | None = None) -> Ceiling:
        """The result in words. A collective."""
        config, result = self.config, self.measure(ranks)
        score, table = result.metrics[f"{config.name}/score"], result.tables[f"{config.name}/by_episode"]
        return Ceiling(config.name, config.env.type, score, table, versions(config.env))

    def _play(self, env: VectorEnv, block: range, ranks: ReducingRanks | None) -> np.ndarray:
        """(len(block),) rows of `COLUMNS`."""
        episodes, places = self._episodes, np.array(block)
        lengths = np.array([len(episodes.actions[place]) for place in block])
        actions = _padded([episodes.actions[place] for place in block])
        rows = np.zeros(len(block), COLUMNS)
        rows["episode"], steps = places, rows["steps"]
        first = reset_to(env, {name: values[places] for name, values in episodes.starts.items()})
        replayed = [self._compared.joined(first)]
        is_running = np.ones(len(block), dtype=bool)
        while is_running.any():
            heartbeat(ranks)
            step = env.step(actions[:, len(replayed) - 1])
            check_step(step, env, len(block), len(replayed))
            obs, _, done, info = step
            for name in ("score", "success"):
                rows[name][is_running] = info[name][is_running]
            steps[is_running] += 1
            replayed.append(self._compared.joined(obs))
            is_running = is_running & ~done & (steps < lengths)
            work_of(ranks).tell(float(np.where(is_running, steps / lengths, 1.0).mean()))
        departures = self._departures(block, np.stack(replayed, axis=1), steps)
        rows["departs_at"], rows["departure"], rows["number"] = departures.step, departures.size, departures.number
        return rows

    def _departures(self, block: range, replayed: np.ndarray, steps: np.ndarray) -> Departures:
        """The departures of a block of episodes; of size NaN if nothing is compared."""
        if not self._compared.shapes:
            return Departures(*(np.full(len(block), value) for value in (-1, np.nan, 0)))
        paths = []
        for place in block:
            paths.append(self._compared.joined({key: parts[place] for key, parts in self._episodes.obs.items()}))
        recorded, lengths = _padded(paths), np.array(list(map(len, paths)))
        common = min(replayed.shape[1], recorded.shape[1])
        is_common = np.arange(common) < np.minimum(steps + 1, lengths)[:, None]
        return self._compared.departures(replayed[:, :common], recorded[:, :common], is_common, self.config.tolerance)

    def _measurement(self, rows: np.ndarray) -> Measurement:
        """Metrics and table of all episodes, see `COLUMNS`."""
        config, n = self.config, len(rows)
        rows["success"] = with_failures(rows["success"])
        scores, successes = rows["score"], rows["success"]
        followed = (rows["departs_at"] < 0).mean() if self._compared.shapes else math.nan
        values = (
            *(scores.mean(), *mean_interval(scores, limits=config.score_range)),
            *(successes.mean(), *share_interval(successes.sum(), n), followed, n),
        )
        metrics = {name: float(value) for name, value in zip(config.metric_names(), values, strict=True)}
        return Measurement(metrics, tables={f"{config.name}/by_episode": [self._line(row) for row in rows]})

    def _line(self, row: np.void) -> dict[str, Any]:
        """The line of an episode in the table."""
        place, score, success, steps, departs_at, departure, number = row.tolist()
        has_left = departs_at >= 0
        return {
            "episode": int(self._episodes.numbers[place]),
            "score": score,
            "success": told_success(success),
            "steps": steps,
            "recorded_steps": len(self._episodes.actions[place]),
            "departs_at": departs_at if has_left else None,
            "departs_in": self._compared.names[number] if has_left else None,
            "departure": departure,
        }


def _padded(parts: list[np.ndarray]) -> np.ndarray:
    """(n, T, D) of n arrays (T, D), the last row of each repeated."""
    longest = max(map(len, parts))
    return np.stack([part[np.minimum(np.arange(longest), len(part) - 1)] for part in parts])
