"""References to remote places: what comes is what was meant, whole and verified, or nothing comes at all."""

import errno
import hashlib
import json
import logging
import os
import shutil
import threading
from unittest.mock import Mock

import pytest
import torch

from dp_prior.checkpoints.format import CheckpointError, read_checkpoint
from dp_prior.files.json_text import seal, unseal
from dp_prior.files.locks import FileLock, NoLocksError
from dp_prior.places import checkpoint_cache
from dp_prior.places.checkpoint_cache import reported
from dp_prior.places.errors import NoPlaceError, RemoteError
from dp_prior.places.reference import resolve
from tests.messages import naming, told
from tests.places.parcels import Run

MODEL = ["config.json", "manifest.json", "model.safetensors", "spec.json"]


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def files(tmp_path):
    """`files(step)` -> the files of a checkpoint as a repository holds them, in a folder."""
    run = Run(tmp_path / "run")
    made = {}

    def make(step, folder=None):
        if step not in made:
            directory = run.save(step).path
            made[step] = {path.name: path.read_bytes() for path in directory.iterdir()}
        folder = f"checkpoints/step_{step:08d}" if folder is None else folder
        return {f"{folder}/{name}".lstrip("/"): content for name, content in made[step].items()}

    yield make
    run.lock.release()


def pointer(files, folder):
    digest = hashlib.sha256(files[f"{folder}/manifest.json"]).hexdigest()
    return json.dumps({"folder": folder, "manifest_sha256": digest}).encode()


def at_root(files):
    """What is needed to act."""
    manifest = unseal(files["manifest.json"])
    listed = {name: entry for name, entry in manifest["files"].items() if name in MODEL}
    return {name: files[name] for name in MODEL} | {"manifest.json": seal({**manifest, "files": listed})}


@pytest.fixture
def repo(hub, files):
    """Best is step 1, latest is step 2."""
    one, two = files(1), files(2)
    content = {**one, **two, **at_root(files(1, ""))}
    content["best.json"] = pointer(one, "checkpoints/step_00000001")
    content["latest.json"] = pointer(two, "checkpoints/step_00000002")
    repo = hub.create("me/x", files=content)
    repo.tags["v1"] = repo.head
    return repo


def step_of(directory, file="model.safetensors"):
    return int(next(iter(read_checkpoint(directory, [file]).tensors[file].values()))[0])


@pytest.mark.parametrize(
    ("suffix", "prefer", "step"),
    [
        ("", "best", 1),
        ("", "latest", 2),
        ("@best", "latest", 1),
        ("@latest", "best", 2),
        ("@step_00000002", "best", 2),
        ("@v1", "best", 1),
    ],
)
def test_a_repository_gives_the_checkpoint_that_is_meant(repo, cache, suffix, prefer, step):
    whole = resolve(f"hf://me/x{suffix}", prefer, cache=cache)
    assert step_of(whole) == step_of(whole, "training.safetensors") == step
    acting = resolve(f"hf://me/x{suffix}", prefer, cache=cache, whole=False)
    assert step_of(acting) == step


def test_a_commit_is_a_revision_and_what_came_before_is_still_there(hub, repo, cache, files):
    before = repo.head
    repo.commit({path: (content, False) for path, content in at_root(files(2, "")).items()}, "only a model")
    assert step_of(resolve(f"hf://me/x@{before}", cache=cache)) == 1
    assert step_of(resolve("hf://me/x", cache=cache, whole=False)) == 2
    assert sorted(os.listdir(resolve("hf://me/x", cache=cache))) == MODEL


def test_what_was_fetched_is_not_fetched_again_and_answers_without_the_hub(hub, repo, cache, monkeypatch):
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    first = resolve("hf://me/x", cache=cache)
    weights = [request for request in hub.requests if request.method == "GET" and "safetensors" in request.path]
    assert len(weights) == 2
    assert resolve("hf://me/x", cache=cache) == first
    assert [r for r in hub.requests if r.method == "GET" and "safetensors" in r.path] == weights
    hub.fail("any", times=999, status=503)
    assert resolve("hf://me/x", cache=cache) == first
    count = len(hub.requests)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert resolve("hf://me/x", cache=cache) == first
    assert len(hub.requests) == count
    with pytest.raises(RemoteError, match=naming("hf://me/other", "best.json", "cache")):
        resolve("hf://me/other", cache=cache)


