"""`dp-prior try`: every layout becomes a judged policy, what stops it is made good by the same command, and what cannot
be read is refused."""

import json
import os
import signal

import numpy as np
import pytest
from click.testing import CliRunner

from dp_prior.run.run import Run
from dp_prior.training.trainer import PolicyTrainer
from dp_prior_studio.attempt import attempt
from dp_prior_studio.try_command import try_data
from tests.messages import told
from tests.plugins.dp_prior_studio.attempt.layouts import LAYOUTS, STEPS, npz

SECOND = 1 / 60
"""A limit so short that the fewest steps are trained."""


def attempted(*arguments):
    return CliRunner().invoke(try_data, [*map(str, arguments), "--minutes", str(SECOND)], catch_exceptions=False)


def contents(place):
    """Path and bytes of every file."""
    return {path: path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file()}


@pytest.fixture(autouse=True)
def handler():
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_becomes_a_judged_policy_and_nothing_is_written_into_it(layout, here):
    write, packages = LAYOUTS[layout]
    for package in packages:
        pytest.importorskip(package)
    data = write(here / "data")
    before = contents(here / "data")
    done = attempted(data, "--out", "mine")
    assert done.exit_code == 0, done.output
    assert contents(here / "data") == before and {path.name for path in here.iterdir()} == {"data", "mine"}
    proposal = json.loads((here / "mine/proposal.json").read_text())["data"]
    assert len(proposal["obs"]) == 1 and proposal["action"]
    judgement = json.loads((here / "mine/judgement.json").read_text())
    assert judgement["part"] == "val" and len(judgement["by_episode"]) == 1 and len(judgement["dimensions"]) == 2
    assert all(0 < error < 10 for error in judgement["scaled"].values()) and len(judgement["scaled"]) == 3
    assert judgement["losses"][0][0] == 0 and len(judgement["losses"]) > 1
    page = (here / "mine/report.html").read_text()
    assert told(done.output, "verdict") and told(done.output, "train mine/proposal.json")
    assert "train mine/proposal.json" in page
    sees = layout in ("aloha", "zarr", "lerobot")
    assert ("images" in proposal) == sees
    assert ("<video" in page) == sees == bool([*(here / "mine/run/media").glob("film_*.mp4")])


@pytest.mark.slow
def test_a_second_call_says_that_it_is_done_and_trains_nothing(here):
    data = npz(here / "data")
    first = attempted(data)
    assert first.exit_code == 0 and (here / "tried/mine/report.html").is_file(), first.output
    before = contents(here / "tried/mine/run/checkpoints")
    again = attempted(data)
    assert again.exit_code == 0 and "already tried" in again.output
    assert contents(here / "tried/mine/run/checkpoints") == before
    verdicts = [[line for line in done.output.splitlines() if "verdict" in line] for done in (first, again)]
    assert verdicts[0] == verdicts[1] and len(verdicts[0]) == 1


class Killed(BaseException):
    """What no part of the command handles, as a kill."""


@pytest.mark.slow
def test_an_attempt_that_dies_anywhere_is_finished_by_the_same_command(here, monkeypatch):
    data = npz(here / "data")
    places = [
        (attempt, "measured_times"),
        (attempt, "check"),
        (Run, "run"),
        (attempt, "judge"),
        (attempt, "attempt_page"),
    ]
    for place, name in places:
        with monkeypatch.context() as patch:

            def die(*arguments, **options):
                raise Killed

            patch.setattr(place, name, die)
            with pytest.raises(Killed):
                attempted(data)
    edited = here / "tried/mine/proposal.json"
    proposal = json.loads(edited.read_text())
    edited.write_text(json.dumps({**proposal, "description": "mine"}))
    done = attempted(data)
    assert done.exit_code == 0 and (here / "tried/mine/report.html").is_file(), done.output
    assert told(done.output, "tried/mine/proposal.json", "inspect"), "an edited proposal is told"
    assert json.loads(edited.read_text())["description"] == "mine"


@pytest.mark.slow
def test_ctrl_c_keeps_everything_and_names_the_command_that_goes_on(here, monkeypatch):
    data = npz(here / "data")
    step, calls = PolicyTrainer.step, []

    def interrupting(trainer, *arguments, **options):
        calls.append(trainer)
        if len(calls) == limit:
            os.kill(os.getpid(), signal.SIGINT)
        return step(trainer, *arguments, **options)

    monkeypatch.setattr(PolicyTrainer, "step", interrupting)
    repeat = f"dp-prior try {data} --out tried/mine"
    limit = 2  # in the measurement of the times
    stopped = attempted(data)
    assert stopped.exit_code == 130 and repeat in stopped.output and not (here / "tried/mine/short.json").exists()
    calls.clear()
    limit = 5 + 5 + 3  # in the run, after a measurement and a check of five steps each
    stopped = attempted(data)
    assert stopped.exit_code == 75 and repeat in stopped.output, stopped.output
    assert [*(here / "tried/mine/run/checkpoints").glob("step_*3")]
    calls.clear()
    limit = None
    done = attempted(data)
    assert done.exit_code == 0 and told(done.output, "verdict"), done.output
    assert len(calls) == 5, "of eight steps, three were done"


def test_what_cannot_be_read_is_refused_with_the_finding_and_nothing_is_written(here):
    (here / "empty").mkdir()
    (here / "text.txt").write_text("hello")
    (here / "broken.npz").write_bytes(b"PK\x03\x04 no archive")
    arrays = dict(np.load(npz(here / "data")))
    arrays["action"][::STEPS] = np.nan
    np.savez(here / "odd.npz", **arrays)
    for place, code, parts in (
        ("empty", 65, ("empty", "docs/data.md#layouts")),
        ("nowhere", 65, ("nowhere",)),
        ("text.txt", 65, ("text.txt", "docs/data.md#layouts")),
        ("broken.npz", 65, ("broken.npz",)),
        ("odd.npz", 65, ("odd.npz", "action", "episode 0")),
        ("mine.json", 64, ("mine.json", "train mine.json")),
    ):
        done = attempted(place)
        assert done.exit_code == code and told(done.output, *parts), done.output
        assert not (here / "tried").exists(), place


@pytest.mark.slow
def test_an_episode_that_cannot_be_read_is_left_out_and_its_repair_comes_first(here):
    arrays = dict(np.load(npz(here / "data")))
    arrays["action"][STEPS + 6] = np.nan
    np.savez(here / "odd.npz", **arrays)
    done = attempted("odd.npz")
    assert done.exit_code == 0, done.output
    assert json.loads((here / "tried/odd/short.json").read_text())["data"]["choice"] == {"leave_out": [1]}
    following = done.output.partition("next\n")[2].splitlines()
    assert told(following[0].strip(), "inspect odd.npz --html tried/odd/inspection.html", "action", "episode 1")
