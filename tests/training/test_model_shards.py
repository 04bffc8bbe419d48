"""A model in parts, by `shard` "model": the same run as with whole models, on any ranks, with a part of the memory."""

import json
import os
import signal
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from dp_prior import load_image, load_policy, load_prior
from dp_prior.config import ConfigError
from dp_prior.job.stop import REQUEST
from dp_prior.run.memory import planned
from dp_prior.training.model_shards import ModelShards, wrap_units
from dp_prior.training.optimizer import AdamW, parameter_groups
from dp_prior.training.trainer import PolicyTrainer
from dp_prior.training.training_config import TrainingConfig
from tests.golden.record import DIT
from tests.messages import naming
from tests.test_elastic import BF16, EXACT, LIMIT, POLICY, SMALL_GRADIENTS, WHOLE, WITHOUT_EFFECT, prior
from tests.test_image import UNET
from tests.test_image import tiny as image
from tests.tiny import experiment, rows, state, tiny
from tests.tiny_camera import camera_run

ROLLOUT = {"type": "rollout", "env": {"type": "toy", "n_envs": 2, "max_steps": 6}, "n_episodes": 3, "videos": 0}
LOSS = {"type": "loss", "every": {"steps": 4}, "models": ["ema", "slow", "online"]}
PLAYED = {"evaluate": [LOSS, ROLLOUT | {"every": {"steps": 6}}], "test": [ROLLOUT | {"name": "test"}]}
"""Three episodes on two ranks: one of them makes more predictions than the other."""

AVERAGES = {
    "ema": {"type": "power"},
    "slow": {"type": "constant", "decay": 0.9},
    "narrow": {"type": "power_function", "relative_width": 0.05},
}
SETTINGS = WHOLE | {"train__ema": AVERAGES}
PARTS = {"backbone.down": {"lr_scale": 0.5, "weight_decay": 0.1}}
MUON = {"train__optimizer": {"type": "muon", "parts": PARTS}}
ADAMW = {"train__optimizer": {"type": "adamw", "parts": PARTS}}
UNEQUAL_GRADIENTS = 1e-2
"""Of sums in bfloat16, which one rank takes over other samples than two."""


def vit_run(place: Path, **changes: object) -> dict:
    """A policy whose camera is read by a tiny DINOv2."""
    transformers = pytest.importorskip("transformers", reason="NOT CHECKED: the extra dp_prior[clip] is not installed")
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 8, "patch_size": 4}
    torch.manual_seed(3)
    if not (place / "dino").exists():
        transformers.Dinov2Model(transformers.Dinov2Config(**sizes)).save_pretrained(place / "dino")
    vit = {"type": "vit", "weights": str(place / "dino"), "crop": None}
    return camera_run(place, task__encoders__front=vit, **changes)


def unet2d_run(place: Path, **changes: object) -> dict:
    """A diffusion model of labelled images."""
    pytest.importorskip("diffusers", reason="NOT CHECKED: the extra dp_prior[image] is not installed")
    return image(place, task__backbone=UNET | {"attention_resolutions": [4]}, **changes)


SHORT = {"train__steps": 12, "train__save_every": {"steps": 4}, "train__ema": dict(list(AVERAGES.items())[:2])}
SHORT |= {"task__backbone": POLICY["task__backbone"] | {"down_dims": [16]}}
DEFAULT, UNET2D = "unet, muon, parts, micro-batches", "unet2d, micro-batches"
"""The kind that runs by default, and the slowest; see `FEW_STARTS`."""

KINDS = {  # configuration, most difference of losses and evaluations, most difference of weights and averages
    DEFAULT: (tiny, POLICY | SETTINGS | LIMIT | MUON | PLAYED | SHORT, EXACT, SMALL_GRADIENTS),
    "unet, adamw, parts": (tiny, POLICY | SETTINGS | ADAMW, EXACT, SMALL_GRADIENTS),
    "unet, bf16": (tiny, POLICY | SETTINGS | LIMIT | BF16, UNEQUAL_GRADIENTS, UNEQUAL_GRADIENTS),
    "dit, micro-batches": (tiny, POLICY | SETTINGS | LIMIT | {"task__backbone": DIT}, EXACT, SMALL_GRADIENTS),
    "images, micro-batches": (camera_run, SETTINGS | LIMIT, EXACT, SMALL_GRADIENTS),
    "vit, micro-batches": (vit_run, SETTINGS | LIMIT, EXACT, SMALL_GRADIENTS),
    UNET2D: (unet2d_run, SETTINGS | LIMIT, EXACT, SMALL_GRADIENTS),
    "prior, micro-batches": (prior, SETTINGS | LIMIT, EXACT, EXACT),
}
LOADS = {"policy": load_policy, "prior": load_prior, "image": load_image}
NOT_FINITE = (2, 3)
"""Steps that one rank gives a gradient which is not finite."""

