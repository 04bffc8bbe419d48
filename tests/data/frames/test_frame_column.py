"""Frames as a column, and the building of its cache: told, once, and shared."""

import re

import torch

from dp_prior.data.frames.build import BuildProgress
from dp_prior.data.frames.frame_column import ImageColumn, _Throttled
from tests.data.frames.caches import cache_of, expected_frames
from tests.messages import told
from tests.tiny_camera import data_of, recorded


def test_the_cache_is_built_once_and_shared(tmp_path):
    record = recorded("npz", tmp_path)
    lines = []
    first = data_of(record)
    first.build_caches(lines.append)
    assert told(lines[0], "40 of 40", "free") and "40 of 40 frames" in lines[-1]
    assert first.images["front"].cache.directory.parent == tmp_path / ".dp_prior_frames"
    again = []
    data_of(record).build_caches(again.append)
    assert again == []
    elsewhere = data_of({**record, "frame_cache": str(tmp_path / "fast")})
    assert elsewhere.images["front"].cache.directory.parent == tmp_path / "fast"
    assert elsewhere.fingerprint == first.fingerprint


def test_frames_that_do_not_fit_the_memory_are_told(tmp_path, monkeypatch):
    lines, data = [], data_of(recorded("npz", tmp_path))
    monkeypatch.setattr("dp_prior.data.frames.frame_column.memory_bytes", lambda: 40 * 12 * 16 * 3)
    data.build_caches(lines.append)
    assert not any("memory" in line for line in lines)
    monkeypatch.setattr("dp_prior.data.frames.frame_column.memory_bytes", lambda: 40 * 12 * 16 * 3 - 1)
    data.build_caches(lines.append)
    assert told(lines[-1], "2.3e-05 GB", "memory", "disk", "train/data_share")


def test_progress_is_told_once_in_ten_seconds_of_work_and_at_the_end():
    lines = []
    report = _Throttled("front", lines.append)
    for done in range(1, 101):  # two frames a second: 20 in ten seconds
        report(BuildProgress(done, 100, 2.0, (100 - done) / 2))
    assert [re.search(r"([\d,]+) of 100 frames", line)[1] for line in lines] == ["20", "40", "60", "80", "100"]
    assert all("front" in line for line in lines)


def test_a_column_is_the_frames_of_its_cache(source):
    column = ImageColumn(cache_of(source), verify="sizes")
    assert (len(column), column.shape, column.dtype) == (37, (12, 16, 3), torch.uint8)
    assert not column.cache.directory.exists(), "it was built before it was read"
    wanted = torch.tensor([36, 0, 5, 5])
    assert torch.equal(column.rows(wanted), expected_frames(source)[wanted])


def test_the_end_of_a_build_is_told_whenever_it_comes():
    lines = []
    throttled = _Throttled("front", lines.append)
    for done in (10, 20, 25):
        throttled(BuildProgress(done, 25, 2.0, 0.0))
    assert [re.search(r"([\d,]+) of 25 frames", line)[1] for line in lines] == ["20", "25"]
