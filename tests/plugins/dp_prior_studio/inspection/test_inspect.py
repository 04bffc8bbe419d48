"""Any data set that can be read is shown: by path, by configuration, from the Hub's layout, however large."""

import base64
import io
import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from dp_prior.cli import main
from dp_prior.config import ConfigError
from dp_prior.data.embeddings.written import EmbeddingsRecord
from dp_prior.data.errors import DataError
from dp_prior.data.formats import table_file
from dp_prior.data.recorded.trajectories import TrajectoriesConfig
from dp_prior.embedders.hashed import HashedConfig
from dp_prior.run.config import TrainConfig
from dp_prior.tracking.jsonl import read_rows
from dp_prior_foreign.convert import convert
from dp_prior_foreign.writers.embeddings_writer import Job, write_embeddings
from dp_prior_studio.inspection import roles as naming_of_keys
from dp_prior_studio.inspection import survey as surveying
from dp_prior_studio.inspection.inspect import inspect, next_command, write_config
from dp_prior_studio.pages.data_page import summary, write_inspection
from tests import forks
from tests.data.frames.recordings import KEY, pictures, write_lerobot
from tests.messages import naming, told, told_each
from tests.plugins.dp_prior_studio.inspection.recordings import clean, write_npz
from tests.plugins.dp_prior_studio.pages.test_report import Outline
from tests.tiny import tiny

RECORDED = Path(__file__).parents[5] / "shared" / "data"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The same episodes, with a camera, in every format."""
    place = tmp_path_factory.mktemp("made")
    pixels = np.random.default_rng(0)
    episodes = clean(6)
    for episode in episodes:
        episode["camera"] = pixels.integers(0, 255, (len(episode["action"]), 12, 16, 3), dtype=np.uint8)
        del episode["timestamp"]
    write_npz(place / "data.npz", episodes)
    convert(place / "data.npz", place / "data.zarr", "zarr")
    convert(place / "data.npz", place / "lerobot", "lerobot", fps=10.0)
    return place, episodes


@pytest.fixture
def data(made, request):
    """The path of the data set that a test's `name` gives."""
    place, episodes = made
    path = place / request.param
    if path.suffix == ".hdf5" and not path.exists():
        h5py = pytest.importorskip("h5py", reason="the extra hdf5 is not installed")
        with h5py.File(path, "w") as file:
            for number, episode in enumerate(episodes):
                demonstration = file.create_group(f"data/demo_{number}")
                demonstration["actions"], demonstration["obs/state"] = episode["action"], episode["state"]
    return path


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")
@pytest.mark.parametrize("ends", [(1.0, np.nextafter(np.float32(1), np.float32(2))), (-3.4e38, 3.4e38), (1e-45, 0.0)])
def test_numbers_of_any_spread_have_a_histogram(tmp_path, ends):
    episodes = clean(3)
    for episode in episodes:
        episode["state"] = np.resize(np.array(ends, np.float32), (len(episode["action"]), 1))
        episode["no_state"] = np.zeros((len(episode["action"]), 0), np.float32)
    found = inspect(str(write_npz(tmp_path / "data.npz", episodes)))
    page = write_inspection(found, tmp_path / "page.html", "a title").read_text(encoding="utf-8")
    assert f"M0 20v-20h3v20zM{4 * 31} 20v-20h3v20z" in page, "half of the values at each end"


@pytest.mark.parametrize("data", ["data.npz", "data.zarr", "lerobot", "data.hdf5"], indirect=True)
def test_every_format_is_read_by_its_path(data, tmp_path):
    (found,) = inspect(str(data))
    seen = found.survey
    assert found.findings == [] and len(seen.lengths) == 6
    assert {signal.role: signal.values.shape[1] for signal in seen.signals} == {"observation": 3, "action": 2}
    if data.suffix != ".hdf5":
        assert [strip.episode for strip in found.strips][0] == 0 and found.strips[0].stills.shape[1:] == (12, 16, 3)
        assert any(told(line, "camera", found.strips[0].camera, "12 x 16") for line in summary([found]))
    page = write_inspection([found], tmp_path / "page.html", data.name).read_text(encoding="utf-8")
    outline = Outline(page)
    kinds = {address.partition(";")[0] for address in outline.addresses}
    assert kinds == ({"data:image/jpeg", "data:video/mp4"} if found.strips else set())
    state = seen.of("observation")[0].values
    assert f"{state[:, 0].min():.4g}" in outline.texts and f"{state[:, 2].max():.4g}" in outline.texts


@pytest.mark.parametrize(
    ("length", "stride"), [(250, 3), *(pytest.param(*clip, marks=pytest.mark.slow) for clip in ((60, 1), (600, 4)))]
)
def test_a_clip_shows_a_camera_at_the_speed_of_the_recording(length, stride, tmp_path):
    av = pytest.importorskip("av", reason="NOT CHECKED: the video extra is not installed")
    episodes = [{key: values[:length] for key, values in episode.items()} for episode in clean(2, times=9)]
    for episode in episodes:
        levels = np.arange(length).astype(np.uint8)[:, None, None, None]
        episode["camera"] = np.tile(levels, (1, 16, 16, 3))
        del episode["timestamp"]
    write_npz(tmp_path / "data.npz", episodes)
    convert(tmp_path / "data.npz", tmp_path / "lerobot", "lerobot", fps=30.0)
    (found,) = inspect(str(tmp_path / "lerobot"))
    first = found.strips[0]
    assert first.stride == stride
    page = write_inspection([found], tmp_path / "page.html", "set").read_text(encoding="utf-8")
    (source,) = [address for address in Outline(page).addresses if address.startswith("data:video/mp4;base64,")]
    with av.open(io.BytesIO(base64.b64decode(source.partition(",")[2]))) as video:
        assert float(video.streams.video[0].average_rate) == pytest.approx(30 / stride)
        shown = np.array([frame.to_ndarray(format="rgb24").mean() for frame in video.decode(video=0)])
    expected = np.arange(0, min(length, 400), stride) % 256
    assert len(shown) == len(expected) <= 100 and np.abs(shown - expected).max() < 6


