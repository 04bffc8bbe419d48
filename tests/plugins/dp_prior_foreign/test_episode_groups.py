"""Groups of an HDF5 file that hold an episode each."""

import fnmatch
import itertools

import numpy as np
import pytest

from dp_prior.data.errors import DataError
from dp_prior_foreign.episode_groups import groups_of_episodes, hold_episodes_surely, pattern_of
from dp_prior_foreign.recognition import known_kind
from dp_prior_studio.inspection.inspect import inspect
from tests.messages import naming

FLOATS = np.dtype("f4")


def layout_of(groups, rows, keys=("joint_pos", "cam/rgb", "actions")):
    shapes = itertools.product(zip(groups, rows, strict=True), keys)
    return {f"{group}/{key}": ((count, 7), FLOATS) for (group, count), key in shapes}


def test_the_groups_are_found_below_any_parent_and_their_pattern_names_no_other():
    for parent, stem, count in itertools.product(("", "trials/", "a/b/"), ("trial_", "demo[x]", ""), (2, 12)):
        groups = [f"{parent}{stem}{number}" for number in range(count)]
        layout = layout_of(groups, range(5, 5 + count)) | {f"{parent}notes/fps": ((1,), FLOATS)}
        found = groups_of_episodes(layout)
        assert [*found] == groups and hold_episodes_surely(found, False)
        assert {*found[groups[0]]} == {"joint_pos", "cam/rgb", "actions"}
        last = pattern_of(found).rpartition("/")[2]
        names = [f"{stem}{number}" for number in range(count)]
        assert fnmatch.filter([*names, "notes", "meta"], last) == names


@pytest.mark.parametrize(
    "layout",
    [
        layout_of(["cams/cam_0", "cams/cam_1"], (5, 5), ["rgb"]) | {"robot/action": ((5, 7), FLOATS)},
        layout_of(["cams/cam_0", "cams/cam_1"], (5, 5), ["rgb"]) | {"joints": ((5, 7), FLOATS)},
        layout_of(["left/demo_0", "left/demo_1", "right/demo_0", "right/demo_1"], (5, 6, 5, 6)),
        layout_of(["take_0"], (5,)),
        layout_of(["observations"], (5,)),
        {"take_0/action": ((5, 7), FLOATS), "take_1/state": ((5, 7), FLOATS)},
    ],
)
def test_cameras_arms_and_parts_of_an_episode_are_no_episodes(layout):
    assert groups_of_episodes(layout) == {}


def test_groups_of_the_same_steps_may_be_arms_unless_there_are_many_in_the_only_file():
    two, three = (groups_of_episodes(layout_of([f"arm_{arm}" for arm in range(n)], [5] * n)) for n in (2, 3))
    assert not hold_episodes_surely(two, True) and not hold_episodes_surely(three, False)
    assert hold_episodes_surely(three, True)


@pytest.mark.parametrize("parent", ["", "trials/"])
def test_a_folder_of_one_file_with_all_episodes_is_not_read_as_one_episode(parent, tmp_path):
    h5py = pytest.importorskip("h5py", reason="NOT CHECKED: the hdf5 extra is not installed")
    with h5py.File(tmp_path / "all.h5", "w") as file:
        for number in range(12):
            for key in ("joint_pos", "actions"):
                file[f"{parent}trial_{number}/{key}"] = np.full((5 + number, 7), number, np.float32)
    assert known_kind(tmp_path) is None
    with pytest.raises(DataError, match=naming(tmp_path / "all.h5", "name")):
        inspect(str(tmp_path))
    store = inspect(str(tmp_path / "all.h5"))[0].survey.store
    assert np.diff(store.episode_ends, prepend=0).tolist() == [*range(5, 17)]
    assert store.read("actions")[np.asarray(store.episode_ends) - 1][:, 0].tolist() == [*range(12)]