def test_damage_in_the_cache_is_fetched_anew(repo, cache):
    first = resolve("hf://me/x", cache=cache)
    (first / "spec.json").unlink()
    assert step_of(resolve("hf://me/x", cache=cache)) == 1


def test_a_damaged_file_of_the_client_is_fetched_anew(repo, cache):
    found = resolve("hf://me/x", cache=cache)
    path = found / "model.safetensors"  # a link to the client's file
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    shutil.rmtree(cache)
    assert step_of(resolve("hf://me/x", cache=cache)) == 1


@pytest.mark.parametrize(
    ("reference", "kind", "message"),
    [
        ("hf://me/nothing", NoPlaceError, ("hf://me/nothing", "HF_TOKEN")),
        ("hf://me/x@v9", NoPlaceError, ("hf://me/x@v9", "revision")),
        ("hf://me/x@step_00000009", FileNotFoundError, ("hf://me/x", "checkpoints/step_00000009/manifest.json")),
        ("hf://me/empty", FileNotFoundError, ("hf://me/empty", "manifest.json", "best.json", "latest.json")),
        ("hf://me/empty@latest", FileNotFoundError, ("hf://me/empty@latest", "latest")),
        (
            "https://example.org/x",
            FileNotFoundError,
            ("'https://example.org/x'", "`dp-prior export`", "`sha256sum manifest.json`"),
        ),
        (
            "https://example.org/x#sha256=abc",
            FileNotFoundError,
            ("'https://example.org/x#sha256=abc'", "`dp-prior export`", "`sha256sum manifest.json`"),
        ),
        ("nonsense://a/b", RemoteError, ("nonsense://a/b", "nonsense")),
        ("memory://nowhere", FileNotFoundError, ("memory://nowhere", "manifest.json", "best.json", "latest.json")),
    ],
)
def test_what_cannot_be_found_is_explained(hub, repo, cache, reference, kind, message):
    hub.create("me/empty")
    with pytest.raises(kind, match=naming(*message)):
        resolve(reference, cache=cache)


def test_without_a_token_a_private_repository_is_hidden_and_with_it_open(hub, repo, cache, monkeypatch):
    repo.private = True
    assert step_of(resolve("hf://me/x", cache=cache)) == 1
    shutil.rmtree(cache)
    monkeypatch.setenv("HF_TOKEN", "")
    with pytest.raises((NoPlaceError, RemoteError)):
        resolve("hf://me/x", cache=cache, cache_dir=str(cache / "fresh"))


def web(hub, files, step=1):
    """A checkpoint behind a web server, and its reference."""
    content = files(step)
    hub.create("me/web", files=content)
    digest = hashlib.sha256(content[f"checkpoints/step_{step:08d}/manifest.json"]).hexdigest()
    return f"{hub.url}/me/web/resolve/main/checkpoints/step_{step:08d}#sha256={digest}"


def test_a_url_with_the_hash_of_its_manifest(hub, files, cache):
    reference = web(hub, files)
    assert step_of(resolve(reference, cache=cache), "training.safetensors") == 1
    count = len(hub.requests)
    resolve(reference, cache=cache)
    assert len(hub.requests) == count, "the hash says all; nobody has to be asked"
    wrong = reference[:-1] + ("0" if reference[-1] != "0" else "1")
    with pytest.raises(RemoteError, match=naming("step_00000001/manifest.json", "SHA-256")):
        resolve(wrong, cache=cache)
    with pytest.raises(FileNotFoundError, match=naming("manifest.json", "best.json", "latest.json")):
        resolve(f"{hub.url}/me/web/resolve/main/nothing#sha256={'0' * 64}", cache=cache)


@pytest.mark.promise("E5")
@pytest.mark.parametrize("cut", [0, 1, 700, 1300])
def test_a_download_that_is_cut_goes_on_where_it_stopped(hub, files, cache, cut):
    reference = web(hub, files)
    hub.fail("resolve", skip=3, times=1, cut=cut)
    assert step_of(resolve(reference, cache=cache)) == 1
    if cut:
        assert any(f"bytes={cut}-" in request.headers.get("Range", "") for request in hub.requests)
    assert not list(cache.rglob("*.part"))


