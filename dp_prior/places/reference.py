"""Resolves references to checkpoints to directories on this machine.

| reference | checkpoint |
|---|---|
| `PATH` | a run, its `checkpoints` directory, or one checkpoint |
| `hf://user/name` | a repository of the Hub |
| `wandb://entity/project/name:alias` | an artifact; `wandb://entity/project/runs/ID/folder` is files of a run |
| `https://...#sha256=...` | one checkpoint, pinned by the hash of its manifest |
| any other URL | a folder that fsspec knows |

Paths, repositories and folders may end in `@best`, `@latest` or `@step_00012000`, repositories also in `@REVISION`.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dp_prior.checkpoints.format import MANIFEST, CheckpointError, read_manifest
from dp_prior.checkpoints.retention import monitored, ranked
from dp_prior.checkpoints.scan import STEP, StoredCheckpoint, scan
from dp_prior.files.entry_points import misplaced
from dp_prior.files.regular_files import expanded

if TYPE_CHECKING:
    from dp_prior.places.checkpoint_cache import Prefer
    from dp_prior.places.source import Source

log = logging.getLogger(__name__)


def resolve(
    reference: str | Path,
    prefer: Prefer = "best",
    *,
    whole: bool = True,
    cache: Path | None = None,
    newest: bool = False,
    **hub: Any,
) -> Path:
    """Resolve a reference to the directory of a checkpoint or export; downloads a remote checkpoint into the cache.

    Local checkpoints are recognised by their manifests; hashes are not compared here.

    Args:
        reference: see the module.
        prefer: `best` or `latest`, for a run or place whose reference names neither; falls back to the other.
        whole: False if the files for inference are enough.
        cache: directory of downloaded checkpoints; None for `~/.cache/dp_prior`.
        newest: refuse the cache of the Hub's client if the Hub itself cannot be asked.
        hub: `token`, `cache_dir`, `local_files_only`, `force_download` for the Hub's client.

    Raises:
        FileNotFoundError: the path or place does not exist; the message names the path tried.
        CheckpointError: no checkpoint there is usable.
        RemoteError: a remote place cannot be reached, refuses access, or has unexpected content.
    """
    text = str(reference)
    if not is_downloaded(text):
        return _resolve_path(text, prefer)
    from dp_prior.places.checkpoint_cache import CACHE, cached, fetch

    cache = expanded(CACHE if cache is None else cache)
    source, which = _open(text, prefer, **hub)
    if newest:
        source.pin()
    if source.digest is not None:
        directory = cached(cache, source.digest, whole)
        if directory is not None:
            return directory  # the hash identifies the checkpoint without a connection
    return fetch(source, text, which, prefer, whole=whole, cache=cache)


def is_downloaded(reference: str | Path) -> bool:
    """Whether a reference leads to another machine, so that its files may be a stranger's. A path is the user's own."""
    return "://" in str(reference)


def names_content(text: str) -> bool:
    """Whether a remote reference pins a checkpoint or revision, rather than a place that may be empty."""
    scheme, _, rest = text.partition("://")
    if scheme == "wandb":
        return rest.split("/")[2:3] == ["runs"] or rest.partition(":")[2] not in ("", "best", "latest")
    which = rest.rpartition("@")[2] if "@" in rest else "latest"
    is_open = which in ("best", "latest", "main") or (scheme != "hf" and not STEP.fullmatch(which))
    return scheme in ("http", "https") or not is_open


def _open(text: str, prefer: Prefer, **hub: Any) -> tuple[Source, str | None]:
    """Open the source of a reference with a scheme; also returns the checkpoint that the reference names, or None."""
    scheme, _, rest = text.partition("://")
    before, _, which = text.rpartition("@")
    if which not in ("best", "latest") and not STEP.fullmatch(which):
        before, which = text, None
    if scheme in ("http", "https"):
        from dp_prior.places.web import WebSource

        return WebSource(text), None
    if scheme == "hf":
        from dp_prior.files.hub_files import HubRepository
        from dp_prior.places.hub import HubSource

        repository = HubRepository.parse(before.removeprefix("hf://"))
        if repository:
            return HubSource(repository, **hub), which
    if scheme == "wandb":
        from dp_prior.places.wandb import ArtifactSource, RunSource

        parts = rest.split("/")
        if len(parts) > 3 and parts[2] == "runs":
            return RunSource("/".join([*parts[:2], parts[3]]), "/".join(parts[4:])), None
        name, _, alias = rest.partition(":")
        other = "latest" if prefer == "best" else "best"
        return ArtifactSource(name, (alias,) if alias else (prefer, other)), None
    from dp_prior.places.fsspec import FsspecFolder

    return FsspecFolder(before), which


def _resolve_path(text: str, prefer: Prefer) -> Path:
    path, which = expanded(text), None
    if not path.exists() and "@" in text:
        before, _, which = text.rpartition("@")
        path = expanded(before)
    if not path.is_dir():
        remark = "" if text == str(path) else f" (reference {text!r})"
        finding = "it is a file, and a checkpoint is a folder" if path.exists() else "there is no such directory"
        raise FileNotFoundError(f"no checkpoint at {path}: {finding}{remark}{misplaced(path, 'checkpoint')}")
    if (path / MANIFEST).exists():
        if which is not None:
            raise FileNotFoundError(
                f"reference {text!r}: {path} is one checkpoint, so @{which} chooses nothing; leave it out"
            )
        read_manifest(path)
        return path
    if (path / "policy.json").exists():
        raise CheckpointError(
            f"{path} is an export for onnxruntime or torch.export, not a checkpoint: act with ExportAgent, or serve it "
            f"with dp-prior serve (docs/export.md)"
        )
    is_store = any(STEP.fullmatch(child.name) for child in path.iterdir())
    root = path if is_store else path / "checkpoints"
    stored, damages = scan(root)
    for damage in damages:
        log.warning("skipping checkpoint %s: %s", damage.path, damage.problem)
    if not stored:
        raise CheckpointError(
            f"no usable checkpoint at {path} (reference {text!r}): looked for directories step_00000000 with a "
            f"{MANIFEST} in {root}, found {f'{len(damages)} damaged ones' if damages else 'none'}"
            f"{misplaced(path, 'checkpoint')}"
        )
    return _choose(stored, which, prefer, text).path


def _choose(stored: list[StoredCheckpoint], which: str | None, prefer: str, text: str) -> StoredCheckpoint:
    if which not in (None, "latest", "best"):
        matches = [checkpoint for checkpoint in stored if checkpoint.path.name == which]
        if not matches:
            choices = ", ".join(["latest", "best", *(checkpoint.path.name for checkpoint in stored)])
            raise FileNotFoundError(f"reference {text!r}: there is no {which!r}; there are {choices}")
        return matches[0]
    if (which or prefer) == "latest":
        return stored[0]
    monitor, mode = monitored(stored)
    best = ranked(stored, monitor, mode)
    if best:
        return best[0]
    if which == "best":
        raise CheckpointError(f"reference {text!r}: no checkpoint has a value of {monitor!r}, so none is the best")
    return stored[0]
