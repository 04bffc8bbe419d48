"""The log holds what was noted, never holds up who notes, and survives the death of the process and of the disk."""

import shutil
import signal
import subprocess
import sys
import threading
import zipfile
import zlib

import numpy as np
import pytest

from dp_prior_client.onboard import tick_log
from dp_prior_client.onboard.obs_spec import ObsSpec, Reads
from dp_prior_client.onboard.tick_log import Tick, TickLog, checksum
from dp_prior_foreign.recognition import record_at
from tests.messages import naming, told

READS = ObsSpec(
    {"joints": Reads((3,), "float32", names=("a", "b", "c")), "front": Reads((8, 8, 3), "uint8", "image")},
    Reads((2,), "float32", names=("a", "b")),
    fps=10.0,
)


def ticks(count, episode=0, seed=0):
    random = np.random.default_rng(seed)
    return [
        Tick(
            1e9 + step, episode, step,
            {"joints": random.normal(size=3).astype(np.float32), "front": random.integers(0, 256, (8, 8, 3), np.uint8)},
            random.normal(size=2).astype(np.float32),
            random.normal(size=(4, 2)).astype(np.float32) if step % 4 == 0 else None,
            chunk_start=step % 3, late_s=0.5 * (step % 2),
        )
        for step in range(count)
    ]  # fmt: skip


def written(folder):
    """The arrays of each file, in order; meta.json aside."""
    files = sorted(folder.glob("episode_*.npz"))
    return [{name: array for name, array in np.load(file).items() if name.islower() and "json" not in name}
            for file in files]  # fmt: skip


def check(arrays, noted):
    for name in ("time", "episode", "step", "late_s", "action"):
        np.testing.assert_array_equal(arrays[name], [getattr(tick, name) for tick in noted])
    np.testing.assert_array_equal(arrays["obs.joints"], [tick.obs["joints"] for tick in noted])
    assert arrays["crc32.front"].tolist() == [zlib.crc32(tick.obs["front"].tobytes()) for tick in noted]
    begun = [(row, tick) for row, tick in enumerate(noted) if tick.chunk is not None]
    assert arrays["chunk_row"].tolist() == [row for row, _ in begun]
    assert arrays["chunk_start"].tolist() == [tick.chunk_start for _, tick in begun]
    np.testing.assert_array_equal(arrays["chunk"], [tick.chunk for _, tick in begun])


def test_a_file_per_episode_holds_what_was_noted_whoever_notes_and_in_whatever_order(tmp_path):
    first, second, other = ticks(150), ticks(9, episode=1, seed=1), ticks(12, episode=5, seed=2)
    with TickLog(tmp_path / "new" / "log") as log:
        robots = log.recorder(READS), log.recorder(READS)
        for index, tick in enumerate([*first, *second]):
            robots[0].note(tick)
            if index < len(other):
                robots[1].note(other[index])
        robots[0].end()
    files = written(tmp_path / "new" / "log")
    assert sorted(len(arrays["time"]) for arrays in files) == [9, 12, 150]
    for arrays in files:
        check(arrays, {0: first, 1: second, 5: other}[int(arrays["episode"][0])])


def test_an_episode_that_is_begun_again_is_another_one_and_older_files_stay(tmp_path):
    noted = ticks(5)
    for _ in range(2):  # two starts of the program, of which each begins its first episode twice
        with TickLog(tmp_path) as log:
            robot = log.recorder()
            for tick in [*noted, *noted]:
                robot.note(tick)
    files = written(tmp_path)
    assert len(files) == 4
    for arrays in files:
        check(arrays, noted)


