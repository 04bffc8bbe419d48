import json
import zipfile

import numpy as np
import pytest

from dp_prior.config import ConfigError
from dp_prior.data.errors import DataError
from dp_prior.data.formats.npz import NpzStore
from dp_prior.data.recorded.selection import ActionConfig, KeyConfig, read_selected
from dp_prior.data.recorded.trajectories import TrajectoriesConfig
from tests.messages import naming, told

LENGTHS = (20, 30, 25)


def good() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "state": rng.normal(size=(75, 5)).astype(np.float32),
        "action": rng.normal(size=(75, 2)).astype(np.float32),
        "episode_ends": np.cumsum(LENGTHS),
    }


def create(tmp_path, arrays, obs=None, action="action"):
    np.savez(tmp_path / "set.npz", **arrays)
    record = {
        "episodes": {"type": "npz", "path": str(tmp_path / "set.npz")},
        "obs": obs or {"agent": {"key": "state"}},
        "action": {"key": action},
    }
    return TrajectoriesConfig.from_json(json.dumps(record)).create(16, 2, 8)


def write(tmp_path, arrays):
    np.savez(tmp_path / "set.npz", **arrays)
    return tmp_path / "set.npz"


def problems_of(*arguments, **options) -> list[str]:
    with pytest.raises(DataError) as caught:
        create(*arguments, **options)
    return caught.value.problems


def test_a_good_set_is_accepted(tmp_path):
    create(tmp_path, good())


def test_a_missing_key_names_the_nearest_and_all_there_are(tmp_path):
    (problem,) = problems_of(tmp_path, good(), action="actions")
    assert told(problem, "action", "'actions'", "Did you mean 'action'?", "action, state")


def test_a_key_like_no_other_lists_what_there_is(tmp_path):
    (problem,) = problems_of(tmp_path, good(), obs={"agent": {"key": "zzz"}})
    assert told(problem, "obs.agent", "'zzz'", "action, state") and "Did you mean" not in problem


@pytest.mark.promise("H4")
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_named_by_file_episode_frame_and_key(tmp_path, value):
    arrays = good()
    arrays["state"][27, 3] = value
    first, last = problems_of(tmp_path, arrays)
    assert first == (
        f"obs.agent: {tmp_path / 'set.npz'}[state]: key 'state', episode 1, frame 7, dimension 3 is {value}"
    )
    assert told(last, "cannot", "trained")


def test_many_bad_rows_are_counted(tmp_path):
    arrays = good()
    arrays["action"][40:] = np.nan
    problems = problems_of(tmp_path, arrays)
    assert len(problems) == 7
    assert told(problems[5], "action", "'action'", "30 more rows")


def test_values_outside_a_selected_slice_do_not_matter(tmp_path):
    arrays = good()
    arrays["state"][3, 4] = np.nan
    create(tmp_path, arrays, obs={"agent": {"key": "state", "slice": [0, 4]}})


def test_a_value_too_large_for_float32_is_named(tmp_path):
    arrays = {**good(), "state": np.ones((75, 5))}
    arrays["state"][0, 0] = 1e300
    first, _ = problems_of(tmp_path, arrays)
    assert told(first, "episode 0, frame 0, dimension 0", "inf", "too large", "float32")


@pytest.mark.promise("H7")
@pytest.mark.parametrize(
    ("ends", "message"),
    [
        (np.array([20, 20, 75]), ("episode 1", "no steps", "row 20", "increase")),
        (np.array([20, 10, 75]), ("episode 1", "row 10", "row 20", "increase")),
        (np.array([0, 20, 75]), ("episode 0", "row 0", "increase")),
        (np.array([20, 50, 80]), ("row 80", "75 rows")),
        (np.array([], dtype=int), ("empty", "0 episodes")),
        (np.array([20.0, 75.0]), ("float64", "(2,)", "integers", "(episodes,)")),
        (np.array([[20, 75]]), ("int64", "(1, 2)", "integers", "(episodes,)")),
    ],
)
def test_bad_episode_ends_are_explained(tmp_path, ends, message):
    assert told("\n".join(problems_of(tmp_path, {**good(), "episode_ends": ends})), *message)


