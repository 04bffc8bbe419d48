"""Folders of demonstrations in layouts that no format reads, and the remedy."""

from __future__ import annotations

import itertools
import json
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from dp_prior.data.errors import DataError, first_few
from dp_prior.data.files import decoding, npy_header, reading
from dp_prior.data.formats.episode_files import files_of_episodes, first_layout, holds_a_step
from dp_prior.data.formats.grouped import Layout
from dp_prior.data.formats.zarr.groups import read_metadata
from dp_prior.data.found_files import by_number
from dp_prior.data.hdf5 import ENDINGS
from dp_prior.data.pictures.decode import PICTURE_ENDINGS
from dp_prior.files.regular_files import open_regular
from dp_prior_foreign.episode_groups import groups_of_episodes

_ACTION = re.compile(r"(^|[._-])actions?([._-]|\d|$)", re.I)

_ACTIONS_IN = {
    ".json": re.compile(rb'"actions?"\s*:\s*[\[{]'),
    ".pkl": re.compile(rb"actions?\W"),
    ".pickle": re.compile(rb"actions?\W"),
}
"""Recorded actions in the bytes of a file, by its ending."""

HEAD = 1 << 20
"""Bytes of a file in which actions are looked for."""

DEEPEST = 6
"""Levels of folders that are looked into: Bridge has task/place/date/raw/group/episode."""

FEW = 3
MOST_ENTRIES = 1000
"""Most entries of a folder that are looked at, of which the first `FEW` folders."""

_NUMBERED = re.compile(r"((?:[^/]*[^/\d]/)+[^/\d]*)(\d+)(?=/|$)")
"""A numbered name below at least one parent, `left/demo_12`."""

_REMEDY = "each episode as one .npz, or all with episode_ends as one (docs/own_data.md#other-files)"


def refuse_unread_layout(path: Path) -> None:
    """Refuse demonstrations whose layout no format reads.

    Raises:
        DataError: each array, step or frame has a file, or each step a group; with the remedy, a file per episode.
    """
    finding = steps_in_groups(path)
    if not finding and path.is_dir():
        finding = _arrays_apart(path) or _steps_apart(path) or _pictures_of_steps(path)
    if finding:
        raise DataError(str(path.absolute()), [f"{finding}; no format reads them so. To train on them, save {_REMEDY}"])


def refuse_unread_zarr(path: Path) -> None:
    """Refuse a zarr that is no replay buffer by the usual names.

    Raises:
        DataError: its arrays have other names, with the configuration that reads them, or no ends of episodes.
    """
    names = [*read_metadata(path)]
    if not names or "meta/episode_ends" in names or any(name.startswith("data/") for name in names):
        return
    ends = next((name for name in names if name.rpartition("/")[2] == "episode_ends"), None)
    if ends is None:
        finding = (
            f"holds {first_few(names)}, and no ends of episodes; no format reads a zarr, or a group of it, for each"
        )
        raise DataError(str(path.absolute()), [f"{finding} episode. To train on them, save {_REMEDY}"])
    groups = [name.rpartition("/")[0] for name in names if name != ends]
    layout = {
        "type": "zarr",
        "path": str(path),
        "data": max(groups, key=groups.count, default=""),
        "episode_ends": ends,
    }
    example = json.dumps({"episodes": layout})
    raise DataError(str(path.absolute()), [f"is read if a configuration says how, probably {example}"])


def refuse_unread_npz(path: Path) -> None:
    """Refuse a file without ends of episodes whose arrays are objects, or have an axis of episodes and one of steps.

    Raises:
        DataError: with the remedy.
    """
    layout = first_layout([path])
    objects = [key for key, (_, dtype) in layout.items() if dtype.kind == "O"]
    divided = {key: shape for key, (shape, _) in layout.items() if len(shape) > 2}
    action = next((key for key in divided if _ACTION.search(key)), None)
    if "episode_ends" in layout or not (objects or action):
        return
    if action is None:
        finding = f"holds Python objects, never decoded, in {first_few(objects)}; save {_REMEDY}"
        raise DataError(str(path.absolute()), [finding])
    episodes, steps = divided[action][:2]
    lines = f"np.concatenate(array) of each, and episode_ends, np.arange(1, {episodes + 1}) * {steps}"
    finding = f"holds {action} {divided[action]}, probably {episodes} episodes of {steps} steps; save {lines}"
    raise DataError(
        str(path.absolute()), [f"{finding}, without padded steps (docs/own_data.md#save-the-demonstrations)"]
    )


