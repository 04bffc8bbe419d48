"""`dp-prior improve`: find the starts that a policy loses, ask an expert, train on, until few starts are lost.

Each round has a folder with the outcomes, the expert's episodes and an ordinary run. Every stage ends with a file, so
the same command goes on at the stage where a killed command stopped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dp_prior.config import ConfigError
from dp_prior.data.errors import MissingError
from dp_prior.data.recorded.trajectories import TrajectoriesConfig
from dp_prior.envs.vector import SEED
from dp_prior.files.durable import replace_file
from dp_prior.files.json_text import encode_document
from dp_prior.places.reference import resolve
from dp_prior.run.config import TrainConfig
from dp_prior.run.run import Run
from dp_prior.run.scores import read_result
from dp_prior_lab.claim import claim, held
from dp_prior_lab.corrections import LOST_SEED, correct, counted
from dp_prior_lab.improved_run import expert_set, improved_config, observations, telling, trained_config
from dp_prior_lab.lost_starts import LOST, Losses, find_losses, lost_actions
from dp_prior_lab.players import Player

ROUNDS = "rounds.json"
"""The table of the rounds, in the folder of an improvement."""


@dataclass(frozen=True)
class Aim:
    """The share of lost starts that a policy may have, and how a policy is improved.

    Attributes:
        lost: share of the starts below which the lost ones must be.
        error: probability that the aim counts as reached although more are lost; over all looks and rounds.
        first_seed: of the starts; each start adds 1, through all rounds.
        losses: lost starts after which a round looks for no more.
        points: take-overs of the expert in each lost episode, the start among them.
        weight: of the expert's episodes of each round, beside 1 of the first data.
        samples: of the training of a round.
        overrides: changes to the configurations of the new runs.
    """

    lost: float
    error: float
    first_seed: int
    losses: int
    points: int
    weight: float
    samples: int
    overrides: tuple[str, ...] = ()

    def error_of(self, number: int) -> float:
        """The share of a round in `error`, counted from 1; the shares of all rounds sum to `error`."""
        return self.error / (number * (number + 1))

    def is_reached(self, losses: Losses) -> bool:
        """Whether the interval of lost starts lies below the goal."""
        return losses.high < self.lost


@dataclass(frozen=True)
class Round:
    """Findings and training of a round; the last round has no training.

    Attributes:
        number: from 1.
        policy: the checkpoint that played.
        episodes, unsolved: take-overs that the expert solved, and did not solve.
        samples: of the training.
    """

    number: int
    policy: Path
    losses: Losses
    episodes: int = 0
    unsolved: int = 0
    samples: int = 0

    def __str__(self) -> str:
        asked = f"; {self.episodes} episodes of the expert, {self.unsolved} unsolved; {self.samples:,} samples"
        return f"round {self.number}: {self.losses}{asked * (self.samples > 0)}"

    def document(self) -> dict[str, Any]:
        """JSON values."""
        fields = asdict(self)
        return {**fields.pop("losses"), **fields, "policy": str(self.policy)}


class Improvement:
    """The improvement of a policy in a folder; an improvement that was stopped there goes on.

    Attributes:
        is_stopped: whether a signal has stopped a training.
    """

    def __init__(self, run: str, aim: Aim, out: Path, report: Callable[[str], None], **playing: Any):
        """
        Args:
            run: reference of the run or checkpoint to begin with.
            report: prints a line.
            playing: `evaluator`, `configuration` and `device`, see `Player`.

        Raises:
            ConfigError: the policy cannot be improved like this, or `out` holds another improvement.
            FileExistsError: `out` holds something else.
        """
        self.is_stopped = False
        self._aim, self._out, self._report = aim, out, report
        self._playing = playing
        player, (self._first, self._config) = Player(run, **playing), trained_config(run)
        self._env = player.record.env
        self._observations = observations(self._config)
        _refuse_unobserved(self._env, self._observations)
        made = self._improved(self._first, [out], out)  # refuses overrides before anything is played
        sets = made.data.downloaded({}).recorded_sets()
        recorded = {name: record for name, record in sets.items() if record.episodes.path != out}
        _refuse_known_seeds(self._config, recorded, aim.first_seed)
        identity = {"policies": {player.name: player.identity}, **asdict(aim), "overrides": [*aim.overrides]}
        claim(out, identity, "an improvement")

    def rounds(self, largest: int) -> list[Round]:
        """Do at most `largest` rounds until the aim is reached, then test the last policy. Each round is a line and a
        row of the table.

        Raises:
            ConfigError: the environment has no expert, or more rounds are done already.
            FileExistsError: another process works in the folder.
        """
        done: list[Round] = []
        for finished in self._rounds(largest):
            done.append(finished)
            content = {
                "is_reached": self._aim.is_reached(finished.losses),
                "rounds": [past.document() for past in done],
            }
            replace_file(self._out / ROUNDS, encode_document(content))
            self._report(str(finished))
        return done

    def _rounds(self, largest: int) -> Iterator[Round]:
        done = sum(read_result(run) is not None for run in self._out.glob("round_*/run"))
        if done > largest:
            raise ConfigError("--rounds", [f"is {largest}, but {self._out} has {done} rounds; give at least {done}"])
        policy, first, episodes = self._first, self._aim.first_seed, []
        with held(self._out, "round_*", f"round_*/{LOST}", "round_*/episodes"):
            for number in range(1, largest + 2):
                folder, player = self._out / f"round_{number}", Player(str(policy), **self._playing)
                losses = find_losses(player, first, folder, self._aim.error_of(number), self._is_enough)
                if self._aim.is_reached(losses) or number > largest:
                    yield Round(number, policy, losses)
                    return
                episodes.append(self._asked(losses, folder))
                trained = self._trained(policy, episodes, folder / "run")
                if trained is None:
                    return
                yield Round(number, policy, losses, *counted(episodes[-1]), self._aim.samples)
                policy, first = trained, first + losses.starts

    def _is_enough(self, losses: Losses) -> bool:
        """Whether a round may stop looking for lost starts; reports the progress."""
        if losses.starts:
            self._report(f"  {losses}")
        return self._aim.is_reached(losses) or len(losses.lost) >= self._aim.losses

    def _asked(self, losses: Losses, folder: Path) -> Path:
        """The folder of the expert's episodes, or of a person's.

        Raises:
            ConfigError: there is no episode; names the lost seeds.
        """
        episodes = folder / "episodes"
        if getattr(self._env, "expert", None) is not None and read_result(folder / "run") is None:
            lost = {seed: lost_actions(folder, seed) for seed in losses.lost}
            correct(self._env, self._observations, lost, self._aim.points, episodes)
        solved, unsolved = counted(episodes)
        if not solved:
            seeds = ", ".join(map(str, losses.lost))
            if unsolved:
                finding = f"has an expert that solves none of {unsolved} take-overs"
                remedy = f"correct it and remove {episodes}, so that it is asked again"
            else:
                finding, remedy = "has no expert", "give its record a method `expert()`"
            problem = f"{finding}, but lost are the seeds {seeds}; {remedy}, or record episodes in {episodes}"
            raise ConfigError(f"environment {self._env.type!r}", [f"{problem} (docs/improving.md)"])
        return episodes

    def _trained(self, policy: Path, episodes: Sequence[Path], directory: Path) -> Path | None:
        """The best checkpoint of a round's run, a stopped one of which goes on; None if a signal stops the training.

        Raises:
            OtherRunError, ChangedError: the data or the settings of a stopped training have changed.
        """
        if read_result(directory) is None:
            self._refuse_later_rounds(directory)
            with telling(f"delete {directory}, and the same command trains this round anew"):
                outcome = Run(self._improved(policy, episodes, directory), report=self._report).run()
            self.is_stopped = outcome.stopped_by is not None  # also after the last step, while its page is written
        return None if self.is_stopped else resolve(directory)

    def _refuse_later_rounds(self, directory: Path) -> None:
        """Raises ConfigError if a round would be trained anew before one that its first policy has played."""
        number = int(directory.parent.name.removeprefix("round_"))
        later = self._out / f"round_{number + 1}"
        if later.exists() and not directory.exists():
            finding = f"is missing, but its policy played in {later}"
            remedy = f"restore it, or delete {later} and all after it, and the same command goes on from here"
            raise ConfigError(str(directory), [f"{finding}; {remedy}"])

    def _improved(self, policy: Path, episodes: Sequence[Path], directory: Path) -> TrainConfig:
        """The configuration of a round's run."""
        aim, added = self._aim, [expert_set(self._config, folder) for folder in episodes]
        how = {"weight": aim.weight, "samples": aim.samples, "overrides": aim.overrides}
        return improved_config(self._config, policy, added, directory=directory, **how)


