"""Looking after checkpoints by hand, with the commands a user gives."""

import errno
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from dp_prior.checkpoints.clock import Progress
from dp_prior.checkpoints.retention import RetentionConfig
from dp_prior.checkpoints.snapshot import Snapshot
from dp_prior.checkpoints.store import INDEX, CheckpointStore
from dp_prior.cli import main
from dp_prior_lab.upkeep import take_stock
from tests.messages import told


@pytest.fixture
def run(tmp_path):
    """Five checkpoints, all kept; the second is the best."""
    store = CheckpointStore(tmp_path / "run" / "checkpoints", RetentionConfig(keep_latest=9), monitor="loss")
    with store.lock():
        for step in range(1, 6):
            tensors = {"model.safetensors": {"w": torch.full((40,), float(step))}}
            store.write(Snapshot(tensors), Progress(10 * step, step), {"loss": abs(step - 2.0)})
    return tmp_path / "run"


def command(*arguments):
    result = CliRunner().invoke(main, ["checkpoints", *map(str, arguments)], catch_exceptions=False)
    return result.exit_code, result.output


def names(run):
    return sorted(path.name for path in (run / "checkpoints").iterdir() if path.name != INDEX)


def flip_a_bit(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def states(output):
    """First word after each name, and the roles."""
    return {line.split()[0]: line for line in output.splitlines()}


@pytest.mark.parametrize("place", ["run", "run/checkpoints"])
def test_ls_shows_newest_first_with_latest_and_best(run, place):
    code, output = command("ls", run.parent / place)
    lines = output.splitlines()
    assert code == 0 and [line.split()[0] for line in lines] == [f"step_0000000{step}" for step in (5, 4, 3, 2, 1)]
    assert lines[0].endswith("loss 3  latest") and lines[3].endswith("loss 0  best")
    assert "20 samples" in lines[3] and " good " in lines[3]


def test_verify_finds_what_ls_cannot_see_and_changes_nothing(run):
    flip_a_bit(run / "checkpoints" / "step_00000003" / "model.safetensors")
    os.truncate(run / "checkpoints" / "step_00000004" / "model.safetensors", 3)
    before = names(run)
    code, output = command("ls", run)
    assert code == 0 and output.count(" good ") == 4
    code, output = command("verify", run)
    shown = states(output)
    assert code == 65 and output.count(" good ") == 3
    assert told(shown["step_00000003"], "model.safetensors", "SHA-256")
    assert "model.safetensors has 3 bytes, expected" in shown["step_00000004"]
    assert names(run) == before
    shutil.rmtree(run / "checkpoints" / "step_00000003")
    shutil.rmtree(run / "checkpoints" / "step_00000004")
    assert command("verify", run)[0] == 0


def test_repair_sets_aside_and_brings_back_and_the_index_follows(run):
    sound = run.parent / "sound"
    damaged = run / "checkpoints" / "step_00000005"
    shutil.copytree(damaged, sound)
    flip_a_bit(damaged / "model.safetensors")
    code, output = command("repair", run)
    assert code == 0 and told(output, "step_00000005", "set aside")
    assert told(output, "4 good", "step_00000004")
    assert "damaged_step_00000005" in names(run)
    assert '"latest": "step_00000004"' in (run / "checkpoints" / INDEX).read_text()
    assert " set aside " in states(command("ls", run)[1])["damaged_step_00000005"]
    assert told(command("repair", run)[1], "damaged_step_00000005", "model.safetensors")
    shutil.copy(sound / "model.safetensors", run / "checkpoints" / "damaged_step_00000005")
    code, output = command("repair", run)
    assert told(output, "damaged_step_00000005", "step_00000005")
    assert told(output, "5 good", "step_00000005")
    assert command("verify", run)[0] == 0


def test_prune_keeps_what_the_configuration_or_the_options_say(run):
    assert command("prune", run, "--dry-run")[1].splitlines() == [
        f"would delete {run}/checkpoints/step_0000000{step}" for step in (3, 1)
    ]
    assert len(names(run)) == 5
    (run / "config.json").write_text('{"checkpoints": {"keep_latest": 4}}')
    assert command("prune", run) == (0, f"deleted {run}/checkpoints/step_00000001\n")
    code, output = command("prune", run)
    assert code == 0 and "checkpoints/step_" not in output
    command("prune", run, "--keep-latest", 2, "--keep-best", 0)
    assert names(run) == ["step_00000004", "step_00000005"]


def test_what_is_damaged_or_in_quarantine_is_never_deleted(run):
    store = CheckpointStore(run / "checkpoints", RetentionConfig(keep_latest=9))
    with store.lock():
        store.write(Snapshot({"model.safetensors": {"w": torch.tensor([float("nan")])}}), Progress(90, 9), {})
    flip_a_bit(run / "checkpoints" / "step_00000005" / "model.safetensors")
    command("prune", run)
    assert names(run) == [
        "damaged_step_00000005",
        "quarantine_step_00000009",
        "step_00000002",
        "step_00000003",
        "step_00000004",
    ]
    assert "not finite: model.safetensors:w" in states(command("ls", run)[1])["quarantine_step_00000009"]


@pytest.mark.parametrize("change", ["prune", "repair"])
def test_a_running_run_is_not_touched(run, change):
    store = CheckpointStore(run / "checkpoints", RetentionConfig())
    with store.lock():
        code, output = command(change, run)
    assert code == 73 and told(output, run, os.getpid(), "Stop")


@pytest.mark.parametrize("name", ["ls", "verify", "prune", "repair"])
def test_a_directory_without_checkpoints_is_refused(tmp_path, name):
    code, output = command(name, tmp_path)
    assert code == 64 and told(output, tmp_path, "checkpoints/")


def test_a_configuration_that_cannot_be_read_deletes_nothing(run):
    (run / "config.json").write_text('{"checkpoints": {"keep_latest": "all"}}')
    code, output = command("prune", run)
    assert code == 74 and told(output, run / "config.json", "checkpoints")
    assert len(names(run)) == 5


WRITE = """
import sys
from pathlib import Path
import os
import torch
from dp_prior.checkpoints.retention import RetentionConfig
from dp_prior.checkpoints.snapshot import Snapshot
from dp_prior.checkpoints.store import CheckpointStore
from dp_prior.checkpoints.clock import Progress

os.fsync = lambda descriptor: None
store = CheckpointStore(Path(sys.argv[1]) / "checkpoints", RetentionConfig(), monitor="loss")
with store.lock():
    step = 0
    while True:
        step += 1
        tensors = {"model.safetensors": {"w": torch.full((2000,), float(step))}}
        store.write(Snapshot(tensors), Progress(step % 50, step % 50), {"loss": abs(step % 7 - 3.0)})
        if step == 1:
            print("saved", flush=True)
"""


@pytest.mark.slow
def test_verify_beside_a_running_run_never_raises_an_alarm(tmp_path):
    """The writer saves as fast as it can, some steps again and again; whatever it deletes meanwhile is not damaged."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    run = tmp_path / "run"
    writer = subprocess.Popen([sys.executable, "-c", WRITE, str(run)], stdout=subprocess.PIPE, env=environment)
    try:
        assert writer.stdout.readline() == b"saved\n"
        kinds, end, rounds = Counter(), time.monotonic() + 60, 0
        while rounds < 150 and time.monotonic() < end:
            rounds += 1
            for compare_hashes in (True, False):
                for found in take_stock(run / "checkpoints", compare_hashes=compare_hashes):
                    kinds[found.kind] += 1
                    assert found.kind == "good", found
        assert writer.poll() is None and rounds > 50 and kinds["good"] > 100
    finally:
        writer.kill()
        writer.wait()
        writer.stdout.close()


@pytest.mark.parametrize("when", ["listed", "looked at", "opened"])
@pytest.mark.parametrize("becomes", ["deleted", "set aside", "replaced"])
def test_a_checkpoint_that_goes_away_at_any_moment_is_not_damaged(run, monkeypatch, when, becomes):
    path, spare = run / "checkpoints" / "step_00000003", run.parent / "spare"
    shutil.copytree(path, spare)
    call, part = {"listed": ("stat", ""), "looked at": ("open", "manifest"), "opened": ("open", "model")}[when]
    function, is_gone = getattr(os, call), []

    def meanwhile(target, *arguments, **options):
        if not is_gone and "step_00000003" in str(target) and part in str(target):
            is_gone.append(True)
            path.rename(path.with_name("damaged_step_00000003") if becomes == "set aside" else run.parent / "gone")
            if becomes == "replaced":
                spare.rename(path)
        return function(target, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, meanwhile)
        found = {one.path.name: one.kind for one in take_stock(run / "checkpoints", compare_hashes=True)}
    assert is_gone and "damaged" not in found.values()
    assert (found.get("step_00000003") == "good") == (becomes == "replaced")
    assert [found[f"step_0000000{step}"] for step in (1, 2, 4, 5)] == ["good"] * 4


def test_what_cannot_be_read_is_shown_is_no_damage_and_fails_a_verification(run, monkeypatch):
    monkeypatch.setattr("dp_prior.checkpoints.reading.time.sleep", lambda seconds: None)
    function = os.open

    def refuse(path, *arguments, **options):
        if "step_00000004/model" in str(path):
            raise PermissionError(errno.EACCES, "Permission denied")
        return function(path, *arguments, **options)

    monkeypatch.setattr(os, "open", refuse)
    code, output = command("verify", run)
    assert code == 74 and " unreadable " in states(output)["step_00000004"]
    assert output.count(" good ") == 4 and " damaged " not in states(output)["step_00000004"].split("model")[0]
    assert command("ls", run)[0] == 0
    code, output = command("repair", run)
    assert code == 74 and told(output, "step_00000004", os.strerror(errno.EACCES))
    assert "step_00000004" in names(run)


@pytest.mark.parametrize("change", ["prune", "repair"])
def test_leftovers_of_saves_and_deletions_elsewhere_are_cleaned(run, change):
    for name in (
        ".tmp_container-1_7_01234567_step_00000009",
        f".tmp_container-1_{os.getppid()}_01234567_step_00000001",
    ):
        (run / "checkpoints" / name).mkdir()
        (run / "checkpoints" / name / "model.safetensors").write_text("half")
    assert command("ls", run)[1].count(" leftover ") == 2
    assert command(change, run)[0] == 0
    assert not [name for name in names(run) if name.startswith(".tmp")]


@pytest.mark.parametrize("text", ["[" * 100_000, "[1]", "null", "3", "\xff", '{"checkpoints": [1]}'])
def test_a_configuration_that_is_none_deletes_nothing(run, text):
    (run / "config.json").write_text(text)
    code, output = command("prune", run)
    assert code == 74 and told(output, run / "config.json", "checkpoints")
    assert len(names(run)) == 5
