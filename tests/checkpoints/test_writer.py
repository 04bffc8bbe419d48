"""Saving beside training: what is saved is the state of one moment, and no failure is silent."""

import concurrent.futures
import threading
from types import SimpleNamespace

import pytest
import torch

from dp_prior.checkpoints import writer as writer_module
from dp_prior.checkpoints.clock import Progress
from dp_prior.checkpoints.format import CheckpointError, read_checkpoint
from dp_prior.checkpoints.retention import RetentionConfig
from dp_prior.checkpoints.snapshot import Snapshot, SnapshotMemory
from dp_prior.checkpoints.store import CheckpointStore
from dp_prior.checkpoints.writer import CheckpointWriter
from tests.checkpoints.documents import progress_of
from tests.messages import naming, told


@pytest.fixture
def store(tmp_path):
    store = CheckpointStore(tmp_path / "checkpoints", RetentionConfig(keep_latest=100, max_failed_saves=1))
    with store.lock(wait_s=0):
        yield store


def tensors_of(step, size=50_000):
    return {"w": torch.full((size,), float(step)), "m": torch.full((7, 3), float(step)), "step": torch.tensor(step)}


@pytest.mark.promise("A8")
def test_every_saved_tensor_is_one_constant_while_training_changes_the_weights(store):
    """The weights are the step number, changed in place by another thread as soon as submit has returned."""
    live = {"model.safetensors": tensors_of(0), "training.safetensors": tensors_of(0, 300_000)}
    durable = []
    writer = CheckpointWriter(store, durable.append)
    for step in range(1, 40):
        for tensors in live.values():
            for tensor in tensors.values():
                tensor.fill_(step)
        if step % 3 == 0:
            writer.submit(Snapshot(live, {"progress.json": progress_of(step)}), Progress(step, step), {})
    writer.close()
    assert [saved.progress.global_step for saved in durable] == list(range(3, 40, 3))
    for saved in durable:
        snapshot = read_checkpoint(saved.path)
        for tensors in snapshot.tensors.values():
            for name, tensor in tensors.items():
                assert (tensor == saved.progress.global_step).all(), name
        assert snapshot.documents == {"progress.json": progress_of(saved.progress.global_step)}


def test_a_long_wait_for_a_save_is_told_while_it_lasts(store, monkeypatch):
    may_end, said = threading.Event(), []
    monkeypatch.setattr(writer_module, "SLOW_SAVE_S", 0.01)
    monkeypatch.setattr(writer_module.log, "warning", lambda text: (said.append(text), may_end.set()))
    writer = CheckpointWriter(store, lambda saved: may_end.wait(60))
    writer.submit(Snapshot({"model.safetensors": tensors_of(1)}, {}), Progress(1, 1), {})
    writer.close()
    [line] = said
    assert told(line, "0.01 s", store.root)


@pytest.mark.promise("A8")
def test_submit_returns_before_the_checkpoint_is_durable_and_the_next_one_waits(store, monkeypatch):
    may_write, has_begun, started, written = threading.Event(), threading.Event(), [], []
    write = store.write

    def slow(snapshot, progress, *rest):
        started.append(progress.global_step)
        has_begun.set()
        may_write.wait(60)
        saved = write(snapshot, progress, *rest)
        written.append(progress.global_step)
        return saved

    monkeypatch.setattr(store, "write", slow)
    writer = CheckpointWriter(store)
    writer.submit(Snapshot({"model.safetensors": tensors_of(1)}), Progress(1, 1), {})
    assert written == []
    second = threading.Thread(
        target=writer.submit, args=(Snapshot({"model.safetensors": tensors_of(2)}), Progress(2, 2), {})
    )
    second.start()
    assert has_begun.wait(60)
    second.join(0.1)
    assert second.is_alive() and started == [1]
    may_write.set()
    second.join(60)
    writer.close()
    assert written == [1, 2]
    for step in (1, 2):
        saved = read_checkpoint(store.root / f"step_0000000{step}").tensors["model.safetensors"]
        assert all((tensor == step).all() for tensor in saved.values())


