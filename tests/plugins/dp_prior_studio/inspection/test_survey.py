"""A survey of a data set: every number where it was recorded, and of large sets whole episodes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_prior.data.formats.npz import NpzStoreConfig
from dp_prior.data.recorded.selection import KeyConfig
from dp_prior_studio.inspection import survey as module
from dp_prior_studio.inspection.roles import roles_of
from dp_prior_studio.inspection.survey import MOST_ROWS, Signal, spread_rows, survey
from tests.messages import told, told_each
from tests.plugins.dp_prior_studio.inspection.recordings import clean, write_npz


@pytest.fixture
def recorded(tmp_path):
    """The episodes, and the store of their file."""
    episodes = clean(n=5)
    return episodes, NpzStoreConfig(path=str(write_npz(tmp_path / "d.npz", episodes))).create()


def joined(episodes, key):
    return np.concatenate([episode[key] for episode in episodes])


def test_every_number_is_found_under_its_role(recorded):
    episodes, store = recorded
    seen = survey(store)
    assert seen.lengths.tolist() == [len(episode["action"]) for episode in episodes]
    for role, key in (("observation", "state"), ("action", "action")):
        (signal,) = seen.of(role)
        np.testing.assert_array_equal(signal.values, joined(episodes, key).astype(np.float32))
    np.testing.assert_array_equal(seen.clock, joined(episodes, "timestamp"))


def test_a_row_has_its_episode_and_frame_and_no_step_crosses_into_the_next(recorded):
    episodes, store = recorded
    seen = survey(store)
    rows = [(number, frame) for number, length in enumerate(seen.lengths) for frame in range(length)]
    assert [seen.place(row) for row in range(len(rows))] == rows
    steps = seen.steps(joined(episodes, "state"))
    crossing = np.cumsum(seen.lengths)[:-1] - 1
    assert np.isnan(steps[crossing]).all() and np.isfinite(np.delete(steps, crossing, axis=0)).all()
    np.testing.assert_array_equal(steps[: seen.lengths[0] - 1], np.diff(episodes[0]["state"], axis=0))


def test_of_a_large_set_evenly_spread_whole_episodes_are_read(recorded, monkeypatch):
    episodes, store = recorded
    monkeypatch.setattr(module, "MOST_EPISODES", 2)
    seen = survey(store)
    assert seen.episodes.tolist() == [0, 2] and len(seen.lengths) == 5
    np.testing.assert_array_equal(
        seen.of("action")[0].values, joined([episodes[0], episodes[2]], "action").astype(np.float32)
    )
    assert seen.place(len(episodes[0]["action"])) == (2, 0)


def test_a_configuration_names_keys_and_slices(recorded):
    episodes, store = recorded
    seen = survey(store, {"x": (KeyConfig(key="state", slice=(1, 3)), "observation")})
    (signal,) = seen.signals
    assert (signal.name, signal.key) == ("x", "state")
    np.testing.assert_array_equal(signal.values, joined(episodes, "state")[:, 1:3].astype(np.float32))


@pytest.mark.parametrize(
    ("key", "named"), [(KeyConfig(key="stat"), "'stat'"), (KeyConfig(key="state", slice=(1, 9)), "[1, 9]")]
)
def test_a_key_or_slice_that_is_not_there_is_a_problem_with_its_name(recorded, key, named):
    seen = survey(recorded[1], {"x": (key, "observation")})
    (problem,) = seen.problems
    assert problem.startswith("x: ") and named in problem and seen.signals == []


def test_a_key_too_wide_for_a_vector_is_named_and_not_read(recorded, monkeypatch):
    monkeypatch.setattr(module, "WIDEST", 2)
    seen = survey(recorded[1])
    assert not seen.of("observation") and any(gap.startswith("state: 3") for gap in seen.gaps)


def test_a_key_without_numbers_is_no_observation_and_refused_where_a_configuration_names_it(tmp_path):
    episodes = [{**episode, "state": episode["state"][:, :0]} for episode in clean(n=2)]
    store = NpzStoreConfig(path=str(write_npz(tmp_path / "d.npz", episodes))).create()
    seen = survey(store)
    assert [one.key for one in seen.of("observation", "action")] == ["action"]
    assert "empty" in seen.unused["state"] and not seen.problems
    (problem,) = survey(store, {"pos": (KeyConfig(key="state"), "observation")}).problems
    assert told(problem, "pos", "(0,)", "empty")


def test_statistics_leave_out_the_steps_that_are_not_finite():
    values = np.array([[1.0, 2.0], [np.nan, 5.0], [3.0, 4.0]], np.float32)
    statistics = Signal("a", "a", ("a",), "action", values, ["left", "right"]).statistics()
    np.testing.assert_allclose(statistics.mean, [2.0, 3.0])
    np.testing.assert_allclose(statistics.max, [3.0, 4.0])
    assert Signal("a", "a", ("a",), "action", values, ["left", "right"]).called(1) == "1 (right)"
    assert Signal("a", "a", ("a",), "action", values, []).called(1) == "1"


def test_the_action_of_masked_arrays_is_known_by_its_name():
    roles = roles_of({"actions_seq": (9,), "observations_seq": (60,), "onehot_goals": (7,)})
    assert roles == {"actions_seq": "action", "observations_seq": "observation", "onehot_goals": "other"}


KEYS = ["action", "actions", "obs/eef", "observation.state", "state", "agent_pos", "robot_state", "reward", "obs.x"]


@given(st.dictionaries(st.sampled_from(KEYS), st.sampled_from([(), (1,), (3,), (2, 2), (2, 2, 2)])))
def test_every_key_has_one_role_and_there_is_at_most_one_action(shapes):
    roles = roles_of(shapes)
    assert roles.keys() == shapes.keys() and list(roles.values()).count("action") <= 1
    assert all(len(shapes[key]) <= 2 for key, role in roles.items() if role != "other")
    if len(shapes.get("action", (0, 0, 0))) <= 2 and "action" in shapes:
        assert roles["action"] == "action"


def test_cameras_of_floats_greyscale_and_opaque_alpha_are_found(tmp_path):
    random, n = np.random.default_rng(0), 6
    pixels = random.integers(0, 256, (n, 16, 20, 4), dtype=np.uint8)
    pixels[..., 3] = 255
    arrays = {
        "rgb": pixels[..., :3],
        "floats": pixels[..., :3].astype(np.float32),
        "grey": pixels[..., 0],
        "grey_first": pixels[:, None, ..., 0],
        "rgba": pixels,
        "object_mask": pixels[..., 0],
        "points": random.normal(size=(n, 16, 20, 3)),
        "grip": pixels[:, :2, 0, 0],
    }
    np.savez(tmp_path / "d.npz", action=np.zeros((n, 2)), episode_ends=np.array([2, n]), **arrays)
    seen = survey(NpzStoreConfig(path=tmp_path / "d.npz").create())
    assert sorted(seen.cameras) == ["floats", "grey", "grey_first", "rgb", "rgba"]


@pytest.mark.parametrize("total", [1, 2, MOST_ROWS, MOST_ROWS + 1, 3 * MOST_ROWS])
def test_spread_rows_go_from_the_first_to_the_last(total):
    rows = spread_rows(total)
    assert len(rows) == len(np.unique(rows)) == min(MOST_ROWS, total)
    assert (rows[0], rows[-1]) == (0, total - 1)


def test_a_number_without_an_instruction_is_told(tmp_path, monkeypatch):
    numbers = np.zeros((9, 2), np.float32)
    arrays = {"state": numbers, "action": numbers, "episode_ends": np.array([4, 9])}
    np.savez(tmp_path / "d.npz", task_index=np.array([0] * 4 + [7] * 5), **arrays)
    store = NpzStoreConfig(path=str(tmp_path / "d.npz")).create()
    monkeypatch.setattr(store, "texts", lambda: {0: "push", 1: "lift"})
    seen = survey(store)
    assert told_each(seen.gaps, ("instructions", "task_index", 7, "0, 1")) and seen.texts == {"": 1, "push": 1}
    monkeypatch.setattr(store, "texts", lambda: {0: "push", 7: "lift"})
    assert survey(store).gaps == []


def test_numbers_are_inexact_where_they_differ_by_less_than_float32_sees(tmp_path):
    wave = np.linspace(-1, 1, 50)
    columns = {
        "wave": wave,
        "constant": 0 * wave + 5e9,
        "fine": wave + 1e9,
        "far": 1e4 * wave + 1e9,
        "huge": 1e60 * wave,
    }
    state = np.stack([*columns.values()], 1)
    np.savez(tmp_path / "d.npz", state=state, action=state[:, :2].astype(np.float32), episode_ends=np.array([20, 50]))
    seen = survey(NpzStoreConfig(path=tmp_path / "d.npz").create())
    assert [*seen.of("observation")[0].inexact] == [name in ("fine", "huge") for name in columns]
    assert not seen.of("action")[0].inexact.any()


@pytest.mark.parametrize("period", [0.005, 0.1, 1.9])
@pytest.mark.parametrize("unit", [1, 1e3, 1e6, 1e9])
def test_a_clock_is_told_in_seconds_whatever_it_counts(tmp_path, period, unit):
    rows = np.zeros((40, 2))
    stamps = 1e3 + unit * period * np.arange(40)
    np.savez(tmp_path / "d.npz", state=rows, action=rows, timestamp=stamps, episode_ends=np.array([20, 40]))
    seen = survey(NpzStoreConfig(path=tmp_path / "d.npz").create())
    expected = period * unit / next(size for size in (1, 1e3, 1e6, 1e9) if period * unit / size <= 2)
    assert seen.period == pytest.approx(expected)
    if period == 0.1:
        assert expected == period


@pytest.mark.parametrize("name", ["timestamp", "timestamps", "robot/time", "Time_Stamp", "arm/t"])
def test_a_lone_key_with_the_name_of_a_clock_is_the_clock(tmp_path, name):
    rows = np.zeros((40, 2))
    stamps = 1.7e9 + 0.1 * np.arange(40) + (np.arange(40) > 8)
    arrays = {"state": rows, "action": rows, "episode_ends": np.array([20, 40]), "lead_time": rows[:, 0], name: stamps}
    np.savez(tmp_path / "d.npz", **arrays)
    seen = survey(NpzStoreConfig(path=tmp_path / "d.npz").create())
    assert seen.period == pytest.approx(0.1, abs=1e-6)
    assert "gaps" in seen.unused[name]
    np.savez(tmp_path / "two.npz", **arrays, **{"front/time": stamps, "wrist/time": stamps})
    seen = survey(NpzStoreConfig(path=tmp_path / "two.npz").create())
    assert (seen.period is None) == (name != "timestamp")


def test_the_numbers_of_the_steps_are_no_clock(tmp_path):
    rows = np.zeros((40, 2))
    np.savez(tmp_path / "d.npz", state=rows, action=rows, t=np.tile(np.arange(20), 2), episode_ends=np.array([20, 40]))
    assert survey(NpzStoreConfig(path=tmp_path / "d.npz").create()).clock is None


def test_an_episode_is_counted_under_the_instruction_that_it_begins_with(tmp_path, monkeypatch):
    numbers = np.zeros((9, 2), np.float32)
    arrays = {"state": numbers, "action": numbers, "episode_ends": np.array([3, 5, 9])}
    np.savez(tmp_path / "d.npz", task_index=np.array([0, 1, 1, 1, 0, 0, 0, 0, 1]), **arrays)
    store = NpzStoreConfig(path=str(tmp_path / "d.npz")).create()
    monkeypatch.setattr(store, "texts", lambda: {0: "push", 1: "lift"})
    assert survey(store).texts == {"push": 2, "lift": 1}


def test_as_many_episodes_are_read_as_hold_the_most_numbers(recorded, monkeypatch):
    episodes, store = recorded
    width = 3 + 2 + 1
    for count in (1, 2, 4, 5):
        monkeypatch.setattr(
            module, "MOST_NUMBERS", (count + 0.5) * np.mean([len(each["action"]) for each in episodes]) * width
        )
        assert len(survey(store).episodes) == min(count, 5)


def test_rows_belong_to_the_episodes_that_begin_with_them(recorded):
    episodes, store = recorded
    seen, begins = survey(store), np.cumsum([0, *(len(episode["action"]) for episode in episodes)])[:-1]
    assert [seen.owners(np.array([begin])) for begin in begins] == [[number] for number in range(5)]
    assert seen.owners(begins[1:] - 1) == [0, 1, 2, 3] and seen.owners(np.array([0, 1, begins[3]])) == [0, 3]


def test_a_value_that_never_changes_in_an_episode_is_part_of_no_proposed_action(tmp_path):
    """UMI repeats the pose at the start of a demonstration in every step."""
    start_pose, eef_pos = np.repeat([[1.0, 2.0], [3.0, 4.0]], 20, axis=0), np.arange(80.0).reshape(40, 2)
    np.savez(tmp_path / "d.npz", eef_pos=eef_pos, start_pose=start_pose, episode_ends=[20, 40])
    seen = survey(NpzStoreConfig(path=str(tmp_path / "d.npz")).create())
    assert {signal.key for signal in seen.of("observation")} == {"eef_pos", "start_pose"}
    assert seen.action_hint.endswith("""--set 'data.action={"key": "eef_pos", "ahead": 1}'""")