def test_without_pyav_the_page_says_so_and_has_no_clip(made, tmp_path, monkeypatch):
    (found,) = inspect(str(made[0] / "data.npz"))
    monkeypatch.setitem(sys.modules, "av", None)
    page = write_inspection([found], tmp_path / "page.html", "set").read_text(encoding="utf-8")
    assert 'clips need PyAV: pip install "dp_prior[video]"' in Outline(page).texts and "<video" not in page


@pytest.mark.parametrize("data", ["data.npz", "data.zarr", "lerobot", "data.hdf5"], indirect=True)
def test_a_large_data_set_is_sampled_by_whole_episodes(data, monkeypatch):
    whole = inspect(str(data))[0].survey
    monkeypatch.setattr(surveying, "MOST_EPISODES", 3)
    part = inspect(str(data))[0].survey
    assert part.episodes.tolist() == [0, 2, 4] and len(part.lengths) == 6
    for one, other in zip(part.signals, whole.signals, strict=True):
        begins = whole.bounds
        expected = [other.values[begins[number] : begins[number + 1]] for number in (0, 2, 4)]
        assert np.array_equal(one.values, np.concatenate(expected))
    assert part.place(int(part.bounds[1])) == (2, 0)


def test_a_data_set_on_the_hub_is_read_by_its_name(made, hub):
    files = {path.relative_to(made[0] / "lerobot").as_posix(): path for path in (made[0] / "lerobot").rglob("*.*")}
    hub.create("me/points", files={name: path.read_bytes() for name, path in files.items()})
    (found,) = inspect("me/points")
    (local,) = inspect(str(made[0] / "lerobot"))
    assert found.data["episodes"] == {"type": "lerobot", "repo": "me/points"}
    assert found.data["obs"] == local.data["obs"] and len(found.strips) == len(local.strips) > 0
    for one, other in zip(found.survey.signals, local.survey.signals, strict=True):
        assert np.array_equal(one.values, other.values)


def test_sampling_is_said_and_bounded(made, monkeypatch):
    monkeypatch.setattr(surveying, "MOST_NUMBERS", 1000)
    result = CliRunner().invoke(main, ["inspect", str(made[0] / "data.npz")])
    assert result.exit_code == 0 and told(result.output, "2 evenly")


def test_names_and_texts_are_escaped(tmp_path):
    episodes = clean(3)
    evil = "<script>alert(1)</script>"
    for episode in episodes:
        episode[f"obs.{evil}"] = episode.pop("state")
        episode["action"][3, 0] = np.nan
    place = tmp_path / "<img src=x onerror=y>.npz"
    write_npz(place, episodes)
    found = inspect(str(place))
    assert found[0].findings[0].severity == "error"
    page = write_inspection(found, tmp_path / "page.html", place.name).read_text(encoding="utf-8")
    outline = Outline(page)
    assert "<script>" not in page and "<img" not in page and outline.addresses == []
    assert place.name in outline.texts and any(evil in text for text in outline.texts)


def test_an_action_of_one_number_without_an_axis_is_an_action(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "data.npz", state=rng.normal(size=(60, 3)), action=rng.normal(size=60), episode_ends=[30, 60])
    write_config(inspect(str(tmp_path / "data.npz")), tmp_path / "first.json")
    assert TrainConfig.from_json_path(tmp_path / "first.json").data.action.key == "action"


@pytest.mark.parametrize(
    ("setting", "action", "observed"),
    [
        ("data.action.key=cmd", {"key": "cmd"}, ["state"]),
        ('data.action.key=["grip", "cmd"]', {"key": ["grip", "cmd"]}, ["state"]),
        ('data.action={"key": "state", "ahead": 1}', {"key": "state", "ahead": 1}, ["state"]),
    ],
)
def test_an_action_of_another_name_is_given_to_the_first_look(setting, action, observed, tmp_path):
    arrays = {"state": (60, 3), "cmd": (60, 2), "grip": (60,)}
    random = np.random.default_rng(0)
    made = {key: random.normal(size=shape) for key, shape in arrays.items()}
    np.savez(tmp_path / "data.npz", **made, episode_ends=[30, 60])
    place, path = str(tmp_path / "data.npz"), tmp_path / "first.json"
    result = CliRunner().invoke(main, ["inspect", place, "--set", setting, "--write-config", str(path)])
    assert result.exit_code == 0, result.output
    data = json.loads(path.read_text())["data"]
    assert (data["action"], list(data["obs"])) == (action, observed)
    TrainConfig.from_json_path(path)
    with pytest.raises(ConfigError, match=naming("--set data.batch_size=3", place, "data.action", "--write-config")):
        inspect(place, ["data.batch_size=3"])


def test_a_folder_with_a_file_in_each_episode_is_read_without_a_configuration(tmp_path):
    for name in ("day_1", "day_2"):
        (tmp_path / "mine" / name).mkdir(parents=True)
        np.savez(tmp_path / "mine" / name / "trajectory.npz", action=np.zeros((30, 2)), state=np.ones((30, 3)))
    found = inspect(str(tmp_path / "mine"))
    write_config(found, tmp_path / "first.json")
    episodes = TrainConfig.from_json_path(tmp_path / "first.json").data.episodes
    assert episodes.type == "episode_files" and len(episodes.create().episode_ends) == 2


