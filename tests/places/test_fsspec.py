"""Folders behind URLs: the same protocol on a store in memory and on a directory; the pointer moves last."""

import errno
import hashlib
import json
import os
import subprocess
import sys
import threading

import fsspec
import pytest
from fsspec.spec import AbstractBufferedFile

from dp_prior.checkpoints.format import read_checkpoint
from dp_prior.config import ConfigError
from dp_prior.places.destination import DeliveryReport
from dp_prior.places.errors import RemoteError
from dp_prior.places.fsspec import FsspecFolder, FsspecSaverConfig
from dp_prior.places.reference import resolve
from dp_prior.places.upload import UploadSaver
from dp_prior.tracking import TrackerConfig
from tests.limits import file_sizes_up_to
from tests.messages import naming, told
from tests.places.parcels import Run, assert_whole, parcel_of
from tests.s3_server import s3_bucket


@pytest.fixture(params=["memory", "file"])
def url(request, tmp_path):
    yield f"memory://{tmp_path.name}/runs" if request.param == "memory" else f"file://{tmp_path}/there"
    fsspec.filesystem("memory").store.clear()


def contents(url):
    fs, root = fsspec.core.url_to_fs(url)
    return {path[len(root.rstrip("/")) + 1 :]: fs.cat_file(path) for path in fs.find(root)}


def send(run, url, step, **how):
    fields = how.pop("fields", {})
    record = FsspecSaverConfig(url=url, **fields)
    saver = UploadSaver(record, run.directory)
    saver.save(run.save(step, **how))
    message = FsspecFolder(record.url).deliver(parcel_of(saver), lambda: None)
    saver.outbox.remove(saver.outbox.waiting())
    return message


def pointed_at(url, kind="best"):
    files = contents(url)
    pointer = json.loads(files[f"{kind}.json"])
    assert_whole(files, pointer)
    return pointer["step"]


def test_folders_stay_and_pointers_move(run, url):
    said = send(run, url, 1)
    assert said == DeliveryReport(said.message) and told(said.message, "checkpoints/step_00000001", "best")
    first = contents(url)
    send(run, url, 2, fields={"save_latest": True})
    assert pointed_at(url) == pointed_at(url, "latest") == 2
    second = contents(url)
    assert all(second[path] == content for path, content in first.items() if path.startswith("checkpoints/"))


def test_it_comes_back_as_it_was(run, url, tmp_path):
    send(run, url, 1, fields={"save_latest": True})
    send(run, url, 2, fields={"save_latest": True}, value=9.0, is_best=False)
    cache = tmp_path / "cache"
    for reference, step in [(url, 1), (f"{url}@best", 1), (f"{url}@latest", 2), (f"{url}@step_00000002", 2)]:
        found = resolve(reference, cache=cache)
        assert int(read_checkpoint(found).tensors["training.safetensors"]["online.w"][0]) == step
        acting = resolve(reference, whole=False, cache=tmp_path / "other")
        assert sorted(path.name for path in acting.iterdir()) == [
            *("config.json", "manifest.json", "model.safetensors", "spec.json"),
        ]
        assert int(read_checkpoint(acting).tensors["model.safetensors"]["w"][0]) == step
    assert resolve(url, prefer="latest", cache=cache).name == resolve(f"{url}@latest", cache=cache).name


@pytest.mark.parametrize(
    "call", ["put_file", *(pytest.param(call, marks=pytest.mark.slow) for call in ("pipe_file", "open", "makedirs"))]
)
def test_trouble_at_any_call_leaves_a_whole_set_and_the_next_attempt_ends_it(run, url, call, monkeypatch):
    fs = type(fsspec.core.url_to_fs(url)[0])
    send(run, url, 1)
    original, count = getattr(fs, call), 0
    for number in range(1, 60):
        count = 0

        def failing(self, *arguments, number=number, **options):
            nonlocal count
            count += 1
            if count == number:
                raise TimeoutError("slow")
            return original(self, *arguments, **options)

        monkeypatch.setattr(fs, call, failing)
        try:
            send(run, url, number + 1)
            finished = True
        except RemoteError as error:
            assert error.trouble == "unavailable"
            finished = False
        monkeypatch.setattr(fs, call, original)
        if not finished:
            assert pointed_at(url) in (number, number + 1)
            saver = UploadSaver(FsspecSaverConfig(url=url), run.directory)
            FsspecFolder(url).deliver(parcel_of(saver), lambda: None)
            saver.outbox.remove(saver.outbox.waiting())
        assert pointed_at(url) == number + 1
        if finished:
            break
    assert finished