@pytest.mark.promise("E5")
def test_a_download_that_was_given_up_is_resumed_by_the_next_command(hub, files, cache, monkeypatch):
    reference = web(hub, files)
    monkeypatch.setattr("dp_prior.places.source.time.sleep", lambda seconds: None)
    hub.fail("resolve", skip=1, times=5, cut=10)
    hub.fail("resolve", skip=1, times=99, cut=0)
    with pytest.raises(RemoteError, match=naming("config.json", "75 bytes")):
        resolve(reference, cache=cache)
    assert not [path for path in cache.iterdir() if len(path.name) == 64], "nothing half stands under a final name"
    hub.heal()
    assert step_of(resolve(reference, cache=cache)) == 1
    assert any(request.headers.get("Range") == "bytes=50-" for request in hub.requests)


def test_a_server_that_knows_no_ranges_is_read_from_the_start(hub, files, cache, monkeypatch):
    reference = web(hub, files)
    hub.fail("resolve", skip=2, times=1, cut=30)
    from tests import hub_server

    send = hub_server._Handler._send

    def whole(self, data, status, headers, length=None):
        if status == 206:
            start = int(headers.pop("Content-Range").split()[1].split("-")[0])
            path = self.path.rpartition("/")[2]
            data = b"".join(c for p, c in hub.files("me/web").items() if p.endswith(f"/{path}"))
            assert start == 30
            status = 200
        return send(self, data, status, headers, length)

    monkeypatch.setattr(hub_server._Handler, "_send", whole)
    assert step_of(resolve(reference, cache=cache)) == 1


@pytest.mark.promise("E5")
def test_a_file_that_was_altered_on_the_way_is_refused_and_not_kept(hub, files, cache):
    reference = web(hub, files)
    repo = hub.repos["me/web"]
    tree = repo.commits[repo.head]
    path = "checkpoints/step_00000001/model.safetensors"
    tree[path] = (tree[path][0][:-1] + b"!", True)
    with pytest.raises(RemoteError, match=naming("model.safetensors", "SHA-256")):
        resolve(reference, cache=cache)
    assert not list(cache.rglob("model.safetensors*"))


HOSTILE = {
    "a name that leads out": lambda m: {**m, "files": {"../evil.json": next(iter(m["files"].values()))}},
    "an absolute name": lambda m: {**m, "files": {"/tmp/evil.json": next(iter(m["files"].values()))}},
    "code": lambda m: {**m, "files": {"evil.py": next(iter(m["files"].values()))}},
    "a pickle": lambda m: {**m, "files": {"evil.pkl": next(iter(m["files"].values()))}},
    "the manifest itself": lambda m: {**m, "files": {"manifest.json": next(iter(m["files"].values()))}},
    "another size": lambda m: {
        **m,
        "files": {**m["files"], "spec.json": {"size": 1, "sha256": m["files"]["spec.json"]["sha256"]}},
    },
    "another hash": lambda m: {
        **m,
        "files": {**m["files"], "spec.json": {**m["files"]["spec.json"], "sha256": "0" * 64}},
    },
    "a file that is not there": lambda m: {**m, "files": {**m["files"], "extra.json": {"size": 1, "sha256": "0" * 64}}},
    "unknown keys": lambda m: {**m, "run": "os.system"},
}


@pytest.mark.promise("K1", "K2")
@pytest.mark.parametrize("attack", HOSTILE)
def test_a_hostile_manifest_is_refused_and_writes_nothing_outside(hub, files, cache, tmp_path, attack):
    content = files(1, "")
    content["manifest.json"] = seal(HOSTILE[attack](unseal(content["manifest.json"])))
    content["evil.json"] = content["evil.py"] = content["evil.pkl"] = b"{}"
    hub.create("me/hostile", files=content)
    before = {path for path in tmp_path.rglob("*") if "hf_home" not in path.parts and "cache" not in path.parts}
    with pytest.raises((CheckpointError, FileNotFoundError)):
        resolve("hf://me/hostile", cache=cache)
    after = {path for path in tmp_path.rglob("*") if "hf_home" not in path.parts and "cache" not in path.parts}
    assert after == before
    assert not [path for path in cache.rglob("*") if len(path.name) == 64]