STARTS = (  # step at which a start is stopped or, negative, killed; its ranks; what they divide
    *((5, 2, "model"), (-8, 2, "model"), (9, 1, "model"), (12, 2, False)),
    *((14, 4, "model"), (16, 2, "optimizer"), (None, 2, "model")),
)
FEW_STARTS = {  # killed after a save that lies behind the steps of `NOT_FINITE`, which differ by the number of ranks
    DEFAULT: ((-6, 2, "model"), (9, 1, "model"), (None, 2, "model")),
    UNET2D: ((-8, 2, "model"), (13, 1, "model"), (None, 2, "model")),
}


def part(text: str, until: int | None) -> None:
    """One rank of a start, which stops at a step or, if it is negative, is killed there."""
    step = PolicyTrainer.step

    def watched(self, batches):
        if self.progress.global_step in NOT_FINITE and self.ranks.is_main_process:
            batches[0] = replace(batches[0], x=torch.full(batches[0].x.shape, float("nan")))
        step(self, batches)
        if self.progress.global_step == until:
            self.stop.ask(REQUEST)
        if until is not None and self.progress.global_step == -until and not self.ranks.is_main_process:
            os.kill(os.getpid(), signal.SIGKILL)

    PolicyTrainer.step = watched
    try:
        experiment(json.loads(text)).run()
    finally:
        PolicyTrainer.step = step


def start(document: dict, run_ranks, until: int | None, n_ranks: int, shard: str | bool) -> None:
    """Start a run, or go on with it; no setting but `shard` changes."""
    text = json.dumps({**document, "train": {**document["train"], "shard": shard}})
    if n_ranks == 1:
        part(text, until)
        return
    source = "import json, sys; from tests.training.test_model_shards import part; part(*json.loads(sys.argv[1]))"
    if until is None or until > 0:
        run_ranks(source, n_ranks, json.dumps([text, until]))
        return
    with pytest.raises(pytest.fail.Exception, match=naming("exited")):
        run_ranks(source, n_ranks, json.dumps([text, until]))


def assert_same(run: Path, reference: Path, of_metrics: float, of_weights: float) -> None:
    """The same rows of metrics and last checkpoint, but for the rounding of sums."""
    stored, expected = state(run), state(reference)
    assert stored.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert stored[name].dtype == value.dtype and stored[name].shape == value.shape, name
        if name.startswith(("model", "training.safetensors:online.")) and not name.endswith(WITHOUT_EFFECT):
            torch.testing.assert_close(stored[name], value, rtol=0, atol=of_weights, msg=name)
    assert [row["step"] for row in rows(run)] == [row["step"] for row in rows(reference)]
    for row, other in zip(rows(run), rows(reference), strict=True):
        assert row.keys() == other.keys() and row.get("train/skipped_steps") == other.get("train/skipped_steps")
        for name, value in other.items():
            if not isinstance(value, float):  # such as the loss of a step that is not finite
                assert row[name] == value
            elif "loss" in name or not name.startswith("train/"):
                assert row[name] == pytest.approx(value, rel=of_metrics, abs=of_metrics), (name, row["step"])


@pytest.mark.promise("B2", "B3", "D6")
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind == DEFAULT else [pytest.mark.slow]) for kind in KINDS]
)
def test_a_model_in_parts_is_the_same_run_on_any_ranks(kind, run_ranks, tmp_path):
    """Starts that take turns with whole models and one rank, of which one is killed; two steps are skipped."""
    make, change, *bounds = KINDS[kind]
    document = make(tmp_path, **change)
    if "data__batch_size" not in change:
        del document["data"]["batch_size"]
    straight = {**document, "tracker": {**document["tracker"], "data_path": str(tmp_path / "straight")}}
    start(straight, run_ranks, None, 2, False)
    for until, n_ranks, shard in FEW_STARTS.get(kind, STARTS):
        start(document, run_ranks, until, n_ranks, shard)
    assert_same(tmp_path / "run", tmp_path / "straight", *bounds)
    assert rows(tmp_path / "run")[-1]["train/skipped_steps"] == len(NOT_FINITE)
    if "test" in document:
        run, straight = (json.loads((tmp_path / name / "result.json").read_text()) for name in ("run", "straight"))
        assert run["test"] == pytest.approx(straight["test"], rel=1e-4)
        policy = LOADS[document["task"].get("type", "policy")](str(tmp_path / "run"))
        assert all(parameter.isfinite().all() for parameter in policy.parameters())


