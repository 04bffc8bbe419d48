"""Training, measuring and acting on a device of its own, without having one.

Tensors of torch's `meta` device have shapes and no values. To them the law of every accelerator applies: all tensors of
an operation lie on one device, single numbers from the host excepted. And nobody can read them: where the loop would
wait for an accelerator, to read from it or to send it numbers, it fails here.
"""

import contextlib
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dp_prior.data.samples.loader import Loader
from dp_prior.diffusion.draw import Draw
from dp_prior.inference.agent import Agent
from dp_prior.job.ranks import Ranks
from dp_prior.run.config import TrainConfig
from dp_prior.tasks.distilled import DistilledPolicy
from dp_prior.tensors import metrics
from dp_prior.tensors.randomness import Randomness
from dp_prior.training.trainer import PolicyTrainer
from tests.tasks.test_distilled import distilled
from tests.test_image import tiny as tiny_image
from tests.test_prior import tiny as tiny_prior
from tests.tiny import tiny
from tests.tiny_camera import ENCODER, camera_run

ELSEWHERE = torch.device("meta")
WIDE = (torch.float64, torch.complex128)
FEW = {"task__diffusion__schedule__steps": 4}  # a bound visits each timestep, and operations on this device are slow
aten = torch.ops.aten


class OneDevice(TorchDispatchMode):
    """Refuses operations over two devices and copies between them, and float64 there, which Apple's MPS lacks.
    If it may wait, copies pass; what is read is 0."""

    def __init__(self, may_wait: bool = False):
        super().__init__()
        self.may_wait = may_wait

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        devices = {tensor.device.type for tensor in tensors if tensor.dim()}
        if function in (aten._to_copy.default, aten.copy_.default) and "device" in kwargs:
            devices |= {torch.device(kwargs["device"]).type} if devices else set()
        if len(devices) > 1 and not (self.may_wait and function in (aten._to_copy.default, aten.copy_.default)):
            raise AssertionError(f"{function} takes tensors on {' and '.join(sorted(devices))}")
        if self.may_wait and tensors and tensors[0].device == ELSEWHERE:
            if function is aten._local_scalar_dense.default:
                return torch.zeros((), dtype=tensors[0].dtype).item()
            if function is aten._to_copy.default and kwargs.get("device", ELSEWHERE) != ELSEWHERE:
                return torch.zeros(tensors[0].shape, dtype=kwargs.get("dtype") or tensors[0].dtype)
        result = function(*args, **kwargs)
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.device == ELSEWHERE and leaf.dtype in WIDE:
                raise AssertionError(f"{function} makes {leaf.dtype} on the device")
        return result


