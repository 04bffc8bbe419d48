"""Loggers of whole runs: killed and resumed, on two ranks, and with one that misbehaves."""

import csv
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dp_prior.checkpoints.format import read_checkpoint
from dp_prior.places.reference import resolve
from dp_prior.tracking.background import Background
from dp_prior.tracking.csv import CsvLogger
from dp_prior.tracking.identity import IDENTITY
from dp_prior.training.trainer import PolicyTrainer
from tests.tiny import assert_equal, experiment, read_rows, rows, state, tiny, train, train_and_die, write

LOG = [{"type": "csv"}, {"type": "tensorboard"}]


def table(run):
    with open(run / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file, strict=True))


def points(run, name):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})
    found.Reload()
    return [(point.step, point.value) for point in found.Scalars(name)]


def wait_for_queues_in_every_step(monkeypatch):
    """What still waits in a queue dies with the process, and a tiny run is faster than an import in a thread."""
    parts = []
    begin, step = Background.begin, PolicyTrainer.step

    def remember(self, message):
        parts.append(self)
        begin(self, message)

    def step_and_wait(self, batches):
        step(self, batches)
        for part in parts:
            told = threading.Event()
            part.call(lambda logger, told=told: told.set())
            assert told.wait(100)

    monkeypatch.setattr(Background, "begin", remember)
    monkeypatch.setattr(PolicyTrainer, "step", step_and_wait)


@pytest.mark.promise("B6")
@pytest.mark.parametrize("step", [pytest.param(8, marks=pytest.mark.slow), 13])
def test_after_a_kill_every_log_shows_each_step_once_and_the_run_is_the_same(tmp_path, monkeypatch, step):
    pytest.importorskip("tensorboard", reason="needs dp_prior[tensorboard]")
    wait_for_queues_in_every_step(monkeypatch)
    place = tmp_path / "killed"
    place.mkdir()
    config = write(place, tracker__log=LOG)
    assert train_and_die(config, "step", step) == -9
    before = json.loads((place / "run" / IDENTITY).read_text())
    assert train(config).exit_code == 0
    run = place / "run"
    assert json.loads((run / IDENTITY).read_text()) == before
    assert read_checkpoint(resolve(run)).documents[IDENTITY] == before
    expected = [(row["step"], row["train/loss"]) for row in read_rows(run) if "train/loss" in row]
    assert len(expected) > 10
    found = [(int(row["step"]), float(row["train/loss"])) for row in table(run) if row["train/loss"]]
    assert found == expected
    assert [point[0] for point in points(run, "train/loss")] == [point[0] for point in expected]
    assert [point[1] for point in points(run, "train/loss")] == pytest.approx([point[1] for point in expected])


@pytest.mark.promise("F4")
def test_resumed_elsewhere_it_is_the_same_run_unless_another_id_is_asked_for(tmp_path):
    experiment(tiny(tmp_path, train__steps=4)).run()
    before = json.loads((tmp_path / "run" / IDENTITY).read_text())
    for name, asked in (("copy", {}), ("branch", {"tracker__run_id": "branch", "tracker__run_name": "mine"})):
        load = {"type": "local", "path": str(tmp_path / "run")}
        change = {"tracker__load": load, "tracker__data_path": str(tmp_path / name)}
        experiment(tiny(tmp_path, train__steps=6, **change, **asked)).run()
    assert json.loads((tmp_path / "copy" / IDENTITY).read_text()) == before
    assert json.loads((tmp_path / "branch" / IDENTITY).read_text()) == {"id": "branch", "name": "mine"}


