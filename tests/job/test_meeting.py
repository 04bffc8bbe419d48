"""Ranks that do not meet end in time, each with one line; a stop ends the wait."""

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import psutil
import pytest

from dp_prior.job.meeting import Meeting
from dp_prior.job.stop import REQUEST, RankLostError, Stop, StoppedEarly
from tests.messages import naming, told
from tests.tiny import write

HERE = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1"}
REFUSED = os.strerror(errno.ECONNREFUSED)


def meeting(port, limit_s=60.0, **variables):
    return Meeting({**HERE, "MASTER_PORT": str(port), **variables}, limit_s, Stop())


@pytest.fixture
def free_port():
    """A port of this machine on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.fixture
def waiting():
    """Waits for a rank that does not come, until the test is over; no meeting waits as long."""
    end, waits = threading.Event(), []
    yield lambda: waits.append(end.wait(200))
    assert waits == []
    end.set()


def test_a_stop_ends_the_meeting_of_ranks_at_once_and_a_fault_of_the_program_stays_one(free_port, waiting):
    place = meeting(free_port)
    threading.Timer(0.3, place.stop.ask, [REQUEST]).start()
    with pytest.raises(StoppedEarly, match=naming(REQUEST)) as caught:
        place.join(waiting)
    assert caught.value.rank == 1
    with pytest.raises(TypeError, match=naming("'str'")):
        meeting(free_port).join(lambda: 1 + "1")
    assert meeting(free_port).join(lambda: 3) == 3


@pytest.mark.parametrize("listens", [False, True])
def test_the_limit_ends_the_meeting_and_the_address_says_what_is_wrong(listens, free_port, waiting):
    with socket.socket() as server:
        if listens:
            server.bind(("127.0.0.1", free_port))
            server.listen()
        with pytest.raises(RankLostError, match=naming("rank 1 of 2", f"127.0.0.1:{free_port}", "0.5 s")) as caught:
            meeting(free_port, 0.5).join(waiting)
    message = str(caught.value)
    assert told(message, REFUSED) is not listens and told(message, "answers", "2 ranks") is listens
    assert caught.value.verdict.code == 76 and caught.value.verdict.rank == 1 and "\n" not in message


def test_an_address_that_takes_no_connection_is_given_up(waiting, monkeypatch):
    monkeypatch.setattr(socket, "create_connection", lambda address, timeout: waiting())
    monkeypatch.setattr("dp_prior.job.meeting.ANSWER_S", 0.2)
    with pytest.raises(RankLostError, match=naming("first:29500", "no answer")):
        meeting(29500, 0.2, MASTER_ADDR="first").join(waiting)


def test_an_address_of_an_unknown_name_is_told(waiting, monkeypatch):
    def unresolved(*arguments):
        raise socket.gaierror(socket.EAI_NONAME, "EAI_NONAME")

    monkeypatch.setattr(socket, "getaddrinfo", unresolved)
    with pytest.raises(RankLostError, match=naming("rank 1 of 2", "first:29500", "EAI_NONAME")):
        meeting(29500, 0.2, MASTER_ADDR="first").join(waiting)


@pytest.mark.parametrize("fault", ["killed", pytest.param("missing", marks=pytest.mark.slow)])
def test_ranks_that_lose_one_in_their_meeting_end_with_one_line_and_76(fault, tmp_path, free_port):
    """Programs of their own: torch reads what it may print when it is imported. One rank of three never comes."""
    command = [sys.executable, "train_policy.py", "--config_file", write(tmp_path), "--set"]
    command.append(f"train.dist_timeout={60 if fault == 'killed' else 3}")
    variables = {**os.environ, **HERE, "WORLD_SIZE": "3", "MASTER_PORT": str(free_port), "ACCELERATE_USE_CPU": "true"}
    ranks = []
    for rank in range(2):
        with (tmp_path / f"rank_{rank}.txt").open("w") as log:
            environment = variables | {"RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"}
            ranks.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
    try:
        if fault == "killed":
            store = psutil.Process(ranks[1].pid)
            while not any(connection.raddr[1:] == (free_port,) for connection in store.net_connections("tcp")):
                assert ranks[1].poll() is None
                time.sleep(0.1)
            ranks[0].kill()
        codes = [rank.wait() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert codes == [-signal.SIGKILL if fault == "killed" else 76, 76]
    for rank in range(1 if fault == "killed" else 0, 2):
        output = (tmp_path / f"rank_{rank}.txt").read_text()
        assert told(output, "error", f"rank {rank} of 3", f"127.0.0.1:{free_port}") and output.count("\n") == 1, output