def test_rows_after_the_last_episode_are_left_out_with_a_warning(tmp_path):
    data = create(tmp_path, {**good(), "episode_ends": np.array([20, 50])})
    assert told(data.report()["warnings"][0], "25 rows", "row 50", "not used")
    assert data.report()["steps"] == 50


@pytest.mark.parametrize(
    "ends, remedy",
    [([20, 25, 30], "np.cumsum(lengths)"), ([19, 49, 74], "add 1"), ([20, 50], None)],
    ids=["lengths", "last rows", "an end is missing"],
)
def test_ends_that_are_lengths_or_last_rows_are_asked_about(tmp_path, ends, remedy):
    warning = create(tmp_path, {**good(), "episode_ends": np.array(ends)}).report()["warnings"][0]
    assert [hint for hint in ("np.cumsum(lengths)", "add 1") if told(warning, hint)] == [remedy] * (remedy is not None)


def test_keys_of_different_length_are_refused(tmp_path):
    arrays = {**good(), "action": good()["action"][:-1]}
    first, second = problems_of(tmp_path, arrays)
    assert told(first, "'action' 74", "'state' 75", "row per")
    assert told(second, "row 75", "74 rows")


@pytest.mark.promise("H7")
@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"action": np.zeros((75, 2, 0))}, {}, ("'action'", "(2, 0)", "empty")),
        ({"state": np.zeros((75, 0))}, {}, ("'state'", "(0,)", "empty")),
        (
            {},
            {"obs": {"agent": {"key": "state", "slice": [3, 6]}}},
            ("[3, 6]", "5 elements", "'state'"),
        ),
        ({"state": np.full((75, 5), "a")}, {}, ("<U1", "number")),
        ({"state": np.zeros((75, 5), complex)}, {}, ("complex128", "number")),
    ],
)
def test_wrong_dimensions_and_types_are_explained(tmp_path, change, options, message):
    (problem,) = problems_of(tmp_path, {**good(), **change}, **options)
    assert told(problem, tmp_path / "set.npz", *message)


@pytest.mark.promise("H7")
def test_everything_wrong_is_in_one_report(tmp_path):
    arrays = {**good(), "episode_ends": np.array([30, 20, 80])}
    arrays["state"][3, 1] = np.nan
    obs = {"agent": {"key": "state"}, "wrong": {"key": "stat"}, "wide": {"key": "state", "slice": [0, 9]}}
    with pytest.raises(DataError) as caught:
        create(tmp_path, arrays, obs=obs, action="actoin")
    assert told(str(caught.value), f"{tmp_path / 'set.npz'}: 7 problems") and len(caught.value.problems) == 7
    for parts in (
        ("episode 1", "row 20"),
        ("obs.wrong", "'stat'", "'state'"),
        ("obs.wide",),
        ("action", "'actoin'", "'action'"),
        ("row 80", "75 rows"),
        ("frame 3", "dimension 1", "nan"),
    ):
        assert sum(told(problem, *parts) for problem in caught.value.problems) == 1


def test_a_long_report_is_cut_but_keeps_all_problems():
    error = DataError("set", [f"fault {i}" for i in range(50)])
    assert len(error.problems) == 50
    assert str(error).endswith("fault 19\n  ... and 30 more")


@pytest.mark.parametrize("kind", ["npz", "zarr"])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_a_picture_under_obs_is_refused_before_it_is_read(tmp_path, kind, channels, monkeypatch):
    """It would become tens of thousands of numbers without a word."""
    arrays = {**good(), "camera": np.zeros((75, 6, 8, channels), np.uint8)}
    if kind == "npz":
        np.savez(tmp_path / "set.npz", **arrays)
        monkeypatch.setattr(NpzStore, "read", lambda self, key: arrays[key] if key != "camera" else pytest.fail("read"))
    else:
        zarr = pytest.importorskip("zarr")
        group = zarr.open_group(str(tmp_path / "set.zarr"), mode="w", zarr_format=2)
        for name, array in arrays.items():
            group.create_array(f"meta/{name}" if name == "episode_ends" else f"data/{name}", data=array)
    record = {
        "episodes": {"type": kind, "path": str(tmp_path / f"set.{kind}")},
        "obs": {"agent": {"key": "state"}, "camera": {"key": "camera", "slice": [0, 2]}},
        "action": {"key": "action"},
    }
    with pytest.raises(DataError) as caught:
        TrajectoriesConfig.from_json(json.dumps(record)).create(16, 2, 8)
    (problem,) = caught.value.problems
    assert told(problem, "'camera'", f"uint8 of shape (6, 8, {channels})", "picture")
    assert '"images": {"camera": {"key": "camera", "size": [6, 8]}}' in problem


