"""What makes no sense for the budget, the cameras, the clouds, the precision or the robots is told before training."""

import json
import zipfile
from types import SimpleNamespace

import pytest
import torch

from dp_prior.run import warnings
from dp_prior.run.config import TrainConfig
from dp_prior.run.warnings import budget_warnings, camera_warnings, forward_seconds, precision_warnings
from dp_prior_foreign.convert import convert
from tests.messages import told, told_each
from tests.test_point_clouds import ENCODER, cloud_run
from tests.tiny import experiment, tiny, train, write, write_data


class Data(list):
    global_batch_size = 8


def config_of(place, **changes):
    return TrainConfig.from_json(json.dumps(tiny(place, **changes)))


def trainer_of(config, n=64):
    loader = Data(range(n))
    total = config.train.total_samples(n, 8)
    return SimpleNamespace(loader=loader, total_samples=total, total_steps=-(-total // 8))


def warnings_of(config, n=64):
    return "\n".join(budget_warnings(config, trainer_of(config, n)))


def test_a_warm_up_that_never_ends_is_told_with_the_rate_that_is_reached(tmp_path):
    assert not warnings_of(config_of(tmp_path, train__lr__warmup_steps=23))
    warned = warnings_of(config_of(tmp_path, train__lr__warmup_steps=500))
    assert told(warned, "train.lr.warmup_steps", 500, "24 steps", 4.8e-05, 0.001, 2)


@pytest.mark.parametrize("unit, count", [("samples", 64_000), ("steps", 8_000)])
def test_thousands_of_epochs_are_told_unless_they_were_asked_for(unit, count, tmp_path):
    budget = {"train__steps": None, f"train__{unit}": count}
    assert "is 1,000 epochs" in warnings_of(config_of(tmp_path, **budget))
    assert not warnings_of(config_of(tmp_path, **budget), n=65)
    assert not warnings_of(config_of(tmp_path, train__steps=None, train__epochs=5000))
    assert told(warnings_of(config_of(tmp_path, train__steps=None, train__epochs=10_000)), "10,000 epochs", 64)


def test_a_rate_that_destroys_the_weights_is_told(tmp_path):
    assert not warnings_of(config_of(tmp_path, train__lr__peak=0.1))
    assert told(warnings_of(config_of(tmp_path, train__lr__peak=1)), "train.lr.peak", 1, "1e-4")


def test_a_run_that_measures_nothing_is_told(tmp_path):
    assert told(warnings_of(config_of(tmp_path, evaluate=[])), "evaluate", "test", "nothing", "best")
    assert not warnings_of(config_of(tmp_path, evaluate=[], test=[{"type": "loss", "name": "test"}]))


def test_weights_by_the_success_of_rollouts_at_the_end_alone_are_told(tmp_path):
    texts = {"key": "said", "texts": ["a", "b"], "folder": {"path": "texts", "format": "parquet"}}

    def warned(every, weights="by_success"):
        rollouts = {"type": "rollout", "every": every, "env": {"type": "toy"}}
        language = {"data__language": {"told": {**texts, "weights": weights}}}
        monitor = {"metric": "rollout/score", "mode": "max"}
        return warnings_of(config_of(tmp_path, evaluate=[rollouts], train__monitor=monitor, **language))

    assert told(warned({"steps": 24}), "'rollout'", "24 steps", "3.0 epochs", "by_success")
    assert warned({"epochs": 50}) and warned({"samples": 192})
    assert not any(map(warned, [{"steps": 23}, {"epochs": 2}, {"samples": 100}, {"minutes": 90}]))
    assert not warned({"steps": 24}, weights="balanced")


def camera_lines(place, kind, render, **env):
    """Warnings of a configuration with a camera `corner2` or `angle` and a rollout of its environment."""
    name = {"metaworld": "corner2", "aloha": "angle"}[kind]
    image = {"key": "scene", "size": [32, 32], "render": {"type": kind, **render}}
    env = {"type": kind, "cameras": {name: [32, 32]}, **env}
    config = tiny(
        place,
        data__images={name: image},
        task__encoders={name: {"type": "resnet", "width": 16, "blocks": [1]}},
        test=[{"type": "rollout", "name": "test", "env": env}],
    )
    return [*camera_warnings(TrainConfig.from_json(json.dumps(config)))]


@pytest.mark.parametrize(
    ("kind", "name", "usual", "env"),
    [("metaworld", "corner2", "corner4", {"task": "push-v3"}), ("aloha", "angle", "top", {"task": "insertion"})],
)
def test_another_camera_or_other_shadows_are_told(kind, name, usual, env, tmp_path):
    place = f"data.images.{name}.render"
    assert not camera_lines(tmp_path, kind, {"camera": name}, **env)
    assert not camera_lines(tmp_path, kind, {"camera": name, "shadows": True}, shadows=True, **env)
    assert told_each(camera_lines(tmp_path, kind, {}, **env), (f"{place}.camera", f"'{usual}'", f"'{name}'", "'test'"))
    lines = camera_lines(tmp_path, kind, {"camera": name}, shadows=True, **env)
    assert told_each(lines, (f"{place}.shadows", "False", "True", "'test'"))


def test_every_set_of_a_mixture_is_looked_at(tmp_path):
    config = tiny(tmp_path, task__encoders={"corner2": {"type": "resnet", "width": 16, "blocks": [1]}})
    data = config.pop("data")
    shared = {key: data.pop(key) for key in ("batch_size", "split") if key in data}
    image = {"key": "scene", "size": [32, 32]}
    sets = {
        name: {**data, "images": {"corner2": {**image, "render": {"type": "metaworld", "camera": camera}}}}
        for name, camera in (("wrong", "topview"), ("right", "corner2"))
    }
    config["data"] = {"type": "mixture", "sets": sets, **shared}
    env = {"type": "metaworld", "task": "push-v3", "cameras": {"corner2": [32, 32]}}
    config["test"] = [{"type": "rollout", "name": "test", "env": env}]
    sets["data"] = sets["wrong"]
    expected = {name: (f"data.sets.{name}.images.corner2.render.camera", "'topview'") for name in ("wrong", "data")}
    for name, other in (("wrong", "data"), ("data", "wrong"), ("right", "wrong")):
        config["data"]["sets"] = {key: sets[key] for key in (name, other)}
        faults = [expected[key] for key in (name, other) if key in expected]
        assert told_each([*camera_warnings(TrainConfig.from_json(json.dumps(config)))], *faults)


@pytest.mark.parametrize(("shift", "is_told"), [(0, False), (100, True)])
def test_a_box_without_points_is_told(shift, is_told, tmp_path):
    box = [[end + shift for end in corner] for corner in ENCODER["box"]]
    config = cloud_run(tmp_path, task__encoders={"cloud": {**ENCODER, "box": box}})
    (tmp_path / "config.json").write_text(json.dumps(config))
    output = train(tmp_path / "config.json", "--check").output
    assert told(output, "warning", "task.encoders.cloud.box", "100%", "inspect") == is_told


@pytest.mark.parametrize(
    ("precision", "seconds", "ratio"),
    [("bf16", (1.0, 1.5), "1.5 times"), ("bf16", (1.0, 1.1), None), ("fp32", (1.0, 9.0), None)],
)
def test_bf16_is_warned_of_where_it_is_slower(tmp_path, monkeypatch, precision, seconds, ratio):
    run = experiment(tiny(tmp_path, train__precision=precision)).parts
    monkeypatch.setattr(warnings, "forward_seconds", lambda parts, model: seconds)
    parts = () if ratio is None else (("train.precision", "bf16", ratio, "fp32"),)
    assert told_each(precision_warnings(run, run.trainer(None, None)), *parts)


def test_timing_changes_neither_the_model_nor_the_random_numbers(tmp_path):
    parts = experiment(tiny(tmp_path, train__precision="bf16")).parts
    parts.model.train()
    before = {name: value.clone() for name, value in parts.model.state_dict().items()}
    state = torch.random.get_rng_state()
    assert min(forward_seconds(parts, parts.model)) > 0 and parts.model.training
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in parts.model.state_dict().items())


def on_robots(place, **change):
    """The notes of the plan."""
    lines = train(write(place, **change), "--check").output.splitlines()
    return [line.strip() for line in lines if line.startswith("  on robots ")]


def test_gaps_of_a_rollout_are_told_for_lerobot_data_alone(tmp_path):
    pytest.importorskip("pyarrow", reason="NOT CHECKED: LeRobot stores, the extra dp_prior[lerobot] is not installed")
    write_data(tmp_path / "toy.npz")
    with zipfile.ZipFile(tmp_path / "toy.npz", "a") as archive:
        names = {"state": ["x.pos", "y.pos", "goal_x", "goal_y"], "action": ["x.pos", "y.pos"]}
        archive.writestr("meta.json", json.dumps({"names": names}))
    convert(tmp_path / "toy.npz", tmp_path / "lerobot", "lerobot", fps=10.0, renames={"state": "observation.state"})
    assert on_robots(tmp_path) == []
    lerobot = {"data__episodes": {"type": "lerobot", "path": str(tmp_path / "lerobot")}}
    state = {"key": "observation.state"}
    rtc, forces = ("task.n_obs_steps", 2, "--inference.type=rtc"), ("observation.state", "goal_x, goal_y", '"names"')
    assert told_each(on_robots(tmp_path, **lerobot, data__obs={"state": state}), forces, rtc)
    chosen = {"state": state | {"names": ["x.pos", "y.pos"]}}
    assert told_each(on_robots(tmp_path, **lerobot, data__obs=chosen), rtc)
    assert on_robots(tmp_path, **lerobot, data__obs=chosen, task__n_obs_steps=1) == []


def test_a_size_without_effect_is_told(tmp_path):
    def output(size):
        return train(write(tmp_path, data__global_batch_size=8, data__batch_size=size), "--check").output

    assert told(output(16), "warning", "data.batch_size 16", "data.global_batch_size 8", "no effect")
    for size in (4, 8):
        assert not told(output(size), "no effect")


def test_an_accumulation_that_fits_one_number_of_ranks_is_told(tmp_path):
    def output(**change):
        return train(write(tmp_path, data__global_batch_size=24, **change), "--check").output

    parts = ("warning", "1 x data.batch_size 12 x train.accumulation 2", "data.global_batch_size 24", "remove")
    assert told(output(data__batch_size=12, train__accumulation=2), *parts)
    for change in ({"data__batch_size": 12}, {"data__batch_size": 24, "train__accumulation": 2}):
        assert not told(output(**change), "warning", "train.accumulation")
