"""Base classes of the encoders of one observation key, of their records, and of modules with published weights."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import ClassVar, Self

from torch import Tensor, nn

from dp_prior.config import Config
from dp_prior.tensors.randomness import Randomness

FOR_TRANSFER = ("features", "number_axes")
"""Attributes that fine-tuning alone reads."""


class Encoder(nn.Module):
    """One observation key -> features of each observation step.

    Attributes:
        output_dim: features per step.
    """

    output_dim: int

    draws: ClassVar[bool] = False
    """Whether `forward` uses random rows, for example to crop or jitter; otherwise `random` is None."""

    number_axes: ClassVar[Mapping[str, int]] = {}
    """Axis along which a tensor has an element for each number of the observation, by the tensor's name."""

    def features(self, numbers: tuple[Hashable, ...]) -> list[Hashable]:
        """Names of the features of a step, equal for encoders whose features mean the same.

        Args:
            numbers: names of the numbers of the observation; empty for other kinds.
        """
        read = () if self.number_axes else numbers
        return [(read, self.output_dim, place) for place in range(self.output_dim)]

    def forward(self, value: Tensor, random: Randomness | None = None) -> Tensor:
        """(B, n_obs_steps, *shape) -> (B, n_obs_steps, output_dim).

        Args:
            random: B rows, one per sample, in training; None in evaluation and inference. The only permitted source of
                random numbers, so that a sample's draw depends on neither batch nor rank.
        """
        raise NotImplementedError


class ReadElsewhere(Encoder):
    """The place of an observation that the encoder of another one reads: no parameters and no features."""

    output_dim = 0

    def forward(self, value: Tensor, random: Randomness | None = None) -> Tensor:
        return value.new_zeros(*value.shape[:2], 0)


class EncoderRecord(Config):
    """An encoder. A member of the family has a `type`, `create(shape)`, the kinds of keys that it `reads`, and
    `needs_data_units`. A record of another package that does not extend this class gets the attributes that it lacks.
    """

    @property
    def depth_beside(self) -> str | None:
        """Key of the depth that the encoder of a camera reads beside colours; None for encoders of one observation."""
        return None

    def resolve(self) -> Self:
        """The record with everything that only the files of pretrained weights say.

        Raises:
            FileNotFoundError: the weights cannot be read.
        """
        return self


class FineTuned(nn.Module):
    """A part of a model with a learning rate of its own.

    Attributes:
        lr_scale: the part's parameters learn at this multiple of the optimizer's rate.
    """

    lr_scale: float = 1.0


class PretrainedModule(nn.Module):
    """A module that can start from published weights.

    Building the module reads no file: a model loaded from a checkpoint or export has its weights already, and the
    published file may be gone.
    """

    def load_pretrained(self) -> None:
        """Load the weights that the record names; a record without weights keeps the random ones."""
        raise NotImplementedError


def load_pretrained(model: nn.Module) -> None:
    """Read the published weights of every part of `model`, once, when a new run creates it."""
    for module in model.modules():
        if isinstance(module, PretrainedModule):
            module.load_pretrained()
