"""When uploads are tried, and that nothing about them reaches training. Clock and dice are the test's own."""

import dataclasses
import errno
import fcntl
import itertools
import json
import os
import random
import threading
from types import SimpleNamespace

import pytest

from dp_prior.config import ConfigError
from dp_prior.places.destination import DeliveryReport
from dp_prior.places.hub import HuggingFaceSaverConfig
from dp_prior.places.upload import UploadConfig, UploadSaver
from dp_prior.places.upload_schedule import FIRST_WAIT_S, LONGEST_WAIT_S
from dp_prior.places.worker import Worker
from dp_prior.tracking import TrackerConfig
from dp_prior.tracking.tracker import Tracker
from tests.messages import naming, told, told_each

DONE = DeliveryReport("done", commits=2)
UNAVAILABLE = DeliveryReport("the Hub answered 503", "unavailable")
REFUSED = DeliveryReport("no token", "refused")


class Clock:
    def __init__(self):
        self.now = 1_000_000.0

    def __call__(self):
        return self.now


class Place:
    """A saver whose attempts end as the test says, the last answer for ever."""

    def __init__(self, run, *answers, **fields):
        self.answers = list(answers) or [DONE]
        self.jobs = []
        self.clock = Clock()
        self.record = HuggingFaceSaverConfig(repo="me/x", save_latest=True, **fields)
        self.directory = run.directory
        self.saver = self.another()

    def another(self):
        return UploadSaver(self.record, self.directory, self, clock=self.clock, dice=random.Random(0))

    def attempt(self, entry, kinds, deadline_s):
        self.jobs.append((self.clock.now, entry, kinds, deadline_s))
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def kill(self):
        pass

    def sent(self):
        return [list(kinds) for _, _, kinds, _ in self.jobs]


def test_both_pointers_of_one_checkpoint_move_in_one_delivery(run):
    place = Place(run)
    place.saver.save(run.save(1))
    assert place.saver.step() is None and place.sent() == [["latest", "best"]]
    assert place.saver.step() is None and len(place.jobs) == 1
    place.saver.save(run.save(2, is_best=False))
    place.saver.step()
    assert place.sent()[1:] == [["latest"]]


def test_the_older_best_goes_before_the_newer_latest(run):
    place = Place(run)
    place.saver.save(run.save(1))
    place.saver.save(run.save(2, is_best=False))
    place.saver.save(run.save(3, is_best=False))
    assert place.saver.step() == 0.0
    assert place.saver.step() is None
    assert place.sent() == [["best"], ["latest"]]


def test_without_anything_to_send_the_start_is_a_check(run):
    place = Place(run, REFUSED, DONE)
    assert place.saver.step() is None and place.jobs[0][1] is None
    assert place.saver.step() is None and len(place.jobs) == 1
    place.saver.save(run.save(1))
    assert place.saver.step() is None and len(place.jobs) == 2


@pytest.mark.promise("E1")
def test_waits_grow_with_jitter_and_end_with_success(run):
    place = Place(run, *[UNAVAILABLE] * 12, DONE)
    place.saver.save(run.save(1))
    waits = []
    while (wait := place.saver.step()) is not None:
        waits.append(wait)
        place.clock.now += wait
    for number, wait in enumerate(waits):
        expected = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2**number)
        assert 0.5 * expected <= wait <= 1.5 * expected
    assert len(waits) == 12 and place.saver.outbox.waiting() == []
    place.answers = [UNAVAILABLE]
    place.saver.save(run.save(2))
    assert place.saver.step() <= 1.5 * FIRST_WAIT_S, "a success makes the next wait short again"


