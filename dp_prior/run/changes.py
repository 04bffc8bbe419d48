"""Lists the changes between a checkpoint and the run that resumes from it, and refuses changes that are not allowed.

Every difference is shown with its class, which the field declares (`config.Change`). A harmless change does not affect
training; a schedule-changing change affects training from here on. Changing architecture, data or seed would make the
saved tensors meaningless; such changes are refused unless listed in --allow-change.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

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

    def see(name: str, was: str, becomes: str, kind: Kind, remark: str = "") -> None:
        line = f"{name}: {was} in the checkpoint, {becomes} now{remark} ({kind})"
        if len(line) > MOST_LINE:
            line = f"{name}{remark} ({kind})\n      in the checkpoint: {was}\n      now: {becomes}"
        if kind in REFUSED_CHANGES and not any(f"{name}.".startswith(f"{part}.") for part in allowed):
            refused[name] = line
        else:
            lines.append(line + (", allowed" if kind in REFUSED_CHANGES else ""))

    old = now[CONFIG] if before[CONFIG] == now[CONFIG] else completed(before[CONFIG])
    settings = flat(old), flat(now[CONFIG])
    consequences = _consequences(*settings)
    for key, was, becomes in differences(*settings):
        if key not in consequences and not key.startswith(ORIGINS):
            see(key, was, becomes, kind_of(key))
    was, becomes = before[DATA]["fingerprint"], now[DATA]["fingerprint"]
    rows_were, rows = before[DATA].get("rows"), now[DATA].get("rows")
    if was != becomes:
        see(FINGERPRINT, was[:12], becomes[:12], "data", ": the data set has changed")
    elif rows_were != rows:
        was, becomes = f"{_json(rows_were)} rows", f"{_json(rows)} rows"
        see(SPLIT, was, becomes, "data", ": other metadata moves rows to other parts")
    progress = before[PROGRESS]
    if progress["global_batch_size"] != global_batch_size:
        was, becomes = str(progress["global_batch_size"]), str(global_batch_size)
        see("global batch size", was, becomes, "schedule-changing", "; no sample is skipped")
    outside, were_outside = now[CONFIG].get(ORIGINS, {}), before[CONFIG].get(ORIGINS, {})
    for name, becomes in {**(versions or {}), **outside}.items():
        was = {**were_outside, **progress.get("versions", {})}.get(name, "unknown")
        if was != becomes:
            see(f"version of {name}", was, becomes, "harmless", "; the last bits of results may differ")
    if refused:
        parts = dict.fromkeys(".".join(name.split(".")[:2]) for name in refused)
        options = " ".join(f"--allow-change {part}" for part in parts)
        advice = (
            f"put these settings back, train in another directory (--set tracker.data_path=...), or, if it is meant, "
            f"resume with {options}"
        )
        raise OtherRunError("the checkpoint is of another run", list(refused.values()), advice=advice)
    return lines


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
