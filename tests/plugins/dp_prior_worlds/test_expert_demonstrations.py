"""Files of demonstrations come back as they were written, and hold the first solved episodes of their seeds."""

import errno
import os
import tempfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_prior.config import ConfigError
from dp_prior.data.errors import UnreadableError
from dp_prior_worlds import expert_demonstrations
from dp_prior_worlds.expert_demonstrations import (
    Disturbance,
    disturbed_episode,
    read_demonstrations,
    record,
    write_episodes,
)
from tests.messages import naming


def episode(seed):
    """A made-up episode of Push-T, of 1 to 4 steps; two of three seeds are solved."""
    random = np.random.default_rng(seed)
    length = 1 + seed % 4
    return random.random((length, 5)), random.random((length, 2)), seed % 3 != 0


@given(st.lists(st.integers(0, 99), min_size=1, max_size=5))
def test_what_is_written_is_read(tmp_path_factory, seeds):
    path = tmp_path_factory.mktemp("demonstrations") / "new" / "d.npz"
    episodes = [episode(seed)[:2] for seed in seeds]
    write_episodes(path, episodes, goal=np.arange(3))
    states, actions, ends = read_demonstrations(path)
    split = [np.split(part, ends[:-1]) for part in (states, actions)]
    for found, written in zip(zip(*split, strict=True), episodes, strict=True):
        np.testing.assert_array_equal(found[0], written[0])
        np.testing.assert_array_equal(found[1], written[1])
    assert np.load(path)["goal"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(("count", "seed"), [(1, 0), (1, 1), (7, 0), (5, 100)])
def test_the_first_solved_seeds_are_recorded_and_every_seed_tried_is_counted(tmp_path, in_this_process, count, seed):
    tried = record(tmp_path / "d.npz", episode, count, seed, None)
    solved = [number for number in range(seed, seed + tried) if episode(number)[2]]
    assert len(solved) == count and solved[-1] == seed + tried - 1  # not one seed more than needed
    states, actions, ends = read_demonstrations(tmp_path / "d.npz")
    np.testing.assert_array_equal(states, np.concatenate([episode(number)[0] for number in solved]))
    np.testing.assert_array_equal(actions, np.concatenate([episode(number)[1] for number in solved]))
    assert ends.tolist() == np.cumsum([len(episode(number)[0]) for number in solved]).tolist()


@pytest.mark.parametrize(("count", "seed"), [(1, 0), (3, 0), (2, 5)])
def test_of_every_instruction_the_first_solved_seeds_are_recorded(tmp_path, in_this_process, count, seed):
    """Two of three seeds are solved, so with four instructions each fails in turn."""
    texts = ["a", "b", "c", "d"]
    tried = record(tmp_path / "d.npz", lambda one: (*episode(one)[:2], *episode(one)[1:]), count, seed, None, texts)
    chosen = [[one for one in range(seed, 99) if one % 4 == aim and episode(one)[2]][:count] for aim in range(4)]
    seeds = sorted(sum(chosen, []))
    found = np.load(tmp_path / "d.npz")
    assert found["seed"].tolist() == seeds and found["instructions"].tolist() == texts
    np.testing.assert_array_equal(found["state"], np.concatenate([episode(one)[0] for one in seeds]))
    np.testing.assert_array_equal(found["executed"], found["action"])
    assert found["task"].tolist() == [one % 4 for one in seeds for _ in episode(one)[0]]
    assert tried == sum(len(range(aim + (seed - aim + 3) // 4 * 4, own[-1] + 1, 4)) for aim, own in enumerate(chosen))


def test_a_set_of_no_episodes_is_refused(tmp_path):
    with pytest.raises(ValueError, match=naming("episodes", 0)):
        record(tmp_path / "d.npz", episode, 0, 0, None)


GOOD = {"state": np.zeros((4, 5)), "action": np.zeros((4, 2)), "episode_ends": np.array([1, 4])}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"state": np.zeros((4, 4))}, "(4, 4)"),
        ({"action": np.zeros((3, 2))}, "(3, 2)"),
        *(({"episode_ends": np.array(ends)}, "rise to 4") for ends in ([1, 3], [4, 4], [3, 1, 4], [0, 4], [])),
        ({"action": None}, "action"),
        ({"state": np.array([{}] * 4)}, "Python objects"),
    ],
)
def test_a_file_that_holds_something_else_is_refused_with_what_it_has(tmp_path, change, named):
    path = tmp_path / "d.npz"
    np.savez(path, **{name: value for name, value in {**GOOD, **change}.items() if value is not None})
    with pytest.raises(ConfigError) as caught:
        read_demonstrations(path)
    assert caught.value.source == str(path) and named in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"state"])
