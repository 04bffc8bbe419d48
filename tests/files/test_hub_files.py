"""Files of the Hub, from a Hub on loopback."""

import errno
import os
import signal
import time

import pytest

from dp_prior.files.hub_files import HubError, HubRepository, http_library, locate
from tests import forks
from tests.messages import naming, told

FILES = {"config.json": b"{}", "deep/weights.bin": b"12345", "other.txt": b"?"}


@pytest.fixture
def repository(hub):
    hub.create("me/x", files=FILES)
    return HubRepository("me/x")


def test_a_reference_is_user_and_name_and_perhaps_a_revision(tmp_path):
    for text in ("me/x", "me/x@v1", "me/x@refs/pr/1", "a.b/c-d_e"):
        assert str(HubRepository.parse(text)) == text
    assert HubRepository.parse("me/x@") == HubRepository("me/x")
    for text in ("", "nowhere", "/nowhere/at/all", "../a/b", "./x", "a/..", "a/b/c", "@me/x", "hf://me/x", "me/x y"):
        assert HubRepository.parse(text) is None
        with pytest.raises(FileNotFoundError, match=naming("weights", f"'{text}'", "user/name")):
            locate(text, "weights:")


def test_a_folder_wins_over_a_repository(tmp_path, monkeypatch):
    (tmp_path / "me" / "x").mkdir(parents=True)
    assert locate("me/x", "model") == HubRepository("me/x")
    monkeypatch.chdir(tmp_path)
    assert locate("me/x", "model").is_dir()


def test_a_snapshot_holds_what_matches_at_one_commit(repository, hub):
    first = repository.snapshot(["*.json", "deep/*"])
    assert first.name == hub.repos["me/x"].head
    found = {path.relative_to(first).as_posix(): path.read_bytes() for path in first.rglob("*") if path.is_file()}
    assert found == {name: content for name, content in FILES.items() if name != "other.txt"}
    hub.repos["me/x"].commit({"config.json": (b"[]", False)}, "change")
    assert (repository.snapshot(["*.json"]) / "config.json").read_bytes() == b"[]"
    assert HubRepository("me/x", first.name).snapshot(["*.json"]) == first


def test_a_file_that_is_too_large_is_not_downloaded(repository, hub):
    assert repository.file("deep/weights.bin", 5).read_bytes() == b"12345"
    hub.requests.clear()
    with pytest.raises(HubError, match=naming("me/x", 2, "config.json", 1)) as error:
        repository.file("config.json", 1)
    assert error.value.reason == "too large"
    assert not [request for request in hub.requests if request.method == "GET"]


def test_a_hub_that_is_silent_about_a_repository_is_out_of_reach_and_the_cache_will_do(repository, hub, monkeypatch):
    monkeypatch.setattr("dp_prior.files.hub_files.ANSWER_S", 0.2)
    hub.fail("info", silent=True, times=99)
    with pytest.raises(HubError, match=naming("me/x", "Hub")) as error:
        repository.snapshot(["*.json"])
    assert error.value.reason == "uncached"
    hub.heal()
    found = repository.snapshot(["*.json"])
    hub.fail("info", silent=True, times=99)
    assert repository.snapshot(["*.json"]) == found


INTERRUPTED = """
import os, signal, sys
from dp_prior.files.hub_files import HubRepository
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    HubRepository("me/x").{ask}
except KeyboardInterrupt:
    print("interrupted", flush=True)
    os._exit(0)
"""


@pytest.mark.parametrize("ask", ['snapshot(["*"])', 'file("config.json", 9)'])
def test_ctrl_c_ends_a_download_from_a_hub_that_is_silent(ask, repository, hub, tmp_path):
    hub.fail("resolve", silent=True, times=99)
    log = tmp_path / "log"
    process = forks.start(["-c", INTERRUPTED.format(ask=ask)], log, log)
    try:
        while not hub.count("resolve"):
            assert process.is_alive()
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGINT)
        process.join(60)
        assert (process.exitcode, log.read_text()) == (0, "interrupted\n")
    finally:
        process.kill()


