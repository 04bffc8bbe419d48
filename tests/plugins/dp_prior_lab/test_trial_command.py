"""`serve` and `trial` as a person and a robot use them: over the real protocol, and killed in the middle."""

import json
import os
import re
import shutil
import signal
import socket
import time

import numpy as np
import pytest

from dp_prior_client import PolicyClient
from dp_prior_client.client import ServerError
from dp_prior_lab import trial_command
from dp_prior_lab.comparison_result import RESULT, VERDICT_PAGE
from dp_prior_lab.outcomes import OUTCOMES
from dp_prior_lab.trial import TICKS
from dp_prior_lab.trial_journal import CHECK, Journal
from dp_prior_lab.trial_sheet import JOURNAL, SEALED
from tests import forks
from tests.cli.invoked import command
from tests.faults import assert_none
from tests.messages import told

pytest.importorskip("websockets", reason="websockets is not installed: `trial` is NOT tested")
pytest.importorskip("msgpack", reason="msgpack is not installed: `trial` is NOT tested")

PROGRAM = """
import os, sys
os.dup2(os.open(sys.argv.pop(1), os.O_RDONLY), 0)
sys.stdin = open(0, closefd=False)
from dp_prior.cli import main
main()
"""


class Arm:
    """A robot whose program connects once and runs an episode for each trial; its score follows from the actions."""

    def __init__(self, port):
        self.port, self.client, self.metadata = port, None, []

    def episode(self, in_the_middle=lambda: None):
        if self.client is None:
            self.client = PolicyClient(port=self.port)
        self.client.reset(0)
        actions = []
        for step in range(5):
            actions.append(self.client.act({"agent_pos": [0.1 * step, -0.5], "goal": [0.2, 0.4]}))
            if step == 2:  # a chunk of two actions is under way
                in_the_middle()
        self.metadata.append(self.client.metadata)
        return f"{abs(float(np.sum(actions))) % 1:.6f}"

    def answer(self, question, **options):
        """What a person enters who lets the arm run."""
        return self.episode(**options) if "outcome (" in question else ""


class Terminal:
    """A trial in a process of its own, which writes questions to a file and reads answers from a pipe."""

    def __init__(self, place, arguments):
        self.log, self.pipe = place / "log", place / "pipe"
        self.log.unlink(missing_ok=True)
        self.pipe.unlink(missing_ok=True)
        os.mkfifo(self.pipe)
        self.process = forks.Fork(["-c", PROGRAM, self.pipe, *arguments], self.log, self.log)
        self.answers, self.answered = self.pipe.open("w"), 0

    def question(self):
        """The next one; None at the end."""
        while self.process.poll() is None:
            text = self.log.read_text() if self.log.exists() else ""
            if text.endswith(": ") and len(text) > self.answered:
                return text.rpartition("\n")[2]
            time.sleep(0.005)
        return None

    def enter(self, answer):
        self.answered = len(self.log.read_text())
        self.answers.write(answer + "\n")
        self.answers.flush()

    def kill(self):
        self.process.kill()
        self.process.wait()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


@pytest.fixture
def line(trained_policy, tmp_path):
    """The arguments of a trial of two checkpoints, in a folder of `tmp_path`; and the port."""
    port = free_port()
    names = [f"{trained_policy}@latest", f"{trained_policy}@step_00000021"]

    def found(folder, *more):
        options = ("--out", tmp_path / folder, "--port", port, "--most", 2, "--stages", "reach,lift", *more)
        return [str(one) for one in ("trial", *names, *options)]

    return found, port, names


def events(folder):
    """Those of the journal, without their times and the checksums, which are of the times, too."""
    Journal(folder / JOURNAL).close()  # verifies the checksums
    lines = (folder / JOURNAL).read_text().splitlines()
    return [{**json.loads(line), "time": None, CHECK: None} for line in lines]


def held(line, arm, folder, monkeypatch, answer=None):
    """Screen of a trial in this process."""
    shown = []

    def ask(question):
        shown.append(question)
        return (answer or arm.answer)(question)

    monkeypatch.setattr(trial_command, "_ask", ask)
    done = command(*line(folder))
    assert done.exit_code == 0, done.output
    return shown, done.output


@pytest.mark.promise("L2")
@pytest.mark.slow
def test_a_trial_that_is_killed_twice_is_the_one_that_is_not(line, tmp_path, monkeypatch):
    """SIGKILL while a policy acts, whose client goes on with the next process, and between outcome and notes."""
    line, port, names = line
    arm = Arm(port)
    _, output = held(line, arm, "whole", monkeypatch)
    arm.client.close()
    (tmp_path / "killed").mkdir()
    for name in ("players.json", SEALED):
        shutil.copy(tmp_path / "whole" / name, tmp_path / "killed" / name)
    terminal, kills = Terminal(tmp_path, line("killed")), []
    while (question := terminal.question()) is not None:
        if not kills and "trial 2 " in question and "outcome (" in question:

            def kill():
                nonlocal terminal
                terminal.kill()
                terminal = Terminal(tmp_path, line("killed"))

            score = arm.answer(question, in_the_middle=kill)
            kills.append(terminal.question())
            terminal.enter(score)
        elif len(kills) == 1 and "notes" in question:
            kills.append(question)
            terminal.kill()
            terminal = Terminal(tmp_path, line("killed"))
        else:
            terminal.enter(arm.answer(question))
    arm.client.close()
    assert terminal.process.wait() == 0 and "trial 2 (start '1')" in kills[0] and "notes" in kills[1]
    assert events(tmp_path / "killed") == events(tmp_path / "whole")
    for name in (OUTCOMES, RESULT):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    tail = output.replace(str(tmp_path / "whole"), str(tmp_path / "killed"))
    assert terminal.log.read_text().endswith(tail[tail.index(names[0]) :])


