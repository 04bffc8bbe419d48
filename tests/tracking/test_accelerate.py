"""The adapter over accelerate's trackers: MLflow and trackio for real, read back by their own API; others by proxy."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from accelerate import tracking
from accelerate.utils import imports

from dp_prior.checkpoints.clock import Progress
from dp_prior.config import ConfigError
from dp_prior.places.saver import PROBLEM
from dp_prior.tracking import TrackerConfig
from dp_prior.tracking.accelerate import AccelerateConfig
from dp_prior.tracking.identity import RunIdentity
from dp_prior.tracking.logger import RunFacts
from tests.cases import every
from tests.messages import naming, told

ROOT = Path(__file__).parent.parent.parent

PROGRAM = """
import json, sys
from pathlib import Path
import numpy as np
from dp_prior.checkpoints.clock import Progress
from dp_prior.tracking import TrackerConfig
from dp_prior.tracking.identity import RunIdentity
place, config, first = Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])
at = lambda step: Progress(10 * step, step)
record = {"patience_s": 100, "log": [{"type": "accelerate", "project": "toys", **config}]}
tracker = TrackerConfig.from_json(json.dumps(record)).create(total_samples=9, directory=place / "run")
tracker.begin(RunIdentity("abcd1234", "toy"), {"seed": 3, "task": {"horizon": 16, "names": ["a"]}, "first": first})
tracker.rewind(at(first))
for step in range(first + 1, first + 6):
    tracker.log({"train/loss": 1 / step, "action_error/ema/mse[steps=16]": step}, at(step))
tracker.log_images({"pic/file": place / "a.png"}, at(first + 5))
tracker.log_file(place / "notes.txt", at(first + 5))
tracker.log_error("out of luck", at(first + 5))
assert tracker.close() == [], "the tracker failed"
"""


def run(place, source, *arguments, **environment):
    finished = subprocess.run(
        [sys.executable, "-c", source, str(place), *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(place), "GIT_PYTHON_REFRESH": "quiet", **environment},
    )
    assert finished.returncode == 0, finished.stderr + finished.stdout
    return finished.stdout


@pytest.fixture
def place(tmp_path):
    image_of = pytest.importorskip("PIL.Image", reason="needs dp_prior[plots]")
    image_of.fromarray(np.zeros((4, 6, 3), np.uint8)).save(tmp_path / "a.png")
    (tmp_path / "notes.txt").write_text("hello")
    return tmp_path


@pytest.mark.slow
def test_mlflow_keeps_all_in_one_run_over_a_resume(place):
    if not (find_spec("mlflow") and find_spec("sqlalchemy")):
        pytest.skip("needs dp_prior[mlflow]")
    options = {"tracking_uri": f"sqlite:///{place}/mlflow.db", "logging_dir": str(place / "artifacts")}
    for first in (0, 5):
        run(place, PROGRAM, json.dumps({"tracker": "mlflow", "options": options}), first)
    found = json.loads(
        run(
            place,
            """
import json, sys, mlflow
client = mlflow.MlflowClient("sqlite:///" + sys.argv[1] + "/mlflow.db")
[one] = client.search_runs([client.get_experiment_by_name("toys").experiment_id])
history = client.get_metric_history(one.info.run_id, "action_error/ema/mse_steps_16")
def walk(path=""):
    for item in client.list_artifacts(one.info.run_id, path):
        yield from (walk(item.path) if item.is_dir else [item.path])
print(json.dumps({"points": sorted((point.step, point.value) for point in history), "params": one.data.params,
                  "name": one.info.run_name, "tags": one.data.tags, "files": sorted(walk()),
                  "status": one.info.status}))
""",
        ).splitlines()[-1]
    )
    assert found["points"] == [[step, step] for step in range(1, 11)]
    assert found["name"] == "toy" and found["tags"]["dp_prior.run_id"] == "abcd1234" and found["status"] == "FINISHED"
    assert found["params"] == {"seed": "3", "task.horizon": "16", "task.names.0": "a", "first": "0"}
    assert found["tags"]["first"] == "5" and "seed" not in found["tags"], "a parameter of MLflow cannot be changed"
    assert set(found["files"]) == {
        *("errors/00000005.txt", "errors/00000010.txt", "files/notes.txt", "media/pic/file/a.png"),
    }


@pytest.mark.slow
def test_a_kill_while_mlflow_creates_its_database_spoils_nothing(place):
    if not (find_spec("mlflow") and find_spec("sqlalchemy")):
        pytest.skip("needs dp_prior[mlflow]")
    dying = """
