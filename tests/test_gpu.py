"""What is promised of a GPU, on a GPU; `tests/test_device.py` shows what can be shown without one.

DP_PRIOR_TEST_DEVICE=cpu rehearses the tests themselves where there is none.
"""

import contextlib
import copy
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from dp_prior.diffusion.draw import Draw
from dp_prior.diffusion.sampler import DDIM
from dp_prior.envs.toy import demonstrations
from dp_prior.inference import plans
from dp_prior.inference.agent import Agent
from dp_prior.job.ranks import Ranks
from dp_prior.networks.backbones.unet1d import UNet1DConfig
from dp_prior.run import assembly, compile_choice
from dp_prior.run.assembly import Assembly
from dp_prior.run.config import TrainConfig
from dp_prior.tensors import randomness
from dp_prior.tensors.compilation import compiled
from dp_prior.tensors.crop import Crop
from dp_prior.tensors.mixing_kernel import mixing_kernel
from dp_prior.tensors.randomness import Randomness, derive_seed
from dp_prior.training.trainer import PolicyTrainer
from tests.layouts import Layouts, channels_first
from tests.test_device import Accelerator
from tests.tiny import assert_equal, state, tiny, write

DEVICE = torch.device(os.environ.get("DP_PRIOR_TEST_DEVICE", "cuda"))
IS_GPU = DEVICE.type == "cuda"
ROOT = Path(__file__).parent.parent

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(IS_GPU and not torch.cuda.is_available(), reason="NOT CHECKED: there is no GPU"),
]
needs_gpu = pytest.mark.skipif(not IS_GPU, reason="NOT CHECKED: needs a GPU, this is a rehearsal")

KINDS = ("states", "images")


class OneRank(Accelerator):
    """One rank on a device, without autocast."""

    def __init__(self, device):
        self.device = device


def config(place, kind, **changes):
    """The tiny run, of states or with camera frames."""
    place.mkdir(exist_ok=True)
    if kind == "states":
        return tiny(place, **changes)
    arrays = demonstrations(4, seed=3)
    frames = np.random.default_rng(0).integers(0, 256, (len(arrays["action"]), 24, 32, 3), dtype=np.uint8)
    np.savez(place / "toy.npz", **arrays, camera=frames)
    camera = {"type": "resnet", "width": 16, "blocks": [1, 1], "keypoints": 4, "output_dim": 8, "crop": [20, 28]}
    images = {"data__images": {"camera": {"key": "camera", "size": [24, 32]}}, "task__encoders": {"camera": camera}}
    return tiny(place, **images, **changes)


def parts_on(device, place, kind, **changes):
    record = TrainConfig.from_json(json.dumps(config(place, kind, **changes)))
    parts = Assembly(record, Ranks(OneRank(device)), report=lambda line: None, directory=place / "assembly")
    return parts, parts.trainer(None, None)


def losses(trainer: PolicyTrainer, parts: Assembly, steps: int) -> list[float]:
    found = []
    for batches, _ in zip(parts.loader.from_sample(trainer.progress.samples_seen), range(steps), strict=False):
        trainer.step(batches)
        found.append(trainer.training_metrics()["train/loss"])
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_first_loss_and_gradient_are_those_of_the_cpu(tmp_path, kind):
    here, trainer = parts_on(torch.device("cpu"), tmp_path / "here", kind)
    there, _ = parts_on(DEVICE, tmp_path / "there", kind)
    found = {}
    for name, parts in (("here", here), ("there", there)):
        model = copy.deepcopy(trainer.online).to(parts.ranks.device).train()
        (batch,) = next(parts.loader.from_sample(0))
        assert batch.x.device.type == parts.ranks.device.type
        loss = model(batch, Randomness.from_counts(0, "training", batch.positions), False)
        loss.total.backward()
        found[name] = batch.to("cpu"), loss, {key: p.grad.cpu() for key, p in model.named_parameters()}
    (expected_batch, expected, expected_gradients), (batch, loss, gradients) = found["here"], found["there"]
    assert all(torch.equal(batch.cond[key], value) for key, value in expected_batch.cond.items())
    assert torch.equal(loss.t.cpu(), expected.t)
    assert loss.total.item() == pytest.approx(expected.total.item(), rel=1e-4)
    norm = torch.nn.utils.get_total_norm(list(expected_gradients.values()))
    assert max((gradients[key] - value).norm() / norm for key, value in expected_gradients.items()) < 1e-2


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_and_the_next_batch_never_wait_for_the_device(tmp_path, kind):
    parts, trainer = parts_on(DEVICE, tmp_path, kind, task__diffusion__draws=2)
    batches = parts.loader.from_sample(0)
    for _ in range(3):
        trainer.step(next(batches))
    try:
        if IS_GPU:
            torch.cuda.set_sync_debug_mode("error")
        for _ in range(3):
            trainer.step(next(batches))
    finally:
        if IS_GPU:
            torch.cuda.set_sync_debug_mode("default")


