import json
import zipfile
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dp_prior.config import ConfigError
from dp_prior.data.errors import DataError
from dp_prior.data.formats.npz import META
from dp_prior.data.recorded.trajectories import TrajectoriesConfig
from dp_prior.data.samples.loader import Loader
from dp_prior_worlds.whole_episodes import WholeEpisodes
from tests.data.recorded.trajectories import CONFIG, configure, episodes, fetch_all
from tests.examples import examples
from tests.messages import naming, told, told_each


def brute_force(arrays, episode_ids, horizon, n_obs_steps, n_action_steps):
    """Every sample of the given episodes, one frame at a time."""
    ends = arrays["episode_ends"]
    for e in episode_ids:
        start, stop = (ends[e - 1] if e else 0), ends[e]
        offsets = range(-(n_obs_steps - 1), stop - start - horizon + n_action_steps)
        for offset in offsets or [-(n_obs_steps - 1)]:
            rows = [min(max(start + offset + i, start), stop - 1) for i in range(horizon)]
            mask = [0 <= offset + i < stop - start for i in range(horizon)]
            cond = {
                "agent": arrays["state"][rows[:n_obs_steps], 1:3],
                "points": arrays["points"][rows[:n_obs_steps]],
                "gripper": arrays["gripper"][rows[:n_obs_steps], None],
            }
            yield arrays["action"][rows], cond, mask


@pytest.mark.parametrize(("horizon", "n_obs_steps", "n_action_steps"), [(16, 2, 8), (4, 1, 1), (8, 3, 6), (1, 1, 1)])
def test_samples_equal_the_brute_force_version(path, horizon, n_obs_steps, n_action_steps):
    data = configure(path).create(horizon, n_obs_steps, n_action_steps)
    for name in ("train", "val", "test"):
        window_set, arrays = getattr(data, name), episodes()
        expected = list(brute_force(arrays, data.split_ids[name], horizon, n_obs_steps, n_action_steps))
        assert len(window_set) == len(expected) > 0
        batch = fetch_all(window_set)
        for i, (x, cond, mask) in enumerate(expected):
            assert np.array_equal(batch.x[i], x)
            assert batch.mask[i].tolist() == mask
            assert all(np.array_equal(batch.cond[key][i], value.astype(np.float32)) for key, value in cond.items())
        assert window_set.rows.valid_counts.tolist() == batch.mask.sum(1).tolist()
        assert batch.x.dtype == torch.float32 and {c.dtype for c in batch.cond.values()} == {torch.float32}
        assert batch.ids.tolist() == list(range(len(expected))) and batch.positions is None


@examples(50)
@given(lengths=st.lists(st.integers(1, 12), min_size=1, max_size=8), seed=st.integers(0, 100))
def test_samples_equal_the_brute_force_version_for_any_episode_lengths(tmp_path_factory, lengths, seed):
    path, arrays = tmp_path_factory.mktemp("set") / "set.npz", episodes(lengths)
    np.savez(path, **arrays)
    data = configure(path, split={"train": 0.7, "val": 0.3, "test": 0.0, "seed": seed}).create(6, 2, 3)
    expected = list(brute_force(arrays, data.split_ids["train"], 6, 2, 3))
    batch = fetch_all(data.train)
    assert np.array_equal(batch.x, np.stack([x for x, *_ in expected]))
    assert np.array_equal(batch.mask, np.array([mask for *_, mask in expected]))


def test_spec_gives_the_shapes_of_one_sample(path):
    data = configure(path).create(16, 2, 8)
    assert data.spec.x_shape == (16, 2)
    assert data.spec.cond_shapes == {"agent": (2, 2), "points": (2, 3, 2), "gripper": (2, 1)}
    batch = data.train.fetch(torch.tensor([3, 0, 3]))
    assert batch.x.shape == (3, *data.spec.x_shape)
    assert {key: value.shape[1:] for key, value in batch.cond.items()} == data.spec.cond_shapes


