"""A run directory as it was left: what is there is told, what is not is a gap, and the types are as declared."""

import json
import os

import numpy as np
import pytest

from dp_prior.reports.pages import story as module
from dp_prior.reports.pages.story import is_number, read_story, state_of
from tests.cases import every
from tests.messages import naming, told


@pytest.fixture
def run(tmp_path):
    """A run that logged, measured and ended; its configuration is of another version."""
    directory = tmp_path / "a run"
    (directory / "media").mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps({"task": {"width": 3}, "of another version": True}))
    rows = [{"step": step, "samples_seen": 8 * step, "train/loss": 1 / step} for step in (1, 2)]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (directory / "exit.json").write_text(json.dumps({"reason": "finished"}))
    report(directory, "rollout", 2, {"rollout/by_seed": [EPISODE, {**EPISODE, "seed": 1, "score": None}]})
    return directory


EPISODE = {"seed": 0, "score": 0.5, "success": True, "steps": 9}


def report(run, name, step, tables):
    path = run / "media" / f"{name}_{step:08d}.json"
    path.write_text(
        json.dumps({"settings": {"type": name}, "global_step": step, "samples_seen": 8 * step, "tables": tables})
    )
    return path


def test_a_run_is_told_as_it_was_left(run):
    story = read_story(run)
    assert (story.name, story.state, story.settings["task.width"]) == ("a run", "finished", 3)
    assert [row["train/loss"] for row in story.rows] == [1.0, 0.5]
    (found,) = story.reports
    assert (found.name, found.step, found.samples) == ("rollout", 2, 16) and story.tested is found
    assert [row["score"] for row in found.episodes][0] == 0.5 and np.isnan(found.episodes[1]["score"])
    assert len(story.gaps) == 1 and "config.json" in story.gaps[0]


def test_files_beside_a_report_are_its_own(run):
    path = report(run, "action_error", 2, {})
    other = report(run, "action_error", 12, {})
    chunks = np.zeros((2, 3, 4, 2), np.float32)
    np.save(path.with_name(f"{path.stem}_ema_chunks.npy"), chunks)
    np.save(other.with_name(f"{other.stem}_online_chunks.npy"), chunks + 1)
    path.with_suffix(".mp4").write_bytes(b"")
    path.with_name(f"{path.stem}_ema.png").write_bytes(b"")
    story = read_story(run)
    first, last = [one for one in story.reports if one.name == "action_error"]
    assert first.film == path.with_suffix(".mp4") and last.film is None
    assert [one.name for one in first.pictures] == [f"{path.stem}_ema.png"] and last.pictures == []
    assert list(story.chunks) == ["action_error/online"]  # of the newest report
    assert (story.chunks["action_error/online"] == 1).all()


@pytest.mark.parametrize("name", ["config.json", "exit.json", "result.json"])
@pytest.mark.parametrize("data", [b"", b"[1]", b"{", b"\xff", b"[" * 100_000])
def test_a_damaged_document_is_a_gap_with_its_name(run, name, data):
    (run / name).write_bytes(data)
    story = read_story(run)
    assert any(gap.startswith(name) for gap in story.gaps) and len(story.rows) == 2


