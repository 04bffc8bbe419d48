"""Folders of demonstrations in layouts that no format reads, and the remedy."""

from __future__ import annotations

import re
from pathlib import Path

from dp_prior.data.errors import DataError, first_few
from dp_prior.data.files import decoding, npy_header, reading
from dp_prior.data.formats.episode_files import files_of_episodes, first_layout, holds_a_step
from dp_prior.data.found_files import by_number
from dp_prior.files.regular_files import open_regular

_ACTION = re.compile(r"(^|[._-])actions?([._-]|\d|$)", re.I)

_REMEDY = "each episode as one .npz, or all with episode_ends as one (docs/own_data.md#other-files)"


def refuse_unread_layout(path: Path) -> None:
    """Refuse a folder of demonstrations whose layout no format reads.

    Raises:
        DataError: each array or each step has a file; with the remedy, a file per episode.
    """
    if not path.is_dir():
        return
    finding = _arrays_apart(path) or _steps_apart(path)
    if finding:
        raise DataError(str(path.absolute()), [f"{finding}; no format reads them so. To train on them, save {_REMEDY}"])


def _arrays_apart(path: Path) -> str:
    """Describe a folder, or its subfolders, with a `.npy` file per array; an empty string for other folders."""
    files = sorted([*path.glob("*.npy"), *path.glob("*/*.npy")], key=lambda file: by_number(str(file)))
    first = next((file for file in files if _ACTION.search(file.stem)), None)
    if first is None:
        return ""
    arrays = [f"{file.name} {_shape(file)}" for file in files if file.parent == first.parent]
    where = "" if first.parent == path else f" in a folder of its own, the first in {first.parent.name}"
    return f"holds a .npy file for each array of an episode{where}: {first_few(arrays, 8)}"


def _steps_apart(path: Path) -> str:
    """Describe a folder, or its subfolders, with a file per step; an empty string for other folders."""
    files = files_of_episodes(path, "*") or files_of_episodes(path, "*/*")
    layout = first_layout(files[:1])
    if not holds_a_step(layout):
        return ""
    inside = first_few([f"{key} {shape}" for key, (shape, _) in layout.items()], 8)
    return f"holds a file for each step, the first {files[0].relative_to(path)} with {inside}"


def _shape(file: Path) -> tuple[int, ...]:
    with reading(file), decoding(file, "is not a readable .npy file"), open_regular(file) as stream:
        return npy_header(stream)[0]
