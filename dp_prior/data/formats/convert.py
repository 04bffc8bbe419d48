"""Converts a data set from any format that is read to any that is written.

Numbers keep every bit and their type, frames every pixel. Numbers are held in memory, as in training; of frames, one
block or one episode at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from dp_prior.data.formats.recognition import kind_of, record_of
from dp_prior.data.formats.recording import Recording


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
) -> str:
    """Convert a data set.

    Args:
        target: type of the new data set.
        kind: type of the source; None for what its files look like.
        settings: fields of its record, as `name=value`.
        renames: new names by key.
        left_out: keys that are not converted.
        fps: control steps per second, instead of what the source says.

    Returns:
        A line about what was written.

    Raises:
        FileExistsError: there is something at `path`.
        ConfigError: a type or a setting is unknown.
        DataError: the source is damaged, or the target cannot hold it.
    """
    record, new = record_of(kind or kind_of(source), source, settings), record_of(target, path)
    recording = Recording.of(record.create(), renames=renames or {}, left_out=left_out, fps=fps)
    if path.exists():
        raise FileExistsError(f"{path} exists; nothing is overwritten, choose another name")
    path.parent.mkdir(parents=True, exist_ok=True)
    new.write(recording)
    names = [*recording.keys, *recording.cameras]
    line = f"wrote {len(recording.ends)} episodes, {recording.ends[-1]:,} steps of {', '.join(names)} to {path}"
    stored = {name: source.describe().get("stored") for name, source in recording.cameras.items()}
    changed = [f"{name} was {dtype} and is uint8" for name, dtype in stored.items() if dtype is not None]
    unread = [f"{name} is not converted: {why}" for name, why in recording.store.unread().items()]
    return "; ".join([line, *changed, *unread])
