"""`dp-prior sweep`: one configuration with some settings varied, each with several seeds, one run after another.

A trial is named by its varied settings, so the same command finds its runs again and each run resumes.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from dp_prior.config import ConfigError
from dp_prior.files.file_names import folded
from dp_prior.files.regular_files import expanded
from dp_prior.run.config import TrainConfig
from dp_prior.run.exit_file import STOPPED, classify
from dp_prior.run.run import Run
from dp_prior_lab.varied import parse_varied

LONGEST_PLACE = 67
"""Most characters of a trial's description in the name of its directory: paths of Windows' programs have at most 260
characters, of which the run's files need some."""

LONGEST_BEFORE = 150
"""As in 0.3.0, whose directories are found again."""

SLURM_ARRAY = """#!/bin/bash
# {count} trials of a sweep, a task each, at most so many at once as %N behind the array allows. Submit the script with
# the environment active, and again after a fault: finished trials end at once, others resume.
#SBATCH --job-name={name}
#SBATCH --array=1-{count}
#SBATCH --ntasks=1 --cpus-per-task=8 --gpus-per-task=1
#SBATCH --time=24:00:00
#SBATCH --requeue --open-mode=append
#SBATCH --output=slurm-%x-%A_%a.log
cd {directory} || exit 74
case "$SLURM_ARRAY_TASK_ID" in
{trials}
*) echo "task '$SLURM_ARRAY_TASK_ID' is no trial; expected 1 to {count}" >&2; exit 64 ;;
esac
"""
"""A script for `sbatch`; resources are the user's to change."""


@dataclass(frozen=True)
class Trial:
    """One run of a sweep.

    Attributes:
        overrides: changes to the configuration, the run directory among them.
    """

    config_file: Path
    config: TrainConfig
    overrides: tuple[str, ...]

    def command(self, modules: Iterable[str] = (), defaults: Iterable[str] = ()) -> str:
        """The command line that trains it.

        Args:
            defaults: changes that the overrides of the trial may replace.
        """
        words = ["dp-prior", "train", *(f"--import={module}" for module in modules)]
        words += [str(self.config_file), *(f"--set={override}" for override in (*defaults, *self.overrides))]
        return shlex.join(words)


def trials(config_file: Path, varied: Iterable[str], seeds: int, overrides: Iterable[str] = ()) -> list[Trial]:
    """The grid of all values, each with every seed, which count up from the configuration's own.

    Args:
        varied: `key=value,value`, such as train.lr.peak=1e-4,1e-3; values are JSON, commas in brackets belong to them.
        overrides: further changes to all trials.

    Raises:
        ConfigError: a value is wrong, a key is named twice, or two trials would have the same directory or equal
            settings, or copy checkpoints to the same place.
    """
    base, overrides = TrainConfig.from_json_path(config_file, overrides), tuple(overrides)
    values = _values(varied)
    short = {key: key.rpartition(".")[2] for key in values}
    names = {key: name if list(short.values()).count(name) == 1 else key for key, name in short.items()}
    planned: list[Trial] = []
    for chosen in itertools.product(*values.values()):
        for seed in range(base.seed, base.seed + seeds):
            words = [f"{names[key]}={value}" for key, value in zip(values, chosen, strict=True)]
            place = _place(base.tracker.data_path, "_".join([*words, f"seed={seed}"]))
            trial_overrides = ["tracker.run_id=null"] if base.tracker.run_id else []  # each trial is a run of its own
            trial_overrides += [f"{key}={value}" for key, value in zip(values, chosen, strict=True)]
            trial_overrides += [f"seed={seed}", f"tracker.data_path={json.dumps(place)}"]
            changes = (*overrides, *trial_overrides)
            planned.append(Trial(config_file, TrainConfig.from_json_path(config_file, changes), changes))
    _check_apart(planned, base)
    return planned


def _values(varied: Iterable[str]) -> dict[str, list[str]]:
    """The values by their keys.

    Raises:
        ConfigError: a key is named twice, or is the sweep's to set.
    """
    pairs = [parse_varied(text) for text in varied]
    values = dict(pairs)
    counts = Counter(key for key, _ in pairs)
    problems = [f"names {key} twice; give all its values at once" for key in values if counts[key] > 1]
    reserved = [key for key in values if key in ("seed", "tracker.data_path")]
    problems += [f"names {key}; use --seeds, and directories are named by the sweep" for key in reserved]
    if problems:
        raise ConfigError("--vary", problems)
    return values


