"""Whole runs on streamed data: killed and resumed, with a language, and at the end of a place that went away."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest

from dp_prior_streams import remote_files
from tests.extras import needs
from tests.messages import told
from tests.plugins.dp_prior_streams.recorded_sets import CAMERA, add_videos, write_v3
from tests.plugins.dp_prior_streams.web_store import served
from tests.tiny import assert_equal, rows, state, train, train_and_die, write

needs("pyarrow", "lerobot")


def settings(url, cache, disk_gb=0.0005, **changes):
    episodes = {"type": "lerobot_stream", "url": str(url), "disk_gb": disk_gb, "cache": str(cache)}
    return {
        "data__episodes": episodes,
        "data__obs": {"state": {"key": "observation.state"}},
        "data__split": {},
        "data__batch_size": 16,
        **changes,
    }


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(remote_files, "FIRST_PAUSE_S", 0.0)


@pytest.mark.slow
def test_a_run_killed_in_the_middle_of_an_epoch_goes_on_as_if_it_had_not_been(small_set, tmp_path):
    with served(small_set) as web:
        for name in ("whole", "killed"):
            (tmp_path / name).mkdir()
        whole = write(tmp_path / "whole", **settings(web.url, tmp_path / "cache"))
        assert train(whole).exit_code == 0
        killed = write(tmp_path / "killed", **settings(web.url, tmp_path / "another_cache"))
        assert train_and_die(killed, "step", 13) == -9
        shutil.rmtree(tmp_path / "another_cache")  # the next start may be on another machine
        assert train(killed).exit_code == 0
    assert_equal(state(tmp_path / "killed/run"), state(tmp_path / "whole/run"))
    assert rows(tmp_path / "killed/run") == rows(tmp_path / "whole/run")
    lines = (tmp_path / "whole/run/metrics.jsonl").read_text()
    assert "train/data_share" in lines


@pytest.mark.slow
def test_a_run_with_a_camera_trains_and_evaluates(tmp_path):
    needs("av", "video")
    folder = add_videos(write_v3(tmp_path / "set", files=3, episodes_per_file=3), episodes_per_file=4)
    cameras = {"front": {"key": CAMERA, "size": [24, 32]}}
    encoders = {"front": {"type": "resnet", "pool": "mean"}}
    changes = {"data__images": cameras, "task__encoders": encoders, "train__steps": 3}
    done = train(write(tmp_path, **settings(folder, tmp_path / "cache", 0.002, **changes)))
    assert done.exit_code == 0, done.output
    assert told(done.output, "streamed", "parts")


@pytest.mark.parametrize("moment", ["at the start", "while it trains"])
def test_a_place_that_went_away_ends_the_run_with_one_line_and_the_code_of_unavailable(small_set, tmp_path, moment):
    with served(small_set) as web:
        config = write(tmp_path, **settings(web.url, tmp_path / "cache", train__steps=2))
        if moment == "while it trains":
            assert train(config).exit_code == 0
            config = write(tmp_path, **settings(web.url, tmp_path / "cache", train__steps=500))
            for path in (tmp_path / "cache").glob("*/parts/*"):
                shutil.rmtree(path)
        web.fault = lambda number, name: 503
        done = train(config)
    assert done.exit_code == 69
    assert told(done.output, web.url)
    if moment == "while it trains":
        assert json.loads((tmp_path / "run/exit.json").read_text())["reason"] == "unavailable"


@pytest.mark.slow
def test_a_request_to_stop_ends_a_run_that_waits_for_a_place_that_hangs(small_set, tmp_path):
    with served(small_set) as web:
        web.fault = lambda number, name: "hang" if is_begun() else None

        def is_begun():
            metrics = tmp_path / "run/metrics.jsonl"
            return metrics.exists() and len(metrics.read_text().splitlines()) > 3

        config = write(tmp_path, **settings(web.url, tmp_path / "cache", 0.0002, train__steps=50_000, evaluate=[]))
        process = subprocess.Popen([sys.executable, "-m", "dp_prior", "train", str(config)])
        try:
            assert web.is_hanging.wait(200)
            time.sleep(1)  # training uses up what has arrived
            process.send_signal(signal.SIGTERM)
            assert process.wait() == 75
        finally:
            process.kill()
    end = json.loads((tmp_path / "run/exit.json").read_text())
    assert end["reason"] == "preempted" and end["durable"]["global_step"] == end["progress"]["global_step"] > 3


@pytest.mark.slow
def test_two_ranks_that_stop_while_a_download_hangs_name_it_and_the_checkpoint_that_they_resume(small_set, tmp_path):
    """Neither takes a step more, since the other one may be in an exchange."""
    with served(small_set) as web:
        web.fault = lambda number, name: "hang" if is_begun() else None

        def is_begun():
            metrics = tmp_path / "run/metrics.jsonl"
            return metrics.exists() and len(metrics.read_text().splitlines()) > 5

        config = write(tmp_path, **settings(web.url, tmp_path / "cache", 0.0002, train__steps=50_000, evaluate=[]))
        ranks, logs = [], [tmp_path / f"rank_{rank}.txt" for rank in range(2)]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            meeting = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
        meeting |= {"ACCELERATE_USE_CPU": "true", "GLOO_SOCKET_IFNAME": "lo"}
        for rank, log in enumerate(logs):
            environment = {**os.environ, **meeting, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            command = [sys.executable, "-m", "dp_prior", "train", str(config)]
            with log.open("w") as output:
                ranks.append(subprocess.Popen(command, env=environment, stdout=output, stderr=output))
        try:
            assert web.is_hanging.wait(200), [log.read_text() for log in logs]
            time.sleep(1)  # training uses up what has arrived
            for process in ranks:
                process.send_signal(signal.SIGTERM)
            assert [process.wait() for process in ranks] == [75, 75]
        finally:
            for process in ranks:
                process.kill()
    end = json.loads((tmp_path / "run/exit.json").read_text())
    checkpoint = end["durable"]["checkpoint"]
    outputs = [log.read_text() for log in logs]
    assert end["reason"] == "preempted" and told(end["message"], "SIGTERM", checkpoint)
    assert all(told(output, "SIGTERM", web.url, "save", checkpoint) for output in outputs)
    tables = [path.relative_to(small_set) for path in small_set.rglob("*.parquet")]
    for output in outputs:  # a rank that waits for another one's download does not know its file
        is_named = any(told(output, f"{web.url}/{table}") for table in tables)
        assert is_named or told(output, "file", web.url), output
