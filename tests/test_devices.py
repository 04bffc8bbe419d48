"""On an accelerator a step and a sample mix no devices, read nothing back and send nothing there. No GPU is needed.

Fake tensors have a shape and a device but no values, so an operation on two devices fails, and so does the host that
looks at a value. Their device here is torch's `lazy`, which exists in every build.
"""

import json
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from dp_prior.batch import Batch, Spec
from dp_prior.metrics import Means, by_quartile
from dp_prior.randomness import Randomness, _counters
from dp_prior.tasks.inpainting import InpaintingPolicyConfig
from dp_prior.tasks.policy import PolicyConfig
from dp_prior.tasks.prior import PriorConfig
from dp_prior.training.ema import _lerp
from dp_prior.training.guard import Guard
from dp_prior.training.optimizer import AdamWConfig, update

DEVICE = torch.device("lazy:0")
SHAPES = {"a": (2, 5), "b": (2, 2)}
POLICY = {
    "horizon": 8,
    "n_action_steps": 4,
    "backbone": {"type": "mlp", "hidden_dim": 16, "n_blocks": 1, "step_embed_dim": 8, "dropout": 0.1},
    "sampler": {"type": "ddim", "steps": 4},
}
PRIOR = {"backbone": {"embed_dim": 16, "n_layers": 1, "n_heads": 2}, "sampler": {"type": "ddim", "steps": 4}}


def policy(diffusion, **changes):
    return PolicyConfig, {**POLICY, **changes, "diffusion": {"schedule": {"type": "linear", "steps": 100}, **diffusion}}


CASES = {
    "unet1d": policy({}, backbone={"type": "unet1d", "down_dims": [8, 16], "n_groups": 4, "step_embed_dim": 8}),
    "dit": policy({}, backbone={"type": "dit", "embed_dim": 16, "n_layers": 1}, sampler={"type": "heun", "steps": 4}),
    "transformer": policy(
        {}, backbone={"type": "transformer", "embed_dim": 16, "n_layers": 1}, sampler={"type": "euler", "steps": 4}
    ),
    "learned variance, timesteps that learn": policy(
        {"variance": {"type": "learned_range"}, "timesteps": {"type": "loss_second_moment"}},
        sampler={"type": "ddpm", "steps": 4},
    ),
    "weights of elements": policy({"dim_weights": [1.0, 2.0], "horizon_weights": [1.0] * 8}),
    "self-conditioning and guidance": policy(
        {"self_condition": 0.5, "guidance": {"scale": 2.0, "rescale": 0.5}, "clip": {"type": "dynamic"}},
        cond_dropout={"a": 0.1, "b": 0.1},
    ),
    "bounds, stratified, min-SNR": policy(
        {
            "objective": {"type": "v"},
            "weighting": {"type": "min_snr"},
            "timesteps": {"type": "logit_normal", "stratified": True},
            "clip": {"type": "bounds"},
        },
        sampler={"type": "unipc", "steps": 5, "order": 3},
    ),
    "encoders, relative actions": policy(
        {"criterion": {"type": "huber"}},
        encoders={"a": {"type": "planar", "points": [[0.0, 1.0]]}, "b": {"type": "state", "hidden_dims": [8]}},
        relative_to="b",
        sampler={"type": "dpm_solver", "steps": 4, "stochastic": True},
    ),
    "inpainting": (InpaintingPolicyConfig, {**POLICY, "type": "inpainting_policy"}),
    "prior": (
        PriorConfig,
        {
            **PRIOR,
            "image_dropout": 0.1,
            "clamp_training": True,
            "clamp_start": True,
            "diffusion": {"self_condition": 1},
        },
    ),
}


class Sent(TorchDispatchMode):
    """Notes the operations that copy a tensor between devices."""

    def __init__(self):
        super().__init__()
        self.copies = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        out = operation(*args, **(kwargs or {}))
        if "copy" in str(operation) and isinstance(out, Tensor):
            tensors = [one for one in args if isinstance(one, Tensor)]
            self.copies += [(str(operation), tuple(out.shape)) for one in tensors if one.device != out.device]
        return out


@pytest.fixture
def fake(monkeypatch) -> Iterator[FakeTensorMode]:
    """Fake tensors, which autocast has never heard of, and which caches must not outlive."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with mode, pytest.raises(RuntimeError):
            torch.zeros(2, device=DEVICE) + torch.zeros(2)
    except BaseException as error:
        pytest.skip(f"this torch has no fake tensors of device {DEVICE}: {error}")
    is_enabled = torch.is_autocast_enabled
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: kind != DEVICE.type and is_enabled(kind))
    monkeypatch.setattr("dp_prior.randomness._counters", _counters.__wrapped__)
    before = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    yield mode
    torch.__future__.set_overwrite_module_params_on_conversion(before)


def moved(model: nn.Module, mode: FakeTensorMode) -> nn.Module:
    return model._apply(lambda tensor: mode.from_tensor(tensor).to(DEVICE))


@pytest.mark.parametrize("name", CASES)
def test_step_and_sample_stay_on_their_device(name, fake):
    kind, record = CASES[name]
    record = kind.from_json(json.dumps(record))
    shapes = {key: (8, *shape[1:]) for key, shape in SHAPES.items()} if kind is InpaintingPolicyConfig else SHAPES
    spec = Spec(x_shape=(8, 2), cond_shapes=shapes)
    if kind is PriorConfig:
        spec = Spec(x_shape=(6,), cond_shapes={"text": (6,), "text_encodings": (3, 4)})
    model = record.create(spec)
    model.normalizer.has_statistics = True
    with fake:
        moved(model, fake)
        optimizer, means, guard = AdamWConfig().create(model), Means(), Guard(DEVICE)
        x = torch.randn(3, *spec.x_shape, device=DEVICE)
        cond = {key: torch.randn(3, *shape, device=DEVICE) for key, shape in spec.cond_shapes.items()}
        mask = torch.ones(x.shape[:-1], dtype=torch.bool, device=DEVICE)
        ids = torch.arange(3, device=DEVICE)
        batch = Batch(x, cond, mask, ids, ids, torch.ones((), device=DEVICE))
        with Sent() as sent:
            random = Randomness.from_counts(0, "training", batch.positions)
            loss = model.train()(batch, random, model.process.self_conditions(0, 0))
            loss.total.backward()
            norm, finite = update(optimizer, 1.0)
            weights = [parameter.detach() for parameter in model.parameters()]
            _lerp([torch.zeros_like(weight) for weight in weights], weights, 0.1 * finite)
            per_sample = loss.per_sample.detach()
            means.add_batch("loss", per_sample, loss.valid)
            means.add("loss_q", *by_quartile(per_sample, loss.t, model.process.steps, loss.valid))
            means.add("norm", torch.where(finite, norm, 0.0), finite * 1.0)
            guard.count(finite, 1, 0)
            model.process.observe(loss.t, per_sample, loss.valid)
            seen = {key: value[:, :2] for key, value in cond.items()} if kind is InpaintingPolicyConfig else cond
            drawn = model.eval().sample(seen, random)
    assert drawn.device == DEVICE and drawn.shape == x.shape
    assert sent.copies == []
