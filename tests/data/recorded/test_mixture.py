"""Several data sets as one: which samples come in which share, and what sets must agree in."""

import json
import shutil
import zipfile
from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from dp_prior.config import ConfigError
from dp_prior.data.errors import DataError
from dp_prior.data.formats.choice import ChoiceConfig
from dp_prior.data.formats.npz import META
from dp_prior.data.integrity import DATA_MANIFEST
from dp_prior.data.recorded.mixture import Mixture, MixtureConfig, SetConfig
from dp_prior.data.recorded.records import WindowsConfig
from dp_prior.data.recorded.split import SplitConfig
from dp_prior.data.recorded.trajectories import TrajectoriesConfig
from dp_prior.run.changes import kind_of
from dp_prior.run.config import TrainConfig
from tests.data.frames.recordings import pictures
from tests.data.recorded import test_frame_embeddings as embedded
from tests.data.recorded.trajectories import CONFIG, configure, episodes
from tests.messages import naming, told, told_each
from tests.tiny import assert_equal, experiment, rows, state, tiny, train, train_and_die, write, write_data

KEYS = {key: CONFIG[key] for key in ("obs", "action")}
TURN = {"slice": [0, 3], "form": "axis_angle"}
WINDOWS = (8, 2, 4)  # horizon, n_obs_steps, n_action_steps


@pytest.fixture
def paths(tmp_path) -> dict[str, Path]:
    """Two data sets, and `both`, their episodes in one file."""
    arrays = {"a": episodes((20, 5, 30, 17)), "b": episodes((9, 12, 25, 3, 14, 21), seed=1)}
    ends = arrays["a"]["episode_ends"], arrays["b"]["episode_ends"] + arrays["a"]["episode_ends"][-1]
    arrays["both"] = {key: np.concatenate([arrays["a"][key], arrays["b"][key]]) for key in arrays["a"]}
    arrays["both"]["episode_ends"] = np.concatenate(ends)
    for name, content in arrays.items():
        np.savez(tmp_path / f"{name}.npz", **content)
    return {name: tmp_path / f"{name}.npz" for name in arrays}


def mixture(sets: dict[str, tuple[Path, float | None]], **changes) -> MixtureConfig:
    """Data sets by name, each a file and its weight."""
    records = {
        name: {"episodes": {"type": "npz", "path": str(path)}, "weight": weight, **KEYS}
        for name, (path, weight) in sets.items()
    }
    return MixtureConfig.from_json(json.dumps({"sets": records, "split": CONFIG["split"], **changes}))


def batches(data, steps=30, **how):
    arguments = {"batch_size": 8, "accumulation": 1, "seed": 3, "rank": 0, "world_size": 1, **how}
    return [batch for step in islice(data.loader(**arguments).from_sample(0), steps) for batch in step]


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.x, other.x) and torch.equal(one.mask, other.mask)
        assert all(torch.equal(one.cond[key], other.cond[key]) for key in other.cond)
        assert torch.equal(one.denominator, other.denominator)


def drawn(data: Mixture, epochs: int) -> Counter:
    """How often each window comes in so many epochs, by set and number."""
    loader = data.loader(batch_size=1, accumulation=1, seed=5, rank=0, world_size=1)
    ids = np.concatenate([loader.order.ids(epoch, 0, len(loader)) for epoch in range(epochs)])
    ends = np.cumsum([len(each.train) for each in data.sets.values()])
    owner = np.searchsorted(ends, ids, side="right")
    begins = np.append(0, ends)[owner]
    return Counter((list(data.sets)[k], int(i)) for k, i in zip(owner, ids - begins, strict=True))


def test_one_set_is_that_set_by_itself(paths):
    alone = configure(paths["a"]).create(*WINDOWS)
    for weight in (None, 3.0):
        data = mixture({"only": (paths["a"], weight)}).create(*WINDOWS)
        assert data.spec == alone.spec and len(data.val) == len(alone.val)
        for key, value in alone.statistics().items():
            assert all(np.array_equal(one, other) for one, other in zip(
                vars(data.statistics()[key]).values(), vars(value).values(), strict=True
            ))  # fmt: skip
    assert_same(batches(mixture({"only": (paths["a"], None)}).create(*WINDOWS)), batches(alone))


