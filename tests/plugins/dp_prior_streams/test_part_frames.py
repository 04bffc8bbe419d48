import pytest
import torch

from dp_prior.config import ConfigError
from dp_prior_streams import video_clip
from dp_prior_streams.part_frames import PartFrameColumn
from dp_prior_streams.sealed_folder import SIZES
from tests.extras import needs
from tests.messages import naming
from tests.plugins.dp_prior_streams.damages import DAMAGES, rot
from tests.plugins.dp_prior_streams.recorded_sets import (
    CAMERA,
    FRONT,
    add_videos,
    batches_of,
    like_streamed,
    opened,
    streamed,
    write_v3,
)
from tests.plugins.dp_prior_streams.web_store import served

needs("av", "video")
needs("pyarrow", "lerobot")


@pytest.fixture(scope="module")
def camera_set(tmp_path_factory):
    """Four tables and five videos, whose ends are not those of the tables."""
    return add_videos(write_v3(tmp_path_factory.mktemp("streams") / "set", files=4, episodes_per_file=8))


def in_memory(folder, data, cache, **settings):
    memory = like_streamed(folder, data, frame_cache=str(cache / "frames"), **settings)
    memory.build_caches(lambda line: None)
    return memory


@pytest.mark.slow
def test_frames_are_those_of_the_frame_cache_and_ranges_of_videos_are_fetched_once(camera_set, tmp_path):
    total = sum(file.stat().st_size for file in camera_set.rglob("*.mp4"))
    with served(camera_set) as web:
        data = streamed(web.url, tmp_path / "cache", 0.0016, **FRONT)
        assert web.bytes_sent("videos/") == 0
        memory = in_memory(camera_set, data, tmp_path, **FRONT)
        assert batches_of(data, data.order(0)) == batches_of(memory, data.part_order(0))
        assert web.bytes_sent("videos/") <= 1.1 * total
    assert data._parts.store.cache.used() <= 1.6e6 < len(data.train) * 24 * 32 * 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"jpeg_quality": 90},
        {"region": [0.2, 0.1, 0.9, 1.0], "fit": "letterbox"},
        {"turn": "left", "bgr": True},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_settings_of_a_camera_hold_for_its_parts(camera_set, tmp_path, settings):
    images = {"images": {"front": {**FRONT["images"]["front"], **settings}}}
    data = streamed(camera_set, tmp_path / "cache", **images)
    memory = in_memory(camera_set, data, tmp_path, **images)
    ids = torch.arange(0, len(memory.train), 97)
    assert torch.equal(data.train.fetch(ids).cond["front"], memory.train.fetch(ids).cond["front"])
    assert data.spec.fits == memory.spec.fits and data.spec.kinds == memory.spec.kinds


@pytest.mark.slow
@pytest.mark.parametrize(("version", "kind"), [("v2.1", "video"), ("v2.1", "image"), ("v3.0", "image")])
def test_older_formats_and_pictures_in_tables_arrive_too(tmp_path, version, kind):
    from tests.data.frames.recordings import pictures, write_lerobot

    lengths = [9, 7, 12, 8, 6, 10]
    folder = write_lerobot(tmp_path / "set", pictures(sum(lengths), 16, 16), lengths, version, kind)
    settings = {
        "obs": {},
        "images": {"front": {"key": "image", "size": [16, 16]}},
        "split": {"train": 1, "val": 0},
    }
    with served(folder) as web:
        data = streamed(web.url, tmp_path / "cache", **settings)
        memory = opened({"type": "lerobot", "path": str(folder)}, frame_cache=str(tmp_path / "frames"), **settings)
        memory.build_caches(lambda line: None)
        assert batches_of(data, data.order(0), 2, batch=8) == batches_of(memory, data.part_order(0), 2, batch=8)


@pytest.mark.slow
def test_chosen_episodes_have_frames_of_their_own(camera_set, tmp_path):
    settings = {**FRONT, "choice": {"only": ["3-12", 20, 31]}}
    data = streamed(camera_set, tmp_path / "cache", **settings)
    memory = in_memory(camera_set, data, tmp_path, **settings)
    assert batches_of(data, data.order(0), 4) == batches_of(memory, data.part_order(0), 4)


