"""Files beside recorded episodes that the data set does not read: videos, outcomes, instructions, and the meaning of
numbers."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from dp_prior.data.errors import first_few
from dp_prior.data.files import reading
from dp_prior.data.formats.choice import ranges
from dp_prior.data.formats.episode_store import EpisodeStore
from dp_prior.data.found_files import by_number
from dp_prior.data.frames.folder import VIDEOS
from dp_prior.data.hdf5 import ENDINGS, member, opened_hdf5
from dp_prior.files.json_text import readable_json
from dp_prior.files.regular_files import read_object
from dp_prior_worlds.libero_files import LiberoStore

MOST_FILES = 2000
"""Most files that are listed in a folder."""

OPERATORS = ("ph", "mh", "mg", "paired")
"""Folders of robomimic's downloads below a task: of proficient operators, of many, of a machine, and in pairs."""

TEXTS = ("instructions", "task_info", "language", "annotations")
"""Folders in which recorders write instructions."""


def files_beside(store: EpisodeStore, n_episodes: int) -> Iterator[str]:
    """Name each kind of file beside the data set, with the setting that reads such files."""
    path = store.path
    yield from videos_beside(path, n_episodes)
    yield from videos_of_episodes(store, n_episodes)
    yield from _modalities(path)
    yield from _outcomes(path)
    yield from _texts(path)
    yield from _torn_tables(path)
    yield from _other_operators(path)
    if rows_begin_at_the_bottom(store):
        finding = "frames are upside down: data.attrs macros_image_convention is opengl"
        remedy = '"turn": "up_down" of a camera in data.images turns recorded frames and those of the robot alike'
        yield f"{finding}; {remedy}, so acting gives frames as this recorder did, rows from below"


def videos_beside(path: Path, n_episodes: int) -> Iterator[str]:
    """A line for each camera in `videos/<episode>/<camera>.mp4` or `videos/<camera>/<episode>.mp4` beside the data."""
    files = sorted(path.parent.glob("videos/*/*.mp4"), key=lambda file: by_number(file.name))
    counts = Counter(file.parent for file in files)
    cameras = sorted(folder for folder, count in counts.items() if count == n_episodes != len(counts))
    entries = {f"{folder.name}/*.mp4": {"folder": str(folder)} for folder in cameras}
    for file in files:
        if file.parent not in cameras:
            entries[f"*/{file.name}"] = {"folder": str(path.parent / "videos"), "file": file.name}
    for name, places in entries.items():
        line = readable_json({**places, "size": [96, 128]})
        yield f"videos/{name} lie beside the data set; to read such a camera, {_written(line)}"


def _written(camera: str) -> str:
    """What to do with the line of a camera; a configuration without its encoder takes the large default."""
    command = "dp-prior inspect CONFIG --write-config NEW"
    return f"let `{command}` propose its encoder after you write it into data.images: {camera}"


def videos_of_episodes(store: EpisodeStore, n_episodes: int) -> Iterator[str]:
    """A line for each video that lies in the folder of every episode, at any depth, beside the episode's file."""
    if not store.path.is_dir():
        return
    folders = sorted(
        {file.parent for file in store.files(list(store.keys()))}, key=lambda folder: by_number(str(folder))
    )
    if len(folders) != n_episodes or n_episodes < 2 or store.path in folders:
        return
    is_one_level = {folder.parent for folder in folders} == {store.path}
    for file in _listed(folders[0], "**/*"):
        if file.suffix.lower() not in VIDEOS:
            continue
        name = file.relative_to(folders[0])
        count = sum((folder / name).is_file() for folder in folders)
        line = readable_json({"folder": str(store.path), "file": str(name), "size": [96, 128]})
        remedy = f"to read such a camera, {_written(line)}"
        if not is_one_level:
            remedy = f"to read such a camera, inspect the folder of one day, such as {folders[0].parent}"
        elif count < n_episodes:
            remedy = "a camera needs one in each"
        yield f"{name} lies in the folders of {count} of {n_episodes} episodes; {remedy}"