@pytest.mark.parametrize("weights", [(None, None), (1.0, 3.0)])
def test_every_sample_says_at_which_episode_and_step_it_was_recorded(paths, weights):
    data = mixture({name: (paths[name], weight) for name, weight in zip("ab", weights, strict=True)}).create(*WINDOWS)
    with np.load(paths["both"]) as file:
        states, starts = file["state"], np.append(0, file["episode_ends"])
    for part in ("train", "val", "test"):
        samples = getattr(data, part)
        seen = samples.fetch(torch.arange(len(samples))).cond["agent"][:, -1].numpy()
        for sample, newest in enumerate(seen):
            episode, step = data.recorded_at(part, sample)
            np.testing.assert_array_equal(newest, states[starts[episode] + step, 1:3])
        with pytest.raises(IndexError, match=naming(part, len(samples))):
            data.recorded_at(part, len(samples))


def test_sets_without_weights_are_their_episodes_in_one_file(paths):
    everything = {"split": {"train": 1.0, "val": 0.0}}
    alone = configure(paths["both"], **everything).create(*WINDOWS)
    data = mixture({"b": (paths["b"], None), "a": (paths["a"], None)}, **everything).create(*WINDOWS)  # by name
    assert_same(batches(data), batches(alone))
    for key, value in alone.statistics().items():
        assert np.array_equal(data.statistics()[key].q99, value.q99)
    assert data.counts == alone.counts
    assert data.report()["parts"] == alone.report()["parts"]
    assert data.report()["warnings"] == alone.report()["warnings"]


def test_each_set_has_its_exact_share_of_every_epoch_and_all_its_windows_come_in_turn(paths):
    data = mixture({"a": (paths["a"], 3), "b": (paths["b"], 1)}).create(*WINDOWS)
    n, windows = len(data.train), {name: len(each.train) for name, each in data.sets.items()}
    for epochs in (1, 2, 7):
        counts = drawn(data, epochs)
        of = {name: [counts[name, i] for i in range(windows[name])] for name in windows}
        assert sum(of["a"]) == epochs * round(0.75 * n) and sum(of["b"]) == epochs * (n - round(0.75 * n))
        assert all(max(each) - min(each) <= 1 for each in of.values())
    assert "shares: a 0.75, b 0.25" in data.summary()
    assert told(data.summary(), f"{sum(column.values.nbytes for column in data.train.columns.values()):,}")


def test_a_set_given_twice_is_that_set_once(paths):
    once = mixture({"a": (paths["a"], 1)}).create(*WINDOWS)
    twice = mixture({"a": (paths["a"], 1), "again": (paths["a"], 1)}).create(*WINDOWS)
    for part, numbers in once.split_ids.items():  # no window is trained on and validated on
        assert twice.split_ids[part] == numbers + [4 + number for number in numbers]
    counts = drawn(twice, 1)
    assert all(counts["a", i] == counts["again", i] == 1 for i in range(len(once.train)))
    for key, value in once.statistics().items():
        found = twice.statistics()[key]
        assert np.array_equal(found.min, value.min) and np.array_equal(found.max, value.max)
        np.testing.assert_allclose(found.mean, value.mean, atol=1e-12)


def test_a_set_of_double_weight_comes_as_often_as_one_listed_twice(paths):
    a, b = paths["a"], paths["b"]
    double = mixture({"a": (a, 2), "b": (b, 1)}).create(*WINDOWS)
    listed = mixture({"a": (a, 1), "again": (a, 1), "b": (b, 1)}).create(*WINDOWS)

    def share(data):
        counts = drawn(data, 1)
        return sum(count for (name, _), count in counts.items() if name != "b") / counts.total()

    assert share(double) == pytest.approx(2 / 3, abs=1 / len(double.train))
    assert share(listed) == pytest.approx(2 / 3, abs=1 / len(listed.train))


