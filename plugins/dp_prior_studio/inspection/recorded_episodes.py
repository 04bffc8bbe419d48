"""Looks at recorded episodes: at the keys that a configuration names, or at all keys."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from dp_prior.data.errors import DataError, first_few
from dp_prior.data.formats.episode_store import TASK, EpisodeStore
from dp_prior.data.formats.grouped import ACTIONS
from dp_prior.data.formats.store_record import EpisodeStoreRecord, RolloutNeeds
from dp_prior.data.recorded.camera import DepthConfig, ImageConfig
from dp_prior.data.recorded.language import FrameTexts
from dp_prior.data.recorded.selection import ACTION, ActionConfig, KeyConfig
from dp_prior.data.recorded.trajectories import TrajectoriesConfig
from dp_prior.files.json_text import readable_json
from dp_prior.networks.encoders.points import PointEncoderConfig
from dp_prior.run.config import TrainConfig
from dp_prior.tasks.policy_config import PolicyConfig
from dp_prior.tensors.normalizer import Limits, NormalizerConfig
from dp_prior_studio.inspection.beside_episodes import files_beside, rows_begin_at_the_bottom
from dp_prior_studio.inspection.cameras import look, off_rate
from dp_prior_studio.inspection.depth import look_at_depth
from dp_prior_studio.inspection.faults import find
from dp_prior_studio.inspection.finding import Finding, faulty_episodes, ranked, refused
from dp_prior_studio.inspection.inspection import Inspection
from dp_prior_studio.inspection.points import look_at_points
from dp_prior_studio.inspection.proposal import OBS_STEPS, propose_data
from dp_prior_studio.inspection.replays import replay_findings, replayed_keys
from dp_prior_studio.inspection.roles import Role, action_parts, gripper_commands
from dp_prior_studio.inspection.rotations import find_rotations
from dp_prior_studio.inspection.simulation import pose_action, simulation_gap
from dp_prior_studio.inspection.survey import Survey, spread_rows, survey
from dp_prior_studio.inspection.units import find_units

SAME = 0.999
"""Correlation from which two commands are the same."""


def inspect_named(config: TrainConfig, name: str, record: TrajectoriesConfig, data: dict[str, Any]) -> Inspection:
    """Recorded episodes by the names that a configuration gives to their keys.

    Args:
        record: of the set with this name.
        data: its JSON.
    """
    roles: dict[str, tuple[KeyConfig, Role]] = {key: (entry, "observation") for key, entry in record.obs.items()}
    roles["action"] = (record.action, "action")
    normalizers: dict[str, NormalizerConfig] = {}
    if isinstance(config.task, PolicyConfig):
        normalizers = {key: config.task.normalizer_of(key) for key in record.obs}
        normalizers["action"] = config.task.normalizer.get("action", Limits())
    store = record.downloaded({}).episodes.create()
    surveyed = survey(store, roles, record.choice, record.split.max_rows)
    surveyed = replace(surveyed, is_divided=bool((data.get("split") or {}).get("parts")))
    cameras = _by_key({camera: entry for camera, entry in record.images.items() if entry.render is None})
    unnamed = {key: shape for key, shape in surveyed.cameras.items() if key not in cameras}
    surveyed.unused.update({key: f"pictures of {shape}, not named in data.images" for key, shape in unnamed.items()})
    clouds = {entry.key: _point_encoder(config, point) for point, entry in record.points.items()}
    inspection = _looked_at(name, surveyed, cameras, _by_key(record.depth), clouds)
    drawn = {entry.key for entry in record.images.values() if entry.render is not None}
    for key in drawn.union(replayed_keys(config, name), *(entry.keys() for entry in record.language.values())):
        surveyed.unused.pop(key, None)
    replays = replay_findings(config, name, record) if not surveyed.problems else []
    gaps: list[Finding] = []
    if isinstance(config.task, PolicyConfig):
        signals = surveyed.of("observation", "action")
        columns = {ACTION if signal.role == "action" else signal.name: signal.columns for signal in signals}
        gaps = [
            Finding("note", line, code="rollout-gap") for line in record.rollout_gaps(columns, config.task.n_obs_steps)
        ]
    findings = ranked([*inspection.findings, *_beside_signals(record, surveyed), *replays, *gaps])
    return replace(inspection, findings=findings, normalizers=normalizers, data=data)


def _by_key(cameras: Mapping[str, Any]) -> dict[str, Any]:
    """Cameras by their key in the data set; cameras of folders, and of a repeated key, by the policy's name."""
    by_key: dict[str, Any] = {}
    for name, camera in cameras.items():
        by_key[name if camera.key is None or camera.key in by_key else camera.key] = camera
    return by_key


