"""Draws a whole chunk of a small UNet by one run of onnxruntime, where that is faster than evaluation by evaluation.

The graph (`unet_graph`) is made from the weights when a policy is loaded, and takes the steps of any linear sampler as
inputs. With guidance, known values or another clip than a range, a chunk is drawn evaluation by evaluation.
"""

from __future__ import annotations

import functools
import logging
import math
import weakref
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dp_prior.diffusion.draw import Draw
from dp_prior.diffusion.guidance import BoundsClip, FixedClip
from dp_prior.diffusion.process import DiffusionProcess
from dp_prior.diffusion.sampler import DDIM, DDPM, DPMSolver, Euler, Heun, SamplerConfig, UniPC, step_noise
from dp_prior.networks.backbones.unet1d import UNet1D
from dp_prior.tasks.model import DiffusionModel
from dp_prior.tasks.policy import DiffusionPolicy
from dp_prior.tensors.randomness import Randomness
from dp_prior_robot.export.sessions import Graph, disagreement, median_seconds
from dp_prior_robot.export.steps import sampling_steps
from dp_prior_robot.export.unet_graph import chunk_graph, step_modulation

log = logging.getLogger(__name__)

MOST_WEIGHTS = 8_000_000
"""Larger networks take milliseconds an evaluation, beside which the way from one to the next is short; the graph has a
copy of the weights."""

SAMPLERS = (DDIM, DDPM, DPMSolver, Euler, Heun, UniPC)
"""Their steps are linear, see `sampling_steps`; those of another package need not be."""

COMPILED_NEVER = ("auto", "off")
"""Values of `sampler.compile` that compile nothing on a CPU."""

MOST_STEPS = 128
"""Most steps of a sampler: to compare and time more would delay the robot, and the coefficients grow with their
square."""

TURNS = 5
"""Chunks that a measurement draws each way."""


class _Steps(NamedTuple):
    """The steps of a sampler as inputs of the graph."""

    tables: dict[str, np.ndarray]
    """See `chunk_graph`."""

    draws: int
    """Number of draws of `step_noise`."""

    begin: int
    """The first timestep."""


Measure = Callable[[], tuple[float, float]]
"""Returns the seconds of a chunk evaluation by evaluation, and by the graph."""


def is_supported(policy: DiffusionPolicy) -> bool:
    """Whether a policy's chunks can be drawn by the graph, with the sampler and the draw left open."""
    kind, process = type(policy), policy.process
    return (
        type(policy.backbone) is UNet1D
        and sum(value.numel() for value in policy.backbone.parameters()) <= MOST_WEIGHTS
        and kind.denoiser is DiffusionModel.denoiser
        and kind.with_mask is DiffusionPolicy.with_mask
        and policy.record.prefix is None
        and policy.sampler.compile in COMPILED_NEVER
        and type(process) is DiffusionProcess
        and (process.input_factor, process.output_factor) == (1, 1)
        and isinstance(process.config.clip, FixedClip | BoundsClip | None)
    )


