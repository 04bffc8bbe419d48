"""What a person did in rollouts is learned beside the first data, from the weights of the policy that rolled out."""

import json
import os
import signal
from collections import Counter

import numpy as np
import pytest
import torch

from dp_prior.envs.toy import demonstrations
from dp_prior.inference.load import load_policy
from dp_prior.run.config import TrainConfig
from dp_prior_foreign.convert import convert
from tests.cli.invoked import command
from tests.messages import told
from tests.tiny import assert_equal, die, state, tiny, train, write
from tests.tiny_camera import ENCODER

SAMPLES = ("--samples", 48, "--set", 'train.save_every={"steps": 2}')


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    place = tmp_path_factory.mktemp("first")
    assert train(write(place, train__steps=4)).exit_code == 0
    return place / "run"


def rollouts(path, marked=range(5, 12), **further):
    """Two rollouts of which a person corrected some steps; None marks none."""
    found = demonstrations(2, seed=9)
    if marked is not None:
        further["intervention"] = np.isin(np.arange(len(found["action"])), marked)[:, None]
    np.savez(path, **found, **further)
    return path


def learned(run, out, *corrections):
    return command(
        "improve", run, "--out", out, *SAMPLES, *(part for one in corrections for part in ("--corrections", one))
    )


def config_of(run):
    return TrainConfig.from_json_path(run / "config.json")


def test_only_what_a_person_did_is_drawn_from_every_rollout(run, tmp_path):
    done = learned(run, tmp_path / "new", rollouts(tmp_path / "r.npz"), rollouts(tmp_path / "all.npz", None))
    assert done.exit_code == 0, done.output
    config = config_of(tmp_path / "new")
    assert [*config.data.sets] == ["demonstrations", "corrections_1", "corrections_2"]
    assert config.train.init_from == str(run / "checkpoints" / "step_00000004") and config.task == config_of(run).task
    data = config.open_data()
    loader = data.loader(batch_size=1, accumulation=1, seed=3, rank=0, world_size=1)
    drawn = Counter(np.concatenate([loader.order.ids(epoch, 0, len(loader)) for epoch in range(40)]).tolist())
    lengths = {name: len(one.train) for name, one in data.sets.items()}  # windows lie set after set in this order
    first, second = lengths["corrections_1"], lengths["corrections_1"] + lengths["corrections_2"]
    train_part = data.sets["corrections_1"].train
    newest = train_part.columns["agent_pos"].values[train_part.rows.begins + 1].numpy()
    corrected = demonstrations(2, seed=9)["state"][5:12, :2].astype(np.float32)
    marked = {number for number, seen in enumerate(newest) if (seen == corrected).all(axis=1).any()}
    assert len(marked) == 7
    assert {one for one in drawn if one < first} == marked
    assert {one for one in drawn if first <= one < second} == {*range(first, second)}
    assert {**dict(zip(data.sets, [share.count for share in data.shares], strict=False))}["corrections_1"] > 0
    assert train_part.fetch(torch.tensor(sorted(marked))).mask.sum() == 3 + 4 * 4 + 3 + 2  # windows begin a step early


@pytest.mark.slow
def test_a_killed_training_goes_on_to_the_same_weights(run, tmp_path):
    given = rollouts(tmp_path / "r.npz")
    child = os.fork()
    if child == 0:
        die("step", 3)
        learned(run, tmp_path / "killed", given)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    for name in ("whole", "killed"):
        assert learned(run, tmp_path / name, given).exit_code == 0
    assert_equal(state(tmp_path / "killed"), state(tmp_path / "whole"))


def test_cameras_and_formats_are_those_of_the_first_data(tmp_path):
    rng = np.random.default_rng(0)

    def filmed(path, marked, n):
        frames = rng.integers(0, 256, (n, 16, 16, 3), np.uint8)
        return rollouts(path, marked, front=frames)

    n = len(demonstrations(2, seed=9)["action"])
    (tmp_path / "first").mkdir()
    camera = {"front": {"key": "front", "size": [16, 16]}}
    source = filmed(tmp_path / "first.npz", None, n)
    data = {**tiny(tmp_path)["data"], "episodes": {"type": "npz", "path": str(source)}, "images": camera}
    given = write(tmp_path / "first", data=data, train__steps=2, task__encoders={"front": ENCODER})
    assert train(given).exit_code == 0
    convert(filmed(tmp_path / "r.npz", range(5, 12), n), tmp_path / "r.zarr", "zarr")
    done = learned(tmp_path / "first" / "run", tmp_path / "new", tmp_path / "r.zarr")
    assert done.exit_code == 0, done.output
    found = config_of(tmp_path / "new").data.sets["corrections_1"]
    assert (found.episodes.type, found.images["front"].key) == ("zarr", "front")