def _refuse_unobserved(record: Any, state_shapes: Mapping[str, tuple[int, ...] | None]) -> None:
    """Raises ConfigError if an environment does not observe the states that pictures are drawn from."""
    states = {key: shape for key, shape in state_shapes.items() if shape is not None}
    if not states:
        return
    with contextlib.closing(record.model_copy(update={"n_envs": 1}).create()) as env:
        observed = {key: tuple(shape) for key, shape in env.obs_shapes.items()}
    if missing := [f"{key!r} of shape {shape}" for key, shape in states.items() if observed.get(key) != shape]:
        finding = f"pictures are drawn from {', '.join(missing)}, which environment {record.type!r} does not observe"
        has = ", ".join(f"{key!r} {shape}" for key, shape in observed.items())
        raise ConfigError("data.images", [f"{finding}; it observes {has}"])


def _refuse_known_seeds(config: TrainConfig, sets: Mapping[str, TrajectoriesConfig], first: int) -> None:
    """Raise ConfigError if a start was played by an evaluator or a demonstrator.

    Args:
        config: of the first run.
        sets: the data of the first run as sets of the new one.

    Raises:
        MissingError: there are no such data.
    """
    ends = []
    for evaluator in (*config.evaluate, *config.test):
        rollouts = evaluator.rollouts()
        if rollouts is not None:
            ends.append((evaluator.name, rollouts.first_seed + rollouts.n_episodes))
    for name, record in sets.items():
        try:
            store = record.episodes.create()
        except MissingError as error:
            advice = f"for data that were moved give --set data.sets.{name}.episodes.path=... with their new path"
            raise MissingError(error.source, error.problems, advice) from None
        if keys := {*store.keys()} & {SEED, LOST_SEED}:
            chosen, _ = record.choice.of(store)  # of a data set on the Hub, no other episodes are on this machine
            ends += [(name, int(chosen.column(store, key, "--seeds").max()) + 1) for key in keys]
    overlaps = [f"{name} has seeds up to {end - 1}" for name, end in ends if end > first]
    if overlaps:
        raise ConfigError(
            "--seeds", [f"{first} is not after all seeds that are known: {'; '.join(overlaps)}; raise it"]
        )