@pytest.mark.parametrize("weights", [(None, None), (3, 1)])
def test_the_order_is_a_function_of_seed_and_position_whatever_the_ranks(paths, weights):
    data = mixture({"a": (paths["a"], weights[0]), "b": (paths["b"], weights[1])}).create(*WINDOWS)
    how = {"batch_size": 4, "accumulation": 2, "seed": 3, "rank": 0, "world_size": 1}
    whole = data.loader(**how)
    many = [data.loader(**how | {"batch_size": 2, "rank": rank, "world_size": 2}) for rank in range(2)]
    for start in (0, 8, 5000 * 8):  # any position, without those before it
        expected = torch.cat([batch.ids for batch in whole.global_batch(start)])
        found = [torch.cat([batch.ids for batch in loader.global_batch(start)]) for loader in many]
        assert torch.equal(torch.stack(found, 1).flatten(), expected)
    assert not torch.equal(whole.ids(0), data.loader(**how | {"seed": 4}).ids(0))


@pytest.mark.slow
def test_a_resumed_run_goes_on_at_the_exact_sample_and_says_what_a_new_weight_means(tmp_path):
    write_data(tmp_path / "toy.npz")
    write_data(tmp_path / "other.npz", n=6)
    keys = tiny(tmp_path)["data"]
    sets = {
        name: {
            "episodes": {"type": "npz", "path": str(tmp_path / f"{name}.npz")},
            "weight": weight, "obs": keys["obs"], "action": keys["action"],
        } for name, weight in (("toy", 1), ("other", 2))
    }  # fmt: skip
    data = {"type": "mixture", "sets": sets, "split": keys["split"], "batch_size": 8}
    validation = [
        {"type": "loss", "every": {"steps": 4}, "name": name, "data_set": data_set, "models": ["ema"]}
        for name, data_set in (("validation", None), ("val_toy", "toy"), ("val_other", "other"))
    ]
    change = {"data": data, "evaluate": validation, "train__steps": 12}
    for name in ("whole", "broken"):
        (tmp_path / name).mkdir()
    whole = write(tmp_path / "whole", **change)
    assert (done := train(whole)).exit_code == 0, done.output
    broken = write(tmp_path / "broken", **change)
    assert train_and_die(broken, "step", 7) == -9
    assert train(broken).exit_code == 0
    assert_equal(state(tmp_path / "broken" / "run"), state(tmp_path / "whole" / "run"))
    assert rows(tmp_path / "broken" / "run") == rows(tmp_path / "whole" / "run")
    measured = rows(tmp_path / "whole" / "run")[-1]
    assert len({measured[f"{name}/ema/loss"] for name in ("validation", "val_toy", "val_other")}) == 3
    assert sorted(path.name for path in (tmp_path / "whole" / "run").glob("data_manifest*")) == [
        "data_manifest_other.json", "data_manifest_toy.json"
    ]  # fmt: skip
    alone = experiment(tiny(tmp_path, evaluate=validation[:1], tracker__data_path=str(tmp_path / "one"))).parts.data
    sets = experiment(tiny(tmp_path, **change, tracker__data_path=str(tmp_path / "two"))).parts.data.sets
    assert_same_part(sets["toy"].val, alone.val)  # what a run on that set alone would measure
    more = train(broken, "--set", "train.steps=14", "--set", "data.sets.toy.weight=5")
    assert more.exit_code == 0 and told(more.output, "data.sets.toy.weight", 1.0, 5.0, "(schedule-changing)")


def assert_same_part(found, expected):
    one, other = (part.fetch(torch.arange(len(expected))) for part in (found, expected))
    assert len(found) == len(expected) and torch.equal(one.x, other.x) and torch.equal(one.ids, other.ids)


