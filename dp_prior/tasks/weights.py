"""Weights of a model: the files that hold them, and loading them strictly."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from dp_prior.config import Config


class TransferConfig(Config):
    """A checkpoint to start from, and which parts of it. A part is the beginning of names of tensors, such as
    `encoder.camera`, `normalizer.x` or `backbone.down.0`."""

    path: str
    """Checkpoint: a path, `hf://...`, or another reference that `load_policy` reads."""

    only: tuple[str, ...] = ()
    """Parts that are taken; all others begin anew. Empty for every part."""

    may_differ: tuple[str, ...] = ()
    """Parts whose tensors may differ; tensors elsewhere must fit. Numbers of actions and observations and features of
    cameras are taken by name where both policies have them; everything else begins anew."""

    @property
    def is_partial(self) -> bool:
        """Whether the model may keep first values of its own."""
        return bool(self.only or self.may_differ)

    @classmethod
    def of(cls, setting: str | TransferConfig | None) -> TransferConfig | None:
        """The record of a setting, where a path alone stands for all of a checkpoint."""
        return cls(path=setting) if isinstance(setting, str) else setting


def weights_file(name: str, averages: Sequence[str]) -> str:
    """The file of an average: `model.safetensors` for the first, `model_NAME.safetensors` for the others."""
    return "model.safetensors" if name == averages[0] else f"model_{name}.safetensors"


def load_weights(model: nn.Module, tensors: dict[str, Tensor], problem: str, hint: str) -> None:
    """Load strictly: every tensor must be present with its shape, and no other one.

    Args:
        problem, hint: start and end of the error message.

    Raises:
        ValueError: a tensor is missing, unknown or of another shape; the model is unchanged.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    expected = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    problems = [f"{name} is missing" for name in expected if name not in shapes]
    problems += [f"{name} is unknown" for name in shapes if name not in expected]
    problems += [
        f"{name} has shape {shapes[name]}, expected {shape}"
        for name, shape in expected.items()
        if name in shapes and shapes[name] != shape
    ]
    if problems:
        listed = "; ".join(problems[:5]) + (f"; and {len(problems) - 5} more" if len(problems) > 5 else "")
        matched = sum(shape == expected.get(name) for name, shape in shapes.items())
        raise ValueError(f"{problem}: {listed}. {hint} {matched} of {len(expected)} tensors match.")
    model.load_state_dict(tensors)
