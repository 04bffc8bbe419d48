"""Ranks that die, hang, are stopped or raise, signals to anybody, and launchers that are killed: the run always ends in
time, says who was to blame, keeps its last checkpoint, leaves no process, and goes on as if nothing had been.

Each test has a session of its own, a hard time limit, and asserts that no process is left (`Launched`).
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
import uuid

import pytest

from dp_prior.checkpoints.format import read_checkpoint
from dp_prior.places.reference import resolve
from tests.chaos import Launched
from tests.messages import told
from tests.tiny import rows, state, train, write

TIMEOUT_S = 8
LONG = {  # far more steps than any test lets happen
    "data__batch_size": 4,
    "train__steps": 100_000,
    "train__save_every": {"steps": 5},
    "train__log_every": {"steps": 5},
    "train__dist_timeout": 1000,  # what ends long before does not end by this
    "evaluate": [],
}
HANGING = {**LONG, "train__dist_timeout": TIMEOUT_S}
SLOW = {"at": "step", "do": "slow", "seconds": 0.05}
ROLLOUT = {"type": "rollout", "env": {"type": "toy", "n_envs": 2, "max_steps": 4}, "n_episodes": 2, "videos": 0}


def event(rank, at, do, count=30, **more):
    return {"rank": rank, "at": at, "do": do, "count": count, **more}


def assert_lost(run, rank, reason="rank lost", code=76):
    """It ended with a code, in time, naming the rank, its last checkpoint good; both ranks wrote their stacks."""
    assert run.wait() != 0
    told = run.exit()
    assert (told["reason"], told["code"], told["rank"]) == (reason, code, rank)
    assert read_checkpoint(resolve(run.run, prefer="latest")).documents["progress.json"]["global_step"] >= 5
    assert told["durable"]["global_step"] >= 5
    return told


MANY = pytest.mark.slow


@pytest.mark.promise("D1")
@pytest.mark.parametrize(
    ("rank", "moment"),
    [
        (1, "backward"),
        *[pytest.param(1, moment, marks=MANY) for moment in ("step", "agreement", "save", "evaluation")],
        *[
            pytest.param(0, moment, marks=MANY)
            for moment in ("step", "backward", "agreement", "delivery", "evaluation")
        ],
    ],
)
def test_killed_rank_ends_the_run_in_seconds_and_is_named(rank, moment, tmp_path):
    measured = {"evaluate": [{"type": "loss", "every": {"steps": 1}}]} if moment == "evaluation" else {}
    config = write(tmp_path, **{**LONG, **measured})
    with Launched(tmp_path, config, event(rank, moment, "SIGKILL", 4 if moment in ("save", "delivery") else 30)) as run:
        run.wait_for()
        told = assert_lost(run, rank)
        assert f"rank {rank} of 2" in told["message"] and "was killed" in told["message"]
        assert f"rank_{1 - rank}.txt" in run.stacks()


@pytest.mark.promise("D2")
@pytest.mark.parametrize(
    ("rank", "moment", "how"),
    [
        (1, "backward", "SIGSTOP"),
        *[pytest.param(0, moment, "SIGSTOP", marks=MANY) for moment in ("step", "agreement", "save")],
        *[pytest.param(rank, "step", "hang", marks=MANY) for rank in (0, 1)],
        pytest.param(1, "evaluation", "hang", marks=MANY),
        pytest.param(1, "step", "spin", marks=MANY),
    ],
)
def test_rank_that_hangs_ends_the_run_in_time_named_and_with_all_stacks(rank, moment, how, tmp_path):
    """The time is that of `dist_timeout`, and a few seconds on a machine that has nothing else to do."""
    measured = {"evaluate": [{"type": "loss", "every": {"steps": 1}}]} if moment == "evaluation" else {}
    config = write(tmp_path, **{**HANGING, **measured})
    with Launched(tmp_path, config, event(rank, moment, how, 4 if moment == "save" else 30)) as run:
        run.wait_for()
        told = assert_lost(run, rank)
        assert f"rank {rank} of 2" in told["message"] and " sign of" in told["message"]
        stacks = run.stacks()
        assert set(stacks) == {"rank_0.txt", "rank_1.txt"}
        assert all("most recent call first" in text for text in stacks.values())
        assert "chaotic.py" in stacks[f"rank_{rank}.txt"]


@pytest.mark.promise("D4")
@MANY
@pytest.mark.parametrize(
    ("rank", "moment"),
    [(1, "step"), *[(rank, moment) for rank in (0, 1) for moment in ("agreement", "save", "evaluation")]],
)
def test_error_on_one_rank_is_the_exit_of_all(rank, moment, tmp_path):
    measured = {"evaluate": [{"type": "loss", "every": {"steps": 1}}]} if moment == "evaluation" else {}
    config = write(tmp_path, **{**LONG, **measured})
    with Launched(tmp_path, config, event(rank, moment, "raise", 4 if moment == "save" else 30)) as run:
        run.wait_for()
        told = assert_lost(run, rank, "error", 1)
        assert told["message"] == "ValueError: chaos"
        assert "in eventful" in told["traceback"]


def assert_preempted(run, signal_name):
    run.wait()
    told = run.exit()
    assert (told["reason"], told["code"], told["stopped_by"]) == ("preempted", 75, signal_name)
    assert told["progress"]["global_step"] == told["durable"]["global_step"]  # nothing is lost
    assert state(run.run)["progress"]["global_step"] == told["progress"]["global_step"]
    return told


@pytest.mark.promise("C1")
@MANY
@pytest.mark.parametrize(
    ("rank", "moment", "name"),
    [
        (1, "step", "SIGTERM"),
        *[(rank, "step", name) for rank in (0, 1) for name in ("SIGUSR1", "SIGINT")],
        *[(0, moment, "SIGTERM") for moment in ("save", "evaluation", "rollout", "delivery", "log")],
        (1, "evaluation", "SIGTERM"),
    ],
)
def test_signal_to_one_rank_saves_the_step_at_hand_and_is_told(rank, moment, name, tmp_path):
    measured = [{"type": "loss", "every": {"steps": 1}}, {**ROLLOUT, "every": {"steps": 1}}]
    measured = {"evaluate": measured} if moment in ("evaluation", "rollout") else {}
    config = write(tmp_path, **{**LONG, **measured})
    with Launched(tmp_path, config, event(rank, moment, name, 4 if moment in ("save", "delivery") else 30)) as run:
        told = assert_preempted(run, name)
        assert told["rank"] == rank


@pytest.mark.promise("C1", "C2")
@pytest.mark.parametrize(
    ("name", "programs"),
    [("SIGTERM", False), *[pytest.param(name, True, marks=MANY) for name in ("SIGTERM", "SIGINT", "SIGUSR1")]],
)
def test_signal_to_the_launcher_saves_the_step_at_hand(name, programs, tmp_path):
    """torchrun passes on SIGTERM and SIGINT; SIGUSR1 ends it, and the ranks notice that it is gone."""
    with Launched(tmp_path, write(tmp_path, **LONG), SLOW, programs=programs) as run:
        run.wait_for()
        os.kill(run.process.pid, getattr(signal, name))
        run.wait_until_gone()
        assert_preempted(run, "launcher gone" if name == "SIGUSR1" else name)


@pytest.mark.promise("C2")
@MANY
def test_launcher_killed_leaves_no_orphan_and_loses_nothing(tmp_path):
    with Launched(tmp_path, write(tmp_path, **LONG), SLOW, programs=True) as run:
        run.wait_for()
        assert len(run.workers()) == 2
        run.process.kill()
        run.wait_until_gone()
        assert_preempted(run, "launcher gone")


@pytest.mark.promise("C1")
@MANY
def test_second_ctrl_c_ends_at_once_with_130(tmp_path):
    """While a rank is in the middle of a long step, which the first one lets finish."""
    config = write(tmp_path, **LONG)
    with Launched(tmp_path, config, event(0, "step", "slow", seconds=300), ranks=0) as run:
        run.wait_for()
        os.kill(run.process.pid, signal.SIGINT)
        time.sleep(0.5)
        os.kill(run.process.pid, signal.SIGINT)
        assert run.wait() == 130
        assert (run.exit()["reason"], run.exit()["code"]) == ("interrupted", 130)


@MANY
def test_process_that_was_killed_is_told_of_at_the_next_start(tmp_path):
    config = write(tmp_path, **{**LONG, "train__steps": 12, "data__batch_size": 8})
    with Launched(tmp_path, config, event(0, "step", "SIGKILL", 8), ranks=0) as run:
        assert run.wait() == -signal.SIGKILL
        assert (run.exit()["reason"], run.exit()["code"]) == ("running", None)
    again = train(config)
    assert again.exit_code == 0 and told(again.output, "process", "killed")


@MANY
@pytest.mark.promise("C5")
def test_save_that_cannot_end_in_time_is_given_up_and_the_one_before_is_good(tmp_path):
    """The disk hangs; the scheduler asks, waits, and kills."""
    config = write(tmp_path, **{**LONG, "train__steps": 20, "data__batch_size": 8})
    with Launched(tmp_path, config, event(0, "write", "hang", 3), ranks=0) as run:
        run.wait_for()
        os.kill(run.process.pid, signal.SIGTERM)
        time.sleep(2)
        os.kill(run.process.pid, signal.SIGKILL)
        run.wait()
        assert state(run.run)["progress"]["global_step"] == 10
    assert train(config).exit_code == 0
    assert state(tmp_path / "run")["progress"]["global_step"] == 20


@pytest.mark.promise("D3")
@MANY
@pytest.mark.parametrize("moment", ["delivery", "submit", "act", "end"])
def test_slow_work_of_one_rank_is_waited_for(moment, tmp_path):
    """Longer than a rank may hang: nothing of unknown length lies between two collectives."""
    seconds, change = 2.5 * TIMEOUT_S, {}
    if moment == "act":  # four times: shorter by itself, and longer together
        seconds = TIMEOUT_S / 2
        change = {
            "evaluate": [{**ROLLOUT, "every": {"steps": 3}}],
            "train__monitor": {"metric": "rollout/score", "mode": "max"},
        }
    config = write(tmp_path, **{**HANGING, "train__steps": 7, **change})
    slow = {"rank": 0, "at": moment, "do": "slow", "seconds": seconds} | ({"count": 1} if moment == "end" else {})
    with Launched(tmp_path, config, slow) as run:
        assert run.wait() == 0
        assert run.exit()["reason"] == "finished"
        assert rows(run.run)[-1]["step"] == 7


def ip(*words, check=True):
    subprocess.run(["ip", *words], check=check, capture_output=True, timeout=20)


@pytest.fixture
def two_nodes():
    """Two network namespaces joined by a link: [(namespace, interface, address)]."""
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("unshare"):
        pytest.skip("needs root, ip and unshare for network namespaces")
    tag = uuid.uuid4().hex[:6]
    nodes = [(f"dp{tag}{i}", f"v{tag}{i}", f"10.77.{int(tag[:2], 16)}.{i + 1}") for i in range(2)]
    try:
        try:
            for name, _, _ in nodes:
                ip("netns", "add", name)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces cannot be made here: {error.stderr.decode().strip()}")
        ip("link", "add", nodes[0][1], "type", "veth", "peer", "name", nodes[1][1])
        for name, interface, address in nodes:
            ip("link", "set", interface, "netns", name)
            ip("-n", name, "addr", "add", f"{address}/24", "dev", interface)
            for one in ("lo", interface):
                ip("-n", name, "link", "set", one, "up")
        yield nodes
    finally:
        for name, _, _ in nodes:
            ip("netns", "del", name, check=False)


@pytest.mark.promise("D2")
@MANY
def test_two_nodes_whose_link_is_cut_both_end_in_time_and_name_each_other(two_nodes, tmp_path):
    """Without a shared disk or a launcher; neither is told anything, packets just do not arrive any more."""
    with contextlib.ExitStack() as nodes:
        runs = []
        for rank, (name, interface, _) in enumerate(two_nodes):
            place = tmp_path / f"node{rank}"
            place.mkdir()
            world = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
            world |= {"MASTER_ADDR": two_nodes[0][2], "MASTER_PORT": "29400", "GLOO_SOCKET_IFNAME": interface}
            alone = (
                "ip",
                "netns",
                "exec",
                name,
                "unshare",
                "--uts",
                "sh",
                "-c",
                f'hostname node{rank}; exec "$@"',
                "sh",
            )
            one = Launched(place, write(place, **HANGING), SLOW, ranks=0, programs=True, before=alone, **world)
            runs.append(nodes.enter_context(one))
        for run in runs:
            run.wait_for()
        time.sleep(2)
        ip("-n", two_nodes[0][0], "link", "set", two_nodes[0][1], "down")
        began = time.monotonic()
        codes = [run.wait(60) for run in runs]
        assert time.monotonic() - began < TIMEOUT_S + 10
        assert codes == [76, 76]
        for rank, run in enumerate(runs):
            told = json.loads((run.run / "exit.json").read_text())
            assert (told["reason"], told["code"], told["rank"]) == ("rank lost", 76, 1 - rank)
            assert f"rank {1 - rank} of 2" in told["message"] and f"on node{1 - rank}" in told["message"]
            assert "most recent call first" in (run.run / "stacks" / f"rank_{rank}.txt").read_text()
