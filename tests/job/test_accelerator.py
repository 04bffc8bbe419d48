"""The accelerator of a process: settings of a launcher that do not fit, ranks that do not meet, what is left alone."""

import json
import os
import signal
import socket

import pytest
import torch

from dp_prior.config import ConfigError
from dp_prior.job.accelerator import make_accelerator
from dp_prior.job.ranks import Ranks
from dp_prior.job.stop import RankLostError
from tests import forks
from tests.messages import naming, told
from tests.tiny import train, write
from tests.waiting import until

MEETING = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "ACCELERATE_USE_CPU": "true"}
PROGRAM = "from dp_prior.cli import main; main()"


def test_a_rank_without_an_address_is_told_what_to_set():
    make = "from dp_prior.job.accelerator import make_accelerator; make_accelerator('fp32')"
    done = forks.call(["-c", make], WORLD_SIZE="1", RANK="0", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1")
    assert told(done.stderr, "RANK='0'", "MASTER_PORT=''", "LOCAL_RANK")


def test_a_port_that_another_program_uses_is_one_clear_error(tmp_path):
    config = write(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = forks.call(["train_policy.py", "--config_file", config], RANK="0", MASTER_PORT=port, **MEETING)
    assert done.returncode == 64 and told(done.stderr, "launcher", "MASTER_PORT", port, "free")
    assert not told(done.stderr, "Traceback")


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        (torch.distributed.DistNetworkError, "The client socket has timed out\nException raised from f", "timed out"),
        (RuntimeError, "Gloo connectFullMesh failed with [tcp/pair.cc:1] Connection refused", "Connection refused"),
        (torch.distributed.DistBackendError, "NCCL error\n  Last error:\nDuplicate GPU detected\n", "Duplicate GPU"),
    ],
)
def test_a_rank_that_does_not_meet_the_others_says_where_and_why(kind, text, reason, monkeypatch):
    def connect(backend, **options):
        raise kind(text)

    monkeypatch.setattr(torch.distributed, "init_process_group", connect)
    accelerator = "dp_prior.job.accelerator.Accelerator"
    monkeypatch.setattr(accelerator, lambda **options: torch.distributed.init_process_group(backend="gloo"))
    for name, value in {**MEETING, "RANK": "1", "MASTER_PORT": "1234"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RankLostError, match=naming("rank 1 of 2", "127.0.0.1:1234", "MASTER_PORT", reason)) as caught:
        make_accelerator("fp32")
    assert caught.value.verdict.code == 76 and caught.value.verdict.rank == 1
    assert "\n" not in str(caught.value) and not told(str(caught.value), "raised")
    assert torch.distributed.init_process_group is connect


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return str(server.getsockname()[1])


@pytest.mark.promise("D1", "D4")
def test_every_rank_without_a_network_interface_ends_with_one_line_and_76(tmp_path):
    config, port = write(tmp_path), free_port()
    logs = [tmp_path / f"rank_{rank}.txt" for rank in range(2)]
    ranks = [
        forks.Fork(
            ["train_policy.py", "--config_file", config],
            log,
            log,
            **MEETING | {"LOCAL_RANK": str(rank), "GLOO_SOCKET_IFNAME": "nonsense"},
            RANK=str(rank),
            MASTER_PORT=port,
        )
        for rank, log in enumerate(logs)
    ]
    for rank, log in zip(ranks, logs, strict=True):
        assert rank.wait(60) == 76
        assert told(log.read_text(), "error", f"rank {ranks.index(rank)} of 2", "nonsense", "GLOO_SOCKET_IFNAME")
        assert len(log.read_text().splitlines()) == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.promise("C1")
@pytest.mark.parametrize(
    ("command", "code"),
    [
        pytest.param("train", 75),
        pytest.param("sample", 75, marks=pytest.mark.slow),
        pytest.param("evaluate", 143, marks=pytest.mark.slow),
    ],
)
def test_a_rank_that_waits_for_one_that_never_comes_ends_on_sigterm(command, code, trained_policy, tmp_path):
    arguments = {
        "train": ["--config_file", write(tmp_path)],
        "sample": [trained_policy, "--n", "4", "--out", tmp_path / "drawn.npz"],
        "evaluate": [trained_policy],
    }
    port, log = free_port(), tmp_path / "log.txt"
    variables = MEETING | {"RANK": "0", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
    rank = forks.Fork(["-c", PROGRAM, command, *arguments[command]], log, log, **variables)
    until(lambda: rank.poll() is not None or listens(port))
    os.kill(rank.pid, signal.SIGTERM)
    assert rank.wait() == code
    assert told(log.read_text(), "SIGTERM", "same") and len(log.read_text().splitlines()) == 1
    if command == "train":
        ending = json.loads((tmp_path / "run" / "exit.json").read_text())
        assert (ending["code"], ending["stopped_by"], ending["ranks"]) == (75, "SIGTERM", 2)


def listens(port: str) -> bool:
    """Whether a port is open, as that of the first rank's store is while the rank waits for others."""
    try:
        socket.create_connection(("127.0.0.1", int(port)), 1).close()
    except OSError:
        return False
    return True


def test_one_rank_of_a_launcher_that_was_asked_for_several_is_told(tmp_path, monkeypatch, caplog):
    for name, value in (("ACCELERATE_MIXED_PRECISION", "no"), ("MASTER_PORT", "29500"), ("WORLD_SIZE", "1")):
        assert "--multi_gpu" not in caplog.text
        monkeypatch.setenv(name, value)  # as the launcher does
        caplog.clear()
        make_accelerator("fp32")
        assert told(caplog.text, "one rank", "--multi_gpu") is (name == "MASTER_PORT")
        caplog.clear()


def test_settings_of_accelerate_in_the_environment_scale_no_gradient(monkeypatch):
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4")
    weight = torch.ones((), requires_grad=True)
    make_accelerator("fp32").backward(weight * 1)
    assert weight.grad == 1


def test_settings_of_accelerate_in_the_environment_compile_no_model(monkeypatch):
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "EAGER")
    model = torch.nn.Linear(1, 1)
    assert Ranks(make_accelerator("fp32")).distributed(model) is model


@pytest.mark.parametrize(
    ("name", "value", "usual", "setting"),
    [
        ("ACCELERATE_MIXED_PRECISION", "bf16", "no", "train.precision"),
        ("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4", "1", "train.accumulation"),
        ("ACCELERATE_DYNAMO_BACKEND", "INDUCTOR", "NO", "train.compile"),
    ],
)
def test_an_option_of_accelerate_launch_that_has_no_effect_names_the_setting(
    name, value, usual, setting, monkeypatch, caplog
):
    monkeypatch.setenv(name, usual)
    make_accelerator("fp32")
    assert not caplog.text
    monkeypatch.setenv(name, value)
    make_accelerator("bf16" if setting == "train.precision" else "fp32")
    assert told(caplog.text, name, setting) is (setting != "train.precision")
    caplog.clear()
    make_accelerator("fp32")
    assert told(caplog.text, name, value.lower(), setting)


def test_fp16_without_a_gpu_is_refused():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(ConfigError, match=naming("train.precision", "'fp16'", "GPU", "'bf16'")):
        make_accelerator("fp16")


def test_processes_that_do_not_know_of_each_other_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    refused = train(write(tmp_path))
    assert refused.exit_code == 64 and told(refused.output, "WORLD_SIZE", 2, 1, "ACCELERATE_USE_CPU=true")
    assert not (tmp_path / "run").exists()