def test_numbers_of_several_axes_that_are_no_picture_are_a_state(tmp_path):
    arrays = {**good(), "grid": np.ones((75, 6, 8, 3), np.float32), "bits": np.ones((75, 4, 4), np.uint8)}
    data = create(tmp_path, arrays, obs={"grid": {"key": "grid"}, "bits": {"key": "bits"}})
    assert data.spec.cond_shapes == {"grid": (2, 6, 8, 3), "bits": (2, 4, 4)} and data.spec.kinds == {}


def test_rotations_are_slices_of_what_is_taken_and_numbers_that_are_none_are_named(tmp_path):
    arrays, obs = good(), {"agent": {"key": "state", "slice": [1, 5]}}
    arrays["state"][:, 1:] /= np.linalg.norm(arrays["state"][:, 1:], axis=1, keepdims=True)
    obs["agent"]["rotations"] = [{"slice": [0, 4], "form": "quaternion_xyzw"}]
    data = create(tmp_path, arrays, obs)
    assert data.spec.layout("agent").width_inside == 6 and data.spec.layout("x") is None
    assert data.spec.from_json(data.spec.model_dump_json()) == data.spec
    assert "rotations" not in create(tmp_path, good()).spec.model_dump()
    fingerprint = create(tmp_path, arrays, {"agent": {"key": "state", "slice": [1, 5]}}).fingerprint
    assert data.fingerprint == fingerprint  # the data stay as they are
    arrays["state"][[27, 28], 1:] *= 0.5
    (problem,) = problems_of(tmp_path, arrays, obs)
    place = f"obs.agent.rotations.0: {tmp_path / 'set.npz'}[state]: key 'state', slice [0, 4], episode 1, frame 7"
    assert told(problem, place, "length", 0.5, "expected 1", "2 such")
    for slices, words in (([[2, 6]], ("[2, 6]", "4 elements")), ([[0, 4], [0, 4]], ("[0, 4] and [0, 4]", "overlap"))):
        obs["agent"]["rotations"] = [{"slice": each, "form": "quaternion_xyzw"} for each in slices]
        assert told(problems_of(tmp_path, arrays, obs)[0], *words)
    arrays["state"] = arrays["state"][:, :4, None].repeat(2, -1)
    problem = problems_of(tmp_path, arrays, {"agent": {**obs["agent"], "slice": None}})[0]
    assert told(problem, "(4, 2)", "rotations", "vector", '"key": ["state"]')


def test_several_keys_are_joined_in_order_and_sliced_over_the_whole(tmp_path):
    arrays = good() | {"arms": np.arange(75 * 14).reshape(75, 2, 7), "grip": np.arange(75) > 3}
    whole = np.concatenate([arrays["action"], arrays["arms"].reshape(75, 14), arrays["grip"][:, None]], axis=1)
    store = NpzStore(write(tmp_path, arrays), "episode_ends")
    keys = ("action", "arms", "grip")
    for part in (None, (1, 4), (15, 17)):
        for record in (KeyConfig(key=keys, slice=part), ActionConfig(key=keys, slice=part)):
            found = read_selected(store, {"all": record})[0]["all"]
            np.testing.assert_array_equal(found, whole[:, slice(*(part or (None,)))].astype(np.float32))