def test_what_arrives_otherwise_is_noticed(run, url, monkeypatch):
    fs = type(fsspec.core.url_to_fs(url)[0])
    original = fs.put_file

    def cutting(self, source, target, **options):
        original(self, source, target, **options)
        self.pipe_file(target, self.cat_file(target)[:-1] + b"!")

    monkeypatch.setattr(fs, "put_file", cutting)
    with pytest.raises(RemoteError, match=naming("step_00000001/config.json", "sent")):
        send(run, url, 1)
    assert "best.json" not in contents(url)


def test_a_better_best_and_a_foreign_folder_stay(run, url, tmp_path):
    send(run, url, 1, value=0.1)
    other = Run(tmp_path / "other")
    try:
        assert told(send(other, url, 1, value=0.2).remark, "best", "better")
    finally:
        other.lock.release()
    assert pointed_at(url) == 1
    assert {path.split("/")[1] for path in contents(url) if path.startswith("checkpoints/")} == {
        "step_00000001",
        "step_00000001_2",
    }


@pytest.mark.parametrize("number", [1, 3])
def test_two_runs_that_send_the_same_step_at_once_have_a_folder_each(run, url, tmp_path, number, monkeypatch):
    fs = type(fsspec.core.url_to_fs(url)[0])
    original, other, count = fs.put_file, Run(tmp_path / "other"), 0

    def between(self, source, target, **options):
        nonlocal count
        count += 1
        if count == number:
            send(other, url, 1, value=0.1)
        return original(self, source, target, **options)

    monkeypatch.setattr(fs, "put_file", between)
    try:
        assert told(send(run, url, 1, value=0.2).remark, "best", "better")
    finally:
        other.lock.release()
    files = contents(url)
    assert json.loads(files["best.json"])["folder"] == "checkpoints/step_00000001_2" and pointed_at(url) == 1
    first = files["checkpoints/step_00000001/manifest.json"]
    assert_whole(files, {"folder": "checkpoints/step_00000001", "manifest_sha256": hashlib.sha256(first).hexdigest()})
    assert not [path for path in files if path.endswith(".claim")]


def test_a_run_that_began_anew_replaces_the_latest_with_a_remark_and_its_folder_stays(run, url, tmp_path):
    send(run, url, 24, fields={"save_latest": True})
    anew = Run(tmp_path / "anew")
    try:
        said = send(anew, url, 5, fields={"save_latest": True}, value=0.01)
        assert told(said.remark, "latest", "step 24", "here 5", "step_00000024 stays")
        assert send(anew, url, 6, fields={"save_latest": True}, value=0.001).remark is None
    finally:
        anew.lock.release()
    assert pointed_at(url, "latest") == 6
    assert resolve(f"{url}@step_00000024", cache=tmp_path / "cache").is_dir()


def test_check_leaves_nothing(url):
    assert told(FsspecFolder(url).check(), url, "written")
    assert contents(url) == {}


@pytest.mark.slow
def test_through_the_worker_process(run, tmp_path):
    record = FsspecSaverConfig(url=f"file://{tmp_path}/there", drain_s=250)
    saver = record.create(run.directory, None)
    saver.save(run.save(1))
    assert saver.close(threading.Event()) == []
    assert pointed_at(record.url) == 1


def test_memory_is_reached_without_a_process(run, monkeypatch, tmp_path):
    monkeypatch.setattr(subprocess, "Popen", lambda *arguments: pytest.fail("another process has another memory"))
    record = FsspecSaverConfig(url=f"memory://{tmp_path.name}")
    saver = record.create(run.directory, None)
    saver.save(run.save(1))
    assert saver.close(threading.Event()) == []
    assert pointed_at(record.url) == 1
    fsspec.filesystem("memory").store.clear()


@pytest.mark.parametrize("url", ["runs/x", "s3://bucket/a@best"])
def test_what_is_no_url_is_refused(url):
    with pytest.raises(ConfigError, match=naming("url", f"'{url}'", "s3://bucket/runs/pusht", "`local`")):
        FsspecSaverConfig(url=url)