class NothingSent(TorchFunctionMode):
    """Refuses tensors of the host's numbers made there."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function in (torch.tensor, torch.as_tensor) and torch.device(kwargs.get("device") or "cpu") == ELSEWHERE:
            raise AssertionError(f"{args[0]} is sent to the device")
        return function(*args, **kwargs)


class Accelerator:
    """One rank on that device."""

    device, scaler, ddp_handler = ELSEWHERE, None, None
    process_index, num_processes, is_main_process = 0, 1, True

    def prepare_model(self, model, device_placement):
        return model

    def no_sync(self, model):
        return contextlib.nullcontext()

    def backward(self, loss):
        loss.backward()

    def gather(self, tensor):
        return tensor


@pytest.fixture(autouse=True)
def _no_autocast_there(monkeypatch):
    """torch knows autocast for real devices only."""
    import torch._dynamo  # noqa: F401  (it keeps the functions that it finds when it is first imported)

    is_enabled, autocast = torch.is_autocast_enabled, torch.autocast
    monkeypatch.setattr(metrics, "WITHOUT_FLOAT64", {"meta"})
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device="cpu": device != "meta" and is_enabled(device))
    monkeypatch.setattr(
        torch,
        "autocast",
        lambda device, **how: contextlib.nullcontext() if device == "meta" else autocast(device, **how),
    )


def few(place, **changes) -> dict:
    """A tiny run of few timesteps and one average."""
    return tiny(place, **{**FEW, "train__ema": {"ema": {"type": "power"}}, **changes})


def train_elsewhere(config: dict, steps: int = 2) -> tuple[PolicyTrainer, TrainConfig, SimpleNamespace]:
    """A trainer after some steps of two micro-batches, its record, and its data, all on that device."""
    record = TrainConfig.from_json(json.dumps(config))
    data = record.task.open(record.data)
    model = record.task.create(data.spec)
    model.fit(data.statistics(), data.train)
    if isinstance(model, DistilledPolicy):  # compared with its teacher at the start, where numbers can be read
        model.teacher.policy(model, torch.device("cpu")).to(ELSEWHERE)
    parts = SimpleNamespace(**{name: _moved(getattr(data, name)) for name in ("train", "val", "test")})
    parts.spec, parts.recorded_at = data.spec, data.recorded_at
    loader = _loader(parts.train)
    columns = getattr(parts.train, "columns", {}).values()
    stored = [*model.parameters(), *model.buffers(), *(getattr(column, "values", None) for column in columns)]
    assert not [tensor for tensor in stored if getattr(tensor, "dtype", None) in WIDE], "Apple's MPS has no float64"
    nowhere = SimpleNamespace(log=None, log_images=lambda images, progress: None, log_work=lambda done: None)
    trainer = PolicyTrainer(
        model,
        loader,
        record.train,
        ranks=Ranks(Accelerator()),
        tracker=nowhere,
        writer=nowhere,
        evaluators=[],
        seed=0,
        documents={},
    )
    for batches, _ in zip(loader.from_sample(0), range(steps), strict=False):
        with OneDevice(), NothingSent():
            trainer.step(batches)
    return trainer, record, parts


def _moved(part):
    return part.to(ELSEWHERE) if hasattr(part, "to") else part


def _loader(part):
    return Loader(part, batch_size=4, accumulation=2, seed=0, rank=0, world_size=1, device=ELSEWHERE)


UNET = {"type": "unet1d", "down_dims": [16, 32], "step_embed_dim": 16}
KERNELS = {
    "plain": {},
    "v, min-SNR, self-conditioning": {
        "objective": {"type": "v"},
        "weighting": {"type": "min_snr"},
        "self_condition": 0.5,
    },
    "learned variance": {"variance": {"type": "learned_range"}},
    "the bound itself": {"variance": {"type": "learned_range"}, "criterion": {"type": "vlb"}},
    "importance": {"timesteps": {"type": "loss_second_moment"}},
    "logit-normal": {"timesteps": {"type": "logit_normal"}},
    "flow": {"objective": {"type": "flow"}, "schedule": {"type": "flow", "steps": 4}},
    "weights": {"dim_weights": [1.0, 2.0], "horizon_weights": [1.0, 1.0, 1.0, 0.5]},
    "dynamic clip": {"clip": {"type": "dynamic"}},
    "clip to the data": {"clip": {"type": "bounds"}},
}
SAMPLERS = {
    "ddpm": {"type": "ddpm", "steps": 3},
    "ddim, stochastic": {"type": "ddim", "steps": 3, "eta": 1.0},
    "dpm_solver": {"type": "dpm_solver", "steps": 3},
    "dpm_solver, stochastic": {"type": "dpm_solver", "steps": 3, "stochastic": True},
    "unipc": {"type": "unipc", "steps": 3, "order": 3},
    "heun": {"type": "heun", "steps": 3},
}
TASKS = {
    "relative actions": {"task__relative_to": "agent_pos"},
    "inpainting": {"task__type": "inpainting_policy"},
    "guidance": {
        "task__cond_dropout": {"agent_pos": 0.1, "goal": 0.1},
        "task__diffusion__guidance": {"scale": 2.0, "rescale": 0.5},
    },
    "unet1d": {"task__backbone": UNET},
    "transformer": {"task__backbone": {"type": "transformer", "embed_dim": 16, "n_layers": 1, "n_heads": 2}},
    "dit": {"task__backbone": {"type": "dit", "embed_dim": 16, "n_layers": 1, "n_heads": 2}},
    "gaussian": {"task__normalizer": {"action": {"type": "gaussian"}}},
    "prefix": {"task__prefix": {"max_delay": 2}},
    "two steps, from zeros": {
        "task__diffusion": {
            "schedule": {"type": "flow", "steps": 2, "scale": 9},
            "objective": {"type": "x0"},
            "weighting": {"type": "uniform"},
            "timesteps": {"type": "uniform", "stratified": True},
            "start": "zeros",
        },
    },
    "four draws": {"task__diffusion__draws": 4},
    "power function": {"train__ema": {"ema": {"type": "power_function"}}},
    "muon": {"train__optimizer": {"type": "muon"}},
}
CAMERAS = {
    "resnet": ENCODER,
    "resnet, convolution, mean": {**ENCODER, "stem": "conv", "pool": "mean", "jitter": None, "crop": None},
}
IMAGES = {
    "dit2d": {"task__diffusion__guidance": {"scale": 2.0}},
    "unet2d, learned variance": {
        "task__backbone": {
            "type": "unet2d", "channels": 8, "channel_mult": [1, 2], "attention_resolutions": [4], "head_dim": 8,
            "n_groups": 4,
        },
        "task__diffusion__variance": {"type": "learned_range"},
    },
}  # fmt: skip


def test_the_device_is_as_strict_as_a_real_one():
    here, there = torch.ones(2, 2), torch.ones(2, 2, device=ELSEWHERE)
    with OneDevice():
        for mixed in (
            lambda: here + there,
            lambda: there @ here,
            lambda: there[torch.tensor([0])],
            lambda: there.index_select(0, torch.tensor([0])),
            lambda: torch.searchsorted(here[0], there[0]),
            lambda: bool(there.sum()),
            lambda: there.sum().item(),
            lambda: there.cpu(),
        ):
            with pytest.raises((AssertionError, RuntimeError, NotImplementedError)):
                mixed()
        assert (there * torch.tensor(2.0)).device == ELSEWHERE, "a number of the host may meet them"


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_step_never_waits_for_the_device_nor_mixes_two(tmp_path, kernel):
    changes = {f"task__diffusion__{name}": value for name, value in KERNELS[kernel].items()}
    trainer, _, parts = train_elsewhere(few(tmp_path, **changes))
    _predicts_and_is_measured(trainer, parts)


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_every_kind_of_policy_trains_and_predicts_there(tmp_path, task):
    trainer, _, parts = train_elsewhere(few(tmp_path, **TASKS[task]))
    _predicts_and_is_measured(trainer, parts)


@pytest.mark.slow
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_sampler_draws_there(tmp_path, sampler):
    trainer, _, parts = train_elsewhere(few(tmp_path, task__sampler=SAMPLERS[sampler]), steps=1)
    _predicts_and_is_measured(trainer, parts)


@pytest.mark.slow
@pytest.mark.parametrize("encoder", CAMERAS)
def test_a_policy_with_a_camera_trains_and_predicts_there(tmp_path, encoder):
    trainer, _, parts = train_elsewhere(camera_run(tmp_path, task__encoders={"front": CAMERAS[encoder]}, **FEW))
    _predicts_and_is_measured(trainer, parts)


@pytest.mark.slow
def test_a_distilled_policy_trains_there(tmp_path, trained_policy):
    trainer, _, parts = train_elsewhere(tiny(tmp_path, **distilled(trained_policy)))
    _predicts_and_is_measured(trainer, parts)


@pytest.mark.slow
@pytest.mark.parametrize("model", IMAGES)
def test_a_model_of_images_trains_and_draws_there(tmp_path, model):
    trainer, _, parts = train_elsewhere(tiny_image(tmp_path, **FEW, **IMAGES[model]))
    _predicts_and_is_measured(trainer, parts)


@pytest.mark.slow
def test_a_prior_trains_and_draws_there(tmp_path):
    trainer, _, parts = train_elsewhere(tiny_prior(tmp_path, **FEW))
    batch = parts.val.fetch(torch.arange(3)).to(ELSEWHERE)
    with OneDevice(may_wait=True):  # to refuse a text that is not finite
        drawn = trainer.models["ema"].predict(
            batch.cond["text"], candidates=2, random=Randomness.from_counts(0, "test", batch.ids)
        )
    assert drawn.device == ELSEWHERE


@pytest.mark.slow
def test_measuring_and_reading_metrics_wait_but_never_mix(tmp_path):
    evaluators = [
        {"type": "loss", "models": ["ema", "online"]},
        {"type": "action_error", "eval_timesteps": [2]},
        {"type": "likelihood"},
    ]
    trainer, record, parts = train_elsewhere(few(tmp_path, evaluate=evaluators))
    with OneDevice(may_wait=True):
        for evaluator in record.evaluate:
            evaluator.create(parts).run(trainer.models, trainer.ranks, trainer.progress)
        trainer.training_metrics()


def test_an_agent_acts_there(tmp_path):
    trainer, _, _ = train_elsewhere(few(tmp_path), steps=1)
    with OneDevice(may_wait=True):  # the range in training is read once
        agent = Agent(trainer.models["ema"], warm_start=True)
    agent.reset()
    obs = {"agent_pos": np.zeros(2), "goal": np.zeros(2)}
    for _ in range(5):
        with OneDevice(may_wait=True):
            action = agent.act(obs)
        assert action.shape == (2,)


def _predicts_and_is_measured(trainer: PolicyTrainer, parts: SimpleNamespace) -> None:
    """Draws, warm-started too, and its bound, by the average and by the trained weights."""
    batch = parts.val.fetch(torch.arange(3, device=parts.val.device))
    random = Randomness.from_counts(0, "test", batch.ids)
    everywhere = torch.ones_like(batch.x, dtype=torch.bool)
    for model in trainer.models.values():
        model.eval()
        with OneDevice(), NothingSent(), torch.no_grad():
            model(batch, random)
            drawn = model.sample(batch.cond, random)
            model.sample(batch.cond, random, Draw(previous=batch.x, known=(batch.x, everywhere)))
            model.bits_per_dim(batch, random)
        assert drawn.device == ELSEWHERE and drawn.shape == batch.x.shape
