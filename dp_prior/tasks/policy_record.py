"""PolicyRecord: the settings of a policy, and what follows from them for each observation."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from dp_prior.config import Change, late, record_for
from dp_prior.diffusion.process_config import DiffusionConfig
from dp_prior.diffusion.sampler import DDIM, SamplerConfig
from dp_prior.networks.backbones import BackboneConfig
from dp_prior.networks.backbones.unet1d import UNet1DConfig
from dp_prior.networks.encoders import EncoderConfig
from dp_prior.tasks.task_record import TaskRecord
from dp_prior.tensors.actions import ArmConfig
from dp_prior.tensors.batch import FRAMES, Kind
from dp_prior.tensors.normalizer import Gaussian, Identity, Limits, NormalizerConfig

PrefixConfig = late("dp_prior.tasks.prefix:PrefixConfig")


class PolicyRecord(TaskRecord):
    """The settings of a policy; `PolicyConfig` checks them and builds the policy."""

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

    arms: tuple[ArmConfig, ...] = ()
    """Relative actions by slice: poses in the frame of the newest observed one, joints as offsets from theirs. Elements
    that no arm names, such as grippers, are diffused as they are; rotations, which `data` names, as 6D."""

    prefix: PrefixConfig | None = None
    """Training-time chunking: the policy learns to continue actions that are already executed or under way, for robots
    that act while the next chunk is predicted. The network gets as many more input channels as an action has numbers.
    null: chunks are predicted from observations alone."""

    encoders: dict[str, EncoderConfig] = {}
    """Encoder of each observation key; the default is the state encoder, for camera frames and depth
    resnet, for point clouds points."""

    shared_encoders: dict[str, str] = {}
    """By camera, another one whose encoder reads its frames too, with the same weights; crops and jitter are drawn for
    each camera. Both have frames of one size."""

    normalizer: dict[str, NormalizerConfig] = {}
    """Normalizer of each observation key and of `action`; the default is limits, gaussian for instructions, or identity
    for encoders that read data units."""

    backbone: BackboneConfig = UNet1DConfig()
    """The network that predicts from a noisy chunk, its timestep and the observations."""

    cond_dropout: dict[str, Annotated[float, Field(ge=0, le=1)]] = {}
    """Probability, by key, of dropping an observation from a sample in training; guidance needs it for every key."""

    diffusion: DiffusionConfig = DiffusionConfig.model_construct()
    """Noise schedule, objective, loss weighting and timesteps."""

    sampler: Annotated[SamplerConfig, Change("harmless")] = DDIM()
    """Sampler for evaluation and on the robot; can be replaced when a policy is loaded."""

    @property
    def room(self) -> int:
        """Actions of a chunk from the present one on; below 1 the chunk ends before the present."""
        return self.horizon - self.n_obs_steps + 1

    def encoder_of(self, key: str, kind: Kind) -> EncoderConfig:
        """The encoder of an observation: its own, the one it shares, or the default of its kind."""
        encoder = self.encoders.get(self.shared_encoders.get(key, key))
        if encoder is not None:
            return encoder
        default = {"points": "points", **dict.fromkeys(FRAMES, "resnet")}.get(kind, "state")
        return record_for(EncoderConfig, {"type": default})()

    def normalizer_of(self, key: str, kind: Kind = "vector") -> NormalizerConfig:
        """How an observation is normalised."""
        if kind == "text":  # embeddings of similar texts hardly differ, compared with the direction that they share
            return self.normalizer.get(key, Gaussian())
        return self.normalizer.get(key, Identity() if self.encoder_of(key, kind).needs_data_units else Limits())

    def depths_beside(self) -> dict[str, str]:
        """By camera, the key of the depth that the camera's encoder reads beside colours."""
        depths = {key: encoder.depth_beside for key, encoder in self.encoders.items()}
        return {key: depth for key, depth in depths.items() if depth is not None}