def test_an_evaluator_of_a_set_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=naming("'sim'", "data.sets", "[]")):
        experiment(tiny(tmp_path, evaluate=[{"type": "loss", "data_set": "sim"}]))


def test_frames_of_several_sets_come_through_the_caches_of_each(tmp_path):
    sets, frames = {}, {}
    for seed, (name, lengths) in enumerate({"a": [9, 12], "b": [8, 11, 7]}.items()):
        frames[name] = pictures(sum(lengths)) + np.uint8(seed)
        numbers = np.arange(sum(lengths), dtype=np.float32)[:, None]
        np.savez(tmp_path / f"{name}.npz", image=frames[name], action=numbers, episode_ends=np.cumsum(lengths))
        sets[name] = {
            "episodes": {"type": "npz", "path": str(tmp_path / f"{name}.npz")},
            "images": {"front": {"key": "image", "size": [12, 16]}},
            "action": {"key": "action"},
        }
    split = {"split": {"train": 0.5, "val": 0.5}}
    alone = {name: TrajectoriesConfig.from_json(json.dumps(one | split)).create(4, 2, 2) for name, one in sets.items()}
    lines: list[str] = []
    for data in (alone["a"], MixtureConfig.from_json(json.dumps({"sets": sets, **split})).create(4, 2, 2)):
        assert "image (12, 16, 3)" in data._repr_html_()
        assert not any(path.exists() for path in data.cache_directories()), "showing the data decoded them"
    alone["a"].build_caches(lines.append)
    assert len(lines) > 0
    data = MixtureConfig.from_json(json.dumps({"sets": sets, **split})).create(4, 2, 2)
    data.build_caches(lines.append)
    assert sum("estimate" in line or told(line, "frames", "free") for line in lines) == 2  # a's was there
    assert data.cache_directories() == {path for each in alone.values() for path in each.cache_directories()}
    for part in ("train", "val"):
        joined = getattr(data, part)
        expected = [getattr(each, part) for each in alone.values()]
        batch = joined.fetch(torch.randperm(len(joined), generator=torch.Generator().manual_seed(0)))
        pixels = torch.cat([each.fetch(torch.arange(len(each))).cond["front"] for each in expected])
        assert torch.equal(batch.cond["front"], pixels[batch.ids])
    assert (
        data.fingerprint
        != MixtureConfig.from_json(json.dumps({"sets": {"a": sets["a"], "c": sets["b"]}, **split}))
        .create(4, 2, 2)
        .fingerprint
    )
    on_device = data.train.columns["front"].in_memory("cpu")
    assert torch.equal(on_device.values, data.train.columns["front"].rows(torch.arange(len(on_device))))


def test_embeddings_are_read_as_those_of_each_set(tmp_path):
    pytest.importorskip("pyarrow")
    folder = embedded.write(tmp_path / "e", np.arange(embedded.N))
    alone = embedded.make(tmp_path, {"view": folder})
    one = {
        "episodes": {"type": "npz", "path": str(tmp_path / "d.npz")}, "obs": {"agent": {"key": "state"}},
        "embeddings": {"view": folder}, "action": {"key": "action"},
    }  # fmt: skip
    record = {"sets": {"a": one, "b": one}, "block_rows": 4, "shuffle_blocks": 3}
    data = MixtureConfig.from_json(json.dumps(record | {"split": {"train": 0.5, "val": 0.25, "test": 0.25}}))
    data, n = data.create(4, 3, 2), len(alone.train)
    for batch in batches(data, 10):
        expected = alone.train.fetch(batch.ids % n)
        assert torch.equal(batch.x, expected.x) and torch.equal(batch.cond["view"], expected.cond["view"])
    for key, value in alone.statistics().items():
        np.testing.assert_allclose(data.statistics()[key].mean, value.mean, atol=1e-12)
    record["sets"] = {name: one | {"weight": 1} for name in "ab"}
    with pytest.raises(ConfigError, match=naming("sets", "weights", "embeddings")):
        MixtureConfig.from_json(json.dumps(record))


