"""Weights & Biases: checkpoints sent as versions of an artifact, and read from an artifact or the files of a run.

A version never changes, and W&B moves its aliases `best` and `latest` when it is complete, so the protocol of
`dp_prior.places.destination` is W&B's own. The key comes from `wandb login` or WANDB_API_KEY.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from dp_prior.checkpoints.format import MANIFEST, FileEntry
from dp_prior.places.destination import DeliveryError
from dp_prior.places.parcel import Parcel
from dp_prior.places.pointer import Pointer, worse_than
from dp_prior.places.source import NoPlaceError, RemoteError
from dp_prior.places.upload import UploadConfig
from dp_prior.regular_files import UnfitError, read_small

_TIMEOUT_S = 30


class WandbSaverConfig(UploadConfig):
    """Sends checkpoints to Weights & Biases as versions of an artifact, with the aliases `best`, `latest` and the step.

    A separate W&B run of job type `checkpoints` logs them, so that no logger has to be online.
    """

    type: Literal["wandb"] = "wandb"

    project: str = Field(default="dp_prior", min_length=1)
    """Project that the artifact belongs to."""

    entity: str | None = None
    """User or team; null for the default of the account."""

    artifact: str = Field(default="policy", pattern=r"^[A-Za-z0-9][\w.-]*$")
    """Name of the artifact."""

    @property
    def place(self) -> str:
        """See `UploadConfig`."""
        return f"wandb {'/'.join(filter(None, (self.entity, self.project, self.artifact)))}"

    def destination(self) -> ArtifactDestination:
        """See `UploadConfig`."""
        return ArtifactDestination(self)


class ArtifactDestination:
    """An artifact to send to; see `Destination`."""

    def __init__(self, record: WandbSaverConfig):
        self.record = record

    def check(self) -> str:
        """Whether there is a key that the server accepts."""
        with _translated():
            wandb = _client()
            return f"user {wandb.Api(timeout=_TIMEOUT_S).viewer.username} logs to {self.record.project}"

    def deliver(self, parcel: Parcel, spend: Callable[[], None]) -> tuple[str, str | None]:
        """One version with all files; the client sends only what the server does not have."""
        record = self.record
        with _translated(), tempfile.TemporaryDirectory(prefix="dp_prior_wandb_") as place:
            wandb = _client()
            settings = wandb.Settings(silent=True, console="off", x_disable_stats=True)
            run = wandb.init(
                project=record.project, entity=record.entity, job_type="checkpoints", dir=place, settings=settings
            )
            try:
                if run.offline:
                    raise DeliveryError("offline", "W&B is in offline mode, so nothing is sent")
                there = self._pointer(wandb, f"{run.entity}/{run.project}/{record.artifact}:best")
                pointer = parcel.pointer(parcel.intent.name)
                reason = worse_than(there, pointer) if "best" in parcel.kinds else None
                aliases = [kind for kind in parcel.kinds if kind != "best" or reason is None]
                artifact = wandb.Artifact(record.artifact, type="model", metadata=pointer.model_dump())
                for name in parcel.files():
                    artifact.add_file(str(parcel.directory / name), name=name, policy="immutable", skip_cache=True)
                spend()
                logged = run.log_artifact(artifact, aliases=[*aliases, parcel.intent.name]).wait()
                wrong = _differences(parcel, logged.manifest.entries)
                if wrong:
                    raise DeliveryError("unavailable", f"{logged.name} is not what was sent: {', '.join(wrong)}")
            finally:
                run.finish()
        return f"{logged.name} is uploaded" + (f" as {' and '.join(aliases)}" if aliases else ""), reason

    def _pointer(self, wandb: Any, path: str) -> Pointer | None:
        """The metadata of the present best, which are its pointer."""
        try:
            return Pointer.parse(json.dumps(wandb.Api(timeout=_TIMEOUT_S).artifact(path).metadata).encode())
        except wandb.errors.CommError as error:
            if "not found" in str(error) or "does not contain" in str(error) or "could not find" in str(error).lower():
                return None
            raise
        except ValueError:
            return None


def _differences(parcel: Parcel, entries: dict[str, Any]) -> list[str]:
    """Names of files that are missing, unexpected, or of another size or MD5."""
    wrong = set(parcel.files()) ^ set(entries)
    for name, entry in parcel.files().items():
        if name in entries:
            digest = base64.b64encode(_md5(parcel.directory / name)).decode()
            if (entries[name].size, entries[name].digest) != (entry.size, digest):
                wrong.add(name)
    return sorted(wrong)


def _md5(path: Path) -> bytes:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "md5").digest()


@contextmanager
def _translated() -> Iterator[None]:
    """Raise errors of the client as DeliveryError; their texts are not passed on."""
    try:
        wandb = _client()
    except ImportError as error:
        raise DeliveryError("refused", str(error)) from None
    try:
        yield
    except (wandb.errors.UsageError, wandb.errors.AuthenticationError):
        raise DeliveryError("refused", "there is no W&B key, or it is not accepted; run `wandb login`") from None
    except wandb.errors.Error as error:
        raise DeliveryError("unavailable", f"W&B cannot be reached or refuses ({type(error).__name__})") from None


class ArtifactSource:
    """An artifact to read from; see `Source`. It is one checkpoint."""

    def __init__(self, path: str, aliases: tuple[str, ...]):
        """
        Args:
            path: `entity/project/name`.
            aliases: or versions; the first that exists is used.
        """
        self._path = path
        self._aliases = aliases
        self._artifact: Any = None

    def read(self, path: str, most: int) -> bytes:
        """See `Source`; only the manifest."""
        if path != MANIFEST:
            raise FileNotFoundError(f"wandb://{self._path} is one checkpoint")
        with self._told(), tempfile.TemporaryDirectory() as place:
            entry = self._entry(path)
            if entry.size is not None and entry.size > most:
                raise RemoteError(f"wandb://{self._path}: {path} has {entry.size} bytes, expected at most {most}")
            try:
                return read_small(Path(entry.download(root=place)), most)
            except UnfitError as error:
                raise RemoteError(f"wandb://{self._path}: {path} {error.problem}") from None

    def download(self, path: str, entry: FileEntry, target: Path) -> None:
        """See `Source`; the client resumes nothing, so an interrupted download starts again."""
        with self._told():
            there = self._entry(path)
            if there.size is not None and there.size != entry.size:
                raise RemoteError(f"wandb://{self._path}: {path} has {there.size} bytes, expected {entry.size}")
            with tempfile.TemporaryDirectory(dir=target.parent, prefix=".part_") as place:
                found = Path(there.download(root=place, skip_cache=True))
                with open(found, "rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                    os.fsync(file.fileno())
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


class RunSource(ArtifactSource):
    """The files of a run below one folder, as `wandb.save` stored them; see `Source`."""

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
    """A run's file with the interface of an artifact's entry."""

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
        raise ImportError(f"wandb is not installed ({error}); pip install wandb") from error
    return wandb
