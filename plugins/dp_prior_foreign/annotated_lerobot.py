"""LeRobot data sets with further keys: the texts of their annotations, and what GR00T's modality.json names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from dp_prior.config.errors import short
from dp_prior.data.errors import DataError
from dp_prior.data.files import decoding, reading
from dp_prior.data.formats.episode_store import TASK
from dp_prior.data.formats.lerobot.dataset import LeRobotStore, LeRobotStoreConfig
from dp_prior.data.formats.lerobot.meta import COUNTED, LeRobotMeta, TableFile
from dp_prior.data.formats.lerobot.tables import to_numpy
from dp_prior.files.regular_files import SMALL, expanded, read_object, read_small
from dp_prior_foreign.recording import Recording

if TYPE_CHECKING:
    import pyarrow

PERSISTENT, EVENTS = "language_persistent", "language_events"
"""Columns of annotations of LeRobot 0.6. A row of the first holds all annotations of its episode, each with the second
from which the annotation is in force; a row of the other holds what was said at this row."""

STYLES = {PERSISTENT: ("subtask", "plan", "memory", "motion"), EVENTS: ("interjection",)}
"""Styles of annotations that tell a robot what to do; others ask about pictures or rephrase the task."""

MODALITY = "meta/modality.json"
"""GR00T's file that names parts of vectors, cameras and columns of annotations."""

GROUPS = {"state": "observation.state", "action": "action"}
"""Groups of parts in `MODALITY`, and the vector of a part that names none."""


class Annotation(NamedTuple):
    """Texts in a column of annotations."""

    column: str
    style: str

    def describe(self) -> str:
        """A line for inspections."""
        return f"string, the {self.style} in force at each step by {self.column}, read by data.language"


class Part(NamedTuple):
    """Numbers of a vector; all of them for another name of a column."""

    column: str
    start: int
    stop: int

    def describe(self) -> str:
        """A line for inspections."""
        return f"{self.column}[{self.start}:{self.stop}] by {MODALITY}"


class AnnotatedLeRobotConfig(LeRobotStoreConfig):
    """A LeRobot data set with further keys: `language_persistent.subtask` and the like, texts for `data.language`, and
    the parts that GR00T's meta/modality.json names, such as `state.left_arm` and `action.gripper`."""

    type: Literal["annotated_lerobot"] = "annotated_lerobot"

    @classmethod
    def is_at(cls, path: Path) -> bool:
        """See `EpisodeStoreRecord`; whether a LeRobot data set has such a file or column."""
        if not super().is_at(path):
            return False
        features = read_object(path / "meta/info.json").get("features")
        return (path / MODALITY).is_file() or (isinstance(features, dict) and not STYLES.keys().isdisjoint(features))

    def create(self) -> AnnotatedLeRobotStore:
        """See `LeRobotStoreConfig`; an entry of meta/modality.json of another form is a remark of the store."""
        super().create()
        return AnnotatedLeRobotStore(LeRobotMeta(expanded(self.local({}, ()).path)))

    def write(self, recording: Recording) -> None:
        """Refuse to write: the annotations would be lost."""
        raise DataError(str(self.path), ["data of type 'annotated_lerobot' are read; write type 'lerobot'"])


