"""Demonstrations in robomimic's HDF5 layout: `data/demo_N/actions`, `data/demo_N/obs/<key>`, `mask/<filter>`.

Keys are paths below a demonstration (`actions`, `states`, `obs/robot0_eef_pos`); demonstrations are in the order of
their numbers, demo_10 after demo_9.
"""

from __future__ import annotations

import contextlib
import json
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dp_prior.data.errors import DataError, nearest_name
from dp_prior.data.files import check_is_file
from dp_prior.data.formats.grouped import GroupedStore, Header
from dp_prior.data.formats.hdf5_groups import Hdf5Episode
from dp_prior.data.formats.store_record import EpisodeStoreRecord
from dp_prior.data.frames import FrameContents, FrameSource
from dp_prior.data.frames.arrays import ArrayFrames, PictureArray
from dp_prior.data.hdf5 import (
    OutsideError,
    array_at,
    attribute,
    check_dataset,
    group_at,
    has_groups,
    import_h5py,
    member,
    names_beside,
    opened_hdf5,
    rows_of,
)
from dp_prior.files.regular_files import expanded

if TYPE_CHECKING:
    import h5py

ACTIONS = "actions"
"""Key that every demonstration has, with one row per step."""

GROUPS = '"episodes": {"type": "hdf5_groups", "groups": "data/demo_*"}'
"""The format that reads demonstrations whose actions have other names, for messages."""

METADATA = "dp_prior"
"""Attribute of `data` where `dp-prior convert` writes `fps`, `tasks` and `names`, in JSON."""

ENVIRONMENT, ROBOSUITE = "env_args", 1
"""Attribute of `data` where robomimic writes the environment, and robosuite's number in this attribute."""

_ACTIONS_APART = f"if the actions have other names, read them by {GROUPS}, and name them in action.key"

_BESIDE = "neither a demonstration, named data/demo_0 and so on, nor a list of them in this file under mask/"

_DEMO = re.compile(r"demo_\d+")


class RobomimicStoreConfig(EpisodeStoreRecord):
    """One robomimic `.hdf5` file."""

    type: Literal["robomimic"] = "robomimic"

    path: Path
    """The file; relative to the working directory, `~` is the home directory."""

    filter: str | None = None
    """Name of a list under `mask/`, such as `train`: only its demonstrations are read. Null reads all."""

    @classmethod
    def is_at(cls, path: Path) -> bool:
        return has_groups(path, "data/demo_*")

    def create(self) -> RobomimicStore:
        """Open the file and read its layout; arrays are read when asked for.

        Raises:
            ImportError: h5py is not installed.
        """
        import_h5py()
        return RobomimicStore(**self.arguments())


class Demonstration(Hdf5Episode):
    """See `EpisodeArrays`."""

    def header(self, key: str) -> Header | None:
        """See `EpisodeArrays`; checks the number of actions against the attribute `num_samples`."""
        header = super().header(key)
        if key == ACTIONS and header is not None and header[0]:
            with opened_hdf5(self.file, "num_samples") as file:
                declared = attribute(group_at(file, self.group), "num_samples")
            with contextlib.suppress(ValueError, TypeError, OverflowError):
                declared = header[0][0] if declared is None else int(declared)
            if declared != header[0][0]:
                finding = f"has {header[0][0]} actions, but its attribute num_samples is {str(declared)[:200]}"
                raise DataError(self.where, [f"{finding}; the file may be incomplete"])
        return header


