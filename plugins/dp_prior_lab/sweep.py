"""`dp-prior sweep`: one configuration with some settings varied, each with several seeds, one run after another.

A trial is named by its varied settings, so the same command finds its runs again and each run resumes.
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from dp_prior.config import ConfigError
from dp_prior.run.config import TrainConfig
from dp_prior.run.exit_file import STOPPED, classify
from dp_prior.run.run import Run
from dp_prior_lab.varied import parse_varied

LONGEST_PLACE = 150
"""Most characters of a trial's description in the name of its directory; file systems allow 255 bytes for a name."""

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
        ConfigError: a value is wrong, a key is named twice, or two trials would have the same directory, or copy
            checkpoints to the same place.
    """
    base, overrides = TrainConfig.from_json_path(config_file, overrides), tuple(overrides)
    values = dict(parse_varied(text) for text in varied)
    counts = Counter(text.partition("=")[0] for text in varied)
    repeated = [key for key in values if counts[key] > 1]
    reserved = [key for key in values if key in ("seed", "tracker.data_path")]
    problems = [f"names {key} twice; give all its values at once" for key in repeated]
    problems += [f"names {key}; use --seeds, and directories are named by the sweep" for key in reserved]
    if problems:
        raise ConfigError("--vary", problems)
    short = {key: key.rpartition(".")[2] for key in values}
    names = {key: name if list(short.values()).count(name) == 1 else key for key, name in short.items()}
    planned: list[Trial] = []
    for chosen in itertools.product(*values.values()):
        for seed in range(base.seed, base.seed + seeds):
            words = [f"{names[key]}={value}" for key, value in zip(values, chosen, strict=True)]
            place = _place("_".join([*words, f"seed={seed}"]))
            trial_overrides = ["tracker.run_id=null"] if base.tracker.run_id else []  # each trial is a run of its own
            trial_overrides += [f"{key}={value}" for key, value in zip(values, chosen, strict=True)]
            trial_overrides += [f"seed={seed}", f"tracker.data_path={json.dumps(f'{base.tracker.data_path}_{place}')}"]
            changes = (*overrides, *trial_overrides)
            planned.append(Trial(config_file, TrainConfig.from_json_path(config_file, changes), changes))
    places = [trial.config.tracker.directory for trial in planned]
    if double := _shared([[place] for place in places]):
        remedy = "name each value once, and none that differ in signs alone, such as a/b and a_b"
        raise ConfigError("--vary", [f"two trials would lie in {double}; {remedy}"])
    if double := _shared([_copies(trial.config) for trial in planned]):
        remedy = "name a place relative to the run directory, such as copies/best"
        raise ConfigError("tracker.save", [f"two trials would replace each other's copies in {double}; {remedy}"])
    return planned


def slurm_array(planned: list[Trial], modules: Iterable[str], directory: Path) -> str:
    """A script for `sbatch` whose tasks train a trial each, one a line.

    A task saves before its time limit, puts itself back into the queue, and resumes.

    Args:
        directory: the working directory that paths of the configuration are relative to.
    """
    name = re.sub(r"[^A-Za-z0-9_.-]+", "_", planned[0].config_file.stem)
    commands = [trial.command(modules, defaults=["train.requeue=true"]) for trial in planned]
    lines = [f"{number}) exec srun {command} ;;" for number, command in enumerate(commands, 1)]
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


def _shared(places: list[list[Path]]) -> Path | None:
    """A place of two trials; None if each is of one."""
    counts = Counter(itertools.chain.from_iterable(map(set, places)))
    return next((place for place, count in counts.items() if count > 1), None)


def _place(description: str) -> str:
    """The description of a trial as part of a file name; a long description is cut and ends with a hash of the
    whole."""
    place = re.sub(r"[^A-Za-z0-9.=+-]+", "_", description)
    if len(place) <= LONGEST_PLACE:
        return place
    return f"{place[:LONGEST_PLACE]}_{sha256(description.encode()).hexdigest()[:12]}"
