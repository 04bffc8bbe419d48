"""Runs below a directory: each found once, read again when a file changes, and never anything outside."""

import errno
import json
import os
import shutil
from types import SimpleNamespace

import pytest

from dp_prior.tracking import row_log
from dp_prior_studio.pages.page import Page
from dp_prior_studio.watching import run_list as module
from dp_prior_studio.watching.run_list import Runs
from tests.messages import naming
from tests.plugins.dp_prior_studio.watching.runs_on_disk import write_run


@pytest.fixture(autouse=True)
def searching_is_free(monkeypatch):
    monkeypatch.setattr(module, "SHARE", float("inf"))


@pytest.fixture
def root(tmp_path):
    for place in ("a", "sweep/b", "sweep/c"):
        write_run(tmp_path / "root" / place)
    return tmp_path / "root"


def test_every_run_is_found_by_its_path_but_none_inside_a_run_or_a_hidden_folder(root):
    write_run(root / "a" / "inside")
    write_run(root / ".hidden" / "d")
    (root / "no run").mkdir()
    assert sorted(Runs(root).summaries()) == ["a", "sweep/b", "sweep/c"]


def test_the_directory_itself_may_be_a_run(root):
    assert list(Runs(root / "a").summaries()) == [""]


def test_a_summary_follows_its_files(root):
    runs = Runs(root)
    version, before = runs.one("a")
    assert (before.newest, before.state) == (0.2, "finished") and runs.one("a")[0] == version
    write_run(root / "a", steps=5)
    changed, after = runs.one("a")
    assert changed != version and after.newest == 0.5
    shutil.rmtree(root / "sweep")
    assert list(runs.summaries()) == ["a"]


def test_few_rows_are_kept_and_a_forgotten_log_is_read_anew(root, monkeypatch):
    monkeypatch.setattr(module, "ROWS_KEPT", 4)
    runs = Runs(root)
    for steps in (2, 5):
        for place in ("a", "sweep/b", "sweep/c"):
            write_run(root / place, steps=steps)
            assert runs.one(place)[1].newest == steps / 10
    assert list(runs._logs) == ["sweep/b", "sweep/c"]


def test_only_new_lines_of_many_short_logs_are_read(root, monkeypatch):
    for number in range(30):
        write_run(root / f"{number}", steps=5)
    runs = Runs(root)
    runs.summaries()
    parsed, original = [], row_log.parse_row
    monkeypatch.setattr(row_log, "parse_row", lambda line: parsed.append(1) or original(line))
    for place in runs.summaries():
        with (root / place / "metrics.jsonl").open("a") as file:
            file.write('{"step": 9, "samples_seen": 72, "rollout/score": 0.9}\n')
    assert {one.newest for one in runs.summaries().values()} == {0.9}
    assert len(parsed) == 2 * 33  # the newest row is read again


def test_many_long_logs_share_the_rows_that_are_kept_and_only_new_lines_are_read(root, monkeypatch):
    monkeypatch.setattr(module, "ROWS_KEPT", 300)
    monkeypatch.setattr(module, "FEWEST_ROWS", 10)
    for place in ("a", "sweep/b", "sweep/c"):
        write_run(root / place, steps=250)
    runs, parsed, original = Runs(root), [], row_log.parse_row
    runs.summaries()
    monkeypatch.setattr(row_log, "parse_row", lambda line: parsed.append(1) or original(line))
    for place in runs.summaries():
        with (root / place / "metrics.jsonl").open("a") as file:
            file.write('{"step": 300, "samples_seen": 2400, "rollout/score": 0.9}\n')
    assert {one.newest for one in runs.summaries().values()} == {0.9}
    assert len(parsed) == 2 * 3 and all(50 <= log.n_kept <= 100 for log in runs._logs.values())


def test_a_run_is_not_read_again_before_a_file_changes(root, monkeypatch):
    runs, read = Runs(root), []
    monkeypatch.setattr(
        module, "read_story", lambda path, log, original=module.read_story: read.append(path) or original(path, log)
    )
    for _ in range(3):
        runs.summaries()
    assert len(read) == 3
    write_run(root / "a", steps=3)
    runs.summaries()
    assert read[3:] == [root / "a"]


