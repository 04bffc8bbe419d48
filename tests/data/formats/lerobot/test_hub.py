"""Data sets on the Hub: downloaded at one commit, which a run keeps; what goes wrong is one clear error."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

pytest.importorskip("huggingface_hub")
pytest.importorskip("pyarrow")

from dp_prior.data.embeddings.folder import FolderConfig
from dp_prior.data.errors import DataError, UnreadableError
from dp_prior.data.formats.lerobot.dataset import LeRobotStoreConfig
from dp_prior.data.recorded.mixture import MixtureConfig
from dp_prior.data.recorded.trajectories import TrajectoriesConfig
from dp_prior.embedders.hashed import HashedConfig
from dp_prior.envs.toy import demonstrations
from dp_prior.job.accelerator import make_accelerator
from dp_prior.job.ranks import Ranks
from dp_prior.run.assembly import with_local_data
from dp_prior.run.config import TrainConfig
from dp_prior.run.evaluate import evaluate_checkpoint
from dp_prior_foreign.convert import convert
from dp_prior_foreign.embed import embed_data
from tests.data.frames.recordings import pictures, write_lerobot
from tests.messages import naming, told
from tests.tiny import tiny, train, write

REPO = "me/toy"


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def toy(tmp_path, seed=3) -> dict[str, bytes]:
    """The toy's demonstrations as a LeRobot data set."""
    np.savez(tmp_path / "toy.npz", **demonstrations(4, seed=seed))
    shutil.rmtree(tmp_path / "toy", ignore_errors=True)
    convert(tmp_path / "toy.npz", tmp_path / "toy", "lerobot", fps=10)
    return files(tmp_path / "toy")


def publish(hub, contents: dict[str, bytes]) -> str:
    """A further commit of the data set; returns it."""
    if REPO not in hub.repos:
        return hub.create(REPO, files=contents).head
    return hub.repos[REPO].commit({path: (content, False) for path, content in contents.items()}, "another one")


def record(**changes) -> LeRobotStoreConfig:
    return LeRobotStoreConfig.model_validate({"repo": REPO, **changes})


def test_a_repository_gives_what_its_directory_gives_and_is_downloaded_once(hub, tmp_path):
    commit = publish(hub, {**toy(tmp_path), "README.md": b"not needed", "videos/front/chunk-000/file-000.mp4": b"x"})
    found, expected = record().create(), LeRobotStoreConfig(path=tmp_path / "toy").create()
    assert found.path.name == commit and found.keys() == expected.keys()
    assert all(np.array_equal(found.read(key), expected.read(key)) for key in ("state", "action"))
    asked = {request.path.partition(commit)[2] for request in hub.requests if request.kind == "resolve"}
    assert asked == {f"/{path}" for path in files(tmp_path / "toy")}  # neither the page nor a video
    record().create()
    assert len([one for one in hub.requests if one.kind == "resolve" and one.method == "GET"]) == len(asked)


def test_only_the_videos_of_the_cameras_that_are_read_are_downloaded(hub, tmp_path):
    pytest.importorskip("av")
    write_lerobot(tmp_path / "d", pictures(14), [5, 1, 8], "v3.0", "video")
    contents = files(tmp_path / "d")
    (video,) = (path for path in contents if path.endswith(".mp4"))
    key = video.split("/")[1]
    hub.create(REPO, files={**contents, video.replace(key, "other"): b"x"})
    data = {
        "episodes": {"type": "lerobot", "repo": REPO}, "action": {"key": "action"},
        "images": {"front": {"key": key, "size": [12, 16]}},
    }  # fmt: skip
    for config in (TrajectoriesConfig, MixtureConfig):
        given = {"sets": {"one": data}} if config is MixtureConfig else data
        found = config.from_json(json.dumps(given)).create(4, 2, 2)
        assert not any("/other/" in request.path for request in hub.requests)
        (place,) = found.cache_directories()
        assert str(place).startswith(str(Path("~/.cache").expanduser()))  # not among the files of the Hub's client


def configuration(tmp_path, **changes):
    where = {"type": "lerobot", "repo": REPO, **changes}
    return write(tmp_path, data__episodes=where, train__steps=4, tracker__data_path=str(tmp_path / "run"))


def stored(run: Path) -> dict:
    return json.loads((run / "config.json").read_text())["data"]["episodes"]


