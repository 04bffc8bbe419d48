"""The outbox: what was put in is whole and stays, through kills; of each kind only the newest waits."""

import errno
import os
import shutil
from functools import partial
from pathlib import Path

import pytest

from dp_prior.checkpoints.format import CheckpointError
from dp_prior.places.outbox import Outbox
from dp_prior.places.parcel import INTENT, Parcel


@pytest.fixture
def outbox(tmp_path):
    return Outbox(tmp_path / "run" / "outbox" / "place")


def steps(outbox):
    return {parcel.kinds[0]: parcel.manifest.step for parcel in outbox.waiting()}


def test_of_each_kind_the_newest_waits(run, outbox):
    for step, kind in [(1, "best"), (2, "latest"), (3, "latest"), (2, "best")]:
        outbox.put(kind, run.save(step).path)
    assert steps(outbox) == {"latest": 3, "best": 2}
    assert len(list(outbox.directory.iterdir())) == 2


def test_an_entry_outlives_the_checkpoint_and_costs_no_space(run, outbox):
    durable = run.save(1)
    weights = durable.path / "training.safetensors"
    outbox.put("best", durable.path)
    [entry] = outbox.waiting()
    assert os.path.samefile(entry.directory / "training.safetensors", weights)
    content = weights.read_bytes()
    shutil.rmtree(durable.path)
    assert (entry.directory / "training.safetensors").read_bytes() == content
    assert Outbox(outbox.directory).waiting() == [entry]


def test_where_links_cannot_be_made_files_are_copied(run, outbox, monkeypatch):
    def no(*arguments):
        raise OSError("no links here")

    durable = run.save(1)
    monkeypatch.setattr(os, "link", no)
    outbox.put("best", durable.path)
    [entry] = outbox.waiting()
    source = durable.path / "model.safetensors"
    assert not os.path.samefile(entry.directory / "model.safetensors", source)
    assert (entry.directory / "model.safetensors").read_bytes() == source.read_bytes()


def test_what_is_being_sent_stays_until_it_has_arrived(run, outbox):
    outbox.put("best", run.save(1).path)
    first = outbox.waiting()
    with outbox.sending(first):
        outbox.put("best", run.save(2).path)
        assert first[0].directory.is_dir() and steps(outbox) == {"best": 2}
    outbox.remove(first)
    assert not first[0].directory.exists() and steps(outbox) == {"best": 2}


def test_a_run_that_went_back_sends_what_it_saved_last(run, outbox):
    outbox.put("latest", run.save(5).path)
    outbox.put("latest", run.save(3).path)
    assert steps(outbox) == {"latest": 3}


def test_damaged_entries_are_dropped_and_foreign_files_stay(run, outbox):
    outbox.put("best", run.save(1).path)
    outbox.put("latest", run.save(1).path)
    (outbox.directory / "notes.txt").write_text("mine")
    (outbox.waiting()[0].directory / INTENT).write_text("{}")
    assert steps(outbox) == {"latest": 1}
    assert (outbox.directory / "notes.txt").exists()


def test_an_entry_that_cannot_be_read_now_or_is_of_a_newer_version_waits(run, outbox, monkeypatch):
    assert outbox.waiting() == []  # before the first entry there is no folder
    outbox.put("best", run.save(1).path)
    for error in (OSError(errno.EMFILE, os.strerror(errno.EMFILE)), CheckpointError("of a newer version")):
        with monkeypatch.context() as patch:
            patch.setattr(Parcel, "of", partial(cannot, error))
            assert outbox.waiting() == []
        assert steps(outbox) == {"best": 1}


def cannot(error, *arguments):
    raise error


@pytest.mark.parametrize("stride", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_at_every_call_an_entry_is_whole_or_not_there(run, outbox, stride):
    first, second = run.save(1).path, run.save(2).path
    for number in range(1, 100, stride):
        shutil.rmtree(outbox.directory, ignore_errors=True)
        outbox.put("best", first)
        child = os.fork()
        if child == 0:
            count = [0]

            def dying(function, number=number, count=count):
                def call(*arguments, **options):
                    count[0] += 1
                    if count[0] == number:
                        os._exit(77)
                    return function(*arguments, **options)

                return call

            try:
                for name in ("mkdir", "fsync", "rename", "link", "unlink", "rmdir"):
                    setattr(os, name, dying(getattr(os, name)))
                outbox.put("best", second)
            finally:
                os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        [entry] = outbox.waiting()
        assert entry.manifest.step in (1, 2)
        listed = {path.name for path in entry.directory.iterdir()}
        assert listed == {path.name for path in first.iterdir()} | {INTENT}
        outbox.put("best", second)
        assert not list(outbox.directory.glob(".tmp*")), "the leftovers of the dead child stay"
        if code == 0:
            break
    assert code == 0 and number > 10


def test_one_process_at_a_time_sends(outbox):
    right = outbox.exclusively()
    child = os.fork()
    if child == 0:
        os._exit(0 if Outbox(outbox.directory).exclusively() is None else 1)
    assert os.waitpid(child, 0)[1] == 0
    right.release()
    assert outbox.exclusively() is not None


def test_state_survives_and_damage_is_forgotten(outbox):
    assert outbox.read_state() == {}
    outbox.write_state({"commits": [1.5]})
    assert outbox.read_state()["commits"] == [1.5]
    [path] = [path for path in outbox.directory.iterdir() if path.name == "state.json"]
    path.write_bytes(b"{")
    assert outbox.read_state() == {}


def test_pictures_travel_with_the_entry(run, outbox, tmp_path):
    picture = tmp_path / "a.png"
    picture.write_bytes(b"png")
    outbox.put("best", run.save(1).path, media={"curve.png": picture}, scores={"test/score": 1.0})
    [entry] = outbox.waiting()
    picture.write_bytes(b"other")
    assert (entry.directory / "card" / "curve.png").read_bytes() == b"png"
    assert Path(entry.directory).parent == outbox.directory
