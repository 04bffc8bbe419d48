"""The Tracker: everybody is told, nobody can stop the run, and nothing that failed is forgotten."""

import json
import logging
import math
import threading

import numpy as np
import pytest
import torch

from dp_prior.clock import Progress
from dp_prior.tracking.jsonl import EVENTS, JsonlLogger, read_rows
from dp_prior.tracking.tracker import Tracker


def at(step):
    return Progress(10 * step, step)


class Recorder:
    """A logger, saver and loader that remembers; `broken` names what fails."""

    def __init__(self, name="recorder", broken=(), reference=None):
        self.name = name
        self.broken = set(broken)
        self.reference = reference
        self.calls = []

    def __getattr__(self, method):
        if method.startswith("_"):
            raise AttributeError(method)

        def call(*arguments):
            self.calls.append((method, *arguments))
            if method in self.broken:
                raise OSError(f"{method} is broken")

        return call

    def called(self, method):
        return [call[1:] for call in self.calls if call[0] == method]

    def can_recall(self):
        return self.reference is not None

    def recall(self):
        return self.reference


def tracker_of(tmp_path, loggers=(), savers=(), loader=None, max_failures=3):
    return Tracker(tmp_path, loggers=loggers, savers=savers, loader=loader, max_failures=max_failures)


def test_every_logger_is_told_in_order(tmp_path):
    one, two = Recorder("one"), Recorder("two")
    order = []
    one.log = lambda *arguments: order.append("one")
    two.log = lambda *arguments: order.append("two")
    tracker = tracker_of(tmp_path, [one, two])
    tracker.log({"loss": 1.0}, at(1))
    assert order == ["one", "two"]
    tracker.log_images({"a": tmp_path / "a.png"}, at(1))
    tracker.log_images({}, at(1))
    tracker.log_file(tmp_path / "b.txt", at(1))
    tracker.log_error(ValueError("no"), at(1))
    tracker.log_error("text")
    for logger in (one, two):
        assert logger.called("log_images") == [({"a": tmp_path / "a.png"}, at(1))]
        assert logger.called("log_file") == [("b.txt", tmp_path / "b.txt", at(1))]
        assert logger.called("log_error") == [("ValueError: no", at(1)), ("text", at(1))]


def test_tensors_arrays_and_flags_are_numbers(tmp_path):
    logger = Recorder()
    values = {"t": torch.tensor(0.5), "n": np.float32(0.25), "i": np.int64(3), "b": True, "f": 1.5, "nan": math.nan}
    tracker_of(tmp_path, [logger]).log(values, at(1))
    [(metrics, progress)] = logger.called("log")
    assert metrics.pop("nan") != metrics
    assert metrics == {"t": 0.5, "n": 0.25, "i": 3, "b": 1, "f": 1.5} and progress == at(1)
    assert [type(value) for value in metrics.values()] == [float, float, int, int, float]


def test_what_is_no_number_or_has_a_reserved_name_is_an_error_of_the_caller(tmp_path):
    tracker = tracker_of(tmp_path, [Recorder()])
    with pytest.raises(TypeError, match=r"metric 'a' is 'text' \(str\); expected a number"):
        tracker.log({"a": "text"}, at(1))
    for name in ("step", "samples_seen", "nonfinite"):
        with pytest.raises(ValueError, match=f"metric name '{name}' is reserved"):
            tracker.log({name: 1.0}, at(1))


def test_the_clock_never_goes_back_without_a_rewind(tmp_path):
    logger = Recorder()
    tracker = tracker_of(tmp_path, [logger])
    tracker.log({}, at(5))
    tracker.log({}, at(5))
    with pytest.raises(ValueError, match=r"metrics of step 4 come after those of step 5; .* calls rewind\(\) first"):
        tracker.log({}, at(4))
    tracker.rewind(at(3))
    tracker.log({}, at(4))
    assert logger.called("rewind") == [(at(3),)]
    assert [call[1].global_step for call in logger.called("log")] == [5, 5, 4]


def test_a_logger_that_raises_is_contained_reported_once_muted_and_named_at_the_end(tmp_path, caplog):
    bad, good = Recorder("bad", ["log"]), Recorder("good")
    tracker = tracker_of(tmp_path, [bad, JsonlLogger(tmp_path), good], max_failures=3)
    with caplog.at_level(logging.WARNING):
        for step in range(1, 8):
            tracker.log({"loss": 1.0}, at(step))
    assert len(bad.called("log")) == 3
    assert [row["step"] for row in read_rows(tmp_path)] == list(range(1, 8))
    first, muted = [record.getMessage() for record in caplog.records]
    assert first == "logger 'bad' failed: OSError: log is broken. Training goes on."
    assert muted == (
        "logger 'bad' failed: OSError: log is broken; after 3 failures in a row it is not called any more. "
        "Training goes on."
    )
    assert [message for message, _ in good.called("log_error")] == [first, muted]
    assert [json.loads(line)["message"] for line in (tmp_path / EVENTS).read_text().splitlines()] == [first, muted]
    [line] = tracker.close()
    assert line == (
        "logger 'bad' failed 3 times, was not called any more and missed 5 calls; last: OSError: log is broken"
    )
    assert bad.called("close") == [] and len(good.called("close")) == 1
    assert tracker.close() == []