def test_an_action_of_two_axes_is_one_vector_and_an_observation_only_in_a_list(tmp_path):
    arrays = good() | {"arms": np.arange(75 * 14.0).reshape(75, 2, 7)}
    store, flat = NpzStore(write(tmp_path, arrays), "episode_ends"), arrays["arms"].reshape(75, 14)
    records = {"x": ActionConfig(key="arms"), "kept": KeyConfig(key="arms"), "flat": KeyConfig(key=("arms",))}
    found = read_selected(store, records)[0]
    np.testing.assert_array_equal(found["x"], flat)
    np.testing.assert_array_equal(found["flat"], flat)
    np.testing.assert_array_equal(found["kept"], arrays["arms"])


@pytest.mark.parametrize("ahead", [0, 1, 3, 100])
def test_an_action_that_was_never_recorded_is_a_later_value_and_the_last_repeats(tmp_path, ahead):
    arrays, begin, expected = good(), 0, []
    for length in LENGTHS:
        expected += [arrays["state"][begin + min(step + ahead, length - 1)] for step in range(length)]
        begin += length
    store = NpzStore(write(tmp_path, arrays), "episode_ends")
    found = read_selected(store, {"x": ActionConfig(key="state", ahead=ahead)})[0]["x"]
    np.testing.assert_array_equal(found, np.array(expected))


def test_a_fault_in_one_of_several_keys_is_found_under_its_name(tmp_path):
    arrays = good()
    arrays["action"][27, 1] = np.nan
    (problem, _) = problems_of(tmp_path, arrays, obs={"agent": {"key": ["state", "action"], "slice": [2, 7]}})[:2]
    assert told(
        problem, f"{tmp_path / 'set.npz'}[action]", "'state' + 'action', episode 1, frame 7, dimension 4", "nan"
    )
    (problem,) = problems_of(tmp_path, good(), action=["state", "actio"])
    assert told(problem, "action", "'actio'", "'action'")


NAMES = {"state": ["x", "y", "z", "force", "grip"], "action": ["dx", "dy"]}


def named(tmp_path, obs, predicted=None, names=NAMES, **arrays):
    """The data of a configuration on a data set that names its numbers."""
    path = write(tmp_path, good() | arrays)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("meta.json", json.dumps({"names": names}))
    episodes = {"type": "npz", "path": str(path)}
    record = {"episodes": episodes, "obs": {"agent": obs}, "action": predicted or {"key": "action"}}
    return TrajectoriesConfig.from_json(json.dumps(record)).create(16, 2, 8)


def test_consecutive_names_are_the_slice(tmp_path):
    for part, names in (((0, 5), NAMES["state"]), ((1, 3), ["y", "z"]), ((4, 5), ["grip"])):
        sliced = named(tmp_path, {"key": "state", "slice": part})
        by_name = named(tmp_path, {"key": "state", "names": names})
        assert by_name.fingerprint == sliced.fingerprint and by_name.spec == sliced.spec
        assert by_name.spec.names["agent"] == tuple(names)


def test_numbers_are_taken_in_the_order_of_their_names_from_several_keys_too(tmp_path):
    arrays = good()
    data = named(tmp_path, {"key": ["action", "state"], "names": ["grip", "dy", "x"]},
                 {"key": "action", "names": ["dy", "dx"]})  # fmt: skip
    assert data.spec.names == {"agent": ("grip", "dy", "x"), "x": ("dy", "dx")}
    store = NpzStore(tmp_path / "set.npz", "episode_ends")
    keys = {"agent": KeyConfig(key=("action", "state"), names=("grip", "dy", "x")),
            "x": ActionConfig(key="action", names=("dy", "dx"))}  # fmt: skip
    found = read_selected(store, keys)[0]
    expected = np.stack([arrays["state"][:, 4], arrays["action"][:, 1], arrays["state"][:, 0]], axis=1)
    np.testing.assert_array_equal(found["agent"], expected)
    np.testing.assert_array_equal(found["x"], arrays["action"][:, ::-1])


