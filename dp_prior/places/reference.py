"""From a reference to a directory on this machine.

A reference is a path, optionally with `@latest`, `@best` or `@step_00012000`: of a run, of its `checkpoints` directory,
or of one checkpoint. References to remote places have a scheme, such as `hf://`; see `dp_prior.places.cache`.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Literal

from dp_prior.checkpoints.format import MANIFEST, CheckpointError, read_manifest
from dp_prior.checkpoints.retention import ranked
from dp_prior.checkpoints.store import STEP, Stored, scan

log = logging.getLogger(__name__)


def resolve(
    reference: str | Path,
    prefer: Literal["best", "latest"] = "best",
    *,
    whole: bool = True,
    cache: Path | None = None,
    **hub: Any,
) -> Path:
    """The directory of the checkpoint or export that a reference means; what is remote is fetched into the cache.

    Of local ones only manifests are read.

    Args:
        reference: see the module.
        prefer: what a run stands for when the reference does not say; a run without a best gives its latest.
        whole: False if what is needed to act is enough.
        cache, hub: see `dp_prior.places.cache.fetch`.

    Raises:
        FileNotFoundError: there is nothing there, with the path tried.
        CheckpointError: there is, but no usable checkpoint, or a remote place cannot be reached.
    """
    text = str(reference)
    if "://" in text:
        from dp_prior.places.cache import fetch

        return fetch(text, prefer, whole=whole, cache=cache, **hub)
    path, which = Path(text).expanduser(), None
    if not path.exists() and "@" in text:
        before, _, which = text.rpartition("@")
        path = Path(before).expanduser()
    if not path.is_dir():
        raise FileNotFoundError(f"no checkpoint at {path}: there is no such directory (reference {text!r})")
    if (path / MANIFEST).exists():
        if which is not None:
            raise FileNotFoundError(
                f"reference {text!r}: {path} is one checkpoint, so @{which} chooses nothing; leave it out"
            )
        read_manifest(path)
        return path
    root = path if _is_store(path) else path / "checkpoints"
    found, damages = scan(root)
    for damage in damages:
        log.warning("skipping checkpoint %s: %s", damage.path, damage.problem)
    if not found:
        raise CheckpointError(
            f"no usable checkpoint at {path} (reference {text!r}): looked for directories step_00000000 with a "
            f"{MANIFEST} in {root}, found {len(damages)} damaged ones"
        )
    return _choose(found, which, prefer, text).path


def _is_store(path: Path) -> bool:
    return any(STEP.fullmatch(child.name) for child in path.iterdir())


def _choose(found: list[Stored], which: str | None, prefer: str, text: str) -> Stored:
    if which not in (None, "latest", "best"):
        named = [stored for stored in found if stored.path.name == which]
        if not named:
            known = ", ".join(["latest", "best", *(stored.path.name for stored in found)])
            raise FileNotFoundError(f"reference {text!r}: there is no {which!r}; there are {known}")
        return named[0]
    if (which or prefer) == "latest":
        return found[0]
    monitor, mode = found[0].manifest.monitor, found[0].manifest.mode
    best = ranked([stored.record(monitor) for stored in found], mode)
    if best:
        return next(stored for stored in found if stored.manifest.sequence == best[0].sequence)
    if which == "best":
        raise CheckpointError(f"reference {text!r}: no checkpoint has a value of {monitor!r}, so none is the best")
    return found[0]