def test_every_setting_of_windows_holds_for_each_set(paths):
    changes = {
        "split": {"train": 0.5, "val": 0.5}, "batch_size": 7, "global_batch_size": 14, "mask_padding": False,
        "device": "cpu", "verify": "hashes", "manifest": "m.json", "frame_cache": "frames", "block_rows": 9,
        "shuffle_blocks": 3,
    }  # fmt: skip
    assert changes.keys() == WindowsConfig.model_fields.keys()
    config = mixture({"a": (paths["a"], None), "b": (paths["b"], None)}, **changes)
    for name in config.sets:
        assert {field: getattr(config.set_config(name), field) for field in changes} == {
            field: getattr(config, field) for field in changes
        }
    assert fetch_masks(config.create(*WINDOWS)).all()
    assert not fetch_masks(mixture({"a": (paths["a"], None)}).create(*WINDOWS)).all()


def fetch_masks(data):
    return data.train.fetch(torch.arange(len(data.train))).mask


def test_previous_actions_are_refused(paths):
    with pytest.raises(ConfigError, match=naming("config", "previous_action", "mixture")):
        mixture({"a": (paths["a"], None)}, previous_action="before")


def test_what_a_set_holds_is_mapped_by_its_own_keys(paths, tmp_path):
    arrays = dict(np.load(paths["b"]))
    arrays["robot"] = np.concatenate([np.zeros((len(arrays["state"]), 3), np.float32), arrays.pop("state")], axis=1)
    arrays["command"] = np.repeat(arrays.pop("action"), 2, axis=1)
    np.savez(tmp_path / "other.npz", **arrays)
    config = json.loads(mixture({"a": (paths["a"], 1), "b": (tmp_path / "other.npz", 1)}).to_json())
    refused = MixtureConfig.from_json(json.dumps(config))
    with pytest.raises(DataError) as caught:
        refused.create(*WINDOWS)
    assert "sets.b: " in str(caught.value) and "'state'" in str(caught.value)
    config["sets"]["b"] |= {
        "obs": KEYS["obs"] | {"agent": {"key": "robot", "slice": [4, 6]}}, "action": {"key": "command"}
    }  # fmt: skip
    with pytest.raises(ConfigError, match=naming("sets.b", "(4,)", "sets.a", "(2,)")):
        MixtureConfig.from_json(json.dumps(config)).create(*WINDOWS)
    config["sets"]["b"]["action"]["slice"] = [1, 3]
    data = MixtureConfig.from_json(json.dumps(config)).create(*WINDOWS)
    expected = mixture({"a": (paths["a"], 1), "b": (paths["b"], 1)}).create(*WINDOWS)
    assert_same_part(data.val, expected.val)


@pytest.mark.parametrize(
    ("b", "problem"),
    [
        ({"obs": {"agent": KEYS["obs"]["agent"]}}, ("sets.b", "['agent']", "sets.a")),
        ({"weight": None}, ("sets", "['b']")),
        ({"weight": 0.001}, ("sets.b.weight 0.001", 84)),
        ({"fps": 20}, ("sets.b", "20.0", "sets.a", "10.0")),
        ({"action_names": ["y", "x"]}, ("sets.b", "('y', 'x')", "sets.a", "('x', 'y')")),
        ({"action_names": ["x"]}, ("sets.b.action_names", "1 names", "2 dimensions")),
        ({"obs": KEYS["obs"] | {"points": {"key": "action"}}}, ("'points'", "sets.b", "(2,)", "(3, 2)")),
        (
            {"obs": KEYS["obs"] | {"agent": {"key": "state", "slice": [0, 3], "rotations": [TURN]}}},
            ("'agent'", "sets.b", "(3,)", "axis_angle", "[0, 3]"),
        ),
    ],
)
def test_sets_that_do_not_belong_together_are_refused_by_name(paths, b, problem):
    config = json.loads(mixture({"a": (paths["a"], 1), "b": (paths["b"], 1)}).to_json())
    config["sets"]["a"] |= {"fps": 10, "action_names": ["x", "y"]}
    config["sets"]["b"] |= b
    with pytest.raises(ConfigError, match=naming(*problem)):
        MixtureConfig.from_json(json.dumps(config)).create(*WINDOWS)


