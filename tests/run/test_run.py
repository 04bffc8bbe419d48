"""The assembly: what a finished run leaves is what was measured, and it acts."""

import json
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from dp_prior import Agent, load_policy
from dp_prior.checkpoints.clock import Progress
from dp_prior.checkpoints.format import read_checkpoint
from dp_prior.config import ConfigError
from dp_prior.diffusion.draw import Draw
from dp_prior.envs.toy import ToyConfig, demonstrations
from dp_prior.evaluation.loss import LossConfig
from dp_prior.run.config import TrainConfig
from dp_prior.run.run import train
from dp_prior.tensors.randomness import Randomness
from dp_prior.tracking.tracker import Tracker
from dp_prior.training.trainer import PolicyTrainer
from tests import forks
from tests.data.recorded.test_language import embed
from tests.evaluation.rollouts import SIDES, Telling
from tests.messages import naming
from tests.tiny import assert_equal, experiment, rows, state, tiny, train_and_die, write

THIRDS = {"train": 0.5, "val": 0.25, "test": 0.25}
UNET = {"type": "unet1d", "down_dims": [8, 16], "n_groups": 4, "step_embed_dim": 8}


@pytest.fixture(scope="module", params=["mlp", "unet1d"])
def finished(request, tmp_path_factory):
    place = tmp_path_factory.mktemp(request.param)
    change = {"task__backbone": UNET} if request.param == "unet1d" else {}
    test = [{"type": "loss", "name": "test", "split": "test"}]
    run = experiment(tiny(place, **change, train__steps=6, evaluate__0__every__steps=2, data__split=THIRDS, test=test))
    return run, run.run()


def test_outcome_tells_how_the_run_ended(finished):
    run, outcome = finished
    assert outcome.status == "finished" and outcome.failures == []
    assert outcome.progress == Progress(48, 6)
    assert outcome.directory == run.parts.directory
    assert json.loads((outcome.best / "progress.json").read_text())["global_step"] == outcome.result()["best"]["step"]


def test_outcome_has_scores_rows_checkpoints_and_the_best_model(finished):
    _, outcome = finished
    assert outcome.samples_seen == 48 and outcome.latest.name == "step_00000006"
    assert outcome.scores == outcome.result()["test"] and "test/ema/loss" in outcome.scores
    assert [row["step"] for row in outcome.rows()] == [row["step"] for row in rows(outcome.directory)]
    best = load_policy(outcome.best).state_dict()
    assert all(torch.equal(value, best[name]) for name, value in outcome.load().state_dict().items())


def test_a_run_from_python_takes_a_record_fields_or_a_file_and_resumes(tmp_path, capsys):
    for steps, kind in ((2, lambda given: TrainConfig(**given)), (4, dict), (6, Path)):
        given = tiny(tmp_path, train__steps=steps, tracker__log=[{"type": "console"}])
        path = write(tmp_path, train__steps=steps, tracker__log=[{"type": "console"}])
        outcome = train(path if kind is Path else kind(given), report=None)
        assert outcome.status == "finished" and outcome.progress.global_step == steps
        assert capsys.readouterr().out == "", "silent if asked"
    outcome = train(given)
    printed = capsys.readouterr().out
    assert outcome.status == "complete" and "  budget        48 samples = 6 steps" in printed
    with pytest.raises(ConfigError, match=naming("TrainConfig", "trian", "'train'")):
        train({**given, "trian": {}})
    for wrong in (3, None, ["task"]):
        with pytest.raises(ConfigError) as caught:
            train(wrong)
        assert all(word in str(caught.value) for word in (repr(wrong), "TrainConfig", "JSON file"))
    with pytest.raises(
        ConfigError, match=naming("--resume never", "step_00000006", "--set tracker.data_path=", "--resume auto")
    ):
        train(given, resume="never", report=None)


