"""What a conversion takes of a data set: everything, by new names, in order."""

import numpy as np
import pytest

from dp_prior.data.errors import DataError
from dp_prior.data.formats.npz import NpzStoreConfig
from dp_prior_foreign.recording import Recording
from tests.data.formats.conftest import LENGTHS, TASKS, N, arrays
from tests.data.frames.recordings import ends_of, pictures
from tests.messages import naming


def recorded(source, **changes):
    return Recording.of(NpzStoreConfig(path=source).create(), **{"renames": {}, "left_out": (), "fps": None, **changes})


def test_everything_is_recorded_by_its_new_name(source):
    found = recorded(source, renames={"state": "pose", "front": "camera"}, left_out=["zeros"])
    assert {*found.keys} == {*arrays()} - {"state", "zeros"} | {"pose"} and {*found.cameras} == {"camera"}
    np.testing.assert_array_equal(found.read("pose"), arrays()["state"])
    assert found.metadata == {"fps": 10, "tasks": TASKS, "names": {"actions": ["x", "y"]}}
    assert recorded(source, fps=5).fps == 5


@pytest.mark.parametrize("count", [None, 1, 4, N, N + 1])
def test_frames_come_in_blocks_of_a_count_or_of_an_episode(source, count):
    blocks = list(recorded(source).frames("front", count))
    np.testing.assert_array_equal(np.concatenate(blocks), pictures(N))
    whole = min(count or 0, N)
    assert [*map(len, blocks)] == (LENGTHS if count is None else [whole] * (N // whole) + [N % whole] * (N % whole > 0))


def test_columns_that_follow_from_the_episodes_are_left_out_and_the_numbers_of_texts_have_one_name(source):
    store = NpzStoreConfig(path=source).create()
    store.counted, store.text_key = ("grip",), "state"
    found = Recording.of(store, renames={"task_index": "old"}, left_out=(), fps=None)
    assert "grip" not in found.keys and found.keys["task_index"] == "state" and found.keys["old"] == "task_index"


def test_texts_that_are_not_numbered_from_zero_are_refused(source):
    store = NpzStoreConfig(path=source).create()
    store.texts = lambda: {1: "go", 2: "stop"}
    with pytest.raises(DataError, match=naming("[1, 2]", 0, 1)):
        Recording.of(store, renames={}, left_out=(), fps=None)


def test_files_of_a_camera_in_another_order_than_the_rows_are_refused(source, monkeypatch):
    store = NpzStoreConfig(path=source).create()
    cameras = store.frames("front", ends_of(LENGTHS))
    cameras.parts = [type(cameras.parts[0])("there", (1, 0, 2))]
    monkeypatch.setattr(store, "frames", lambda *arguments: cameras)
    with pytest.raises(DataError, match=naming("'front'", "--leave-out")):
        Recording.of(store, renames={}, left_out=(), fps=None)