def test_a_part_takes_no_more_bytes_than_it_says(camera_set, tmp_path):
    for settings in ({}, {"jpeg_quality": 95}):
        images = {"images": {"front": {**FRONT["images"]["front"], **settings}}}
        data = streamed(camera_set, tmp_path / "cache", **images)
        frames = data._parts.frames["front"]
        for part in (0, 7):
            data._parts.opened(frames, part, frames.open)
            folder = data._parts.store.cache.path(frames.name(part))
            size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
            assert size <= frames.n_bytes(part) and frames.source_bytes(part) > 0
            assert sorted(path.name for path in folder.iterdir()) == ["cache", "sizes.json"]


def test_a_camera_needs_a_key_of_the_data_set(camera_set, tmp_path):
    for settings in ({"folder": "films"}, {"render": {"type": "pusht"}, "key": "observation.state"}):
        images = {"images": {"front": {"size": [24, 32], **settings}}}
        with pytest.raises(ConfigError, match=naming("front", '"key"')):
            streamed(camera_set, tmp_path / "cache", **images)


def test_the_fingerprint_follows_the_videos(camera_set, tmp_path):
    import shutil

    folder = shutil.copytree(camera_set, tmp_path / "set")
    first = streamed(camera_set, tmp_path / "cache", **FRONT).fingerprint
    assert streamed(folder, tmp_path / "cache", **FRONT).fingerprint == first
    file = next(folder.rglob("file-001.mp4"))
    file.write_bytes(file.read_bytes() + bytes(8))
    shutil.rmtree(tmp_path / "cache")
    assert streamed(folder, tmp_path / "cache", **FRONT).fingerprint != first
    assert CAMERA in str(file)


@pytest.mark.parametrize("moment", ["between two runs", "while they are open", "hidden by the disk"])
@pytest.mark.parametrize("settings", [{}, {"jpeg_quality": 95}], ids=["raw", "jpeg"])
def test_frames_that_change_in_the_cache_are_fetched_again(camera_set, tmp_path, settings, moment):
    images = {"images": {"front": {**FRONT["images"]["front"], **settings}}}
    verify = "hashes" if moment == "hidden by the disk" else "sizes"
    data = streamed(camera_set, tmp_path / "cache", verify=verify, **images)
    frames, rows = data._parts.frames["front"], torch.arange(20)
    column = PartFrameColumn(data._parts, frames)
    before, folder = column.rows(rows), data._parts.store.cache.path(frames.name(0))
    for file in folder.glob("cache/*"):
        if moment == "hidden by the disk":
            rot(file, folder / SIZES)
            data._parts.store.cache._sealed.clear()
            data._parts._opened.clear()
        else:
            DAMAGES["a flipped bit"](file)
        if moment == "between two runs":
            data = streamed(camera_set, tmp_path / "cache", verify=verify, **images)
            column = PartFrameColumn(data._parts, data._parts.frames["front"])
        assert torch.equal(column.rows(rows), before), file.name


def test_what_lies_in_the_holes_of_a_video_is_never_shown(camera_set, tmp_path, monkeypatch):
    """The copy of a video holds its index and the bytes of a part alone."""
    clips, original = {}, video_clip._copy_range
    for filler in (b"\0", b"\xa5"):

        def copy_range(remote, name, begin, end, target, filler=filler):
            noise = bytearray(filler * target.stat().st_size)
            for place, content in video_clip.VideoIndexes(remote).of(name):
                noise[place : place + len(content)] = content
            target.write_bytes(noise)
            original(remote, name, begin, end, target)

        monkeypatch.setattr(video_clip, "_copy_range", copy_range)
        data = streamed(camera_set, tmp_path / filler.hex(), **FRONT)
        clips[filler] = batches_of(data, data.order(0), 3)
    assert clips[b"\0"] == clips[b"\xa5"]
