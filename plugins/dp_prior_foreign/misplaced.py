"""Explains a path that leads to nothing, or to something else than a command expects: the nearest name, or the command
that fits."""

from __future__ import annotations

import difflib
import os
import shlex
from collections.abc import Iterable
from pathlib import Path

from dp_prior.files.regular_files import expanded, read_object
from dp_prior.run.configurations import configurations

MOST_NAMES = 3
"""Most names in a sentence."""

_OF_RUNS = ("checkpoints", "exit.json", "metrics.jsonl")
_OF_MODELS = ("exit.json", "metrics.jsonl", "model.safetensors")
_SECTIONS = {"task", "data", "train", "tracker", "extends"}


def misplaced(path: Path, expected: str) -> str | None:
    """A sentence about a path at which there is no `configuration`, `checkpoint` or `data`; None without an advice.

    Args:
        expected: what the command reads there.
    """
    if not os.path.lexists(path):
        return _nearest(path, expected)
    if path.is_dir():
        return _about_folder(path, expected)
    return _about_file(path, expected) if path.is_file() else None


def _about_folder(path: Path, expected: str) -> str | None:
    """Say what the folder is, and which path or command fits."""
    if expected == "data":
        if any((path / name).is_file() for name in _OF_MODELS) and (path / "config.json").is_file():
            data = f"dp-prior inspect {shlex.quote(str(path / 'config.json'))}"
            return f"It is the folder of a run or a checkpoint, whose data `{data}` shows"
        runs = [run for run in _runs_in(path) if (run / "config.json").is_file()]
        return f"It is a folder of runs, {_listed(runs)}: `dp-prior report` and `watch` show these" if runs else None
    if expected == "configuration":
        if (path / "config.json").is_file():
            kind = "a checkpoint" if (path / "manifest.json").is_file() else "a run"
            return f"It is the folder of {kind}, whose configuration is {path / 'config.json'}"
        files = [file for file in sorted(path.glob("*.json")) if _is_configuration(file)]
        if files:
            return f"It holds {_listed(files)}: name one"
        return _inspect(path)
    if is_run(path):
        if any(path.glob("checkpoints/step_*")):
            listing = f"dp-prior checkpoints verify {shlex.quote(str(path))}"
            return f"No checkpoint of this run can be read: `{listing}` names the files to restore from a copy"
        return "It is a run that has saved nothing yet, or whose checkpoints are gone; the same `train` goes on"
    runs = _runs_in(path)
    if runs:
        return f"It is a folder of runs, {_listed(runs)}: name one"
    return f"If it holds recorded data, `dp-prior inspect {shlex.quote(str(path))}` shows them"


def _about_file(path: Path, expected: str) -> str | None:
    """Say what the file is, and which path or command fits."""
    if expected == "data":
        return None
    folder = path.parent
    if (folder / "manifest.json").is_file() or (expected == "checkpoint" and is_run(folder)):
        what = "checkpoint" if (folder / "manifest.json").is_file() else "run"
        if expected == "checkpoint":
            return f"It is a file of the {what} {folder}: name that folder"
        return f"It is a file of the {what} {folder}, whose configuration is {folder / 'config.json'}"
    if expected != "configuration" and _is_configuration(path):
        quoted = shlex.quote(str(path))
        run = expanded(str(read_object(path).get("tracker", {}).get("data_path", "")))
        if is_run(run):
            return f"It is a configuration, whose run is {run}: name that"
        return f"It is a configuration: `dp-prior train {quoted}` makes its checkpoints"
    if path.suffix == ".json":
        return "Save it as JSON in UTF-8" if expected == "configuration" else None
    if expected == "checkpoint":
        if path.suffix in (".safetensors", ".pt", ".pth", ".ckpt", ".bin"):
            return f"Weights of another program become a run by `dp-prior import {shlex.quote(str(folder))} --out RUN`"
        return f"If it holds recorded data, `dp-prior inspect {shlex.quote(str(path))}` shows them"
    return _inspect(path)


def _nearest(path: Path, expected: str) -> str | None:
    """The existing name closest to a misspelt path."""
    if expected == "configuration":
        names = configurations()
        close = _close(path.stem, names) if len(path.parts) == 1 or path.stem in names else []
        files = [str(path.parent / name) for name in _close(path.name, _names_in(path.parent, is_folder=False))]
        if files or close:
            listed = " or ".join([*files, *close][:MOST_NAMES])
            return f"Did you mean {listed}? `dp-prior configs` lists the names that come with the package"
        return "`dp-prior configs` lists the names that come with the package"
    if expected == "data":
        names = [*_names_in(path.parent, is_folder=False), *_names_in(path.parent, is_folder=True)]
        listed = " or ".join(str(path.parent / name) for name in _close(path.name, names))
        return f"Did you mean {listed}?" if listed else None
    found = _corrected(path)
    if found is not None:
        return f"Did you mean {found}?"
    if len(path.parts) == 2 and not path.parent.exists():
        return f"A checkpoint on the Hub is read as hf://{path}"
    runs = _runs_in(path.parent)
    return f"In {path.parent} there are the runs: {_listed(runs)}." if runs else None


def _corrected(path: Path) -> Path | None:
    """Correct the misspelt parts of a path to an existing folder; None without such a folder."""
    here = Path(path.anchor)
    for part in path.relative_to(here).parts:
        step = here / part
        if not step.exists():
            close = _close(part, _names_in(here, is_folder=True))
            if not close:
                return None
            step = here / close[0]
        here = step
    return here if here != path and here.is_dir() else None


def _names_in(folder: Path, *, is_folder: bool) -> list[str]:
    """The names of files or folders in a folder; none if it cannot be listed."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir() == is_folder)
    except OSError:
        return []


def _close(name: str, names: Iterable[str]) -> list[str]:
    """The names that a misspelt name may stand for, the nearest first."""
    return difflib.get_close_matches(name, list(names), n=2, cutoff=0.6)


def is_run(path: Path) -> bool:
    """Whether a folder is that of a run."""
    return any((path / name).exists() for name in _OF_RUNS)


def _runs_in(folder: Path) -> list[Path]:
    """The runs directly in a folder, the newest first."""
    runs = [folder / name for name in _names_in(folder, is_folder=True) if is_run(folder / name)]
    return sorted(runs, key=lambda run: -run.stat().st_mtime)


def _is_configuration(path: Path) -> bool:
    """Whether a file is JSON with sections of a configuration."""
    return len(_SECTIONS & read_object(path).keys()) > 1


def _listed(paths: list[Path]) -> str:
    """Some names, and how many more there are."""
    more = f" and {len(paths) - MOST_NAMES} more" if len(paths) > MOST_NAMES else ""
    return ", ".join(path.name for path in paths[:MOST_NAMES]) + more


def _inspect(path: Path) -> str:
    """The command that makes a configuration of recorded data."""
    target = shlex.quote(f"{path.resolve().stem or 'data'}.json")
    command = f"dp-prior inspect {shlex.quote(str(path))} --write-config {target}"
    return f"If it holds recorded data, `{command}` writes a configuration that trains on them"
