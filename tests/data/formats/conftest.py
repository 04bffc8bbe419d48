"""A data set of numbers of many types, a camera, two instructions and a rate."""

import json
import os
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tests.data.frames.recordings import ends_of, pictures

PEERS = Path(os.environ.get("DP_PRIOR_PEERS", "no folder of peers")) / "packages"
LENGTHS = [5, 1, 8]
N = sum(LENGTHS)
TASKS = ["push the T", "pull the T ✓"]


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "actions": rng.normal(size=(N, 2)).astype(np.float32),
        "state": rng.normal(size=(N, 3)),  # float64
        "zeros": np.zeros((N, 4), np.float32),
        "points": rng.normal(size=(N, 3, 2)).astype(np.float32),
        "grip": rng.integers(0, 200, (N, 1)).astype(np.uint8),
        "is_done": rng.integers(0, 2, (N, 1)).astype(bool),
        "task_index": np.repeat([[0], [1], [0]], LENGTHS, axis=0),
    }


@pytest.fixture
def source(tmp_path) -> Path:
    """Numbers of many types, one camera, two tasks and a rate, as .npz."""
    numbers = {**arrays(), "front": pictures(N), "episode_ends": ends_of(LENGTHS)}
    np.savez(tmp_path / "plain.npz", **numbers)
    with zipfile.ZipFile(tmp_path / "plain.npz", "a") as archive:
        archive.writestr("meta.json", json.dumps({"fps": 10, "tasks": TASKS, "names": {"actions": ["x", "y"]}}))
    return tmp_path / "plain.npz"


@pytest.fixture
def run_python_with_peers(tmp_path):
    if not (PEERS / "lerobot").is_dir():
        pytest.skip("NOT CHECKED: set DP_PRIOR_PEERS to a folder that scripts/peers.sh fills")

    def run(program, *arguments):
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)],
            cwd=Path(__file__).parents[3], env=environment, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    return run