def test_a_file_that_is_no_npz_is_refused(tmp_path, data):
    (tmp_path / "d.npz").write_bytes(data)
    with pytest.raises(ConfigError, match=naming("d.npz", "Push-T", "`dp-prior make-demonstrations`")):
        read_demonstrations(tmp_path / "d.npz")


def test_a_damaged_file_is_read_or_refused_whichever_byte_it_is(tmp_path):
    path = tmp_path / "d.npz"
    np.savez_compressed(path, **GOOD)
    content, refused = path.read_bytes(), 0
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :])
        try:
            read_demonstrations(path)
        except ConfigError as error:
            assert error.source == str(path)
            refused += 1
    assert refused > len(content) / 3


def test_a_file_that_the_system_refuses_to_read_now_is_no_fault_of_its_content(tmp_path, monkeypatch):
    def refused(*arguments):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(expert_demonstrations, "load_npz", refused)
    with pytest.raises(UnreadableError, match=naming("d.npz", os.strerror(errno.EIO))):
        read_demonstrations(tmp_path / "d.npz")


def test_an_existing_file_is_refused_before_an_episode_is_played_and_one_that_appears_meanwhile_stays(
    tmp_path, in_this_process
):
    path = tmp_path / "d.npz"

    def meanwhile(seed):
        path.write_text("another's")
        return episode(seed)

    with pytest.raises(FileExistsError, match=naming("d.npz exists", "another file")):
        record(path, meanwhile, 1, 1, None)
    with pytest.raises(FileExistsError, match=naming("d.npz exists", "another file")):
        record(path, lambda seed: pytest.fail("played"), 1, 1, None)
    assert path.read_text() == "another's" and list(tmp_path.iterdir()) == [path]


def test_a_folder_that_cannot_be_written_is_told_before_an_episode_is_played(tmp_path, in_this_process, monkeypatch):
    def refused(dir):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(tempfile, "TemporaryFile", refused)
    with pytest.raises(OSError, match=naming(tmp_path / "new", os.strerror(errno.EROFS))):
        record(tmp_path / "new" / "d.npz", lambda seed: pytest.fail("played"), 1, 1, None)


def counted_episode(disturbance, steps=200):
    """An episode that observes the number of a step, in which the expert's action is this number."""
    numbers = iter(range(1, steps))
    rng = np.random.default_rng(0)
    return disturbed_episode(0, float, lambda action: next(numbers, None), disturbance, rng)


def test_an_episode_without_disturbance_executes_what_the_expert_chooses_until_the_last_step():
    observed, actions, executed = counted_episode(None)
    assert observed == list(range(200)) and actions == executed == list(map(float, range(200)))


def test_a_disturbance_shifts_the_executed_actions_alone_for_as_many_steps_as_it_says():
    shifts = iter(range(1000, 100_000, 1000))

    def draw(rng):
        offset = next(shifts)
        return lambda action: action + offset

    observed, actions, executed = counted_episode(Disturbance(0.2, (3, 5), draw))
    assert observed == list(range(200)) and actions == list(map(float, range(200)))
    offsets = np.subtract(executed, actions)
    lengths = np.unique(offsets[offsets > 0], return_counts=True)[1]
    assert len(lengths) > 10 and {*lengths[:-1]} == {3, 4, 5}
    assert (offsets[offsets > 0][:3] == 1000).all() and 0 in offsets
