"""The inpainting policy: diffuses actions and observations as one trajectory whose first observations are known
(Diffusion Policy's conditioning that is neither local nor global; Chi et al. 2023, after Janner et al. 2022).

A trajectory is [action, observations in alphabetical order of their keys], joined along channels at every step of the
horizon. It is the network's only input: the first `n_obs_steps` observations stay free of noise, in training and in
sampling, and the network predicts all other values. The predicted actions are the policy's output.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dp_prior.diffusion.draw import AS_CONFIGURED, Draw
from dp_prior.networks.backbones.unet1d_local import LocalUNet1DConfig
from dp_prior.tasks.policy import DiffusionPolicy
from dp_prior.tasks.policy_config import PolicyConfig
from dp_prior.tensors.batch import Spec
from dp_prior.tensors.normalizer import Normalizer
from dp_prior.tensors.randomness import Randomness

if TYPE_CHECKING:
    from dp_prior.data.data_record import DataRecord
    from dp_prior.data.split_data import SplitData


class InpaintingPolicyConfig(PolicyConfig):
    """A diffusion policy that also predicts observations, conditioned on the first of them.

    Observations are diffused directly, without encoders, condition dropout, prefix, arms or rotations.
    """

    type: Literal["inpainting_policy"] = "inpainting_policy"

    encoders: ClassVar = {}

    shared_encoders: ClassVar = {}

    cond_dropout: ClassVar = {}

    prefix: ClassVar = None

    arms: ClassVar = ()

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        if isinstance(self.backbone, LocalUNet1DConfig):
            yield (
                "backbone 'unet1d_local' adds observations to the chunk, but in an inpainting policy they are part of "
                "it; use 'unet1d'"
            )
        if self.diffusion.guidance is not None:
            yield (
                "diffusion.guidance needs a condition that can be dropped, but an inpainting policy has none "
                "beside its trajectory; remove it, or use task 'policy'"
            )

    def open(self, data: DataRecord) -> SplitData:
        """Windows with the observations of the whole horizon; see `PolicyConfig.open`."""
        return data.create(self.horizon, self.n_obs_steps, self.n_action_steps, all_obs=True)

    def create(self, spec: Spec) -> InpaintingPolicy:
        """An untrained policy for data of this shape; see `PolicyConfig.create`.

        Args:
            spec: its observations have the length of the horizon.

        Raises:
            ConfigError: a normalizer names a key that the data do not have, or an observation is no vector.
        """
        self._check(spec, self.horizon)
        horizon, action_dim = spec.x_shape
        obs_dim = sum(math.prod(shape[1:]) for shape in spec.cond_shapes.values())
        is_shown = torch.zeros(horizon, action_dim + obs_dim, dtype=torch.bool)
        is_shown[: self.n_obs_steps, action_dim:] = True
        x_shape = tuple(is_shown.shape)
        return self._build(InpaintingPolicy, spec, x_shape, NoTokens(), JoinedNormalizer, is_shown)

    def _observation_faults(self, spec: Spec) -> Iterator[str]:
        if spec.rotations:
            yield (
                f"an inpainting policy diffuses the numbers of its data, but data names rotations in "
                f"{sorted(spec.rotations)}; remove them there, or use task 'policy'"
            )
        other_kinds = {key: kind for key, kind in spec.kinds.items() if kind != "vector"}
        if other_kinds:
            yield (
                f"an inpainting policy diffuses its observations, which must be vectors; found {other_kinds}. Leave "
                f"them out, or use task 'policy'"
            )


class NoTokens(nn.Module):
    """The encoder of a network without conditions; returns no tokens."""

    cond_shape = (0, 1)

    def forward(self, observations: Mapping[str, Tensor], *ignored: Any) -> Tensor:
        """(B, n, *shape) by key -> (B, 0, 1); what other encoders need besides is ignored."""
        first = next(iter(observations.values()))
        return torch.zeros(len(first), 0, 1, device=first.device)


class JoinedNormalizer(Normalizer):
    """Its "x" is a trajectory, (..., action_dim + obs_dim), whose parts are normalised by their own keys."""

    def normalize(self, key: str, value: Tensor) -> Tensor:
        return self._each(super().normalize, value) if key == "x" else super().normalize(key, value)

    def unnormalize(self, key: str, value: Tensor) -> Tensor:
        return self._each(super().unnormalize, value) if key == "x" else super().unnormalize(key, value)

    def bounds(self, key: str, low: str = "min", high: str = "max") -> tuple[Tensor, Tensor]:
        if key != "x":
            return super().bounds(key, low, high)
        ends = ([self._buffers[f"{part}/{end}"].flatten() for part in self.order] for end in (low, high))
        lowest, highest = (self.normalize(key, torch.cat(parts)) for parts in ends)  # (action_dim + obs_dim,)
        return lowest, highest

    @property
    def order(self) -> list[str]:
        """The keys in the order of a trajectory's channels."""
        return ["x", *sorted(set(self.shapes) - {"x"})]

    def join(self, action: Tensor, observations: Mapping[str, Tensor]) -> Tensor:
        """(B, H, A) and (B, H, *shape) by key -> (B, H, A + obs_dim)."""
        parts = [observations[key].to(action.dtype) for key in self.order[1:]]
        return torch.cat([action, *(part.reshape(*action.shape[:2], -1) for part in parts)], dim=-1)

    def _each(self, convert: Callable[[str, Tensor], Tensor], joined: Tensor) -> Tensor:
        parts = joined.split([math.prod(self.shapes[key]) for key in self.order], dim=-1)
        converted = [
            convert(key, part.reshape((*part.shape[:-1], *self.shapes[key]))).reshape(part.shape)
            for key, part in zip(self.order, parts, strict=True)
        ]
        return torch.cat(converted, dim=-1)


