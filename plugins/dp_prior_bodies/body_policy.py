"""The policy of one body: an ordinary policy whose network also reads learnt features of the body.

`BodiesPolicy.body` cuts the policy out of a network for many bodies, and `train.init_from` begins with such weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

import torch
from pydantic import Field
from torch import Tensor, nn

from dp_prior.networks.encoders.observation import ObservationEncoder
from dp_prior.tasks.policy import DiffusionPolicy
from dp_prior.tasks.policy_config import PolicyConfig
from dp_prior.tensors.batch import Spec
from dp_prior.tensors.randomness import Randomness


class BodyPolicyConfig(PolicyConfig):
    """A diffusion policy of one body of a network for many (`bodies`), with the same settings; `train.init_from` takes
    its weights from that network."""

    type: Literal["body_policy"] = "body_policy"

    body: str
    """Name of the body, as `data.sets` of the network for many bodies has it."""

    embedding_dim: int = Field(default=16, ge=1)
    """Number of learnt features of the body."""

    def _build(
        self, policy: type[DiffusionPolicy], spec: Spec, x_shape: tuple[int, ...], encoder: ObservationEncoder
    ) -> BodyPolicy:
        """See `PolicyConfig`; with the features of the body."""
        return super()._build(BodyPolicy, spec, x_shape, BodyEncoder(encoder, self.embedding_dim))


class BodyEncoder(ObservationEncoder):
    """Appends the learnt features of the body to each token."""

    def __init__(self, encoder: ObservationEncoder, embedding_dim: int):
        """Args: encoder: of the observations, whose parts become those of this encoder."""
        n_tokens, size = encoder.cond_shape
        encoders = dict(zip(encoder.keys, encoder.encoders, strict=True))
        super().__init__(
            encoders, dict.fromkeys(encoder.keys, (n_tokens,)), encoder.beside, encoder.alike, encoder.shared
        )
        self.body = nn.Parameter(torch.randn(embedding_dim))
        self.further_features = tuple(("body", number) for number in range(embedding_dim))
        self.cond_shape = (n_tokens, size + embedding_dim)

    def forward(
        self,
        observations: Mapping[str, Tensor],
        keep: Mapping[str, Tensor] | None = None,
        random: Randomness | None = None,
    ) -> Tensor:
        tokens = super().forward(observations, keep, random)
        body = self.body.to(tokens.dtype).expand(*tokens.shape[:2], -1)
        return torch.cat([tokens, body], dim=-1)


class BodyPolicy(DiffusionPolicy):
    """Action chunks of one body."""

    task = "body_policy"

    def __init__(self, *, record: BodyPolicyConfig, **parts: Any):
        super().__init__(record=record, **parts)
        self.bodies = (record.body,)

    def body(self, name: str | None) -> Self:
        """The policy itself.

        Raises:
            ValueError: the policy is of another body.
        """
        if name not in (None, *self.bodies):
            raise ValueError(
                f"this is the policy of body {self.bodies[0]!r}, not of {name!r}; expected {self.bodies[0]!r} or no "
                f"name, or load the network for many bodies that has it"
            )
        return self
