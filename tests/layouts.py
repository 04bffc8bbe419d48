"""Records the memory order of what the library's convolutions and group norms receive and return."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dp_prior.networks import layers

LIBRARY = ("convolution", "convolution_backward", "native_group_norm", "native_group_norm_backward")


class Layouts(TorchDispatchMode):
    """While entered, records each call of the library: its operator, and the images that channels-first kernels would
    have to convert, by direction, shape and strides."""

    def __init__(self):
        super().__init__()
        self.calls: list[str] = []
        self.conversions: list[tuple[str, str, tuple[int, ...], tuple[int, ...]]] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        results = function(*args, **(kwargs or {}))
        name = function._schema.name.split("::")[-1]
        if name in LIBRARY:
            self.calls.append(name)
            returned = results if isinstance(results, tuple) else (results,)
            for direction, values in (("receives", args), ("returns", returned)):
                images = [value for value in values if isinstance(value, Tensor) and value.dim() == 4]
                self.conversions += [
                    (name, direction, tuple(image.shape), image.stride())
                    for image in images
                    if not image[:1].is_contiguous()  # the rows of a slice of channels lie apart, each in its order
                ]
        return results


@contextlib.contextmanager
def channels_first(*devices: str) -> Iterator[None]:
    """Inside, sequences of convolutions on these devices have the memory order that they have on a GPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layers, "CHANNELS_FIRST", {*layers.CHANNELS_FIRST, *devices})
        yield