class AnnotatedLeRobotStore(LeRobotStore):
    """See `LeRobotStore`; a conversion leaves the further keys out, since their values are in other columns."""

    def __init__(self, meta: LeRobotMeta):
        super().__init__(meta)
        self._remarks: list[str] = []
        self._derived: dict[str, Annotation | Part] = {}
        for column in filter(meta.features.__contains__, STYLES):
            self._derived |= {f"{column}.{style}": Annotation(column, style) for style in STYLES[column]}
        self._derived |= dict(self._named_parts())
        self.counted = (*COUNTED, *self._derived)

    def keys(self) -> dict[str, tuple[int, ...]]:
        """Shape per frame of every feature and of every further key."""
        shapes = super().keys()
        for key, source in self._derived.items():
            is_vector = isinstance(source, Part) and shapes[source.column] != ()
            shapes[key] = (source.stop - source.start,) if is_vector else ()
        return shapes

    def dtype(self, key: str) -> str:
        source = self._derived.get(key)
        if isinstance(source, Annotation):
            return "string"
        return super().dtype(key if source is None else source.column)

    def unread(self) -> dict[str, str]:
        """See `LeRobotStore`; with the meaning of every further key."""
        return {**super().unread(), **{key: source.describe() for key, source in self._derived.items()}}

    def remarks(self) -> list[str]:
        """See `EpisodeStore`; the entries of meta/modality.json that are not read."""
        return [*super().remarks(), *self._remarks]

    def describe(self) -> dict[str, Any]:
        """See `LeRobotStore`; the numbers of a part have the names of its vector."""
        described = super().describe()
        for key, source in self._derived.items():
            if isinstance(source, Part) and source.column in described["names"]:
                described["names"][key] = described["names"][source.column][source.start : source.stop]
        return described

    def _read_table(self, file: TableFile, key: str, keys_ahead: Any) -> pyarrow.Table:
        """See `LeRobotStore`; reads the columns of a further key."""
        source = self._derived.get(key)
        if isinstance(source, Annotation):
            return super()._read_table(file, source.column, {"timestamp", TASK})
        return super()._read_table(file, key if source is None else source.column, keys_ahead)

    def _values(self, table: pyarrow.Table, file: TableFile, key: str) -> np.ndarray:
        """See `LeRobotStore`; the values of a further key are computed."""
        source = self._derived.get(key)
        if isinstance(source, Part):
            values = super()._values(table, file, source.column)
            return values if values.ndim == 1 else values[:, source.start : source.stop]
        if source is None:
            return super()._values(table, file, key)
        tasks = np.full(table.num_rows, "", dtype=object)
        if TASK in table.column_names:
            text_of = self.texts()
            numbers = to_numpy(table.column(TASK), file.path, TASK).ravel()
            tasks[:] = [text_of.get(number, "") for number in numbers.tolist()]
        lengths = [self.meta.lengths[episode] for episode in file.episodes]
        return _texts_in_force(table, source, np.repeat(file.episodes, lengths), tasks, file.path)

    def _named_parts(self) -> Iterator[tuple[str, Part]]:
        """The parts and the columns of annotations that `MODALITY` names, unless a feature has the name.

        Raises:
            UnreadableError: the system refused to read this file.
        """
        file = self.path / MODALITY
        content = _json(file) if file.is_file() else {}
        if not isinstance(content, dict):
            self._remarks.append(f"{file} is not read: it holds no JSON object")
            return
        for group in (*GROUPS, "annotation"):
            entries = content.get(group, {})
            for name, entry in entries.items() if isinstance(entries, dict) else ():
                key, part = f"{group}.{name}", self._part(group, name, entry)
                if part is None:
                    finding = f"{file} is not read for {key}, which is {short(entry)}"
                    expected = "a start and an end within a vector of meta/info.json, or an original_key there"
                    self._remarks.append(f"{finding}; expected {expected}")
                elif key not in self.meta.features:
                    yield key, part

    def _part(self, group: str, name: str, entry: Any) -> Part | None:
        """The numbers that an entry names; None for an entry of another form."""
        if not isinstance(entry, dict):
            return None
        column = entry.get("original_key", GROUPS.get(group, f"{group}.{name}"))
        feature = self.meta.features.get(column) if isinstance(column, str) else None
        shape = [] if feature is None else feature.get("shape") or [1]
        if len(shape) != 1 or column in self.meta.cameras:
            return None
        start, stop = (0, shape[0]) if group not in GROUPS else (entry.get("start"), entry.get("end"))
        is_within = type(start) is int and type(stop) is int and 0 <= start < stop <= shape[0]
        return Part(column, start, stop) if is_within else None


def _texts_in_force(
    table: pyarrow.Table, source: Annotation, episodes: np.ndarray, tasks: np.ndarray, path: Path
) -> np.ndarray:
    """Find the text in force at each row: the newest of a style whose time has come in the episode.

    Args:
        episodes: (n,) number of each row's episode; the rows of an episode follow each other.
        tasks: (n,) text of each row until the first annotation of its episode.
    """
    import pyarrow.compute as pc

    with decoding(path, f"has no annotations as LeRobot writes them in {source.column}"):
        cells = table.column(source.column).combine_chunks()
        rows, entries = pc.list_parent_indices(cells).to_numpy(), cells.flatten()
        contents = pc.struct_field(entries, "content")
        is_text = pc.and_(pc.equal(pc.struct_field(entries, "style"), source.style), pc.not_equal(contents, ""))
        places = np.flatnonzero(is_text.fill_null(False).to_numpy(zero_copy_only=False))
        if source.column == PERSISTENT:
            times = pc.struct_field(entries, "timestamp").to_numpy(zero_copy_only=False)[places].astype(np.float32)
            clock = to_numpy(table.column("timestamp"), path, "timestamp").ravel().astype(np.float32)
            order = np.lexsort((times, rows[places]))
            places = places[order[times[order] <= clock[rows[places[order]]]]]
    newest = np.full(len(tasks), -1)
    newest[rows[places]] = places  # the last entry of a row stays
    newest = newest[np.maximum.accumulate(np.where(newest < 0, 0, np.arange(len(newest))))]
    is_in_force = newest >= 0
    is_in_force[is_in_force] = episodes[rows[newest[is_in_force]]] == episodes[is_in_force]
    texts = tasks.copy()
    texts[is_in_force] = contents.take(newest[is_in_force]).to_pylist()
    return texts.astype(str)


def _json(file: Path) -> Any:
    """The content of a small JSON file; None for another file."""
    try:
        with reading(file):
            return json.loads(read_small(file, SMALL))
    except (ValueError, RecursionError):
        return None
