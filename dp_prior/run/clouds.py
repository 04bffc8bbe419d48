"""Whether the encoders of point clouds see what was recorded."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from dp_prior.run.assembly import Assembly

LOOKED_AT = 64
"""Samples that are looked at."""


def cloud_warnings(parts: Assembly) -> Iterator[str]:
    """A line for each cloud without a point in its encoder's box, as with a box in another unit or frame."""
    train, names = parts.data.train, [name for name, kind in parts.data.spec.kinds.items() if kind == "points"]
    if not names:
        return
    count = min(LOOKED_AT, len(train))
    cond = train.fetch(torch.arange(count, device=train.device) * len(train) // count).cond
    for name in names:
        has_point = parts.model.encoder.encoder_of(name).is_seen(cond[name].to(parts.ranks.device)).any(-1)
        if not has_point.all():
            share, field = 1 - has_point.double().mean().item(), f"task.encoders.{name}.box"
            yield (
                f"points.{name}: no point lies in {field} in {share:.0%} of the clouds, which the policy cannot tell "
                f"apart; dp-prior inspect tells where the points lie"
            )
