"""Cheap measures of a policy on held-out demonstrations: what one would like to select by in place of rollouts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dp_prior.checkpoints.clock import Progress
from dp_prior.data.split_data import SplitData
from dp_prior.diffusion.draw import Draw
from dp_prior.evaluation.action_error import ActionErrorConfig
from dp_prior.evaluation.loss import LossConfig
from dp_prior.evaluation.samples import evenly_spread
from dp_prior.tensors.batch import Batch
from dp_prior.tensors.randomness import Randomness

SAMPLES, MOMENTS, FEW, DRAWS = 2048, 512, 256, 8
"""Held-out chunks of the losses; of measures of sampled chunks; of the likelihoods and the averages; chunks sampled at
each moment."""

LEVELS, PROBES = 24, 2
"""Noise levels of a likelihood by the probability flow; random signs for its divergence."""

BASELINE = "lower quartile of the action error"


@torch.no_grad()
def measures(models: Mapping[str, Any], data: SplitData) -> dict[str, float]:
    """Compute every measure, by name; lower should be better.

    Args:
        models: the same policy by the names of its averages, of which `ema` acts.
    """
    policy = models["ema"]
    few = data.val.fetch(evenly_spread(len(data.val), FEW))
    scale = torch.as_tensor(data.statistics()["x"].std.reshape(-1))
    # `slow` is `ema` for the first 10,000 steps (power decay below 0.999): here only `raw` differs.
    averages = torch.stack([_executed(policy, drawn(model, few, 1) / scale)[0] for model in models.values()])
    bound = policy.bits_per_dim(few, Randomness.from_counts(0, "likelihood", few.ids)).total
    loss = _evaluated(LossConfig(models=("ema",), max_samples=SAMPLES), policy, data)
    action = _evaluated(ActionErrorConfig(eval_timesteps=(8,), shown=0), policy, data)
    by_name = {
        "validation loss": loss["validation/ema/loss"],
        **{f"validation loss, quarter {q + 1} of the noise": loss[f"validation/ema/loss_q{q}"] for q in range(4)},
        "action error": action["action_error/ema/mse[steps=8]"],
        BASELINE: action["action_error/ema/lower_quartile[steps=8]"],
        **_distances(policy, data.val.fetch(evenly_spread(len(data.val), MOMENTS)), scale),
        "disagreement of successive chunks": _disagreement(policy, data, scale).mean(),
        "deviation of the averages": averages.std(0).mean(),
        "bound of the likelihood, bits": bound.mean(),
        "likelihood by the flow, bits": flow_bits(policy, few).mean(),
    }
    return {name: float(measure) for name, measure in by_name.items()}


def _distances(policy: Any, batch: Batch, scale: Tensor) -> dict[str, Tensor]:
    """Distances between recorded and sampled executed actions, and among sampled actions, in standard deviations."""
    draws = _executed(policy, drawn(policy, batch) / scale)  # (draws, B, n)
    goal = _executed(policy, batch.x / scale)
    errors = (draws - goal).abs().mean(-1)
    among = torch.cdist(draws.transpose(0, 1), draws.transpose(0, 1)).sum((1, 2)) / (DRAWS * (DRAWS - 1))
    return {
        "error of a draw": errors.mean(),
        "lower quartile of all draws": errors.quantile(0.25),
        "median error": errors.mean(0).quantile(0.5),
        "upper decile": errors.mean(0).quantile(0.9),
        "error of the mean of 8 draws": (draws.mean(0) - goal).abs().mean(),
        "error of the best of 8 draws": errors.min(0).values.mean(),
        "energy score": ((draws - goal).norm(dim=-1).mean(0) - among / 2).mean(),
        "deviation of 8 draws": draws.std(0).mean(),
        **{f"error {where}": errors[:, chosen].mean() for where, chosen in critical(batch).items()},
    }


def _executed(policy: Any, chunks: Tensor) -> Tensor:
    """The executed actions (..., n) of (..., horizon, D) chunks."""
    first = policy.n_obs_steps - 1
    return chunks[..., first : first + policy.n_action_steps, :].flatten(-2)


def critical(batch: Batch) -> dict[str, Tensor]:
    """Moments at which an error may cost most: (B,) bool by name. A turn leads more than a sixth of a circle aside."""
    cond = {name: torch.as_tensor(obs)[:, -1] for name, obs in batch.cond.items()}
    block = cond["state"][:, 2:] if "state" in cond else torch.cat([cond["block_pos"], cond["block_angle"]], 1)
    turned = (block[:, 2] - np.pi / 4 + np.pi) % (2 * np.pi) - np.pi
    from_goal = (block[:, :2] - 256).norm(dim=1) + 60 * turned.abs()  # pixels; 60 is half the block's length
    from_block = (cond["agent_pos"] - block[:, :2]).norm(dim=1)
    middle = batch.x.shape[1] // 2
    ways = batch.x[:, middle] - batch.x[:, 0], batch.x[:, -1] - batch.x[:, middle]
    return {
        "at turns": torch.cosine_similarity(*ways, dim=1) < 0.5,
        "near the goal": from_goal <= from_goal.quantile(1 / 3),
        "near the block": from_block <= from_block.quantile(1 / 2),
    }


def _disagreement(policy: Any, data: SplitData, scale: Tensor) -> Tensor:
    """Distance of a chunk from the chunk sampled `n_action_steps` later in the same episode, with the same noise."""
    shift = policy.n_action_steps
    rows = torch.as_tensor(evenly_spread(len(data.val) - shift, MOMENTS))
    is_later_step = []
    for row in rows.tolist():
        episode, step = data.recorded_at("val", row)
        is_later_step.append(data.recorded_at("val", row + shift) == (episode, step + shift))
    rows = rows[is_later_step]
    now, later = data.val.fetch(rows), data.val.fetch(rows + shift)
    noise = Randomness.from_counts(0, "selection", now.ids)
    chunks, after = (policy.draw(batch.cond, noise, Draw()) / scale for batch in (now, later))
    return (chunks[:, shift:] - after[:, :-shift]).abs()


def _evaluated(record: LossConfig | ActionErrorConfig, policy: Any, data: SplitData) -> Mapping[str, float]:
    """The metrics of the product's own evaluator."""
    return record.create(data).run({"ema": policy}, None, Progress()).metrics