def _modalities(path: Path) -> Iterator[str]:
    """Name the entries of `meta/modality.json` of GR00T, and the type of episodes that reads them."""
    content = read_object(path / "meta/modality.json")
    if not content:
        return
    slices, rotations, relative = [], [], []
    for group, key in (("state", "observation.state"), ("action", "action")):
        entries = content.get(group)
        for name, entry in entries.items() if isinstance(entries, dict) else ():
            if not isinstance(entry, dict):
                continue
            numbers = f"[{entry.get('start')}:{entry.get('end')}]"
            slices.append(f"{group}.{name} {numbers}")
            if entry.get("rotation_type"):
                rotations.append(f"{entry.get('original_key', key)} {numbers}")
            if entry.get("absolute") is False:
                relative.append(f"{group}.{name}")
    remedy = 'keys of data.obs and data.action with "type": "annotated_lerobot" in data.episodes'
    line = f"meta/modality.json names {first_few(slices, 8)}; these are {remedy}"
    if rotations:
        line += f"; write its rotations as rotations of data.obs and data.action: {first_few(rotations)}"
    yield line + (f"; {first_few(relative)} {'are' if len(relative) > 1 else 'is'} relative" if relative else "")


def _outcomes(path: Path) -> Iterator[str]:
    """Which episodes failed by a file like ManiSkill's `trajectory.json` beside `trajectory.h5`."""
    file = path.with_suffix(".json")
    entries = read_object(file).get("episodes") if path.is_file() else None
    if not isinstance(entries, list):
        return
    failed = [
        number for number, entry in enumerate(entries) if isinstance(entry, dict) and entry.get("success") is False
    ]
    line = f"{file.name} beside the data is not read; it has a line for each of {len(entries)} episodes"
    if failed:
        remedy = f'"choice": {json.dumps({"leave_out": ranges(failed)})} in data leaves these out'
        line = f"{line}, of which {len(failed)} failed; {remedy}"
    yield line


def _texts(path: Path) -> Iterator[str]:
    """Name folders of instructions in the data set, in its folder, and one level up."""
    places = [path if path.is_dir() else path.parent, path.parent, path.parent.parent]
    for name in TEXTS:
        files = [*itertools.chain.from_iterable(_listed(place / name, "*.json") for place in dict.fromkeys(places))]
        if files:
            text = f"{name}/ holds {len(files)} .json files, the first {files[0].name}, which are not read"
            yield f"{text}; if they are instructions, write these as texts of data.language, one for each episode"


def _torn_tables(path: Path) -> Iterator[str]:
    """Name the tables that end within a line, beside tables that do not: the program that wrote these was killed."""
    files = _listed(path, "*.csv")
    torn = [file for file in files if not _ends_a_line(file)]
    if torn and len(torn) < len(files):
        names = first_few([file.name for file in torn])
        count = f"{len(torn)} of {len(files)} tables end without a line break, as no others do: {names}"
        yield f"{count}; their last number may be cut off, and rows may lack: look at their ends"


def _other_operators(path: Path) -> Iterator[str]:
    """Name the files of other operators' demonstrations of the same task, in folders like those of robomimic."""
    folder = path.parent
    if folder.name not in OPERATORS or path.suffix not in ENDINGS:
        return
    others = [name for name in OPERATORS if name != folder.name and (folder.parent / name / path.name).is_file()]
    if others:
        files = first_few([f"{name}/{path.name}" for name in others])
        sets = ", ".join(f'"{name}": {{...}}' for name in (folder.name, *others))
        yield (
            f"demonstrations of the same task by other operators lie beside: {files}; to learn from all, write data as "
            f'{{"type": "mixture", "sets": {{{sets}}}}}, each set as proposed for its file'
        )


def _ends_a_line(file: Path) -> bool:
    """Whether the last character of a file, in UTF-8 or UTF-16, is a line break."""
    with reading(file), file.open("rb") as stream:
        stream.seek(max(0, file.stat().st_size - 2))
        return stream.read().rstrip(b"\0")[-1:] in (b"", b"\r", b"\n")


def rows_begin_at_the_bottom(store: EpisodeStore) -> bool:
    """Whether a file of robomimic's layout says that its frames are upside down, as robosuite may draw them, and its
    format does not turn the frames."""
    path = store.path
    if isinstance(store, LiberoStore) or path.suffix not in ENDINGS or not path.is_file():
        return False
    with opened_hdf5(path, "attributes") as file:
        group = member(file, "data")
        return group is not None and group.attrs.get("macros_image_convention") == "opengl"


def _listed(folder: Path, pattern: str) -> list[Path]:
    """The first files of a folder in natural order; empty without such a folder."""
    if not folder.is_dir():
        return []
    files = itertools.islice((file for file in folder.glob(pattern) if file.is_file()), MOST_FILES)
    return sorted(files, key=lambda file: by_number(str(file)))
