"""Hints for settings of another library that stand in a configuration of ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dp_prior.config.read import Layers
from dp_prior.run.configurations import stored_schema
from dp_prior_foreign.misplaced import misplaced
from dp_prior_foreign.settings_as_options import as_overrides, overrides_of_trial
from dp_prior_foreign.translation.foreign_settings import flat
from dp_prior_foreign.translation.libraries import LIBRARIES, recognise
from dp_prior_foreign.translation.library import Library
from dp_prior_foreign.translation.row import Row
from dp_prior_foreign.usage import explained_usage

if TYPE_CHECKING:
    from dp_prior.run.config import TrainConfig

__all__ = [
    "as_overrides",
    "differing_sizes",
    "explained_usage",
    "hint",
    "import_fault",
    "launching",
    "memory_remedies",
    "misplaced",
    "misspelt",
    "other_file",
    "overrides_of_trial",
]

DEEPEST = 3
"""Most objects around a key that is matched with foreign settings of other places."""

MOST_PLACES = 3
"""Most objects of ours that a hint names for one key; a key of more objects, such as `type`, has no such hint."""


def hint(path: Sequence[str | int]) -> str | None:
    """The counterpart of a foreign setting, or why it has no counterpart; None if no library has such a setting.

    Args:
        path: of the unknown key in a configuration of ours. Among settings of the same name, one at the same place or
            in the corresponding object is preferred. An object of ours beside that of the key comes before the blocks
            of other libraries.
    """
    *sections, key = map(str, path)
    here = ".".join([*sections, key])
    namesakes: list[tuple[Library, Row]] = []
    for library in LIBRARIES:
        namesakes += [(library, row) for row in library.rows if row.key == key and row.place != here]
    namesakes = [(library, row) for library, row in namesakes if not row.is_copy] or namesakes
    exact = [(library, row) for library, row in namesakes if row.path.removesuffix(".**") == here]
    blocks = {library.blocks[key]: library for library in reversed(LIBRARIES) if key in library.blocks}
    beside = _places(sections[:-1], key) if len(sections) > 1 else []
    beside = [place for place in beside if place != here]  # the key of another type of this object
    places = beside or (_places(sections, key) if blocks and sections else [])
    if places and not exact:
        return f"Its place is {' or '.join(places)}."
    if blocks and not exact:
        return f"Its place here is {' or '.join(blocks)} ({_joined(list(blocks.values()))})."
    section = ".".join(section for section in sections if not section.isdecimal())
    far = namesakes if section.count(".") < DEEPEST else []
    near = [(library, row) for library, row in namesakes if _section(library, row) == section]
    return " ".join(_sentences(exact or near or far)) or None


def differing_sizes(stored: Mapping[str, Any], current: Mapping[str, Any]) -> str | None:
    """Say how actions and observations of a checkpoint differ from those of a configuration, whose weights then have
    other shapes; None for equal sizes.

    Args:
        stored: the `Spec` of the checkpoint, as a document.
        current: that of the configuration.
    """
    lines = []
    if (sizes := [spec["x_shape"][-1] for spec in (stored, current)])[0] != sizes[1]:
        lines.append(f"there an action has {sizes[0]} numbers, here {sizes[1]}")
    before, now = stored["cond_shapes"], current["cond_shapes"]
    for key in sorted(before.keys() | now.keys()):
        shapes = ["none" if key not in shapes else tuple(shapes[key][1:]) for shapes in (before, now)]
        if shapes[0] != shapes[1]:
            lines.append(f"observation {key!r} is {shapes[0]} there, {shapes[1]} here")
    return f"{'; '.join(lines)}: is it a checkpoint of this robot and these cameras? " if lines else None


def import_fault(name: str, error: BaseException) -> str:
    """See `dp_prior_foreign.import_faults`, which is imported when a module cannot be imported."""
    from dp_prior_foreign.import_faults import import_fault as line

    return line(name, error)


def launching(environment: Mapping[str, str]) -> str | None:
    """See `dp_prior_foreign.launching`, which is imported under a launcher."""
    from dp_prior_foreign.launching import launching as command

    return command(environment)


def memory_remedies(*facts: Any) -> list[str]:
    """See `dp_prior_foreign.memory_remedies`, which is imported when a training does not fit."""
    from dp_prior_foreign.memory_remedies import memory_remedies as remedies_of

    return remedies_of(*facts)


def misspelt(layers: Layers, unknown: Sequence[Any], documents: Sequence[Any]) -> list[str] | None:
    """See `dp_prior_foreign.misspelt`, which is imported when a key is unknown."""
    from dp_prior_foreign.misspelt import misspelt as misspelt_lines

    return misspelt_lines(layers, unknown, documents, hint)


def other_file(config: type[TrainConfig], data: dict[str, Any], source: str) -> str | None:
    """Recognise a configuration of another library, which has fewer settings of ours than of that library.

    Args:
        data: what the file holds.
        source: the file's name.
    """
    settings = list(flat(data, source))
    library = recognise(settings)
    if library is None or library.share(settings) <= sum(config.has(path) for path in settings) / len(settings):
        return None
    return f"looks like a configuration of {library.name}: run `dp-prior translate {source}` to write it as ours"


def _places(sections: Sequence[str], key: str) -> list[str]:
    """The places of a key of ours in the objects of an object, at most `MOST_PLACES`; none where more of them have it,
    or if the path leads to no object of ours."""
    schema = stored_schema()
    rooms = [schema]
    for section in sections:
        rooms = [inner for room in rooms for inner in _records(room.get("properties", {}).get(section, {}), schema)]
    places = {}
    for room in rooms:
        for name, field in room.get("properties", {}).items():
            if any(key in record.get("properties", {}) for record in _records(field, schema)):
                places[".".join([*sections, name, key])] = True
    return list(places) if key != "type" and len(places) <= MOST_PLACES else []


def _records(room: dict[str, Any], schema: dict[str, Any]) -> list[dict[str, Any]]:
    """The objects of a JSON Schema that a value may be."""
    if "$ref" in room:
        return _records(schema["$defs"][room["$ref"].rpartition("/")[2]], schema)
    choices = room.get("anyOf") or room.get("oneOf")
    if not choices:
        return [room]
    records = []
    for choice in choices:
        records += _records(choice, schema)
    return records


def _section(library: Library, row: Row) -> str:
    """The object here to which the object around a setting corresponds."""
    sections = row.path.split(".")[:-1]
    return library.blocks.get(sections[-1], sections[-1]) if sections else ""


def _sentences(rows: list[tuple[Library, Row]]) -> Iterator[str]:
    """A sentence for each place here, then for each reason of a setting without a place."""
    for place in dict.fromkeys(row.place for _, row in rows if row.place):
        there = [(library, row) for library, row in rows if row.place == place]
        remarks = list(dict.fromkeys(row.remark for _, row in there))
        remark = f": {remarks[0]}" if len(remarks) == 1 and remarks[0] else ""
        yield f"Its place here is {place} ({_joined([library for library, _ in there])}{remark})."
    for reason in dict.fromkeys(row.note for _, row in rows if not row.place):
        there = [library for library, row in rows if not row.place and row.note == reason]
        yield f"Of {_joined(there)}, without a counterpart: {reason}."


def _joined(libraries: Sequence[Library]) -> str:
    """Join the names of libraries to a list in a sentence."""
    names = list(dict.fromkeys(library.name for library in libraries))
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
