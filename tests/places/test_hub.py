"""The Hub as a place for checkpoints, through its own client: a reader of the best always gets a whole set."""

import json
import os
import signal
import socket
import time

import pytest

from dp_prior.config import ConfigError
from dp_prior.files.hub_files import HubRepository
from dp_prior.places.destination import DeliveryReport
from dp_prior.places.errors import RemoteError
from dp_prior.places.hub import HubDestination, HubSource, HuggingFaceSaverConfig
from dp_prior.places.upload import UploadSaver
from dp_prior.places.worker import Worker
from tests.cases import every
from tests.hub_server import TOKEN
from tests.messages import naming, told
from tests.places.parcels import Run, assert_whole, parcel_of, step_at_root


class Sending:
    """A run that sends to the server without a thread or a process."""

    def __init__(self, run, **fields):
        self.record = HuggingFaceSaverConfig(repo="me/pusht", **fields)
        self.run = run
        self.saver = UploadSaver(self.record, run.directory)
        self.commits = 0

    def send(self, step, **how):
        self.saver.save(self.run.save(step, **how))
        return self.deliver()

    def deliver(self):
        parcel = parcel_of(self.saver)
        message = HubDestination(self.record).deliver(parcel, self._spend)
        self.saver.outbox.remove(self.saver.outbox.waiting())
        return message

    def _spend(self):
        self.commits += 1


def test_the_commit_is_known_wherever_the_client_has_its_cache(tmp_path, hub):
    hub.create("me/x", files={"a.json": b"{}", "checkpoints/one/b.json": b"[]"})
    for path, content in (("a.json", b"{}"), ("checkpoints/one/b.json", b"[]")):
        source = HubSource(HubRepository("me/x"), cache_dir=tmp_path / "snapshots" / "of" / "mine")
        assert source.read(path, 100) == content
        assert source.revision == hub.repos["me/x"].head


def test_the_best_is_a_whole_model_at_the_root_and_a_folder_that_never_changes(run, hub):
    sending = Sending(run, license="mit")
    said = sending.send(1)
    assert said == DeliveryReport(said.message) and told(said.message, "checkpoints/step_00000001", "best")
    first = hub.files("me/pusht")
    assert step_at_root(first) == 1 and hub.repos["me/pusht"].private
    sending.send(2)
    second = hub.files("me/pusht")
    assert step_at_root(second) == 2
    assert {path: second[path] for path in first if path.startswith("checkpoints/")}.items() <= first.items()
    assert [summary for _, summary in hub.repos["me/pusht"].log] == [
        "initial commit",
        *("Add step_00000001", "Best: step 1", "Add step_00000002", "Best: step 2"),
    ]
    assert sending.commits == 4
    assert step_at_root(hub.files("me/pusht", "step_00000001")) == 1, "the tag of a step has its weights at the root"
    assert step_at_root(hub.files("me/pusht", "step_00000002")) == 2


@pytest.mark.promise("E3")
def test_at_every_commit_a_reader_finds_a_whole_set(run, hub):
    sending = Sending(run, save_latest=True)
    for step, is_best in [(1, True), (2, False), (3, True)]:
        sending.send(step, is_best=is_best)
    repo = hub.repos["me/pusht"]
    steps = []
    for commit, _ in repo.log:
        files = hub.files("me/pusht", commit)
        steps.append(step_at_root(files))
        if "latest.json" in files:
            assert_whole(files, json.loads(files["latest.json"]))
    assert steps == [None, None, 1, 1, 1, 1, 3]
    assert json.loads(hub.files("me/pusht")["latest.json"])["step"] == 3


def test_sending_the_same_again_changes_nothing(run, hub):
    sending = Sending(run)
    durable = run.save(1)
    for _ in range(2):
        sending.saver.save(durable)
        sending.deliver()
    assert len(hub.repos["me/pusht"].log) == 3


def test_a_model_is_only_what_is_needed_to_act(run, hub):
    Sending(run, save_type="model").send(1)
    folder = sorted(path for path in hub.files("me/pusht") if path.startswith("checkpoints/"))
    assert [path.rpartition("/")[2] for path in folder] == [
        *("config.json", "manifest.json", "model.safetensors", "spec.json"),
    ]
    assert step_at_root(hub.files("me/pusht")) == 1


@pytest.mark.promise("K7")
def test_only_files_of_the_manifest_leave_the_machine(run, hub, tmp_path):
    durable = run.save(1)
    (tmp_path / "secret").write_text("mine")
    (durable.path / ".env").write_text("KEY=mine")
    (durable.path / "id_rsa").symlink_to(tmp_path / "secret")
    sending = Sending(run)
    sending.saver.save(durable)
    sending.deliver()
    assert not any(b"mine" in content for content in hub.files("me/pusht").values())
    assert not any(b"mine" in request.body for request in hub.requests)


