"""The sheet of a blind trial: a sealed, shuffled order of policies, the journal of the trials, and the verdicts."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import math
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dp_prior.config import ConfigError
from dp_prior.files.durable import replace_file
from dp_prior.files.json_text import seal, unseal
from dp_prior.files.regular_files import read_small
from dp_prior_lab.claim import claim, held
from dp_prior_lab.outcomes import Outcomes
from dp_prior_lab.trial_journal import BlindTrial, Journal
from dp_prior_lab.verdict import Comparison
from dp_prior_robot.candidate import Candidate

JOURNAL = "trials.jsonl"
SEALED = "sealed.json"
"""Holds the seed of the order, which does not show the order at a glance."""


@dataclass(frozen=True)
class TrialRules:
    """How a trial is held.

    Attributes:
        limits: the lowest and the highest score.
        error: the probability of a wrong verdict, over all pairs and looks.
        most: blocks at most; may be raised later.
        stages: names of the stages that a trial may reach, in order.
    """

    limits: tuple[float, float] = (0.0, 1.0)
    error: float = 0.05
    most: int = 50
    stages: tuple[str, ...] = ()


class Sheet:
    """Blocks of trials with the same start. In a block every policy that is not yet told apart from all others acts
    once, in a shuffled order; a trial that is void is repeated at the end of its block.

    Attributes:
        names: of the policies.
    """

    def __init__(self, names: Sequence[str], seed: str, rules: TrialRules, journal: Journal):
        """Args: seed: determines the order."""
        self.names, self.rules, self.journal, self._seed = list(names), rules, journal, seed

    def policy(self, block: int, place: int) -> int:
        """The number of the policy at a place of a block."""
        return sorted(range(len(self.names)), key=lambda policy: self._lot(block, policy))[place]

    def start(self, block: int) -> str | None:
        """The label of a block's start; None before its first trial."""
        return next((trial.start for trial in self.journal.trials if trial.block == block), None)

    def next(self) -> tuple[int, int] | None:
        """Block and place of the trial that is due; None once the test has ended or all blocks are complete."""
        blocks, scored = self.rules.most, self.scored()
        apart = self._comparison(range(blocks)).apart()
        ends = np.where(apart > 0, np.minimum(apart, blocks), blocks)  # blocks in which each policy acts
        planned = itertools.product(range(blocks), range(len(self.names)))
        unscored = (trial for trial in planned if trial not in scored)
        due = [(block, place) for block, place in unscored if block < ends[self.policy(block, place)]]
        tries = [(trial.block, trial.place) for trial in self.journal.trials]
        return min((trial for trial in due if trial[0] == due[0][0]), key=tries.count, default=None)

    def scored(self) -> dict[tuple[int, int], BlindTrial]:
        """The first trial with a score by block and place, in the order of blocks and of trials."""
        scored = {}
        for trial in sorted(self.journal.trials, key=lambda trial: (trial.block, trial.number)):
            if trial.score is not None:
                scored.setdefault((trial.block, trial.place), trial)
        return scored

    def comparison(self) -> Comparison:
        """The comparison of the policies by the scores."""
        return self._comparison(sorted({block for block, _ in self.scored()}))

    def outcomes(self) -> Outcomes:
        """The scores with the names of the policies."""
        rows = []
        for (block, place), trial in self.scored().items():
            name, entry = self.names[self.policy(block, place)], trial.entry or {}
            row = {"start": trial.start, "policy": name, "score": repr(trial.score), "trial": str(trial.number)}
            rows.append({**row, "stage": entry.get("stage") or "", "notes": entry.get("notes", "")})
        return Outcomes(rows)

    def void(self) -> dict[str, int]:
        """The number of void trials of each policy that has any."""
        trials = [trial for trial in self.journal.trials if trial.entry is not None and trial.score is None]
        names = [self.names[self.policy(trial.block, trial.place)] for trial in trials]
        return {name: names.count(name) for name in self.names if name in names}

    def _comparison(self, blocks: Sequence[int]) -> Comparison:
        scores = np.full((len(self.names), len(blocks)), math.nan)
        columns = {block: column for column, block in enumerate(blocks)}
        for (block, place), trial in self.scored().items():
            if block in columns:
                scores[self.policy(block, place), columns[block]] = trial.score
        return Comparison(scores, self.rules.limits, self.rules.error)

    def _lot(self, block: int, policy: int) -> bytes:
        """By SHA-256, since generators of random numbers may change with their library while a trial lasts."""
        return hashlib.sha256(f"{self._seed}/{block}/{policy}".encode()).digest()


@contextlib.contextmanager
def opened_sheet(candidates: Sequence[Candidate], rules: TrialRules, out: Path) -> Iterator[Sheet]:
    """The sheet in a folder, held by this process; a trial of the same policies that was stopped there goes on.

    Raises:
        ConfigError: the folder holds another comparison, its order is lost, or its journal is damaged.
        FileExistsError: the folder is not of a trial, or another process works there.
        OSError: it cannot be written.
    """
    policies = {candidate.name: {"files": candidate.files} for candidate in candidates}
    settings = {"range": list(rules.limits), "error": rules.error, "stages": list(rules.stages)}
    names = claim(out, {"policies": policies, **settings})
    with held(out), contextlib.closing(Journal(out / JOURNAL)) as journal:
        path = out / SEALED
        if not path.exists() and not journal.trials:
            replace_file(path, seal({"seed": secrets.token_hex(16)}))
        try:
            seed = unseal(read_small(path))["seed"]
        except (FileNotFoundError, ValueError, KeyError) as error:
            problem = f"{error}; without it nobody knows which policy acted: restore the file, or choose another --out"
            raise ConfigError(str(path), [problem]) from None
        _check_trials(journal, len(names), rules.limits, out / JOURNAL)
        yield Sheet(names, seed, rules, journal)


def _check_trials(journal: Journal, policies: int, limits: tuple[float, float], path: Path) -> None:
    """Raises ConfigError for a place that no policy has, or a score outside the limits."""
    low, high = limits
    problems = []
    for trial in journal.trials:
        if trial.place >= policies:
            problems.append(f"trial {trial.number} has place {trial.place}; expected 0 to {policies - 1}")
        if trial.score is not None and not low <= trial.score <= high:
            problems.append(f"trial {trial.number} has the score {trial.score:g}; expected {low:g} to {high:g}")
    if problems:
        raise ConfigError(str(path), [f"{problem}; restore the file as it was written" for problem in problems[:10]])