class InpaintingPolicy(DiffusionPolicy):
    """Diffuses trajectories; its output is their action chunk."""

    task = "inpainting_policy"
    has_named_numbers: ClassVar = False

    def encode_x(self, x: Tensor, cond: dict[str, Tensor]) -> Tensor:
        """(B, H, A) actions and (B, n, *shape) observations by key -> (B, H, A + obs_dim) trajectories.

        Missing later observations (on a robot, the future) repeat the last given observation. They are read only where
        a sample starts from an earlier sample.
        """
        steps = torch.arange(self.horizon, device=x.device)
        held = {key: value[:, steps.clamp(max=value.shape[1] - 1)] for key, value in cond.items()}
        return self.normalizer.join(super().encode_x(x, cond), held)

    def decode_x(self, x: Tensor, cond: dict[str, Tensor]) -> Tensor:
        """(B, H, A + obs_dim) trajectories -> (B, H, A) actions."""
        return super().decode_x(x[..., : self.spec.x_shape[-1]], cond)

    def diffused_known(
        self, known: tuple[Tensor, Tensor] | None, cond: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor] | None:
        """See `DiffusionModel.diffused_known`; the first observations are always known."""
        if known is None:
            batch = len(next(iter(cond.values())))
            actions = self.shown.new_zeros(batch, *self.spec.x_shape, dtype=torch.float32)
            return self.diffused(actions, cond), self.shown
        values, is_known = super().diffused_known(known, cond)
        return values, is_known | self.shown

    def diffused_weights(self, weights: Tensor) -> Tensor:
        """See `DiffusionModel.diffused_weights`; those of observations are 0."""
        return F.pad(weights, (0, self.x_shape[-1] - weights.shape[-1]))

    def sample(self, cond: dict[str, Tensor], random: Randomness, draw: Draw = AS_CONFIGURED) -> Tensor:
        """See `DiffusionModel.sample`; of the observations only the first n_obs_steps are read."""
        return super().sample({key: value[:, : self.n_obs_steps] for key, value in cond.items()}, random, draw)