@pytest.mark.promise("L3")
def test_nothing_but_the_end_names_a_policy(line, tmp_path, monkeypatch):
    line, port, names = line
    arm = Arm(port)
    shown, output = held(line, arm, "out", monkeypatch)
    arm.client.close()
    assert len(shown) == 1 + 4 * 4 and not any(name in "".join(shown) for name in names)
    assert all(one == arm.metadata[0] for one in arm.metadata) and arm.metadata[0]["policy"] == "trial"
    before = output.partition(f"{names[0]} ")[0]
    assert told(before, "4 of", 4) and not any(name in before for name in names)
    logs = sorted((tmp_path / "out" / TICKS).glob("*/*"))
    assert [str(path.relative_to(tmp_path / "out" / TICKS)) for path in logs] == [
        f"trial_000{number}/episode_000000.npz" for number in (1, 2, 3, 4)
    ]
    for path in (tmp_path / "out" / JOURNAL, tmp_path / "out" / SEALED, *logs):
        assert not any(one.encode() in path.read_bytes() for one in names)
    for path in logs:  # of five steps two chunks of two actions and one of the last
        arrays = np.load(path)
        assert arrays["step"].tolist() == [0, 2, 4] and arrays["chunk"].shape[0] == 3
        np.testing.assert_allclose(arrays["obs.agent_pos"], [[0, -0.5], [0.2, -0.5], [0.4, -0.5]], rtol=1e-6)
    document = json.loads((tmp_path / "out" / RESULT).read_text())
    assert [one["policy"] for one in document["policies"]] == names and document["rollouts"] == 4
    page = (tmp_path / "out" / VERDICT_PAGE).read_text()
    assert all(name in page for name in names)
    compared = command("compare", tmp_path / "out" / OUTCOMES)
    verdicts = re.compile(r"[\d.]+ \([\d.]+ to [\d.]+\)")
    assert sorted(verdicts.findall(compared.output)) == sorted(verdicts.findall(output[len(before) :]))
    again = command(*line("out"))
    assert again.exit_code == 0 and again.output.partition("\n")[2] == output[len(before) :]


def test_sigterm_ends_a_trial_as_ctrl_c_does(line, tmp_path):
    """A robot gets the end of its connection, and a scheduler the code on which it repeats a command."""
    line, port, _ = line
    terminal = Terminal(tmp_path, line("out"))
    terminal.question()
    with PolicyClient(f"ws://127.0.0.1:{port}"):
        os.kill(terminal.process.pid, signal.SIGTERM)
        assert terminal.process.wait() == 75
    assert told(terminal.log.read_text(), "same command", str(tmp_path / "out"))
    assert events(tmp_path / "out") == []


def test_between_trials_the_robot_gets_no_actions_and_a_stop_keeps_all(line, tmp_path, monkeypatch):
    line, port, _ = line
    arm, told = Arm(port), []

    def answer(question):
        if "trial 2," in question:
            with pytest.raises(ServerError) as refused:
                arm.episode()
            told.append(str(refused.value))
            raise EOFError
        return arm.answer(question)

    monkeypatch.setattr(trial_command, "_ask", answer)
    done = command(*line("out"))
    arm.client.close()
    assert done.exit_code == 75 and str(tmp_path / "out") in done.output
    assert "dp-prior trial" in told[0]
    assert [one["event"] for one in events(tmp_path / "out")] == ["begin", "entry"]


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("trial a b", ["--out"]),
        ("trial a --out new", ["two policies"]),
        ("trial a a --out new", ["once"]),
        ("trial a b --out new --range 1 0", ["--range", "1 0"]),
        ("trial a b --out new --range 0 inf", ["--range", "inf"]),
        ("trial a b --out new --stages lift,lift", ["--stages", "lift,lift"]),
        ("trial a b --out new --stages 1,2", ["--stages", "1,2"]),
        ("trial a b --out new --stages lift,,place", ["--stages"]),
        ("trial a b --out new --most 0", ["--most"]),
        ("trial a b --out new --error 1", ["--error"]),
        ("trial a b --out new --answer-after -1", ["--answer-after"]),
    ],
)
def test_a_line_that_means_nothing_is_a_matter_of_usage(line, named, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = command(*line.split())
    assert done.exit_code == 2 and all(part in done.output for part in named), done.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("line", ["serve none --port 0", "trial none other --out new --port 0"])
def test_a_model_that_is_not_there_is_named_in_one_message(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = command(*line.split())
    assert done.exit_code == 64 and done.output.splitlines()[-1].startswith("error: ") and "none" in done.output
    assert not list(tmp_path.iterdir())


def test_other_machines_need_a_key_or_a_word(trained_policy, tmp_path):
    trial = ["trial", trained_policy, f"{trained_policy}@step_00000021", "--out", tmp_path / "out"]
    done = [command(*one, "--host", "0.0.0.0", "--port", 0) for one in (["serve", "none"], trial)]
    assert_none(one.output for one in done if one.exit_code != 64 or "--token-file" not in one.output)
    assert_none(one.output for one in done if "--insecure" not in one.output)
