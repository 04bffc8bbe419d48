"""Weights & Biases as a place for checkpoints: each is one version of an artifact, complete or not there.

A version never changes, and W&B moves its aliases `best` and `latest` when it is complete, so the protocol of
`dp_prior.places.delivery` is W&B's own. The key comes from `wandb login` or WANDB_API_KEY.
"""

from __future__ import annotations

import base64
import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from dp_prior.places.delivery import DeliveryError, Destination, Parcel, stays
from dp_prior.places.upload import UploadConfig

_API_TIMEOUT_S = 30


class WandbSaverConfig(UploadConfig):
    """Sends checkpoints to Weights & Biases as versions of an artifact, with the aliases `best`, `latest` and the step.

    They are logged by a run of their own, of job type `checkpoints`, so that no logger has to be online.
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

    def destination(self) -> Destination:
        """See `UploadConfig`."""
        return Artifacts(self)


class Artifacts:
    """Speaks to W&B through its own client."""

    def __init__(self, record: WandbSaverConfig):
        self.record = record

    def check(self) -> str:
        """Whether there is a key that the server accepts."""
        with _translated():
            wandb = _client()
            return f"user {wandb.Api(timeout=_API_TIMEOUT_S).viewer.username} logs to {self.record.project}"

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
                reason = stays(there, parcel) if "best" in parcel.kinds else None
                aliases = [kind for kind in parcel.kinds if kind != "best" or reason is None]
                pointer = json.loads(parcel.pointer(parcel.intent["name"]))
                artifact = wandb.Artifact(record.artifact, type="model", metadata=pointer)
                for name in parcel.files():
                    artifact.add_file(str(parcel.directory / name), name=name, policy="immutable", skip_cache=True)
                spend()
                logged = run.log_artifact(artifact, aliases=[*aliases, parcel.intent["name"]]).wait()
                wrong = _differences(parcel, logged.manifest.entries)
                if wrong:
                    raise DeliveryError("unavailable", f"{logged.name} is not what was sent: {', '.join(wrong)}")
            finally:
                run.finish()
        return f"{logged.name} is up" + (f" as {' and '.join(aliases)}" if aliases else ""), reason

    def _pointer(self, wandb: Any, path: str) -> bytes | None:
        """What the present best says of itself."""
        try:
            return json.dumps(wandb.Api(timeout=_API_TIMEOUT_S).artifact(path).metadata).encode()
        except wandb.errors.CommError as error:
            if "not found" in str(error) or "does not contain" in str(error) or "could not find" in str(error).lower():
                return None
            raise
        except ValueError:
            return None


def _client() -> Any:
    try:
        import wandb
    except ImportError:
        raise DeliveryError("refused", "wandb is not installed; pip install wandb") from None
    return wandb


def _differences(parcel: Parcel, entries: dict[str, Any]) -> list[str]:
    """Names of files that are missing, too many, or of another size or MD5."""
    wrong = set(parcel.files()) ^ set(entries)
    for name, (size, _) in parcel.files().items():
        if name in entries:
            digest = base64.b64encode(_md5(parcel.directory / name)).decode()
            if (entries[name].size, entries[name].digest) != (size, digest):
                wrong.add(name)
    return sorted(wrong)


def _md5(path: Path) -> bytes:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "md5").digest()


@contextmanager
def _translated() -> Iterator[None]:
    """Errors of the client in the words of the queue; their texts are not passed on."""
    wandb = _client()
    try:
        yield
    except (wandb.errors.UsageError, wandb.errors.AuthenticationError):
        raise DeliveryError("refused", "there is no W&B key, or it is not accepted; run `wandb login`") from None
    except wandb.errors.Error as error:
        raise DeliveryError("unavailable", f"W&B cannot be reached or refuses ({type(error).__name__})") from None