def test_what_the_place_asks_for_is_obeyed_even_if_there_is_news_and_after_a_restart(run):
    asked = DeliveryReport("the Hub answered 429", "unavailable", retry_after=300.0)
    place = Place(run, asked, DONE)
    place.saver.save(run.save(1))
    assert place.saver.step() == pytest.approx(300.0)
    place.saver.save(run.save(2))
    place.clock.now += 299
    assert place.saver.step() == pytest.approx(1.0)
    again = place.another()
    place.saver._release()
    assert again.step() == pytest.approx(1.0)
    place.clock.now += 1
    assert again.step() is None and len(place.jobs) == 2


@pytest.mark.promise("E2")
def test_a_refusal_is_tried_once_per_save_and_never_by_itself(run):
    place = Place(run, REFUSED)
    for step in (1, 2, 3):
        place.saver.save(run.save(step))
        for _ in range(5):
            place.clock.now += 10_000
            assert place.saver.step() is None
        assert len(place.jobs) == step
    assert len(place.saver.outbox.waiting()) == 2


@pytest.mark.parametrize("first", ["check", "checkpoint"])
def test_a_refusal_does_not_block_what_was_saved_meanwhile(run, first):
    place = Place(run)
    if first == "checkpoint":
        place.saver.save(run.save(1))

    def refuse_the_first(*job):
        place.jobs.append(job)
        if len(place.jobs) > 1:
            return DONE
        place.saver.save(run.save(2))
        return REFUSED

    place.attempt = refuse_the_first
    assert place.saver.step() == 0.0
    while place.saver.step() is not None:
        pass
    assert len(place.jobs) == 2 and place.saver.outbox.waiting() == []


def test_commits_per_hour_are_counted_across_restarts_even_those_whose_end_is_unknown(run):
    killed = DeliveryReport("no success within 900 s", "unavailable", commits=1)
    place = Place(run, DONE, killed, DONE, max_commits_per_hour=4)
    place.saver.save(run.save(1))
    place.saver.step()
    place.saver.save(run.save(2))
    place.clock.now += 60
    place.saver.step()
    place.saver._release()
    again = place.another()
    place.clock.now += 60
    assert again.step() == pytest.approx(3600 - 120)
    place.clock.now += 3600 - 120
    assert again.step() is None and len(place.jobs) == 3


def test_a_damaged_checkpoint_is_told_and_dropped(run, caplog):
    place = Place(run, DeliveryReport("model.safetensors is not what its manifest says", "damaged"))
    place.saver.save(run.save(1))
    assert place.saver.step() is None
    assert place.saver.outbox.waiting() == []
    broken = "huggingface me/x: model.safetensors is not what its manifest says"
    assert broken in caplog.text
    assert place.saver.close(threading.Event()) == [broken]


def test_trouble_is_told_once_and_named_at_the_end(run, caplog):
    place = Place(run, REFUSED)
    for step in (1, 2):
        place.saver.save(run.save(step))
        place.saver.step()
    assert sum(told(line, "huggingface me/x", "token", "wait") for line in caplog.messages) == 1
    parts = ("huggingface me/x", "step 2", "no token", place.saver.outbox.directory, "`dp-prior checkpoints push RUN`")
    assert told_each(place.saver.close(threading.Event()), *((*parts, kind) for kind in ("latest", "best")))


def test_an_attempt_that_the_end_cuts_short_does_not_hide_the_trouble_before(run):
    place = Place(run, UNAVAILABLE)
    place.saver.save(run.save(1))
    place.saver.step()
    attempt = place.attempt

    def cut_short(*job):
        place.saver._is_closed = True
        return dataclasses.replace(attempt(*job), message="killed")

    place.attempt = cut_short
    place.saver.schedule.hurry()
    place.saver.step()
    assert len(place.jobs) == 2 and all(told(line, "503") for line in place.saver.missing())


