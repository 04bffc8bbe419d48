"""The base class of the records of episode formats."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

from dp_prior.config import Config, ConfigError
from dp_prior.data.errors import DataError
from dp_prior.data.formats.choice import ALL_EPISODES, ChoiceConfig
from dp_prior.data.formats.episode_store import EpisodeStore
from dp_prior.files.entry_points import entry_points, loaded


class RolloutNeeds(NamedTuple):
    """The inputs and outputs that a policy needs from a program that drives robots."""

    obs: Mapping[str, Sequence[str]]
    """Names of the observed numbers, by the data set's key; empty for unnamed numbers."""

    action: Sequence[str]
    """Names of the numbers of the action; empty for unnamed numbers."""

    n_obs_steps: int
    """Observations that the policy reads at a time."""

    previous_action: str | None = None
    """Name of the observation that holds the previous action; None for a policy without one."""


class EpisodeStoreRecord(Config):
    """A recorded data set in one format. A member of the family has a `type`, a `path` and `create`."""

    can_salvage: ClassVar[bool] = False
    """Whether `salvage` is offered for a fault in any file of the data set."""

    writes_videos: ClassVar[bool] = False
    """Whether `write` makes videos of cameras, unless `Recording.pictures`."""

    data_set: ClassVar[str] = "dp_prior.data.recorded.trajectories:Trajectories"
    """Place of the class that reads windows of these episodes."""

    in_parts: ClassVar[bool] = False
    """Whether only some parts of the data set are on this machine at a time, so that a mixture cannot shuffle them."""

    @classmethod
    def is_at(cls, path: Path) -> bool:
        """Whether the files at a path look like this format. With the default, False, the user names the type."""
        return False

    @property
    def is_remote(self) -> bool:
        """Whether the data set lives on another machine; the files here are then a downloaded copy."""
        return False

    def local(self, pinned: Mapping[str, str], cameras: Collection[str], choice: ChoiceConfig = ALL_EPISODES) -> Self:
        """Download the data set of a remote record, and return the record of the files on this machine.

        Args:
            pinned: the commit that the run has used so far, by repository.
            cameras: keys of the cameras that are read; videos of other cameras are not downloaded.
            choice: choice of episodes; files without a chosen episode need not be downloaded.

        Raises:
            DataError, UnreadableError: the data set cannot be downloaded, or the choice cannot be made.
        """
        return self

    @abstractmethod
    def create(self) -> EpisodeStore:
        """Open the data set; arrays are read when asked for.

        Raises:
            ImportError: a package that reads the format is not installed.
        """

    def salvage(self, left_out: Collection[str]) -> tuple[EpisodeStore, list[str]]:
        """Open the intact episodes of a data set that was cut off while being recorded, with lines about the other
        episodes; by default by the function that the entry point `dp_prior.salvagers` of this type names.

        Args:
            left_out: keys that need not be intact.

        Raises:
            ConfigError: the format has no such reader.
            DataError: no episode is intact.
        """
        salvage = self._installed("salvagers")
        if salvage is None:
            problem = f"is for 'lerobot' and 'ros2_bags'; these data are of type {self.type!r}"
            raise ConfigError("--salvage", [problem])
        return salvage(self, left_out)

    def write(self, recording: Any) -> None:
        """Write a new data set, which appears at `path` only when complete and on disk; by default by `write` of the
        module that the entry point `dp_prior.writers` of this type names.

        Args:
            recording: the whole content of another data set, a `dp_prior_foreign.recording.Recording`.

        Raises:
            DataError: the source is damaged, or the format cannot hold its content.
            ImportError: a package that writes the format is not installed.
        """
        writer = self._installed("writers")
        if writer is None:
            raise DataError(str(self.path), [f"data of type {self.type!r} are read, but not written"])
        writer.write(self, recording)

    def passes(self, key: str, name: str) -> bool:
        """Whether the format's own program for robots gives a policy the number of this name and key; by default as the
        module that the entry point `dp_prior.rollouts` of this type names says, True without such a module."""
        program = self._installed("rollouts")
        return program is None or program.passes(key, name)

    def rollout_gaps(self, needs: RolloutNeeds) -> list[str]:
        """Lines about the needs that the format's own program for robots does not meet; by default those of the same
        module."""
        program = self._installed("rollouts")
        return [] if program is None else list(program.rollout_gaps(needs))

    def losses(self, recording: Any) -> list[str]:
        """Lines about the content of a recording that `write` does not keep; by default those of the writer."""
        writer = self._installed("writers")
        return [] if writer is None else writer.losses(self, recording)

    def _installed(self, group: str) -> Any:
        """Load the entry point of a group for this format, or for the nearest format of which its record is a subclass;
        None if no installed package has one."""
        records = [kind for kind in type(self).__mro__ if issubclass(kind, EpisodeStoreRecord)]
        types = [kind.model_fields["type"].default for kind in records if "type" in kind.model_fields]
        found = (entry for name in dict.fromkeys(types) for entry in entry_points(group, name=name))
        return next(map(loaded, found), None)
