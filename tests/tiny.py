"""A whole run in a second: the toy's demonstrations, an MLP of width 16, a few dozen steps.

Samples: 3 episodes of about 21 steps to train on, one to validate on; one global batch is 8.
"""

import itertools
import json
import os
import signal
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from click.testing import CliRunner, Result

from dp_prior.checkpoints import format as checkpoint_format
from dp_prior.checkpoints.format import read_checkpoint
from dp_prior.checkpoints.store import CheckpointStore
from dp_prior.cli import train as command
from dp_prior.envs.toy import demonstrations
from dp_prior.evaluation.loss import LossEvaluator
from dp_prior.places.reference import resolve
from dp_prior.run.config import TrainConfig
from dp_prior.run.run import Run
from dp_prior.tracking.jsonl import read_rows
from dp_prior.tracking.tracker import Tracker
from dp_prior.training.trainer import PolicyTrainer

OVER_TIME = ("train/samples_per_second", "train/data_share", "train/evaluation_seconds")  # read from a wall clock
EPISODES = demonstrations(4, seed=3)  # which a thousand tests write


def write_data(path: Path, n: int = 4) -> Path:
    """Episodes of the toy's expert as .npz; returns the path."""
    np.savez(path, **(EPISODES if n == 4 else demonstrations(n, seed=3)))
    return path


def tiny(place: Path, **changes: Any) -> dict[str, Any]:
    """A configuration as JSON, with data in `place` and its run in `place / "run"`.

    Args:
        changes: new values by dotted path with `__` for the dot: `train__steps=4`.
    """
    data = place / "toy.npz"
    if not data.exists():
        write_data(data)
    config = {
        "task": {
            "horizon": 4,
            "n_obs_steps": 2,
            "n_action_steps": 2,
            "backbone": {"type": "mlp", "hidden_dim": 16, "n_blocks": 1, "step_embed_dim": 8, "dropout": 0.1},
            "diffusion": {"schedule": {"type": "cosine", "steps": 10}},
            "sampler": {"type": "ddim", "steps": 2},
        },
        "data": {
            "episodes": {"type": "npz", "path": str(data)},
            "obs": {
                "agent_pos": {"key": "state", "slice": [0, 2]},
                "goal": {"key": "state", "slice": [2, 4]},
            },
            "action": {"key": "action"},
            "split": {"train": 0.75, "val": 0.25},
            "batch_size": 8,
        },
        "train": {
            "steps": 24,
            "lr": {"type": "cosine", "peak": 1e-3, "warmup_steps": 4},
            "ema": {"ema": {"type": "power"}, "slow": {"type": "constant", "decay": 0.9}},
            "log_every": {"steps": 2},
            "save_every": {"steps": 5},
        },
        "evaluate": [{"type": "loss", "every": {"steps": 7}, "models": ["ema", "online"]}],
        "tracker": {"data_path": str(place / "run"), "log": [], "report": False},
    }
    for path, value in changes.items():
        *parents, last = path.split("__")
        here: Any = config
        for key in parents:
            here = here.setdefault(key, {}) if isinstance(here, dict) else here[int(key)]
        here[last] = value
    return config


def write(place: Path, **changes: Any) -> Path:
    """`tiny` as a file."""
    path = place / "config.json"
    path.write_text(json.dumps(tiny(place, **changes)))
    return path


def rows(run: Path) -> list[dict[str, Any]]:
    """The metrics lines of a run without those that measure time."""
    return [{name: value for name, value in row.items() if name not in OVER_TIME} for row in read_rows(run)]


def state(run: Path) -> dict[str, Any]:
    """Everything in the newest checkpoint that must not depend on where a run was interrupted."""
    snapshot = read_checkpoint(resolve(run, prefer="latest"))
    found: dict[str, Any] = {
        f"{file}:{name}": tensor for file, tensors in snapshot.tensors.items() for name, tensor in tensors.items()
    }
    progress = dict(snapshot.documents["progress.json"])
    progress["metrics"] = {name: value for name, value in progress["metrics"].items() if name not in OVER_TIME}
    return found | {"progress": progress, "data": snapshot.documents["data.json"]}


def assert_equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Bit for bit."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert found[name].dtype == value.dtype and torch.equal(found[name], value), name
        else:
            assert found[name] == value, name


def train(config: Path, *arguments: str) -> Result:
    """`train_policy.py --config_file config ...` in this process."""
    return CliRunner().invoke(command, ["--config_file", str(config), *arguments], catch_exceptions=False)


def experiment(config: dict[str, Any]) -> Run:
    """The run that a configuration describes; says nothing."""
    return Run(TrainConfig.from_json(json.dumps(config)), report=lambda line: None)


def die(moment: str, count: int = 1) -> None:
    """Make this process kill itself the `count`th time that it comes to a moment of a run."""
    owner, name, after = {
        "step": (PolicyTrainer, "step", True),
        "micro-batch": (Accelerator, "backward", True),
        "evaluation": (LossEvaluator, "run", True),
        "save": (PolicyTrainer, "save", False),
        "file of a checkpoint": (checkpoint_format, "write_file", True),
        "rename of a checkpoint": (CheckpointStore, "_retain", False),
        "delivery of a checkpoint": (Tracker, "save", False),
    }[moment]
    original = getattr(owner, name)
    calls = itertools.count(1)

    def deadly(*arguments: Any, **keywords: Any) -> Any:
        number = next(calls)
        if number == count and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*arguments, **keywords)
        if number == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, deadly)


def train_and_die(config: Path, moment: str, count: int = 1) -> int:
    """`train` in a fork of this process that dies at a moment; returns how it ended, -9 if it was killed."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(280)
            torch.set_num_threads(torch.get_num_threads())  # renews torch's pool, which two new threads at once may not
            die(moment, count)
            done = train(config)
            code = done.exit_code
            print(f"was not killed at {count} x {moment!r}:\n{done.output}", flush=True)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
