"""Ten episodes of numbers in a .npz file, and the records of windows over these."""

import json

import numpy as np
import torch

from dp_prior.data.recorded.trajectories import TrajectoriesConfig


def episodes(lengths=(20, 5, 30, 17, 9, 12, 25, 3, 14, 21), seed=0) -> dict[str, np.ndarray]:
    n = sum(lengths)
    rng = np.random.default_rng(seed)
    return {
        "state": rng.normal(size=(n, 5)).astype(np.float32),
        "points": rng.normal(size=(n, 3, 2)),
        "gripper": rng.integers(0, 2, size=n),
        "action": rng.normal(size=(n, 2)).astype(np.float32),
        "episode_ends": np.cumsum(lengths),
    }


CONFIG = {
    "obs": {"agent": {"key": "state", "slice": [1, 3]}, "points": {"key": "points"}, "gripper": {"key": "gripper"}},
    "action": {"key": "action"},
    "split": {"train": 0.6, "val": 0.2, "test": 0.2},
}


def configure(path, **changes) -> TrajectoriesConfig:
    record = {"episodes": {"type": "npz", "path": str(path)}, **CONFIG, **changes}
    return TrajectoriesConfig.from_json(json.dumps(record))


def fetch_all(window_set):
    return window_set.fetch(torch.arange(len(window_set)))
