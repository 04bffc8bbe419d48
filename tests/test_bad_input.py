"""What a user can get wrong, at the command line: one clear message, its exit code, and no traceback."""

import contextlib
import itertools
import json
import logging
import os
import resource
import signal

import numpy as np
import pytest
import torch

from dp_prior.checkpoints.retention import RetentionConfig
from dp_prior.checkpoints.store import CheckpointStore
from dp_prior.training.trainer import PolicyTrainer
from tests.messages import told
from tests.tiny import assert_equal, experiment, read_rows, rows, state, tiny, train, write, write_data

UNET = {"type": "unet1d", "down_dims": [8, 16], "n_groups": 4, "step_embed_dim": 8}
LOSS = {"type": "loss", "every": {"steps": 7}}
SETTINGS = {
    "unknown key": (
        {"train__acumulation": 2},
        ("train.acumulation", "unknown key", "'accumulation'"),
    ),
    "unknown key of a part": (
        {"task__backbone__hiden_dim": 2},
        ("task.backbone.hiden_dim", "unknown key", "'hidden_dim'"),
    ),
    "unknown key that resembles none": ({"data__zoo": 0.1}, ("data.zoo", "unknown key", "obs", "action", "split")),
    "key of LeRobot": (
        {"batch_size": 8},
        ("batch_size", "unknown key", "data.batch_size", "LeRobot", "data.global_batch_size", "openpi"),
    ),
    "key of LeRobot's data": (
        {"data__repo_id": "a/b"},
        ("data.repo_id", "unknown key", "data.episodes.repo", "(openpi"),
    ),
    "key of their training": (
        {"train__num_epochs": 9},
        ("train.num_epochs", "unknown key", "train.epochs", "(Diffusion Policy"),
    ),
    "key of Diffusion Policy": (
        {"task__pred_action_steps_only": True},
        ("task.pred_action_steps_only", "unknown key", "Diffusion Policy", "counterpart", "n_action_steps"),
    ),
    "another key of Diffusion Policy": (
        {"task__past_action_visible": True},
        ("task.past_action_visible", "unknown key", "data.previous_action", "(Diffusion Policy", "`task.prefix`"),
    ),
    "key of Diffusion Policy's data": (
        {"data__abs_action": True},
        ("data.abs_action", "unknown key", "data.action.rotations", "(Diffusion Policy"),
    ),
    "unknown part": (
        {"task__backbone": {"type": "unet"}},
        ("task.backbone.type", "'unet'", "'unet1d'"),
    ),
    "text for a number": (
        {"train__accumulation": "2"},
        ("train.accumulation", "integer", "'2'"),
    ),
    "missing part": ({"data__action": None}, ("data.action", "object", "null")),
    "more actions than the chunk has": (
        {"task__n_action_steps": 4},
        ("task", "n_action_steps", "horizon 4", "n_obs_steps 2", "3 actions", "lower n_action_steps", "raise horizon"),
    ),
    "horizon that cannot be halved": (
        {"task__backbone": UNET, "task__horizon": 5},
        ("task", "horizon is 5", "backbone 'unet1d'", "multiple of 2", "use 6 or 4"),
    ),
    "more sampling steps than timesteps": (
        {"task__sampler__steps": 20},
        ("sampler", "diffusion.schedule", "20 steps", "10 timesteps", "lower"),
    ),
    "scaled angles": (
        {"task__encoders": {"goal": {"type": "angle"}}, "task__normalizer": {"goal": {"type": "limits"}}},
        ("normalizer.goal", "'limits'", "angle encoder"),
    ),
    "encoder of nothing": (
        {"task__encoders": {"gaol": {"type": "state"}}},
        ("task.encoders", "['gaol']", "['agent_pos', 'goal']"),
    ),
    "normalizer of nothing": (
        {"task__normalizer": {"x": {"type": "limits"}}},
        ("task.normalizer", "['x']", "['action', 'agent_pos', 'goal']"),
    ),
    "splits that do not sum to one": (
        {"data__split": {"train": 0.9, "val": 0.2}},
        ("data.split", "train 0.9 + val 0.2 + test 0 = 1.1", "sum to 1"),
    ),
    "metric that nobody measures": (
        {"train__monitor": {"metric": "rollout/score", "mode": "max"}},
        ("train.monitor.metric", "'rollout/score'", "`evaluate`", "validation/ema/loss"),
    ),
    "misspelt metric": (
        {"train__monitor": {"metric": "validation/ema/los"}},
        ("train.monitor.metric", "'validation/ema/los'", "`evaluate`", "validation/ema/loss or"),
    ),
    "directory that no path can name": ({"tracker__data_path": "a\0b"}, ("tracker.data_path", "string", "match")),
    "average that is not there": (
        {"evaluate": [{**LOSS, "models": ["fast"]}]},
        ("evaluate.0", "['fast']", "['ema', 'slow', 'online']", "train.ema"),
    ),
    "best that is the worst": (
        {
            "evaluate": [{"type": "rollout", "env": {"type": "toy"}, "n_episodes": 2, "videos": 0}],
            "train__monitor": {"metric": "rollout/score"},
        },
        ("train.monitor.mode", "'min'", "worst", "'rollout/score'", "'max'"),
    ),
    "reports of one name": (
        {"evaluate": [LOSS, *({"type": "action_error", "eval_timesteps": [steps]} for steps in (1, 2))]},
        ("evaluate.2", "reports", "'action_error'", "name"),
    ),
    "metric measured twice": (
        {"evaluate": [LOSS, LOSS]},
        ("evaluate.1", "'validation/ema/loss'", "second time", "name"),
    ),
    "selection by the test split": (
        {"evaluate": [{**LOSS, "split": "test"}]},
        ("evaluate.0", "test split", "`test`"),
    ),
    "empty split": (
        {"data__split": {"train": 1.0, "val": 0.0}},
        ("evaluator 'validation'", "val part", "empty", "data.split", '"evaluate": []'),
    ),
    "weights of another horizon": (
        {"task__diffusion__horizon_weights": [1.0, 0.5]},
        ("task: 1 problem", "diffusion.horizon_weights", "2 numbers", 4, "(4, 2)"),
    ),
    "nowhere to run": ({"tracker__data_path": ""}, ("tracker.data_path", "1 character")),
    "two budgets": ({"train__epochs": 3}, ("exactly one", "samples, epochs, steps", "found epochs, steps")),
    "no budget": ({"train__steps": None}, ("exactly one", "samples, epochs, steps", "found none")),
    "cadence of nothing": ({"train__log_every": {}}, ("train.log_every", "exactly one", "steps, samples")),
    "average called online": ({"train__ema": {"online": {"type": "constant"}}}, ("'online'", "average")),
    "batch larger than the data": (
        {"data__batch_size": 32, "train__accumulation": 2},
        ("batch_size 32 x accumulation 2 x 1 rank = 64 samples", "training set", 59, "Lower batch_size"),
    ),
}


