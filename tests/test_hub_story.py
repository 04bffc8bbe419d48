"""The whole story with the embedded Push-T configuration, made small: trained with the Hub, killed, carried to an empty
machine, finished there, and acting from the Hub with the very score that its card states."""

import contextlib
import csv
import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from dp_prior.evaluation.rollout import RolloutConfig
from dp_prior.inference.load import load_policy
from dp_prior.tracking.identity import IDENTITY
from dp_prior.tracking.jsonl import read_rows
from dp_prior_worlds.demonstrations import write_demonstrations
from tests.hub_server import TOKEN
from tests.places.parcels import assert_whole
from tests.tracking.test_wandb import history
from tests.waiting import until

ROOT = Path(__file__).parent.parent
CONFIG = ROOT / "configs" / "policy" / "pusht_state.json"
ENV = {"type": "pusht", "n_envs": 2, "max_steps": 40}


def small(place: Path, data: Path, steps: int) -> Path:
    """The embedded configuration with few episodes, a narrow network, and a learning rate that no budget changes."""
    config = json.loads(CONFIG.read_text())
    config.pop("$schema")
    config["task"]["backbone"] = {"type": "unet1d", "down_dims": [8, 16], "n_groups": 4, "step_embed_dim": 8}
    config["data"]["episodes"]["path"] = str(data)
    config["data"]["global_batch_size"] = 16
    config["train"] |= {"samples": 16 * steps, "log_every": {"steps": 5}, "save_every": {"steps": 10}}
    config["train"]["lr"] = {"type": "constant", "peak": 1e-3}
    rollout = {"env": ENV, "n_episodes": 2, "videos": 0}
    config["evaluate"] = [
        {"type": "loss", "every": {"steps": 20}},
        {"type": "rollout", "every": {"steps": 20}, "first_seed": 200000, **rollout},
    ]
    config["test"] = [{"type": "rollout", "name": "test", "first_seed": 100000, **rollout, "videos": 2}]
    config["tracker"] = {
        "data_path": str(place / "run"),
        "log": [
            *({"type": kind} for kind in ("console", "jsonl", "csv", "tensorboard")),
            {"type": "wandb", "mode": "offline"},
            {"type": "accelerate", "tracker": "mlflow", "options": {"tracking_uri": f"sqlite:///{place}/mlflow.db"}},
        ],
        "patience_s": 120,
        "save": [
            {"type": "local", "save_best_to": "exports/best", "save_type": "model"},
            {"type": "huggingface", "repo": "me/pusht", "save_latest": True, "license": "mit", "drain_s": 600},
        ],
        "load": {"type": "remote", "reference": "hf://me/pusht"},
    }
    place.mkdir()
    path = place / "config.json"
    path.write_text(json.dumps(config))
    return path


def start(config: Path) -> subprocess.Popen:
    command = [sys.executable, "train_policy.py", "--config_file", str(config)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def kill(training: subprocess.Popen) -> None:
    """Kill a run and the processes that it has started, so that no upload arrives later."""
    training.send_signal(signal.SIGSTOP)  # it starts no further one
    for task in Path(f"/proc/{training.pid}/task").glob("*/children"):
        for child in task.read_text().split():
            os.kill(int(child), signal.SIGKILL)
    training.kill()
    training.communicate()


@pytest.mark.promise("E1", "E3")
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_trained_killed_carried_over_finished_and_acting_from_the_hub(tmp_path, hub):
    for extra in ("gym_pusht", "tensorboard", "mlflow", "sqlalchemy"):
        pytest.importorskip(extra)
    data = tmp_path / "pusht.npz"
    write_demonstrations(data, "pusht", 10, workers=2)

    training = start(small(tmp_path / "first", data, 100_000))  # it is killed long before
    try:
        until(lambda: "me/pusht" in hub.repos and "latest.json" in hub.files("me/pusht"))
    finally:
        kill(training)
    files = hub.files("me/pusht")
    latest = json.loads(files["latest.json"])
    assert_whole(files, latest)
    last = latest["step"] + 50

    second = start(small(tmp_path / "second", data, last))
    output, _ = second.communicate(timeout=1200)
    assert second.returncode == 0, output
    assert f"step_{latest['step']:08d}, sample {16 * latest['step']:,}" in output
    assert "warning: " not in output, output
    assert TOKEN not in output
    run = tmp_path / "second" / "run"
    rows = read_rows(run)
    assert rows[0]["step"] > latest["step"] and rows[-1]["step"] == last
    _check_loggers(run, [(row["step"], row["train/loss"]) for row in rows if "train/loss" in row])
    identities = [json.loads((tmp_path / part / "run" / IDENTITY).read_text()) for part in ("first", "second")]
    assert identities[0]["id"] == identities[1]["id"]

    files = hub.files("me/pusht")
    assert json.loads(files["latest.json"])["step"] == last
    result = json.loads((run / "result.json").read_text())
    card = ModelCard(files["README.md"].decode())
    values = {one.metric_name: one.metric_value for one in card.data.eval_results}
    assert values["test/score"] == result["test"]["test/score"]
    assert files["media/rollout.gif"].startswith(b"GIF89a") and files["media/curve.png"].startswith(b"\x89PNG")
    assert (run / "exports" / "best" / "model.safetensors").read_bytes() == files["model.safetensors"]

    policy = load_policy("me/pusht")
    evaluator = RolloutConfig.from_json(
        json.dumps({"type": "rollout", "name": "test", "first_seed": 100000, "env": ENV, "n_episodes": 2, "videos": 0})
    ).create()
    again = evaluator.run({"ema": policy}, None, None).metrics
    assert again["test/score"] == values["test/score"]


def _check_loggers(run: Path, expected: list[tuple[int, float]]) -> None:
    """Every log of the finished half holds the curve of the log of record."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with open(run / "metrics.csv", newline="") as file:
        found = [(int(row["step"]), row["train/loss"]) for row in csv.DictReader(file)]
    assert [(step, float(value)) for step, value in found if value] == expected
    events = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    assert [(p.step, pytest.approx(p.value)) for p in events.Scalars("train/loss")] == expected
    assert [(row["step"], row["train/loss"]) for row in history(run) if "train/loss" in row] == expected
    with contextlib.closing(sqlite3.connect(run.parent / "mlflow.db")) as store:
        rows = store.execute("SELECT step, value FROM metrics WHERE key = 'train/loss' ORDER BY step").fetchall()
    assert rows == expected