def test_robomimic_observations_come_before_the_states_of_its_simulator():
    shapes = {"actions": (7,), "dones": (), "states": (45,), "obs/object": (14,), "obs/robot0_eef_pos": (3,)}
    roles = naming_of_keys.roles_of(shapes | {"next_obs/object": (14,), "next_obs/robot0_eef_pos": (3,)})
    assert [key for key, role in roles.items() if role == "observation"] == ["obs/object", "obs/robot0_eef_pos"]


@pytest.mark.parametrize("data", ["data.npz", pytest.param("lerobot", marks=pytest.mark.slow)], indirect=True)
def test_the_proposed_configuration_passes_its_check(data, tmp_path):
    path = tmp_path / "first.json"
    result = CliRunner().invoke(main, ["inspect", str(data), "--write-config", str(path)])
    assert result.exit_code == 0, result.output
    config = json.loads(path.read_text())
    assert config["data"]["images"]["camera"]["size"] == [12, 16]
    assert config["task"]["diffusion"]["draws"] == 4 and config["train"]["optimizer"] == {"type": "muon"}
    small = ["task.backbone.down_dims=[16]"]
    config["task"].pop("encoders"), config["data"].pop("images")  # a camera's network takes seconds
    path.write_text(json.dumps(config))
    arguments = [f"--set={one}" for one in [*small, f"tracker.data_path={tmp_path}/run"]]
    result = CliRunner().invoke(main, ["train", "--config_file", str(path), "--check", *arguments])
    assert result.exit_code == 0, result.output
    assert "one step" in result.output and "epochs: each" not in result.output and "warmup" not in result.output


def test_a_configuration_is_written_once_and_only_for_data_that_can_be_trained_on(made, tmp_path):
    found = inspect(str(made[0] / "data.npz"))
    write_config(found, tmp_path / "a.json")
    with pytest.raises(FileExistsError, match=naming("a.json")):
        write_config(found, tmp_path / "a.json")
    with pytest.raises(ConfigError, match=naming("--write-config", "configuration")):
        write_config([*found, *found], tmp_path / "b.json")
    (tmp_path / "данные").mkdir()
    write_config(inspect(str(write_npz(tmp_path / "данные" / "d.npz", clean(4)))), tmp_path / "c.json")
    assert "данные/d.npz" in (tmp_path / "c.json").read_text(encoding="utf-8")
    episodes = [{"action": episode["action"]} for episode in clean(2)]
    with pytest.raises(ConfigError, match=naming("only.npz", "data.obs", "docs/data.md")):
        write_config(inspect(str(write_npz(tmp_path / "only.npz", episodes))), tmp_path / "b.json")
    episodes = clean(2)
    episodes[1]["state"][4] = np.inf
    with pytest.raises(DataError, match=naming("state", "1 steps", "episode 1", "frame 4")):
        write_config(inspect(str(write_npz(tmp_path / "bad.npz", episodes))), tmp_path / "b.json")
    assert not (tmp_path / "b.json").exists()


@pytest.mark.parametrize(("value", "code"), [(0.5, 0), (np.inf, 65)])
def test_the_exit_code_says_whether_it_can_be_trained_on(value, code, tmp_path):
    episodes = clean(2)
    episodes[1]["state"][4] = value
    done = CliRunner().invoke(main, ["inspect", str(write_npz(tmp_path / "data.npz", episodes))])
    assert done.exit_code == code and ("error  " in done.output) == bool(code)


def test_of_one_episode_nothing_is_held_out(tmp_path):
    place, path = write_npz(tmp_path / "one.npz", clean(1)), tmp_path / "a.json"
    write_config(inspect(str(place)), path)
    evaluate = json.loads(path.read_text())["evaluate"]
    assert [(one.get("name"), one["split"]) for one in evaluate] == [("training", "train"), (None, "train")]
    small = [
        "task.backbone.down_dims=[16]",
        "train.samples=8",
        "data.global_batch_size=4",
        "tracker.report=false",
        f"tracker.data_path={tmp_path}/run",
    ]
    arguments = [f"--set={one}" for one in small]
    result = CliRunner().invoke(main, ["train", "--config_file", str(path), *arguments])
    assert result.exit_code == 0, result.output
    last = read_rows(tmp_path / "run")[-1]
    assert {"training/ema/loss", "action_error/ema/lower_quartile[steps=8]"} <= last.keys()


def test_the_proposed_batch_is_no_larger_than_a_short_episode_that_is_trained_on(tmp_path):
    episodes = [clean(1, times=20)[0], clean(1)[0]]
    write_config(inspect(str(write_npz(tmp_path / "two.npz", episodes))), tmp_path / "a.json")
    data = TrainConfig.from_json_path(tmp_path / "a.json").data
    assert data.split.divide(np.arange(2)).train == [1] and data.batch_size <= len(data.create(16, 2, 8).train) < 256


def test_a_table_is_read_once_to_recognise_it_and_once_for_its_rows(tmp_path, monkeypatch):
    for number in range(2):
        lines = [f"{row},{row % 7}" for row in range(30 + number)]
        (tmp_path / f"{number}.csv").write_text("\n".join(["state,action", *lines]) + "\n")
    read, csv_of = [], table_file._csv
    monkeypatch.setattr(table_file, "_csv", lambda path: read.append(path.name) or csv_of(path))
    inspect(str(tmp_path))
    assert sorted(read) == ["0.csv", "0.csv", "1.csv"]