def test_rows_that_are_none_are_left_out_and_counted(run):
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 3, "samples_seen": "many"}\n{"step": 4, "samples_seen": 32, "a": "text", "b": null}\n{"st')
    story = read_story(run)
    assert story.rows[-1] == {"step": 4, "samples_seen": 32, "b": None} and len(story.rows) == 3
    assert any("1 rows" in gap for gap in story.gaps) and any("of a" in gap for gap in story.gaps)


@pytest.mark.parametrize("change", [{"global_step": "2"}, {"tables": []}, {"settings": {}}, {"samples_seen": None}])
def test_a_report_that_is_none_is_a_gap_with_its_name(run, change):
    (path,) = (run / "media").glob("*.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    story = read_story(run)
    assert story.reports == [] and any(path.name in gap for gap in story.gaps)


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=naming(tmp_path, "config.json", "metrics.jsonl")):
        read_story(tmp_path)


@pytest.mark.parametrize(
    ("ending", "state"),
    [
        ({}, "unknown"),
        *(({"reason": reason}, "finished") for reason in ("finished", "complete")),
        *(({"reason": reason}, "stopped") for reason in ("preempted", "interrupted")),
        ({"reason": "not finite"}, "failed"),
        ({"reason": "running"}, "running"),
        ({"reason": "running", "host": "elsewhere", "pid": 2**22 - 3}, "running"),
        ({"reason": "running", "host": os.uname().nodename, "pid": 2**22 - 3}, "killed"),
        ({"reason": "running", "host": os.uname().nodename, "pid": os.getpid()}, "running"),
    ],
)
def test_the_state_is_that_of_the_process_where_it_can_be_asked(ending, state):
    assert state_of(ending) == state


@every(value=[True, None, "1", float("nan"), float("-inf"), 10**400, [1]])
def test_only_finite_numbers_are_numbers(value):
    assert not is_number(value) and is_number(1) and is_number(-1e308)


def test_a_configuration_with_parts_of_another_package_names_them_and_the_remedy(run):
    (run / "config.json").write_text(json.dumps({"$parts": {"wavenet": "mine 1.0"}, "task": {"width": 3}}))
    story = read_story(run)
    assert story.parts == {"wavenet": "mine 1.0"} and list(story.settings) == ["task.width"]
    [gap] = story.gaps
    assert "wavenet" in gap and "--import" in gap and "version that" not in gap


def test_evaluators_are_settings_one_by_one(run):
    evaluate = [{"type": "loss"}, {"type": "rollout", "env": {"type": "toy"}}]
    (run / "config.json").write_text(json.dumps({"odd": 1, "evaluate": evaluate, "task": {"list": [1, 2]}}))
    settings = read_story(run).settings
    assert settings["evaluate.0.type"] == "loss" and settings["evaluate.1.env.type"] == "toy"
    assert settings["task.list"] == [1, 2]


@pytest.mark.parametrize("bound", [1, 60, 61, 62, 119, 120])
def test_of_long_events_the_newest_whole_lines_are_told(run, monkeypatch, bound):
    lines = [json.dumps({"step": step, "event": "error", "message": "x" * 15}) + "\n" for step in (1, 2, 3)]
    assert {len(line) for line in lines} == {60}
    (run / "events.jsonl").write_text("".join(lines))
    monkeypatch.setattr(module, "LARGEST_EVENTS", bound)
    story = read_story(run)
    whole = [3, 2][: (bound - 1) // 60][::-1]  # the line in which the bound lies is not whole
    assert [event["step"] for event in story.events] == whole
    assert told("\n".join(story.gaps), "events.jsonl", "180 bytes", bound)


def test_of_many_reports_those_written_last_are_told(run, monkeypatch):
    for number, name in enumerate(("b", "a", "c")):
        os.utime(report(run, name, 3, {}), (number, number))
    os.utime(run / "media" / "rollout_00000002.json", (0, 0))
    for change, value in (
        ("MOST_REPORTS", 2),
        ("LARGEST_REPORTS", 2 * (run / "media" / "a_00000003.json").stat().st_size),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, change, value)
            story = read_story(run)
        assert {one.name for one in story.reports} == {"a", "c"}
        assert told("\n".join(story.gaps), "4 reports", f"{value:,}")


def test_frames_of_cameras_are_those_of_the_first_report_or_a_gap(run):
    for step in (2, 12):
        report(run, "action_error", step, {})
    path = run / "media" / "action_error_00000002_frames.npy"
    frames = np.zeros((2, 4, 6, 3), np.uint8)
    np.save(path, frames)
    assert read_story(run).frames["action_error"].shape == frames.shape
    for wrong in (frames[..., 0], frames.astype(np.float32), frames[:0]):
        np.save(path, wrong)
        story = read_story(run)
        assert not story.frames and told("\n".join(story.gaps), f"media/{path.name}", f"{wrong.dtype} {wrong.shape}")
