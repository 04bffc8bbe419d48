"""Lists the changes between a checkpoint and the run that resumes from it, and refuses changes that are not allowed.

Every difference is shown with its class, which the field declares (`config.Change`). A harmless change does not affect
training; a schedule-changing change affects training from here on. Changing architecture, data or seed would make the
saved tensors meaningless; such changes are refused unless listed in --allow-change.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from dp_prior.checkpoints.documents import CONFIG, DATA, FINGERPRINT, PROGRESS
from dp_prior.config import ORIGINS, ConfigError, Kind, change_of, child
from dp_prior.config.overrides import flat
from dp_prior.files.json_text import readable_json
from dp_prior.run.config import TrainConfig


class OtherRunError(ConfigError):
    """A checkpoint is of another run: other settings or data, with which training cannot go on."""


REFUSED_CHANGES: tuple[Kind, ...] = ("architecture", "data")
SPLIT = "data.split"
MOST_LINE = 160
"""Most characters of a difference on one line; a longer one has a line for each value."""

MOST_TEXT = 200
"""Most characters of a value in a line."""


def check_changes(
    before: dict[str, Any],
    now: dict[str, Any],
    global_batch_size: int,
    *,
    versions: dict[str, str] | None = None,
    allowed: Iterable[str] = (),
) -> list[str]:
    """Compare the documents of a snapshot with the documents of the run that would continue from the snapshot.

    Args:
        versions: installed version of each library, by name.
        allowed: settings that may change although their class is refused, including everything below them:
            `task.backbone`, `data`, or `data.fingerprint` for the content of the data set only.

    Returns:
        One line for each difference, with its class.

    Raises:
        ConfigError: `allowed` names no setting.
        OtherRunError: settings changed that may not; one report lists all of these.
    """
    allowed = tuple(allowed)
    if unknown := [key for key in allowed if key not in (FINGERPRINT, SPLIT) and not TrainConfig.has(key)]:
        remedy = "write the whole key, such as task.horizon"
        raise ConfigError("--allow-change", [f"there is no setting {key!r}; {remedy}" for key in unknown])
    lines: list[str] = []
    refused: dict[str, str] = {}
    for change in _changes(before, now, global_batch_size, versions or {}):
        if change.kind not in REFUSED_CHANGES:
            lines.append(f"{change}")
        elif any(f"{change.name}.".startswith(f"{part}.") for part in allowed):
            lines.append(f"{change}, allowed")
        else:
            refused[change.name] = f"{change}"
    if refused:
        parts = dict.fromkeys(".".join(name.split(".")[:2]) for name in refused)
        options = " ".join(f"--allow-change {part}" for part in parts)
        advice = (
            f"put these settings back, train in another directory (--set tracker.data_path=...), or, if it is meant, "
            f"resume with {options}"
        )
        raise OtherRunError("the checkpoint is of another run", list(refused.values()), advice=advice)
    return lines


class _Change(NamedTuple):
    """A setting, or a fact of a run, that differs from the checkpoint's."""

    name: str
    stored: str
    current: str
    kind: Kind
    remark: str = ""

    def __str__(self) -> str:
        line = f"{self.name}: {self.stored} in the checkpoint, {self.current} now{self.remark} ({self.kind})"
        if len(line) <= MOST_LINE:
            return line
        head = f"{self.name}{self.remark} ({self.kind})"
        return f"{head}\n      in the checkpoint: {self.stored}\n      now: {self.current}"


def _changes(
    before: dict[str, Any], now: dict[str, Any], global_batch_size: int, versions: dict[str, str]
) -> Iterator[_Change]:
    """What differs, see `check_changes`: settings, data, the size of a step, and the versions of libraries."""
    progress, stored_data, data = before[PROGRESS], before[DATA], now[DATA]
    stored_config = now[CONFIG] if before[CONFIG] == now[CONFIG] else completed(before[CONFIG])
    stored_settings, settings = flat(stored_config), flat(now[CONFIG])
    consequences = _consequences(stored_settings, settings)
    for key, stored, current in differences(stored_settings, settings):
        if key not in consequences and not key.startswith(ORIGINS):
            yield _Change(key, stored, current, kind_of(key))
    stored_rows, rows = stored_data.get("rows"), data.get("rows")
    if stored_data["fingerprint"] != data["fingerprint"]:
        prints = stored_data["fingerprint"][:12], data["fingerprint"][:12]
        yield _Change(FINGERPRINT, *prints, "data", ": the data set has changed")
    elif stored_rows != rows:
        counts = f"{_json(stored_rows)} rows", f"{_json(rows)} rows"
        yield _Change(SPLIT, *counts, "data", ": other metadata moves rows to other parts")
    stored_size = progress["global_batch_size"]
    if stored_size != global_batch_size:
        sizes = str(stored_size), str(global_batch_size)
        yield _Change("global batch size", *sizes, "schedule-changing", "; no sample is skipped")
    stored_versions = {**before[CONFIG].get(ORIGINS, {}), **progress.get("versions", {})}
    for name, current in {**versions, **now[CONFIG].get(ORIGINS, {})}.items():
        stored = stored_versions.get(name, "unknown")
        if stored != current:
            yield _Change(f"version of {name}", stored, current, "harmless", "; the last bits of results may differ")


def _consequences(*settings: Mapping[str, Any]) -> set[str]:
    """Settings whose change says nothing, or only what the change of another setting says."""
    keys = {"description", "train.shard_optimizer"}  # train.shard says the same
    if all(values.get("data.batch_size") == values.get("data.global_batch_size") for values in settings):
        keys.add("data.batch_size")  # it was omitted in both
    return keys


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Compare flat settings: dotted key and both values as JSON of each difference; lists of as many objects are
    compared object by object."""
    for key in sorted(old.keys() | new.keys()):
        was, becomes = old.get(key), new.get(key)
        lists = [value for value in (was, becomes) if isinstance(value, list)]
        is_paired = len(lists) == 2 and len(was) == len(becomes)
        if is_paired and all(isinstance(entry, dict) for entry in was + becomes):
            for index, (first, second) in enumerate(zip(was, becomes, strict=True)):
                yield from differences(flat(first), flat(second), f"{prefix}{key}.{index}.")
        elif was != becomes:
            yield f"{prefix}{key}", _json(was), _json(becomes)


def _json(value: Any) -> str:
    """A value as JSON, cut where it is long."""
    text = readable_json(value)
    return text if len(text) <= MOST_TEXT else f"{text[: MOST_TEXT - 40]} ... ({len(text)} characters)"


def kind_of(key: str) -> Kind:
    """The class that the innermost field around a setting declares; the setting is given by its dotted key."""
    annotation: Any = TrainConfig
    kind: Kind = "schedule-changing"
    inside: Mapping[str, Kind] = {}
    for name in key.split("."):
        annotation = child(annotation, name)
        declared = change_of(annotation)
        kind, inside = (declared.kind, declared.inside) if declared else (inside.get(name, kind), {})
    return kind


def completed(config: dict[str, Any]) -> dict[str, Any]:
    """The stored configuration, with defaults for fields added since; these defaults keep the meaning.

    A configuration that this version cannot read is returned unchanged, so that the comparison shows every difference.
    """
    try:
        return TrainConfig.from_json(json.dumps(config)).model_dump(mode="json")
    except ConfigError:
        return config