def test_a_full_disk_is_told_with_the_reason_of_the_system(tmp_path):
    run, url = Run(tmp_path / "run"), f"file://{tmp_path}/there"
    saver = UploadSaver(FsspecSaverConfig(url=url), run.directory)
    saver.save(run.save(1))
    with file_sizes_up_to(1000), pytest.raises(RemoteError, match=naming(url, os.strerror(errno.EFBIG))):
        FsspecFolder(url).deliver(parcel_of(saver), lambda: None)
    run.lock.release()


@pytest.mark.parametrize("url", ["file://backup/pusht", "file://./backup", "local://backup"])
def test_a_relative_path_in_a_url_is_refused_since_the_worker_has_another_working_directory(url):
    with pytest.raises(ConfigError, match=naming("url", f"'{url}'", "file:///disk/pusht", "`local`")):
        FsspecSaverConfig(url=url)
    assert FsspecSaverConfig(url="file://~/backup").url == "file://~/backup"


@pytest.mark.parametrize(
    ("record", "field"), [("save", {"type": "fsspec", "url": "{}"}), ("load", {"type": "remote", "reference": "{}"})]
)
def test_a_password_has_no_place_in_a_url_since_urls_are_saved_and_shown(record, field):
    def config(url):
        filled = {name: value.format(url) for name, value in field.items()}
        return TrackerConfig.from_json(json.dumps({record: [filled] if record == "save" else filled}))

    with pytest.raises(ConfigError, match=naming("sftp://[hidden]@host/runs/x", "~/.config/fsspec")) as refused:
        config("sftp://me:geheim99@host/runs/x")
    assert "geheim99" not in str(refused.value)
    config("sftp://me@host:22/runs/x")


def test_a_file_system_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(RemoteError, match=naming("gs://bucket/x", "gcsfs")):
        FsspecSaverConfig(url="gs://bucket/x").destination()
    with pytest.raises(RemoteError, match=naming("nonsense://bucket/x", "nonsense")):
        FsspecSaverConfig(url="nonsense://bucket/x").destination()


@pytest.mark.parametrize(
    ("error", "trouble", "said"),
    [
        (PermissionError("key=geheim"), "refused", ("credentials",)),
        (FileNotFoundError("key=geheim"), "refused", ("bucket", "folder")),
        (ConnectionResetError("key=geheim"), "unavailable", ("ConnectionResetError",)),
        (type("NoCredentialsError", (Exception,), {})("key=geheim"), "refused", ("NoCredentialsError",)),
    ],
)
def test_what_a_file_system_says_is_told_by_its_kind_when_written_and_read(url, error, trouble, said, monkeypatch):
    def failing(self, *arguments, **options):
        raise error

    folder = FsspecFolder(url)
    for call in ("pipe_file", "open", "makedirs"):
        monkeypatch.setattr(type(folder._fs), call, failing)
    with pytest.raises(RemoteError, match=naming(url, *said)) as refused:
        folder.check()
    assert refused.value.trouble == trouble and "geheim" not in str(refused.value)
    missing = isinstance(error, FileNotFoundError)
    with pytest.raises(FileNotFoundError if missing else RemoteError, match=naming(f"{url}/best.json")) as broken:
        folder.read("best.json", 100)
    assert "geheim" not in str(broken.value) and (missing or type(error).__name__ in str(broken.value))


@pytest.mark.parametrize(
    ("error", "trouble", "said"),
    [
        (PermissionError("key=geheim"), "refused", ("credentials",)),
        (type("NoCredentialsError", (Exception,), {})("key=geheim"), "refused", ("credentials",)),
        (OSError(errno.EBUSY, "key=geheim"), "unavailable", (os.strerror(errno.EBUSY),)),
        (OSError(errno.EINVAL, "key=geheim"), "unavailable", ("credentials", "region")),
    ],
)
def test_what_refuses_to_be_read_is_told_with_its_reason_and_what_to_do(url, error, trouble, said, monkeypatch):
    folder = FsspecFolder(url)
    monkeypatch.setattr(type(folder._fs), "open", lambda *arguments, **options: (_ for _ in ()).throw(error))
    with pytest.raises(RemoteError, match=naming(f"{url}/best.json", *said)) as refused:
        folder.read("best.json", 100)
    assert refused.value.trouble == trouble and "geheim" not in str(refused.value)