def test_an_interrupt_of_a_run_from_python_ends_it_after_its_step_and_the_same_call_goes_on(tmp_path, monkeypatch):
    config, step = TrainConfig(**tiny(tmp_path, train__steps=6)), PolicyTrainer.step
    handler = signal.getsignal(signal.SIGINT)

    def interrupted(self, batches):
        step(self, batches)
        if self.progress.global_step == 3:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(PolicyTrainer, "step", interrupted)
        outcome = train(config, report=None)
    assert (outcome.status, outcome.stopped_by, outcome.samples_seen) == ("stopped", "SIGINT", 24)
    assert signal.getsignal(signal.SIGINT) is handler
    assert train(config, report=None).progress == Progress(48, 6)


def test_best_is_the_one_with_the_lowest_validation_loss(finished):
    _, outcome = finished
    name = "validation/ema/loss"
    losses = {row["step"]: row[name] for row in rows(outcome.directory) if name in row}
    assert outcome.result()["best"]["step"] == min(losses, key=losses.get)


def test_test_split_is_measured_once_with_the_best_weights(finished):
    run, outcome = finished
    lines = [row for row in rows(outcome.directory) if "test/ema/loss" in row]
    assert [row["step"] for row in lines] == [6]
    best = load_policy(outcome.best)
    evaluator = LossConfig(name="test", split="test", models=("ema",)).create(run.parts.data)
    measured = evaluator.run({"ema": best}, None, outcome.progress).metrics
    assert outcome.result()["test"]["test/ema/loss"] == measured["test/ema/loss"] == lines[0]["test/ema/loss"]


def test_checkpoint_acts(finished):
    run, outcome = finished
    policy = load_policy(outcome.best)
    batch = run.parts.data.val.fetch(torch.arange(3))
    random = Randomness.from_counts(0, "test", batch.ids)
    chunk = policy.predict(batch.cond, random)
    assert chunk.shape == (3, 4, 2) and torch.isfinite(chunk).all()
    agent = Agent(policy, seed=1)
    agent.reset()
    observation = {key: value[0, -1].numpy() for key, value in batch.cond.items()}
    actions = [agent.act(observation) for _ in range(5)]
    assert all(action.shape == (2,) and np.isfinite(action).all() for action in actions)


def test_exported_weights_are_the_average_and_rebuild_the_policy(finished):
    run, outcome = finished
    saved = state(outcome.directory)
    policy = load_policy(f"{outcome.directory}@latest")
    for name, value in policy.state_dict().items():
        assert torch.equal(saved[f"model.safetensors:{name}"], value)
    assert policy.horizon == 4 and policy.n_obs_steps == 2 and policy.n_action_steps == 2


@pytest.mark.promise("I4")
def test_run_keeps_its_configuration_shapes_and_split(finished):
    run, outcome = finished
    for directory in (outcome.directory, outcome.best):
        assert json.loads((directory / "config.json").read_text()) == json.loads(run.parts.config.model_dump_json())
    assert json.loads((outcome.best / "data.json").read_text()) == {
        "fingerprint": run.parts.data.fingerprint,
        "episodes": run.parts.data.split_ids,
    }
    assert json.loads((outcome.best / "spec.json").read_text())["x_shape"] == [4, 2]
    manifest = json.loads((outcome.best / "manifest.json").read_text())
    assert run.parts.config.digest() in json.dumps(manifest)


def test_run_without_evaluators_ends_with_its_latest(tmp_path):
    outcome = experiment(tiny(tmp_path, train__steps=2, evaluate=[], train__ema={})).run()
    assert outcome.best.name == "step_00000002"
    assert outcome.result()["test"] == {}
    assert load_policy(outcome.best).horizon == 4


def test_same_seed_gives_the_same_weights_and_another_one_does_not(tmp_path):
    def weights(seed):
        return experiment(tiny(tmp_path, seed=seed)).parts.model.state_dict()

    first, again, other = weights(0), weights(0), weights(1)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


