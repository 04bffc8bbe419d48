"""The policies of the published recipes as ours, with samples without meaning to train on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dp_prior.job.accelerator import make_accelerator
from dp_prior.job.ranks import Ranks
from dp_prior.networks.backbones.unet1d import rename_published as rename_unet
from dp_prior.networks.encoders.resnet import rename_published as rename_encoder
from dp_prior.run.config import TrainConfig
from dp_prior.tasks.model import DiffusionModel
from dp_prior.tasks.policy import DiffusionPolicy
from dp_prior.tensors.batch import Batch, Spec
from dp_prior.tensors.normalizer import Statistics
from dp_prior.training.trainer import PolicyTrainer

RECIPES = Path(__file__).parent.parent / "configs/policy"
SPEC = Spec(
    x_shape=(16, 2), cond_shapes={"agent_pos": (2, 2), "camera": (2, 96, 96, 3)}, kinds={"camera": "image"}
)  # fmt: skip
STATE_SPEC = Spec(x_shape=(16, 2), cond_shapes={"agent_pos": (2, 2), "keypoint": (2, 9, 2)})
SPECS = {
    "pusht_state": Spec(x_shape=(8, 2), cond_shapes={"agent_pos": (1, 2), "state": (1, 5)}),
    "pusht_image": Spec(
        x_shape=(16, 2), cond_shapes={"agent_pos": (1, 2), "camera": (1, 96, 96, 3)}, kinds={"camera": "image"}
    ),
}
"""Shapes of the data of recipes of this repository."""


def record(
    widths: tuple[int, ...] | None = None, overrides: tuple[str, ...] = (), name: str = "pusht_image_paper"
) -> TrainConfig:
    """A recipe of `configs/policy` with a UNet of these widths; None for the recipe's own."""
    if widths is not None:
        overrides = (f"task.backbone.down_dims={list(widths)}", *overrides)
    return TrainConfig.from_json_path(RECIPES / f"{name}.json", overrides)


def policy(config: TrainConfig, spec: Spec = SPEC) -> DiffusionPolicy:
    """Create an untrained policy, whose normalizer leaves numbers from -1 to 1 unchanged."""
    torch.manual_seed(0)
    policy_of_recipe = config.task.create(spec)
    shapes = {
        "x": spec.x_shape,
        **{key: spec.cond_shapes[key] for key in spec.cond_shapes if spec.kind(key) == "vector"},
    }
    ends = {key: np.stack([-np.ones(shape[1:]), np.ones(shape[1:])]) for key, shape in shapes.items()}
    policy_of_recipe.normalizer.fit({key: Statistics.of(values) for key, values in ends.items()})
    return policy_of_recipe


def batch(count: int, device: torch.device | str = "cpu", spec: Spec = SPEC) -> Batch:
    """Draw random samples: pixels, states and actions from -1 to 1."""
    generator = torch.Generator().manual_seed(0)

    def make(shape: tuple[int, ...], is_image: bool = False) -> Tensor:
        if is_image:
            return torch.randint(0, 256, (count, *shape), dtype=torch.uint8, generator=generator)
        return 2 * torch.rand(count, *shape, generator=generator) - 1

    ids = torch.arange(count)
    samples = Batch(
        x=make(spec.x_shape),
        cond={key: make(shape, spec.kind(key) == "image") for key, shape in spec.cond_shapes.items()},
        mask=torch.ones(count, spec.x_shape[0], dtype=torch.bool),
        ids=ids,
        positions=ids,
    )
    return samples.to(device)


class _Samples:
    """What a trainer asks of a loader but batches."""

    def __init__(self, global_batch_size: int):
        self.global_batch_size = global_batch_size

    def __len__(self) -> int:
        return 24_208  # windows of the 206 human demonstrations


def trainer(config: TrainConfig, spec: Spec = SPEC) -> PolicyTrainer:
    """A trainer of such a policy; see `bare_trainer`."""
    return bare_trainer(policy(config, spec), config)


def bare_trainer(model: DiffusionModel, config: TrainConfig) -> PolicyTrainer:
    """A trainer with nothing to evaluate and nowhere to save; give `step` the batches."""
    nowhere = SimpleNamespace(log=None, log_images=None, submit=None)
    return PolicyTrainer(
        model,
        _Samples(config.data.batch_size),
        config.train,
        ranks=Ranks(make_accelerator(config.train.precision)),
        tracker=nowhere,
        writer=nowhere,
        evaluators=[],
        seed=0,
        documents={},
    )


def pixels(batch: Batch) -> Tensor:
    """(B, 2, 3, 96, 96) float32 from -1 to 1, as the peers are given them."""
    return (batch.cond["camera"].permute(0, 1, 4, 2, 3) / 255 - 0.5) / 0.5


def renamed_lerobot(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights, or gradients, of LeRobot's policy under the names that our policy's encoder and backbone have."""
    parts: dict[str, dict[str, Any]] = {"rgb_encoder": {}, "unet": {}}
    for name, value in weights.items():
        part, _, rest = name.removeprefix("diffusion.").partition(".")
        parts[part][rest] = value
    camera = {f"encoder.encoders.1.{name}": value for name, value in rename_encoder(parts["rgb_encoder"]).items()}
    return camera | {f"backbone.{name}": value for name, value in rename_unet(parts["unet"]).items()}