def _check_apart(planned: list[Trial], base: TrainConfig) -> None:
    """Raises ConfigError if two trials have one directory, equal settings, or one place for their copies."""
    places = [trial.config.tracker.directory for trial in planned]
    if double := _shared([[place] for place in places]):
        remedy = "name each value once, and none that differ in case or signs alone, such as a/b and a_b"
        raise ConfigError("--vary", [f"two trials would lie in {double}; {remedy}"])
    if twins := _equal_trials(planned, base):
        first, second = (trial.config.tracker.directory for trial in twins)
        remedy = "write each value once, and vary no setting together with one inside of it"
        raise ConfigError("--vary", [f"{first} and {second} would train with equal settings; {remedy}"])
    if double := _shared([_copies(trial.config) for trial in planned]):
        remedy = "name a place relative to the run directory, such as copies/best"
        raise ConfigError("tracker.save", [f"two trials would replace each other's copies in {double}; {remedy}"])


def slurm_array(planned: list[Trial], modules: Iterable[str], directory: Path) -> str:
    """A script for `sbatch` whose tasks train a trial each, one a line.

    A task saves before its time limit, puts itself back into the queue, and resumes.

    Args:
        directory: the working directory that paths of the configuration are relative to.
    """
    name = re.sub(r"[^A-Za-z0-9_.-]+", "_", planned[0].config_file.stem)
    commands = [trial.command(modules, defaults=["train.requeue=true"]) for trial in planned]
    lines = [
        f'{number}) exec srun --cpus-per-task="$SLURM_CPUS_PER_TASK" {command} ;;'
        for number, command in enumerate(commands, 1)
    ]
    return SLURM_ARRAY.format(
        name=name, count=len(planned), directory=shlex.quote(str(directory)), trials="\n".join(lines)
    )


def run_trials(planned: list[Trial], report: Callable[[str], None], is_main: bool = True) -> int:
    """Run the trials in order; a finished trial returns at once. An error in a trial does not end the others.

    Args:
        is_main: whether this is the rank that prints; the others print their own errors alone.

    Returns:
        Exit code: 0, that of the first error, or `STOPPED`; a stop ends the sweep.
    """
    code = 0
    tell = report if is_main else lambda line: None
    for number, trial in enumerate(planned, 1):
        tell(f"trial {number} of {len(planned)}: {trial.config.tracker.directory}")
        try:
            outcome = Run(trial.config, report=report).run()
        except Exception as error:  # of one trial, told and kept in the exit code
            code = code or classify(error)[1]
            if not getattr(error, "is_relayed", False):  # the main rank says it, see `Ranks.decide`
                report(f"error: {type(error).__name__}: {error}")
            continue
        tell(f"{outcome.status}: {outcome.progress.samples_seen:,} samples")
        if outcome.status == "stopped" or (outcome.stopped_by is not None and number < len(planned)):
            return STOPPED
    return code


def _copies(config: TrainConfig) -> list[Path]:
    """Templates of the places where a run copies checkpoints on this machine."""
    places = itertools.chain.from_iterable(saver.copies_to for saver in config.tracker.save)
    return [config.tracker.directory / place for place in places]


def _equal_trials(planned: Iterable[Trial], base: TrainConfig) -> tuple[Trial, Trial] | None:
    """The first two trials that differ in nothing but their directories; None if all differ."""
    trial_of: dict[str, Trial] = {}
    for trial in planned:
        tracker = trial.config.tracker.model_copy(update={"data_path": base.tracker.data_path})
        settings = trial.config.model_copy(update={"tracker": tracker}).model_dump_json()
        earlier = trial_of.setdefault(settings, trial)
        if earlier is not trial:
            return earlier, trial
    return None


def _shared(places: list[list[Path]]) -> Path | None:
    """A place of two trials, also where a disk ignores case; None if each is of one trial, or lies on a disk that
    keeps the present folders apart."""
    counts: Counter[str] = Counter()
    exact: dict[str, set[Path]] = {}
    for place in itertools.chain.from_iterable(map(set, places)):
        counts[folded(str(place))] += 1
        exact.setdefault(folded(str(place)), set()).add(place)
    shared = (name for name, count in counts.items() if count > 1 and not _are_apart(exact[name], count))
    return next((min(exact[name]) for name in shared), None)


def _are_apart(places: set[Path], count: int) -> bool:
    """Whether each of `count` trials has one of the places, all of which were made: the disk keeps them apart."""
    are_made = all(place.is_dir() and place.name in os.listdir(place.parent) for place in places)
    return len(places) == count and are_made


def _place(directory: str, description: str) -> str:
    """Name the directory of a trial by its description; a long description is cut and ends with a hash of the whole."""
    place = re.sub(r"[^A-Za-z0-9.=+-]+", "_", description)
    digest = sha256(description.encode()).hexdigest()[:12]
    if len(place) <= LONGEST_PLACE:
        return f"{directory}_{place}"
    before = place if len(place) <= LONGEST_BEFORE else f"{place[:LONGEST_BEFORE]}_{digest}"
    if expanded(f"{directory}_{before}").is_dir():
        return f"{directory}_{before}"
    return f"{directory}_{place[:LONGEST_PLACE]}_{digest}"
