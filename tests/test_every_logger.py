"""Every logger at once on one run that is killed and resumed: each is read back by its own reader, and none differs."""

import csv
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from dp_prior.tracking.identity import IDENTITY
from dp_prior.tracking.jsonl import EVENTS
from tests.tiny import read_rows, train_and_die, write
from tests.tracking.test_wandb import history, records

READ = """
import json, sys, mlflow, trackio
client = mlflow.MlflowClient(sys.argv[1])
[one] = client.search_runs([client.get_experiment_by_name("dp_prior").experiment_id])
points = [(point.step, point.value) for point in client.get_metric_history(one.info.run_id, "train/loss")]
[run] = trackio.Api().runs("dp_prior")
rows = trackio.SQLiteStorage.get_logs("dp_prior", run.name)
print(json.dumps({"mlflow": {"id": one.data.tags["dp_prior.run_id"], "points": points},
                  "trackio": {"name": run.name, "points": [
                      (row["step"], row["train/loss"]) for row in rows if "train/loss" in row]}}))
"""


def once(points):
    """What remains when a step that was logged again takes the place of the first."""
    return sorted({step: value for step, value in points}.items())


@pytest.mark.slow
def test_every_logger_holds_the_same_curve_after_a_kill(tmp_path, monkeypatch):
    if not all(find_spec(name) for name in ("tensorboard", "mlflow", "sqlalchemy", "trackio")):
        pytest.skip("needs dp_prior[tensorboard,mlflow,trackio]")  # not imported here: trackio would choose its folder
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    store = f"sqlite:///{tmp_path}/mlflow.db"
    log = [
        *({"type": kind} for kind in ("console", "jsonl", "csv", "tensorboard")),
        {"type": "wandb", "mode": "offline"},
        {"type": "accelerate", "tracker": "trackio"},
        {
            "type": "accelerate",
            "tracker": "mlflow",
            "options": {"tracking_uri": store, "logging_dir": str(tmp_path / "artifacts")},
        },
    ]
    config = write(tmp_path, tracker__log=log, tracker__patience_s=250, train__log_every={"steps": 1})
    assert train_and_die(config, "step", 13) == -9
    assert train_and_die(config, "step", 10_000) == 0  # which it never comes to
    run = tmp_path / "run"
    events = [json.loads(line) for line in (run / EVENTS).read_text().splitlines()]
    assert [event["message"] for event in events if event["event"] == "error"] == []
    identity = json.loads((run / IDENTITY).read_text())
    expected = [(row["step"], row["train/loss"]) for row in read_rows(run)]
    assert [step for step, _ in expected] == list(range(1, 25))

    with open(run / "metrics.csv", newline="") as file:
        assert [(int(row["step"]), float(row["train/loss"])) for row in csv.DictReader(file)] == expected
    found = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})
    found.Reload()
    points = [(point.step, pytest.approx(point.value)) for point in found.Scalars("train/loss")]
    assert points == expected
    assert {record.run.run_id for record in records(run) if record.HasField("run")} == {identity["id"]}
    rows = [(row["step"], row["train/loss"]) for row in history(run) if "train/loss" in row]
    assert set(expected) >= set(rows) and {step for step, _ in rows} >= set(range(11, 25))  # a kill may take the newest
    services = json.loads(
        subprocess.run(
            [sys.executable, "-c", READ, store],
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
        ).stdout.splitlines()[-1]
    )
    assert services["mlflow"]["id"] == identity["id"]
    assert services["trackio"]["name"] == f"{identity['name']}-{identity['id']}"
    for service in ("mlflow", "trackio"):
        points = once((step, value) for step, value in services[service]["points"])
        assert set(points) <= set(expected) and {step for step, _ in points} >= set(range(11, 25))