def test_a_page_is_drawn_once_for_each_state_and_few_are_kept(root, monkeypatch):
    drawn = []

    def draw(story, output):
        drawn.append(story.name)
        assert output.name == "report.html"
        return Page(title=story.name, state=story.state)

    monkeypatch.setattr(module, "PAGES_KEPT", 2)
    monkeypatch.setattr(module, "run_page", draw)
    runs = Runs(root)
    for place in ("a", "sweep/b", "a"):
        assert "finished" in runs.page(place)
    assert drawn == ["a", "b"]
    runs.page("sweep/c")
    runs.page("a")
    runs.page("sweep/b")  # the least recently opened was forgotten
    assert drawn == ["a", "b", "c", "b"]
    write_run(root / "a", steps=3)
    runs.page("a")
    assert drawn[4:] == ["a"]


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "run.json"])
def test_a_link_that_leads_out_hides_the_run_alone(root, tmp_path, name):
    (tmp_path / "secret").write_text("{}")
    (root / "a" / name).unlink(missing_ok=True)
    (root / "a" / name).symlink_to(tmp_path / "secret")
    runs = Runs(root)
    version, summary = runs.one("a")
    assert version is None and name in summary.problem and str(root) in summary.problem
    for ask in (lambda: runs.page("a"), lambda: runs.media("a", "f.mp4")):
        with pytest.raises(PermissionError, match=naming(name)):
            ask()
    assert runs.summaries()["sweep/b"].problem != summary.problem


def test_a_link_inside_is_followed(root):
    (root / "shared.json").write_text((root / "a" / "config.json").read_text())
    (root / "a" / "config.json").unlink()
    (root / "a" / "config.json").symlink_to(root / "shared.json")
    assert Runs(root).one("a")[0] is not None


def test_media_are_names_in_the_folder_of_the_run(root):
    (root / "a" / "media").mkdir()
    film = root / "a" / "media" / "f.mp4"
    film.write_bytes(b"film")
    runs = Runs(root)
    assert runs.media("a", "f.mp4") == film
    for name in ("none.mp4", "..", "../config.json", "", "/etc/passwd"):
        with pytest.raises(FileNotFoundError):
            runs.media("a", name)


@pytest.mark.parametrize("place", ["none", "..", "/etc", "sweep", "a/../sweep/b", "a/"])
def test_only_a_place_that_was_found_is_a_run(root, place):
    runs = Runs(root)
    with pytest.raises(FileNotFoundError, match=naming(repr(place), root)):
        runs.one(place)


def test_a_run_that_cannot_be_understood_is_shown_beside_the_others(root, monkeypatch):
    def fail(story):
        if story.name == "b":
            raise ValueError("odd")
        return original(story)

    original = module.summarise
    monkeypatch.setattr(module, "summarise", fail)
    found = Runs(root).summaries()
    assert found["sweep/b"].problem == "ValueError: odd" and found["sweep/b"].name == "b"
    assert found["a"].newest == 0.2


def test_a_run_that_the_system_refused_to_read_for_a_moment_is_read_again_though_no_file_changes(root, monkeypatch):
    def refused(*arguments):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    runs, expected, clock = Runs(root), Runs(root).one("a"), [0.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    with monkeypatch.context() as patch:
        patch.setattr(module, "read_story", refused)
        assert os.strerror(errno.EMFILE) in runs.one("a")[1].problem
    assert os.strerror(errno.EMFILE) in runs.one("a")[1].problem  # not at every look
    clock[0] = 60.0
    assert runs.one("a") == expected


def test_the_version_changes_with_size_time_and_file(root):
    runs, path = Runs(root), root / "a" / "exit.json"
    versions = [runs.one("a")[0]]
    path.write_text(json.dumps({"reason": "failed"}))
    versions.append(runs.one("a")[0])
    os.utime(path, ns=(0, 0))
    versions.append(runs.one("a")[0])
    path.unlink()
    versions.append(runs.one("a")[0])
    assert len(set(versions)) == 4
