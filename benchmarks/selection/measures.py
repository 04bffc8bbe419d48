"""Cheap measures of a policy on held-out demonstrations: what one would like to select by in place of rollouts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dp_prior.clock import Progress
from dp_prior.data.split_data import SplitData
from dp_prior.diffusion.draw import Draw
from dp_prior.evaluation.action_error import ActionErrorConfig
from dp_prior.evaluation.loss import LossConfig
from dp_prior.evaluation.samples import evenly_spread
from dp_prior.tensors.batch import Batch
from dp_prior.tensors.randomness import Randomness

SAMPLES, MOMENTS, DRAWS = 2048, 128, 8
"""Held-out chunks of the losses; of the other measures; chunks drawn at each of the latter."""

LEVELS = 24
"""Evaluations of a likelihood by the probability flow."""

BASELINE = "validation loss"


def measures(models: Mapping[str, Any], data: SplitData) -> dict[str, float]:
    """Every measure by its name; lower should be better.

    Args:
        models: the same policy by the names of its averages; `ema` is the one that acts.
    """
    policy, rows = models["ema"], evenly_spread(len(data.val), MOMENTS)
    batch = data.val.fetch(rows)
    draws = drawn(policy, batch)
    executed = slice(policy.n_obs_steps - 1, policy.n_obs_steps - 1 + policy.n_action_steps)
    scale = data.statistics()["x"].std.reshape(-1)
    distance = ((draws - batch.x).abs() / torch.as_tensor(scale))[:, :, executed].mean((2, 3))  # (draws, moments)
    ensemble = torch.stack([drawn(model, batch, 1)[0] for model in models.values()])
    turns = turning(batch.x)
    with torch.no_grad():
        bound = policy.bits_per_dim(batch, Randomness.from_counts(0, "likelihood", batch.ids)).total.mean()
    return {
        **_losses(policy, data),
        **_action_errors(policy, data),
        "action error at turns": float(distance[:, turns].mean()),
        "distance of the best of 8 draws": float(distance.min(0).values.mean()),
        "deviation of 8 draws": float((draws / torch.as_tensor(scale)).std(0)[:, executed].mean()),
        "deviation of the averages": float((ensemble / torch.as_tensor(scale)).std(0)[:, executed].mean()),
        "bound of the likelihood, bits": float(bound),
        "likelihood by the flow, bits": float(flow_bits(policy, batch).mean()),
    }


def _losses(policy: Any, data: SplitData) -> dict[str, float]:
    """The training objective, in total and by quarter of the noise levels."""
    record = LossConfig(models=("ema",), max_samples=SAMPLES)
    found = record.create(data).run({"ema": policy}, None, Progress()).metrics
    quarters = {f"{BASELINE}, quarter {one + 1} of the noise": found[f"validation/ema/loss_q{one}"] for one in range(4)}
    return {BASELINE: found["validation/ema/loss"], **quarters}


def _action_errors(policy: Any, data: SplitData) -> dict[str, float]:
    """Errors of single draws, of the product's own evaluator."""
    record = ActionErrorConfig(eval_timesteps=(8,), shown=0)
    found = record.create(data).run({"ema": policy}, None, Progress()).metrics
    kinds = {"action error": "mse", "lower quartile of the action error": "lower_quartile"}
    return {name: found[f"action_error/ema/{kind}[steps=8]"] for name, kind in kinds.items()}


def drawn(policy: Any, batch: Batch, draws: int = DRAWS) -> Tensor:
    """(draws, B, horizon, D) chunks in data units; the noise of a draw is the same for every policy."""
    return torch.stack(
        [policy.draw(batch.cond, Randomness.from_counts(draw, "selection", batch.ids), Draw()) for draw in range(draws)]
    )


def turning(chunks: Tensor) -> Tensor:
    """(B,) bool: whether the second half of (B, horizon, D) positions leads more than a sixth of a turn aside."""
    middle = chunks.shape[1] // 2
    ways = chunks[:, middle] - chunks[:, 0], chunks[:, -1] - chunks[:, middle]
    return torch.cosine_similarity(*ways, dim=1) < 0.5


def flow_bits(policy: Any, batch: Batch, probes: int | None = 2, levels: int = LEVELS) -> Tensor:
    """(B,) bits per dimension of normalised chunks by the probability flow, in Heun's steps.

    With alpha = cos(angle) and sigma = sin(angle) the flow is dx / d angle = alpha * eps - sigma * x_0, and the log of
    the density changes by its divergence (Song et al. 2021, arXiv:2011.13456).

    Args:
        probes: random signs that estimate the divergence (Hutchinson); None for its trace, at D / 2 times the cost.
    """
    table, x = policy.process.table, policy.inside(batch.x, batch.cond)
    signs = _signs(x, batch.ids, probes)
    denoiser, flat = policy.denoiser(batch.cond), x[0].numel()

    def flow(x: Tensor, t: int) -> tuple[Tensor, Tensor]:
        alpha, sigma = table.levels[t]
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            x_0 = denoiser.estimate(x, t).unclipped
            way = alpha * (x - alpha * x_0) / sigma - sigma * x_0
            slopes = [torch.autograd.grad(way, x, sign, retain_graph=True)[0] for sign in signs]
        products = torch.stack([(slope * sign).flatten(1).sum(1) for slope, sign in zip(slopes, signs, strict=True)])
        return way.detach(), products.sum(0) if probes is None else products.mean(0)

    steps = np.unique(np.linspace(0, len(table) - 1, levels).round().astype(int)).tolist()
    angles = [np.arctan2(*reversed(table.levels[t])) for t in steps]
    change = torch.zeros(len(x))
    way, divergence = flow(x, steps[0])
    for t, width in zip(steps[1:], np.diff(angles).tolist(), strict=True):
        way_ahead, divergence_ahead = flow(x + width * way, t)
        x, change = x + width * (way + way_ahead) / 2, change + width * (divergence + divergence_ahead) / 2
        way, divergence = flow(x, t)
    log_p = torch.distributions.Normal(0.0, 1.0).log_prob(x).flatten(1).sum(1) + change
    return -log_p / (flat * np.log(2))


def _signs(x: Tensor, ids: Tensor, probes: int | None) -> Tensor:
    """(probes, *x.shape) directions whose products with the Jacobian give its divergence; see `flow_bits`."""
    if probes is not None:
        random = Randomness.from_counts(0, "probes", ids)
        return torch.stack([random.stream("probe", one).normal(*x.shape[1:]).sign() for one in range(probes)])
    return torch.eye(x[0].numel()).view(-1, 1, *x.shape[1:]).expand(-1, *x.shape)