def test_the_folder_is_a_data_set_with_names_rate_and_what_was_observed(tmp_path):
    with TickLog(tmp_path) as log:
        robot = log.recorder(READS)
        for tick in [*ticks(20), *ticks(30, episode=1)]:
            robot.note(tick)
    store = record_at(str(tmp_path)).create()
    ends, problems = store.checked_ends()
    assert (ends.tolist(), problems) == ([20, 50], [])
    assert store.metadata()["fps"] == 10.0 and store.metadata()["names"]["obs.joints"] == ["a", "b", "c"]
    assert store.keys()["action"] == (2,) and store.keys()["obs.joints"] == (3,)
    np.testing.assert_array_equal(store.read("action")[20:], [tick.action for tick in ticks(30, episode=1)])
    meta = np.load(tmp_path / "episode_000000.npz")["meta.json"]
    assert told(meta.decode(), '"obs.joints": ["a", "b", "c"]', '"action": ["a", "b"]', '"fps": 10.0')


def test_a_disk_that_stands_still_holds_up_no_robot_and_fills_no_memory(tmp_path, monkeypatch, caplog):
    stands, may_write, writes = threading.Event(), threading.Event(), tick_log._Episode.write

    def stuck(self, is_durable):
        stands.set()
        assert may_write.wait(60)
        writes(self, is_durable)

    monkeypatch.setattr(tick_log._Episode, "write", stuck)
    monkeypatch.setattr(tick_log, "MOST_TICKS", 200)
    noted = ticks(500)
    with TickLog(tmp_path, flush_s=0) as log:
        robot = log.recorder()
        robot.note(noted[0])
        assert stands.wait(60)
        for tick in noted[1:]:
            robot.note(tick)
        waiting = sum(value.nbytes for _, (_, _, row) in list(log._ticks) for _, value in row)
        may_write.set()
    assert log.dropped == 499 - 200 and waiting < 200 * 500, "no frame waits"
    assert told(caplog.text, tmp_path)
    [arrays] = written(tmp_path)
    assert len(arrays["step"]) == 500 - log.dropped
    check(arrays, [noted[step] for step in arrays["step"]])


def test_episodes_and_all_but_the_last_seconds_survive_a_kill(tmp_path):
    program = """
import os, signal, sys, time
import numpy as np
from dp_prior_client.onboard.tick_log import Tick, TickLog, checksum
log = TickLog(sys.argv[1], flush_s=0.01)
robot = log.recorder()
for episode in (0, 1):
    for step in range(50):
        robot.note(Tick(1e9 + step, episode, step, {"joints": np.ones(3)}, np.full(2, step)))
while sum(np.load(file)["step"].size for file in log.folder.glob("episode_*.npz") if file.stat().st_size) < 51:
    time.sleep(0.001)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program, tmp_path], timeout=60)
    assert done.returncode == -signal.SIGKILL
    finished, running = written(tmp_path)
    for arrays, count in ((finished, 50), (running, len(running["step"]))):
        assert arrays["step"].tolist() == list(range(count))
    store = record_at(str(tmp_path)).create()  # in spite of the file that was being written
    assert store.checked_ends()[1] == []


def test_a_program_that_ends_without_closing_loses_nothing(tmp_path):
    program = """
import sys
import numpy as np
from dp_prior_client.onboard.tick_log import Tick, TickLog, checksum
robot = TickLog(sys.argv[1]).recorder()
for step in range(1000):
    robot.note(Tick(0.0, 0, step, {"joints": np.ones(3)}, np.full(2, step)))