def test_a_folder_that_holds_something_else_is_left_alone(run, hub, tmp_path):
    Sending(run).send(1)
    other = Run(tmp_path / "other")
    try:
        Sending(other).send(1, value=0.5)
    finally:
        other.lock.release()
    files = hub.files("me/pusht")
    assert {path.split("/")[1] for path in files if path.startswith("checkpoints/")} == {
        "step_00000001",
        "step_00000001_2",
    }
    assert json.loads(files["best.json"])["folder"] == "checkpoints/step_00000001_2"


@pytest.mark.promise("E4")
def test_a_better_best_of_another_run_is_not_replaced(run, hub, tmp_path):
    Sending(run).send(1, value=0.1)
    other = Run(tmp_path / "other")
    try:
        said = Sending(other).send(5, value=0.2)
        assert said == DeliveryReport(said.message, remark=said.remark)
        assert told(said.message, "checkpoints/step_00000005") and "best" not in said.message
        assert told(said.remark, "better", "loss 0.1", "here 0.2", "stays")
        assert step_at_root(hub.files("me/pusht")) == 1
        Sending(other).send(6, value=0.05)
        assert step_at_root(hub.files("me/pusht")) == 6
    finally:
        other.lock.release()


def test_a_latest_of_an_earlier_step_is_told_to_replace_the_latest(run, hub, tmp_path):
    Sending(run, save_latest=True).send(24, value=0.1)
    anew = Run(tmp_path / "anew")
    try:
        said = Sending(anew, save_latest=True).send(5, value=0.2)
    finally:
        anew.lock.release()
    assert told(said.remark, "latest", "step 24", "here 5", "step_00000024 stays")
    assert told(said.remark, "best", "better") and step_at_root(hub.files("me/pusht")) == 24
    assert json.loads(hub.files("me/pusht")["latest.json"])["step"] == 5


@pytest.mark.promise("E4")
def test_a_pointer_that_moves_meanwhile_is_read_again(run, hub):
    sending = Sending(run)
    sending.send(1)
    hub.fail("commit", skip=1, status=412)
    with pytest.raises(RemoteError, match=naming(412)) as error:
        sending.send(2)
    assert error.value.trouble == "unavailable"  # the saver tries again
    folders = [path for path in hub.files("me/pusht") if path.startswith("checkpoints/")]
    sending.deliver()
    files = hub.files("me/pusht")
    assert step_at_root(files) == 2
    assert [path for path in files if path.startswith("checkpoints/")] == folders, "only the pointer is moved"


ANSWERS = [
    (401, "refused", ("(401)", "HF_TOKEN", "`hf auth login`")),
    (403, "refused", ("(403)", "`repo`")),
    (404, "refused", ("(404)", "`repo`")),
    (409, "unavailable", (409,)),
    (412, "unavailable", (412,)),
    (413, "refused", ("(413)", "size")),
    (429, "unavailable", (429,)),
    (503, "unavailable", (503,)),
]


@pytest.mark.promise("E1", "E2")
@pytest.mark.parametrize(
    ("kind", "status", "trouble", "message"),
    [
        pytest.param(kind, *answer, marks=[pytest.mark.slow] * ((i + j) % 4 != 0), id=f"{kind}-{answer[0]}")
        for i, kind in enumerate(["commit", "lfs", "put", "tag"])
        for j, answer in enumerate(ANSWERS)
    ],
)
def test_an_answer_becomes_a_refusal_or_a_later_attempt(run, hub, status, trouble, message, kind, monkeypatch):
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    hub.create("me/pusht")
    hub.fail(kind, status=status, times=99, headers={"Retry-After": "7"})
    sending = Sending(run)
    if (kind, status) == ("tag", 409):  # the tag is there already, which is what is wanted
        sending.send(1)
        return
    with pytest.raises(RemoteError, match=naming(*message)) as error:
        sending.send(1)
    assert error.value.trouble == trouble
    if trouble == "unavailable" and kind in ("commit", "tag"):
        assert error.value.retry_after == 7.0
    hub.heal()
    sending.deliver()
    assert step_at_root(hub.files("me/pusht")) == 1


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        pytest.param(fault, kind, marks=[pytest.mark.slow] * ((i + 2 * j) % 8 != 0), id=f"{fault}-{kind}")
        for i, fault in enumerate([{"reset": True}, {"cut": 5}, {"lost": True}, {"slow": 0.2}])
        for j, kind in enumerate(["info", "preupload", "lfs", "put", "verify", "commit", "tree", "paths", "tag"])
    ],
)
def test_a_broken_connection_costs_an_attempt_and_nothing_else(run, hub, kind, fault, monkeypatch):
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    sending = Sending(run)
    sending.send(1)
    hub.fail(kind, times=1, **fault)
    try:
        sending.send(2)
    except RemoteError as error:
        assert error.trouble == "unavailable"
        assert step_at_root(hub.files("me/pusht")) in (1, 2)
        sending.deliver()
    assert step_at_root(hub.files("me/pusht")) == 2
    names = {path.split("/")[1] for path in hub.files("me/pusht") if path.startswith("checkpoints/")}
    assert names == {"step_00000001", "step_00000002"}, "an answer that was lost makes no second folder"


