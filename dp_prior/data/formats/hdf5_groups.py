"""Episodes in the groups of one HDF5 file, such as `traj_0` of ManiSkill."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dp_prior.data.errors import DataError, nearest_name
from dp_prior.data.files import check_is_file
from dp_prior.data.formats.grouped import EpisodeArrays, GroupedStore, Layout
from dp_prior.data.formats.store_record import EpisodeStoreRecord
from dp_prior.data.found_files import by_number
from dp_prior.data.hdf5 import (
    arrays_in,
    complete_array,
    groups_at,
    has_groups,
    import_h5py,
    names_beside,
    opened_hdf5,
    row_blocks,
)
from dp_prior.files.home import expanded


class Hdf5Episode(EpisodeArrays):
    """See `EpisodeArrays`; a group of an HDF5 file, which is open only while it is read."""

    def __init__(self, path: Path, group: str = ""):
        self.file, self._group = path, group or "/"
        self.where = f"{path}/{group}" if group else str(path)
        self._lost: dict[str, str] = {}

    def layout(self) -> Layout:
        with opened_hdf5(self.file, "its layout") as file:
            arrays, self._lost = arrays_in(file[self._group])
        return arrays

    def lost(self) -> dict[str, str]:
        """See `EpisodeArrays`; of the last `layout`, for a data set may have thousands of episodes."""
        return self._lost

    def rows(self, key: str, first: int, stop: int) -> np.ndarray:
        where = f"{self.where}[{key}]"
        with opened_hdf5(self.file, where) as file:
            return complete_array(file[self._group], key, where)[first:stop]

    def blocks(self, key: str, first: int, stop: int, step: int) -> Iterator[np.ndarray]:
        """See `EpisodeArrays`; each chunk is decompressed once."""
        where = f"{self.where}[{key}]"
        with opened_hdf5(self.file, where) as file:
            yield from row_blocks(complete_array(file[self._group], key, where), first, stop, step)


class Hdf5GroupsConfig(EpisodeStoreRecord):
    """One HDF5 file with a group per episode; keys are paths below a group. Observations may have one row more than
    actions, as in ManiSkill; the last is left out."""

    type: Literal["hdf5_groups"] = "hdf5_groups"

    path: Path
    """The file; relative to the working directory, `~` is the home directory."""

    groups: str = "traj_*"
    """Path of the groups, one per episode, in the order of their numbers; its last part may have wildcards."""

    steps: str | None = None
    """Key with one row per step. null: `action` or `actions`, else the length that most arrays have."""

    @classmethod
    def is_at(cls, path: Path) -> bool:
        return has_groups(path, cls.model_fields["groups"].default)

    def create(self) -> Hdf5GroupsStore:
        """Open the file and read its layout; arrays are read when asked for.

        Raises:
            ImportError: h5py is not installed.
        """
        import_h5py()
        path = expanded(self.path)
        check_is_file(path, ".hdf5")
        with opened_hdf5(path, "its layout") as file:
            names = sorted(groups_at(file, self.groups), key=by_number)
            known = list(file)
        if not names:
            raise DataError(str(path), [f"has no groups {self.groups!r}. {nearest_name(self.groups, known)}"])
        return Hdf5GroupsStore(path, "HDF5 groups", [Hdf5Episode(path, name) for name in names], self.steps)


class Hdf5GroupsStore(GroupedStore):
    """See `GroupedStore`."""

    def describe(self) -> dict[str, Any]:
        """Format, place and groups."""
        return {**super().describe(), "groups": self._groups}

    def unread(self) -> dict[str, str]:
        """See `EpisodeStore`; what lies beside the groups too."""
        with opened_hdf5(self.path, "its layout") as file:
            beside = names_beside(file, self._groups)
        return super().unread() | dict.fromkeys(beside, "beside the episodes; to read it as one, name it in groups")

    @property
    def _groups(self) -> list[str]:
        return [part.where.removeprefix(f"{self.path}/") for part in self._parts]
