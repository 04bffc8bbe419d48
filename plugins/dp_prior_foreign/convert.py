"""Converts a data set from any format that is read to any that is written.

Numbers keep every bit and their type, frames every pixel unless the format has videos. Numbers are held in memory, as
in training; of frames, one block or one episode at a time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from dp_prior.config import ConfigError
from dp_prior.data.errors import DataError
from dp_prior.data.formats.choice import ALL_EPISODES, ChoiceConfig, beyond
from dp_prior.files.durable import refuse_existing
from dp_prior.files.regular_files import expanded
from dp_prior_foreign.recognition import kind_of, record_of
from dp_prior_foreign.recording import Recording


def convert(
    source: Path,
    path: Path,
    target: str,
    *,
    kind: str | None = None,
    settings: Iterable[str] = (),
    renames: Mapping[str, str] | None = None,
    left_out: Collection[str] = (),
    fps: float | None = None,
    choice: ChoiceConfig = ALL_EPISODES,
    stride: int = 1,
    robot_type: str | None = None,
    pictures: bool = False,
    salvage: bool = False,
) -> str:
    """Convert a data set.

    Args:
        source, path: of the data set and of the new one; `~` is the home directory.
        target: type of the new data set.
        kind: type of the source; None recognises the type by the files.
        settings: fields of the source's record, as `name=value`.
        renames: new names by key.
        left_out: keys that are not converted.
        fps: control steps per second of the source, where its files lack the rate or are wrong.
        choice: choice of episodes, which are then numbered anew.
        stride: keep every nth row, which divides the rate by n.
        robot_type: name of the robot in LeRobot; None for the source's name.
        pictures: keep every pixel where the format by itself would make videos.
        salvage: convert the intact episodes of a source that was cut off while being recorded.

    Returns:
        A line about the new data set, and further lines about episodes that are not intact, a changed rate, frames
        and parts that are not kept, and the remarks of the source's format.

    Raises:
        FileExistsError: `path` exists.
        ConfigError: a type or a setting is unknown, or a range of episodes reaches beyond them.
        DataError: the source is damaged, or the target cannot hold it.
    """
    source, path = map(expanded, (source, path))
    refuse_existing(path)
    record, new = record_of(kind or kind_of(source), source, settings), record_of(target, path)
    if pictures and not new.writes_videos:
        raise ConfigError("--pictures", [f"is for data of type 'lerobot'; type {target!r} keeps every pixel anyway"])
    chosen = {"choice": choice, "stride": stride, "fps": fps, "robot_type": robot_type, "pictures": pictures}
    with _offering_salvage(expanded(record.path), record.can_salvage and not salvage):
        store, remarks = record.salvage(left_out) if salvage else (record.create(), [])
        if problems := list(beyond(choice, store.numbers())):
            raise ConfigError("--episodes, --without", problems)
        recording = Recording.of(store, renames=renames or {}, left_out=left_out, **chosen)
        path.parent.mkdir(parents=True, exist_ok=True)
        with _telling_all_faults(recording):
            new.write(recording)
    names = [*recording.keys, *recording.cameras]
    written = f"wrote {len(recording.ends)} episodes, {recording.ends[-1]:,} steps of {', '.join(names)} to {path}"
    return "\n".join([written, *remarks, *new.losses(recording), *_remarks(recording, fps)])


@contextlib.contextmanager
def _telling_all_faults(recording: Recording) -> Iterator[None]:
    """Replace the error of the first key that cannot be read by one that names all of these keys."""
    try:
        yield
    except DataError:
        problems = {}
        for name, key in recording.keys.items():
            try:
                recording.read(name)
            except DataError as fault:
                problems |= dict.fromkeys(f"key {key!r}: {problem}" for problem in fault.problems)
        if len(problems) < 2:
            raise
        raise DataError(recording.store.where, [*problems], "leave keys out with --leave-out") from None


@contextlib.contextmanager
def _offering_salvage(source: Path, is_possible: bool) -> Iterator[None]:
    """Add --salvage to the remedies of a fault in a file of the source, if the format supports it."""
    try:
        yield
    except DataError as error:
        inside = str(source / "x")[:-1]
        is_inside = any(inside in text for text in (error.source, *error.problems))
        if not is_possible or not is_inside or "--salvage" in error.advice:
            raise
        remedy = "if the recording was cut off, --salvage converts its intact episodes"
        raise DataError(error.source, error.problems, f"{error.advice}; {remedy}".removeprefix("; ")) from None


def _remarks(recording: Recording, fps: float | None) -> Iterator[str]:
    """Report content of the source that is not written, or under another rate."""
    for name, source in recording.cameras.items():
        if (dtype := source.describe().get("stored")) is not None:
            yield f"{name}: was {dtype} and is uint8"
    store, end = recording.store, int(recording.chosen.recorded[-1])
    surplus = {name: store.rows(key) - end for name, key in recording.keys.items()}
    longer = [name for name, rows in surplus.items() if rows > 0]
    if longer:
        rows = f"{max(surplus.values()):,} rows after the last episode's end, row {end:,}"
        yield f"{', '.join(longer)}: {rows}, belong to no episode and are not written"
    yield from recording.store.remarks()
    for name, why in recording.store.unread().items():
        yield f"{name}: not converted; {why}"
    declared, parts = recording.store.metadata()["fps"], recording.store.parts()
    if fps is not None and declared not in (None, fps):
        text = f"rate: declared {declared:g}, written as {recording.fps:g} steps per second"
        same = "; the steps are the same ones. To keep fewer of them, give --stride"
        yield text + (same if recording.stride == 1 else f", one of {recording.stride} rows")
    lost = [name for name, places in parts.items() if len(places) < len(recording.chosen.recorded)]
    if lost:
        yield f"parts: {', '.join(lost)} of the source are not written; convert each by --episodes NAME to keep them"