def test_what_a_saver_takes_is_what_it_was_asked_for(run):
    def kinds(is_latest=True, **fields):
        saver = UploadSaver(HuggingFaceSaverConfig(repo="me/x", **fields), run.directory)
        durable = run.save(len(list(run.store.root.iterdir())) + 1)
        saver.save(dataclasses.replace(durable, is_latest=is_latest))
        waiting = saver.outbox.waiting()
        found = {one.kinds[0]: sorted(path.name for path in one.directory.glob("*.safetensors")) for one in waiting}
        saver.outbox.remove(waiting)
        return found

    everything = ["model.safetensors", "training.safetensors"]
    assert kinds() == {"best": everything}
    assert kinds(save_latest=True) == {"best": everything, "latest": everything}
    assert kinds(save_latest=True, save_best=False) == {"latest": everything}
    assert kinds(save_type="model") == {"best": ["model.safetensors"]}
    assert kinds(save_latest=True, is_latest=False) == {"best": everything}


@pytest.mark.promise("E7")
def test_offline_queues_and_starts_nothing(run, monkeypatch):
    monkeypatch.setattr(UploadSaver, "start", lambda self: pytest.fail("nothing may be started"))
    record = HuggingFaceSaverConfig(repo="me/x", offline=True)
    assert told(record.check().message, "offline", "dp-prior checkpoints push RUN")
    saver = record.create(run.directory, None)
    saver.save(run.save(1))
    assert len(saver.close(threading.Event())) == 1


def test_a_saver_that_would_send_nothing_and_two_for_one_place_are_refused():
    with pytest.raises(ConfigError, match=naming("save_best", "save_latest")):
        HuggingFaceSaverConfig(repo="me/x", save_best=False)
    with pytest.raises(ConfigError, match=naming("huggingface", "me/x")):
        TrackerConfig(save=(HuggingFaceSaverConfig(repo="me/x"), HuggingFaceSaverConfig(repo="me/x", private=False)))


class Slow:
    """An attempt that lasts until the test ends it."""

    def __init__(self):
        self.deadlines = []
        self.begun = threading.Event()
        self.end = threading.Event()

    def kill(self):
        self.end.set()

    def attempt(self, entry, kinds, deadline_s):
        self.deadlines.append(deadline_s)
        self.begun.set()
        self.end.wait(200)
        return UNAVAILABLE


@pytest.mark.promise("E6")
def test_closing_waits_no_longer_than_it_may_and_saving_never_waits(run, monkeypatch):
    record = HuggingFaceSaverConfig(repo="me/x", drain_s=0.3)
    slow = Slow()
    saver = UploadSaver(record, run.directory, slow)
    saver.start()
    assert slow.begun.wait(60)
    for step in (1, 2, 3):
        saver.save(run.save(step))
    looks = itertools.count()
    clock = SimpleNamespace(monotonic=lambda: 0.1 * next(looks))  # goes on when it is looked at
    monkeypatch.setattr("dp_prior.places.upload.time", clock)
    assert len(saver.close(threading.Event())) == 1
    assert 3 <= next(looks) <= 6
    assert slow.deadlines[0] == record.deadline_s


def test_the_end_of_a_run_tries_once_more_what_failed_for_an_hour(run):
    place = Place(run, *[UNAVAILABLE] * 12, DONE)
    place.saver.save(run.save(1))
    for _ in range(12):
        place.clock.now += place.saver.step()
    place.clock.now -= 300.0
    assert place.saver.schedule.wait(place.clock.now) > place.record.drain_s
    place.saver._release()
    place.saver.start()
    assert place.saver.close(threading.Event()) == [] and len(place.jobs) == 13


def test_the_end_of_a_run_does_not_wait_for_a_mere_check_of_a_place_that_is_silent(run):
    begun, killed = threading.Event(), threading.Event()

    class Silent(Worker):
        def attempt(self, entry, kinds, deadline_s):
            assert entry is None
            begun.set()
            return UNAVAILABLE if killed.wait(60) else DONE

        def kill(self):
            killed.set()

    saver = UploadSaver(HuggingFaceSaverConfig(repo="me/x"), run.directory, Silent({}))
    saver.start()
    assert begun.wait(60)
    waits = []
    saver._thread.join, joined = lambda limit_s: waits.append(limit_s) or joined(limit_s), saver._thread.join
    assert saver.close(threading.Event()) == [] and waits == [5.0]