@pytest.mark.promise("I1", "I2")
@pytest.mark.parametrize("case", SETTINGS)
def test_wrong_settings_are_refused_with_their_place_and_the_remedy(case, tmp_path):
    change, parts = SETTINGS[case]
    refused = train(write(tmp_path, **change))
    assert refused.exit_code == 64
    assert told(refused.output, *parts), refused.output
    assert not (tmp_path / "run").exists()


@pytest.mark.promise("I1")
def test_all_wrong_settings_are_in_one_report(tmp_path):
    config = write(tmp_path, train__acumulation=2, task__horizon="4", data__split={"train": 0.5})
    refused = train(config, "--set", "train.lr.peek=1")
    assert refused.exit_code == 64
    for place in ("train.acumulation", "task.horizon", "data.split", "train.lr.peek"):
        assert place in refused.output
    assert f"error: {config}: 4 problems" in refused.output


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.lr.peak", ("--set train.lr.peak", "KEY.KEY=VALUE", "train.lr.peak=3e-4")),
        ("train.lr.peak=high", ("train.lr.peak", "number", "'high'")),
        ("train.lr.peek=1", ("train.lr.peek", "unknown key", "'peak'")),
        ("evaluate.3.every.steps=1", ("'3'", "index", 1)),
    ],
)
def test_wrong_overrides_are_refused(override, message, tmp_path):
    refused = train(write(tmp_path), "--set", override)
    assert refused.exit_code == 64
    assert told(refused.output, *message)


@pytest.mark.promise("I3")
def test_unreadable_configuration_is_refused(tmp_path):
    missing = train(tmp_path / "none.json")
    assert missing.exit_code == 64 and f"{tmp_path / 'none.json'}: 1 problem" in missing.output
    (tmp_path / "half.json").write_text('{"train": ')
    half = train(tmp_path / "half.json")
    assert half.exit_code == 64 and "line 1, column 11: not JSON" in half.output
    unnamed = train(write(tmp_path), "--resume", "perhaps")
    assert unnamed.exit_code == 2 and told(unnamed.output, "'perhaps'", "'auto', 'never', 'must'")