def test_rates_and_names_that_lerobot_sets_state_are_compared(tmp_path):
    pytest.importorskip("pyarrow")
    from tests.data.formats.lerobot import test_dataset as test_lerobot

    sets = {}
    for name in ("a", "b"):
        test_lerobot.write_v3(tmp_path / name)
        sets[name] = {
            "episodes": {"type": "lerobot", "path": str(tmp_path / name)},
            "obs": {"state": {"key": "observation.state"}}, "action": {"key": "action"},
        }  # fmt: skip
    info = json.loads((tmp_path / "b" / "meta" / "info.json").read_text())
    width = info["features"]["action"]["shape"][0]
    info["fps"], info["features"]["action"]["names"] = 20, [f"joint_{i}" for i in range(width)]
    (tmp_path / "b" / "meta" / "info.json").write_text(json.dumps(info))
    with pytest.raises(ConfigError, match=naming("sets.b", 20.0, "sets.a", 10.0)):
        MixtureConfig.from_json(json.dumps({"sets": sets})).create(4, 2, 2)
    sets["b"]["fps"] = 10
    spec = MixtureConfig.from_json(json.dumps({"sets": sets})).create(4, 2, 2).spec
    assert spec.fps == 10 and spec.names == {"x": tuple(f"joint_{i}" for i in range(width))}
    sets["a"]["action_names"] = [f"joint_{width - i}" for i in range(width)]
    with pytest.raises(ConfigError, match=naming("('joint_0', 'joint_1')", "sets.b.action_names")):
        MixtureConfig.from_json(json.dumps({"sets": sets})).create(4, 2, 2)


def test_rates_and_names_that_converted_sets_state_are_compared(paths):
    """Rate and names lie in `meta.json`, as `dp-prior convert` writes it, not in what the file says of itself."""
    config = json.loads(mixture({"a": (paths["a"], 1), "b": (paths["b"], 1)}).to_json())
    for name, fps, names in (("a", 10, ["x", "y"]), ("b", 30, ["y", "x"])):
        with zipfile.ZipFile(paths[name], "a") as archive:
            archive.writestr(META, json.dumps({"fps": fps, "names": {config["sets"][name]["action"]["key"]: names}}))
    with pytest.raises(ConfigError) as caught:
        MixtureConfig.from_json(json.dumps(config)).create(*WINDOWS)
    assert told_each(
        caught.value.problems,
        ("sets.b", 30.0, "sets.a", 10.0, "sets.b.fps"),
        ("sets.b", "('y', 'x')", "sets.a", "('x', 'y')", "sets.b.action_names"),
    )
    config["sets"]["b"] |= {"stride": 3, "action_names": ["x", "y"]}
    config["sets"]["a"]["action_names"] = ["x", "y"]
    spec = MixtureConfig.from_json(json.dumps(config)).create(*WINDOWS).spec
    assert spec.fps == 10 and spec.names["x"] == ("x", "y")


def test_files_of_every_set_are_compared_with_its_manifest(paths, tmp_path):
    config = mixture({"a": (paths["a"], 1), "b": (paths["b"], 1)}, verify="hashes")
    config.integrity(tmp_path).note(config.create(*WINDOWS).files)
    config.integrity(tmp_path).check()
    for name in ("a", "b"):
        assert str(paths[name]) in (tmp_path / DATA_MANIFEST.replace(".json", f"_{name}.json")).read_text()
        paths[name].write_bytes(paths[name].read_bytes()[:-1])
    with pytest.raises(DataError) as caught:
        config.integrity(tmp_path).check()
    assert all(f"{paths[name]} has " in str(caught.value) for name in ("a", "b"))
    shutil.rmtree(tmp_path / "shared", ignore_errors=True)
    shared = mixture({"a": (paths["both"], 1)}, manifest=str(tmp_path / "shared" / "m.json"))
    shared.integrity(tmp_path).note(shared.create(*WINDOWS).files)
    assert (tmp_path / "shared" / "m_a.json").exists()