def test_on_durable_gets_the_final_directory_and_what_was_submitted(store):
    seen = []

    def on_durable(saved):
        seen.append((saved, threading.current_thread().name, read_checkpoint(saved.path)))

    writer = CheckpointWriter(store, on_durable)
    metrics = {"loss": 0.5}
    writer.submit(Snapshot({}, {"config.json": {}}), Progress(64, 2), metrics, is_best=True)
    metrics["loss"] = 0.1
    writer.close()
    [(saved, thread, snapshot)] = seen
    assert saved.path == store.root / "step_00000002" and thread.startswith("checkpoint-writer")
    assert (saved.progress, saved.metrics, saved.is_latest, saved.is_best) == (
        Progress(64, 2),
        {"loss": 0.5},
        True,
        True,
    )
    assert snapshot.documents == {"config.json": {}}


def test_what_must_be_durable_before_a_checkpoint_is_called_first(store):
    order = []
    writer = CheckpointWriter(
        store,
        lambda saved: order.append(("after", saved.path.exists())),
        before=lambda: order.append(("before", store.latest())),
    )
    writer.submit(Snapshot({}, {"config.json": {}}), Progress(64, 2), {})
    writer.close()
    assert order == [("before", None), ("after", True)]


def test_each_save_is_timed_from_its_copy_on_also_one_that_has_to_wait(store, monkeypatch):
    now, took, may_write = [0.0], [], threading.Event()
    write, hold = store.write, SnapshotMemory.hold

    def slow(snapshot, progress, *rest):
        may_write.wait(60)
        now[0] += progress.global_step
        return write(snapshot, progress, *rest)

    def copy(memory, snapshot):
        now[0] += 0.5
        return hold(memory, snapshot)

    monkeypatch.setattr("dp_prior.checkpoints.writer.time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(store, "write", slow)
    monkeypatch.setattr(SnapshotMemory, "hold", copy)
    writer = CheckpointWriter(store, lambda saved: took.append(saved.took_s))
    snapshot = Snapshot({"model.safetensors": tensors_of(1)})
    writer.submit(snapshot, Progress(20, 20), {})
    second = threading.Thread(target=writer.submit, args=(snapshot, Progress(30, 30), {}))
    second.start()  # waits for the first
    may_write.set()
    second.join()
    writer.close()
    assert took == [20.5, 30.5]


@pytest.mark.promise("A8")
@pytest.mark.parametrize("where", ["submit", "check", "wait", "close"])
def test_a_failed_save_is_raised_once_at_the_next_opportunity(store, monkeypatch, where):
    def fail(*arguments):
        raise CheckpointError("the disk is full")

    snapshot = Snapshot({"model.safetensors": tensors_of(1)})
    writer = CheckpointWriter(store)
    with monkeypatch.context() as patch:
        patch.setattr(store, "write", fail)
        writer.submit(snapshot, Progress(1, 1), {})
        concurrent.futures.wait([writer._running])
    with pytest.raises(CheckpointError, match=naming("disk", "full")):
        writer.submit(snapshot, Progress(2, 2), {}) if where == "submit" else getattr(writer, where)()
    assert store.latest() is None  # the one submitted after a failure was not started
    writer.check()
    writer.submit(snapshot, Progress(3, 3), {})
    writer.close()
    assert store.latest().name == "step_00000003"


@pytest.mark.promise("A3", "A8")
@pytest.mark.parametrize(
    ("outcomes", "raised"),
    [("..x.", None), ("xx.", None), ("xx.xx.xx.", None), ("..xxx", "submit"), ("xxx.", "submit"), (".x", "close")],
)
def test_saves_that_fail_are_told_and_only_three_in_a_row_or_the_last_are_an_error(
    store, monkeypatch, caplog, outcomes, raised
):
    write, durable = store.write, []

    def fail_sometimes(snapshot, progress, *arguments):
        if outcomes[progress.global_step - 1] == "x":
            raise CheckpointError("the disk is full.")
        return write(snapshot, progress, *arguments)

    monkeypatch.setattr(store, "write", fail_sometimes)
    store.retention = RetentionConfig(keep_latest=100, max_failed_saves=3)
    writer = CheckpointWriter(store, lambda saved: durable.append(saved.progress.global_step))
    ended = None
    try:
        for step in range(1, len(outcomes) + 2):  # the last one shows that nothing is started after an error
            if step <= len(outcomes) or raised == "submit":
                writer.submit(Snapshot({}, {"progress.json": progress_of(step)}), Progress(step, step), {})
                concurrent.futures.wait([writer._running])
    except CheckpointError:
        ended = "submit"
    try:
        writer.close()
    except CheckpointError:
        ended = ended or "close"
    assert ended == raised
    good = [step for step, outcome in enumerate(outcomes, 1) if outcome == "."]
    assert durable == (good if raised != "submit" else [step for step in good if step <= outcomes.index("xxx")])
    warned = [record.getMessage() for record in caplog.records]
    assert len(warned) == outcomes.count("x") - (raised == "submit")
    assert all(told(message, "disk", "continues") for message in warned)


def test_a_failed_save_does_not_hide_the_error_that_ends_the_run(tmp_path, monkeypatch):
    store = CheckpointStore(tmp_path / "checkpoints", RetentionConfig(max_failed_saves=3))

    def refuse(*arguments):
        raise CheckpointError("the disk is full")

    monkeypatch.setattr(store, "write", refuse)
    for ends in (KeyError, CheckpointError):
        with pytest.raises(ends), CheckpointWriter(store) as writer:
            writer.submit(Snapshot({"model.safetensors": tensors_of(1)}, {}), Progress(1, 1), {})
            if ends is KeyError:
                raise KeyError("of the loop")


def test_a_failing_callback_is_not_silent_and_the_checkpoint_is_there(store):
    def fail(saved):
        raise KeyError("a bug in a saver")

    writer = CheckpointWriter(store, fail)
    writer.submit(Snapshot({}, {"config.json": {}}), Progress(1, 1), {})
    with pytest.raises(KeyError, match=naming("a bug")):
        writer.close()
    assert store.latest().name == "step_00000001"


def test_what_cannot_be_saved_is_refused_by_submit_itself(store):
    writer = CheckpointWriter(store)
    with pytest.raises(TypeError, match=naming("JSON", "object")):
        writer.submit(Snapshot({}, {"config.json": {"a": object()}}), Progress(1, 1), {})
    with pytest.raises(ValueError, match=naming("torch.complex64", "'z'")):
        writer.submit(Snapshot({"model.safetensors": {"z": torch.zeros(1, dtype=torch.complex64)}}), Progress(1, 1), {})
    writer.close()
    assert store.latest() is None


def test_closing_twice_or_without_a_save_does_nothing(store):
    writer = CheckpointWriter(store)
    writer.close()
    writer.close()


def test_no_thread_stays(store, own_threads):
    writer = CheckpointWriter(store)
    writer.submit(Snapshot({"model.safetensors": tensors_of(1)}), Progress(1, 1), {})
    writer.close()
    assert not own_threads("checkpoint")


def test_reserved_memory_serves_the_first_save(store):
    writer = CheckpointWriter(store)
    snapshot = Snapshot({"model.safetensors": tensors_of(1)})
    writer.reserve(snapshot)
    concurrent.futures.wait([writer._running])
    place = writer._memory._files["model.safetensors"].image.data_ptr()
    writer.submit(snapshot, Progress(1, 1), {})
    assert writer._memory._files["model.safetensors"].image.data_ptr() == place
    writer.close()
    saved = read_checkpoint(store.latest()).tensors["model.safetensors"]
    assert all((tensor == 1).all() for tensor in saved.values())
