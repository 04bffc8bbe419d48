"""The policy task: diffuses an action chunk, conditioned on observations (Chi et al. 2023, arXiv:2303.04137)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from dp_prior.actions import RelativeActions
from dp_prior.batch import Kind, Spec
from dp_prior.config import Change, Config, ConfigError
from dp_prior.diffusion.denoiser import Network
from dp_prior.diffusion.process import DiffusionConfig
from dp_prior.diffusion.sampler import DDIM, SamplerConfig
from dp_prior.diffusion.target import Target
from dp_prior.networks.backbones import BackboneConfig
from dp_prior.networks.backbones.unet1d import UNet1DConfig
from dp_prior.networks.encoders import EncoderConfig
from dp_prior.networks.encoders.camera import CameraEncoderConfig
from dp_prior.networks.encoders.observation import ObservationEncoder
from dp_prior.networks.encoders.resnet import ResNetEncoderConfig
from dp_prior.networks.encoders.state import StateEncoderConfig
from dp_prior.normalizer import Gaussian, Identity, Limits, Normalizer, NormalizerConfig, Statistics
from dp_prior.observations import check_obs
from dp_prior.randomness import Randomness
from dp_prior.tasks.model import DiffusionModel, Samples
from dp_prior.tasks.prefix import PrefixConfig, marked
from dp_prior.tasks.pretrained import Pretrained

NORMALISED: tuple[Kind, ...] = ("vector", "text")
"""Kinds of observations that are normalised by statistics."""

MOST_WINDOWS_FITTED = 200_000
"""Maximum number of windows, evenly spread over the training set, for the statistics of relative actions."""


class PolicyConfig(Config):
    """A diffusion policy: the chunk it predicts, the observations it sees, and its network."""

    type: Literal["policy"] = "policy"

    kind: ClassVar = "policy"

    data_types: ClassVar = ("trajectories",)

    horizon: int = Field(default=16, ge=1)
    """Length of the predicted action chunk, in control steps."""

    n_obs_steps: int = Field(default=2, ge=1)
    """Observations the policy sees, newest last."""

    n_action_steps: Annotated[int, Change("schedule-changing")] = Field(default=8, ge=1)
    """Actions executed before the next prediction; at most horizon - n_obs_steps + 1."""

    relative_to: str | None = None
    """Relative actions: the observation of the robot's position, with the shape and units of an action. Actions are
    diffused as offsets from its newest value; data and predictions stay absolute. null diffuses absolute actions."""

    prefix: PrefixConfig | None = None
    """Training-time chunking: the policy learns to continue actions that are already executed or under way, for robots
    that act while the next chunk is predicted. The network gets as many more input channels as an action has numbers.
    null: chunks are predicted from observations alone."""

    encoders: dict[str, EncoderConfig] = {}
    """Encoder of each observation key; the default is the state encoder, for camera frames resnet."""

    normalizer: dict[str, NormalizerConfig] = {}
    """Normalizer of each observation key and of `action`; the default is limits, gaussian for instructions, or identity
    for encoders that read data units."""

    backbone: BackboneConfig = UNet1DConfig()
    """The network that predicts from a noisy chunk, its timestep and the observations."""

    cond_dropout: dict[str, Annotated[float, Field(ge=0, le=1)]] = {}
    """Probability, by key, of dropping an observation from a sample in training; guidance needs it for every key."""

    diffusion: DiffusionConfig = DiffusionConfig()
    """Noise schedule, objective, loss weighting and timesteps."""

    sampler: Annotated[SamplerConfig, Change("harmless")] = DDIM()
    """Sampler for evaluation and on the robot; can be replaced when a policy is loaded."""

    def faults(self) -> Iterator[str]:
        room = self.horizon - self.n_obs_steps + 1
        if self.n_action_steps > room:
            yield (
                f"n_action_steps is {self.n_action_steps}, but horizon {self.horizon} and n_obs_steps "
                f"{self.n_obs_steps} leave room for {max(room, 0)} actions; lower n_action_steps or raise horizon"
            )
        if self.prefix is not None and self.prefix.max_delay >= room:
            yield (
                f"prefix.max_delay is {self.prefix.max_delay}, but horizon {self.horizon} and n_obs_steps "
                f"{self.n_obs_steps} leave room for {max(room, 0)} actions, so none would be left to predict; lower it"
            )
        yield from self.backbone.horizon_faults(self.horizon)
        for fault in self.diffusion.sampler_faults(self.sampler):
            yield f"sampler does not fit diffusion.schedule: {fault}"
        for key, encoder in self.encoders.items():
            if encoder.needs_data_units and key in self.normalizer and self.normalizer[key].type != "identity":
                yield (
                    f"normalizer.{key} is {self.normalizer[key].type!r}, but the {encoder.type} encoder reads data "
                    f"units; remove it or use identity"
                )

    def open(self, data: Any) -> Any:
        """Open the training windows of the data that a record of `data_types` describes."""
        return data.create(self.horizon, self.n_obs_steps, self.n_action_steps)

    def resolve(self) -> Self:
        """The record with the architectures of pretrained encoders, as checkpoints keep it; see `VitEncoderConfig`.

        Raises:
            ConfigError: an encoder's weights cannot be read.
        """
        encoders: dict[str, Any] = {}
        for key, encoder in self.encoders.items():
            try:
                encoders[key] = encoder.resolve() if isinstance(encoder, CameraEncoderConfig) else encoder
            except (FileNotFoundError, ValueError) as error:
                raise ConfigError(f"task.encoders.{key}", [str(error)]) from None
        return self if encoders == self.encoders else self.model_copy(update={"encoders": encoders})

    def create(self, spec: Spec) -> DiffusionPolicy:
        """An untrained policy for data of this shape; its normalizer is still to be fitted or loaded.

        Raises:
            ConfigError: samples are longer or shorter than the task says, an encoder or normalizer names a key that the
                data do not have, or an encoder does not fit the shape of its observation.
        """
        self._check(spec, self.n_obs_steps)
        modules = {}
        for key, shape in spec.cond_shapes.items():
            try:
                modules[key] = self._encoder(key, spec.kind(key)).create(shape[1:])
            except ValueError as error:
                raise ConfigError(f"task.encoders.{key}", [str(error)]) from None
        return self._build(DiffusionPolicy, spec, spec.x_shape, ObservationEncoder(modules, spec.cond_shapes))

    def _check(self, spec: Spec, n_obs_steps: int) -> None:
        """Raises ConfigError unless such a policy can be built, and be given so many steps of each observation."""
        problems = [*self._length_faults(spec, n_obs_steps), *self._key_faults(spec), *self._kind_faults(spec)]
        if problems:
            raise ConfigError("task", problems)

    def _length_faults(self, spec: Spec, n_obs_steps: int) -> Iterator[str]:
        if spec.x_shape[0] != self.horizon:
            yield f"task.horizon is {self.horizon}, but a chunk of these data has {spec.x_shape[0]} actions"
        other = {key: shape[0] for key, shape in spec.cond_shapes.items() if shape[0] != n_obs_steps}
        if other:
            yield f"{n_obs_steps} steps of each observation are read, but these data have {other}"

    def _key_faults(self, spec: Spec) -> Iterator[str]:
        keys = list(spec.cond_shapes)
        shape = spec.cond_shapes.get(self.relative_to, ())[1:]
        if self.relative_to is not None and shape != spec.x_shape[1:]:
            found = f"has shape {shape}" if shape else f"is not among the observations {keys}"
            yield f"task.relative_to is {self.relative_to!r}, which {found}; an action is {spec.x_shape[1:]}"
        for field, named, known in (
            ("encoders", self.encoders, keys),
            ("cond_dropout", self.cond_dropout, keys),
            ("normalizer", self.normalizer, ["action", *keys]),
        ):
            unknown = sorted(set(named) - set(known))
            if unknown:
                yield f"task.{field} names {unknown}, which the data do not have; known: {known}"
        never_dropped = [key for key in keys if not self.cond_dropout.get(key)]
        if self.diffusion.guidance is not None and never_dropped:
            yield (
                f"task.diffusion.guidance needs an unconditional model, but training never drops "
                f"{never_dropped}; give these keys a probability in task.cond_dropout, for example 0.1"
            )

    def _kind_faults(self, spec: Spec) -> Iterator[str]:
        """Every observation has an encoder that reads its kind, and only vectors have a normalizer."""
        for key in spec.cond_shapes:
            kind = spec.kind(key)
            encoder = self._encoder(key, kind)
            if kind not in encoder.reads:
                given = f"task.encoders.{key} is {encoder.type!r}" if key in self.encoders else "task.encoders omits it"
                yield (
                    f"observation {key!r} is of kind {kind!r}, but {given}, and the {encoder.type} encoder reads "
                    f"{' and '.join(encoder.reads)}; name an encoder of this kind, or leave the observation out"
                )
            if kind not in NORMALISED and key in self.normalizer:
                yield (
                    f"task.normalizer names {key!r}, which is of kind {kind!r}; only vectors and texts are normalised "
                    f"by statistics, so remove it"
                )

    def _build(
        self,
        policy: type[DiffusionPolicy],
        spec: Spec,
        x_shape: tuple[int, ...],
        encoder: nn.Module,
        normalizer: type[Normalizer] = Normalizer,
        shown: Tensor | None = None,
    ) -> DiffusionPolicy:
        """A policy that diffuses x_shape; see `DiffusionModel`."""
        process = self.diffusion.create()
        input_factor = process.input_factor + (self.prefix is not None)  # the mask of what is given
        shapes, modes = {"x": spec.x_shape[1:]}, {"x": self.normalizer.get("action", Limits())}
        for key, shape in spec.cond_shapes.items():
            shapes[key], modes[key] = (
                shape[1:],
                self._normalizer(key, spec.kind(key)) if spec.kind(key) in NORMALISED else None,
            )
        return policy(
            record=self,
            spec=spec,
            normalizer=normalizer(shapes, modes),
            encoder=encoder,
            backbone=self.backbone.create(x_shape, encoder.cond_shape, process.output_factor, input_factor),
            process=process,
            sampler=self.sampler,
            cond_dropout=self.cond_dropout,
            x_shape=x_shape,
            shown=shown,
        )

    def _encoder(self, key: str, kind: Kind = "vector") -> EncoderConfig:
        default = ResNetEncoderConfig() if kind == "image" else StateEncoderConfig()
        return self.encoders.get(key, default)

    def _normalizer(self, key: str, kind: Kind) -> NormalizerConfig:
        if kind == "text":  # embeddings of similar texts hardly differ, compared with the direction that they share
            return self.normalizer.get(key, Gaussian())
        return self.normalizer.get(key, Identity() if self._encoder(key).needs_data_units else Limits())


class DiffusionPolicy(Pretrained, DiffusionModel):
    """Action chunks from observations."""

    def __init__(self, *, record: PolicyConfig, **parts: Any):
        super().__init__(**parts)
        self.record = record
        self.horizon = record.horizon
        self.n_obs_steps = record.n_obs_steps
        self.n_action_steps = record.n_action_steps
        key = record.relative_to
        self.actions = None if key is None else RelativeActions(key, record.n_obs_steps - 1)

    record_type = PolicyConfig

    def fit(self, statistics: Mapping[str, Statistics], samples: Samples) -> None:
        """Fit the normalizer; relative actions have statistics of their own, over the windows that are trained on."""
        if self.actions is not None:
            statistics = {**statistics, "x": self._offset_statistics(samples)}
        super().fit(statistics, samples)

    def _offset_statistics(self, samples: Samples) -> Statistics:
        count = min(len(samples), MOST_WINDOWS_FITTED)
        samples = samples.seeing({self.actions.key})  # no camera frame is read
        batch = samples.fetch((torch.arange(count) * len(samples) // count).to(samples.device))
        offsets = self.actions.encode(batch.x, batch.cond)[batch.mask]  # (valid positions, A)
        return Statistics.of(offsets.cpu().numpy())

    def given(self, mask: Tensor, random: Randomness) -> Tensor | None:
        """See `DiffusionModel.given` and `PrefixConfig`."""
        prefix = self.record.prefix
        return super().given(mask, random) if prefix is None else prefix.draw(mask, self.n_obs_steps - 1, random)

    def marked(self, network: Network, given: Tensor | None) -> Network:
        """See `DiffusionModel.marked`."""
        return network if self.record.prefix is None else marked(network, self.x_shape[-1], given)

    def encode_x(self, x: Tensor, cond: dict[str, Tensor]) -> Tensor:
        """See `RelativeActions`."""
        return x if self.actions is None else self.actions.encode(x, cond)

    def decode_x(self, x: Tensor, cond: dict[str, Tensor]) -> Tensor:
        """See `RelativeActions`."""
        return x if self.actions is None else self.actions.decode(x, cond)

    def predict(
        self,
        obs: dict[str, Tensor],
        random: Randomness,
        sampler: SamplerConfig | None = None,
        *,
        previous: Tensor | None = None,
        known: tuple[Tensor, Tensor] | None = None,
        prefix: Tensor | None = None,
        target: Target | None = None,
    ) -> Tensor:
        """Predict action chunks.

        Args:
            obs: (B, n_obs_steps, ...) by key, data units, newest last; keys the policy does not know are ignored.
            random: B rows.
            sampler: replaces the configured one.
            previous: (B, horizon, action_dim) chunks to start from, such as the last ones shifted to now; see `sample`.
            known: values (B, horizon, action_dim) and a bool mask of them, such as actions already being executed; the
                chunk has these values exactly.
            prefix: (B, n_obs_steps - 1 + d, action_dim) the first actions of the chunks, which the network is given as
                in training with `task.prefix`; d from 1 to its `max_delay`. The chunk has these values exactly.
            target: what to guide the chunks toward, its values (B, horizon, action_dim); on any trained policy.

        Returns:
            (B, horizon, action_dim) in data units; the executed slice starts at index n_obs_steps - 1.

        Raises:
            ValueError: an observation is missing, has another shape or type, or is not finite, see `check_obs`; or the
                policy was not trained for such a prefix.
        """
        shown = None
        if prefix is not None:
            if known is not None:
                raise ValueError("both prefix and known were passed; pass one of them")
            self._check_prefix(prefix)
            values = F.pad(prefix, (0, 0, 0, self.horizon - prefix.shape[1]))
            shown = (torch.arange(self.horizon, device=prefix.device) < prefix.shape[1])[None, :, None]
            known = values, shown
        steps = {self.n_obs_steps, *(shape[0] for shape in self.spec.cond_shapes.values())}
        obs = check_obs(obs, self.spec, rows=len(random), steps=steps)
        return self.sample(obs, random, sampler, previous=previous, known=known, shown=shown, target=target)

    def _check_prefix(self, prefix: Tensor) -> None:
        """Raises ValueError for a prefix that the policy was not trained to continue."""
        if self.record.prefix is None:
            raise ValueError(
                "the policy was trained without task.prefix, so it cannot be given a prefix; use merge 'guided', or "
                "train it with task.prefix"
            )
        past, most = self.n_obs_steps - 1, self.record.prefix.max_delay
        if not past < prefix.shape[1] <= past + most:
            raise ValueError(
                f"the prefix has {prefix.shape[1]} actions, which is a delay of {prefix.shape[1] - past} steps; the "
                f"policy was trained for delays from 1 to {most} (task.prefix.max_delay)"
            )