def stored_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes in memory of all tensors, of which several may be views of one storage."""
    storages = (tensor.untyped_storage() for tensor in tensors)
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def of_rank(text: str) -> dict[str, list[int]]:
    """Bytes that a rank keeps after a training, and those of its plan; averages last."""
    trainers, build = [], PolicyTrainer.__init__

    def building(self, *arguments, **keywords):
        build(self, *arguments, **keywords)
        trainers.append(self)

    PolicyTrainer.__init__ = building
    run = experiment(json.loads(text))
    run.run()
    [trainer] = trainers
    plan = planned(run.parts.model, trainer.local, trainer.optimizer, len(trainer.averages), 2)["model"]
    batches = trainer.loader.from_sample(0)
    taken = trainer.replicas.take_gradients
    gradients = []

    def recording():
        taken()
        gradients.extend(parameter.grad for parameter in trainer.local.parameters() if parameter.grad is not None)

    trainer.replicas.take_gradients = recording
    trainer.step(next(batches))
    state = [tensor for tensors in trainer.optimizer.state.values() for tensor in tensors.values()]
    averages = [tensor for average in trainer.averages.values() for tensor in average.model.parameters()]
    kept = [stored_bytes(tensors) for tensors in (trainer.local.parameters(), gradients, state, averages)]
    units = [type(unit).__name__ for unit in wrap_units(run.parts.model)]
    shares = all(
        part.data_ptr() == whole.to_local().data_ptr()
        for part, whole in zip(trainer.local.parameters(), run.parts.model.parameters(), strict=True)
        if part.numel()
    )
    return {"kept": kept, "plan": list(plan), "units": len(units), "shares": shares}


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_each_rank_keeps_what_the_plan_says(optimizer, run_ranks, tmp_path):
    """Within 5 %, by the storages of the tensors that a rank holds."""
    wide = {"task__backbone": POLICY["task__backbone"] | {"down_dims": [64, 128]}, "train__steps": 2}
    document = tiny(tmp_path, **POLICY | SETTINGS | wide, train__shard="model", train__optimizer={"type": optimizer})
    source = "import json, sys; from tests.training.test_model_shards import of_rank as go"
    source += "; print(json.dumps(go(sys.argv[1])))"
    for output in run_ranks(source, 2, json.dumps(document)):
        rank = json.loads(output.splitlines()[-1])
        assert rank["kept"] == pytest.approx(rank["plan"], rel=0.05)
        assert rank["units"] == 8 and rank["shares"]


class Blocks(nn.Module):
    """A network whose blocks are gathered one at a time, but for one whose weight is used elsewhere, too."""

    shard_units = (nn.Linear, nn.Sequential)

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
        self.tied, self.other = nn.Linear(2, 2), nn.Conv1d(2, 2, 1)
        self.other.bias = self.tied.bias


def test_inner_units_come_first_and_tied_weights_stay_together():
    blocks = Blocks()
    assert list(wrap_units(nn.ModuleList([blocks]))) == [blocks.inner[0], blocks.inner]


@pytest.mark.parametrize(
    ("settings", "found", "remedy"),
    [({"precision": "fp16"}, "fp16", "bf16"), ({"compile": "max-autotune"}, "max-autotune", "default")],
)
def test_settings_that_cannot_divide_a_model_are_refused(settings, found, remedy):
    with pytest.raises(ConfigError, match=naming("train.shard", "'model'", found, remedy)):
        ModelShards(SimpleNamespace(), TrainingConfig(steps=1, shard="model", **settings))


@pytest.mark.parametrize("shape", [(), (1, 0, 16)], ids=str)
def test_a_single_number_and_a_weight_without_numbers_are_refused(shape):
    """The latter are the register tokens of a DINOv3 without any, at which torch's backward pass ends."""
    model = nn.Module()
    model.scale = nn.Parameter(torch.ones(shape))
    with pytest.raises(ConfigError, match=naming("train.shard", "scale", str(shape), "'optimizer'")):
        ModelShards.distributed(SimpleNamespace(), model, model)


def test_an_optimizer_that_does_not_say_that_it_updates_parts_is_refused():
    """A subclass may look at whole matrices, so it inherits no promise."""

    class Rows(AdamW):
        def step_group(self, group, parameters):
            pass

    optimizer = Rows(parameter_groups(nn.Linear(2, 2), 0.0), betas=(0.9, 0.9), eps=1e-8)
    with pytest.raises(ConfigError, match=naming("train.shard", "`updates_parts = True`", "'optimizer'")):
        ModelShards.divide(SimpleNamespace(), optimizer)
