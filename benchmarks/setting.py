"""What is measured: a data set of the size of human Push-T, a policy of the paper's shape, and its trainer."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from benchmarks.measure import Options
from dp_prior.data.formats.npz import NpzStoreConfig
from dp_prior.data.recorded.trajectories import Trajectories, TrajectoriesConfig
from dp_prior.data.samples.loader import Loader
from dp_prior.job.accelerator import make_accelerator
from dp_prior.job.ranks import Ranks
from dp_prior.networks.backbones.backbone_record import BackboneRecord
from dp_prior.networks.backbones.unet1d import UNet1DConfig, rename_published
from dp_prior.tasks.policy import DiffusionPolicy
from dp_prior.tasks.policy_config import PolicyConfig
from dp_prior.training.trainer import PolicyTrainer
from dp_prior.training.training_config import TrainingConfig

if TYPE_CHECKING:
    from benchmarks.baseline import Training, UNet

HORIZON, N_OBS_STEPS, N_ACTION_STEPS = 16, 2, 8
STATE_DIM, ACTION_DIM = 5, 2
COND_DIM = N_OBS_STEPS * STATE_DIM


@functools.cache
def arrays(episodes: int = 206, steps: int = 25_650) -> dict[str, np.ndarray]:
    """Random walks with the counts of the human Push-T demonstrations, whose shortest episode has 49 steps."""
    rng = np.random.default_rng(0)
    ends = 49 * np.arange(1, episodes) + np.sort(rng.integers(0, steps - 49 * episodes, episodes - 1))
    walk = rng.normal(size=(steps, STATE_DIM + ACTION_DIM)).cumsum(0).astype(np.float32)
    return {
        "state": walk[:, :STATE_DIM],
        "action": walk[:, STATE_DIM:],
        "episode_ends": np.append(ends, steps).astype(np.int64),
    }


@functools.cache
def trajectories() -> Trajectories:
    """The same arrays as dp_prior reads them, all of them for training."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "walks.npz"
        np.savez(path, **arrays())
        config = TrajectoriesConfig.model_validate(
            {
                "episodes": NpzStoreConfig(path=path),
                "obs": {"state": {"key": "state"}},
                "action": {"key": "action"},
                "split": {"train": 1.0, "val": 0.0, "test": 0.0},
            }
        )
        return config.create(HORIZON, N_OBS_STEPS, N_ACTION_STEPS)


def loader(options: Options) -> Loader:
    """Our batches."""
    return Loader(trajectories().train, batch_size=options.batch_size, accumulation=1, seed=0, rank=0, world_size=1)


def policy(options: Options, backbone: BackboneRecord | None = None) -> DiffusionPolicy:
    """Our policy, fitted to the data. Args: backbone: None for the paper's UNet."""
    config = PolicyConfig(
        horizon=HORIZON,
        n_obs_steps=N_OBS_STEPS,
        n_action_steps=N_ACTION_STEPS,
        backbone=backbone or UNet1DConfig(down_dims=options.widths),
    )
    torch.manual_seed(0)
    fitted = config.create(trajectories().spec)
    fitted.normalizer.fit(trajectories().statistics())
    return fitted


def trainer(options: Options, precision: str = "fp32", **train: Any) -> PolicyTrainer:
    """Our trainer, without evaluators, tracker and checkpoints."""
    nowhere = SimpleNamespace(
        log=lambda row, progress: None, log_images=lambda images, progress: None, submit=lambda *arguments: None
    )
    return PolicyTrainer(
        policy(options),
        loader(options),
        TrainingConfig.model_validate({"steps": 1_000_000, "precision": precision, **train}),
        ranks=Ranks(make_accelerator(precision)),
        tracker=nowhere,
        writer=nowhere,
        evaluators=[],
        seed=0,
        documents={},
    )


def baseline(options: Options, precision: str = "fp32") -> Training:
    """The baseline's training state."""
    from benchmarks.baseline import Training  # with diffusers, which takes seconds to import

    torch.manual_seed(0)
    return Training(ACTION_DIM, COND_DIM, options.widths, precision)


def same_weights(net: UNet, policy: DiffusionPolicy) -> None:
    """Give our backbone the baseline's weights, so that both compute the same function."""
    policy.backbone.load_state_dict(rename_published(net.state_dict()))
