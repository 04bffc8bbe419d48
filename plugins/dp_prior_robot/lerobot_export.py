"""`dp-prior export --format lerobot`: a folder for `lerobot-rollout --policy.path=`, also sent to the Hub."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from dp_prior.checkpoints.documents import SOURCE
from dp_prior.checkpoints.format import MODEL_FILES, read_checkpoint
from dp_prior.config import ConfigError
from dp_prior.data.errors import DataError, UnreadableError
from dp_prior.data.formats.episode_store import EpisodeStore
from dp_prior.data.formats.lerobot.dataset import LeRobotStoreConfig
from dp_prior.data.recorded.trajectories import TrajectoriesConfig
from dp_prior.files.hub_files import HubRepository
from dp_prior.files.regular_files import expanded
from dp_prior.places.hub import publish
from dp_prior.places.local import copy_checkpoint
from dp_prior.places.reference import is_downloaded, resolve
from dp_prior.tasks.policy import DiffusionPolicy
from dp_prior.tensors.batch import Spec
from dp_prior.tensors.observations import obs_spec
from dp_prior_robot.export.graph_options import GraphOptions
from dp_prior_robot.export.lerobot_folder import lerobot_settings, write_lerobot_folder
from dp_prior_robot.export.lerobot_source import STATE
from dp_prior_robot.export.wiring import Wiring, wired
from dp_prior_robot.export.write import write_export
from dp_prior_robot.exported import stored_policy
from dp_prior_robot.stored_task import read_stored

PolicyForm = Literal["checkpoint", "onnx"]


def export_for_lerobot(
    reference: str,
    directory: Path,
    *,
    keys: Mapping[str, str],
    inside: PolicyForm = "checkpoint",
    address: str | None = None,
    repo: str | None = None,
    trained_on: str | None = None,
) -> list[str]:
    """Write the folder of a policy.

    Args:
        keys: LeRobot's key by the policy's observation, where the recorded names are others; see `Wiring.keys`.
        inside: the form of the policy in the folder.
        address: `host:port` of a server that runs the policy, which then is not in the folder.
        repo: repository of the Hub that gets the folder too; created as a private one if missing.
        trained_on: the LeRobot data set of the training, a directory or a repository of the Hub; None for the one that
            the checkpoint names, which is not looked for if the checkpoint comes from another machine.

    Returns:
        Lines: the folder, the page of the Hub, and the options that the first rollout must be given.

    Raises:
        ConfigError: the checkpoint holds no policy, no robot gives an observation of the policy, or `trained_on` is no
            data set.
        DataError: the files of `trained_on` cannot be read.
        FileExistsError: `directory` exists.
        RemoteError: the Hub refuses, or cannot be reached.
    """
    source = resolve(reference, whole=False)
    policy, task = stored_policy(source, (), "act on robots")
    origin = _origin(source)
    data, store, remark = _recorded(source, origin, trained_on, is_here=not is_downloaded(reference))
    reads = obs_spec(policy.spec, policy.normalizer)
    frames = {key: tuple(size) for key, size in origin.get("frames", {}).items()}
    wiring = wired(policy.spec, reads, keys, data, store, frames)
    is_continued = "prefix" if policy.max_delay is not None else "guided"
    merge = "naive" if inside == "onnx" else is_continued
    settings = lerobot_settings(policy, wiring, address=address, merge=merge)

    def write(place: Path) -> None:
        if inside == "onnx":
            options = GraphOptions(frames=_resized(policy, wiring))
            write_export(policy, place, "onnx", source=str(source), sampler=task.sampler, options=options)
        else:
            copy_checkpoint(source, place, MODEL_FILES)

    server = "" if address is None else f" --policy.address={shlex.quote(address)}"
    write_lerobot_folder(directory, settings, _card(directory.name, wiring, server), None if server else write)
    lines = [f"exported {source} to {directory}"]
    if server:
        lines.append(f"a rollout asks the server only by the option{server}")
    if repo is not None:
        page = publish(directory, repo, "Add a policy for lerobot-rollout")
        lines.append(f"sent to {page}")
    return [*lines, *_unknown(wiring, remark, policy.spec)]


def _resized(policy: DiffusionPolicy, wiring: Wiring) -> dict[str, tuple[int, int]]:
    """Height and width of the robot's frames by camera, where the graph must resize them as training did."""
    sizes = {key: wiring.frame_sizes.get(source) for key, source in wiring.keys.items() if key in policy.spec.fits}
    return {key: (size[0], size[1]) for key, size in sizes.items() if size is not None}


