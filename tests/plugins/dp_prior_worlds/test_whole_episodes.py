"""Whole episodes are the stored ones: chosen, thinned, never mirrored, with further keys in their stored type."""

import json

import numpy as np
import pytest

from dp_prior.data.errors import DataError
from dp_prior.data.recorded.selection import ActionConfig
from dp_prior.data.recorded.trajectories import TrajectoriesConfig
from dp_prior_worlds.whole_episodes import WholeEpisodes
from tests.messages import naming

ENDS = [4, 9, 15]


@pytest.fixture
def place(tmp_path):
    rows = np.arange(15.0)
    np.savez(
        tmp_path / "d.npz",
        state=np.stack([rows, -rows], axis=1),
        action=rows[:, None],
        sent=rows[:, None] + 100,
        exact=rows + 1e-9,
        seed=np.array([2**40, 2**40 + 1, 2**40 + 2]),
        episode_ends=ENDS,
    )
    return tmp_path / "d.npz"


def record(place, **fields):
    keys = {"obs": {"state": {"key": "state"}}, "action": {"key": "action"}}
    return TrajectoriesConfig.from_json(json.dumps({"episodes": {"type": "npz", "path": str(place)}, **keys, **fields}))


def test_every_row_belongs_to_its_episode(place):
    found = WholeEpisodes(record(place))
    assert [found.rows(number).tolist() for number in range(3)] == [
        list(range(*span)) for span in zip([0, *ENDS], ENDS, strict=False)
    ]
    assert found.actions[:, 0].tolist() == found.obs["state"][:, 0].tolist() == list(range(15))
    assert len(found) == 3 and {"seed", "exact"} <= {*found.keys}


def test_chosen_episodes_keep_their_numbers_and_thinned_ones_their_first_rows(place):
    found = WholeEpisodes(record(place, choice={"leave_out": [1]}, stride=2))
    assert found.numbers.tolist() == [0, 2]
    assert [found.actions[found.rows(number), 0].tolist() for number in range(2)] == [[0, 2], [9, 11, 13]]


def test_other_actions_and_later_ones_take_the_place_of_those_to_learn(place):
    assert WholeEpisodes(record(place), ActionConfig(key="sent")).actions[:2, 0].tolist() == [100, 101]
    later = WholeEpisodes(record(place, action={"key": "state", "slice": [0, 1], "ahead": 1}))
    assert later.actions[:5, 0].tolist() == [1, 2, 3, 3, 5]


def test_executed_actions_are_found_by_their_usual_key(place):
    arrays = dict(np.load(place))
    np.savez(place, **arrays, executed=arrays["action"] + 200)
    assert WholeEpisodes(record(place)).actions[:2, 0].tolist() == [200, 201]
    assert WholeEpisodes(record(place), ActionConfig(key="action")).actions[:2, 0].tolist() == [0, 1]


def test_columns_keep_their_type_and_a_value_per_episode_is_that_of_all_its_rows(place):
    found = WholeEpisodes(record(place, choice={"leave_out": [0]}))
    assert found.column(["seed"], "start.seed").tolist() == [2**40 + 1] * 5 + [2**40 + 2] * 6
    assert found.column(["exact"], "start.exact").dtype == np.float64
    np.testing.assert_array_equal(found.column(["exact", "state"], "start.both")[0], [4 + 1e-9, 4, -4])
    with pytest.raises(DataError, match=naming("start.state", "'sate'", "state")):
        found.column(["sate"], "start.state")


def test_a_mirrored_data_set_gives_the_recorded_episodes(place):
    turned = {"state": {"sign": -1}, "action": {"sign": -1}}
    data = record(place, mirror=turned, split={"train": 1.0, "val": 0.0}).create(2, 1, 1)
    assert WholeEpisodes(data.recorded).actions[:, 0].tolist() == list(range(15))
    assert WholeEpisodes(data.recorded, ActionConfig(key="sent")).actions[0, 0] == 100