def _point_encoder(config: TrainConfig, key: str) -> PointEncoderConfig:
    """The encoder of a cloud; the default one where a configuration names none."""
    encoder = config.task.encoders.get(key) if isinstance(config.task, PolicyConfig) else None
    return encoder if isinstance(encoder, PointEncoderConfig) else PointEncoderConfig()


def _beside_signals(data: TrajectoriesConfig, surveyed: Survey) -> Iterator[Finding]:
    """Refusals of training about split, weights, embeddings and instructions, and its warnings about instructions."""
    both = surveyed.store, surveyed.chosen
    reads: list[Callable[[], object]] = [partial(data.split.of, *both)]
    reads += [partial(record.create, surveyed.chosen) for record in data.embeddings.values()]
    reads += [partial(record.create, *both) for record in (*data.language.values(), data.weights) if record is not None]
    for read in reads:
        try:
            part = read()
        except DataError as error:
            yield from refused(error.source, error.problems)
            continue
        if isinstance(part, FrameTexts):
            yield from (Finding("warning", doubt, code="instructions-same-embedding") for doubt in part.warnings)


def inspect_all(name: str, record: EpisodeStoreRecord, action: ActionConfig | None) -> Inspection:
    """Recorded episodes without a configuration: all their keys, and the `data` that would name these.

    Args:
        action: None for the key with its name.
    """
    store = record.create()
    surveyed, action, action_notes = _with_action(store, action)
    surveyed = _without_constants(surveyed)
    missing = [key for key in (*surveyed.cameras, *surveyed.depths) if record.is_remote and store.dtype(key) == "video"]
    cameras = dict.fromkeys(key for key in surveyed.cameras if key not in missing)
    depths = dict.fromkeys(key for key in surveyed.depths if key not in missing)
    inspection = _looked_at(name, surveyed, cameras, depths, dict.fromkeys(surveyed.clouds))
    notes = [Finding("note", line, code="beside-data") for line in files_beside(store, surveyed.count)]
    notes += [*off_rate(surveyed), *several_instructions(surveyed)]
    notes += [Finding("note", line, code="simulation-gap") for line in simulation_gap(surveyed)]
    if not surveyed.of("action"):
        notes += _without_action(surveyed)
    notes += action_notes
    notes += [Finding("note", line, code="rollout-gap") for line in _rollout_gaps(record, surveyed)]
    gaps = [f"{key}: videos on the Hub are downloaded if a configuration names them" for key in missing]
    inspection = replace(
        inspection,
        findings=ranked([*inspection.findings, *notes]),
        gaps=[*inspection.gaps, *gaps],
        passed=_passed(record, surveyed),
        turn="up_down" if rows_begin_at_the_bottom(store) else None,
        normalizers={signal.name: Limits() for signal in surveyed.of("observation", "action")},
    )
    episodes = json.loads(record.model_dump_json(exclude_unset=True))
    episodes = {name: value for name, value in episodes.items() if value is not None}  # the path of one on the Hub
    stated_action = {} if action is None else {"action": json.loads(action.model_dump_json(exclude_unset=True))}
    return replace(inspection, data=propose_data(inspection, episodes) | stated_action)