def drawn(policy: Any, batch: Batch, draws: int = DRAWS) -> Tensor:
    """(draws, B, horizon, D) chunks in data units; the noise of a draw is the same for every policy."""
    return torch.stack(
        [policy.draw(batch.cond, Randomness.from_counts(draw, "selection", batch.ids), Draw()) for draw in range(draws)]
    )


def flow_bits(policy: Any, batch: Batch, levels: int = LEVELS) -> Tensor:
    """(B,) bits per dimension of normalised chunks by the probability flow, in Heun's steps.

    With alpha = cos(angle) and sigma = sin(angle) the flow is dx / d angle = alpha * eps - sigma * x_0, and the log of
    the density changes by its divergence (Song et al. 2021, arXiv:2011.13456), estimated by random signs (Hutchinson).
    """
    table, x = policy.process.table, policy.diffused(batch.x, batch.cond)
    random, shape = Randomness.from_counts(0, "probes", batch.ids), x.shape[1:]
    signs = [random.stream("probe", probe).normal(*shape).sign() for probe in range(PROBES)]
    denoiser = policy.denoiser(batch.cond)

    def flow(x: Tensor, t: int) -> tuple[Tensor, Tensor]:
        alpha, sigma = table.levels[t]
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            x_0 = denoiser.estimate(x, t).unclipped
            way = alpha * (x - alpha * x_0) / sigma - sigma * x_0
            slopes = [torch.autograd.grad(way, x, sign, retain_graph=True)[0] for sign in signs]
        products = torch.stack([(slope * sign).flatten(1).sum(1) for slope, sign in zip(slopes, signs, strict=True)])
        return way.detach(), products.mean(0)

    steps = np.unique(np.linspace(0, len(table) - 1, levels).round().astype(int)).tolist()
    angles = [np.arctan2(*reversed(table.levels[t])) for t in steps]
    change = torch.zeros(len(x))
    way, divergence = flow(x, steps[0])
    for t, width in zip(steps[1:], np.diff(angles).tolist(), strict=True):
        way_ahead, divergence_ahead = flow(x + width * way, t)
        x, change = x + width * (way + way_ahead) / 2, change + width * (divergence + divergence_ahead) / 2
        way, divergence = flow(x, t)
    log_p = torch.distributions.Normal(0.0, 1.0).log_prob(x).flatten(1).sum(1) + change
    return -log_p / (x[0].numel() * np.log(2))