def test_a_success_starts_the_count_anew(tmp_path):
    shaky = Recorder("shaky")
    tracker = tracker_of(tmp_path, [shaky], max_failures=2)
    for step in range(1, 10):
        shaky.broken = {"log"} if step % 2 else set()
        tracker.log({}, at(step))
    assert len(shaky.called("log")) == 9
    assert tracker.close() == ["logger 'shaky' failed 5 times; last: OSError: log is broken"]


@pytest.mark.parametrize("method", ["log_images", "log_file", "log_error", "rewind", "sync", "close"])
def test_no_method_of_a_logger_can_stop_the_run(tmp_path, method):
    everything = Recorder("everything", [method, "log_error"])
    tracker = tracker_of(tmp_path, [everything, Recorder()])
    tracker.log_images({"a": tmp_path}, at(1))
    tracker.log_file(tmp_path, at(1))
    tracker.log_error("no", at(1))
    tracker.rewind(at(1))
    tracker.save(tmp_path, at(1), {})
    assert "logger 'everything' failed" in tracker.close()[0]


def test_an_interrupt_is_not_swallowed(tmp_path):
    class Impatient(Recorder):
        def log(self, *arguments):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tracker_of(tmp_path, [Impatient()]).log({}, at(1))


def test_savers_receive_durable_checkpoints(tmp_path):
    saver, logger = Recorder("saver"), Recorder("logger")
    tracker = tracker_of(tmp_path, [logger], [saver])
    tracker.save(tmp_path / "step_00000001", at(1), {"loss": 0.5}, is_latest=True, is_best=True)
    [(durable,)] = saver.called("save")
    assert (durable.directory, durable.progress, durable.metrics) == (tmp_path / "step_00000001", at(1), {"loss": 0.5})
    assert durable.is_latest and durable.is_best
    assert logger.called("sync") == [()]


def test_a_failing_saver_stops_nobody_and_gets_its_checkpoint_again_at_the_end(tmp_path, caplog):
    bad, good = Recorder("bad", ["save"]), Recorder("good")
    tracker = tracker_of(tmp_path, [], [bad, good])
    for step in range(1, 6):
        tracker.save(tmp_path, at(step), {})
    assert len(bad.called("save")) == len(good.called("save")) == 5
    assert caplog.text.count("saver 'bad' failed: OSError: save is broken. Training goes on.") == 1
    bad.broken = set()
    assert tracker.close() == ["saver 'bad' failed 5 times; last: OSError: save is broken"]
    assert bad.called("save")[-1][0].progress == at(5)


def test_what_did_not_reach_a_saver_is_named(tmp_path):
    tracker = tracker_of(tmp_path, [], [Recorder("bad", ["save"])])
    tracker.save(tmp_path, at(7), {})
    [line] = tracker.close()
    assert line.endswith("; the checkpoint of step 7 did not reach it")


def test_a_best_that_failed_is_not_forgotten_because_a_later_latest_succeeded(tmp_path):
    saver = Recorder("saver", ["save"])
    tracker = tracker_of(tmp_path, [], [saver])
    tracker.save(tmp_path, at(1), {}, is_best=True)
    saver.broken = set()
    tracker.save(tmp_path, at(2), {})
    tracker.close()
    assert [durable.progress.global_step for (durable,) in saver.called("save")] == [1, 2, 1]


def test_recall_is_what_the_loader_says(tmp_path):
    assert not tracker_of(tmp_path).can_recall and tracker_of(tmp_path).recall() is None
    tracker = tracker_of(tmp_path, loader=Recorder(reference="runs/a@latest"))
    assert tracker.can_recall and tracker.recall() == "runs/a@latest"
    assert tracker_of(tmp_path, loader=Recorder()).recall() is None


def test_leaving_the_context_closes_and_reports(tmp_path, caplog):
    logger = Recorder("bad", ["log"])
    with tracker_of(tmp_path, [logger]) as tracker:
        tracker.log({}, at(1))
    assert len(logger.called("close")) == 1
    assert "logger 'bad' failed 1 time; last: OSError: log is broken" in caplog.text


def test_the_thread_that_saves_and_the_loop_may_log_at_once(tmp_path):
    tracker = tracker_of(tmp_path, [JsonlLogger(tmp_path)], [Recorder("bad", ["save"])])

    def save():
        for step in range(200):
            tracker.save(tmp_path, at(step), {})
            tracker.log_error("from the other thread")

    thread = threading.Thread(target=save)
    thread.start()
    for step in range(200):
        tracker.log({"loss": 1.0}, at(step))
    thread.join()
    tracker.close()
    assert [row["step"] for row in read_rows(tmp_path)] == list(range(200))
    assert len([json.loads(line) for line in (tmp_path / EVENTS).read_text().splitlines()]) >= 200