def test_what_is_wrong_with_several_sets_is_one_report(paths, tmp_path):
    with pytest.raises(DataError) as caught:
        mixture({"a": (tmp_path / "none", 1), "b": (paths["b"], 1), "c": (tmp_path / "no", 1)}).create(*WINDOWS)
    assert "sets.a: " in str(caught.value) and "sets.c: " in str(caught.value) and "sets.b" not in str(caught.value)
    with pytest.raises(ConfigError, match=naming("name", "'x y'")):
        mixture({"x y": (paths["a"], 1)})
    with pytest.raises(ConfigError, match=naming("sets", "{}")):
        MixtureConfig.from_json('{"sets": {}}')


def test_each_set_has_its_own_choice_and_stride(paths):
    """Sets of 30 and 10 steps per second are one mixture at 10; episodes are numbered through with those left out."""
    config = mixture({"a": (paths["a"], None), "b": (paths["b"], None)}, split={"train": 1.0, "val": 0.0})
    changed = json.loads(config.model_dump_json())
    changed["sets"]["a"] |= {"stride": 3, "fps": 30, "choice": {"leave_out": [1]}}
    changed["sets"]["b"]["fps"] = 10
    data = MixtureConfig.from_json(json.dumps(changed)).create(*WINDOWS)
    alone = configure(paths["a"], split={"train": 1.0, "val": 0.0}, stride=3, choice={"leave_out": [1]}).create(
        *WINDOWS
    )
    other = configure(paths["b"], split={"train": 1.0, "val": 0.0}).create(*WINDOWS)
    assert len(data.train) == len(alone.train) + len(other.train) and data.spec.fps == 10
    ids = torch.arange(len(alone.train))
    assert torch.equal(data.train.fetch(ids).x, alone.train.fetch(ids).x)
    assert data.split_ids["train"] == [0, 2, 3, 4, 5, 6, 7, 8, 9]
    changed["sets"]["a"]["stride"] = 1
    with pytest.raises(ConfigError, match=naming("sets.b", "10.0", "sets.a", "30.0")):
        MixtureConfig.from_json(json.dumps(changed)).create(*WINDOWS)


def test_a_set_is_divided_as_it_says_itself_and_the_others_as_the_mixture_says(paths):
    config = mixture({"a": (paths["a"], 1), "b": (paths["b"], 1)}, split={"parts": {"train": [0, 1], "val": [2]}})
    changed = json.loads(config.model_dump_json())
    changed["sets"]["b"]["split"] = {"train": 1.0, "val": 0.0}
    data = MixtureConfig.from_json(json.dumps(changed)).create(*WINDOWS)
    assert data.split_ids["val"] == [2] and data.split_ids["train"] == [0, 1, *range(4, 10)]
    alone = configure(paths["b"], split={"train": 1.0, "val": 0.0}).create(*WINDOWS)
    assert len(data.sets["b"].train) == len(alone.train)
    both = config.create(*WINDOWS)  # the mixture's own split, of both sets
    assert both.split_ids["val"] == [2, 6] and len(both.train) < len(data.train)
    assert kind_of("data.sets.b.split.train") == "data"


def test_a_policy_takes_a_mixture_and_a_prior_does_not(paths):
    fields = {"weight", "fps", "action_names", "episodes", "obs", "embeddings", "images", "language", "action"}
    fields |= {"mirror", "choice", "stride", "weights", "depth", "points", "split"}
    assert set(SetConfig.model_fields) == fields
    data = json.loads(mixture({"a": (paths["a"], 1)}).to_json())
    config = {"task": {}, "data": data, "train": {"steps": 1}, "tracker": {"data_path": "x"}}
    assert TrainConfig.from_json(json.dumps(config)).data.type == "mixture"
    with pytest.raises(ConfigError, match=naming("data.type", "'mixture'", "'prior'")):
        TrainConfig.from_json(json.dumps(config | {"task": {"type": "prior"}}))


