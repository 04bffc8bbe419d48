"""Observations by key -> condition tokens, one per observation step."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from dp_prior.config import PartError, an
from dp_prior.networks.encoders.encoder import Encoder
from dp_prior.tensors.randomness import Randomness


class ObservationEncoder(nn.Module):
    """Encodes each key by its own encoder and concatenates the features of a step to one token.

    Keys are concatenated in alphabetical order.

    Args:
        encoders: one for every key.
        shapes: (n_obs_steps, *shape) by key; n_obs_steps is common to all.
        beside: by camera, the depth observation that its encoder also reads.
        alike: by depth observation, the camera whose random crop it takes.
        shared: by observation, the observation whose encoder also encodes it.
    """

    further_features: tuple[tuple[str, int], ...] = ()
    """Names of the numbers that a subclass adds behind the features of a token."""

    def __init__(
        self,
        encoders: Mapping[str, Encoder],
        shapes: Mapping[str, tuple[int, ...]],
        beside: Mapping[str, str] | None = None,
        alike: Mapping[str, str] | None = None,
        shared: Mapping[str, str] | None = None,
    ):
        super().__init__()
        self.beside, self.alike, self.shared = dict(beside or {}), dict(alike or {}), dict(shared or {})
        if set(encoders) != set(shapes):
            raise ValueError(
                f"encoders are given for {sorted(encoders)}, but the observations are {sorted(shapes)}. "
                "Give every observation exactly one encoder"
            )
        steps = {key: shape[0] for key, shape in shapes.items()}
        if len(set(steps.values())) > 1:
            raise ValueError(f"observations must have the same number of steps; found {steps}")
        self.keys = sorted(encoders)
        self.encoders = nn.ModuleList(encoders[key] for key in self.keys)  # names of modules have no dots
        n_obs_steps = next(iter(steps.values()), 0)
        self.cond_shape = (n_obs_steps, sum(self.encoder_of(key).output_dim for key in self.keys))
        """(N, D): number of tokens and their size."""

    def encoder_of(self, key: str) -> Encoder:
        """The encoder that reads an observation."""
        return self.encoders[self.keys.index(self.shared.get(key, key))]

    def forward(
        self,
        observations: Mapping[str, Tensor],
        keep: Mapping[str, Tensor] | None = None,
        random: Randomness | None = None,
    ) -> Tensor:
        """(B, n_obs_steps, *shape) by key -> (B, n_obs_steps, D).

        Args:
            keep: (B,) by key, 1 to keep a sample's features of the key, 0 to replace them by zeros; None keeps all.
            random: B rows; an encoder that draws gets the stream of its key. None in evaluation and inference.

        Raises:
            PartError: an encoder of another package gives features of another shape than its `output_dim` says.
        """
        features = []
        for key in self.keys:
            encoder = self.encoder_of(key)
            stream = self.alike.get(key, key)
            rows = random.stream("encoder", stream) if encoder.draws and random is not None else None
            depth = self._depth(key, observations, keep)
            features.append(self._checked(key, encoder(observations[key], rows, *depth)))
        if keep is not None:
            features = [
                value * keep[key][:, None, None].to(value.dtype) if key in keep else value
                for key, value in zip(self.keys, features, strict=True)
            ]
        return torch.cat(features, dim=-1)

    def _checked(self, key: str, features: Tensor) -> Tensor:
        encoder, shape = self.encoder_of(key), getattr(features, "shape", ())
        if len(shape) == 3 and (shape[1], shape[2]) == (self.cond_shape[0], encoder.output_dim):
            return features
        finding = f"features of shape {tuple(shape)}" if isinstance(features, Tensor) else an(type(features).__name__)
        raise PartError(
            f"observation {key!r}: {type(encoder).__module__}.{type(encoder).__qualname__}.forward returned {finding}; "
            f"expected (B, {self.cond_shape[0]}, {encoder.output_dim}), a step of each observation and output_dim "
            f"features; correct the method or output_dim"
        )

    def _depth(
        self, key: str, observations: Mapping[str, Tensor], keep: Mapping[str, Tensor] | None
    ) -> tuple[Tensor, ...]:
        """The depth that a camera's encoder also reads, unmeasured where a sample drops it; empty for other keys."""
        if key not in self.beside:
            return ()
        depth = observations[self.beside[key]]
        is_kept = None if keep is None else keep.get(self.beside[key])
        return (depth if is_kept is None else torch.where(is_kept[:, None, None, None, None] > 0, depth, -1.0),)
