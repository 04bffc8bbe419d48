"""Two fingerprints are equal where the world is, and say what differs where it is not."""

import importlib.metadata

import numpy as np
import pytest

from dp_prior.envs.fingerprint import differences, fingerprint, start_digest, versions
from dp_prior.envs.gym import GymConfig
from dp_prior.envs.toy import ToyConfig
from dp_prior_worlds.pusht import PushTConfig
from tests.messages import told


def test_the_versions_are_those_of_the_packages_that_simulate():
    pytest.importorskip("gymnasium")
    assert versions(ToyConfig()) == {}
    found = versions(PushTConfig())
    assert found == {name: importlib.metadata.version(name) for name in ("gym-pusht", "pymunk")}
    assert versions(GymConfig(id="Pendulum-v1")).keys() >= {"gymnasium"}


def test_the_start_of_a_seed_is_the_same_every_time_and_another_seeds_is_not():
    record = ToyConfig()
    one, again, other = (fingerprint(record, record.create(), seed) for seed in (3, 3, 4))
    assert one == again and one["start"] != other["start"]
    assert [*differences(one, again)] == [*differences(one, other)] == []


def test_a_digest_sees_keys_values_shapes_and_texts_but_not_the_last_bits():
    obs = {"state": np.array([0.25, -1.0]), "text": np.array("push"), "camera": np.zeros((2, 2, 3), np.uint8)}
    digest = start_digest(obs)
    assert digest == start_digest(dict(reversed(obs.items())))
    assert digest == start_digest({**obs, "state": np.array([0.25 + 1e-12, -1.0], dtype=np.float64)})
    assert digest == start_digest({**obs, "state": obs["state"].astype(np.float32)})
    changed = [
        {"state": np.array([0.25, -1.001])},
        {"state": np.array([[0.25], [-1.0]])},
        {"text": np.array("pull")},
        {"camera": np.ones((2, 2, 3), np.uint8)},
        {"other": np.zeros(1)},
    ]
    assert len({digest, *(start_digest({**obs, **one}) for one in changed)}) == 6
    assert start_digest({"state": np.array([-0.0])}) == start_digest({"state": np.array([0.0])})


def test_differences_name_packages_with_both_versions_and_the_start():
    one = {"packages": {"mujoco": "3.3.0", "metaworld": "3.1.1"}, "seed": 7, "start": "ab"}
    other = {"packages": {"mujoco": "3.4.0", "gym-pusht": "0.1.8"}, "seed": 7, "start": "cd"}
    named = (
        ("gym-pusht", "missing", "0.1.8"),
        ("metaworld", "3.1.1", "missing"),
        ("mujoco", "3.3.0", "3.4.0"),
        ("start", 7),
    )
    for line, parts in zip(differences(one, other), named, strict=True):
        assert told(line, *parts)
