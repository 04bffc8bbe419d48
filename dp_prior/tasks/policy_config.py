"""PolicyConfig: the record of a policy, which refuses contradictions within itself and with the data, and builds the
policy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Self

from torch import Tensor, nn

from dp_prior.config import ConfigError, errors_of, made
from dp_prior.diffusion.process import DiffusionProcess
from dp_prior.networks.encoders.encoder import FOR_TRANSFER, Encoder, ReadElsewhere
from dp_prior.networks.encoders.observation import ObservationEncoder
from dp_prior.tasks.policy import DiffusionPolicy
from dp_prior.tasks.policy_faults import contradictions, data_faults, observation_faults
from dp_prior.tasks.policy_record import PolicyRecord
from dp_prior.tensors.actions import OffsetArm, Transforms
from dp_prior.tensors.batch import NORMALISED, Spec
from dp_prior.tensors.normalizer import Identity, Limits, Normalizer, NormalizerConfig, SliceConfig, Slices
from dp_prior.tensors.rotations import Layout

if TYPE_CHECKING:
    from dp_prior.data.data_record import DataRecord
    from dp_prior.data.split_data import SplitData


class PolicyConfig(PolicyRecord):
    """A diffusion policy: the predicted chunk, the observations, and the network."""

    def faults(self) -> Iterator[str]:
        yield from contradictions(self)

    def open(self, data: DataRecord) -> SplitData:
        """Open the training windows of the data that a record of `data_types` describes."""
        return data.create(self.horizon, self.n_obs_steps, self.n_action_steps)

    def resolve(self) -> Self:
        """The record with the architectures of pretrained encoders, as checkpoints keep it; see `VitEncoderConfig`.

        Raises:
            ConfigError: an encoder's weights cannot be read.
        """
        encoders: dict[str, Any] = {}
        for key, encoder in self.encoders.items():
            with errors_of(f"task.encoders.{key}", FileNotFoundError):
                encoders[key] = encoder.resolve()
        return self if encoders == self.encoders else self.model_copy(update={"encoders": encoders})

    def create(self, spec: Spec) -> DiffusionPolicy:
        """An untrained policy for data of this shape; its normalizer is still to be fitted or loaded.

        Raises:
            ConfigError: samples are longer or shorter than the task says, an encoder or normalizer names a key that the
                data do not have, or an encoder does not fit the shape of its observation.
        """
        self._check(spec, self.n_obs_steps)
        modules, transforms, depths = {}, self.transforms(spec), self.depths_beside()
        for key in spec.cond_shapes:
            if key in depths.values() or key in self.shared_encoders:
                modules[key] = ReadElsewhere()
                continue
            with errors_of(f"task.encoders.{key}"):
                encoder = self.encoder_of(key, spec.kind(key))
                create = encoder.create_depth if spec.kind(key) == "depth" else encoder.create
                modules[key] = made(encoder, create.__name__, create(transforms.shape(key)), Encoder, FOR_TRANSFER)
        x_shape = (self.horizon, *transforms.shape("x"))
        alike = {key: depth.camera for key, depth in spec.depths.items() if depth.camera is not None}
        encoder = ObservationEncoder(modules, spec.cond_shapes, depths, alike, self.shared_encoders)
        return self._build(DiffusionPolicy, spec, x_shape, encoder)

    def transforms(self, spec: Spec) -> Transforms:
        """The transforms of actions and observations before normalisation."""
        whole = () if self.relative_to is None else (OffsetArm(action=(0, spec.x_shape[-1]), key=self.relative_to),)
        return Transforms(spec, self.arms or whole, self.n_obs_steps - 1)

    def _check(self, spec: Spec, n_obs_steps: int) -> None:
        """Raises ConfigError unless this policy can be built and given `n_obs_steps` steps of each observation."""
        problems = [*data_faults(self, spec, n_obs_steps), *self._observation_faults(spec)]
        if problems:
            raise ConfigError("task", problems)

    def _observation_faults(self, spec: Spec) -> Iterator[str]:
        """Observations that the policy cannot read."""
        return observation_faults(self, spec)

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
        process = DiffusionProcess(self.diffusion)
        input_factor = process.input_factor + (self.prefix is not None)  # the mask of what is given
        transforms, modes = self.transforms(spec), {"x": self.normalizer.get("action", Limits())}
        for key in spec.cond_shapes:
            modes[key] = self.normalizer_of(key, spec.kind(key)) if spec.kind(key) in NORMALISED else None
        shapes = {key: transforms.shape(key) for key in modes}
        modes |= {key: _beside_rotations(modes[key], transforms.layouts[key]) for key in spec.rotations}
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


def _beside_rotations(mode: NormalizerConfig, layout: Layout) -> NormalizerConfig:
    """The normalizer of a vector whose rotations are 6D; these are left alone."""
    parts, rest = (mode.slices, mode.others) if isinstance(mode, Slices) else ((), mode)
    slices = [SliceConfig(slice=layout.inside(part.slice), normalizer=part.normalizer) for part in parts]
    slices += [SliceConfig(slice=layout.inside(rotation.slice), normalizer=Identity()) for rotation in layout.rotations]
    return Slices(slices=tuple(slices), others=rest)