raise RuntimeError("the arm has no power")
"""
    subprocess.run([sys.executable, "-c", program, tmp_path], timeout=60, stderr=subprocess.DEVNULL)
    [arrays] = written(tmp_path)
    assert arrays["step"].tolist() == list(range(1000))


def test_a_folder_that_vanishes_is_told_once_and_the_robot_goes_on(tmp_path, caplog):
    with TickLog(tmp_path / "log") as log:
        robot = log.recorder()
        shutil.rmtree(tmp_path / "log")
        for episode in range(3):
            for tick in ticks(5, episode):
                robot.note(tick)
    assert [told(record.getMessage(), tmp_path / "log") for record in caplog.records] == [True]
    assert not (tmp_path / "log").exists()


def test_a_folder_that_cannot_be_written_is_refused_before_the_robot_moves(tmp_path):
    (tmp_path / "log").write_text("a file")
    with pytest.raises(OSError, match=naming(tmp_path / "log")):
        TickLog(tmp_path / "log")


def test_a_fault_of_a_tick_is_told_once_raises_nothing_and_costs_no_other(tmp_path, caplog):
    noted = ticks(6)
    with TickLog(tmp_path) as log:
        robot = log.recorder()
        for tick in noted:
            robot.note(tick)
            robot.note(tick._replace(action="no action"))
    [arrays] = written(tmp_path)
    check(arrays, noted)
    assert len(caplog.records) == 1 and log.dropped == len(noted)


def test_long_episodes_and_observations_of_another_shape_go_on_in_another_file(tmp_path, monkeypatch):
    monkeypatch.setattr(tick_log, "MOST_ROWS", 100)
    noted = ticks(250)
    wider = [tick._replace(obs={**tick.obs, "joints": np.zeros(4)}, step=tick.step + 250) for tick in ticks(7)]
    with TickLog(tmp_path) as log:
        robot = log.recorder()
        for tick in [*noted, *wider]:
            robot.note(tick)
    files = written(tmp_path)
    assert [len(arrays["step"]) for arrays in files] == [100, 100, 50, 7]
    for begin, arrays in zip((0, 100, 200), files, strict=False):
        check(arrays, noted[begin : begin + 100])


def test_every_file_has_a_row_of_each_observation_for_each_tick_though_keys_come_and_go(tmp_path):
    noted = ticks(9)
    noted[3:6] = [tick._replace(obs={**tick.obs, "grip": np.zeros(1, np.float32)}) for tick in noted[3:6]]
    with TickLog(tmp_path) as log:
        recorder = log.recorder()
        for tick in noted:
            recorder.note(tick)
    files = written(tmp_path)
    assert [arrays["step"].tolist() for arrays in files] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    for arrays in files:
        rows = {len(array) for name, array in arrays.items() if not name.startswith("chunk")}
        assert rows == {3}
    assert ["obs.grip" in arrays for arrays in files] == [False, True, False]


def test_wide_observations_and_texts_have_a_checksum_that_changes_with_them(tmp_path):
    observations = [{"cloud": np.full((30, 3), k), "task": np.array(text), "late": np.zeros(2) if k else None}
                    for k, text in ((0, "go"), (0, "go"), (1, "stop"))]  # fmt: skip
    with TickLog(tmp_path) as log:
        robot = log.recorder()
        for step, obs in enumerate(observations):
            robot.note(Tick(0.0, 0, step, {key: obs[key] for key in ("cloud", "task")}, np.zeros(1)))
    [arrays] = written(tmp_path)
    for key in ("crc32.cloud", "crc32.task"):
        same, again, other = arrays[key]
        assert same == again != other


def test_arrays_are_stored_as_bytes_which_zip_files_of_python_3_8_count_by_their_length(tmp_path, monkeypatch):
    """Otherwise `BadZipFile` comes when the log is read, long after the robot has moved."""
    pieces, write = [], zipfile._ZipWriteFile.write
    monkeypatch.setattr(zipfile._ZipWriteFile, "write", lambda self, data: (pieces.append(data), write(self, data))[1])
    with TickLog(tmp_path) as log:
        log.recorder().note(ticks(1)[0])
    assert len(pieces) > 10 and all(len(piece) == memoryview(piece).nbytes for piece in pieces)


def test_a_large_frame_has_a_checksum_of_some_rows_which_whatever_is_as_high_as_their_distance_changes():
    frame = np.random.default_rng(0).integers(0, 256, (480, 640, 3), np.uint8)
    assert checksum(frame) == checksum(frame.copy()) == checksum(np.asfortranarray(frame))
    for top in range(0, 472):
        other = frame.copy()
        other[top : top + 8, 100:102] ^= 1
        assert checksum(other) != checksum(frame)
    small = frame[:96, :96]
    assert checksum(small) == zlib.crc32(small.tobytes())
