"""Of a data set on the Hub only the files of the chosen episodes are downloaded; they give what the whole set gives."""

import json
import shutil
from fnmatch import fnmatch
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
import torch

pytest.importorskip("huggingface_hub")
pytest.importorskip("pyarrow")
pytest.importorskip("av")

from dp_prior.data.errors import DataError
from dp_prior.data.formats.lerobot.hub import _patterns
from dp_prior.data.recorded.trajectories import TrajectoriesConfig
from dp_prior_foreign.convert import convert
from tests.data.frames.recordings import KEY, pictures, write_lerobot
from tests.messages import naming, told
from tests.tiny import train, write

REPO, LENGTHS = "me/toy", [5, 3, 8, 4]


@pytest.fixture(params=["v2.1", "v3.0"])
def recorded(request, tmp_path, monkeypatch):
    """Four episodes with a camera, each in files of its own."""
    folder = write_lerobot(tmp_path / "v2.1", pictures(20, 64, 64), LENGTHS, "v2.1", "video")
    if request.param == "v3.0":
        monkeypatch.setattr("dp_prior_foreign.writers.lerobot_writer.FILE_BYTES", 1)
        monkeypatch.setattr("dp_prior_foreign.writers.camera_videos.VIDEO_BYTES", 0)
        convert(folder, tmp_path / "v3.0", "lerobot")
    return tmp_path / request.param


