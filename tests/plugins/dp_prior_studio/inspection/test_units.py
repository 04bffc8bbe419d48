"""Wrong units are found where they are, and nowhere in data without them."""

import json
from dataclasses import replace

import numpy as np
import pytest

from dp_prior.data.formats.npz import NpzStoreConfig
from dp_prior.data.recorded.weights import WeightsConfig
from dp_prior_studio.inspection.faults import find
from dp_prior_studio.inspection.survey import survey
from dp_prior_studio.inspection.units import find_units, other_units, still_grippers
from tests.messages import told, told_each

LENGTHS = [40] * 10
ENDS = np.cumsum(LENGTHS)


def arrays(seed=0, width=6):
    """A robot with joints in radians that follow their commands, and a gripper."""
    rng = np.random.default_rng(seed)
    action = np.cumsum(rng.normal(0, 0.1, (ENDS[-1], width)), axis=0) % 2.5 - 1.2
    grip = rng.integers(0, 2, (ENDS[-1], 1))
    return {"state": np.roll(action, 1, 0) + rng.normal(0, 0.01, action.shape), "action": action, "gripper": grip}


def looked_at(tmp_path, **changes):
    values = {key: np.float32(one) for key, one in arrays().items()}
    np.savez(tmp_path / "d.npz", **{**values, **changes}, episode_ends=ENDS)
    return survey(NpzStoreConfig(path=tmp_path / "d.npz").create())


def rows(*numbers):
    return np.concatenate([np.arange(40 * n, 40 * n + 40) for n in numbers])


@pytest.mark.parametrize("seed", range(5))
def test_data_in_one_unit_have_no_such_finding(tmp_path, seed):
    assert not list(find_units(looked_at(tmp_path, **arrays(seed))))


@pytest.mark.parametrize(
    ("key", "numbers", "factor", "dimensions", "words"),
    [
        ("action", [3], 180 / np.pi, slice(None), ("56.7 times", "degrees", "radians?")),
        ("state", [3, 7], 180 / np.pi, slice(3, 6), ("degrees", "radians?")),
        ("state", [1, 2, 3, 4, 5], 180 / np.pi, slice(None), ("degrees", "radians?")),
        ("action", [0], np.pi / 180, slice(None), ("1/55.5", "degrees", "radians?")),
        ("state", [9], 1000, slice(0, 3), ("millimetres", "metres?")),
    ],
)
def test_episodes_in_another_unit_are_named(tmp_path, key, numbers, factor, dimensions, words):
    values = arrays()[key]
    values[rows(*numbers), dimensions] *= factor
    found = [one for one in find_units(looked_at(tmp_path, **{key: values})) if "episode" in one.text]
    assert [one.leave_out for one in found] == [numbers] and told(found[0].text, key, *words)


def test_states_in_another_unit_than_their_actions_are_found(tmp_path):
    (found,) = find_units(looked_at(tmp_path, state=arrays()["state"] * 180 / np.pi))
    assert told(found.text, "57.3 times", "degrees", "radians?")
    (found,) = find_units(looked_at(tmp_path, state=arrays()["state"] / 1000))
    assert told(found.text, "millimetres", "metres?") and "is 1/" in found.text


def test_a_gripper_that_never_moves_is_said(tmp_path):
    seen = looked_at(tmp_path, gripper=np.ones((ENDS[-1], 1)))
    signal = next(one for one in seen.signals if one.key == "gripper")
    seen = seen.__class__(**{**vars(seen), "signals": [signal.__class__(**{**vars(signal), "role": "observation"})]})
    assert told(next(iter(find_units(seen))).text, "gripper", "never")


def test_rows_after_the_last_end_are_an_error(tmp_path):
    values = arrays()
    np.savez(tmp_path / "d.npz", **{key: np.float32(one) for key, one in values.items()}, episode_ends=ENDS[:-1])
    errors = [one for one in find(survey(NpzStoreConfig(path=tmp_path / "d.npz").create())) if one.severity == "error"]
    assert told_each((one.text for one in errors), ("40 rows", "row 360", "no episode"))
    np.savez(tmp_path / "d.npz", **{key: np.float32(one) for key, one in values.items()}, episode_ends=ENDS - 1)
    found = find(survey(NpzStoreConfig(path=tmp_path / "d.npz").create()))
    assert any(told(one.text, "1 rows", "add 1") for one in found if one.severity == "error")


@pytest.mark.parametrize("dtype", [bool, np.int64, np.float32])
def test_corrections_are_named_with_the_line_that_weighs_them(tmp_path, dtype):
    flags = np.zeros((ENDS[-1], 1), dtype)
    flags[rows(2)] = 1
    seen = looked_at(tmp_path, intervention=flags)
    (text,) = (one.text for one in find(seen) if told(one.text, "10.0%"))
    line = text[text.index('"weights": ') + len('"weights": ') :]
    weights = WeightsConfig.from_json(json.dumps(json.JSONDecoder().raw_decode(line)[0]))
    np.testing.assert_array_equal(weights.create(seen.store, seen.chosen), np.where(flags[:, 0] > 0, 4.0, 1.0))
    assert not any("corrections" in one.text for one in find(looked_at(tmp_path, intervention=flags * 0)))