def test_several_savers_are_waited_for_together(tmp_path):
    meeting = threading.Barrier(2)

    class Saver:
        patience_s = 200.0

        def __init__(self, name):
            self.name = name

        def close(self, leave):
            meeting.wait(200)
            return [f"{self.name} is not up yet"]

    tracker = Tracker(tmp_path, TrackerConfig(), savers=[Saver("a"), Saver("b")])
    assert [told(line, name) for line, name in zip(sorted(tracker.close()), "ab", strict=True)] == [True, True]


def test_push_does_not_wait_for_a_training_that_sends_by_itself(run):
    place = Place(run)
    place.saver.save(run.save(1))
    right = place.saver.outbox.exclusively()
    [best, latest] = place.saver.drain(1000.0)
    assert told(best, "another process", "training") and place.jobs == []
    assert place.saver.step() == 2.0 and place.jobs == []
    right.release()
    assert place.saver.drain(1000.0) == [] and len(place.jobs) == 1


def test_where_nothing_can_be_locked_the_reason_is_told_and_no_other_process_blamed(run, monkeypatch, caplog):
    place = Place(run)
    place.saver.save(run.save(1))
    monkeypatch.setattr(fcntl, "flock", refusing_locks)
    with pytest.raises(
        OSError, match=naming(os.strerror(errno.ENOLCK), f"'{place.saver.outbox.directory}/outbox.lock'")
    ):
        place.saver.drain(1000.0)
    monkeypatch.setattr(place.saver._news, "wait", lambda seconds: setattr(place.saver, "_is_closed", True))
    place.saver._run()
    assert told_each(caplog.messages, ("huggingface me/x", os.strerror(errno.ENOLCK), "outbox.lock"), ("60 s",))
    assert all(os.strerror(errno.ENOLCK) in line for line in place.saver.missing()) and place.jobs == []


def refusing_locks(descriptor, how):
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


def test_push_says_once_that_it_tries_again_and_leaves_a_refusal_to_its_end(run, caplog):
    for answer in (UNAVAILABLE, REFUSED):
        caplog.clear()
        place = Place(run, answer)
        place.saver.save(run.save(1))
        assert len(place.saver.drain(1.0)) == 2
        assert told_each(caplog.messages, *([("again", "1 s")] if answer is UNAVAILABLE else []))
        place.saver.outbox.remove(place.saver.outbox.waiting())


def test_push_names_the_pause_that_a_place_has_asked_for(run, caplog, monkeypatch):
    place = Place(run, UNAVAILABLE, max_commits_per_hour=2)
    place.saver.save(run.save(1))
    place.saver.schedule.not_before = place.clock.now + 60.0
    assert all(told(line, "step 1", "60 s", "sends") for line in place.saver.drain(30.0))
    place.answers = [DONE]
    monkeypatch.setattr(
        place.saver._news, "wait", lambda seconds: setattr(place.clock, "now", place.clock.now + seconds)
    )
    assert place.saver.drain(90.0) == []
    assert [told(line, "huggingface me/x", "60 s") for line in caplog.messages] == [True]


def test_an_attempt_near_the_end_gets_only_the_time_that_is_left(run):
    place = Place(run, UNAVAILABLE, deadline_s=100.0)
    place.saver.save(run.save(1))
    place.saver._stop_at = place.clock.now + 7.0
    place.saver.step()
    assert place.jobs[0][3] == pytest.approx(7.0)


def test_every_shared_field_is_shown_here():
    assert set(UploadConfig.model_fields) == set(
        json.loads(
            '["save_best", "save_latest", "save_type", "deadline_s", "drain_s", "max_commits_per_hour", "offline"]'
        )
    )
