"""Whole runs and the Hub: training never waits for it, a fresh machine goes on from it, policies come back from it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from dp_prior import load_policy
from dp_prior.checkpoints.clock import Progress
from dp_prior.checkpoints.format import read_manifest
from dp_prior.checkpoints.store import Saved
from dp_prior.config import ConfigError
from dp_prior.places.reference import resolve
from dp_prior.places.upload import UploadConfig
from dp_prior.places.worker import Worker
from tests.cli.invoked import command
from tests.hub_server import TOKEN
from tests.messages import naming, told
from tests.plugins.dp_prior_lab.test_push import SAVER
from tests.tiny import assert_equal, experiment, state, tiny, train, train_and_die, write
from tests.waiting import until

ROOT = Path(__file__).parent.parent
SLOW = pytest.mark.slow


@pytest.fixture
def process():
    """For tests that are about the worker process."""


@pytest.fixture(autouse=True)
def quick(request, monkeypatch):
    """Attempts run in the thread that would wait for them, unless a test is about the worker process."""
    chosen = getattr(getattr(request.node, "callspec", None), "params", {}).values()
    if "process" not in request.fixturenames and not {"process", "silent", "dead"} & {*chosen}:  # two have to be killed
        monkeypatch.setattr(UploadConfig, "worker", lambda record: Worker({}, record.destination))


@pytest.mark.parametrize("where", ["thread", pytest.param("process", marks=SLOW)])
def test_a_run_ends_with_its_best_and_latest_on_the_hub(tmp_path, hub, where):
    config = write(tmp_path, tracker__save=[SAVER], train__steps=4)
    done = train(config)
    assert done.exit_code == 0 and "warning: " not in done.output, done.output
    files = hub.files("me/tiny")
    assert json.loads(files["best.json"])["step"] > 0
    assert json.loads(files["latest.json"])["step"] == 4
    policy = load_policy("me/tiny")
    own = load_policy(tmp_path / "run")
    assert all(torch.equal(value, own.state_dict()[name]) for name, value in policy.state_dict().items())


@pytest.mark.promise("F4")
def test_a_fresh_machine_goes_on_from_the_hub_as_the_old_one_would_have(tmp_path, hub, trained_policy):
    broken, fresh = (tmp_path / name for name in ("broken", "fresh"))
    changes = {"tracker__save": [SAVER], "tracker__load": {"type": "remote", "reference": "hf://me/tiny"}}
    for place in (broken, fresh):
        place.mkdir()
    config = write(broken, **changes)
    assert train_and_die(config, "step", 18) == -signal.SIGKILL
    _push(broken / "run")
    step = json.loads(hub.files("me/tiny")["latest.json"])["step"]
    assert step in (14, 15), "the save of step 15 may have been cut off"

    changes["data__episodes__path"] = str(broken / "toy.npz")
    done = train(write(fresh, **changes))
    assert done.exit_code == 0 and f"step_{step:08d}, sample {8 * step}" in done.output, done.output
    assert_equal(state(fresh / "run"), state(trained_policy))
    assert resolve(fresh / "run").name == resolve(trained_policy).name, "the best of before came along"
    assert json.loads(hub.files("me/tiny")["latest.json"])["step"] == 24
    best = load_policy("me/tiny").state_dict()
    expected = load_policy(trained_policy).state_dict()
    assert all(torch.equal(value, best[name]) for name, value in expected.items())


@pytest.mark.slow
def test_a_recalled_best_that_stays_the_best_is_copied_like_any_other(tmp_path, hub):
    first, second = tmp_path / "first", tmp_path / "second"
    for place in (first, second):
        place.mkdir()
    train(write(first, tracker__save=[SAVER], train__steps=14))
    changes = {"tracker__load": {"type": "remote", "reference": "hf://me/tiny"}, "train__steps": 16}
    changes |= {"data__episodes__path": str(first / "toy.npz"), "train__lr": {"type": "constant", "peak": 100.0}}
    train(write(second, tracker__save=[{"type": "local", "save_best_to": "exports/best_{step}"}], **changes))
    best = resolve(second / "run")
    assert best.name == resolve(first / "run").name
    [copy] = (second / "run" / "exports").iterdir()
    assert copy.name == f"best_{read_manifest(best).step}"
    assert read_manifest(copy) == read_manifest(best)


@pytest.mark.slow
@pytest.mark.promise("E4")
def test_the_best_of_another_run_in_the_same_repository_stays_there(tmp_path, hub):
    first, second, fresh = (tmp_path / name for name in ("first", "second", "fresh"))
    for place in (first, second, fresh):
        place.mkdir()
    train(write(first, tracker__save=[SAVER], train__steps=14))
    worse = train(write(second, tracker__save=[SAVER], seed=1, train__steps=3))
    assert told(worse.output, "warning: huggingface me/tiny", "better", "validation/ema/loss")
    assert (
        json.loads(hub.files("me/tiny")["best.json"])["step"]
        > 3
        == json.loads(hub.files("me/tiny")["latest.json"])["step"]
    )
    changes = {"tracker__load": {"type": "remote", "reference": "hf://me/tiny"}, "seed": 1, "train__steps": 4}
    done = train(write(fresh, data__episodes__path=str(second / "toy.npz"), **changes))
    assert done.exit_code == 0 and "step_00000003, sample 24" in done.output
    assert resolve(fresh / "run").name in ("step_00000003", "step_00000004")


def _push(run):
    pushed = command("push", run)
    assert pushed.exit_code == 0, pushed.output
    return pushed.output


def test_an_empty_repository_is_that_of_a_run_which_has_not_saved_yet(tmp_path, hub):
    changes = {"train__steps": 2, "tracker__load": {"type": "remote", "reference": "hf://me/tiny"}}
    first = train(write(tmp_path, **changes))
    assert first.exit_code == 0 and told(first.output, "start from", "me/tiny", "Hub")
    other = tmp_path / "other"
    other.mkdir()
    assert train(write(other, **changes), "--resume", "must").exit_code == 64


@pytest.mark.parametrize("revision", ["step_00000100", "dev"])
def test_a_named_checkpoint_that_is_missing_does_not_become_a_fresh_start(tmp_path, hub, revision):
    hub.create("me/tiny")
    reference = f"hf://me/tiny@{revision}"
    refused = train(write(tmp_path, train__steps=2, tracker__load={"type": "remote", "reference": reference}))
    assert refused.exit_code == 64 and told(refused.output, "tracker.load", "me/tiny", revision, "--resume never")


def test_a_repository_that_may_be_hidden_does_not_become_a_fresh_start(tmp_path, hub, monkeypatch):
    hub.create("me/tiny", private=True)
    monkeypatch.delenv("HF_TOKEN")
    config = write(tmp_path, tracker__load={"type": "remote", "reference": "hf://me/tiny"}, train__steps=2)
    refused = train(config)
    assert refused.exit_code == 69 and told(refused.output, "me/tiny", "HF_TOKEN", "--resume never")
    assert train(config, "--resume", "never").exit_code == 0


def test_a_hub_that_cannot_be_reached_does_not_become_a_fresh_start(tmp_path, hub, monkeypatch):
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    hub.fail("any", times=999, status=503)
    refused = train(write(tmp_path, tracker__load={"type": "remote", "reference": "hf://me/tiny"}))
    assert refused.exit_code == 69 and "hf://me/tiny" in refused.output
    assert not list((tmp_path / "run" / "checkpoints").glob("step_*"))


@pytest.mark.parametrize("is_offline", [False, True])
def test_a_place_out_of_reach_is_not_resumed_from_as_the_client_s_cache_last_saw_it(
    tmp_path, hub, monkeypatch, caplog, is_offline
):
    first, second = tmp_path / "first", tmp_path / "second"
    for place in (first, second):
        place.mkdir()
    train(write(first, tracker__save=[SAVER], train__steps=2))
    for prefer in ("latest", "best"):
        resolve("hf://me/tiny", prefer)  # into the cache; the run of the place goes on
    changes = {"data__episodes__path": str(first / "toy.npz"), "train__steps": 4}
    config = write(second, tracker__load={"type": "remote", "reference": "hf://me/tiny"}, **changes)
    if is_offline:
        monkeypatch.setattr("huggingface_hub.constants.is_offline_mode", lambda: True)
    else:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
        nowhere = "http://127.0.0.1:9/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", nowhere)
    done = train(config)
    if is_offline:
        assert done.exit_code == 0 and "step_00000002, sample 16" in done.output, done.output
        assert told(caplog.text, "hf://me/tiny", "cache", "HF_HUB_OFFLINE")
    else:
        assert done.exit_code == 69 and told(done.output, "hf://me/tiny", "Hub"), done.output
        assert not list((second / "run" / "checkpoints").glob("step_*"))


@pytest.mark.slow
def test_what_is_only_a_model_cannot_be_gone_on_from(tmp_path, hub):
    train(write(tmp_path, tracker__save=[{**SAVER, "save_type": "model"}], train__steps=4))
    other = tmp_path / "other"
    other.mkdir()
    changes = {"tracker__load": {"type": "remote", "reference": "hf://me/tiny"}}
    refused = train(write(other, data__episodes__path=str(tmp_path / "toy.npz"), **changes))
    assert refused.exit_code == 64 and told(refused.output, "tracker.load", "hf://me/tiny", "train.init_from")


@pytest.mark.promise("E1")
@pytest.mark.parametrize("trouble", ["refused", "offline", *(pytest.param(t, marks=SLOW) for t in ("silent", "dead"))])
def test_no_trouble_of_the_hub_costs_training_anything_and_push_ends_it(tmp_path, hub, trouble):
    saver = {**SAVER, "drain_s": 0.5, "offline": trouble == "offline"}
    if trouble == "silent":
        hub.fail("any", times=999, silent=True)
    elif trouble == "refused":
        hub.role = "read"
    elif trouble == "dead":
        hub.fail("any", times=999, reset=True)
    config = write(tmp_path, tracker__save=[saver], train__steps=8)
    start = time.monotonic()
    done = train(config)
    assert time.monotonic() - start < 60
    assert done.exit_code == 0
    assert told(done.output, "warning: huggingface me/tiny", "best", "step 8", "`dp-prior checkpoints push RUN`")
    if trouble == "offline":
        assert not hub.requests
    hub.heal()
    hub.role = "write"
    assert told(_push(tmp_path / "run"), "huggingface me/tiny", "everything")
    assert json.loads(hub.files("me/tiny")["best.json"])["step"] == 8
    assert not list((tmp_path / "run" / "outbox").glob("*/0*"))


def test_a_time_limit_holds_whatever_a_place_does(tmp_path, hub, process):
    """SLURM kills what is late, and what is killed is not put back into the queue."""
    hub.fail("any", times=999, silent=True)
    train(write(tmp_path, tracker__save=[{**SAVER, "drain_s": 0.1}], train__steps=5))  # a checkpoint waits
    saver = {**SAVER, "drain_s": 1e5}
    done = train(write(tmp_path, tracker__save=[saver], train__max_runtime="2s", train__steps=10**6))
    assert done.exit_code == 75, done.output
    assert told(done.output, "warning: huggingface me/tiny", "step", "run ended", "`dp-prior checkpoints push RUN`")


@pytest.mark.promise("E2")
def test_check_asks_the_places_and_sends_nothing(tmp_path, hub):
    local = {"type": "local", "save_latest_to": str(tmp_path / "copy")}
    load = {"type": "remote", "reference": "hf://me/tiny"}
    config = write(tmp_path, tracker__save=[SAVER, local], tracker__load=load)
    checked = train(config, "--check")
    assert checked.exit_code == 0 and told(checked.output, "start from", "hf://me/tiny")
    assert told(checked.output, "also to", "huggingface me/tiny", "user me")
    assert set(hub.files("me/tiny")) == {".gitattributes"} and not (tmp_path / "copy").exists()
    hub.role = "read"
    refused = train(config, "--check")
    assert refused.exit_code == 69 and told(refused.output.splitlines()[-3], "problem", "huggingface me/tiny", "(403)")


@pytest.mark.promise("C2")
@pytest.mark.slow
def test_a_killed_trainer_leaves_no_worker(tmp_path, hub, process):
    hub.fail("preupload", times=99, silent=True)
    config = write(tmp_path, tracker__save=[SAVER], train__steps=100_000)
    process = subprocess.Popen(
        [sys.executable, "train_policy.py", "--config_file", str(config)], cwd=ROOT, stdout=subprocess.DEVNULL
    )
    try:
        until(lambda: hub.count("preupload") > 0)
        workers = _children(process.pid)
        assert workers
    finally:
        process.kill()
        process.wait()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))


def _children(pid):
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = path.read_text().rpartition(")")[2].split()[1]
            arguments = path.with_name("cmdline").read_bytes()
        except OSError:
            continue
        if int(parent) == pid and b"dp_prior.places" in arguments:
            found.append(int(path.parent.name))
    return found


@pytest.mark.promise("K6")
def test_the_token_reaches_nothing_but_the_header(tmp_path, hub, capfd, caplog):
    hub.fail("commit", times=1, status=500)
    hub.fail("whoami", times=1, status=401)
    train(write(tmp_path, tracker__save=[SAVER]))
    output = "".join(capfd.readouterr()) + caplog.text
    assert TOKEN not in output
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 20 and not [path for path in files if TOKEN.encode() in path.read_bytes()]
    assert not [request for request in hub.requests if TOKEN.encode() in request.body or TOKEN in request.path]
    assert not any(TOKEN.encode() in content for content in hub.files("me/tiny").values())


@pytest.mark.slow
def test_weights_alone_come_from_another_run(tmp_path, hub):
    train(write(tmp_path, train__steps=6, tracker__save=[SAVER]))
    expected = load_policy("me/tiny").state_dict()
    for name, reference in [("hub", "hf://me/tiny"), ("path", str(tmp_path / "run"))]:
        other = tmp_path / name
        other.mkdir()
        changes = {"train__init_from": reference, "seed": 5, "train__steps": 1, "train__lr": {"type": "constant"}}
        changes["train__lr"]["peak"] = 1e-9
        done = train(write(other, **changes))
        assert done.exit_code == 0
        count = len(expected)
        assert f"initialised   from {reference}: {count} of {count} tensors matched" in done.output
        found = load_policy(other / "run").state_dict()
        for key, value in expected.items():
            torch.testing.assert_close(found[key], value, atol=1e-5, rtol=1e-5)
        again = train(write(other, **{**changes, "train__steps": 2}))
        assert "initialised" not in again.output and again.exit_code == 0


def test_weights_that_do_not_fit_are_refused_with_a_list(tmp_path):
    train(write(tmp_path, train__steps=1))
    other = tmp_path / "other"
    other.mkdir()
    wider = tiny(other, train__init_from=str(tmp_path / "run"), task__backbone__hidden_dim=8)
    with pytest.raises(
        ConfigError, match=naming("train.init_from", "backbone.input.weight", "(16, 8)", "(8, 8)", "tensors")
    ):
        experiment(wider).run()


def test_export_loads_and_prints_its_hash(tmp_path):
    train(write(tmp_path, train__steps=2))
    done = command("export", tmp_path / "run", tmp_path / "out")
    assert done.exit_code == 0 and f"exported {resolve(tmp_path / 'run')} to {tmp_path / 'out'}" in done.output
    assert sorted(os.listdir(tmp_path / "out")) == ["config.json", "manifest.json", "model.safetensors", "spec.json"]
    assert load_policy(tmp_path / "out").horizon == 4
    assert command("export", tmp_path / "run", tmp_path / "all", "--whole").exit_code == 0
    assert (tmp_path / "all" / "training.safetensors").exists()
    import hashlib

    digest = hashlib.sha256((tmp_path / "out" / "manifest.json").read_bytes()).hexdigest()
    assert f"https://.../out#sha256={digest}" in done.output


def test_only_the_first_rank_has_savers_and_asks_loaders(tmp_path, hub):
    from dp_prior.tracking import TrackerConfig
    from dp_prior.tracking.tracker import Tracker

    config = TrackerConfig.from_json(
        json.dumps({"save": [SAVER], "load": {"type": "remote", "reference": "hf://me/tiny"}})
    )
    tracker = Tracker(tmp_path / "run", config)
    tracker.save(Saved(tmp_path, Progress(), {}, True, True))
    tracker.complete(tmp_path, {}, {})
    assert tracker.close() == []
    assert not hub.requests and not (tmp_path / "run").exists()


def test_a_loader_needs_a_scheme():
    from dp_prior.places.resume import RemoteResumeConfig

    with pytest.raises(ConfigError, match=naming("reference", "'me/tiny'", "hf://", "{'type': 'local'}")):
        RemoteResumeConfig.from_json('{"reference": "me/tiny"}')