def test_an_episode_of_a_few_steps_is_in_no_other_unit(tmp_path):
    values = arrays()
    few = {key: np.float32(np.concatenate([one[:2] / 60, one])) for key, one in values.items()}
    np.savez(tmp_path / "few.npz", **few, episode_ends=np.concatenate([[2], ENDS + 2]))
    assert not list(find_units(survey(NpzStoreConfig(path=tmp_path / "few.npz").create())))


def reaches(seed=0, n=20, width=2):
    """Episodes of a point that is sent to goals at any distance, so that magnitudes differ by far."""
    rng = np.random.default_rng(seed)
    action = []
    for _ in range(n):
        goal, place = rng.uniform(-1, 1, width), rng.uniform(-0.3, 0.3, width)
        for _ in range(50):
            place = place + 0.1 * (goal - place)
            action.append(place)
    action = np.array(action)
    return {"state": np.roll(action, 1, axis=0), "action": action}, np.arange(50, 50 * n + 1, 50)


def findings_in(tmp_path, arrays, ends):
    np.savez(tmp_path / "d.npz", **arrays, episode_ends=ends)
    return find_all(survey(NpzStoreConfig(path=tmp_path / "d.npz").create()))


def find_all(seen):
    return [*find(seen), *find_units(seen)]


@pytest.mark.parametrize("count", [1, 3, 6, 10])
@pytest.mark.parametrize("keys", [("action",), ("state", "action")])
def test_episodes_in_degrees_are_found_and_no_other_finding_blames_the_good_ones(tmp_path, keys, count):
    arrays, ends = reaches()
    for key in keys:
        arrays[key][: 50 * count] *= 180 / np.pi
    findings = findings_in(tmp_path, arrays, ends)
    of_units = [finding for finding in findings if "degrees" in finding.text]
    assert {told(finding.text, "degrees", "radians?") for finding in of_units} == {True}
    assert {tuple(finding.leave_out) for finding in findings if finding.leave_out} == {tuple(range(count))}


@pytest.mark.parametrize("factor", [180 / np.pi, 1000.0])
def test_one_number_of_an_action_in_another_unit_than_its_state_is_found(tmp_path, factor):
    values = arrays()["action"]
    values[:, 5] *= factor
    (finding,) = find_units(looked_at(tmp_path, action=values))
    assert told(finding.text, "state", "dimension 5", "degrees" if factor < 100 else "millimetres")


def test_one_number_of_some_actions_in_another_unit_is_found(tmp_path):
    values = arrays()["action"]
    values[rows(2, 7), 4] *= 1000
    (finding,) = [finding for finding in find_units(looked_at(tmp_path, action=values)) if finding.leave_out]
    assert told(finding.text, "action", "dimension 4", "millimetres") and finding.leave_out == [2, 7]


@pytest.mark.parametrize(
    ("factor", "is_unit"), [(180 / np.pi, True), (60, True), (80, False), (1000, True), (1300, False)]
)
def test_a_single_number_of_another_scale_is_in_another_unit_only_where_it_is_nearly_that(tmp_path, factor, is_unit):
    state = arrays()["state"]
    state[:, 0] *= factor
    assert [*map(bool, other_units(looked_at(tmp_path, state=state)))] == [True] * is_unit


def test_a_number_that_never_changes_is_a_gripper_only_by_its_name(tmp_path):
    state = arrays()["state"]
    state[:, 2] = 0.5
    seen = looked_at(tmp_path, state=state)
    assert not list(still_grippers(seen))
    labelled = [
        replace(signal, columns=list("ab") + ["left grip"] + list("def")) for signal in seen.of("observation")[:1]
    ]
    (found,) = still_grippers(replace(seen, signals=labelled))
    assert told(found.text, "state", "dimension 2 (left grip)", "gripper")


@pytest.mark.parametrize(("length", "is_told"), [(10, True), (9, False)])
def test_episodes_of_ten_steps_have_a_unit(tmp_path, length, is_told):
    values = {key: np.float32(each[: 10 * length]) for key, each in arrays().items()}
    for key in ("state", "action"):
        values[key][3 * length : 4 * length] *= 180 / np.pi
    np.savez(tmp_path / "d.npz", **values, episode_ends=length * np.arange(1, 11))
    found = [*find_units(survey(NpzStoreConfig(path=tmp_path / "d.npz").create()))]
    assert [finding.leave_out for finding in found if finding.leave_out] == [[3]] * (2 * is_told)