def _with_action(store: EpisodeStore, action: ActionConfig | None) -> tuple[Survey, ActionConfig | None, list[Finding]]:
    """Look at all keys, with the action that the user names, or that follows from the keys.

    Returns:
        The survey; the action, None for the key with its name; and notes about the action.
    """
    surveyed = survey(store, action=action)
    joined = _joined_action(surveyed) if action is None else None
    if joined is not None:
        surveyed, action = survey(store, action=joined), joined
    poses = pose_action(surveyed)
    if poses is not None:
        surveyed, action = survey(store, action=poses), poses
    notes = []
    if joined is not None:
        text = f"the action is joined from {first_few(joined.stored_keys, 8)}, by their names"
        notes.append(Finding("note", f"{text}; --set 'data.action.key=[...]' names other keys", code="action-joined"))
    if poses is not None:
        width, count = surveyed.of("action")[0].values.shape[1], len(poses.rotations)
        text = f"the {width} actions are poses, x, y, z, a rotation vector and the gripper of {count} "
        text += f"arm{'s' * (count > 1)}; rotations are learned as 6D, {width + 3 * count} numbers in all"
        notes.append(Finding("note", text, code="action-poses"))
    return surveyed, action, notes


def several_instructions(surveyed: Survey) -> Iterator[Finding]:
    """A warning about instructions, which first settings do not read, with the setting that reads them."""
    texts = [text for text in surveyed.texts if text.strip()]
    if len(texts) < 2:
        return
    key = {} if surveyed.store.text_key else {"key": TASK}
    line = readable_json({"instruction": {**key, "folder": {"path": "texts", "format": "parquet"}}})
    embed = "dp-prior embed CONFIG --model hashed --key instruction --out texts"
    text = f"{len(texts)} instructions, which first settings do not read, so that the policy cannot tell them apart"
    yield Finding(
        "warning",
        f'{text}: write "language": {line} into data, and embed the texts by {embed}',
        code="instructions-unread",
    )


def _joined_action(surveyed: Survey) -> ActionConfig | None:
    """The action of a data set that records commands in parts: those in a folder called action, or a named action and
    the commands of grippers that its numbers lack; None for a data set whose action is one key."""
    shapes = {signal.key: surveyed.store.keys()[signal.key] for signal in surveyed.signals}
    values = {signal.key: signal.values for signal in surveyed.signals}
    still = {key for key, numbers in values.items() if (numbers == numbers[:1]).all()}
    actions = surveyed.of("action")
    if not actions:
        parts = action_parts(shapes, still)
    else:
        grippers = set(gripper_commands(shapes, actions[0].key)) - still
        grippers = {key for key in grippers if not _holds(actions[0].values, values[key])}
        parts = [key for key in shapes if key in grippers]
        parts = [actions[0].key, *parts] if parts else []
    if not parts:
        return None
    return ActionConfig(key=parts[0] if len(parts) == 1 else tuple(parts))


def _without_action(surveyed: Survey) -> Iterator[Finding]:
    """Say why no action is read: no key has that name, or the key with the name holds no numbers. A key whose rows are
    refused has an error."""
    store, keys = surveyed.store, [*surveyed.store.keys()]
    named = [key for key in keys if key.rpartition("/")[2] in ACTIONS]
    texts = [key for key in named if not store.is_number(key)]
    if not named:
        remedy = surveyed.action_hint or "name it in data.action"
        yield Finding("note", f"no key is called action; {remedy}", code="action-unnamed")
    elif texts:
        problem = f"{texts[0]} holds {store.dtype(texts[0])}, no numbers, so no action is read"
        remedy = "save the commands as numbers, or name another key by --set data.action.key=KEY"
        yield Finding("warning", f"{problem}: {remedy}", code="action-unread")


