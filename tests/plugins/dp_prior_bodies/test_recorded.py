"""Data sets of several bodies as one: what each sample holds, and what sets must agree in."""

import json

import numpy as np
import pytest
import torch

from dp_prior.config import ConfigError
from dp_prior.data.errors import DataError, MissingError
from dp_prior.data.recorded.mixture import MixtureConfig
from dp_prior.data.split_data import PARTS
from dp_prior_bodies.recorded import BodiesConfig
from dp_prior_bodies.union import BODY, narrowed
from tests.messages import naming, told, told_each
from tests.plugins.dp_prior_bodies.two_bodies import JOINTS, write_bodies

WINDOWS = (4, 2, 2)  # horizon, n_obs_steps, n_action_steps
SPLIT = {"train": 0.75, "val": 0.25}


def configured(place, record=BodiesConfig, **changes):
    """The record of both sets; changes by set and field."""
    sets = write_bodies(place)
    for path, value in changes.items():
        name, *parents, last = path.split("__")
        settings = sets[name]
        for key in parents:
            settings = settings.setdefault(key, {})
        settings[last] = value
    return record.from_json(json.dumps({"sets": sets, "split": SPLIT, "batch_size": 8}))


def opened(place, **changes):
    data = configured(place, **changes).create(*WINDOWS)
    data.build_caches(lambda line: None)
    return data


def test_each_sample_is_that_of_its_set(tmp_path):
    config = configured(tmp_path)
    data = opened(tmp_path)
    for part in PARTS[:2]:
        first = 0
        for number, name in enumerate(data.sets):
            alone = config.set_config(name).create(*WINDOWS)
            alone.build_caches(lambda line: None)
            expected = getattr(alone, part)
            whole = expected.fetch(torch.arange(len(expected)))
            for batch in (
                getattr(data, part).fetch(torch.arange(first, first + len(expected))),
                getattr(data.sets[name], part).fetch(torch.arange(len(expected))),
            ):
                assert (batch.cond[BODY] == number).all() and batch.x.shape[1:] == (4, 3)
                narrow = narrowed(batch, data.spec.bodies[name])
                assert torch.equal(narrow.x, whole.x) and torch.equal(narrow.mask, whole.mask)
                assert narrow.cond.keys() == whole.cond.keys()
                assert all(torch.equal(narrow.cond[key], whole.cond[key]) for key in whole.cond)
            first += len(expected)
        assert first == len(getattr(data, part))


def test_statistics_are_those_of_each_set(tmp_path):
    config, statistics = configured(tmp_path), opened(tmp_path).statistics()
    for name in JOINTS:
        alone = config.set_config(name).create(*WINDOWS).statistics()
        assert {key.removeprefix(f"{name}/") for key in statistics if key.startswith(f"{name}/")} == alone.keys()
        for key, expected in alone.items():
            assert statistics[f"{name}/{key}"].count == expected.count
            assert np.array_equal(statistics[f"{name}/{key}"].mean, expected.mean)
            assert np.array_equal(statistics[f"{name}/{key}"].max, expected.max)


def test_each_set_is_opened_as_that_of_a_mixture(tmp_path):
    sets = write_bodies(tmp_path)
    settings = {
        "sets": {"long": sets["long"]}, "split": SPLIT, "batch_size": 4, "mask_padding": False, "device": "cpu",
        "verify": "hashes", "block_rows": 9, "shuffle_blocks": 3, "frame_cache": str(tmp_path / "frames"),
    }  # fmt: skip
    records = [record.from_json(json.dumps(settings)) for record in (BodiesConfig, MixtureConfig)]
    assert records[0].set_config("long") == records[1].set_config("long")
    assert BodiesConfig.model_fields.keys() == MixtureConfig.model_fields.keys()
    masks = [record.create(*WINDOWS).train for record in records]
    ids = torch.arange(len(masks[0]))
    assert torch.equal(masks[0].fetch(ids).mask, masks[1].fetch(ids).mask) and masks[0].fetch(ids).mask.all()


def test_a_body_has_its_own_rate_names_and_pictures(tmp_path):
    data = opened(tmp_path, short__fps=10, long__fps=50, long__action_names=["a", "b", "c"])
    short, long = data.spec.bodies["short"], data.spec.bodies["long"]
    assert (short.fps, long.fps) == (10, 50) and long.names["x"] == ("a", "b", "c")
    assert {*short.scenes} == {"front"} and not long.scenes
    facts = "\n".join(f"{name}: {fact}" for name, fact in data.facts().items())
    assert told(facts, "short: action", (2,)) and told(facts, "long: goal", (2,))
    assert set(data.report()["keys"]) == {"short/x", "short/state", "long/x", "long/state", "long/goal"}


def test_weights_are_shares_of_an_epoch(tmp_path):
    data = opened(tmp_path, short__weight=3.0, long__weight=1.0)
    shares = dict(zip(data.sets, data._counts, strict=True))
    assert shares["short"] == pytest.approx(3 * shares["long"], abs=3)
    assert told(data.summary(), "short", 0.75)


def test_what_one_encoder_cannot_read_is_refused_by_name(tmp_path):
    def problems(**changes):
        with pytest.raises(ConfigError) as error:
            configured(tmp_path, **changes).create(*WINDOWS)
        return error.value.problems

    other_size = {"long__episodes__path": str(tmp_path / "short.npz"), "long__obs": {"state": {"key": "state"}}}
    other_size["long__images"] = {"front": {"key": "image", "size": [10, 10]}}
    assert told_each(problems(**other_size), ("'front'", "sets.short", "sets.long", (12, 16, 3), (10, 10, 3)))
    assert told_each(
        problems(long__obs={"state": {"key": "state"}, "front": {"key": "goal"}}),
        ("'front'", "sets.short", "sets.long", "image", "vector"),
    )
    assert told_each(problems(long__action_names=["a"]), ("sets.long.action_names", 1, 3))
    assert told_each(problems(short__obs__body={"key": "state"}), ("sets.short", "'body'", "rename"))


def test_missing_sets_are_told_apart_from_faulty_ones(tmp_path):
    config = configured(tmp_path)
    for name in JOINTS:
        (tmp_path / f"{name}.npz").unlink()
    with pytest.raises(MissingError, match=naming("sets.long", "sets.short", tmp_path / "long.npz")):
        config.create(*WINDOWS)
    (tmp_path / "short.npz").write_bytes(b"no archive")
    with pytest.raises(DataError, match=naming("sets.long", "sets.short")) as error:
        config.create(*WINDOWS)
    assert not isinstance(error.value, MissingError)


def test_a_mixture_of_one_robot_names_the_way_for_many(tmp_path):
    with pytest.raises(ConfigError, match=naming("sets.long", "goal", "data.type", "task.type", "bodies")):
        configured(tmp_path, record=MixtureConfig)


def test_numbers_of_other_names_in_the_same_place_are_a_warning(tmp_path):
    names = {"short__action_names": ["x", "y"], "long__action_names": ["a", "b", "c"]}
    warnings = [line for line in opened(tmp_path, **names).warnings() if "same weights" in line]
    assert told_each(warnings, ("action", "short", "long", "x", "a"))
    alike = {"short__action_names": ["a", "b"], "long__action_names": ["a", "b", "c"]}
    assert not [line for line in opened(tmp_path, **alike).warnings() if "same weights" in line]
