"""The files of a published policy: in a directory or in a repository of the Hub, bounded in size, and hashed."""

from __future__ import annotations

import hashlib
import os
import re
from typing import TypeVar

import torch
from torch import Tensor

from dp_prior.checkpoints.snapshot import file_tensors
from dp_prior.config import Config, ConfigError
from dp_prior.files.hub_files import HubRepository
from dp_prior.files.regular_files import SMALL, UnfitError, expanded, read_small
from dp_prior.places.errors import NoPlaceError
from dp_prior.places.hub import HubSource

LARGEST_WEIGHTS = 32 << 30  # bytes
_OF_TRAINING = ("checkpoints/last/pretrained_model", "pretrained_model")
"""LeRobot's last policy, in the directory of a training and of a checkpoint."""

_WRAPPERS = re.compile(r"^(?:module\.|_orig_mod\.)+|(?<=\.)_orig_mod\.")
"""Parts of names that DistributedDataParallel and torch.compile add."""

Record = TypeVar("Record", bound=Config)


class PublishedFiles:
    """Reads the files of one published policy.

    Attributes:
        place: the directory, or `hf://user/name`.
        hashes: SHA-256 by name of every file read so far.
    """

    def __init__(self, reference: str):
        """
        Args:
            reference: an existing directory, of LeRobot's trainings and checkpoints too, otherwise a repository of the
                Hub: `user/name`, optionally with `hf://` in front and `@REVISION` at the end.

        Raises:
            FileNotFoundError: `reference` is neither.
        """
        self._directory, self._hub = expanded(reference), None
        inside = (self._directory / name for name in _OF_TRAINING)
        self._directory = next((folder for folder in inside if folder.is_dir()), self._directory)
        self.place, self.hashes = str(self._directory.resolve()), {}
        if self._directory.is_file():
            raise FileNotFoundError(
                f"{reference} is a file; expected a directory. Of a checkpoint of Diffusion Policy, "
                f"scripts/export_diffusion_policy.py makes one; of improved-diffusion and DALLE2-pytorch, "
                f"scripts/export_torch_weights.py"
            )
        if not self._directory.is_dir():
            repository = HubRepository.parse(reference.removeprefix("hf://"))
            if repository is None:
                raise FileNotFoundError(f"{reference!r} is neither a directory nor a repository of the Hub, user/name")
            self._hub, self.place = HubSource(repository), f"hf://{repository.name}"

    @property
    def revision(self) -> str | None:
        """The commit of the repository, once a file was read; None for a directory."""
        return None if self._hub is None else self._hub.revision

    def has(self, name: str) -> bool:
        """Whether the file exists, for a small file such as a JSON document."""
        try:
            self._read(name, SMALL)
        except NoPlaceError:
            raise
        except FileNotFoundError:
            return False
        return True

    def document(self, name: str, record: type[Record]) -> Record:
        """A JSON file as a record.

        Raises:
            FileNotFoundError: the file does not exist.
            RemoteError: the Hub cannot be reached.
            ConfigError: the file is too large, or does not match the record.
        """
        try:
            text = self._hashed(name, SMALL).decode()
        except UnicodeDecodeError as error:
            raise ConfigError(self._path(name), [f"is not JSON: {error}"]) from None
        return record.from_json(text, source=self._path(name))

    def tensors(self, name: str) -> dict[str, Tensor]:
        """The tensors of a safetensors file, by the names of the network that was compiled or trained in parallel.
        Raises as `document`."""
        data = self._hashed(name, LARGEST_WEIGHTS)
        try:
            tensors = file_tensors(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        except ValueError as error:
            raise ConfigError(self._path(name), [f"is not a safetensors file: {error}"]) from None
        return {_WRAPPERS.sub("", name): tensor for name, tensor in tensors.items()}

    def _hashed(self, name: str, largest: int) -> bytes:
        try:
            data = self._read(name, largest)
        except UnfitError as error:
            raise ConfigError(self._path(name), [error.problem]) from None
        self.hashes[name] = hashlib.sha256(data).hexdigest()
        return data

    def _read(self, name: str, largest: int) -> bytes:
        if self._hub is not None:
            return self._hub.read(name, largest)
        path = self._directory / name
        try:
            return read_small(path, min(largest, os.stat(path).st_size))  # `read_small` allocates its limit
        except FileNotFoundError:
            held = ", ".join(sorted(os.listdir(self._directory))[:8]) or "no file"
            raise FileNotFoundError(
                f"{self.place} has no {name}, but {held}; expected all files of a policy that LeRobot has saved, or "
                f"those that a script of docs/import.md has written"
            ) from None

    def _path(self, name: str) -> str:
        return f"{self.place}/{name}"
