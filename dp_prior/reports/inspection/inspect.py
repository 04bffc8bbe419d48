"""Looks at a data set that a path, a name on the Hub or a configuration gives."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from dp_prior.config import Config, ConfigError
from dp_prior.data.embeddings.pairs import EmbeddingsConfig
from dp_prior.data.errors import DataError
from dp_prior.data.formats.recognition import known_kind, record_of_kind
from dp_prior.data.formats.store_record import EpisodeStoreRecord
from dp_prior.data.formats.unread_layouts import refuse_unread_layout
from dp_prior.data.pictures.images import ImagesConfig
from dp_prior.data.recorded.camera import DepthConfig, ImageConfig
from dp_prior.data.recorded.language import FrameTexts
from dp_prior.data.recorded.selection import ActionConfig, KeyConfig
from dp_prior.data.recorded.trajectories import TrajectoriesConfig
from dp_prior.files.durable import write_new
from dp_prior.files.home import expanded
from dp_prior.files.json_text import readable_json
from dp_prior.networks.encoders.points import PointEncoderConfig
from dp_prior.reports.inspection.beside_images import unread_beside
from dp_prior.reports.inspection.cameras import Strip, look
from dp_prior.reports.inspection.depth import Distances, look_at_depth
from dp_prior.reports.inspection.embeddings import FolderRows, embeddings_at, find_in_rows, read_rows
from dp_prior.reports.inspection.faults import find
from dp_prior.reports.inspection.finding import MOST_NAMED, Finding, faulty_episodes, ranked
from dp_prior.reports.inspection.image_survey import Gallery, find_in_images, images_at, read_gallery
from dp_prior.reports.inspection.points import Cloud, look_at_points
from dp_prior.reports.inspection.proposal import propose, propose_data, propose_images, windows_of
from dp_prior.reports.inspection.replays import replay_findings, replayed_keys
from dp_prior.reports.inspection.rotations import find_rotations
from dp_prior.reports.inspection.simulation import simulated
from dp_prior.reports.inspection.survey import Role, Survey, survey
from dp_prior.reports.inspection.units import find_units
from dp_prior.reports.inspection.unused import videos_beside
from dp_prior.run_directory.config import TrainConfig
from dp_prior.tasks.policy_config import PolicyConfig
from dp_prior.tensors.normalizer import Limits, NormalizerConfig


class _Embeddings(Config):
    data: EmbeddingsConfig


class _Images(Config):
    data: ImagesConfig


class _ActionOf(Config):
    action: ActionConfig


class _Action(Config):
    data: _ActionOf


@dataclass(frozen=True)
class Inspection:
    """The findings about a data set.

    Attributes:
        name: of the set in a mixture, or of the place.
        survey: of recorded episodes; None for embeddings and images.
        rows: of embeddings.
        galleries: of images, one for each source.
        normalizers: of each signal that has one.
        data: the JSON that names its keys.
        leave_out: own numbers of the episodes with faults that training is better without.
        depths, clouds: distances of each key that is depth, and points of each that is a cloud.
    """

    name: str
    survey: Survey | None
    rows: list[FolderRows]
    findings: list[Finding]
    strips: list[Strip]
    gaps: list[str]
    normalizers: dict[str, NormalizerConfig] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    galleries: list[Gallery] = field(default_factory=list)
    depths: list[Distances] = field(default_factory=list)
    clouds: list[Cloud] = field(default_factory=list)
    leave_out: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class _Named:
    """Recorded episodes as a configuration names them, by key in the data set; `chosen`: see `survey`."""

    data: dict[str, Any]
    roles: dict[str, tuple[KeyConfig, Role]]
    normalizers: dict[str, NormalizerConfig]
    cameras: dict[str, ImageConfig]
    depths: dict[str, DepthConfig]
    clouds: dict[str, PointEncoderConfig]
    chosen: dict[str, Any]


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
        refuse_unread_layout(path)
    embeddings = embeddings_at(path) if kind is None and action is None else None
    if embeddings is not None:
        if "image" not in embeddings or "text" not in embeddings:  # nothing to pair them with; they are looked at alone
            alone = embeddings.get("image") or embeddings["text"]
            return [_embeddings(path.name, {"image": alone}, {"image": alone, "text": alone})]
        return [_embeddings(path.name, embeddings, embeddings)]
    images = images_at(path) if kind in (None, "npz") and action is None else None
    if images is not None:
        return [_images(path.name, images, None)]
    return [_recorded(path.name, record_of_kind(kind, place), None, action)]


def _given_action(place: str, overrides: list[str]) -> ActionConfig | None:
    """What `--set` says about the action of a data set.

    Raises:
        ConfigError: it changes something else, which only a configuration has.
    """
    if other := next((each for each in overrides if not each.startswith(("data.action=", "data.action."))), None):
        problem = f"--set {other} changes a configuration, but {place} is a data set, of which data.action may be named"
        raise ConfigError(place, [f"{problem}; leave it out, or change what --write-config has written"])
    return _Action.from_json("{}", overrides, source=place).data.action if overrides else None


def next_command(found: list[Inspection], place: str) -> list[str] | None:
    """The command that comes after a look at a data set or a configuration; None if it cannot be trained on."""
    if Path(place).suffix == ".json":
        is_sound = not any(finding.severity == "error" for one in found for finding in one.findings)
        return ["dp-prior", "train", "--config_file", place, "--check"] if is_sound else None
    try:
        proposed(found)
    except (ConfigError, DataError):
        return None
    name = re.sub(r"(\.[A-Za-z]\w*)+$", "", place.rstrip("/").rpartition("/")[2])  # a version in it stays
    return ["dp-prior", "inspect", place, "--write-config", f"{name or 'data'}.json"]


def write_config(found: list[Inspection], path: Path) -> None:
    """Write a configuration that trains on the data set.

    Raises:
        ConfigError, DataError: see `proposed`.
        FileExistsError: there is such a file.
    """
    write_new(path, readable_json(proposed(found), indent=2) + "\n")


def proposed(found: list[Inspection]) -> dict[str, Any]:
    """A configuration that trains on the data set.

    Raises:
        ConfigError: there are several data sets, no action or observation among the keys, or embeddings of one kind.
        DataError: it cannot be trained on.
    """
    if len(found) > 1:
        raise ConfigError("--write-config", ["takes one data set; this is a configuration of several already"])
    one = found[0]
    remain = [finding for finding in one.findings if not set(finding.leave_out) & set(one.leave_out)]
    errors = [str(finding) for finding in remain if finding.severity == "error"]
    if errors:
        advice = "training would refuse this, so no configuration is written: repair the data, or write one by hand"
        raise DataError(one.name, errors, advice)
    if len(one.rows) == 1:
        remedy = "name both in data.image and data.text, or name these in data.language or data.embeddings of a policy"
        raise ConfigError(one.name, [f"embeddings without their pair; a prior learns images from texts: {remedy}"])
    if one.rows:
        return propose(one.name, one.data, n_samples=one.rows[0].folder.count)
    if one.galleries:
        images = one.galleries[0].source
        return propose(one.name, one.data, size=images.size, n_samples=len(images))
    seen, clouds = one.survey, {cloud.key: cloud for cloud in one.clouds}
    return propose(
        one.name,
        one.data,
        seen.fps,
        is_one_episode=seen.count - len(one.leave_out) == 1,
        n_windows=windows_of(seen, one.leave_out)[1],
        hint=seen.action_hint,
        encoders={name: clouds[each["key"]].encoder() for name, each in one.data.get("points", {}).items()},
        tests=simulated(seen, one.data),
    )


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
    found = []
    for name, one in sets.items():
        own = stored.get("sets", {}).get(name, stored)
        roles: dict[str, tuple[KeyConfig, Role]] = {key: (each, "observation") for key, each in one.obs.items()}
        normalizers: dict[str, NormalizerConfig] = {}
        if isinstance(config.task, PolicyConfig):
            normalizers = {key: config.task.normalizer_of(key) for key in roles}
            normalizers["action"] = config.task.normalizer.get("action", Limits())
        roles["action"] = (one.action, "action")
        place = one.downloaded({}).episodes
        cameras = _by_key({camera: each for camera, each in one.images.items() if each.render is None})
        depths = _by_key(one.depth)
        clouds = {each.key: _point_encoder(config, name) for name, each in one.points.items()}
        chosen = {"choice": one.choice, "max_rows": one.split.max_rows}
        seen = _recorded(name, place, _Named(own, roles, normalizers, cameras, depths, clouds, chosen))
        drawn = {each.key for each in one.images.values() if each.render is not None}
        for key in drawn.union(replayed_keys(config, name), *(each.keys() for each in one.language.values())):
            seen.survey.unused.pop(key, None)
        replays = replay_findings(config, name, one) if not seen.survey.problems else []
        found.append(replace(seen, findings=ranked([*seen.findings, *_beside_signals(one, seen.survey), *replays])))
    return found


def _by_key(cameras: Mapping[str, Any]) -> dict[str, Any]:
    """Cameras by their key in the data set; those of folders, and others of the same key, by the policy's name."""
    found: dict[str, Any] = {}
    for name, each in cameras.items():
        found[name if each.key is None or each.key in found else each.key] = each
    return found