def steps_in_groups(path: Path) -> str:
    """Describe an HDF5 file, or the first of a folder, whose numbered groups, or the groups of its first episode, hold
    one step each; an empty string for other places."""
    files = files_of_episodes(path, "*") if path.is_dir() else [path]
    layout = first_layout(files[:1]) if files and files[0].suffix in ENDINGS else {}
    inside = _steps_among(layout)
    for name, arrays in itertools.islice(groups_of_episodes(layout).items(), 1):
        below = _steps_among(arrays)
        inside = inside or (below and f"{name}/{below}")
    return inside and f"holds a group for each step, of {files[0].name} the first {inside}"


def _steps_among(layout: Layout) -> str:
    """Describe the first of numbered groups that hold one step each; an empty string for other layouts."""
    groups = sorted({key.partition("/")[0] for key in layout}, key=by_number)
    if len(groups) < 2 or len({group.rstrip("0123456789") for group in groups}) > 1 or {*groups} & {*layout}:
        return ""
    step = {key.partition("/")[2]: header for key, header in layout.items() if key.startswith(f"{groups[0]}/")}
    actions = [shape for key, (shape, _) in step.items() if _ACTION.search(key.rpartition("/")[2])]
    lengths = {shape[:1] for shape, _ in step.values()}
    has_rows = any(len(shape) > 1 and shape[:1] in actions for shape, _ in step.values())
    if not actions or any(len(shape) > 1 for shape in actions) or has_rows:
        return ""
    if len(lengths) == 1 and all(length and len(groups) <= length[0] for length in lengths):
        return ""  # episodes with one number for each step
    return f"{groups[0]} with {first_few([f'{key} {shape}' for key, (shape, _) in step.items()], 8)}"


def parts_of_one_episode(layout: Iterable[str]) -> str:
    """Describe how to join numbered groups or arrays of the same numbers under several parents, such as left/demo_0 and
    right/demo_0; an empty string for other layouts."""
    numbers, first = defaultdict[str, set[int]](set), {}
    for key in layout:
        numbered = _NUMBERED.match(key)
        if numbered:
            numbers[numbered[1]].add(int(numbered[2]))
            first.setdefault(numbered[1], numbered[0])
    episodes = [*numbers.values()]
    if len(episodes) < 2 or len(episodes[0]) < 2 or any(group != episodes[0] for group in episodes):
        return ""
    moves = [f"file.move({name!r}, 'traj_{_number_at_end(name)}/{name.partition('/')[0]}')" for name in first.values()]
    parts = first_few([*first.values()], 4)
    return f"If {parts} are parts of one episode, join them on a copy, for every number: {'; '.join(moves[:4])} (h5py)"


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


def _pictures_of_steps(path: Path) -> str:
    """Describe a folder of episodes that have pictures in a folder beside recorded actions, as xr_teleoperate
    (data.json) and Bridge (policy_out.pkl) record; an empty string for other folders."""
    for folder in first_folders(path):
        record = next((file for file in sorted(folder.glob("*.*")) if _records_actions(file)), None)
        picture = None
        if record is not None:
            pictures = itertools.islice(folder.glob("*/*"), MOST_ENTRIES)
            picture = next((file for file in pictures if file.suffix in PICTURE_ENDINGS), None)
        if record is not None and picture is not None:
            places = f"{picture.relative_to(path)} beside {record.relative_to(path)}, which holds actions"
            return f"holds a picture for each step of demonstrations, {places}"
    return ""


def first_folders(path: Path) -> list[Path]:
    """A folder, and the first few of every level below; episodes of one recorder have one layout."""
    folders, level = [path], [path]
    for _ in range(DEEPEST):
        inside: list[Path] = []
        for folder in level:
            with reading(folder):
                entries = sorted(itertools.islice(folder.iterdir(), MOST_ENTRIES))
            inside += [entry for entry in entries if entry.is_dir() and not entry.is_symlink()][:FEW]
        level = inside[: FEW**2]
        folders += level
    return folders


def _records_actions(file: Path) -> bool:
    """Whether a JSON file or a pickle, which is not loaded, has actions in its first bytes."""
    pattern = _ACTIONS_IN.get(file.suffix.lower())
    if pattern is None or not file.is_file():
        return False
    with reading(file), open_regular(file) as stream:
        return pattern.search(stream.read(HEAD)) is not None


def _shape(file: Path) -> tuple[int, ...]:
    with reading(file), decoding(file, "is not a readable .npy file"), open_regular(file) as stream:
        return npy_header(stream)[0]


def _number_at_end(name: str) -> str:
    """Return the digits that end a name."""
    return name[len(name.rstrip("0123456789")) :]