def change_data(path, change):
    data = dict(np.load(path, allow_pickle=False))
    change(data)
    np.savez(path, **data)


def nan(data):
    data["action"][25, 1] = np.nan


def no_episodes(data):
    data.update(state=data["state"][:0], action=data["action"][:0], episode_ends=data["episode_ends"][:0])


def rows_missing(data):
    data["action"] = data["action"][:-1]


def wrong_ends(data):
    data["episode_ends"] = data["episode_ends"][::-1]


@pytest.mark.promise("H4", "H7")
@pytest.mark.parametrize(
    ("change", "messages"),
    [
        (nan, ["action", "nan", "episode 1", "frame"]),
        (no_episodes, ["0 episodes"]),
        (rows_missing, ["action", "rows"]),
        (wrong_ends, ["episode 1", "row", "episode ends", "increase"]),
    ],
)
def test_unusable_data_are_refused_with_the_place(change, messages, tmp_path):
    change_data(write_data(tmp_path / "toy.npz"), change)
    refused = train(write(tmp_path))
    assert refused.exit_code == 65
    for message in [str(tmp_path / "toy.npz"), *messages]:
        assert message.lower() in refused.output.lower()
    assert not (tmp_path / "run").exists()


def test_missing_data_are_refused(tmp_path):
    no_file = train(write(tmp_path), "--set", f"data.episodes.path={tmp_path}/none.npz")
    assert no_file.exit_code in (64, 65) and f"{tmp_path}/none.npz" in no_file.output
    no_key = train(write(tmp_path, data__obs__goal={"key": "stat"}))
    assert no_key.exit_code == 65
    assert told(no_key.output, "obs.goal", "'stat'", "'state'")
    too_far = train(write(tmp_path, data__obs__goal={"key": "state", "slice": [2, 9]}))
    assert too_far.exit_code == 65 and "obs.goal" in too_far.output and "4" in too_far.output


@pytest.mark.promise("H3")
def test_episodes_shorter_than_a_chunk_are_padded_and_counted(tmp_path):
    write_data(tmp_path / "toy.npz")

    def shorten(data):
        data["episode_ends"] = np.concatenate([[2], data["episode_ends"]])

    change_data(tmp_path / "toy.npz", shorten)
    run = experiment(tiny(tmp_path, train__steps=2))
    parts = run.parts.data.report()["parts"]
    assert sum(part["short_episodes"] for part in parts.values()) == 1
    assert run.run().status == "finished"


@pytest.mark.promise("A7")
def test_second_run_in_the_same_directory_is_refused_naming_the_first(tmp_path):
    store = CheckpointStore(tmp_path / "run" / "checkpoints", RetentionConfig())
    with store.lock():
        refused = train(write(tmp_path))
    assert refused.exit_code == 73
    assert told(refused.output, tmp_path / "run", f"process {os.getpid()}", "on host", "another directory")
    assert train(write(tmp_path, train__steps=2)).exit_code == 0


@pytest.mark.promise("A4")
def test_place_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "run").write_text("a file")
    refused = train(write(tmp_path))
    assert refused.exit_code == 74
    assert told(refused.output, tmp_path / "run", "--set tracker.data_path=DIRECTORY")


def train_on_a_full_disk(config, output, is_full):
    """`train` in a fork where a limit on the size of files, which stands for the full disk, holds at some saves.

    Returns the exit code; what was said is in `output`.
    """
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(280)
            torch.set_num_threads(torch.get_num_threads())  # renews torch's pool, which two new threads at once may not
            write, count = CheckpointStore.write, itertools.count(1)

            def limited(self, *arguments):
                limit = 12_000 if is_full(next(count)) else resource.RLIM_INFINITY
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
                try:
                    return write(self, *arguments)
                finally:
                    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

            CheckpointStore.write = limited
            with output.open("w") as stream, contextlib.redirect_stderr(stream):
                logging.basicConfig(format="%(message)s", force=True)
                result = train(config)
                stream.write(result.output)
            code = result.exit_code
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.fixture
def reference(trained_policy):
    """The newest checkpoint of a run that nothing disturbed."""
    return state(trained_policy)


