"""Looks at a data set that a path, a name on the Hub or a configuration gives."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dp_prior.config import Config, ConfigError
from dp_prior.data.embeddings.pairs import EmbeddingsConfig
from dp_prior.data.errors import DataError
from dp_prior.data.pictures.images import ImagesConfig
from dp_prior.data.recorded.selection import ActionConfig
from dp_prior.files.durable import write_new
from dp_prior.files.entry_points import ask
from dp_prior.files.json_text import readable_json
from dp_prior.files.regular_files import expanded
from dp_prior.run.config import TrainConfig
from dp_prior_foreign.recognition import known_kind, record_of_kind
from dp_prior_foreign.unread_layouts import refuse_unread_layout
from dp_prior_studio.inspection.beside_images import unread_beside
from dp_prior_studio.inspection.embeddings import embeddings_at, find_in_rows, read_rows
from dp_prior_studio.inspection.finding import Finding, ranked
from dp_prior_studio.inspection.image_survey import find_in_images, images_at, read_gallery
from dp_prior_studio.inspection.inspection import Inspection
from dp_prior_studio.inspection.proposal import propose_image_data, proposed
from dp_prior_studio.inspection.recorded_episodes import inspect_all, inspect_named
from dp_prior_studio.inspection.run_names import data_name


class _Embeddings(Config):
    data: EmbeddingsConfig


class _Images(Config):
    data: ImagesConfig


class _ActionOf(Config):
    action: ActionConfig


class _Action(Config):
    data: _ActionOf


def inspect(place: str, overrides: Iterable[str] = ()) -> list[Inspection]:
    """Look at a data set; at several if a configuration mixes them.

    Args:
        place: a path, `user/name` of a LeRobot data set on the Hub, or a configuration (.json).
        overrides: changes to the configuration; of a data set, `data.action` alone.

    Raises:
        ConfigError: the configuration is wrong.
        DataError, UnreadableError: there is no data set, or it cannot be read.
    """
    if "://" in place:
        remedy = "download it first, or name a configuration that reads it"
        raise ConfigError(place, [f"is a URL; expected a path, user/name on the Hub, or a configuration; {remedy}"])
    path = expanded(place)
    if path.suffix == ".json":
        return _configured(TrainConfig.from_json_path(path, overrides))
    action = _given_action(place, list(overrides))
    kind = known_kind(path)
    if kind is None:
        if path.is_dir() and (remedy := ask("misplaced", path, "data")):
            raise DataError(str(path), [f"is no data set. {remedy}"])
        refuse_unread_layout(path)
    embeddings = embeddings_at(path) if kind is None and action is None else None
    if embeddings is not None:
        if "image" not in embeddings or "text" not in embeddings:  # nothing to pair them with; they are looked at alone
            alone = embeddings.get("image") or embeddings["text"]
            return [_embeddings(data_name(path), {"image": alone}, {"image": alone, "text": alone})]
        return [_embeddings(data_name(path), embeddings, embeddings)]
    images = images_at(path) if kind in (None, "npz") and action is None else None
    if images is not None:
        return [_images(data_name(path), images, None)]
    return [inspect_all(data_name(path), record_of_kind(kind, place), action)]


def _given_action(place: str, overrides: list[str]) -> ActionConfig | None:
    """The action of a data set by `--set`; None without `--set`.

    Raises:
        ConfigError: it changes something else, which only a configuration has.
    """
    foreign = [override for override in overrides if not override.startswith(("data.action=", "data.action."))]
    if foreign:
        problem = (
            f"--set {foreign[0]} changes a configuration, but {place} is a data set, of which data.action may be named"
        )
        raise ConfigError(place, [f"{problem}; leave it out, or change what --write-config has written"])
    return _Action.from_json("{}", overrides, source=place).data.action if overrides else None


def next_command(inspections: list[Inspection], place: str) -> list[str] | None:
    """The command that comes after a look at a data set or a configuration; None if it cannot be trained on."""
    if Path(place).suffix == ".json":
        is_sound = not any(inspection.has_errors for inspection in inspections)
        return ["dp-prior", "train", place, "--check"] if is_sound else None
    try:
        proposed(inspections)
    except (ConfigError, DataError):
        return None
    return ["dp-prior", "inspect", place, "--write-config", f"{short_name(place) or 'data'}.json"]


def short_name(place: str) -> str:
    """The last part of a place without endings, of which a version stays; empty for `.` and the like."""
    return re.sub(r"(\.[A-Za-z]\w*)+$", "", place.rstrip("/").rpartition("/")[2]).strip(".")


def write_config(inspections: list[Inspection], path: Path) -> None:
    """Write a configuration that trains on the data set.

    Raises:
        ConfigError, DataError: see `proposed`.
        FileExistsError: there is such a file.
    """
    write_new(path, readable_json(proposed(inspections), indent=2) + "\n")


def _configured(config: TrainConfig) -> list[Inspection]:
    """The data sets of a configuration, by the names that it gives to their keys."""
    data, stored = config.data, json.loads(config.data.model_dump_json(exclude_unset=True))
    if data.folders():
        return [_embeddings("data", stored, stored)]
    if data.sources():
        return [_images("data", stored, data)]
    sets = data.recorded_sets()
    if not sets:
        expected = "trajectories, embeddings or images"
        raise DataError("data", [f"data of type {data.type!r} cannot be inspected; expected {expected}"])
    stored_sets = stored.get("sets", {})
    return [inspect_named(config, name, record, stored_sets.get(name, stored)) for name, record in sets.items()]


def _embeddings(name: str, data: dict[str, Any], readable: dict[str, Any]) -> Inspection:
    """Args: readable: `data` that a record of pairs accepts."""
    text = json.dumps({"data": {**readable, "type": "embeddings"}})
    record = _Embeddings.from_json(text, source=name).data
    rows = read_rows(record)
    if "text" not in data and "text_encodings" not in data:
        rows = rows[:1]
    return Inspection(name, rows=rows, data=data, findings=ranked(find_in_rows(rows, record)))


def _images(name: str, data: dict[str, Any], stated: ImagesConfig | None) -> Inspection:
    """Args: stated: the record of a configuration; None to complete `data` by what is found."""
    record = stated or _Images.from_json(json.dumps({"data": data}), source=name).data
    opened = {name: source.create(labelled=record.labels, uniform=False) for name, source in record.sources().items()}
    used = {
        name: record.split.used(len(source)) if name == "source" else len(source) for name, source in opened.items()
    }
    galleries = [read_gallery(name, source, used[name]) for name, source in opened.items()]
    if stated is None:
        data = propose_image_data(galleries[0], data)
        record = _Images.from_json(json.dumps({"data": data}), source=name).data
    findings = [*find_in_images(galleries, record), *unread_beside(record)]
    try:
        record.create()
    except DataError as error:
        findings += [Finding("error", problem, code="refused") for problem in error.problems]
    return Inspection(name, galleries=galleries, data=data, findings=ranked(findings))