def _point_encoder(config: TrainConfig, key: str) -> PointEncoderConfig:
    """The encoder of a cloud; the default one where a configuration names none."""
    found = config.task.encoders.get(key) if isinstance(config.task, PolicyConfig) else None
    return found if isinstance(found, PointEncoderConfig) else PointEncoderConfig()


def _beside_signals(data: TrajectoriesConfig, seen: Survey) -> Iterator[Finding]:
    """What training refuses of the split, weights, embeddings and instructions, and its doubts about instructions."""
    both = seen.store, seen.chosen
    reads: list[Callable[[], object]] = [partial(data.split.of, *both)]
    reads += [partial(one.create, seen.chosen) for one in data.embeddings.values()]
    reads += [partial(one.create, *both) for one in (*data.language.values(), data.weights) if one is not None]
    for read in reads:
        try:
            found = read()
        except DataError as error:
            yield from (Finding("error", f"{error.source}: {problem}") for problem in error.problems[:MOST_NAMED])
            continue
        if isinstance(found, FrameTexts):
            yield from (Finding("warning", doubt) for doubt in found.warnings)


def _recorded(
    name: str, record: EpisodeStoreRecord, named: _Named | None, action: ActionConfig | None = None
) -> Inspection:
    """Args:
    named: by a configuration; None for all keys.
    action: of a data set without a configuration; None for the key with its name.
    """
    store = record.create()
    seen = survey(store, None, action=action) if named is None else survey(store, named.roles, **named.chosen)
    seen = replace(seen, is_divided=named is not None and bool((named.data.get("split") or {}).get("parts")))
    is_remote = record.is_remote and named is None
    keys = dict.fromkeys(seen.cameras) if named is None else named.cameras
    unnamed = {key: shape for key, shape in seen.cameras.items() if key not in keys}
    seen.unused.update({key: f"pictures of {shape}, not named in data.images" for key, shape in unnamed.items()})
    deep = dict.fromkeys(seen.depths) if named is None else named.depths
    seen.unused.update({key: f"depth of {shape}, not named in data.depth" for key, shape in seen.depths.items()})
    missing = [key for key in [*keys, *deep] if is_remote and seen.store.dtype(key) == "video"]
    strips, findings, gaps = look(seen, {key: stated for key, stated in keys.items() if key not in missing})
    deep = {key: stated for key, stated in deep.items() if key not in missing}
    grey, distances, odd, unseen = look_at_depth(seen, deep)
    seen.unused.update({key: f"points of {shape}, not named in data.points" for key, shape in seen.clouds.items()})
    points, off, unread = look_at_points(seen, dict.fromkeys(seen.clouds) if named is None else named.clouds)
    strips, findings, gaps = strips + grey, findings + odd + off, gaps + unseen + unread
    for one in (*distances, *points):
        seen.unused.pop(one.key, None)
    gaps += [f"{key}: videos on the Hub are downloaded if a configuration names them" for key in missing]
    beside = videos_beside(seen.store.path, seen.count) if named is None else ()
    notes = [Finding("note", remark) for remark in (*seen.store.remarks(), *beside)]
    if named is None and not seen.of("action"):
        notes.append(Finding("note", f"no key is called action; {seen.action_hint or 'name it in data.action'}"))
    found = ranked([*find(seen), *find_units(seen), *find_rotations(seen), *findings, *notes])
    leave_out = faulty_episodes(seen, found)
    if named is not None:
        data, normalizers = named.data, named.normalizers
    else:
        normalizers = {signal.name: Limits() for signal in seen.of("observation", "action")}
        episodes = json.loads(record.model_dump_json(exclude_unset=True))
        episodes = {name: value for name, value in episodes.items() if value is not None}  # the path of one on the Hub
        frames = {strip.camera: strip.size for strip in strips if strip.camera in keys}
        data = propose_data(seen, episodes, frames, distances, leave_out, [one.key for one in points])
        data |= {} if action is None else {"action": json.loads(action.model_dump_json(exclude_unset=True))}
    more = {"leave_out": leave_out, "depths": distances, "clouds": points}
    return Inspection(name, seen, [], found, strips, [*seen.gaps, *gaps], normalizers, data, **more)