def test_a_bucket_that_does_not_exist_is_no_empty_place(url, tmp_path, monkeypatch):
    def missing(*arguments, **options):
        raise FileNotFoundError from type("NoSuchBucket", (Exception,), {})()

    monkeypatch.setattr(type(FsspecFolder(url)._fs), "open", missing)
    with pytest.raises(RemoteError, match=naming(url, "bucket")) as refused:
        resolve(url, cache=tmp_path / "cache")
    assert refused.value.trouble == "refused"


def test_little_of_a_file_is_asked_for_at_once_so_that_an_interrupted_download_goes_on(url, tmp_path, monkeypatch):
    folder, size = FsspecFolder(url), 12 << 20
    folder._fs.makedirs(folder._root, exist_ok=True)
    content = os.urandom(size)
    asked = []

    class Ranged(AbstractBufferedFile):
        """As object stores have it: nothing arrives before all bytes of a request."""

        def _fetch_range(self, start, end):
            asked.append((start, end))
            if len(asked) == 2:
                raise KeyboardInterrupt
            return content[start:end]

    def ranged(path, mode, block_size=50 << 20):
        return Ranged(folder._fs, path, mode, block_size, size=size)

    monkeypatch.setattr(folder._fs, "open", ranged)
    with pytest.raises(KeyboardInterrupt):
        folder.download("model.bin", size, tmp_path / "part", anew=False)
    arrived = (tmp_path / "part").stat().st_size
    assert arrived == asked[0][1] < size
    folder.download("model.bin", size, tmp_path / "part", anew=False)
    assert (tmp_path / "part").read_bytes() == content and asked[2] == (arrived, size)


@pytest.fixture
def s3(monkeypatch):
    """A folder of a local imitation of S3."""
    pytest.importorskip("s3fs", reason="NOT CHECKED: needs s3fs")
    with s3_bucket(monkeypatch):
        yield "s3://bucket/runs/pusht"


def test_through_the_worker_to_s3_and_back(run, s3, tmp_path):
    record = FsspecSaverConfig(url=s3, save_latest=True, drain_s=250)
    assert told(FsspecFolder(s3).check(), s3, "written")
    saver = record.create(run.directory, None)
    saver.save(run.save(1))
    saver.save(run.save(2, value=9.0, is_best=False))
    assert saver.close(threading.Event()) == []
    assert (pointed_at(s3), pointed_at(s3, "latest")) == (1, 2)
    for reference, step in [(s3, 1), (f"{s3}@latest", 2)]:
        found = resolve(reference, cache=tmp_path / "cache")
        assert int(read_checkpoint(found).tensors["training.safetensors"]["online.w"][0]) == step
    assert not [p for p in tmp_path.rglob("*") if p.is_file() and b"canary-secret" in p.read_bytes()]
    with pytest.raises(RemoteError, match=naming("bucket")) as error:
        FsspecFolder("s3://misspelt/runs").check()
    assert error.value.trouble == "refused"
    with pytest.raises(RemoteError, match=naming("s3://misspelt/runs", "bucket")):
        resolve("s3://misspelt/runs", cache=tmp_path / "cache")


SCHEMES = ["ftp", "reference", "jupyter", "webhdfs", "smb", "sftp", "tar", "zip", "libarchive", "git", "nothing"]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_reference_of_any_scheme_has_an_answer(scheme):
    """Of file systems that connect or read when they are made too; nothing listens there."""
    with pytest.raises((RemoteError, FileNotFoundError)) as caught:
        resolve(f"{scheme}://127.0.0.1:1/x")
    assert told(str(caught.value), f"{scheme}://127.0.0.1:1/x")


@pytest.mark.parametrize("error", [OSError("secret"), RuntimeError("secret"), KeyError("secret"), TypeError("secret")])
def test_whatever_a_file_system_raises_when_it_is_made_is_told_without_its_text(error, monkeypatch):
    def refuse(url):
        raise error

    monkeypatch.setattr("fsspec.core.url_to_fs", refuse)
    with pytest.raises(RemoteError, match=naming("odd://folder", type(error).__name__)) as caught:
        FsspecFolder("odd://folder")
    assert "secret" not in str(caught.value)