def test_an_episode_that_one_set_trains_on_and_another_holds_out_is_told(paths):
    """As where some episodes are drawn more often by a second set of the same file."""
    config = mixture({"all": (paths["both"], 1), "some": (paths["both"], 2), "apart": (paths["a"], 1)})
    some = config.sets["some"].model_copy(update={"choice": ChoiceConfig(only=["2-9"])})
    split = SplitConfig(train=0.75, val=0.25, test=0)
    leaking = config.model_copy(update={"sets": {**config.sets, "some": some}, "split": split}).create(*WINDOWS)
    sets = leaking.sets
    shared = {*sets["all"].split_ids["train"]} & {*sets["some"].split_ids["val"]}
    back = {*sets["some"].split_ids["train"]} & {*sets["all"].split_ids["val"]}
    assert shared or back
    found = [line for line in leaking.warnings() if told(line, "split.parts", "both.npz")]
    assert len(found) == bool(shared) + bool(back)
    listed = SplitConfig(parts={"train": ["1-9"], "val": [0]})
    mended = mixture({"all": (paths["both"], 1), "some": (paths["both"], 2)}).model_copy(update={"split": listed})
    assert not any(told(line, "split.parts") for line in mended.create(*WINDOWS).warnings())


@pytest.mark.parametrize("part", ["val", "test"])
def test_episodes_that_another_set_holds_out_for_validation_or_a_test_are_told(paths, part):
    config = mixture({"first": (paths["both"], 1), "again": (paths["both"], 2)})
    parts = {"first": {"train": ["0-3"]}, "again": {"train": ["4-6"], part: [2, 9]}}
    sets = {
        name: data.model_copy(update={"split": SplitConfig(parts=parts[name])}) for name, data in config.sets.items()
    }
    warnings = config.model_copy(update={"sets": sets}).create(*WINDOWS).warnings()
    (line,) = (line for line in warnings if told(line, "split.parts"))
    assert told(line, "sets.first", "episodes 2", "sets.again", "both.npz")


@pytest.mark.parametrize("first", ["upright", "turned"])
def test_sets_may_turn_a_camera_differently_and_robots_give_frames_as_the_first_by_name(first, tmp_path):
    ends, frames = np.array([20, 40, 60]), pictures(60, 12, 16)
    recorded = {"upright": frames, "turned": np.ascontiguousarray(frames[:, ::-1, :, ::-1])}
    settings = {"upright": {}, "turned": {"turn": "up_down", "bgr": True}}
    records = {}
    for kind in recorded:
        name = "a" if kind == first else "b"
        numbers = np.arange(60.0, dtype=np.float32)[:, None]
        np.savez(tmp_path / f"{name}.npz", state=numbers, action=numbers, front=recorded[kind], episode_ends=ends)
        records[name] = {
            "episodes": {"type": "npz", "path": str(tmp_path / f"{name}.npz")},
            "obs": {"state": {"key": "state"}},
            "action": {"key": "action"},
            "images": {"front": {"key": "front", "size": [6, 8], **settings[kind]}},
        }
    split = {"train": 1.0, "val": 0.0}
    data = MixtureConfig.from_json(json.dumps({"sets": records, "split": split})).create(*WINDOWS)
    half = len(data.train) // 2
    windows = [data.train.fetch(torch.arange(half) + begin).cond["front"] for begin in (0, half)]
    assert torch.equal(*windows) and data.spec.fits == {"front": data.sets["a"].spec.fits["front"]}
    assert data.spec.fits["front"].bgr == (first == "turned")
    (warning,) = [line for line in data.report()["warnings"] if "front" in line]
    assert told(warning, "turn", "bgr", "'front'", "sets.a", "sets.b")