def _embeddings(name: str, data: dict[str, Any], readable: dict[str, Any]) -> Inspection:
    """Args: readable: `data` that a record of pairs accepts."""
    text = json.dumps({"data": {**readable, "type": "embeddings"}})
    record = _Embeddings.from_json(text, source=name).data
    rows = read_rows(record)
    if "text" not in data and "text_encodings" not in data:
        rows = rows[:1]
    return Inspection(name, None, rows, ranked(find_in_rows(rows, record)), [], [], {}, data)


def _images(name: str, data: dict[str, Any], given: ImagesConfig | None) -> Inspection:
    """Args: given: the record of a configuration; None to complete `data` by what is found."""
    record = given or _Images.from_json(json.dumps({"data": data}), source=name).data
    opened = {name: source.create(labelled=record.labels, uniform=False) for name, source in record.sources().items()}
    used = {name: record.split.used(len(one)) if name == "source" else len(one) for name, one in opened.items()}
    galleries = [read_gallery(name, one, used[name]) for name, one in opened.items()]
    if given is None:
        data = propose_images(galleries[0], data)
        record = _Images.from_json(json.dumps({"data": data}), source=name).data
    findings = [*find_in_images(galleries, record), *unread_beside(record)]
    try:
        record.create()
    except DataError as error:
        findings += [Finding("error", problem) for problem in error.problems]
    return Inspection(name, None, [], ranked(findings), [], [], {}, data, galleries)