def test_a_configuration_names_what_is_shown(tmp_path):
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(tiny(tmp_path, task__normalizer={"goal": {"type": "gaussian"}})))
    (found,) = inspect(str(path))
    assert [(signal.name, signal.role, signal.values.shape[1]) for signal in found.survey.signals] == [
        ("agent_pos", "observation", 2), ("goal", "observation", 2), ("action", "action", 2),
    ]  # fmt: skip
    assert {name: mode.type for name, mode in found.normalizers.items()} == {
        "agent_pos": "limits", "goal": "gaussian", "action": "limits",
    }  # fmt: skip
    assert found.data["obs"]["goal"] == {"key": "state", "slice": [2, 4]}


def test_only_the_rows_that_a_configuration_uses_are_looked_at(tmp_path):
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(tiny(tmp_path, data__split={"max_rows": 1})))
    (found,) = inspect(str(path))
    assert len(found.survey.lengths) == 1 < len(found.survey.chosen.recorded)
    assert "by data.choice or data.split.max_rows" in "\n".join(summary([found]))


def test_every_set_of_a_mixture_is_shown(made, tmp_path):
    config = tiny(tmp_path)
    one = {"obs": {"state": {"key": "state"}}, "action": {"key": "action"}}
    sets = {
        "arm": {"episodes": {"type": "npz", "path": str(made[0] / "data.npz")}, **one},
        "sim": {"episodes": {"type": "lerobot", "path": str(made[0] / "lerobot")}, **one},
    }
    path = tmp_path / "mixture.json"
    path.write_text(json.dumps(config | {"data": {"type": "mixture", "sets": sets}}))
    result = CliRunner().invoke(main, ["inspect", str(path), "--html", str(tmp_path / "page.html")])
    assert result.exit_code == 0, result.output
    texts = Outline((tmp_path / "page.html").read_text(encoding="utf-8")).texts
    assert {"arm: episodes", "sim: episodes", "arm: action: action", "sim: observation: state"} <= set(texts)