class RobomimicStore(GroupedStore):
    """Reads all demonstrations of a file, or the demonstrations of a list."""

    later = f"to read it, name a list under mask/ of those that have it in filter, or them in groups of {GROUPS}"

    def __init__(self, path: Path, filter: str | None):
        path = expanded(path)
        check_is_file(path, ".hdf5")
        with opened_hdf5(path, "data") as file:
            demonstrations = [name for name in member(file, "data") or () if _DEMO.fullmatch(name)]
            demonstrations.sort(key=lambda name: (int(name.removeprefix("demo_")), name))
            if not demonstrations:
                raise DataError(str(path), ["has no group data/demo_0; expected the layout of robomimic"])
            names = demonstrations if filter is None else _filtered(path, file, filter, demonstrations)
        self._filter, self._recorded, self.demonstrations = filter, demonstrations, names
        episodes = [Demonstration(path, f"data/{name}") for name in names]
        super().__init__(path, "robomimic HDF5", episodes, ACTIONS, _ACTIONS_APART)
        self._advice = []  # the name is right where some demonstrations have it

    def remarks(self) -> list[str]:
        """See `EpisodeStore`; reports a file without observations, as robosuite records."""
        if any(key.startswith("obs/") for key in self._layout) or "states" not in self._layout:
            return []
        finding = (
            "has no obs/, only `states`: those of the simulator, which begin with its clock and which no robot has"
        )
        return [f"{finding}. robomimic's dataset_states_to_obs.py makes observations of them"]

    def unread(self) -> dict[str, str]:
        """See `EpisodeStore`; with the lists of demonstrations, and the groups and arrays beside all of these."""
        lists = {
            f"mask/{name}": f"a list of {len(places)} demonstrations, for data.choice, split.parts or episodes.filter"
            for name, places in self.parts().items()
        }
        with opened_hdf5(self.path, "its layout") as file:
            beside = names_beside(file, [*(f"data/{name}" for name in self._recorded), *lists])
        return lists | super().unread() | dict.fromkeys(beside, _BESIDE)

    def numbers(self) -> np.ndarray:
        """See `EpisodeStore`; the numbers in the names of the demonstrations."""
        return np.array([int(name.removeprefix("demo_")) for name in self.demonstrations])

    def parts(self) -> dict[str, list[int]]:
        """See `EpisodeStore`; the lists under `mask/`, restricted to the demonstrations that are read."""
        with opened_hdf5(self.path, "mask") as file:
            return _masks(file, self.demonstrations)

    def episodes(self, key: str, ends: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """See `EpisodeStore`; keeps the file open, since HDF5 then opens each demonstration faster."""
        with opened_hdf5(self.path, key):
            return super().episodes(key, ends, numbers)

    def open_frames(self, key: str, ends: np.ndarray, numbers: np.ndarray, contents: FrameContents) -> FrameSource:
        """See `EpisodeStore`; keeps the description of arrays of earlier versions, since it names the caches."""
        if key in self._encoded:
            return super().open_frames(key, ends, numbers, contents)
        self._checked(key, numbers)
        shape, dtype = (int(ends[-1]), *self.keys()[key]), self._layout[key][1]
        array = PictureArray(f"{self.path}[{key}]", shape, dtype, partial(self._blocks, key))
        described = {"demonstrations": self.demonstrations}
        return ArrayFrames(array, ends, self.path, [self.path], "robomimic", described, contents=contents)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "filter": self._filter}

    def stored_metadata(self) -> Any:
        """The metadata that `dp-prior convert` wrote, or the rate of the simulator."""
        with opened_hdf5(self.path, f"attribute {METADATA} of data") as file:
            text = attribute(group_at(file, "data"), METADATA)
            if text is not None:
                return json.loads(text)
        return {"fps": (self.environment() or {"make_arguments": {}})["make_arguments"].get("control_freq")}

    def environment(self) -> dict[str, Any] | None:
        """See `EpisodeStore`; read from the attribute `env_args` of `data`."""
        with opened_hdf5(self.path, f"attribute {ENVIRONMENT} of data") as file:
            text = attribute(group_at(file, "data"), ENVIRONMENT)
        try:
            stored = json.loads(text or "{}")
            task, arguments, kind = stored["env_name"], stored["env_kwargs"], stored["type"]
        except (KeyError, TypeError, ValueError, RecursionError):
            return None
        if kind != ROBOSUITE or not isinstance(task, str) or not isinstance(arguments, dict):
            return None
        return {"type": "robosuite", "task": task, "make_arguments": arguments}


def _filtered(path: Path, file: h5py.File, filter: str, names: list[str]) -> list[str]:
    """List the demonstrations of a list under mask/, in the order of their numbers."""
    mask = array_at(file, f"mask/{filter}")
    if mask is None or not mask.shape:
        raise DataError(str(path), [f"has no mask/{filter}. {nearest_name(filter, member(file, 'mask') or {})}"])
    check_dataset(mask)
    listed = {name.decode() if isinstance(name, bytes) else str(name) for name in rows_of(mask, 0, len(mask)).tolist()}
    unknown = sorted(listed - set(names))
    if unknown or not listed:
        finding = f"names {', '.join(unknown)}, which data/ does not have" if unknown else "is empty"
        raise DataError(str(path), [f"mask/{filter} {finding}"])
    return [name for name in names if name in listed]


def _masks(file: h5py.File, names: list[str]) -> dict[str, list[int]]:
    """Find the places, among `names`, of the demonstrations of each list under mask/; skips links to other files."""
    places, places_of = {name: place for place, name in enumerate(names)}, {}
    with contextlib.suppress(OutsideError):
        for mask in member(file, "mask") or {}:
            with contextlib.suppress(OutsideError):
                array = array_at(file, f"mask/{mask}")
                if array is not None and array.ndim == 1:
                    check_dataset(array)
                    values = rows_of(array, 0, len(array))
                    listed = [name.decode("utf-8", "replace") for name in values if isinstance(name, bytes)]
                    places_of[mask] = sorted({places[name] for name in listed if name in places})
    return places_of