@pytest.mark.parametrize(
    "content",
    [
        b"[]",
        b"{}",
        b"not json",
        b'{"folder": "../..", "manifest_sha256": "x"}',
        b'{"folder": "checkpoints/step_00000001/../..", "manifest_sha256": "x"}',
        b'{"folder": 3, "manifest_sha256": "x"}',
        b"[" * 60_000,
    ],
)
def test_a_hostile_pointer_is_refused(hub, cache, content):
    hub.create("me/hostile", files={"latest.json": content})
    with pytest.raises(RemoteError, match=naming("hf://me/hostile@latest", "pointer")):
        resolve("hf://me/hostile@latest", cache=cache)


def test_a_pointer_and_a_manifest_that_do_not_belong_together_are_refused(hub, cache, files):
    content = files(1)
    content["latest.json"] = pointer(files(2), "checkpoints/step_00000002").replace(b"00000002", b"00000001")
    hub.create("me/mixed", files=content)
    with pytest.raises(RemoteError, match=naming("hf://me/mixed@latest", "step_00000001/manifest.json", "pointer")):
        resolve("hf://me/mixed@latest", cache=cache)


def test_what_is_too_large_to_be_a_manifest_is_not_downloaded(hub, cache):
    hub.create("me/huge", files={"manifest.json": b" " * (17 << 20)})
    with pytest.raises(RemoteError, match=naming("hf://me/huge", "17825792 bytes", "manifest.json", 4194304)):
        resolve("hf://me/huge", cache=cache)
    assert not [r for r in hub.requests if r.method == "GET" and r.kind == "resolve"]


def test_tensors_own_their_memory_and_the_cache_is_left_alone(repo, cache):
    found = resolve("hf://me/x", cache=cache)
    tensors = read_checkpoint(found).tensors["model.safetensors"]
    next(iter(tensors.values())).fill_(9)
    assert torch.equal(read_checkpoint(found).tensors["model.safetensors"]["w"], torch.ones(300))


def test_a_wait_for_another_download_of_the_same_checkpoint_is_told_once(tmp_path, monkeypatch, caplog):
    path, free = tmp_path / "a.lock", object()
    answers = iter([None, None, None, free])
    monkeypatch.setattr(FileLock, "take", lambda path: next(answers))
    for name, value in (("FIRST_S", 0.0), ("POLL_S", 0.0)):
        monkeypatch.setattr(f"dp_prior.places.checkpoint_cache.{name}", value)
    assert checkpoint_cache._locked(path) is free
    assert len(caplog.messages) == 1 and told(caplog.messages[0], path)


def test_a_cache_on_a_file_system_without_locks_is_named(repo, cache, monkeypatch):
    refused = NoLocksError(errno.ENOLCK, os.strerror(errno.ENOLCK), "file")
    monkeypatch.setattr(FileLock, "take", Mock(side_effect=refused))
    with pytest.raises(CheckpointError, match=naming(os.strerror(errno.ENOLCK), "HOME", "flock")) as caught:
        resolve("hf://me/x", cache=cache)
    assert str(cache) in str(caught.value) and not list(cache.iterdir())


def test_what_has_arrived_is_told_again_and_again(tmp_path, caplog):
    (tmp_path / "model.safetensors.part").write_bytes(bytes(1_500_000))
    lines = threading.Semaphore(0)

    class Counting(type(caplog.handler)):
        def emit(self, record):
            lines.release()

    logger, handler = logging.getLogger("dp_prior.places.checkpoint_cache"), Counting()
    logger.addHandler(handler)
    try:
        with reported("s3://bucket/x", tmp_path, 4_000_000, first_s=0.001, next_s=0.001):
            assert lines.acquire(timeout=60) and lines.acquire(timeout=60)
    finally:
        logger.removeHandler(handler)
    assert told(caplog.messages[0], "s3://bucket/x", "1.5 of 4.0 MB", "Ctrl-C")


def test_nothing_is_told_of_a_short_download_or_after_an_error(tmp_path, caplog, own_threads):
    try:
        with reported("s3://bucket/x", tmp_path, 4, first_s=60.0):
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert not caplog.messages and not own_threads("download report")