def _origin(source: Path) -> dict[str, Any]:
    """source.json of an imported checkpoint; empty for other checkpoints."""
    is_imported = (source / SOURCE).is_file()
    return read_checkpoint(source, [SOURCE]).documents[SOURCE] if is_imported else {}


def _recorded(
    source: Path, origin: Mapping[str, Any], trained_on: str | None, *, is_here: bool
) -> tuple[TrajectoriesConfig | None, EpisodeStore | None, str]:
    """The first data set that a checkpoint was trained on, its files if they are on this machine, and why not.

    Args:
        origin: see `_origin`; of an imported policy, whose configuration does not name the data set.
        trained_on: see `export_for_lerobot`.
        is_here: False for a downloaded checkpoint, whose paths are of another machine and lead to nothing here.

    Raises:
        ConfigError: `trained_on` is no data set.
        DataError: its files cannot be read.
    """
    data, stated = None, None if trained_on is None else _lerobot_set(trained_on).create()
    try:
        stored = read_stored(source).data
        sets = list(stored.recorded_sets().values()) if stored is not None else []
        if not sets:
            return None, None, "the policy was saved without its data set"
        data = sets[0]
        if stated is not None:
            return data, stated, ""
        if not is_here:
            return data, None, "the checkpoint was downloaded, so paths in its configuration are not followed"
        if "trained_on" not in origin:
            return data, data.episodes.create(), ""
        record = LeRobotStoreConfig.model_validate(origin["trained_on"])
        if origin.get("revision") is not None:
            name = repr(record.repo or str(record.path))
            whose = f"the data set {name} is named by files of {origin.get('place')!r}"
            return data, None, f"{whose}, and not looked for until you name it: --trained-on"
        return data, record.create(), ""
    except (ConfigError, DataError, UnreadableError, OSError, ImportError) as error:
        return data, None, f"the data set cannot be read ({' '.join(str(error).split())})"


def _lerobot_set(place: str) -> LeRobotStoreConfig:
    """The record of a LeRobot data set by its directory, or by its repository of the Hub.

    Raises:
        ConfigError: it is neither.
    """
    path = expanded(place)
    if path.is_dir():
        return LeRobotStoreConfig(path=path.resolve())
    repository = HubRepository.parse(place.removeprefix("hf://"))
    if repository is None:
        raise ConfigError("--trained-on", [f"{place!r} is neither a directory nor a repository of the Hub, user/name"])
    revision = {} if repository.revision is None else {"revision": repository.revision}
    return LeRobotStoreConfig(repo=repository.name, **revision)


def _unknown(wiring: Wiring, remark: str, spec: Spec) -> list[str]:
    """The options of lerobot-rollout for everything that neither the folder nor the policy states."""
    state = [key for key, source in wiring.keys.items() if source.startswith(STATE)]
    missing = {
        "state_names": wiring.state_names is None and not spec.names.keys() >= set(state),
        "action_names": wiring.action_names is None,
        "fps": wiring.fps is None,
        "frame_sizes": any(source.startswith("observation.image") and source not in wiring.frame_sizes
                           for source in wiring.keys.values()),
    }  # fmt: skip
    options = [f"--policy.{name}" for name, is_missing in missing.items() if is_missing]
    if not options:
        return []
    reason = remark or "the data set does not name them"
    return [f"not known here: {reason}; the first rollout asks for {', '.join(options)}"]


def _card(name: str, wiring: Wiring, server: str) -> str:
    """README.md of the folder.

    Args:
        server: the option that names the server, after a space; empty for a policy in the folder.
    """
    keys = "\n".join(f"| `{key}` | `{source}` |" for key, source in wiring.keys.items())
    rate = "" if wiring.fps is None else f" --fps={wiring.fps:g}"
    return f"""---
library_name: lerobot
pipeline_tag: robotics
tags: [robotics, lerobot, diffusion-policy, dp_prior]
---

# {name}

A diffusion policy of `dp_prior`, for LeRobot's programs:

```bash
pip install dp_prior lerobot_policy_dp_prior
lerobot-rollout --policy.path=PATH_OR_REPOSITORY --robot.type=ROBOT{rate}{server}
```

| the policy's observation | LeRobot's |
|---|---|
{keys}

Action: {", ".join(f"`{name}`" for name in wiring.action_names or []) or "names not recorded"}.
"""