@pytest.mark.parametrize(
    ("marked", "corrections", "code", "parts"),
    [
        ((), "r.npz", 65, ("r.npz", "'intervention'", "no step")),
        (range(5), "nothing.zarr", 65, ("nothing.zarr", "no such")),
    ],
)
def test_rollouts_without_anything_to_learn_are_refused(run, marked, corrections, code, parts, tmp_path):
    rollouts(tmp_path / "r.npz", marked)
    done = learned(run, tmp_path / "new", tmp_path / corrections)
    assert done.exit_code == code and told(done.output, *parts), done.output
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("steps", "parts"),
    [(np.array(["no", "yes"]), ("'no', 'yes'",)), (np.array(["", "true"]), ("''",)), (np.array([np.nan, 1]), ("nan",))],
)
def test_marks_that_are_neither_true_nor_false_do_not_count_as_true(run, steps, parts, tmp_path):
    marks = np.repeat(steps, [20, len(demonstrations(2, seed=9)["action"]) - 20])
    done = learned(run, tmp_path / "new", rollouts(tmp_path / "r.npz", None, intervention=marks))
    assert done.exit_code == 65 and told(done.output, "r.npz", "'intervention'", *parts, "true", "false"), done.output
    assert not (tmp_path / "new").exists()


def test_corrections_are_found_by_the_older_name_of_lerobot_and_told(run, tmp_path):
    found = demonstrations(2, seed=9)
    marks = (np.arange(len(found["action"])) < 4).astype(np.float32)[:, None]
    np.savez(tmp_path / "r.npz", **found, **{"complementary_info.is_intervention": marks})
    done = learned(run, tmp_path / "new", tmp_path / "r.npz", rollouts(tmp_path / "all.npz", None))
    assert done.exit_code == 0, done.output
    weights = config_of(tmp_path / "new").data.sets["corrections_1"].weights
    assert (weights.key, weights.values) == ("complementary_info.is_intervention", {"0": 0})
    assert told(done.output, "r.npz", "complementary_info.is_intervention") and told(
        done.output, "all.npz", "all steps"
    )
    rollouts(tmp_path / "two.npz", range(4), **{"is_intervention": marks})
    done = learned(run, tmp_path / "newer", tmp_path / "two.npz")
    assert done.exit_code == 65 and told(done.output, "intervention", "is_intervention"), done.output


def test_a_set_of_corrections_alone_has_no_weights(run, tmp_path):
    assert learned(run, tmp_path / "new", rollouts(tmp_path / "r.npz", range(10**6))).exit_code == 0
    assert config_of(tmp_path / "new").data.sets["corrections_1"].weights is None


def test_a_policy_is_not_replaced_by_what_it_becomes(run, tmp_path):
    before = state(run)
    done = learned(run, run, rollouts(tmp_path / "r.npz"))
    assert done.exit_code == 64 and told(done.output, "--out", run, "another"), done.output
    assert_equal(state(run), before)


def test_other_rollouts_in_the_same_folder_are_refused(run, tmp_path):
    given = rollouts(tmp_path / "r.npz")
    assert learned(run, tmp_path / "new", given).exit_code == 0
    done = learned(run, tmp_path / "new", given, given)
    assert done.exit_code == 64 and told(done.output, "data.sets.corrections_2.action.key", "--out"), done.output


def test_what_a_policy_of_rollouts_becomes_can_be_corrected_again(run, tmp_path):
    for number, (first, seed) in enumerate(((run, 1), (tmp_path / "1", 2)), 1):
        assert learned(first, tmp_path / str(number), rollouts(tmp_path / f"{seed}.npz")).exit_code == 0
    assert [*config_of(tmp_path / "2").data.sets] == ["demonstrations", "corrections_1", "corrections_2"]
    before, after = (dict(load_policy(place).named_buffers()) for place in (run, tmp_path / "2"))
    fitted = [name for name in before if "normalizer" in name]
    assert fitted and all((before[name] == after[name]).all() for name in fitted)


def test_options_of_policies_that_play_are_refused(run, tmp_path):
    line = ("--rounds", 2, "--seeds", 5, "--device", "cpu", "--corrections", tmp_path / "r.npz")
    done = command("improve", run, "--out", tmp_path / "new", *line)
    assert done.exit_code == 2 and told(done.output, "--seeds, --rounds, --device", "--corrections")


@pytest.mark.parametrize("change", [{"data__previous_action": "before"}])
def test_data_that_cannot_be_mixed_are_refused(change, tmp_path):
    assert train(write(tmp_path, train__steps=2, **change)).exit_code == 0
    done = learned(tmp_path / "run", tmp_path / "new", rollouts(tmp_path / "r.npz"))
    assert done.exit_code == 64 and told(done.output, "data", "previous_action", "dp-prior improve"), done.output


def test_parts_of_the_first_data_remain_and_every_rollout_is_trained_on(tmp_path):
    parts = {"parts": {"train": [0, 2], "val": [3]}}
    data = {**tiny(tmp_path)["data"], "split": parts}
    assert train(write(tmp_path, train__steps=2, data=data)).exit_code == 0
    done = learned(tmp_path / "run", tmp_path / "new", rollouts(tmp_path / "r.npz"))
    assert done.exit_code == 0, done.output
    sets = config_of(tmp_path / "new").open_data().sets
    assert (sets["demonstrations"].split_ids["train"], sets["demonstrations"].split_ids["val"]) == ([0, 2], [3])
    assert sets["corrections_1"].split_ids["train"] == [0, 1]
    assert json.loads((tmp_path / "new" / "config.json").read_text())["data"]["split"]["parts"] == parts["parts"]
