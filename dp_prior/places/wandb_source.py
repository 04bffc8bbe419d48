"""Weights & Biases as a source of checkpoints, through its client: an artifact at one version, or files of a run."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dp_prior.checkpoints.format import MANIFEST, FileEntry
from dp_prior.places.download import LARGEST_SMALL, NoPlaceError, RemoteError

_TIMEOUT_S = 30


class WandbSource:
    """See `dp_prior.places.cache.Source`. The whole artifact is one checkpoint."""

    def __init__(self, path: str, aliases: tuple[str, ...]):
        """
        Args:
            path: `entity/project/name`.
            aliases: or versions; the first that exists is taken.
        """
        self._path = path
        self._aliases = aliases
        self._artifact: Any = None

    def small(self, path: str) -> bytes:
        """The manifest."""
        if path != MANIFEST:
            raise FileNotFoundError(f"wandb://{self._path} is one checkpoint")
        with self._told(), tempfile.TemporaryDirectory() as place:
            entry = self._entry(path)
            if entry.size is not None and entry.size > LARGEST_SMALL:
                raise RemoteError(f"wandb://{self._path}: {path} has {entry.size} bytes")
            return Path(entry.download(root=place)).read_bytes()

    def obtain(self, path: str, entry: FileEntry, target: Path) -> None:
        """A file that is to have this size and hash; the client resumes nothing, so a broken download starts anew."""
        with self._told():
            there = self._entry(path)
            if there.size is not None and there.size != entry.size:
                raise RemoteError(f"wandb://{self._path}: {path} has {there.size} bytes, expected {entry.size}")
            with tempfile.TemporaryDirectory(dir=target.parent, prefix=".part_") as place:
                found = Path(there.download(root=place, skip_cache=True))
                with open(found, "rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                if digest != entry.sha256:
                    raise RemoteError(f"wandb://{self._path}: {path} does not have the SHA-256 of its manifest")
                found.rename(target)

    def _entry(self, path: str) -> Any:
        if self._artifact is None:
            self._artifact = self._find()
        try:
            return self._artifact.get_entry(path)
        except KeyError:
            raise FileNotFoundError(f"wandb://{self._path} has no {path}") from None

    def _find(self) -> Any:
        wandb = _client()
        api = wandb.Api(timeout=_TIMEOUT_S)
        for alias in self._aliases:
            try:
                return api.artifact(f"{self._path}:{alias}")
            except (wandb.errors.CommError, ValueError) as error:
                if "reach" in str(error) or "timed out" in str(error):
                    raise
        raise NoPlaceError(f"W&B has no {self._path}:{self._aliases[0]}, or hides it from this key")

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, RemoteError, ImportError):
            raise
        except Exception as error:
            if type(error).__module__.partition(".")[0] not in ("wandb", "requests", "urllib3"):
                raise
            raise RemoteError(
                f"wandb://{self._path} cannot be read ({type(error).__name__}); is there a key? `wandb login`"
            ) from None


class WandbRunSource(WandbSource):
    """The files of a run below one folder, as `wandb.save` put them there."""

    def __init__(self, run: str, folder: str):
        """
        Args:
            run: `entity/project/ID`.
            folder: of the checkpoint among the run's files; empty for all of them.
        """
        entity, project, run_id = run.split("/")
        super().__init__("/".join(filter(None, [entity, project, "runs", run_id, folder])), ())
        self._run, self._folder = run, folder

    def _entry(self, path: str) -> Any:
        if self._artifact is None:
            self._artifact = _client().Api(timeout=_TIMEOUT_S).run(self._run)
        try:
            file = self._artifact.file("/".join(filter(None, [self._folder, path])))
        except IndexError:
            raise FileNotFoundError(f"wandb://{self._path} has no {path}") from None
        return _RunFile(file)


class _RunFile:
    """A run's file with the manners of an artifact's."""

    def __init__(self, file: Any):
        self._file = file
        self.size = file.size

    def download(self, root: str, skip_cache: bool = True) -> str:
        with self._file.download(root=root, replace=True) as file:
            return file.name


def _client() -> Any:
    try:
        import wandb
    except ImportError as error:
        raise ImportError(f"wandb:// needs wandb ({error}): pip install wandb") from error
    return wandb
