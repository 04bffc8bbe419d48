"""The policy task: an action chunk is diffused, given observations (Chi et al. 2023, arXiv:2303.04137)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator
from torch import Tensor

from dp_prior.batch import Spec
from dp_prior.config import Config
from dp_prior.diffusion.process import DiffusionConfig
from dp_prior.diffusion.sampler import DDIM, SamplerConfig
from dp_prior.networks.backbones import BackboneConfig
from dp_prior.networks.backbones.unet1d import UNet1DConfig
from dp_prior.networks.encoders import EncoderConfig
from dp_prior.networks.encoders.observation import ObservationEncoder
from dp_prior.networks.encoders.state import StateEncoderConfig
from dp_prior.normalizer import Identity, Limits, Normalizer, NormalizerConfig
from dp_prior.randomness import Randomness
from dp_prior.tasks.model import DiffusionModel


class PolicyConfig(Config):
    """A diffusion policy: which chunk is predicted from which observations, and by what network."""

    type: Literal["policy"] = "policy"

    horizon: int = Field(default=16, ge=1)
    """Length of the predicted action chunk, in control steps."""

    n_obs_steps: int = Field(default=2, ge=1)
    """Observations the policy sees, newest last."""

    n_action_steps: int = Field(default=8, ge=1)
    """Actions executed before the next prediction; at most horizon - n_obs_steps + 1."""

    encoders: dict[str, EncoderConfig] = {}
    """Encoder of each observation key; a key that is not named gets the state encoder."""

    normalizer: dict[str, NormalizerConfig] = {}
    """Normalizer of each observation key and of `action`; limits where not named, identity for angle encoders."""

    backbone: BackboneConfig = UNet1DConfig()
    """The network that predicts from a noisy chunk, its timestep and the observations."""

    diffusion: DiffusionConfig = DiffusionConfig()
    """Noise schedule, objective, loss weighting and timesteps."""

    sampler: SamplerConfig = DDIM()
    """How chunks are drawn at evaluation and on the robot; can be replaced when a policy is loaded."""

    @model_validator(mode="after")
    def _check(self) -> PolicyConfig:
        room = self.horizon - self.n_obs_steps + 1
        if self.n_action_steps > room:
            raise ValueError(
                f"n_action_steps is {self.n_action_steps}, but horizon {self.horizon} and n_obs_steps "
                f"{self.n_obs_steps} leave room for {max(room, 0)} actions; lower n_action_steps or raise horizon"
            )
        factor = self.backbone.length_factor
        if self.horizon % factor:
            above = self.horizon + factor - self.horizon % factor
            raise ValueError(
                f"horizon is {self.horizon}, but backbone {self.backbone.type!r} halves it and needs a multiple of "
                f"{factor}; use {above}" + (f" or {above - factor}" if above > factor else "")
            )
        trained = self.diffusion.schedule.steps
        if self.sampler.steps is not None and self.sampler.steps > trained:
            raise ValueError(
                f"sampler.steps is {self.sampler.steps}, but the schedule has only {trained} timesteps; "
                f"lower sampler.steps or raise diffusion.schedule.steps"
            )
        for key, encoder in self.encoders.items():
            if encoder.type == "angle" and key in self.normalizer and self.normalizer[key].type != "identity":
                raise ValueError(
                    f"normalizer.{key} is {self.normalizer[key].type!r}, but the angle encoder reads radians; "
                    f"remove it or use identity"
                )
        return self

    def create(self, spec: Spec) -> DiffusionPolicy:
        """An untrained policy for data of this shape; its normalizer is still to be fitted or loaded.

        Raises:
            ValueError: an encoder or normalizer names a key that the data do not have.
        """
        keys = list(spec.cond_shapes)
        for field, named, known in (
            ("encoders", self.encoders, keys),
            ("normalizer", self.normalizer, ["action", *keys]),
        ):
            unknown = sorted(set(named) - set(known))
            if unknown:
                raise ValueError(f"task.{field} names {unknown}, which the data do not have; known: {known}")
        encoders = {key: self.encoders.get(key, StateEncoderConfig()) for key in keys}
        modes = {key: self._normalizer(key, encoder) for key, encoder in encoders.items()}
        modules = {key: encoder.create(spec.cond_shapes[key][1:]) for key, encoder in encoders.items()}
        observation = ObservationEncoder(modules, spec.cond_shapes)
        process = self.diffusion.create()
        return DiffusionPolicy(
            n_obs_steps=self.n_obs_steps,
            n_action_steps=self.n_action_steps,
            spec=spec,
            normalizer=Normalizer(
                {"x": spec.x_shape[1:], **{key: shape[1:] for key, shape in spec.cond_shapes.items()}},
                {"x": self.normalizer.get("action", Limits()), **modes},
            ),
            encoder=observation,
            backbone=self.backbone.create(spec.x_shape, observation.cond_shape),
            process=process,
            sampler=self.sampler,
        )

    def _normalizer(self, key: str, encoder: EncoderConfig) -> NormalizerConfig:
        return self.normalizer.get(key, Identity() if encoder.type == "angle" else Limits())


class DiffusionPolicy(DiffusionModel):
    """Action chunks from observations."""

    def __init__(self, *, n_obs_steps: int, n_action_steps: int, **parts):
        super().__init__(**parts)
        self.n_obs_steps = n_obs_steps
        self.n_action_steps = n_action_steps

    @property
    def horizon(self) -> int:
        """Length of a predicted chunk."""
        return self.spec.x_shape[0]

    def predict(
        self, obs: dict[str, Tensor], random: Randomness, sampler: SamplerConfig | None = None
    ) -> Tensor:
        """Predict action chunks.

        Args:
            obs: (B, n_obs_steps, ...) by key, data units, newest last.
            random: B rows.
            sampler: replaces the configured one.

        Returns:
            (B, horizon, action_dim) in data units; the executed slice starts at index n_obs_steps - 1.
        """
        return self.sample(obs, random, sampler)