@pytest.mark.promise("A3")
def test_disk_that_is_full_for_a_while_costs_only_the_saves_meanwhile(tmp_path, reference):
    output = tmp_path / "output.txt"
    assert train_on_a_full_disk(write(tmp_path), output, lambda save: save in (2, 3)) == 0
    said = output.read_text()
    failed = [line for line in said.splitlines() if "File too large" in line]
    assert len(failed) == 2 and all(told(line, "step_00000005") for line in failed)
    assert told(failed[1], "continues", "save 2", 3)
    assert_equal(state(tmp_path / "run"), reference)


@pytest.mark.promise("A3")
@pytest.mark.parametrize("first", [2, 5], ids=["three in a row", "the last"])
def test_disk_that_stays_full_stops_the_run_and_the_same_command_goes_on(tmp_path, reference, first):
    config, output = write(tmp_path), tmp_path / "output.txt"
    assert train_on_a_full_disk(config, output, lambda save: save >= first) == 74
    said = output.read_text()
    assert told(said, "error", "File too large", "same command") and "Traceback" not in said
    assert not list((tmp_path / "run" / "checkpoints").glob("*tmp*"))
    assert train(config).exit_code == 0
    assert_equal(state(tmp_path / "run"), reference)


def poison(monkeypatch, is_bad):
    step = PolicyTrainer.step

    def poisoned(self, batches):
        if is_bad(self.progress.global_step + 1):
            batches[-1].x[0] = float("nan")
        step(self, batches)

    monkeypatch.setattr(PolicyTrainer, "step", poisoned)


@pytest.mark.promise("G1")
def test_step_with_a_gradient_that_is_not_finite_is_skipped_and_counted(tmp_path, monkeypatch):
    poison(monkeypatch, lambda step: step in (2, 3))
    config = {"train__steps": 3, "train__save_every": {"steps": 1}, "train__log_every": {"steps": 1}, "evaluate": []}
    assert train(write(tmp_path, **config, checkpoints__keep_latest=3)).exit_code == 0
    found = [state_at(tmp_path, step) for step in (1, 2, 3)]
    for name, value in found[0].items():
        assert torch.equal(found[1][name], value) and torch.equal(found[2][name], value), name
    assert [row["train/skipped_steps"] for row in rows(tmp_path / "run")] == [0, 1, 2]
    bad = read_rows(tmp_path / "run")[1]
    assert bad["train/loss"] is None and "train/loss" in bad["nonfinite"]


def state_at(place, step):
    """Weights, averages and moments; not the counts of what was skipped."""
    tensors = state(place / "run" / "checkpoints" / f"step_{step:08d}")
    return {k: v for k, v in tensors.items() if ":" in k and "means" not in k and "skipped" not in k}


@pytest.mark.promise("G2")
def test_run_whose_gradient_stays_not_finite_stops_and_names_the_samples(tmp_path, monkeypatch):
    seen = {}
    poison(monkeypatch, lambda step: step > 6)
    step = PolicyTrainer.step

    def recording(self, batches):
        seen[self.progress.global_step + 1] = batches[0].ids.tolist()
        step(self, batches)

    monkeypatch.setattr(PolicyTrainer, "step", recording)
    stopped = train(write(tmp_path, train__nonfinite_limit=3, evaluate=[], train__save_every={"steps": 6}))
    assert stopped.exit_code == 65
    assert told(stopped.output, "3 optimizer steps", "step 9", f"samples {seen[7]}", "events.jsonl", "learning rate")
    last = state(tmp_path / "run")
    assert last["progress"]["global_step"] == 6
    assert all(torch.isfinite(value).all() for name, value in last.items() if ":" in name)


@pytest.mark.promise("G3")
def test_checkpoint_that_is_not_finite_is_never_latest_or_best(tmp_path, monkeypatch):
    save = PolicyTrainer.save

    def broken(self, metrics, is_best):
        if self.progress.global_step == 10:
            next(self.averages["slow"].model.parameters()).data.fill_(float("nan"))
        save(self, metrics, is_best)

    monkeypatch.setattr(PolicyTrainer, "save", broken)
    config = write(tmp_path, train__steps=10, evaluate__0__every__steps=5)
    done = train(config)
    assert done.exit_code == 0
    index = json.loads((tmp_path / "run" / "checkpoints" / "index.json").read_text())
    assert index["latest"] == index["best"] == "step_00000005"
    assert (tmp_path / "run" / "checkpoints" / "quarantine_step_00000010").is_dir()
