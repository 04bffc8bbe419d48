"""Episodes in the groups of one HDF5 file, such as `traj_0` of ManiSkill."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dp_prior.data.errors import DataError, nearest_name
from dp_prior.data.files import check_is_file
from dp_prior.data.formats.grouped import EpisodeArrays, GroupedStore, Header, Layout
from dp_prior.data.formats.store_record import EpisodeStoreRecord
from dp_prior.data.found_files import by_number
from dp_prior.data.hdf5 import (
    OutsideError,
    complete_array,
    datasets,
    group_at,
    groups_at,
    has_groups,
    import_h5py,
    names_beside,
    opened_hdf5,
    row_blocks,
    rows_of,
)
from dp_prior.files.regular_files import expanded


class Hdf5Episode(EpisodeArrays):
    """See `EpisodeArrays`; a group of an HDF5 file, which is open only while rows are read.

    Attributes:
        group: path of the group in the file.
    """

    def __init__(self, path: Path, group: str = ""):
        self.file, self.group = path, group or "/"
        self.where = f"{path}/{group}" if group else str(path)

    @property
    def layout(self) -> Layout:
        return self._datasets[0]

    @property
    def lost(self) -> dict[str, str]:
        return self._datasets[1]

    @cached_property
    def _datasets(self) -> tuple[Layout, dict[str, str]]:
        """`layout` and `lost`, which one pass over the group gives."""
        with opened_hdf5(self.file, "its layout") as file:
            arrays, lost = datasets(group_at(file, self.group))
            return {key: (array.shape or (), array.dtype) for key, array in arrays.items()}, lost

    def header(self, key: str) -> Header | None:
        """See `EpisodeArrays`; opens this array alone: a data set may have thousands of episodes with many arrays."""
        with opened_hdf5(self.file, "its layout") as file:
            group = group_at(file, self.group)
            try:
                array = complete_array(group, key, f"{self.where}[{key}]")
            except OutsideError:  # see `lost`
                array = None
            return None if array is None else (array.shape or (), array.dtype)

    def rows(self, key: str, first: int, stop: int) -> np.ndarray:
        where = f"{self.where}[{key}]"
        with opened_hdf5(self.file, where) as file:
            return rows_of(complete_array(group_at(file, self.group), key, where), first, stop)

    def blocks(self, key: str, first: int, stop: int, step: int) -> Iterator[np.ndarray]:
        """See `EpisodeArrays`; each chunk is decompressed once."""
        where = f"{self.where}[{key}]"
        with opened_hdf5(self.file, where) as file:
            yield from row_blocks(complete_array(group_at(file, self.group), key, where), first, stop, step)


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
            groups = list(file)
        if not names:
            raise DataError(str(path), [f"has no groups {self.groups!r}. {nearest_name(self.groups, groups)}"])
        return Hdf5GroupsStore(path, "HDF5 groups", [Hdf5Episode(path, name) for name in names], self.steps)


class Hdf5GroupsStore(GroupedStore):
    """See `GroupedStore`."""

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "groups": self._groups}

    def unread(self) -> dict[str, str]:
        """See `EpisodeStore`; with the groups and arrays beside the episodes."""
        with opened_hdf5(self.path, "its layout") as file:
            beside = names_beside(file, self._groups)
        return super().unread() | dict.fromkeys(beside, "beside the episodes; to read it as one, name it in groups")

    @property
    def _groups(self) -> list[str]:
        return [part.group for part in self._parts]