def test_random_numbers_are_those_of_the_cpu():
    counts = torch.arange(1000)
    here, there = (Randomness.from_counts(3, "noise", counts.to(device)) for device in ("cpu", DEVICE))
    assert torch.equal(there.bits(7).cpu(), here.bits(7))
    assert torch.equal(there.uniform(7).cpu(), here.uniform(7))
    assert torch.equal(there.integers(13, 7).cpu(), here.integers(13, 7))
    torch.testing.assert_close(there.normal(7).cpu(), here.normal(7), rtol=1e-5, atol=1e-6)


@needs_gpu
def test_a_draw_is_one_kernel_with_the_bits_of_the_formula():
    """Otherwise a line in the log says why, and torch's operators draw."""
    counts, cuts = torch.arange(9, device=DEVICE), (randomness.ALL, (32, 32), (1, 62))
    for depth in range(5):
        path = tuple(derive_seed(depth, index) for index in range(depth))
        for counters in (None, randomness._cached_counters(7, counts.device)):
            kernel = mixing_kernel(depth, counters is not None, counts.device, randomness._cuts)
            assert kernel is not None, "the log says why"
            expected = randomness._cuts(counts, path, counters, cuts)
            assert all(
                torch.equal(kernel(counts, path, counters, cut), bits) for cut, bits in zip(cuts, expected, strict=True)
            )


def test_the_crop_is_that_of_the_cpu():
    frames = torch.randint(0, 256, (9, 2, 96, 96, 3), dtype=torch.uint8)
    crop = Crop.of((96, 96), (84, 84))
    here, there = (
        crop(frames.to(device), Randomness.from_counts(3, "crop", torch.arange(9).to(device)))
        for device in (torch.device("cpu"), DEVICE)
    )
    assert torch.equal(there.cpu(), here)


def test_frames_reach_the_device_as_they_lie_in_the_cache(tmp_path):
    parts, _ = parts_on(DEVICE, tmp_path, "images")
    frames = np.load(tmp_path / "toy.npz")["camera"]
    (batch,) = next(parts.loader.from_sample(0))
    camera = batch.cond["camera"]
    assert camera.device.type == DEVICE.type and camera.dtype is torch.uint8
    stored = {frame.tobytes() for frame in frames}
    assert all(frame.cpu().numpy().tobytes() in stored for frame in camera.flatten(0, 1))


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune"])
@pytest.mark.parametrize("kind", KINDS)
def test_compiled_steps_have_the_losses_of_plain_ones(tmp_path, kind, mode):
    if not IS_GPU and (mode != "default" or kind == "images"):
        pytest.skip("NOT CHECKED: needs a GPU, this is a rehearsal")
    torch.compiler.reset()
    plain = losses(*reversed(parts_on(DEVICE, tmp_path / "plain", kind)), steps=6)
    found = losses(*reversed(parts_on(DEVICE, tmp_path / "fast", kind, train__compile=mode)), steps=6)
    assert found == pytest.approx(plain, rel=1e-2)


@pytest.mark.parametrize("kind", KINDS)
def test_the_default_of_a_long_training_has_the_losses_of_plain_steps(tmp_path, kind, monkeypatch):
    torch.compiler.reset()
    monkeypatch.setattr(compile_choice, "WORTH_S", 0.0)
    if not IS_GPU:
        compile_function = torch.compile
        monkeypatch.setattr(assembly, "COMPILED", {DEVICE.type})
        traced = lambda function, options, dynamic: compile_function(function, backend="aot_eager")  # noqa: E731
        monkeypatch.setattr(torch, "compile", traced)
    plain = losses(*reversed(parts_on(DEVICE, tmp_path / "plain", kind, train__compile="off")), steps=6)
    parts, trainer = parts_on(DEVICE, tmp_path / "default", kind)
    parts.choose_compilation(trainer)
    print(trainer.compilation)
    assert losses(trainer, parts, steps=6) == pytest.approx(plain, rel=1e-2)
    assert trainer.compilation.startswith(("reduce-overhead", "off, a compiled micro-batch takes")), trainer.compilation


def test_no_library_call_of_a_step_converts_a_memory_order():
    torch.manual_seed(0)
    with contextlib.nullcontext() if IS_GPU else channels_first("cpu"):
        network = UNet1DConfig(down_dims=(32, 64, 128), step_embed_dim=16).create((16, 2), (1, 32)).to(DEVICE)
        x, cond = torch.randn(4, 16, 2, device=DEVICE), torch.randn(4, 1, 32, device=DEVICE)
        with Layouts() as layouts:
            network(x, torch.arange(4, device=DEVICE), cond).square().sum().backward()
    assert len(layouts.calls) > 40 and len(layouts.conversions) <= 1, layouts.conversions