import itertools, os, signal, sqlalchemy
statements = itertools.count()
@sqlalchemy.event.listens_for(sqlalchemy.engine.Engine, "before_cursor_execute")
def die(*arguments):
    if next(statements) == 400:
        os.kill(os.getpid(), signal.SIGKILL)
"""
    config = json.dumps({"tracker": "mlflow", "options": {"tracking_uri": f"sqlite:///{place}/mlflow.db"}})
    with pytest.raises(AssertionError):
        run(place, dying + PROGRAM, config, 0)
    assert list(place.glob(".tmp_*")) and not (place / "mlflow.db").exists()
    run(place, PROGRAM, config, 0)
    assert not list(place.glob(".tmp_*")) and (place / "mlflow.db").exists()


@pytest.mark.slow
def test_trackio_keeps_all_in_one_run_over_a_resume(place):
    if not find_spec("trackio"):
        pytest.skip("needs dp_prior[trackio]")
    home = {"TRACKIO_DIR": str(place / "trackio")}
    for first in (0, 5):
        run(place, PROGRAM, json.dumps({"tracker": "trackio"}), first, **home)
    found = json.loads(
        run(
            place,
            """
import json, trackio
[one] = trackio.Api().runs("toys")
rows = trackio.SQLiteStorage.get_logs("toys", one.name)
print(json.dumps({"name": one.name, "rows": rows, "config": one.config, "alerts": len(one.alerts())}))
""",
            **home,
        ).splitlines()[-1]
    )
    assert found["name"] == "toy-abcd1234" and found["config"]["seed"] == 3 and found["alerts"] == 2
    points = [(row["step"], row["train/loss"]) for row in found["rows"] if "train/loss" in row]
    assert points == [(step, 1 / step) for step in range(1, 11)]
    pictures = [row for row in found["rows"] if "pic/file" in row]
    assert len(pictures) == 2 and all("trackio.image" in json.dumps(row) for row in pictures)


class Service:
    """Takes the place of a tracker of accelerate and of the client behind it."""

    requires_logging_directory = False

    def __init__(self, *arguments, **options):
        self.calls = [("init", arguments, options)]
        Service.last = self

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *arguments, **options: self.calls.append((name, arguments, options))

    @property
    def tracker(self):
        return self

    def called(self, name):
        return [call[1:] for call in self.calls if call[0] == name]


@pytest.fixture
def begun(tmp_path, monkeypatch):
    def begin(tracker, **options):
        class Proxy(Service):
            requires_logging_directory = tracking.LOGGER_TYPE_TO_CLASS[tracker].requires_logging_directory

        monkeypatch.setitem(tracking.LOGGER_TYPE_TO_CLASS, tracker, Proxy)
        monkeypatch.setattr(imports, f"is_{tracker}_available", lambda: True)
        logger = AccelerateConfig(tracker=tracker, **options).create()
        logger.begin(
            RunFacts(tmp_path, RunIdentity("abcd1234", "toy"), {"seed": 3, "task": {"a": [1, None]}}, 1.0, print)
        )
        return logger, Service.last

    return begin


def test_every_knob_reaches_the_service(begun, tmp_path):
    _, service = begun("dvclive", project="toys", options={"dir": "elsewhere"})
    assert service.called("init") == [(("toys",), {"dir": "elsewhere", "resume": True})]
    logger, service = begun("aim", project="toys", options={"experiment": "e"})
    assert logger.name == "aim" and service.called("init") == [(("toys", str(tmp_path / "aim")), {"experiment": "e"})]
    assert service.called("start") == [((), {})]
    assert service.called("store_init_configuration") == [(({"seed": 3, "task.a.0": 1, "task.a.1": None},), {})]


@pytest.mark.parametrize("tracker", ["aim", "comet_ml", "clearml", "swanlab", "dvclive"])
def test_each_service_is_told_what_it_can_show_and_nothing_else(begun, place, tracker):
    logger, service = begun(tracker)
    at = Progress(10, 1)
    logger.log({"a/b[steps=3]": 0.5}, at)
    logger.log_images({"p": place / "a.png"}, at)
    logger.log_file("notes.txt", place / "notes.txt", at)
    logger.log_error("no", at)
    logger.rewind(at)
    logger.sync()
    logger.close()
    told = [call[0] for call in service.calls]
    assert service.called("log") == [(({"a/b_steps_3": 0.5, "samples_seen": 10},), {"step": 1})]
    shown = {
        "aim": ["log_images"],
        "clearml": ["log_images"],
        "swanlab": ["log_images"],
        "comet_ml": ["log_image", "log_asset"],
        "dvclive": [],
    }[tracker]
    assert told == ["init", "start", "store_init_configuration", "log", *shown, "finish"]
    if shown == ["log_images"]:
        [((values,), options)] = service.called("log_images")
        image = values["p"][0] if tracker == "swanlab" else values["p"]
        assert np.array_equal(image, np.zeros((4, 6, 3))) and options == {"step": 1}


def test_a_start_that_fails_ends_the_service_s_run_so_that_it_can_be_tried_again(begun, monkeypatch):
    def broken(*arguments):
        raise ConnectionError("no")

    monkeypatch.setattr(Service, "store_init_configuration", broken, raising=False)
    with pytest.raises(ConnectionError, match=naming("no")):
        begun("aim")
    assert [call[0] for call in Service.last.calls] == ["init", "start", "finish"]


def test_matplotlib_is_imported_before_trackio_looks_whether_it_is(begun, monkeypatch):
    """Its `log` finds the module that another thread is importing, fails at it, and drops the value."""
    pytest.importorskip("matplotlib.figure", reason="needs dp_prior[plots]")
    monkeypatch.delitem(sys.modules, "matplotlib.figure")
    begun("trackio")
    assert sys.modules["matplotlib.figure"].Figure


def test_a_service_that_is_not_installed_is_named_with_its_remedy(monkeypatch):
    for tracker, hint in (("mlflow", '"dp_prior[mlflow]"'), ("aim", '"aim"')):
        monkeypatch.setattr(imports, f"is_{tracker}_available", lambda: False)
        with pytest.raises(ImportError, match=naming(f'"{tracker}"', f"pip install {hint}")):
            AccelerateConfig(tracker=tracker).create()


@every(name=["api_key", "API_TOKEN", "password", "client_secret", "token", "a.0.api_key"])
def test_secrets_have_no_place_in_a_configuration(name):
    options = {"a": [{"api_key": "x"}]} if "." in name else {name: "x"}
    record = {"log": [{"type": "accelerate", "tracker": "comet_ml", "options": options}]}
    with pytest.raises(ConfigError, match=naming("log.0.options", name)):
        TrackerConfig.from_json(json.dumps(record))


def test_a_missing_token_is_a_problem_of_the_check_only_for_a_space_of_the_hub(tmp_path, monkeypatch):
    pytest.importorskip("trackio", reason="NOT CHECKED: the extra dp_prior[trackio] is not installed")
    import huggingface_hub

    for space, variable, token, is_told in (
        (None, None, None, False),
        ("me/runs", None, None, True),
        (None, "me/runs", None, True),
        ("me/runs", None, "hf_token", False),
    ):
        monkeypatch.setattr(huggingface_hub, "get_token", lambda token=token: token)
        monkeypatch.delenv("TRACKIO_SPACE_ID", raising=False)
        if variable is not None:
            monkeypatch.setenv("TRACKIO_SPACE_ID", variable)
        options = {} if space is None else {"space_id": space}
        log = [{"type": "accelerate", "tracker": "trackio", "options": options}]
        lines = TrackerConfig.from_json(json.dumps({"data_path": str(tmp_path), "log": log})).check()
        assert bool(lines) == is_told
        assert all(line.startswith(PROBLEM) and told(line, "me/runs", "HF_TOKEN", "TRACKIO_SPACE_ID") for line in lines)
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    assert AccelerateConfig(tracker="mlflow").check_account() == []