VARIANTS = {
    "learned variance": {
        "diffusion": {"objective": {"type": "eps"}, "variance": {"type": "learned_range"}},
        "sampler": {"type": "ddpm", "steps": 5},
    },
    "importance-sampled timesteps": {"diffusion": {"timesteps": {"type": "loss_second_moment", "history": 1}}},
    "stratified timesteps": {"diffusion": {"timesteps": {"type": "uniform", "stratified": True}}},
    "v, min-SNR, self-conditioning": {
        "diffusion": {"objective": {"type": "v"}, "weighting": {"type": "min_snr"}, "self_condition": 0.5}
    },
    "flow": {
        "diffusion": {"objective": {"type": "flow"}, "schedule": {"type": "flow"}},
        "sampler": {"type": "euler", "steps": 4},
    },
    "bounds of the data": {"diffusion": {"clip": {"type": "bounds"}}},
}


@pytest.mark.parametrize(
    "task",
    [
        pytest.param(task, id=name, marks=[pytest.mark.slow] * (name != "learned variance"))
        for name, task in VARIANTS.items()
    ],
)
def test_every_part_of_the_kernel_trains_and_resumes_bit_for_bit(tmp_path, task):
    def trained(name, *steps):
        for until in steps:
            change = {f"task__{key}": value for key, value in task.items()}
            lr = {"type": "constant", "peak": 1e-3, "warmup_steps": 0}
            place = {"tracker__data_path": str(tmp_path / name)}
            experiment(tiny(tmp_path, train__steps=until, train__lr=lr, **place, **change)).run()
        saved = state(tmp_path / name)
        return {name: tensor for name, tensor in saved.items() if isinstance(tensor, torch.Tensor)}

    assert_equal(trained("stopped", 3, 6), trained("whole", 6))


def test_guidance_needs_conditions_that_training_withholds(tmp_path):
    guided = {"task__diffusion": {"guidance": {"scale": 2.0}}}
    with pytest.raises(
        ConfigError, match=naming("task.diffusion.guidance", "['agent_pos', 'goal']", "task.cond_dropout")
    ):
        experiment(tiny(tmp_path, train__steps=2, **guided))
    shares = dict.fromkeys(experiment(tiny(tmp_path)).parts.data.spec.cond_shapes, 0.5)
    run = experiment(tiny(tmp_path, train__steps=2, task__cond_dropout=shares, **guided))
    assert run.run().status == "finished"
    batch = run.parts.data.val.fetch(torch.arange(2))
    random = Randomness.from_counts(0, "test", batch.ids)
    run.parts.model.eval()
    guided_chunk = run.parts.model.sample(batch.cond, random)
    process = run.parts.model.process
    process.config = process.config.model_copy(update={"guidance": None})
    assert not torch.equal(guided_chunk, run.parts.model.sample(batch.cond, random))


def test_known_actions_are_in_the_chunk_exactly(tmp_path):
    run = experiment(tiny(tmp_path, train__steps=2))
    batch = run.parts.data.val.fetch(torch.arange(3))
    random = Randomness.from_counts(0, "test", batch.ids)
    is_known = torch.zeros_like(batch.x, dtype=torch.bool)
    is_known[:, :2] = True
    chunk = run.parts.model.eval().sample(batch.cond, random, Draw(known=(batch.x, is_known)))
    assert torch.equal(chunk[:, :2], batch.x[:, :2])
    assert not torch.equal(chunk[:, 2:], batch.x[:, 2:])


def test_averages_stay_apart_when_they_are_named_in_another_order(tmp_path):
    fast, slow = {"type": "constant", "decay": 0.5}, {"type": "constant", "decay": 0.9}
    metric = {"train__monitor__metric": "validation/online/loss", "evaluate": [{"type": "loss", "models": ["online"]}]}
    first = tiny(tmp_path, train__steps=4, train__ema={"fast": fast, "slow": slow}, **metric)
    saved = read_checkpoint(experiment(first).run().best)
    again = experiment(tiny(tmp_path, train__steps=4, train__ema={"slow": slow, "fast": fast}, **metric))
    trainer = again.parts.trainer(None, None)
    trainer.restore(saved)
    for average, name in (("fast", "model.safetensors"), ("slow", "model_slow.safetensors")):
        state_dict = trainer.models[average].state_dict()
        assert all(torch.equal(state_dict[key], value) for key, value in saved.tensors[name].items())