@pytest.mark.slow
def test_a_run_keeps_the_commit_that_it_began_with_and_evaluate_measures_on_it(hub, tmp_path):
    first = publish(hub, toy(tmp_path))
    config = configuration(tmp_path)
    done = train(config)
    assert done.exit_code == 0, done.output
    assert stored(tmp_path / "run") == {
        "type": "lerobot",
        "path": None,
        "repo": REPO,
        "folder": None,
        "revision": first,
    }
    publish(hub, toy(tmp_path, seed=4))
    hub.requests.clear()
    more = train(config, "--set", "train.steps=6")
    assert more.exit_code == 0 and stored(tmp_path / "run")["revision"] == first
    for name, now, before in evaluate_checkpoint(str(tmp_path / "run")):
        assert now == before, name
    assert all("/resolve/" not in one.path or first in one.path for one in hub.requests)
    newest = train(config, "--set", "train.steps=8", "--set", "data.episodes.revision=main")
    assert newest.exit_code != 0 and "data.fingerprint" in newest.output


def test_a_check_reads_the_commit_of_its_run_and_the_newest_before_there_is_one(hub, tmp_path):
    first = publish(hub, toy(tmp_path))
    config = configuration(tmp_path)
    checked = train(config, "--check")
    assert checked.exit_code == 0 and told(checked.output, "checked", "one load"), checked.output
    assert train(config).exit_code == 0
    publish(hub, toy(tmp_path, seed=4))
    again = train(config, "--set", "train.steps=6", "--check")
    assert again.exit_code == 0 and "revision" not in again.output, again.output
    assert stored(tmp_path / "run")["revision"] == first
    named = train(config, "--set", "data.episodes.revision=main", "--check")
    assert named.exit_code != 0 and "data.fingerprint" in named.output


def test_without_network_a_cached_copy_is_used_and_without_one_the_error_says_so(hub, tmp_path, monkeypatch):
    publish(hub, toy(tmp_path))
    config = configuration(tmp_path)
    with monkeypatch.context() as offline:
        offline.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        with pytest.raises(UnreadableError, match=naming("https://huggingface.co/datasets/me/toy", "path")):
            record().create()
    assert train(config).exit_code == 0
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    hub.requests.clear()
    done = train(config, "--set", "train.steps=6")
    assert done.exit_code == 0 and not hub.requests, done.output


def test_a_connection_that_breaks_is_like_no_network(hub, tmp_path):
    publish(hub, toy(tmp_path))
    hub.fail("any", reset=True, times=10_000)
    with pytest.raises(UnreadableError, match=naming("https://huggingface.co/datasets/me/toy", "path")):
        record().create()
    hub.heal()
    found = record().create()
    hub.fail("any", reset=True, times=10_000)
    assert record().create().path == found.path


@pytest.mark.parametrize(
    ("change", "fault", "error", "problem"),
    [
        ({"repo": "me/nothing"}, None, DataError, ("me/nothing: 1 problem", "Hub")),
        ({"repo": "no name"}, None, DataError, ("no name: 1 problem", "Hub")),
        ({"revision": "v9"}, None, DataError, ("data.episodes.revision",)),
        ({}, {"status": 403, "headers": {"X-Error-Code": "GatedRepo"}}, DataError, ("gated", "accept")),
    ],
)  # fmt: skip
def test_what_cannot_be_downloaded_is_one_clear_error(hub, tmp_path, change, fault, error, problem):
    publish(hub, toy(tmp_path))
    if fault is not None:
        hub.fail("any", times=10_000, **fault)
    with pytest.raises(error) as caught:
        record(**change).create()
    assert told(str(caught.value), *problem)


def test_a_cache_that_cannot_be_written_is_told_with_the_data_set(hub, tmp_path):
    publish(hub, toy(tmp_path))
    (tmp_path / "hf_home").write_text("a file in the way")
    with pytest.raises(UnreadableError, match=naming(REPO.partition("/")[2], tmp_path / "hf_home")):
        record().create()


def test_a_data_set_of_another_version_names_the_known_ones(hub, tmp_path):
    contents = toy(tmp_path)
    info = json.loads(contents["meta/info.json"]) | {"codebase_version": "v1.6"}
    publish(hub, contents | {"meta/info.json": json.dumps(info).encode()})
    with pytest.raises(DataError, match=naming("meta/info.json", "'v1.6'", "v2.0", "v2.1", "v3.0")):
        record().create()


def test_a_data_set_is_either_a_directory_or_a_repository():
    for given in ({}, {"path": "d", "repo": REPO}, {"path": "d", "revision": "main"}):
        with pytest.raises(ValidationError, match=naming("repo")):
            LeRobotStoreConfig.model_validate(given)