@pytest.mark.parametrize(
    ("obs", "names", "parts"),
    [
        ({"key": "state", "names": ["x", "grib"]}, NAMES, ["obs.agent.names", "'grib'", "'grip'", "'state'"]),
        ({"key": "state", "names": ["x"]}, {}, ["obs.agent.names", "'state'", '"slice"']),
        ({"key": "state", "names": ["x"]}, {"state": ["x", "y"]}, ["obs.agent.names", "'state'", '"slice"']),
        ({"key": "state", "names": ["x"]}, {"state": list("xyxzw")}, ["obs.agent.names", "'x'", "[0, 2]"]),
        ({"key": "stat", "names": ["x"]}, NAMES, ["obs.agent", "'stat'", "'state'"]),
        ({"key": "pair", "names": ["x"]}, {"pair": ["x", "y"]}, ["obs.agent", "(2, 1)", '"key": ["pair"]']),
    ],
)
def test_names_that_choose_no_number_are_refused(tmp_path, obs, names, parts):
    with pytest.raises(DataError) as caught:
        named(tmp_path, obs, names=names, pair=np.zeros((75, 2, 1)))
    (problem,) = caught.value.problems
    assert told(problem, *parts)


@pytest.mark.parametrize(
    ("obs", "parts"),
    [
        ({"key": "state", "names": ["x"], "slice": [0, 1]}, ["slice", "[0, 1]", "names", "['x']"]),
        ({"key": "state", "names": ["x", "y", "x"]}, ["names", "['x']"]),
        ({"key": "state", "names": []}, ["obs.agent.names", "[]"]),
    ],
)
def test_names_beside_a_slice_or_twice_or_none_are_refused(tmp_path, obs, parts):
    with pytest.raises(ConfigError, match=naming(*parts)):
        named(tmp_path, obs)


def test_a_value_that_is_not_finite_is_placed_under_the_key_of_its_name(tmp_path):
    arrays = good()
    arrays["action"][27, 1] = np.nan
    with pytest.raises(DataError) as caught:
        named(tmp_path, {"key": ["state", "action"], "names": ["dy", "x"]}, {"key": "state"}, action=arrays["action"])
    assert told(caught.value.problems[0], f"{tmp_path / 'set.npz'}[action]", "frame 7", "dimension 0", "nan")


@pytest.mark.parametrize("ahead", [1, 3])
@pytest.mark.parametrize("stride", [2, 3])
def test_a_later_value_is_one_that_the_steps_of_a_stride_reach(tmp_path, ahead, stride):
    """Steps of a stride begin at each of its first rows, so a window never sees rows between its steps."""
    arrays, begin, expected = good(), 0, []
    for length in LENGTHS:
        for row in range(length):
            later = range(row, length, stride)[: ahead + 1]
            expected.append(arrays["state"][begin + later[-1]])
        begin += length
    store = NpzStore(write(tmp_path, arrays), "episode_ends")
    keys = {"x": ActionConfig(key="state", ahead=ahead)}
    np.testing.assert_array_equal(read_selected(store, keys, stride=stride)[0]["x"], np.array(expected))


@pytest.mark.parametrize(("dimension", "key"), [(0, "state"), (4, "state"), (5, "action"), (6, "action"), (7, "grip")])
def test_each_number_of_joined_keys_is_found_under_its_own(tmp_path, dimension, key):
    arrays = good() | {"grip": np.zeros((75, 1), np.float32)}
    arrays[key][27, dimension - {"state": 0, "action": 5, "grip": 7}[key]] = np.nan
    problem, _ = problems_of(tmp_path, arrays, obs={"agent": {"key": ["state", "action", "grip"]}})[:2]
    assert told(problem, f"{tmp_path / 'set.npz'}[{key}]", "frame 7", f"dimension {dimension}", "nan")


def test_joined_keys_of_different_rows_are_told_by_their_rows(tmp_path):
    problems = problems_of(tmp_path, good() | {"short": np.zeros((70, 2))}, obs={"agent": {"key": ["state", "short"]}})
    assert any(told(problem, "'short' 70", "'state' 75") for problem in problems)


def test_rows_behind_the_last_episode_may_hold_anything(tmp_path):
    arrays = {key: np.concatenate([values, values[:3]]) for key, values in good().items() if key != "episode_ends"}
    arrays["state"][76, 1] = np.nan
    data = create(tmp_path, arrays | {"episode_ends": np.cumsum(LENGTHS)})
    assert any(told(line, "3 rows", "row 75") for line in data.warnings())
