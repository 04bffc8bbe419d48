"""Remote checkpoints as directories in a cache on this machine, named by the SHA-256 of their manifest.

Only files that the manifest lists are downloaded, under plain names. A file gets its final name after its size and hash
were compared with the manifest, and is never executed. A checkpoint in the cache is never downloaded again.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from dp_prior.checkpoints.format import (
    LARGEST_MANIFEST,
    MANIFEST,
    MODEL_FILES,
    CheckpointError,
    DamagedError,
    FileEntry,
    Manifest,
    parse_manifest,
    read_manifest,
)
from dp_prior.checkpoints.scan import STEP
from dp_prior.files.durable import replace_file, sync_directory
from dp_prior.files.left_behind import FIRST_S
from dp_prior.files.locks import POLL_S, FileLock, NoLocksError
from dp_prior.places.errors import NoPlaceError, RemoteError
from dp_prior.places.pointer import LARGEST_POINTER, Pointer
from dp_prior.places.source import Source, StreamedSource, is_intact

CACHE = Path("~/.cache/dp_prior")

NEXT_S = 60.0
"""Seconds between two lines about a download; the first one comes after `FIRST_S`."""

log = logging.getLogger(__name__)

Prefer = Literal["best", "latest"]


def fetch(source: Source, text: str, which: str | None, prefer: Prefer, *, whole: bool, cache: Path) -> Path:
    """Find the directory of a checkpoint of a remote place; downloads a checkpoint that is not in the cache.

    Args:
        text: the reference, for messages.
        which: `best`, `latest` or the name of a folder; None for a reference that names none of these.
        prefer: the default for `which`.
        whole: False for the files for inference only.

    Raises:
        FileNotFoundError: the place does not exist or has no checkpoint.
        RemoteError: the place cannot be reached, refuses access, or has unexpected content.
        DamagedError: the manifest is invalid.
        CheckpointError: the file system of the cache has no locks.
    """
    folder, data = _locate(source, text, which, prefer, whole)
    manifest = parse_manifest(data, text)
    downloaded = manifest.only(None if whole else MODEL_FILES)
    digest = hashlib.sha256(data).hexdigest()
    entry_in_cache = cached(cache, digest, whole)
    if entry_in_cache is not None:
        return entry_in_cache
    is_whole = downloaded.files.keys() == manifest.files.keys()
    target = cache / (digest if is_whole else f"{digest}_model")
    cache.mkdir(parents=True, exist_ok=True)
    part = cache / f"part_{target.name}"
    with _locked(cache / f"{target.name}.lock"):
        if target.exists():  # another process was faster, or the entry is damaged
            with contextlib.suppress(DamagedError):
                read_manifest(target)
                return target
            shutil.rmtree(target)
        _download_files(source, text, folder, downloaded, part)
        replace_file(part / MANIFEST, data if is_whole else downloaded.encode())
        os.rename(part, target)
        sync_directory(cache)
    return target


def _download_files(source: Source, text: str, folder: str, manifest: Manifest, part: Path) -> None:
    """Download the files of a manifest that an unfinished folder lacks, and remove parts of files from the folder."""
    part.mkdir(exist_ok=True)
    is_streamed = isinstance(source, StreamedSource)  # clients of other places show progress themselves
    size = sum(entry.size for entry in manifest.files.values())
    with reported(text, part, size) if is_streamed else contextlib.nullcontext():
        for name, entry in manifest.files.items():
            if not (part / name).exists() or (part / name).stat().st_size != entry.size:
                _download(source, f"{folder}/{name}".lstrip("/"), entry, part / name)
    for leftover in part.glob("*.part"):
        leftover.unlink()


def _download(source: Source, path: str, entry: FileEntry, target: Path) -> None:
    """Download to `TARGET.part`, compare the hash, rename. A damaged download is fetched again, once."""
    part = target.with_name(f"{target.name}.part")
    for anew in (False, True):
        source.download(path, entry.size, part, anew=anew)
        if is_intact(part, entry):
            os.rename(part, target)
            return
        part.unlink()
    raise RemoteError(f"{path} does not have the SHA-256 of its manifest; it was deleted")


def cached(cache: Path, digest: str, whole: bool) -> Path | None:
    """The checkpoint in the cache whose manifest has this SHA-256; None if missing or damaged."""
    for name in (digest,) if whole else (digest, f"{digest}_model"):
        with contextlib.suppress(DamagedError):
            if (cache / name).is_dir():
                read_manifest(cache / name)
                return cache / name
    return None


def _locate(source: Source, text: str, which: str | None, prefer: Prefer, whole: bool) -> tuple[str, bytes]:
    """Find the folder of the checkpoint, and read its manifest."""
    if which is not None and STEP.fullmatch(which):
        return f"checkpoints/{which}", source.read(f"checkpoints/{which}/{MANIFEST}", LARGEST_MANIFEST)
    kinds = [which] if which else dict.fromkeys([prefer, "best", "latest"])
    names = [*(f"{kind}.json" for kind in kinds), MANIFEST]
    if (which or prefer) == "best" and not whole:  # the files for inference lie at the root as well
        names.insert(0, MANIFEST)
    for name in names:
        try:
            data = source.read(name, LARGEST_MANIFEST if name == MANIFEST else LARGEST_POINTER)
        except NoPlaceError:
            raise
        except FileNotFoundError:
            continue
        return ("", data) if name == MANIFEST else _follow(source, text, Pointer.parse(data))
    problem = f"no {which} checkpoint" if which else f"no checkpoint: neither {MANIFEST} nor best.json nor latest.json"
    raise FileNotFoundError(f"{text} holds {problem}")


def _follow(source: Source, text: str, pointer: Pointer | None) -> tuple[str, bytes]:
    if pointer is None or not pointer.folder.startswith("checkpoints/"):
        raise RemoteError(f"{text}: its pointer does not name a checkpoint")
    data = source.read(f"{pointer.folder}/{MANIFEST}", LARGEST_MANIFEST)
    if hashlib.sha256(data).hexdigest() != pointer.manifest_sha256:
        raise RemoteError(f"{text}: {pointer.folder}/{MANIFEST} is not the one that its pointer names")
    return pointer.folder, data


def _locked(path: Path) -> FileLock:
    """Raises CheckpointError if the file system has no locks."""
    try:
        begin, is_reported = time.monotonic(), False
        while (lock := FileLock.take(path)) is None:
            if not is_reported and time.monotonic() - begin >= FIRST_S:
                is_reported = True
                log.warning("waiting for another process that downloads the same checkpoint (it holds %s)", path)
            time.sleep(POLL_S)
    except NoLocksError as error:
        problem = f"{path} cannot be locked ({error.strerror}), which keeps two downloads apart"
        raise CheckpointError(f"{problem}; set HOME to a folder on a file system that supports flock") from None
    return lock


@contextlib.contextmanager
def reported(text: str, folder: Path, size: int, first_s: float = FIRST_S, next_s: float = NEXT_S) -> Iterator[None]:
    """A context in which `size` bytes arrive in `folder`; logs after `first_s` seconds, then every `next_s` seconds.

    Args:
        text: the reference, for the message.
    """
    is_over = threading.Event()

    def report() -> None:
        wait_s = first_s
        while not is_over.wait(wait_s):
            log.warning("%s: %.1f of %.1f MB have arrived; Ctrl-C ends the download", text, arrived(folder), size / 1e6)
            wait_s = next_s

    thread = threading.Thread(target=report, name="download report", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def arrived(folder: Path) -> float:
    """MB of all files in a folder; skips a file that is renamed meanwhile."""
    total = 0
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total / 1e6
