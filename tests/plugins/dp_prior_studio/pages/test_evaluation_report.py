"""Reports of evaluators: each has the files beside it, and what cannot be read is a gap."""

import errno
import json
import os

import numpy as np
import pytest

from dp_prior_studio.pages import evaluation_report as module
from dp_prior_studio.pages.evaluation_report import chunks_of, frames_of, is_fingerprint, read_reports
from tests.messages import told

EPISODE = {"seed": 0, "score": 0.5, "success": True, "steps": 9}


def report(media, name, step, tables):
    path = media / f"{name}_{step:08d}.json"
    path.write_text(
        json.dumps({"settings": {"type": name}, "global_step": step, "samples_seen": 8 * step, "tables": tables})
    )
    return path


def test_files_beside_a_report_are_its_own(tmp_path):
    path = report(tmp_path, "action_error", 2, {})
    other = report(tmp_path, "action_error", 12, {})
    chunks = np.zeros((2, 3, 4, 2), np.float32)
    np.save(path.with_name(f"{path.stem}_ema_chunks.npy"), chunks)
    np.save(other.with_name(f"{other.stem}_online_chunks.npy"), chunks + 1)
    path.with_suffix(".mp4").write_bytes(b"")
    path.with_name(f"{path.stem}_ema.png").write_bytes(b"")
    first, last = reports = read_reports(tmp_path, gaps := [])
    assert first.film == path.with_suffix(".mp4") and last.film is None
    assert [one.name for one in first.pictures] == [f"{path.stem}_ema.png"] and last.pictures == []
    found = chunks_of(reports, gaps)
    assert list(found) == ["action_error/online"]  # of the newest report
    assert (found["action_error/online"] == 1).all() and gaps == []


@pytest.mark.parametrize("change", [{"global_step": "2"}, {"tables": []}, {"settings": {}}, {"samples_seen": None}])
def test_a_report_that_is_none_is_a_gap_with_its_name(tmp_path, change):
    path = report(tmp_path, "rollout", 2, {"rollout/by_seed": [EPISODE]})
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert read_reports(tmp_path, gaps := []) == [] and told("\n".join(gaps), path.name)


def test_a_report_that_the_system_refuses_to_read_is_told_with_the_reason(tmp_path, monkeypatch):
    path = report(tmp_path, "rollout", 2, {"rollout/by_seed": [EPISODE]})

    def refused(*arguments):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(module, "read_small", refused)
    assert read_reports(tmp_path, gaps := []) == []
    assert told("\n".join(gaps), path.name, os.strerror(errno.EMFILE)) and not told("\n".join(gaps), "no report")


def test_of_many_reports_those_written_last_are_told(tmp_path, monkeypatch):
    for number, name in enumerate(("rollout", "b", "a", "c")):
        path = report(tmp_path, name, 3, {})
        os.utime(path, (number, number))
    for change, value in (("MOST_REPORTS", 2), ("LARGEST_REPORTS", 2 * path.stat().st_size)):
        with monkeypatch.context() as patch:
            patch.setattr(module, change, value)
            found = read_reports(tmp_path, gaps := [])
        assert {one.name for one in found} == {"a", "c"}
        assert told("\n".join(gaps), "4 reports", f"{value:,}")


def test_frames_of_cameras_are_those_of_the_first_report_or_a_gap(tmp_path):
    path = report(tmp_path, "action_error", 2, {}).with_name("action_error_00000002_frames.npy")
    report(tmp_path, "action_error", 12, {})
    frames = np.zeros((2, 4, 6, 3), np.uint8)
    np.save(path, frames)
    reports = read_reports(tmp_path, gaps := [])
    assert frames_of(reports, gaps)["action_error"].shape == frames.shape and gaps == []
    for wrong in (frames[..., 0], frames.astype(np.float32), frames[:0]):
        np.save(path, wrong)
        assert not frames_of(reports, gaps := [])
        assert told("\n".join(gaps), f"media/{path.name}", f"{wrong.dtype} {wrong.shape}")


def test_other_json_is_no_fingerprint():
    sound = {"packages": {"a": "1"}, "seed": 1, "start": "a"}
    assert is_fingerprint(sound)
    for change in ({"packages": {"a": 1}}, {"packages": []}, {"seed": "1"}, {"seed": True}, {"start": None}):
        assert not is_fingerprint({**sound, **change})
    assert not any(map(is_fingerprint, (None, [], {}, "a")))
