"""The folder of an attempt: the paths of its files, and checks of a folder that the user names."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dp_prior.config import ConfigError
from dp_prior.files.durable import make_directory, replace_file, write_new
from dp_prior.files.json_text import encode_document, readable_json
from dp_prior.files.regular_files import read_object


@dataclass(frozen=True)
class AttemptFolder:
    """Paths of the files of an attempt below `path`."""

    path: Path

    @property
    def proposal(self) -> Path:
        """The configuration that `inspect` proposes, for a longer training."""
        return self.path / "proposal.json"

    @property
    def short(self) -> Path:
        """The configuration of the short training, written before its first step."""
        return self.path / "short.json"

    @property
    def times(self) -> Path:
        """The times of a step and of an evaluation, and the metrics of untrained weights."""
        return self.path / "times.json"

    @property
    def judgement(self) -> Path:
        """The errors of the trained policy and of simple predictions."""
        return self.path / "judgement.json"

    @property
    def inspection_page(self) -> Path:
        """The page of the data set."""
        return self.path / "inspection.html"

    @property
    def page(self) -> Path:
        """The page of the attempt."""
        return self.path / "report.html"

    @property
    def run(self) -> Path:
        """The run directory of the short training."""
        return self.path / "run"

    @property
    def frames(self) -> Path:
        """The cache of camera frames, so that nothing is written beside the data set."""
        return self.path / "frames"

    def check(self, source: Path) -> None:
        """Refuse a folder inside the data set, and a folder that holds other files.

        Args:
            source: of the data set.

        Raises:
            ConfigError: the folder lies in the data set.
            FileExistsError: the folder holds other files, or is no folder.
        """
        if self.path.resolve().is_relative_to(source.resolve()):
            problem = f"{self.path} lies in the data set {source}, where nothing is written"
            raise ConfigError("--out", [f"{problem}; name a folder elsewhere, or call this from another directory"])
        if self.path.exists() and not self.path.is_dir():
            raise FileExistsError(f"{self.path} is a file; name a folder in --out")
        if self.path.is_dir() and any(self.path.iterdir()) and not self.proposal.is_file():
            problem = f"{self.path} holds other files and no {self.proposal.name}"
            raise FileExistsError(f"{problem}; name another folder in --out, so that none of them is overwritten")

    def propose(self, proposal: dict[str, Any]) -> dict[str, Any]:
        """Store a proposal, or read the stored one, which may have been edited.

        Raises:
            ConfigError: the folder is of another data set, or its proposal is no JSON.
        """
        if not self.proposal.is_file():
            make_directory(self.path)
            write_new(self.proposal, readable_json(proposal, indent=2) + "\n")
            return proposal
        try:
            stored = json.loads(self.proposal.read_bytes())
            places = [_place(document) for document in (stored, proposal)]
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            problem = f"is no configuration: {error}; delete it, or name another folder in --out"
            raise ConfigError(str(self.proposal), [problem]) from None
        if places[0] != places[1]:
            problem = f"is of the data {readable_json(places[0])}, not of {readable_json(places[1])}"
            raise ConfigError(str(self.proposal), [f"{problem}; name another folder in --out"])
        return stored

    def write(self, path: Path, document: dict[str, Any]) -> None:
        """Write a document of the attempt; see `encode_document`."""
        replace_file(path, encode_document(document))

    def read(self, path: Path) -> dict[str, Any]:
        """Read a document of the attempt; an empty one if it is missing or damaged."""
        return read_object(path)


def _place(document: dict[str, Any]) -> Any:
    """Read the place of the data from a configuration."""
    data = document["data"]
    return {key: data[key] for key in ("episodes", "source", "image", "text") if key in data}
