"""The published image policy of Push-T as ours, with pixels without meaning to train on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dp_prior.batch import Batch, Spec
from dp_prior.job.ranks import Ranks, make_accelerator
from dp_prior.networks.backbones.unet1d import rename_published as rename_unet
from dp_prior.networks.encoders.resnet import rename_published as rename_encoder
from dp_prior.normalizer import Statistics
from dp_prior.run.config import TrainConfig
from dp_prior.tasks.policy import DiffusionPolicy
from dp_prior.training.trainer import PolicyTrainer

RECIPE = Path(__file__).parent.parent / "configs/policy/pusht_image_paper.json"
SPEC = Spec(
    x_shape=(16, 2), cond_shapes={"agent_pos": (2, 2), "camera": (2, 96, 96, 3)}, kinds={"camera": "image"}
)  # fmt: skip


def record(widths: tuple[int, ...], overrides: tuple[str, ...] = ()) -> TrainConfig:
    """The published recipe with a UNet of these widths."""
    return TrainConfig.from_json_path(RECIPE, (f"task.backbone.down_dims={list(widths)}", *overrides))


def policy(config: TrainConfig) -> DiffusionPolicy:
    """An untrained policy, whose normalizer leaves numbers from -1 to 1 as they are."""
    torch.manual_seed(0)
    found = config.task.create(SPEC)
    ends = np.array([[-1.0, -1.0], [1.0, 1.0]])
    found.normalizer.fit({"x": Statistics.of(ends), "agent_pos": Statistics.of(ends)})
    return found


def batch(count: int, device: torch.device | str = "cpu") -> Batch:
    """Made-up samples: pixels, positions and actions from -1 to 1."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.arange(count)
    found = Batch(
        x=2 * torch.rand(count, 16, 2, generator=generator) - 1,
        cond={
            "agent_pos": 2 * torch.rand(count, 2, 2, generator=generator) - 1,
            "camera": torch.randint(0, 256, (count, 2, 96, 96, 3), dtype=torch.uint8, generator=generator),
        },
        mask=torch.ones(count, 16, dtype=torch.bool),
        ids=ids,
        positions=ids,
    )
    return found.to(device)


def trainer(config: TrainConfig) -> PolicyTrainer:
    """A trainer of such a policy, with nothing to evaluate and nowhere to save; give `step` the batches."""
    nowhere = SimpleNamespace(log=None, log_images=None, submit=None)
    return PolicyTrainer(
        policy(config),
        SimpleNamespace(global_batch_size=config.data.batch_size),
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