def _holds(action: np.ndarray, command: np.ndarray) -> bool:
    """Whether a number of the action is a command (n, 1) at some scale."""
    rows = spread_rows(len(action))
    with np.errstate(invalid="ignore", divide="ignore"):
        together = np.corrcoef(action[rows].T.astype(np.float64), command[rows].T.astype(np.float64))[-1, :-1]
    return bool((abs(np.nan_to_num(together)) > SAME).any())


def _without_constants(surveyed: Survey) -> Survey:
    """The survey without observations that never change, unless a policy would then read nothing."""
    observations = surveyed.of("observation")
    constant = [
        signal.key
        for signal in observations
        if np.isfinite(signal.values).all() and not signal.statistics().varies.any()
    ]
    sensors = {**surveyed.cameras, **surveyed.depths, **surveyed.clouds}
    if not constant or (len(constant) == len(observations) and not sensors):
        return surveyed
    store, signals = surveyed.store, []
    for signal in surveyed.signals:
        is_constant = signal.role == "observation" and signal.key in constant
        signals.append(replace(signal, role="other") if is_constant else signal)
    lines = {
        key: f"{store.dtype(key)} {store.keys()[key]}, constant, which tells the policy nothing" for key in constant
    }
    return replace(surveyed, signals=signals, unused=surveyed.unused | lines)


def _rollout_gaps(record: EpisodeStoreRecord, surveyed: Survey) -> list[str]:
    """The observations and actions that a rollout lacks for a policy that reads all observations."""
    obs = {signal.key: signal.columns for signal in surveyed.of("observation")} | {key: [] for key in surveyed.clouds}
    action = list(itertools.chain.from_iterable(signal.columns for signal in surveyed.of("action")))
    return record.rollout_gaps(RolloutNeeds(obs, action, OBS_STEPS)) if obs or surveyed.cameras else []


def _passed(record: EpisodeStoreRecord, surveyed: Survey) -> dict[str, list[str]]:
    """Names of the numbers that a rollout gives, by observation, where it gives some and not all."""
    passed = {}
    for signal in surveyed.of("observation"):
        names = [name for name in signal.columns if record.passes(signal.key, name)]
        if 0 < len(names) < len(signal.columns) and len(set(signal.columns)) == len(signal.columns):
            passed[signal.key] = names
    return passed


def _looked_at(
    name: str,
    surveyed: Survey,
    cameras: Mapping[str, ImageConfig | None],
    depths: Mapping[str, DepthConfig | None],
    clouds: Mapping[str, PointEncoderConfig | None],
) -> Inspection:
    """The findings about signals, and about cameras, depths and clouds by key: the records of a configuration, or None
    without one."""
    strips, findings, gaps = look(surveyed, cameras)
    grey, distances, odd, unseen = look_at_depth(surveyed, depths)
    points, off, unread = look_at_points(surveyed, clouds)
    for key, shape in surveyed.depths.items():
        surveyed.unused[key] = f"depth of {shape}, not named in data.depth"
    for key, shape in surveyed.clouds.items():
        surveyed.unused[key] = f"points of {shape}, not named in data.points"
    stated_keys = [key for key, stated in (*depths.items(), *clouds.items()) if stated is not None]  # readable or not
    for key in (*stated_keys, *(entry.key for entry in (*distances, *points))):
        surveyed.unused.pop(key, None)
    remarks = [Finding("note", remark, code="remark") for remark in surveyed.store.remarks()]
    fault = surveyed.store.rate_fault()
    if fault:
        remarks.append(Finding("warning", fault, code="rate-form"))
    ordered = ranked(
        [*find(surveyed), *find_units(surveyed), *find_rotations(surveyed), *findings, *odd, *off, *remarks]
    )
    return Inspection(
        name,
        surveyed,
        findings=ordered,
        gaps=[*surveyed.gaps, *gaps, *unseen, *unread],
        strips=[*strips, *grey],
        depths=distances,
        clouds=points,
        leave_out=faulty_episodes(surveyed, ordered),
    )
