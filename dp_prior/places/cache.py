"""Checkpoints in remote places -> directories in a cache on this machine.

A place is a folder with pointers `best.json` and `latest.json` to folders `checkpoints/step_00012000` that never
change, or is itself one checkpoint with its manifest. Only files that a manifest lists are fetched, under plain names;
each has the manifest's size and hash before it gets its name, and nothing in them is ever run. The cache is by content:
what was fetched once is not fetched again, from wherever.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Protocol

from dp_prior.checkpoints.format import MANIFEST, DamagedError, FileEntry, parse_manifest, read_manifest
from dp_prior.durable import replace_file, seal, unseal
from dp_prior.places.download import LARGEST_SMALL, NoPlaceError, RemoteError, download

CACHE = Path("~/.cache/dp_prior")
MODEL_FILES = ("model.safetensors", "config.json", "spec.json")  # what is needed to act
REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_FOLDER = re.compile(r"checkpoints/step_\d{8,}(_\d+)?")
_STEP = re.compile(r"step_\d{8,}(_\d+)?")
_TIMEOUT_S = 30.0
_PIECE = 1 << 20

Prefer = Literal["best", "latest"]


class Source(Protocol):
    """One remote folder. Raises FileNotFoundError for what is not there and RemoteError for all other trouble."""

    def small(self, path: str) -> bytes: ...

    def obtain(self, path: str, entry: FileEntry, target: Path) -> None: ...


def fetch(reference: str, prefer: Prefer, *, whole: bool, cache: Path | None = None, **hub: Any) -> Path:
    """The directory of a checkpoint that a reference with a scheme means.

    Args:
        reference: `hf://user/name`, `https://...#sha256=...`, `wandb://entity/project/name:alias`, or a URL that
            fsspec knows; the first and the last may end in `@best`, `@latest` or `@step_00012000`, the first also in
            `@REVISION`.
        prefer: what a place stands for when the reference does not say.
        whole: False for what is needed to act.
        cache: directory of what was fetched; None for `~/.cache/dp_prior`.
        hub: `token`, `cache_dir`, `local_files_only`, `force_download` for the Hub's client.

    Raises:
        FileNotFoundError: there is no such place or no checkpoint in it.
        RemoteError: it cannot be reached, refuses, or holds something else than it should.
    """
    cache = (CACHE if cache is None else cache).expanduser()
    scheme, _, rest = reference.partition("://")
    which: str | None = None
    source: Source
    if scheme in ("http", "https"):
        url, digest = _pinned(reference)
        found = _cached(cache, digest, whole)
        if found is not None:
            return found
        source = _Web(url, digest)
    elif scheme == "hf" and REPO.fullmatch(rest.partition("@")[0]):
        from dp_prior.places.hub_source import HubSource

        repo, _, which = rest.partition("@")
        revision = None if which in ("", "best", "latest") or _STEP.fullmatch(which) else which
        source = HubSource(repo, revision, **hub)
        which = None if revision else which or None
    elif scheme == "wandb":
        from dp_prior.places.wandb_source import WandbRunSource, WandbSource

        parts = rest.split("/")
        if len(parts) > 3 and parts[2] == "runs":
            source = WandbRunSource("/".join([*parts[:2], parts[3]]), "/".join(parts[4:]))
        else:
            name, _, alias = rest.partition(":")
            other = "latest" if prefer == "best" else "best"
            source = WandbSource(name, (alias,) if alias else (prefer, other))
    else:
        url, which = reference, None
        before, _, after = reference.rpartition("@")
        if before and (after in ("best", "latest") or _STEP.fullmatch(after)):
            url, which = before, after
        source = _Files(url)
    return _assemble(source, reference, which, prefer, whole, cache)


def _assemble(source: Source, text: str, which: str | None, prefer: Prefer, whole: bool, cache: Path) -> Path:
    folder, data = _locate(source, text, which, prefer, whole)
    prefix = f"{folder}/" if folder else ""
    manifest = parse_manifest(data, text)
    names = [name for name in manifest.files if whole or name in MODEL_FILES]
    digest = hashlib.sha256(data).hexdigest()
    found = _cached(cache, digest, whole)
    if found is not None:
        return found
    target = cache / (digest if len(names) == len(manifest.files) else f"{digest}_model")
    cache.mkdir(parents=True, exist_ok=True)
    part = cache / f"part_{target.name}"
    with _locked(cache / f"{target.name}.lock"):
        if target.exists():  # another process was faster, or it is damaged
            with contextlib.suppress(DamagedError):
                read_manifest(target)
                return target
            shutil.rmtree(target)
        part.mkdir(exist_ok=True)
        for name in names:
            entry = manifest.files[name]
            if not (part / name).exists() or (part / name).stat().st_size != entry.size:
                source.obtain(prefix + name, entry, part / name)
        content = unseal(data)
        files = {name: content["files"][name] for name in names}
        replace_file(part / MANIFEST, data if len(names) == len(manifest.files) else seal({**content, "files": files}))
        for leftover in part.glob("*.part"):
            leftover.unlink()
        os.rename(part, target)
    return target


def _locate(source: Source, text: str, which: str | None, prefer: Prefer, whole: bool) -> tuple[str, bytes]:
    """Folder of the checkpoint, and its manifest."""
    if which is not None and _STEP.fullmatch(which):
        return f"checkpoints/{which}", source.small(f"checkpoints/{which}/{MANIFEST}")
    wanted = which or prefer
    if wanted == "best" and not whole and (data := _small(source, MANIFEST)) is not None:
        return "", data
    for kind in (wanted, *(() if which else ("best", "latest"))):
        if (pointer := _small(source, f"{kind}.json")) is not None:
            return _follow(source, text, pointer)
    if (data := _small(source, MANIFEST)) is not None:
        return "", data
    what = f"no {which} checkpoint" if which else f"no checkpoint: neither {MANIFEST} nor best.json nor latest.json"
    raise FileNotFoundError(f"{text} holds {what}")


def _small(source: Source, path: str) -> bytes | None:
    """The content of a file, None if there is no such file in a place that is there."""
    try:
        return source.small(path)
    except NoPlaceError:
        raise
    except FileNotFoundError:
        return None


def _follow(source: Source, text: str, pointer: bytes) -> tuple[str, bytes]:
    try:
        named = json.loads(pointer)
        folder, digest = named["folder"], named["manifest_sha256"]
        is_sound = bool(_FOLDER.fullmatch(folder))
    except (ValueError, KeyError, TypeError, RecursionError):
        is_sound = False
    if not is_sound:
        raise RemoteError(f"{text}: its pointer does not name a checkpoint")
    data = source.small(f"{folder}/{MANIFEST}")
    if hashlib.sha256(data).hexdigest() != digest:
        raise RemoteError(f"{text}: {folder}/{MANIFEST} is not the one that its pointer names")
    return folder, data


def _cached(cache: Path, digest: str, whole: bool) -> Path | None:
    for name in (digest,) if whole else (digest, f"{digest}_model"):
        with contextlib.suppress(DamagedError):
            if (cache / name).is_dir():
                read_manifest(cache / name)
                return cache / name
    return None


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with open(path, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _pinned(reference: str) -> tuple[str, str]:
    url, _, fragment = reference.partition("#")
    name, _, digest = fragment.partition("=")
    if name != "sha256" or not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise FileNotFoundError(
            f"{reference!r} needs the hash of its manifest: {url}#sha256=...; `dp-prior export` prints it, and "
            f"`sha256sum {MANIFEST}` does"
        )
    return url.rstrip("/"), digest


class _Web:
    """A checkpoint directory behind a web server; its manifest has a hash that was agreed beforehand."""

    def __init__(self, url: str, digest: str):
        self._url = url
        self._digest = digest

    def small(self, path: str) -> bytes:
        if path != MANIFEST:
            raise FileNotFoundError(f"{self._url} is one checkpoint")
        data = b""
        try:
            for piece in self._read(path, 0):
                data += piece
                if len(data) > LARGEST_SMALL:
                    raise RemoteError(f"{self._url}/{path} is larger than {LARGEST_SMALL} bytes")
        except OSError as error:
            if getattr(error, "code", None) in (404, 410):
                raise FileNotFoundError(f"there is no {self._url}/{path}") from None
            raise RemoteError(f"{self._url}/{path} cannot be read: {error}") from None
        if hashlib.sha256(data).hexdigest() != self._digest:
            raise RemoteError(f"{self._url}/{path} does not have the SHA-256 of the reference")
        return data

    def obtain(self, path: str, entry: FileEntry, target: Path) -> None:
        download(lambda start: self._read(path, start), target, entry.size, entry.sha256)

    def _read(self, path: str, start: int) -> Iterator[bytes]:
        from http.client import HTTPException
        from urllib.request import Request, urlopen

        request = Request(f"{self._url}/{path}", headers={"Range": f"bytes={start}-"} if start else {})
        try:
            with urlopen(request, timeout=_TIMEOUT_S) as answer:
                skipped = start if start and answer.status != 206 else 0  # it does not know ranges
                while skipped:
                    skipped -= len(answer.read(min(_PIECE, skipped))) or skipped
                while piece := answer.read1(_PIECE):  # what has come, so that little is lost when no more comes
                    yield piece
        except HTTPException as error:
            raise OSError(f"{type(error).__name__}") from None


class _Files:
    """A folder that fsspec knows."""

    def __init__(self, url: str):
        import fsspec

        self._url = url
        try:
            self._fs, self._root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise RemoteError(f"{url} cannot be read: {error}") from None

    def small(self, path: str) -> bytes:
        with self._told(path), self._fs.open(f"{self._root}/{path}", "rb") as file:
            data = file.read(LARGEST_SMALL + 1)
        if len(data) > LARGEST_SMALL:
            raise RemoteError(f"{self._url}/{path} is larger than {LARGEST_SMALL} bytes")
        return data

    def obtain(self, path: str, entry: FileEntry, target: Path) -> None:
        with self._told(path):
            download(lambda start: self._read(path, start), target, entry.size, entry.sha256)

    def _read(self, path: str, start: int) -> Iterator[bytes]:
        with self._fs.open(f"{self._root}/{path}", "rb") as file:
            file.seek(start)
            while piece := file.read(_PIECE):
                yield piece

    @contextlib.contextmanager
    def _told(self, path: str) -> Iterator[None]:
        """Whatever a file system raises, in one word: each has exceptions of its own."""
        try:
            yield
        except (FileNotFoundError, IsADirectoryError):
            raise FileNotFoundError(f"there is no {self._url}/{path}") from None
        except RemoteError:
            raise
        except Exception as error:
            raise RemoteError(f"{self._url}/{path} cannot be read: {type(error).__name__}") from None