class ChunkSampling:
    """The `sampling` of a policy. Copies and pickles of a policy have none."""

    def __init__(
        self,
        policy: DiffusionPolicy,
        cond_shape: tuple[int, ...],
        is_usable: Callable[[], bool],
        is_faster: Callable[[str, Measure], bool],
    ):
        """
        Args:
            cond_shape: (N, D) of the tokens.
            is_usable: whether the network is as it was loaded.
            is_faster: whether the graph is faster, under a name that is remembered.
        """
        self._policy, self._process = weakref.ref(policy), policy.process
        self._is_usable, self._is_faster = is_usable, is_faster
        self._graph = Graph(chunk_graph(policy.backbone, policy.x_shape, cond_shape))
        self._steps: dict[tuple[SamplerConfig, bool], _Steps | None] = {}
        self._has_failed = False

    def __call__(self, cond: dict[str, Tensor], noise: Tensor, random: Randomness, draw: Draw) -> Tensor | None:
        """See `DiffusionModel.sampling`; None where the chunk is drawn evaluation by evaluation."""
        policy = self._policy()
        if self._has_failed or not self._fits(policy, noise, draw) or not self._is_usable():
            return None
        key = draw.sampler, draw.previous is not None
        if key in self._steps and self._steps[key] is None:
            return None
        tokens = policy.encode(cond)
        try:
            if key not in self._steps:
                self._steps[key] = self._compared(policy, cond, tokens, noise, random, draw)
            steps = self._steps[key]
            return None if steps is None else self._drawn(steps, tokens, noise, random, draw)
        except Exception as error:  # a robot that moves must not stop for a graph
            self._has_failed = True
            log_failure(error)
            return None

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        return None

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _nothing, ()

    def _fits(self, policy: DiffusionPolicy, noise: Tensor, draw: Draw) -> bool:
        """Whether the graph draws such a chunk. Raises ConfigError for guidance that the policy does not support."""
        guidance, sampler = policy.guidance(draw.guidance_scale), draw.sampler
        is_free = all(value is None for value in (draw.known, draw.shown, draw.prefix, draw.target))
        is_guided = guidance is not None and not guidance.is_neutral
        is_linear = type(sampler) in SAMPLERS and sampler.compile in COMPILED_NEVER
        is_one_row = noise.shape == (1, *policy.x_shape) and noise.dtype is torch.float32
        is_same = policy.process is self._process and not torch.compiler.is_compiling()
        return is_free and not is_guided and is_linear and is_one_row and is_same

    def _compared(
        self,
        policy: DiffusionPolicy,
        cond: dict[str, Tensor],
        tokens: Tensor,
        noise: Tensor,
        random: Randomness,
        draw: Draw,
    ) -> _Steps | None:
        """The steps of a sampler, if the graph is faster with them; None if not.

        Raises:
            ValueError: the graph and torch draw different chunks.
        """
        steps = _steps_of(policy, draw)
        if steps is None:
            return None
        process = policy.process
        in_torch = process.denoiser(
            lambda x_t, t: policy.backbone(x_t, t, tokens), draw, bounds=policy.normalizer.bounds("x")
        )
        problem = disagreement(
            process.sample(in_torch, noise, random, draw), self._drawn(steps, tokens, noise, random, draw)
        )
        if problem:
            raise ValueError(problem)
        ways = (
            lambda: process.sample(policy.denoiser(cond, draw), noise, random, draw),
            lambda: self._drawn(steps, policy.encode(cond), noise, random, draw),
        )
        name = f"a chunk of {len(steps.tables['reads'])} evaluations"
        return steps if self._is_faster(name, functools.partial(median_seconds, ways, TURNS)) else None

    def _drawn(self, steps: _Steps, tokens: Tensor, noise: Tensor, random: Randomness, draw: Draw) -> Tensor:
        """(1, *x_shape) the sample by the graph."""
        policy, size = self._policy(), noise[0].numel()
        if draw.previous is not None:
            alpha, sigma = self._process.table.levels[steps.begin]
            noise = alpha * draw.previous + sigma * noise
        rows = [row[0].T.flatten() for row in step_noise(random, policy.x_shape, steps.draws)]
        fresh = torch.stack(rows).numpy() if rows else np.zeros((0, size), np.float32)
        low, high = (self._limit(policy, end) for end in ("min", "max"))
        values = {"start": noise.numpy(), "tokens": tokens.numpy(), "noise": fresh, "low": low, "high": high}
        return torch.from_numpy(self._graph({**values, **steps.tables})["sample"])

    def _limit(self, policy: DiffusionPolicy, end: Literal["min", "max"]) -> np.ndarray:
        """(1, A H) the smallest or the largest value that the clip leaves."""
        clip, (horizon, channels) = self._process.config.clip, policy.x_shape
        value: Any = {"min": -math.inf, "max": math.inf}[end]
        if clip is not None:
            bounds = policy.normalizer.bounds("x") if isinstance(clip, BoundsClip) else None
            value = clip.stage(bounds).keywords[end]
        limits = np.empty((channels, horizon), np.float32)
        limits[:] = np.asarray(value).reshape(-1, 1)
        return limits.reshape(1, -1)


def log_failure(error: Exception) -> None:
    """Log why there is no graph of a chunk, or none any more."""
    cause = f"{type(error).__name__}: {error}".partition("\n")[0]
    log.warning("the policy draws a chunk evaluation by evaluation, since the graph of all of them fails: %s", cause)


def _nothing() -> None:
    return None


def _steps_of(policy: DiffusionPolicy, draw: Draw) -> _Steps | None:
    """The steps of the sampler of a draw; None for too many, and where a later step reads the previous sample."""
    process = policy.process
    if len(draw.sampler.timesteps(process.table)) > MOST_STEPS:
        return None
    steps = sampling_steps(process.config, draw.sampler, renoised=draw.previous is not None)
    evaluations, draws = steps["evaluations"], steps["draws"]
    reads = [{"start": 1.0}, *(evaluation["x"] for evaluation in evaluations[1:])]  # the noised sample is the start
    if any("previous" in coefficients for coefficients in (*reads, steps["result"])):
        return None
    names = ["start", *(f"noise {i}" for i in range(draws))]
    for i in range(len(evaluations)):
        names += [f"x {i}", f"x_0 {i}", f"unclipped {i}"]

    def row(coefficients: dict[str, float]) -> list[list[float]]:
        return [[coefficients.get(name, 0.0) for name in names]]

    timesteps = [evaluation["t"] for evaluation in evaluations]
    inversions = [[process.objective.inversion(*process.table.levels[t])] for t in timesteps]
    writes = np.eye(len(names), dtype=np.float32)[:, 1 + draws :].reshape(len(names), len(timesteps), 3)
    tables = {
        "reads": np.array([row(coefficients) for coefficients in reads], np.float32),
        "result": np.array(row(steps["result"]), np.float32),
        "writes": writes.transpose(1, 0, 2).copy(),
        "inversions": np.array(inversions, np.float32),
        "modulation": step_modulation(policy.backbone, timesteps),
        "room": np.zeros((3 * len(timesteps), math.prod(policy.x_shape)), np.float32),
    }
    return _Steps(tables, draws, timesteps[0])