@pytest.mark.parametrize(
    ("reference", "fault", "reason", "message"),
    [
        ("me/nothing", {}, "no repository", ("me/nothing", "Hub", "token")),
        ("a/" + "b" * 200, {}, "no repository", ("Hub", "user/name")),
        ("me/x@v9", {}, "no revision", ("me/x@v9", "revision")),
        ("me/x", {"status": 403, "headers": {"X-Error-Code": "GatedRepo"}}, "gated", ("me/x", "gated", "accept")),
    ],
)
@pytest.mark.parametrize("way", ["file", "snapshot"])
def test_every_failure_has_its_reason_and_one_line(repository, hub, reference, fault, reason, message, way):
    if fault:
        hub.fail("any", times=999, **fault)
    asked = HubRepository.parse(reference)
    with pytest.raises(HubError) as error:
        asked.file("config.json", 9) if way == "file" else asked.snapshot(["*.json"])
    assert error.value.reason == reason and told(str(error.value), *message) and "\n" not in str(error.value)
    assert error.value.status == fault.get("status", error.value.status)
    assert told(asked.remedy(error.value), "folder") and "download" not in asked.remedy(error.value)


def test_a_missing_file_and_a_missing_network_are_told_apart(repository, hub):
    with pytest.raises(HubError, match=naming("me/x", "none.json")) as error:
        repository.file("none.json", 9)
    assert (error.value.reason, error.value.status) == ("no file", 404)
    hub.fail("any", times=9999, reset=True)
    with pytest.raises(HubError, match=naming("me/x", "Hub")) as error:
        repository.file("config.json", 9)
    assert error.value.reason in ("uncached", "unreachable")
    with pytest.raises(HubError, match=naming("me/x", "cache")) as error:
        repository.snapshot(["*.json"])
    assert error.value.reason == "uncached"
    assert told(repository.remedy(error.value), "(hf download", "me/x)", "folder")
    assert told(HubRepository("me/x", "v2").remedy(error.value), "(hf download", "me/x", "--revision v2)")
    hub.heal()
    found = repository.snapshot(["*.json"])
    hub.fail("any", times=9999, reset=True)
    assert repository.snapshot(["*.json"]) == found, "the cache answers without a network"


def test_another_answer_is_told_by_its_number_also_from_a_thread_of_the_client(repository):
    from huggingface_hub.errors import HfHubHTTPError

    http = http_library()
    answer = http.Response(429, headers={"Retry-After": "7"}, request=http.Request("GET", "http://hub/secret"))
    error = HfHubHTTPError("secret", response=answer)
    for raised, cause in ((error, None), (RuntimeError("in a thread"), error)):
        with pytest.raises(HubError, match=naming("me/x", 429)) as told, repository.translated():
            raise raised from cause
        assert "secret" not in str(told.value)
        assert (told.value.reason, told.value.status, told.value.retry_after) == ("answer", 429, 7.0)


def test_an_answer_that_sent_the_client_to_its_cache_is_told_by_its_number(repository, hub):
    hub.fail("info", times=99, status=429, headers={"Retry-After": "7"})
    with pytest.raises(HubError, match=naming("me/x", "cache", 429)) as error:
        repository.snapshot(["*.json"])
    assert (error.value.reason, error.value.status, error.value.retry_after) == ("uncached", 429, 7.0)


def test_the_part_of_an_interrupted_download_is_never_the_whole(repository, hub):
    """The client of 2026 refuses it; clients before 1.22 gave the folder with what there was."""
    hub.fail("resolve", skip=2, times=99, reset=True)
    for _ in range(2):
        with pytest.raises(HubError, match=naming("me/x", "cache")):
            repository.snapshot(["*"])
        hub.heal()
        hub.fail("any", times=9999, reset=True)


def test_an_error_of_the_system_and_one_of_our_own_pass_unchanged(repository):
    for error in (OSError(errno.ENOSPC, "No space left on device", "/cache"), RuntimeError("own"), ValueError("own")):
        with pytest.raises(type(error)) as caught, repository.translated():
            raise error
        assert caught.value is error


@pytest.mark.parametrize(
    ("endpoint", "token", "message"),
    [
        ("localhost:8080", "hf_x", ("HF_ENDPOINT", "'localhost:8080'", "https://huggingface.co")),
        ("http://", "hf_x", ("HF_ENDPOINT", "'http://'")),
        ("http://[::1", "hf_x", ("HF_ENDPOINT", "'http://[::1'")),
        ("http://127.0.0.1:99999", "hf_x", ("HF_ENDPOINT", "'http://127.0.0.1:99999'")),
        ("http://127.0.0.1:9", "hf_\x01x", ("HF_TOKEN",)),
        ("http://127.0.0.1:9", "\u201chf_x\u201d", ("HF_TOKEN",)),
    ],
)
def test_settings_with_which_the_client_cannot_ask_are_told(repository, monkeypatch, endpoint, token, message):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(HubError, match=naming("me/x", *message)) as caught, repository.translated():
        pytest.fail("the client is asked")
    assert caught.value.reason == "settings"
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with repository.translated():  # files in the cache need neither
        pass