def trained(place, precision):
    """The state after a few steps in a precision."""
    config = tiny(place, train__steps=4, train__precision=precision, tracker__data_path=str(place / precision))
    experiment(config).run()
    return {name: value for name, value in state(place / precision).items() if ":" in name}


@pytest.mark.slow
def test_runs_of_other_precisions_in_one_process_are_those_of_processes_of_their_own(tmp_path):
    together = {precision: trained(tmp_path, precision) for precision in ("fp32", "bf16")}
    assert any(not torch.equal(value, together["bf16"][name]) for name, value in together["fp32"].items())
    for precision in ("bf16", "fp32"):  # the other way round
        (tmp_path / precision).rename(tmp_path / f"first_{precision}")
        program = (
            "import sys; from pathlib import Path; from tests.run.test_run import trained; "
            "trained(Path(sys.argv[1]), sys.argv[2])"
        )
        done = forks.call(["-c", program, tmp_path, precision])
        assert done.returncode == 0, done.stderr
        alone = {name: value for name, value in state(tmp_path / precision).items() if ":" in name}
        assert_equal(alone, together[precision])


def test_loggers_get_the_configuration_and_how_accelerate_set_up_the_start(tmp_path, monkeypatch):
    begun, begin = [], Tracker.begin
    monkeypatch.setattr(Tracker, "begin", lambda self, *given: (begun.append(given[1]), begin(self, *given))[1])
    run = experiment(tiny(tmp_path, train__steps=2))
    run.run()
    stored = json.loads((tmp_path / "run" / "config.json").read_text())
    assert begun == [{**stored, "accelerate": run.parts.ranks.facts}] and "accelerate" not in stored


def told(place, weights="by_success", **changes) -> Path:
    """A run whose episodes are told the side of their goal; the sides are drawn by the success of rollouts."""
    place.mkdir()
    arrays = demonstrations(8, seed=3)
    firsts = np.r_[0, arrays["episode_ends"][:-1]]
    np.savez(place / "toy.npz", **arrays, said=(arrays["state"][firsts, 2] < 0).astype(np.int64))
    language = {"key": "said", "texts": SIDES, "folder": embed(place / "e", SIDES), "weights": weights, **changes}
    rollout = {"type": "rollout", "every": {"steps": 6}, "n_episodes": 6, "videos": 0, "env": {"type": "toy"}}
    monitor = {"metric": "rollout/score", "mode": "max"}
    return write(place, data__language={"told": language}, evaluate=[rollout], train__monitor=monitor)


@pytest.mark.slow
def test_what_rollouts_decide_to_draw_is_stored_and_a_killed_run_draws_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(ToyConfig, "create", lambda self: Telling(**self.arguments()))
    whole, killed = told(tmp_path / "whole"), told(tmp_path / "killed")
    done = train(whole, report=None)
    found = read_checkpoint(done.latest).documents["progress.json"]["successes"]
    assert found.keys() == {"rollout"} and found["rollout"].keys() == set(SIDES)
    assert sum(played for _, played in found["rollout"].values()) == 6
    for count in (8, 13):  # between an evaluation and the next save, and after it
        assert train_and_die(killed, "step", count) == -signal.SIGKILL
    train(killed, report=None)
    assert_equal(state(tmp_path / "killed/run"), state(tmp_path / "whole/run"))
    train(told(tmp_path / "balanced", weights="balanced"), report=None)
    with pytest.raises(AssertionError):  # the success of rollouts decides
        assert_equal(state(tmp_path / "balanced/run"), state(tmp_path / "whole/run"))


def test_a_run_that_follows_no_rollout_of_its_own_is_refused(tmp_path):
    path = told(tmp_path / "other", success_of="rollouts")
    with pytest.raises(ConfigError, match=naming("'rollouts'", "evaluate", "['rollout']", "success_of")):
        train(path)
    path = told(tmp_path / "control", success_of="control")
    config = json.loads(path.read_text())
    config["evaluate"].append({**config["evaluate"][0], "name": "control", "shuffle": ["side"]})
    path.write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=naming("'control'", "evaluate", "shuffle", "['rollout']", "success_of")):
        train(path)