@pytest.mark.parametrize("widths", [(32, 64), (128, 256, 512)])
def test_a_compiled_unet_in_bfloat16_has_the_gradients_of_the_plain_one(widths):
    """At a recipe's widths and batch too: torch 2.11 compiles narrow layers to other kernels, which hid a fault."""
    torch.manual_seed(0)
    batch = 256 if IS_GPU else 4
    plain = UNet1DConfig(down_dims=widths, step_embed_dim=128).create((16, 2), (1, 32)).to(DEVICE)
    x, cond = torch.randn(batch, 16, 2, device=DEVICE), torch.randn(batch, 1, 32, device=DEVICE)
    t = torch.arange(batch, device=DEVICE) % 100

    def gradient(network, is_bf16: bool):
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=is_bf16):
            y = network(x, t, cond)
        found = torch.autograd.grad((y.float() - x).square().mean(), list(plain.parameters()))
        return torch.cat([each.flatten() for each in found])

    exact = gradient(plain, False)
    rounded, fast = gradient(plain, True), gradient(compiled(plain, "default", "train.compile"), True)
    assert (fast - exact).norm() < 2 * (rounded - exact).norm() < 0.1 * exact.norm()


@pytest.mark.parametrize("compile_mode", ["off", pytest.param("reduce-overhead", marks=needs_gpu)])
def test_samples_are_those_of_the_cpu(tmp_path, compile_mode):
    parts, trainer = parts_on(DEVICE, tmp_path, "states")
    batch = parts.data.val.fetch(torch.arange(5, device=parts.data.val.device)).to("cpu")
    drawn = {}
    for device in (torch.device("cpu"), DEVICE):
        model = copy.deepcopy(trainer.online).to(device).eval()
        mode = "off" if device.type == "cpu" else compile_mode
        given = batch.to(device)
        for _ in range(3):  # a graph is recorded at the second call and replayed at the third
            random = Randomness.from_counts(0, "test", given.ids)
            found = model.sample(given.cond, random, Draw(DDIM(steps=4, compile=mode)))
        drawn[device.type] = found.cpu()
    torch.testing.assert_close(drawn[DEVICE.type], drawn["cpu"], rtol=1e-3, atol=1e-3)


def test_an_agent_acts_by_default_as_in_eager_mode_in_any_thread(tmp_path, monkeypatch):
    torch.compiler.reset()
    if not IS_GPU:
        compile_function = torch.compile
        monkeypatch.setattr(plans, "COMPILED", {DEVICE.type})
        traced = lambda function, options, dynamic: compile_function(function, backend="aot_eager")  # noqa: E731
        monkeypatch.setattr(torch, "compile", traced)
    parts, trainer = parts_on(DEVICE, tmp_path, "states")
    batch = parts.data.val.fetch(torch.arange(3, device=parts.data.val.device)).to("cpu")
    policy = copy.deepcopy(trainer.online).eval().requires_grad_(False)
    steps = [{key: value[row, -1].numpy() for key, value in batch.cond.items()} for row in range(3)]

    def acted(agent):
        agent.reset(0)
        return np.stack([agent.act(step) for step in steps])

    plain = acted(Agent(policy, sampler=DDIM(steps=4, compile="off")))
    agent = Agent(policy, sampler=DDIM(steps=4))
    for thread in (contextlib.nullcontext(), ThreadPoolExecutor(1)):
        with thread as pool:
            actions = acted(agent) if pool is None else pool.submit(acted, agent).result()
        np.testing.assert_allclose(actions, plain, rtol=1e-4, atol=1e-4)
    print(policy.region.reason)
    assert not policy.region.reason or "it takes" in policy.region.reason


def start(config_file: Path, before: str = "") -> subprocess.CompletedProcess:
    """`train_policy.py --config_file config_file` in a process of its own, which does `before` first."""
    program = "\n".join(
        ["import sys; from tests.tiny import die, train", before, "sys.exit(train(sys.argv[1]).exit_code)"]
    )
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": path, "ACCELERATE_USE_CPU": str(not IS_GPU).lower()}
    return subprocess.run(
        [sys.executable, "-c", program, str(config_file)], env=environment, capture_output=True, text=True
    )


def test_a_killed_run_resumes_to_the_same_bits(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for place in (whole, killed):
        place.mkdir()
        write(place)
    assert start(whole / "config.json").returncode == 0
    assert start(killed / "config.json", "die('step', 13)").returncode == -signal.SIGKILL
    resumed = start(killed / "config.json")
    assert resumed.returncode == 0, resumed.stderr
    assert_equal(state(killed / "run"), state(whole / "run"))


@pytest.mark.parametrize("precision", ["bf16", pytest.param("fp16", marks=needs_gpu)])
def test_reduced_precision_trains_and_saves_finite_weights(tmp_path, precision):
    done = start(write(tmp_path, train__precision=precision))
    assert done.returncode == 0, done.stderr
    tensors = {name: value for name, value in state(tmp_path / "run").items() if isinstance(value, torch.Tensor)}
    assert all(
        value.isfinite().all() for name, value in tensors.items() if "model" in name and value.is_floating_point()
    )