def test_padding_can_be_left_unmasked(path):
    data = configure(path, mask_padding=False).create(16, 2, 8)
    assert fetch_all(data.train).mask.all()
    assert (data.train.rows.valid_counts == 16).all()
    assert not fetch_all(configure(path).create(16, 2, 8).train).mask.all()


def test_the_fingerprint_is_of_what_is_selected(path, tmp_path):
    base = configure(path).create(16, 2, 8).fingerprint
    assert len(base) == 64
    assert configure(path, split={"seed": 5}, batch_size=3).create(8, 1, 4).fingerprint == base
    arrays = episodes()
    for change in (
        {"action": arrays["action"] + np.float32(1e-3)},
        {"episode_ends": arrays["episode_ends"] - np.array([1] * 9 + [0])},
        {"points": arrays["points"][:, :2]},
    ):
        np.savez(tmp_path / "other.npz", **{**arrays, **change})
        assert configure(tmp_path / "other.npz").create(16, 2, 8).fingerprint != base
    np.savez(tmp_path / "other.npz", **{**arrays, "state": arrays["state"].astype(np.float64), "unused": np.zeros(3)})
    assert configure(tmp_path / "other.npz").create(16, 2, 8).fingerprint == base


def test_batches_of_the_loader_are_those_of_the_set(path):
    data = configure(path).create(16, 2, 8)
    loader = Loader(data.train, batch_size=8, accumulation=2, seed=0, rank=0, world_size=1)
    batches = loader.global_batch(5)
    expected = data.train.fetch(torch.cat([batch.ids for batch in batches]))
    assert torch.equal(torch.cat([batch.x for batch in batches]), expected.x)
    assert batches[0].denominator.item() == pytest.approx(expected.mask.sum().item() / 2)


