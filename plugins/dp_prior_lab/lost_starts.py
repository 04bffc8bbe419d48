"""Starts that a policy loses: played until enough are found, or few enough are lost."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dp_prior.config import ConfigError
from dp_prior.data.files import load_npz, raise_refusal
from dp_prior_lab.outcomes import OUTCOMES, Outcomes
from dp_prior_lab.players import Player
from dp_prior_lab.verdict import Comparison
from dp_prior_worlds.expert_demonstrations import write_arrays

LOST = "lost"
"""Folder with a file `SEED.npz` for each lost start: the policy's executed `action` (T, A)."""

POLICY = "policy"
"""Name of the one policy among outcomes."""


@dataclass(frozen=True)
class Losses:
    """Episodes of a policy on consecutive seeds.

    Attributes:
        first_seed, starts: the first seed, and the number of seeds.
        lost: the seeds that were not solved.
        share, low, high: of lost starts, with limits that hold at every look, see `mean_limits`.
    """

    first_seed: int
    starts: int
    lost: Sequence[int]
    share: float
    low: float
    high: float

    @classmethod
    def of(cls, outcomes: Outcomes, first: int, error: float) -> Losses:
        """The share of lost starts among the seeds from `first` on; its limits are wrong with probability `error`."""
        seeds = range(first, first + len(outcomes.rows))
        is_lost = 1.0 - outcomes.scores([POLICY], [str(seed) for seed in seeds])
        (limits,) = Comparison(is_lost, (0.0, 1.0), error).means()
        return cls(first, len(seeds), [seed for seed, lost in zip(seeds, is_lost[0], strict=True) if lost], *limits)

    def __str__(self) -> str:
        return f"{len(self.lost)} of {self.starts} starts lost ({self.share:.2%}, {self.low:.2%} to {self.high:.2%})"


def find_losses(player: Player, first: int, folder: Path, error: float, is_enough: Callable[[Losses], bool]) -> Losses:
    """Let a policy play fresh starts, a block at a time; what was played is kept, and never played again.

    Args:
        first: seed of the first start.
        folder: takes the outcomes, and in `LOST` the actions of lost episodes.
        error: see `Losses.of`.
        is_enough: whether to stop.

    Raises:
        ConfigError: the environment reported success in no episode.
        OSError: a file cannot be written.
    """
    outcomes, env, play = Outcomes.of_folder(folder, (0.0, 1.0)), player.record.env, None
    with contextlib.ExitStack() as opened:
        while not is_enough(losses := Losses.of(outcomes, first, error)):
            if play is None:
                (folder / LOST).mkdir(parents=True, exist_ok=True)
                play = opened.enter_context(player.playing(first))
            rows = play(range(losses.starts, losses.starts + env.n_envs))
            for row in rows:
                if not row["success"]:  # before the outcomes, so that a lost start always has its actions
                    write_arrays(folder / LOST / f"{row['seed']}.npz", action=row["actions"])
            outcomes.add(POLICY, rows, "success", 0.0)
            outcomes.write(folder / OUTCOMES)
    if not outcomes.tells_success:
        remedy = "let its info have is_success, or give the evaluator's env a success_score"
        problem = f"told in none of {losses.starts} episodes whether it is solved"
        raise ConfigError(f"environment {env.type!r}", [f"{problem}; {remedy}"])
    return losses


def lost_actions(folder: Path, seed: int) -> np.ndarray:
    """(T, A) executed actions of a lost episode.

    Raises:
        ConfigError: their file is missing or damaged.
        UnreadableError: the system refused to read it.
    """
    path = folder / LOST / f"{seed}.npz"
    try:
        return load_npz(path, ["action"])["action"]
    except Exception as error:  # on damaged files, NumPy and zipfile raise all kinds
        raise_refusal(path, error)
        finding = f"cannot be read ({error}); expected the executed `action` of the start {seed} that was lost"
        remedy = f"remove {folder}, and the same command does this round again"
        raise ConfigError(str(path), [f"{finding}; {remedy}"]) from None