def publish(hub, folder: Path, inside: str = "") -> None:
    contents = {
        f"{inside}{path.relative_to(folder).as_posix()}": path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
    hub.create(REPO, files={**contents, f"{inside}{KEY}/other.mp4": b"x", f"{inside}data/other.bin": b"x"})


def asked(hub) -> set[str]:
    """Names of the files that were requested, but for the metadata."""
    names = {unquote(one.path).split("/resolve/")[1].partition("/")[2] for one in hub.requests if one.kind == "resolve"}
    return {name for name in names if not name.startswith("meta/") and "/meta/" not in name}


def config(episodes: dict, key: str = KEY, **choice) -> TrajectoriesConfig:
    data = {
        "episodes": {"type": "lerobot", **episodes}, "action": {"key": "action"}, "choice": choice,
        "images": {"front": {"key": key, "size": [12, 16]}},
    }  # fmt: skip
    return TrajectoriesConfig.from_json(json.dumps(data))


def files_of(folder: Path, episodes) -> set[str]:
    """The parquet file and the video of each episode."""
    found = [sorted(folder.glob(pattern)) for pattern in ("data/**/*.parquet", "videos/**/*.mp4")]
    assert [len(each) for each in found] == [len(LENGTHS)] * 2
    return {each[episode].relative_to(folder).as_posix() for each in found for episode in episodes}


@pytest.mark.parametrize("choice", [{"only": [1, 3]}, {"leave_out": ["0-1"]}], ids=str)
def test_files_of_other_episodes_stay_on_the_hub(choice, recorded, hub):
    publish(hub, recorded)
    found, whole = config({"repo": REPO}, **choice), config({"path": str(recorded)}, **choice)
    data, expected = found.create(4, 2, 2), whole.create(4, 2, 2)
    assert asked(hub) == files_of(recorded, [1, 3] if "only" in choice else [2, 3])
    assert data.fingerprint == expected.fingerprint
    data.build_caches(lambda line: None, lambda: None)
    expected.build_caches(lambda line: None, lambda: None)
    rows = torch.arange(len(data.train))
    for name, values in data.train.fetch(rows).cond.items():
        assert (values == expected.train.fetch(rows).cond[name]).all()


def test_a_choice_by_a_column_needs_all_columns_but_no_other_video(recorded, hub):
    publish(hub, recorded)
    data = config({"repo": REPO}, where={"action": 15.0}).create(4, 2, 2)
    assert data.split_ids["train"] == [2]
    columns = {path.relative_to(recorded).as_posix() for path in recorded.glob("data/**/*.parquet")}
    assert asked(hub) == columns | files_of(recorded, [2]) | {"data/other.bin"}


@pytest.mark.parametrize("digits", [3, 6])
def test_patterns_are_few_and_match_what_is_needed_and_nothing_else(digits):
    every = [f"{place}-{number:0{digits}d}.mp4" for place in ("a/file", "b/file") for number in range(345)]
    chosen = np.random.default_rng(0).random(345) < 0.1
    chosen[100:230] = True
    needed = {name: bool(chosen[int(name[-4 - digits : -4])]) for name in every}
    patterns = _patterns(needed)
    matched = [name for name in every if any(fnmatch(name, pattern) for pattern in patterns)]
    assert matched == [name for name in every if needed[name]]
    assert len(patterns) < sum(needed.values()) / 4
    assert len(_patterns(dict.fromkeys(every, True))) <= 20


def test_metadata_that_name_another_folder_are_followed_by_name(tmp_path, hub):
    folder = write_lerobot(tmp_path / "v2.1", pictures(20, 64, 64), LENGTHS, "v2.1", "video")
    info = json.loads((folder / "meta/info.json").read_text())
    info |= {name: info[name].replace("chunk-", "part-") for name in ("data_path", "video_path")}
    (folder / "meta/info.json").write_text(json.dumps(info))
    publish(hub, folder)
    config({"repo": REPO}, only=[2]).create(4, 2, 2)
    assert asked(hub) == files_of(folder, [2])


@pytest.mark.parametrize("choice", [{"only": [2]}, {}], ids=str)
def test_names_with_signs_of_patterns_are_taken_literally(choice, tmp_path, hub):
    """fnmatch reads `[left]` as one of four letters, so that nothing in the folder would be downloaded."""
    folder, inside, key = tmp_path / "v2.1", "robots [left]/grün/", "top [0]"
    write_lerobot(folder, pictures(20, 64, 64), LENGTHS, "v2.1", "video")
    info = (folder / "meta/info.json").read_text()
    (folder / "meta/info.json").write_text(info.replace(f'"{KEY}"', f'"{key}"'))
    (folder / "videos/chunk-000" / KEY).rename(folder / "videos/chunk-000" / key)
    publish(hub, folder, inside)
    data = config({"repo": REPO, "folder": f"./{inside}"}, key, **choice).create(4, 2, 2)
    data.build_caches(lambda line: None, lambda: None)
    expected = {f"{inside}{name}" for name in files_of(folder, [2] if choice else range(4))}
    assert asked(hub) == expected | (set() if choice else {f"{inside}data/other.bin"})


def test_a_folder_without_a_data_set_is_named_with_its_setting(recorded, hub):
    publish(hub, recorded)
    with pytest.raises(DataError, match=naming(REPO, "robots/left/meta/info.json", "data.episodes.folder")):
        config({"repo": REPO, "folder": "robots/left"}, only=[1]).create(4, 2, 2)


def test_an_episode_that_does_not_exist_is_told_before_anything_else_is_downloaded(recorded, hub):
    publish(hub, recorded)
    with pytest.raises(DataError, match=naming("choice.only", 9, "0 to 3")):
        config({"repo": REPO}, only=[9]).create(4, 2, 2)
    assert asked(hub) == set()


def test_an_unknown_camera_is_told_as_of_the_whole_data_set(recorded, hub):
    publish(hub, recorded)
    one = config({"repo": REPO}, only=[1])
    unknown = one.model_copy(update={"images": {"front": one.images["front"].model_copy(update={"key": "none"})}})
    with pytest.raises(DataError, match=naming("'none'")):
        unknown.create(4, 2, 2)


def test_the_manifest_names_what_was_read_and_not_what_else_is_in_the_cache(recorded, hub):
    """Else a run would miss these files once the cache was emptied."""
    publish(hub, recorded)
    config({"repo": REPO}).create(4, 2, 2)
    data = config({"repo": REPO}, only=[1, 2]).create(4, 2, 2)
    columns = {file.name for file in data.files if "meta" not in file.parts}
    assert columns == {Path(name).name for name in files_of(recorded, [1, 2]) if name.endswith((".parquet", ".mp4"))}


@pytest.mark.slow
def test_a_run_goes_on_with_more_episodes_allowed_and_without_network(recorded, hub, tmp_path, monkeypatch):
    publish(hub, recorded)
    data = config({"repo": REPO}, only=[1, 2, 3]).model_dump(mode="json") | {"verify": "hashes", "batch_size": 4}
    encoders = {"front": {"type": "resnet", "width": 16, "blocks": [1, 1], "stem": "patch", "pool": "mean"}}
    path = write(tmp_path, data=data, train__steps=2, evaluate=[], task__encoders=encoders)
    assert (done := train(path)).exit_code == 0, done.output
    noted = json.loads((tmp_path / "run/data_manifest.json").read_text())["files"]
    assert sum(name.endswith(".parquet") and name.startswith("data") for name in noted) == 3
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert (done := train(path, "--set", "train.steps=4")).exit_code == 0, done.output
    more = train(path, "--set", "train.steps=6", "--set", "data.choice.only=[0,1,2,3]")
    assert more.exit_code != 0 and told(more.output, REPO), more.output
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    shutil.rmtree(tmp_path / "run")
    assert (done := train(path, "--set", "data.choice.only=[0,1,2,3]")).exit_code == 0, done.output