def test_a_data_set_in_a_folder_of_a_repository_is_read_and_nothing_else_is_downloaded(hub, tmp_path):
    contents = toy(tmp_path)
    publish(hub, {f"robots/left/{path}": content for path, content in contents.items()} | {"robots/right/data/x": b"x"})
    found = record(folder="robots/left").create()
    assert found.keys() == LeRobotStoreConfig(path=next((tmp_path).glob("*/meta")).parent).create().keys()
    assert not any("robots/right" in request.path for request in hub.requests if request.kind == "resolve")
    for wrong, remedy in (
        ({"repo": f"{REPO}/robots/left"}, f'"repo": "{REPO}", "folder": "robots/left"'),
        ({"folder": "../x"}, "'../x'"),
        ({"repo": None, "path": "d", "folder": "x"}, "folder"),
    ):
        with pytest.raises(ValueError, match=naming("repo" if "repo" in wrong else "folder", remedy)):
            record(**wrong)


@pytest.mark.slow
def test_sets_of_a_mixture_are_downloaded_each_at_its_commit(hub, tmp_path):
    first = publish(hub, toy(tmp_path))
    keys = tiny(tmp_path)["data"]
    one = {"episodes": {"type": "lerobot", "repo": REPO}, "obs": keys["obs"], "action": keys["action"]}
    data = {"type": "mixture", "sets": {"a": one, "b": one}, "split": keys["split"], "batch_size": 8}
    config = write(tmp_path, data=data, train__steps=4, evaluate=[])
    assert train(config).exit_code == 0
    publish(hub, toy(tmp_path, seed=5))
    assert train(config, "--set", "train.steps=5").exit_code == 0
    sets = json.loads((tmp_path / "run" / "config.json").read_text())["data"]["sets"]
    assert {each["episodes"]["revision"] for each in sets.values()} == {first}


def test_a_set_without_a_revision_takes_the_newest_commit_beside_one_that_names_an_older_one(hub, tmp_path):
    first, newest = publish(hub, toy(tmp_path)), publish(hub, toy(tmp_path, seed=5))
    one, keys = {"type": "lerobot", "repo": REPO}, tiny(tmp_path)["data"]
    episodes = {"new": one, "old": {**one, "revision": first}}
    sets = {name: {"episodes": each, "obs": keys["obs"], "action": keys["action"]} for name, each in episodes.items()}
    config = TrainConfig.from_json(json.dumps(tiny(tmp_path, data={"type": "mixture", "sets": sets})))
    for _ in ("a first start", "a later one"):
        local = with_local_data(config, Ranks(make_accelerator("fp32")))
        assert {name: each.episodes.revision for name, each in local.data.sets.items()} == {"new": newest, "old": first}
        (tmp_path / "run").mkdir(exist_ok=True)
        (tmp_path / "run/config.json").write_text(local.to_json())


def test_frames_of_a_repository_are_embedded(hub, tmp_path, monkeypatch):
    pytest.importorskip("av")
    write_lerobot(tmp_path / "d", pictures(14), [5, 1, 8], "v3.0", "video")
    contents = files(tmp_path / "d")
    hub.create(REPO, files=contents)
    key = next(path for path in contents if path.endswith(".mp4")).split("/")[1]
    monkeypatch.setattr("dp_prior_foreign.embed.embedder_of", lambda model: FirstPixel())
    found = []
    for name, episodes in (("hub", {"repo": REPO}), ("disk", {"path": str(tmp_path / "d")})):
        data = {
            "episodes": {"type": "lerobot", **episodes}, "obs": {}, "action": {"key": "action"},
            "images": {"front": {"key": key, "size": [12, 16]}},
        }  # fmt: skip
        config = write(tmp_path, data=data, task__encoders={}, evaluate=[])
        assert embed_data("first pixel", tmp_path / name, config, (), "front", lambda line: None)
        found.append(FolderConfig(path=str(tmp_path / name), format="parquet").create())
    assert found[0].count == found[1].count == 14
    assert np.array_equal(*(folder.rows.read(0, 14) for folder in found))


class FirstPixel(HashedConfig):
    """Embeds a frame as the colour of its first pixel."""

    def create(self):
        return self

    def frames(self, frames):
        values = frames[:, 0, 0].astype(np.float32) + 1
        return values / np.linalg.norm(values, axis=1, keepdims=True)