def test_instructions_are_counted_and_compared(made, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    place = tmp_path / "told"
    shutil.copytree(made[0] / "lerobot", place)
    texts = ["Push it left.", "push it  left", "<b>right</b>", ""]
    pq.write_table(pa.table({"task_index": list(range(4)), "task": texts}), place / "meta" / "tasks.parquet")
    path = next(place.glob("data/**/*.parquet"))
    table = pq.read_table(path)
    names = table.schema.names
    numbers = pa.array(np.minimum(table["episode_index"].to_numpy(), 3))
    pq.write_table(table.set_column(names.index("task_index"), "task_index", numbers), path)
    (found,) = inspect(str(place))
    assert found.survey.texts == {"": 3, "Push it left.": 1, "push it  left": 1, "<b>right</b>": 1}
    empty, unlike, several = map(str, found.findings)
    assert (
        told(several, "3 instructions", "data")
        and told(empty, "empty instruction")
        and told(unlike, "'Push it left.'", "'push it  left'")
    )


def test_dark_and_frozen_cameras_are_found(tmp_path):
    episodes = clean(2)
    pixels = np.random.default_rng(0)
    for number, episode in enumerate(episodes):
        frames = pixels.integers(60, 255, (len(episode["action"]), 8, 8, 3), dtype=np.uint8)
        frames[10:40] = frames[10]
        episode["front"] = frames
        episode["wrist"] = pixels.integers(0, 6, frames.shape, dtype=np.uint8)
        if number:  # the robot stands while the frames are equal: no fault of the camera
            for key in ("state", "action"):
                episode[key][10:40] = episode[key][10]
    (found,) = inspect(str(write_npz(tmp_path / "seen.npz", episodes)))
    hung, dark = (str(one) for one in found.findings if "front" in one.text or "wrist" in one.text)
    assert told(hung, "front", "30 equal", "episode 0", "frame 10") and told(dark, "wrist", "dark", "2 of 2")


@pytest.mark.parametrize("declared", [[0, 0, 3], [], [3, 48, 64]])
def test_the_proposed_size_is_that_of_the_frames_whatever_metadata_declare(tmp_path, declared):
    place = write_lerobot(tmp_path / "lerobot", pictures(9), [3, 3, 3], "v3.0", "image")
    info = json.loads((place / "meta/info.json").read_text())
    info["features"][KEY]["shape"] = declared
    (place / "meta/info.json").write_text(json.dumps(info))
    (found,) = inspect(str(place))
    assert found.data["images"] == {KEY: {"key": KEY, "size": [24, 32]}} and found.data["global_batch_size"] == 1


def test_missing_videos_are_an_error_where_training_refuses_them(tmp_path):
    pytest.importorskip("av", reason="the extra video is not installed")
    place = write_lerobot(tmp_path / "lerobot", pictures(15), [3] * 5, "v2.1", "video")
    path = tmp_path / "mine.json"
    data = {
        "episodes": {"type": "lerobot", "path": str(place)},
        "images": {"front": {"key": KEY, "size": [24, 32]}},
        "action": {"key": "action"},
    }
    path.write_text(json.dumps(tiny(tmp_path, data=data)))

    def missing(place):
        (found,) = inspect(str(place))
        return [str(finding) for finding in found.findings if finding.severity == "error"], found.gaps

    def refused():
        with pytest.raises(DataError) as error:
            TrainConfig.from_json_path(path).open_data()
        return [problem for problem in error.value.problems if told(problem, "no such", "'image'")]

    assert missing(place) == missing(path) == ([], [])
    videos = sorted(place.rglob("*.mp4"))
    for number in (2, 1):
        videos[number].unlink()
    errors, gaps = missing(place)
    names = ", ".join(f"videos/chunk-000/{KEY}/episode_{number:06d}.mp4" for number in (1, 2))
    assert told_each(errors, (KEY, "2 of 5 video", "2 of 5 episodes", names, "(episode 1)"))
    assert missing(path) == (errors, []) and gaps == [] and len(refused()) == 2
    (found,) = inspect(str(place))  # first settings keep the camera, without these episodes
    assert [strip.episode for strip in found.strips] == [0, 3, 4]
    assert found.data["choice"] == {"leave_out": [1, 2]} and found.data["images"].keys() == {KEY}
    videos[4].unlink()  # of most episodes: they keep these, without the camera
    (found,) = inspect(str(place))
    assert "choice" not in found.data and "images" not in found.data and missing(place) == ([], [])
    warnings = [finding.text for finding in found.findings if finding.severity == "warning"]
    assert told(warnings[0], KEY, "first settings", "3 of 5 video") and told(missing(path)[0][0], "3 of 5 video")
    videos[3].unlink()
    videos[0].unlink()  # a copy without its videos can be trained on without its camera
    errors, gaps = missing(place)
    assert errors == [] and told(gaps[0], KEY, videos[0], "no such")
    assert told(missing(path)[0][0], KEY, "5 of 5 video") and len(refused()) == 5


def test_a_camera_whose_video_has_other_frames_than_rows_does_not_vanish_from_first_settings_in_silence(tmp_path):
    pytest.importorskip("av", reason="the extra video is not installed")
    place = write_lerobot(tmp_path / "lerobot", pictures(7), [3, 4], "v2.1", "video")
    first, second = sorted(place.rglob("*.mp4"))
    shutil.copy(second, first)  # 4 frames for 3 rows
    (found,) = inspect(str(place))
    warnings = [str(finding) for finding in found.findings if finding.severity == "warning"]
    assert any(told(line, KEY, "first settings", "4 frames", "3 rows") for line in warnings) and not found.gaps


def test_a_camera_that_a_configuration_names_and_training_refuses_is_an_error(tmp_path):
    pytest.importorskip("av", reason="the extra video is not installed")
    depth = {"info": {"video.is_depth_map": True}}
    place = write_lerobot(tmp_path / "lerobot", pictures(6), [3, 3], "v3.0", "video", info=depth)
    path = tmp_path / "mine.json"
    data = {"episodes": {"type": "lerobot", "path": str(place)}, "action": {"key": "action"}}
    for key, *named in ((KEY, "'image'", "is_depth_map", "data.depth"), ("iamge", "'iamge'", "'image'")):
        path.write_text(json.dumps(tiny(tmp_path, data=data | {"images": {"front": {"key": key, "size": [24, 32]}}})))
        (found,), (alone,) = inspect(str(path)), inspect(str(place))
        assert found.findings[0].severity == "error" and told(found.findings[0].text, key, *named)
        with pytest.raises(DataError, match=naming(*named)):
            TrainConfig.from_json_path(path).open_data()
        (omission,) = alone.findings  # it says that it is depth, but its frames are colours
        assert told(omission.text, KEY, "8 bit", "expected depth") and omission.severity == "warning"


@pytest.fixture
def embeddings(tmp_path):
    random = np.random.default_rng(0)
    image = random.normal(size=(600, 16)).astype(np.float32)
    text = image + 0.5 * random.normal(size=image.shape).astype(np.float32)
    folder = tmp_path / "clip"
    (folder / "img_emb").mkdir(parents=True)
    (folder / "text_emb").mkdir()
    return folder, image, text


def test_embeddings_are_read_by_their_folder(embeddings, tmp_path):
    folder, image, text = embeddings

    def look(image, text):
        np.save(folder / "img_emb" / "0.npy", image)
        np.save(folder / "text_emb" / "0.npy", text)
        (found,) = inspect(str(folder))
        return found

    found = look(image, text)
    assert found.findings == [] and [rows.name for rows in found.rows] == ["image", "text"]
    write_config([found], tmp_path / "prior.json")
    page = Outline(write_inspection([found], tmp_path / "page.html", "x").read_text(encoding="utf-8"))
    assert "600" in page.texts
    assert told(look(image, text[::-1]).findings[0].text, "images", "no better")
    spoiled = image.copy()
    spoiled[7] = 0
    assert look(spoiled, text).findings[0].severity == "error"
    assert told(look(np.repeat(image[::5], 5, 0), text).findings[0].text, "600 rows", "column")
    (folder / "metadata.csv").write_text("image_id,caption\n" + "".join(f"{i // 5},c\n" for i in range(600)))
    found = look(np.repeat(image[::5], 5, 0), np.repeat(text[::5], 5, 0))
    assert found.findings == [] and found.data["split"] == {"by": "image_id"}


@pytest.mark.parametrize(("count", "batch_size"), [(600, 256), (100, 32), (3, 1)])
def test_the_proposed_batch_is_no_larger_than_the_training_part_of_few_embeddings(
    embeddings, tmp_path, count, batch_size
):
    folder, image, text = embeddings
    np.save(folder / "img_emb" / "0.npy", image[:count])
    np.save(folder / "text_emb" / "0.npy", text[:count])
    write_config(inspect(str(folder)), tmp_path / "prior.json")
    assert TrainConfig.from_json_path(tmp_path / "prior.json").data.batch_size == batch_size


def test_text_embeddings_alone_are_looked_at_though_metadata_lie_beside_them(embeddings):
    folder, _, text = embeddings
    np.save(folder / "text_emb" / "0.npy", text)
    (folder / "metadata.csv").write_text("image_id\n" + "1\n" * len(text))
    (found,) = inspect(str(folder))
    assert [rows.numbers.tolist() for rows in found.rows] == [list(range(600))]


def test_a_folder_that_embed_wrote_is_read_by_its_path(tmp_path):
    pytest.importorskip("pyarrow", reason="NOT CHECKED: pyarrow is not installed")
    (tmp_path / "texts.txt").write_text("push\nlift\n")
    arguments = ["--model", "hashed", "--texts", str(tmp_path / "texts.txt"), "--out", str(tmp_path / "texts")]
    assert CliRunner().invoke(main, ["embed", *arguments]).exit_code == 0
    for place in (tmp_path / "texts", tmp_path):
        (found,) = inspect(str(place))
        assert [(rows.folder.path, rows.folder.count) for rows in found.rows] == [(str(tmp_path / "texts"), 2)]
        with pytest.raises(ConfigError, match=naming(place.name, "data.image", "data.text", "data.language")):
            write_config([found], tmp_path / "c.json")


@pytest.mark.parametrize(
    ("arrays", "gap"),
    [
        ({"timestamp": np.array(["2026-01-01"] * 9)}, ("timestamps", "<U10", "number")),
        ({"task_index": np.array(["go"] * 9)}, ("instructions", "<U2", "number")),
        ({"task_index": np.full(9, np.nan)}, None),
    ],
)
def test_columns_of_another_meaning_are_no_clock_and_no_instructions(tmp_path, arrays, gap):
    numbers = np.zeros((9, 2), np.float32)
    np.savez(tmp_path / "d.npz", state=numbers, action=numbers, episode_ends=np.array([4, 9]), **arrays)
    (found,) = inspect(str(tmp_path / "d.npz"))
    assert found.survey.clock is None and found.survey.texts == {}
    assert told_each(found.gaps, *([gap] if gap else []))


@pytest.mark.parametrize("data", ["data.npz", "data.zarr", "lerobot", "data.hdf5"], indirect=True)
def test_keys_and_slices_that_a_configuration_names_in_vain_are_errors(data, tmp_path):
    state = {"data.hdf5": "obs/state"}.get(data.name, "state")
    kind = {"data.npz": "npz", "data.zarr": "zarr", "data.hdf5": "robomimic"}.get(data.name, "lerobot")
    config = tiny(tmp_path)
    config["data"]["episodes"] = {"type": kind, "path": str(data)}
    config["data"]["obs"] = {"a": {"key": "stat"}, "b": {"key": state, "slice": [2, 9]}}
    config["data"]["action"] = {"key": "actions" if kind == "robomimic" else "action"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (found,) = inspect(str(tmp_path / "config.json"))
    unknown, beyond, *_ = (finding.text for finding in found.findings if finding.severity == "error")
    assert told(unknown, "a", "'stat'", repr(state)) and told(beyond, "b", [2, 9], 3, repr(state))


def test_what_training_refuses_beside_the_signals_is_an_error(tmp_path):
    pytest.importorskip("pyarrow", reason="NOT CHECKED: pyarrow is not installed")
    config, model = tiny(tmp_path), HashedConfig(dimension=8)
    embedded = model.create().texts(["go left", "stop"])
    with np.load(tmp_path / "toy.npz") as file:
        arrays = dict(file)
    np.savez(tmp_path / "toy.npz", **arrays, task=np.array(["go left"] * len(arrays["action"])))
    for name, texts in (("both", ["go left", "stop"]), ("other", ["stop"])):
        record = EmbeddingsRecord(embedder=model, source={"texts": "text"}, rows=len(texts), cut=len(texts) - 1)
        write_embeddings(tmp_path / name, Job(record, {"text": texts}, lambda first, stop: embedded[first:stop]))
    folders = {name: {"path": str(tmp_path / name), "format": "parquet"} for name in ("both", "other", "gone")}
    for number, (change, words) in enumerate([
        ({"language": {"a": {"key": "task", "folder": folders["both"]}}}, None),
        ({"language": {"a": {"key": "task", "folder": folders["gone"]}}}, (tmp_path / "gone",)),
        ({"language": {"a": {"key": "task", "folder": folders["other"]}}}, ("'go left'", "dp-prior embed")),
        ({"language": {"a": {"key": "tsk", "folder": folders["both"]}}}, ("language", "'tsk'", "'task'")),
        ({"embeddings": {"a": {"folder": folders["both"]}}}, ("'episode'", "'frame'")),
        ({"weights": {"key": "worth"}}, ("weights", "'worth'")),
        ({"split": {"parts": {"train": ["seen"]}}}, ("split.parts.train", "'seen'")),
    ]):  # fmt: skip
        place = tmp_path / f"{number}.json"
        place.write_text(json.dumps({**config, "data": {**config["data"], **change}}))
        (found,) = inspect(str(place))
        errors = [one.text for one in found.findings if one.severity == "error"]
        assert told(" ".join(errors), *words) if words else not errors, change
        try:
            TrainConfig.from_json_path(place).open_data()
            refused = []
        except DataError as error:
            refused = [f"{error.source}: {problem}" for problem in error.problems]
        assert errors == refused
        cut = [one.text for one in found.findings if told(one.text, str(tmp_path / "both"), "1 of 2")]
        assert len(cut) == (words is None), "a doubt of training is a warning"
        assert ("task" in found.survey.unused) == (words is not None and "task" not in str(change)), change


def test_embeddings_of_a_configuration_are_looked_at_and_other_data_refused(embeddings, tmp_path, monkeypatch):
    folder, image, text = embeddings
    np.save(folder / "img_emb" / "0.npy", image)
    np.save(folder / "text_emb" / "0.npy", text)
    write_config(inspect(str(folder)), tmp_path / "prior.json")
    (found,) = inspect(str(tmp_path / "prior.json"))
    assert [rows.folder.count for rows in found.rows] == [len(image), len(text)] and not found.findings
    (tmp_path / "other.json").write_text(json.dumps(tiny(tmp_path)))
    monkeypatch.setattr(TrajectoriesConfig, "recorded_sets", lambda self: {})
    with pytest.raises(DataError, match=naming("'trajectories'", "embeddings", "images")):
        inspect(str(tmp_path / "other.json"))


@pytest.mark.parametrize("content", [None, "a folder"])
def test_what_is_no_data_set_is_refused(tmp_path, content):
    place = tmp_path / "nothing"
    if content:
        place.mkdir()
    with pytest.raises(DataError, match=naming(place, "docs/data.md#layouts" if content else "no such")):
        inspect(str(place))


@pytest.mark.skipif(not RECORDED.exists(), reason=f"no recorded data at {RECORDED}")
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param("pusht/lerobot_v30", [], marks=pytest.mark.slow),
        ("pusht/pusht_lowdim.npz", [("state, dimension 4", "91 steps", 6.283, "angle")]),
        ("adroit_door_human/adroit_door_human_25.npz", []),
        pytest.param(
            "cr5_banana_plate/lowdim_81ep.npz",
            [("273 gaps",), ("action, dimension 4", "values")],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "lingzu_open50_v30/lerobot",
            [("48 of 50", "episodes", "file-000.mp4"), *((f"state, dimension {n}",) for n in (0, 1, 5, 29))],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_warnings_on_recorded_data_are_few_and_true(name, expected):
    """The jumps and the two videos of lingzu and the gaps at the start of CR5 were looked up in the files."""
    (found,) = inspect(str(RECORDED / name))
    lines = [str(finding) for finding in found.findings if finding.severity == "warning"]
    assert all(any(told(line, *parts) for parts in expected) for line in lines), lines
    assert all(any(told(line, *parts) for line in lines) for parts in expected), lines


def test_episodes_with_faults_are_left_out_by_the_line_that_is_shown_and_written(tmp_path):
    rng, ends = np.random.default_rng(0), 60 * np.arange(1, 13)
    state = rng.normal(size=(720, 4)).astype(np.float32).cumsum(0)
    state[125, 1], state[420:480] = np.nan, 1.0  # episodes 2 and 7
    action = np.roll(state[:, :2], -1, axis=0)
    action[125:127], action[420:480] = 0.0, 1.0
    np.savez(tmp_path / "d.npz", state=state, action=action, episode_ends=ends)
    found = inspect(str(tmp_path / "d.npz"))
    line = '"choice": {"leave_out": [2, 7]} in data: 2 of 12 episodes'
    assert found[0].leave_out == [2, 7] and line in "\n".join(summary(found))
    write_config(found, tmp_path / "c.json")
    config = TrainConfig.from_json_path(tmp_path / "c.json")
    assert config.data.choice.leave_out == (2, 7)
    assert sorted(sum(config.data.create(16, 2, 8).split_ids.values(), [])) == [0, 1, 3, 4, 5, 6, 8, 9, 10, 11]
    again = inspect(str(tmp_path / "c.json"))  # a configuration is looked at as it trains
    assert not again[0].leave_out and not [one for one in again[0].findings if one.severity == "error"]
    assert "2 of 12 episodes, by data.choice" in "\n".join(summary(again))


def test_a_fault_of_most_episodes_leaves_out_none(tmp_path):
    ends = 20 * np.arange(1, 7)
    state = np.random.default_rng(0).normal(size=(120, 2)).astype(np.float32)
    state[ends[:4] - 1] = np.nan
    np.savez(tmp_path / "d.npz", state=state, action=np.zeros((120, 2), np.float32), episode_ends=ends)
    found = inspect(str(tmp_path / "d.npz"))
    assert not found[0].leave_out
    with pytest.raises(DataError, match=naming("d.npz", "state", "4 steps", "frame 19")):
        write_config(found, tmp_path / "c.json")


def test_damaged_episode_files_are_named_and_left_out_and_the_others_looked_at(tmp_path):
    random, files = np.random.default_rng(0), [tmp_path / f"d/{number}.npz" for number in range(7)]
    (tmp_path / "d").mkdir()
    for file in files:
        state = random.normal(size=(60, 3)).cumsum(0)
        np.savez(file, state=state, action=np.roll(state, -1, axis=0))
    for damaged in (2, 3, 4, 6):  # more than half: no other file can be at fault
        files[damaged].write_bytes(files[damaged].read_bytes()[:200])
    found = inspect(str(tmp_path / "d"))
    assert told("\n".join(map(str, found[0].findings)), files[2], files[6], "readable .npz")
    lines = "\n".join(summary(found))
    assert told(lines, '"leave_out": ["2-4", 6]', "4 of 7 episodes") and not told(lines, "data.split.max_rows")
    write_config(found, tmp_path / "c.json")
    data = TrainConfig.from_json_path(tmp_path / "c.json").data
    assert sorted(sum(data.create(16, 2, 8).split_ids.values(), [])) == [0, 1, 5]
    with pytest.raises(DataError, match=naming("2.npz", '"choice": {"leave_out": ["2-4", 6]}')):
        data.model_copy(update={"choice": type(data.choice)()}).create(16, 2, 8)


def test_parts_of_a_data_set_are_named_and_proposed(tmp_path):
    h5py = pytest.importorskip("h5py")

    def demonstrations(path, **masks):
        rng = np.random.default_rng(0)
        with h5py.File(path, "w") as file:
            for number in range(6):
                file[f"data/demo_{number}/actions"] = rng.normal(size=(60, 2)).astype(np.float32)
                file[f"data/demo_{number}/obs/state"] = rng.normal(size=(60, 3)).astype(np.float32)
            for name, numbers in masks.items():
                file[f"mask/{name}"] = [f"demo_{number}".encode() for number in numbers]
        return inspect(str(path))

    found = demonstrations(tmp_path / "a.hdf5", train=[0, 1, 2, 3], valid=[4, 5])
    assert "train (4 of 6 episodes), valid (2 of 6 episodes)" in "\n".join(summary(found))
    assert found[0].data["split"] == {"parts": {"train": ["train"], "val": ["valid"]}}
    assert told("\n".join(summary(found)), "data", '"split": {"parts": {"train": [...], "val": [...]}}')
    write_config(found, tmp_path / "divided.json")  # which divides by them, and is not told to
    assert '"split"' not in "\n".join(summary(inspect(str(tmp_path / "divided.json"))))
    found = demonstrations(tmp_path / "b.hdf5", train=[0, 1, 2, 3], valid=[3, 4, 5])
    assert told("\n".join(summary(found)), "train", "valid", "episodes 3")
    assert "split" not in found[0].data and "split" not in demonstrations(tmp_path / "c.hdf5")[0].data


@pytest.mark.parametrize("n", [1, 2, 3, 24])
def test_a_proposal_for_few_images_is_one_that_can_be_trained_and_measured(tmp_path, n):
    image = pytest.importorskip("PIL.Image")
    for number, pixels in enumerate(np.random.default_rng(0).integers(0, 255, (n, 20, 20, 3)).astype(np.uint8)):
        image.fromarray(pixels).save(tmp_path / f"{number}.png")
    write_config(inspect(str(tmp_path)), tmp_path / "c.json")
    config = TrainConfig.from_json_path(tmp_path / "c.json")
    data = config.data.create()
    data.loader(seed=0, batch_size=config.data.batch_size, accumulation=1, rank=0, world_size=1)
    assert {type(evaluator.trial().create(data)).__name__ for evaluator in config.evaluate} >= {"LossEvaluator"}
    assert config.train.monitor.metric.split("/")[0] in {evaluator.name for evaluator in config.evaluate}
    assert (n > 1) == any(evaluator.type == "images" for evaluator in config.evaluate)


def test_the_command_that_comes_next_writes_a_configuration_or_tries_the_one_that_was_looked_at(tmp_path):
    for name, wanted in (("lab-0.6.1-b.npz", "lab-0.6.1-b.json"), ("mine.v2.npz", "mine.json")):
        place = str(write_npz(tmp_path / name, clean()))
        assert next_command(inspect(place), place) == ["dp-prior", "inspect", place, "--write-config", wanted]
    path = tmp_path / "written.json"
    write_config(inspect(place), path)
    found = inspect(str(path))
    assert next_command(found, str(path)) == ["dp-prior", "train", str(path), "--check"]
    nameless = [{"place": each["state"]} for each in clean()]
    ends = np.cumsum([len(each["place"]) for each in nameless])
    np.savez(tmp_path / "n.npz", place=np.concatenate([each["place"] for each in nameless]), episode_ends=ends)
    assert next_command(inspect(str(tmp_path / "n.npz")), str(tmp_path / "n.npz")) is None


def test_a_url_is_refused_as_such_and_not_looked_for_on_the_hub():
    for url in ("s3://bucket/img_emb", "hf://me/data"):
        with pytest.raises(ConfigError, match=naming(url, "URL", "user/name")):
            inspect(url)


def test_a_rate_of_another_form_is_a_warning(tmp_path):
    place = write_lerobot(tmp_path / "lerobot", pictures(9), [3, 3, 3], "v3.0", "image")
    info = json.loads((place / "meta/info.json").read_text())
    (place / "meta/info.json").write_text(json.dumps({**info, "fps": "10"}))
    (found,) = inspect(str(place))
    assert any(told(one.text, "fps", "'10'", "meta/info.json") for one in found.findings if one.severity == "warning")


MEASURED = """
import resource, sys, time
from click.testing import CliRunner
from dp_prior.cli import main
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
result = CliRunner().invoke(main, ["inspect", sys.argv[1]])
used = resource.getrusage(resource.RUSAGE_SELF)
print(result.exit_code, (used.ru_maxrss - before) // 1024, used.ru_utime, result.output[:300], sep="|")
"""


def measured(place):
    """Exit code, MiB beyond those of the imports, and CPU seconds of an inspection; and the begin of its output."""
    done = forks.call(["-c", MEASURED, place])
    code, mebibytes, seconds, output = done.stdout.split("|", 3)
    return int(code), int(mebibytes), float(seconds), output


@pytest.mark.slow
@pytest.mark.parametrize("ending", [".png", ".txt", ".npz"])
def test_a_folder_of_200_000_files_takes_bounded_memory_and_time(ending, tmp_path):
    pillow = pytest.importorskip("PIL.Image", reason="NOT CHECKED: Pillow is not installed")
    content = io.BytesIO()
    pillow.new("RGB", (8, 8)).save(content, "PNG")
    for number in range(200_000):
        file = os.open(tmp_path / f"{number}{ending}", os.O_WRONLY | os.O_CREAT)
        os.write(file, content.getvalue())
        os.close(file)
    code, mebibytes, seconds, output = measured(tmp_path)
    assert code == (0 if ending == ".png" else 65) and told(output, tmp_path), output
    assert mebibytes < 400 and seconds < 60, (mebibytes, seconds)


@pytest.mark.slow
def test_pictures_of_67_million_pixels_are_decoded_one_after_another(tmp_path):
    """Any number of them takes the memory of one: at most 32 bytes for each pixel."""
    pillow = pytest.importorskip("PIL.Image", reason="NOT CHECKED: Pillow is not installed")
    pixels = np.zeros((8192, 8192, 4), np.uint8)
    pixels[::7] = 200
    for number in range(3):
        pillow.fromarray(pixels).save(tmp_path / f"{number}.png", compress_level=1)
    code, mebibytes, seconds, output = measured(tmp_path)
    assert code == 0 and told(output, "3 images", "8192 x 8192"), output
    assert mebibytes < 32 * (1 << 26) >> 20 and seconds < 60, (mebibytes, seconds)
