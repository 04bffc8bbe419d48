"""Starts that a policy loses: played until enough are found, or few enough are lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dp_prior.commands.compare import OUTCOMES, outcome_rows
from dp_prior.commands.outcomes import Outcomes
from dp_prior.commands.players import Player
from dp_prior.config import ConfigError
from dp_prior.evaluation.verdict import Comparison
from dp_prior.files.durable import replacing

ACTIONS = "lost.npz"
"""The actions of a policy in the episodes that were lost."""

POLICY = "policy"
"""Name of the one policy among outcomes."""


@dataclass(frozen=True)
class Losses:
    """Episodes of a policy on consecutive seeds.

    Attributes:
        seeds: of the episodes.
        lost: the seeds that were not solved.
        share, low, high: of lost starts, with limits that hold at every look, see `mean_limits`.
    """

    seeds: range
    lost: list[int]
    share: float
    low: float
    high: float

    @classmethod
    def of(cls, outcomes: Outcomes, first: int, error: float) -> Losses:
        """What the outcomes on the seeds from `first` on tell; the limits are wrong with a probability of `error`."""
        seeds = range(first, first + len(outcomes.rows))
        is_lost = 1.0 - outcomes.scores([POLICY], [str(seed) for seed in seeds])
        ((share, low, high),) = Comparison(is_lost, (0.0, 1.0), error).means()
        return cls(seeds, [seed for seed, lost in zip(seeds, is_lost[0], strict=True) if lost], share, low, high)

    def __str__(self) -> str:
        return (
            f"{len(self.lost)} of {len(self.seeds)} starts lost ({self.share:.2%}, {self.low:.2%} to {self.high:.2%})"
        )


def find_losses(player: Player, first: int, folder: Path, error: float, is_enough: Callable[[Losses], bool]) -> Losses:
    """Let a policy play fresh starts, a block at a time; what was played is kept, and never played again.

    Args:
        first: seed of the first start.
        folder: takes the outcomes, and the actions of lost episodes.
        error: see `Losses.of`.
        is_enough: whether to stop.

    Raises:
        ConfigError: the environment does not tell whether an episode is solved.
        OSError: a file cannot be written.
    """
    kept, size = folder / OUTCOMES, player.record.env.n_envs
    outcomes = Outcomes.read(kept, (0.0, 1.0)) if kept.is_file() else Outcomes()
    found = Losses.of(outcomes, first, error)
    if is_enough(found):
        return found
    folder.mkdir(parents=True, exist_ok=True)
    actions = lost_actions(folder)
    with player.playing(first) as play:
        while True:
            rows = play(range(len(outcomes.rows), len(outcomes.rows) + size))
            _refuse_untold(rows, player.record.env.type)
            actions |= {row["seed"]: row["actions"] for row in rows if not row["success"]}
            _write(folder / ACTIONS, actions)  # first, so that a lost start always has its actions
            outcomes.add(outcome_rows(POLICY, rows, "success", 0.0))
            outcomes.write(kept)
            found = Losses.of(outcomes, first, error)
            if is_enough(found):
                return found


def lost_actions(folder: Path) -> dict[int, np.ndarray]:
    """The executed actions (T, A) of each lost episode by its seed."""
    path = folder / ACTIONS
    if not path.is_file():
        return {}
    with np.load(path, allow_pickle=False) as file:
        parts = np.split(file["action"], file["episode_ends"][:-1])
        return dict(zip(file["seed"].tolist(), parts, strict=True))


def _write(path: Path, actions: dict[int, np.ndarray]) -> None:
    """Replace the file of lost episodes, durably."""
    if actions:
        ends = np.cumsum([len(one) for one in actions.values()])
        with replacing(path) as temporary, open(temporary, "wb") as file:
            joined = np.concatenate(list(actions.values()))
            np.savez(file, seed=np.array(list(actions)), action=joined, episode_ends=ends)


def _refuse_untold(rows: list[dict[str, Any]], environment: str) -> None:
    if any(row["success"] is None for row in rows):
        remedy = "let its info have is_success, or give the evaluator's env a success_score"
        raise ConfigError(f"environment {environment!r}", [f"does not tell whether an episode is solved; {remedy}"])