def test_making_batches_never_waits_for_the_device(path):
    """A tensor on the meta device has no values, so whatever read one back on the host would fail."""
    data = configure(path).create(16, 2, 8).to("meta")
    loader = Loader(data.train, batch_size=8, accumulation=2, seed=0, rank=1, world_size=2)
    for batches in islice(loader.from_sample(0), 3 * len(loader) // loader.global_batch_size):
        for batch in batches:
            assert batch.x.shape == (8, 16, 2) and batch.mask.shape == (8, 16)
            assert {t.device.type for t in (batch.x, batch.ids, batch.positions, batch.denominator)} == {"meta"}


@pytest.mark.parametrize(
    "change",
    [
        {"obs": {"agent": {"key": "state"}}},
        {"obs": {**CONFIG["obs"], "agent": {"key": "state", "slice": [0, 2]}}},
        {"action": {"key": "state"}},
        {"action": {"key": "action", "slice": [1, 2]}},
        {"split": {"train": 0.5, "val": 0.5}},
        {"mask_padding": False},
        {"device": "cpu"},
        {"previous_action": "before"},
    ],
    ids=json.dumps,
)
def test_every_knob_changes_the_data(path, change):
    def seen(data):
        batch = fetch_all(data.train)
        parts = [batch.x, batch.mask, *(value for _, value in sorted(batch.cond.items()))]
        return data.spec, [part.tolist() for part in parts], data.to("meta").train.device

    assert seen(configure(path, **change).create(16, 2, 8)) != seen(configure(path).create(16, 2, 8))


@pytest.mark.parametrize("kind", ["npz", "zarr", "lerobot"])
def test_a_tilde_is_the_home_directory(path, tmp_path, monkeypatch, kind):
    pytest.importorskip({"npz": "numpy", "zarr": "zarr", "lerobot": "pyarrow"}[kind])
    monkeypatch.setenv("HOME", str(tmp_path))
    elsewhere = configure(path, episodes={"type": kind, "path": "~/none"})
    with pytest.raises(DataError, match=naming(f"{tmp_path}/none", "data.episodes.path")):
        elsewhere.episodes.create()
    configure("~/set.npz", manifest="~/kept.json").integrity(tmp_path / "run").note([path])
    assert (tmp_path / "kept.json").exists() and len(configure("~/set.npz").create(4, 1, 1).train)


def test_verify_and_manifest_decide_what_is_compared_with_what(path, tmp_path):
    kept = tmp_path / "a folder" / "of them" / "kept.json"
    plain, careful = configure(path, manifest=str(kept)), configure(path, manifest=str(kept), verify="hashes")
    plain.integrity(tmp_path / "one").note([path])
    assert kept.exists()
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    plain.integrity(tmp_path / "other").check()
    configure(path, verify="hashes").integrity(tmp_path / "other").check()  # whose manifest would lie there
    with pytest.raises(DataError, match=naming("set.npz", "SHA-256")):
        careful.integrity(tmp_path / "other").check()


def test_a_horizon_longer_than_most_episodes_is_a_warning_and_the_reason_for_too_few_windows(path):
    long = configure(path).create(31, 2, 8)
    (warning,) = long.report()["warnings"]
    assert told(warning, "task.horizon", 31, "30 steps", "lower task.horizon")
    with pytest.raises(ConfigError, match=naming("batch_size 512", "512 samples", "task.horizon", 31)):
        long.loader(batch_size=512, accumulation=1, seed=0, rank=0, world_size=1)
    with pytest.raises(ConfigError, match=naming("batch_size 512", "512 samples", "training set")):
        configure(path).create(4, 2, 2).loader(batch_size=512, accumulation=1, seed=0, rank=0, world_size=1)


@pytest.mark.parametrize("change", [{}, {"stride": 3}, {"choice": {"leave_out": [2]}}])
def test_every_sample_says_at_which_episode_and_step_it_was_recorded(path, change):
    data, arrays = configure(path, **change).create(6, 2, 3), episodes()
    starts = np.append(0, arrays["episode_ends"])
    for part in ("train", "val", "test"):
        seen = fetch_all(getattr(data, part)).cond["agent"][:, -1].numpy()
        for sample, newest in enumerate(seen):
            episode, step = data.recorded_at(part, sample)
            assert episode in data.split_ids[part]
            np.testing.assert_array_equal(newest, arrays["state"][starts[episode] + step, 1:3])


def test_numbers_of_an_action_have_the_names_of_the_data_set(path):
    assert configure(path).create(6, 2, 3).spec.names == {}
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("meta.json", json.dumps({"names": {"action": ["reach", "grip"]}}))
    assert configure(path).create(6, 2, 3).spec.names["x"] == ("reach", "grip")
    one = configure(path, action={"key": "action", "slice": [1, 2]}).create(6, 2, 3)
    assert one.spec.names["x"] == ("grip",)


def test_names_and_a_rate_that_cannot_be_read_are_told_and_no_reason_not_to_train(path):
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("meta.json", "[3]")
    data = configure(path).create(6, 2, 3)
    assert (data.spec.names, data.spec.fps) == ({}, None)
    assert any("[3]" in line for line in data.file_warnings)


def test_a_rate_of_another_form_is_told(path):
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("meta.json", json.dumps({"fps": "10"}))
    data = configure(path).create(6, 2, 3)
    assert data.spec.fps is None and any(told(line, "fps", "'10'", str(path)) for line in data.warnings())


def test_the_first_rows_are_a_data_set_without_the_other_episodes(path):
    """Of any number of rows the same parts, samples and fingerprint as of the episodes that fit, named one by one."""
    ends = np.cumsum([20, 5, 30, 17, 9, 12, 25, 3, 14, 21])
    every = configure(path).create(6, 2, 3)
    for most in (1, 20, 24, 25, 54, 55, 130, int(ends[-1]), 1000):
        count = max(1, int((ends <= most).sum()))
        few = configure(path, split=CONFIG["split"] | {"max_rows": most}).create(6, 2, 3)
        named = configure(path, choice={"only": list(range(count))}).create(6, 2, 3)
        assert (few.split_ids, few.fingerprint) == (named.split_ids, named.fingerprint)
        assert torch.equal(fetch_all(few.train).x, fetch_all(named.train).x)
        assert WholeEpisodes(few.recorded).numbers.tolist() == list(range(count))
        assert (few.fingerprint == every.fingerprint) == (count == len(ends))
    assert told(
        configure(path, split={"max_rows": 60}).create(6, 2, 3).summary(), "choice", "split.max_rows", "7 episodes"
    )


@pytest.mark.parametrize(("left_out", "count"), [([0], "1 episode"), ([0, 1], "2 episodes")])
def test_the_summary_counts_what_the_choice_leaves_out(path, left_out, count):
    summary = configure(path, choice={"leave_out": left_out}).create(6, 2, 3).summary()
    assert told(summary, "choice", f"out {count}")


def test_the_same_data_over_other_samples_is_a_new_data_set(path):
    data = configure(path).create(8, 2, 4)
    train, val = data.train, data.val
    copied = data.over({"val": train})
    assert (data.train, data.val) == (train, val) and (copied.train, copied.val) == (train, train)
    assert copied.fingerprint == data.fingerprint and copied.spec is data.spec


def test_cameras_depths_and_instructions_that_no_setting_names_are_warned_of(tmp_path):
    rows = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    arrays = {"state": rows, "action": rows[:, :2] + 1, "episode_ends": [10, 20]}
    arrays |= {"front": np.full((20, 24, 32, 3), 9, np.uint8), "near_depth": np.full((20, 24, 32), 500, np.uint16)}
    arrays |= {"task_index": np.repeat([0, 1], 10)}
    np.savez(tmp_path / "d.npz", **arrays)
    with zipfile.ZipFile(tmp_path / "d.npz", "a") as archive:
        archive.writestr(META, json.dumps({"tasks": ["pick", "place"]}))
    data = {"episodes": {"type": "npz", "path": str(tmp_path / "d.npz")}, "obs": {"state": {"key": "state"}}}
    data |= {"action": {"key": "action"}, "split": {"train": 1.0, "val": 0.0, "test": 0.0}}
    unnamed = TrajectoriesConfig.from_json(json.dumps(data)).create(4, 1, 2).file_warnings
    assert told_each(unnamed, ("front", "near_depth", "data.images", "data.depth"), ("2 instructions", "data.language"))
    images = {"images": {"cam": {"key": "front", "size": [24, 32]}}}
    partly = TrajectoriesConfig.from_json(json.dumps(data | images | {"choice": {"leave_out": [1]}})).create(4, 1, 2)
    (line,) = partly.file_warnings
    assert told(line, "near_depth") and "front" not in line


@pytest.mark.parametrize(("ahead", "is_warned"), [(0, True), (1, False)])
def test_an_action_that_is_the_observation_of_its_step_is_warned_of(tmp_path, ahead, is_warned):
    rows = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    np.savez(tmp_path / "d.npz", state=rows, joints=rows[:, :2], grip=rows[:, :1] ** 2, episode_ends=[20, 40])
    data = {"episodes": {"type": "npz", "path": str(tmp_path / "d.npz")}, "obs": {"state": {"key": "state"}}}
    data |= {"action": {"key": ["joints", "grip"], "ahead": ahead}}
    lines = TrajectoriesConfig.from_json(json.dumps(data)).create(4, 1, 2).file_warnings
    assert [told(line, "2 of 3", '"ahead": 1', "data.action") for line in lines] == [True] * is_warned


@pytest.mark.parametrize(("lengths", "is_few"), [((5, 5, 9, 9), False), ((5, 5, 5, 9), True), ((7, 8, 8, 9), False)])
def test_windows_are_few_where_more_than_half_of_the_episodes_are_shorter(tmp_path, lengths, is_few):
    np.savez(tmp_path / "set.npz", **episodes(lengths))
    whole = {"train": 1.0, "val": 0.0, "test": 0.0}
    data = configure(tmp_path / "set.npz", split=whole).create(8, 2, 4)
    assert bool(data.shortage) == is_few and (not is_few or told(data.shortage, "task.horizon", "3 of 4", "9 steps"))