@pytest.mark.promise("F1")
@pytest.mark.parametrize(
    "fault", ["raises", *(pytest.param(fault, marks=pytest.mark.slow) for fault in ("blocks", "lies", "exits"))]
)
def test_a_logger_that_misbehaves_changes_neither_the_run_nor_the_log_of_record(tmp_path, monkeypatch, fault):
    release = threading.Event()

    def misbehave(self, metrics, progress):
        if fault == "raises":
            raise OSError("broken")
        if fault == "exits":
            raise SystemExit(3)
        if fault == "blocks":
            release.wait(200)
        return "not what was asked for"

    places = {name: tmp_path / name for name in ("sound", "faulty")}
    for place in places.values():
        place.mkdir()
    experiment(tiny(places["sound"])).run()
    monkeypatch.setattr(CsvLogger, "log", misbehave)
    patience_s = 0.2 if fault == "blocks" else 100
    outcome = experiment(tiny(places["faulty"], tracker__log=[{"type": "csv"}], tracker__patience_s=patience_s)).run()
    release.set()
    assert outcome.status == "finished"
    assert rows(places["faulty"] / "run") == rows(places["sound"] / "run")
    assert_equal(state(places["faulty"] / "run"), state(places["sound"] / "run"))
    named = [line for line in outcome.failures if "logger 'csv'" in line]
    assert len(named) == (0 if fault == "lies" else 1)


@pytest.mark.promise("F5")
@pytest.mark.slow
def test_two_ranks_agree_who_they_are_and_the_second_touches_no_file_and_opens_no_socket(tmp_path, run_ranks):
    pytest.importorskip("tensorboard", reason="needs dp_prior[tensorboard]")
    log = [{"type": "console"}, *LOG, {"type": "wandb", "mode": "offline"}]
    config = tiny(tmp_path, train__steps=4, tracker__log=log, tracker__patience_s=150)
    (tmp_path / "run").mkdir()  # else by whichever rank is first, since each has a folder for its stacks there
    source = """
import json, os, sys
from dp_prior.run.config import TrainConfig
from dp_prior.run.run import Run
touched = []
def watch(event, arguments):
    writes = event != "open" or arguments[2] & (os.O_WRONLY | os.O_RDWR)
    if event in ("open", "os.mkdir", "os.rename") and writes and sys.argv[2] in str(arguments):
        touched.append((event, str(arguments)))
    if event in ("socket.connect", "socket.bind", "subprocess.Popen"):
        touched.append((event, str(arguments)))
one = Run(TrainConfig.from_json(sys.argv[1]), report=lambda line: None)
if rank == 1:
    sys.addaudithook(watch)
seen = []
begin = type(one)._identify
def noting(self, trainer, snapshot):
    begin(self, trainer, snapshot)
    seen.append(trainer.documents["run.json"])
type(one)._identify = noting
outcome = one.run()
assert not outcome.failures, outcome.failures
loaded = sorted({name.split(".")[0] for name in sys.modules} & {"wandb", "trackio", "mlflow"})
print("FOUND", json.dumps({"identity": seen, "touched": touched, "loaded": loaded}))
"""
    found = [
        json.loads(line.partition("FOUND ")[2])
        for output in run_ranks(source, 2, json.dumps(config), tmp_path / "run")
        for line in output.splitlines()
        if line.startswith("FOUND ")
    ]
    assert found[0]["identity"] == found[1]["identity"] == [json.loads((tmp_path / "run" / IDENTITY).read_text())]
    assert [call for call in found[1]["touched"] if "stacks" not in call[1]] == []  # in case the ranks hang
    assert found[0]["loaded"] == ["wandb"] and found[1]["loaded"] == []
    assert len(table(tmp_path / "run")) == len(read_rows(tmp_path / "run"))


def test_a_logger_whose_package_is_missing_stops_the_start_and_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    result = train(write(tmp_path, tracker__log=LOG))
    assert result.exit_code == 64 and 'pip install "dp_prior[tensorboard]"' in result.output
    assert not (tmp_path / "run" / "metrics.csv").exists()


@pytest.mark.slow
def test_a_run_without_them_loads_no_libraries_of_loggers_and_of_formats():
    program = "import sys, dp_prior.run.run; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    output = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parent.parent, capture_output=True, text=True
    )
    assert output.returncode == 0, output.stderr
    loggers, formats = {"wandb", "tensorboard", "mlflow", "trackio"}, {"PIL", "av", "zarr", "pyarrow", "numcodecs"}
    assert not (loggers | formats) & set(output.stdout.split())
