"""Graphs of policies that act here, kept on the disk with what was measured of them: one folder for each graph.

A folder is named by a hash of whatever the graph depends on. It appears whole or not at all.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from dp_prior.files.durable import publish, replace_file, temporary_directory
from dp_prior.files.json_text import seal, unseal
from dp_prior.files.regular_files import expanded, open_regular, read_small
from dp_prior.tasks.policy import DiffusionPolicy
from dp_prior_robot.export.parity import versions

log = logging.getLogger(__name__)

CACHE = Path("~/.cache/dp_prior/networks")
DIGEST, CHOICES = "network.sha256", "choices.json"
"""Files beside the graphs of a folder: their hash, and what was measured of them."""

FORM = 3
"""Of the graphs; those in the cache that have an older form are not used."""

FORGOTTEN_S = 90 * 24 * 3600.0
"""Folders that no policy has used for this long are deleted when another one is stored."""

MOST_BYTES = 4 << 30
"""Bytes of all folders but the newest; those that no policy has used for the longest time are deleted first."""


def place_of(policy: DiffusionPolicy, module: nn.Module) -> Path:
    """The folder of the graph of a module of a policy, which need not be there."""
    about: Mapping[str, Any] = {"task": policy.record.to_document(), "spec": policy.spec.model_dump(mode="json")}
    digest = hashlib.sha256(json.dumps([FORM, versions(), about], sort_keys=True, default=str).encode())
    for name, tensor in module.state_dict().items():
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().contiguous().numpy().data)
    return expanded(CACHE) / digest.hexdigest()[:40]


def store(folder: Path, part: str, graphs: Callable[[], dict[str, bytes]]) -> None:
    """Export a part of a policy to a folder; those that are forgotten are deleted.

    Args:
        part: for the log.
        graphs: makes the contents of the graphs, by name of the file.
    """
    log.warning("exporting the policy's %s once, which takes half a minute, to %s", part, folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    _delete_unused(folder.parent)
    with temporary_directory(folder) as temporary:
        for name, content in graphs().items():
            (temporary / name).write_bytes(content)
        (temporary / DIGEST).write_text(_digest(temporary))
        with contextlib.suppress(FileExistsError):  # another process was faster
            publish(temporary, folder)


def check(folder: Path) -> None:
    """Note that a folder is used, and raise ValueError if its graphs are not what was stored."""
    with contextlib.suppress(OSError):  # a read-only disk, a folder of another user
        os.utime(folder)
    if _digest(folder) != read_small(folder / DIGEST).decode():
        raise ValueError(f"{folder} is damaged; the next start writes it again")


def remove(folder: Path) -> None:
    """Delete a folder, or a file in its place, so that the next start writes it again."""
    with contextlib.suppress(OSError):
        shutil.rmtree(folder) if folder.is_dir() and not folder.is_symlink() else folder.unlink()


def stored_choices(folder: Path) -> dict[str, bool]:
    """The measurements of earlier starts; those of a damaged file are made again."""
    try:
        return {key: bool(value) for key, value in unseal(read_small(folder / CHOICES)).items()}
    except (OSError, ValueError):
        return {}


def store_choices(folder: Path, choices: Mapping[str, bool]) -> None:
    """Keep the measurements for the next start; where the disk is full or read-only, that one measures again."""
    with contextlib.suppress(OSError):
        replace_file(folder / CHOICES, seal(dict(choices)))


def _delete_unused(networks: Path) -> None:
    """Delete the networks that no policy has used for `FORGOTTEN_S`, and the longest unused beyond `MOST_BYTES`."""
    times: dict[Path, float] = {}
    for network in networks.iterdir():
        with contextlib.suppress(OSError):  # another process deletes it
            times[network] = network.stat().st_mtime
    held = 0
    for network in sorted(times, key=lambda network: -times[network]):
        with contextlib.suppress(OSError):
            held += sum(file.stat().st_size for file in network.rglob("*") if file.is_file())
            if held > MOST_BYTES or time.time() - times[network] > FORGOTTEN_S:
                shutil.rmtree(network)


def _digest(folder: Path) -> str:
    """A hash of the graphs of a folder."""
    digests = []
    for path in sorted(folder.glob("*.onnx")):
        with open_regular(path) as file:
            digests.append(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}")
    return "\n".join(digests)