@pytest.mark.promise("E3")
@pytest.mark.parametrize(
    ("answered", "stride"),
    [
        pytest.param(True, 5, id="after the answer of every fifth"),
        pytest.param(True, 1, id="after its answer", marks=pytest.mark.slow),
        pytest.param(False, 1, id="before it is carried out", marks=pytest.mark.slow),
    ],
)
def test_killed_at_each_request_a_reader_finds_a_whole_set_and_the_next_attempt_ends_it(run, hub, answered, stride):
    sending = Sending(run, save_latest=True)
    sending.send(1)
    ended, number, step = None, 0, 1
    while ended != 0:
        number, step = number + stride, step + 1
        sending.saver.save(run.save(step))
        before = len(hub.requests)
        if not answered:
            hub.fail("any", skip=number - 1, silent=True)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                HubDestination(sending.record).deliver(parcel_of(sending.saver), lambda: None)
                code = 0
            finally:
                os._exit(code)

        def kill(request=None, child=child, before=before, number=number):
            if len(hub.requests) - before >= number:
                os.kill(child, signal.SIGKILL)

        hub.after = [kill] if answered else []
        while not (ended := os.waitpid(child, 0 if answered else os.WNOHANG))[0]:
            time.sleep(0.005)
            kill()
        ended = os.waitstatus_to_exitcode(ended[1])
        hub.after = []
        hub.heal()
        assert ended in (0, -signal.SIGKILL)
        files = hub.files("me/pusht")
        assert step_at_root(files) in (step - 1, step)
        assert_whole(files, json.loads(files["latest.json"]))
        sending.deliver()
        assert step_at_root(hub.files("me/pusht")) == step
    assert number > 12


def test_a_file_that_arrives_otherwise_than_it_was_sent_is_noticed(run, hub, monkeypatch):
    listing = HubDestination._listing

    def wrong(*arguments):
        files = listing(*arguments)
        for file in files.values():
            file.size += 1
        return files

    monkeypatch.setattr(HubDestination, "_listing", wrong)
    with pytest.raises(RemoteError, match=naming("me/pusht", "config.json", "model.safetensors")):
        Sending(run).send(1)
    assert step_at_root(hub.files("me/pusht")) is None


def test_a_damaged_checkpoint_is_not_sent(run, hub):
    sending = Sending(run)
    durable = run.save(1)
    sending.saver.save(durable)
    path = durable.path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\1")
    [entry] = sending.saver.outbox.waiting()
    report = Worker({}, sending.saver.record.destination).attempt(entry.directory, ("best",), 1.0)
    assert report.trouble == "damaged" and not hub.requests
    assert told(report.message, "damaged", "model.safetensors", "SHA-256")


@pytest.mark.promise("E2")
def test_check_says_whether_the_token_may_write_and_makes_the_repository(hub, monkeypatch):
    record = HuggingFaceSaverConfig(repo="me/pusht")
    assert told(HubDestination(record).check(), "user me", "write", "me/pusht")
    assert hub.repos["me/pusht"].private
    for change, message in [
        (lambda: setattr(hub, "role", "read"), ("(403)", "`repo`")),
        (lambda: monkeypatch.setenv("HF_TOKEN", "hf_wrong"), ("(401)", "HF_TOKEN", "`hf auth login`")),
        (lambda: monkeypatch.setenv("HF_TOKEN", ""), ("HF_TOKEN", "`hf auth login`")),
    ]:
        change()
        with pytest.raises(RemoteError, match=naming(*message)) as error:
            HubDestination(record).check()
        assert error.value.trouble == "refused"


@pytest.mark.promise("E7")
def test_offline_mode_opens_no_socket(hub, run, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(socket.socket, "connect", lambda *address: pytest.fail("a socket was opened"))
    with pytest.raises(RemoteError, match=naming("HF_HUB_OFFLINE")) as error:
        Sending(run).send(1)
    assert error.value.trouble == "offline" and not hub.requests


def test_public_if_asked_and_never_made_so_later(run, hub):
    Sending(run, private=False).send(1)
    assert not hub.repos["me/pusht"].private


@pytest.mark.promise("K6")
def test_the_token_is_only_ever_in_the_header(run, hub, tmp_path):
    sending = Sending(run)
    sending.send(1)
    assert not any(TOKEN.encode() in request.body or TOKEN in request.path for request in hub.requests)
    assert not any(TOKEN.encode() in content for content in hub.files("me/pusht").values())
    for path in run.directory.rglob("*"):
        assert not path.is_file() or TOKEN.encode() not in path.read_bytes()


@every(repo=["pusht", "a/b/c", "../x", "me/", "https://huggingface.co/me/x"])
def test_what_is_no_repository_is_refused(repo):
    with pytest.raises(ConfigError, match=naming("repo", repr(repo))):
        HuggingFaceSaverConfig(repo=repo)


def test_every_field_is_used():
    assert {*HuggingFaceSaverConfig.model_fields} == {
        *("type", "repo", "private", "license", "save_best", "save_latest", "save_type"),
        *("deadline_s", "drain_s", "max_commits_per_hour", "offline"),
    }
