import errno
import os

import numpy as np
import pytest

from dp_prior.data.errors import ChangedError, DataError, UnwritableError
from dp_prior.job.stop import StoppedEarly
from tests.extras import needs
from tests.messages import naming
from tests.plugins.dp_prior_streams.recorded_sets import CODECS, moving_pictures, write_encoded
from tests.plugins.dp_prior_streams.web_store import served

needs("av", "video")

from dp_prior.data.frames.video_frames import read_video  # noqa: E402
from dp_prior_streams import video_clip  # noqa: E402
from dp_prior_streams.manifest import RemoteSet  # noqa: E402
from dp_prior_streams.video_clip import VideoIndexes, cut_clip  # noqa: E402

COUNT, SIZE = 150, (64, 80)


@pytest.fixture(scope="module", params=CODECS)
def video(request, tmp_path_factory):
    """A video, all of its frames, and the name of its kind."""
    import av

    if CODECS[request.param]["codec"] not in av.codecs_available:
        pytest.skip(f"NOT CHECKED: PyAV was built without {CODECS[request.param]['codec']}")
    path = tmp_path_factory.mktemp("videos") / "set/a.mp4"
    write_encoded(path, moving_pictures(COUNT), **CODECS[request.param])
    return path, np.concatenate([*read_video(path, SIZE, {"0": COUNT})]), request.param


def indexes_of(path, cache):
    cache.mkdir(exist_ok=True)
    return VideoIndexes(RemoteSet(str(path.parent), cache))


@pytest.mark.parametrize("span", [(0, 1), (0, 40), (1, 2), (23, 61), (96, 150), (149, 150), (0, 150)])
def test_a_clip_holds_exactly_the_frames_that_were_asked_for(video, tmp_path, span):
    path, frames, kind = video
    indexes, (begin, end) = indexes_of(path, tmp_path / "cache"), span
    clip = cut_clip(indexes, "a.mp4", begin, end, tmp_path)
    blocks = read_video(clip.path, SIZE, {"0": end - begin}, 0, [clip.before])
    assert np.array_equal(np.concatenate([*blocks]), frames[begin:end])
    if (end - begin) < 50 and kind != "open groups":
        assert indexes.remote.fetched_bytes < 0.7 * path.stat().st_size
    assert sorted(file.name for file in tmp_path.glob("*-*")) == [f"{begin}-{end}.mp4"]


def test_the_index_is_fetched_once_for_all_clips_of_a_video(video, tmp_path):
    path, _, kind = video
    indexes = indexes_of(path, tmp_path / "cache")
    for begin in range(0, COUNT, 30):
        cut_clip(indexes, "a.mp4", begin, begin + 30, tmp_path)
    assert indexes.of.cache_info().misses == 1
    assert indexes.remote.fetched_bytes < (3 if kind == "open groups" else 1.5) * path.stat().st_size


def test_more_frames_than_the_video_has_are_told(video, tmp_path):
    path, _, _ = video
    with pytest.raises(DataError, match=naming("a.mp4", COUNT, COUNT + 1)):
        cut_clip(indexes_of(path, tmp_path / "cache"), "a.mp4", 3, COUNT + 1, tmp_path)


@pytest.mark.parametrize("content", [b"", b"not a video" * 100, b"\x00\x00\x00\x08moof" + bytes(100)])
def test_other_files_are_told(tmp_path, content):
    path = tmp_path / "set/a.mp4"
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(DataError, match=naming("a.mp4")):
        cut_clip(indexes_of(path, tmp_path / "cache"), "a.mp4", 0, 1, tmp_path)


def test_a_range_that_changed_since_it_was_noted_is_refused(tmp_path):
    path = tmp_path / "set/a.mp4"
    write_encoded(path, moving_pictures(60), **CODECS["key frames apart"])
    indexes = indexes_of(path, tmp_path / "cache")
    cut_clip(indexes, "a.mp4", 10, 30, tmp_path)
    indexes.remote.confirm()
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(content)
    with pytest.raises(ChangedError, match=naming("a.mp4")):
        cut_clip(indexes_of(path, tmp_path / "cache"), "a.mp4", 10, 30, tmp_path)


def test_a_clip_is_turned_as_its_video_is(tmp_path):
    from dp_prior.data.frames.video_frames import size_of, turned
    from tests.data.frames.test_video_frames import write_turned

    path = tmp_path / "set/a.mp4"
    write_turned(path, moving_pictures(20), (0, -1, 1, 0))
    clip = cut_clip(indexes_of(path, tmp_path / "cache"), "a.mp4", 5, 15, tmp_path)
    assert turned(clip.path) == turned(path) != {} and size_of(clip.path) == size_of(path) == SIZE[::-1]


def test_a_video_that_is_written_again_in_the_run_is_refused_though_the_server_says_nothing(video, tmp_path):
    """By its index, which is fetched with every range of such a server, and once of others."""
    path, _, _ = video
    folder = tmp_path / "set"
    folder.mkdir()
    content = bytearray(path.read_bytes())
    (folder / "a.mp4").write_bytes(content)
    counts = []
    with served(folder) as web:
        for number, headers in enumerate(({"ETag": '"1"'}, {})):
            web.headers = lambda path, headers=headers: headers
            cache = tmp_path / f"cache{number}"
            cache.mkdir()
            remote = RemoteSet(web.url, cache)
            remote.note(["a.mp4"])
            indexes = VideoIndexes(remote)
            cut_clip(indexes, "a.mp4", 0, 30, tmp_path)
            counts.append(remote.fetched_bytes)
        assert counts[1] >= counts[0] + sum(len(run) for _, run in indexes.of("a.mp4"))
        content[content.index(b"moov") + 30] ^= 1
        (folder / "a.mp4").write_bytes(content)
        with pytest.raises(ChangedError, match=naming("a.mp4")):
            cut_clip(indexes, "a.mp4", 60, 90, tmp_path)


@pytest.mark.parametrize("error", [StoppedEarly("SIGTERM", 0), UnwritableError(errno.ENOSPC, "the disk is full")])
def test_a_stop_and_a_full_disk_while_frames_arrive_are_no_damage_of_the_video(tmp_path, monkeypatch, error):
    path = tmp_path / "set/a.mp4"
    write_encoded(path, moving_pictures(60), **CODECS["key frames apart"])
    indexes = indexes_of(path, tmp_path / "cache")
    indexes.of("a.mp4")

    def interrupted(*arguments, **named):
        raise error

    monkeypatch.setattr(indexes.remote, "fetch", interrupted)
    with pytest.raises(type(error)) as caught:
        cut_clip(indexes, "a.mp4", 10, 30, tmp_path)
    assert caught.value is error


def test_a_clip_that_does_not_fit_the_disk_of_this_machine_is_no_damage_of_the_video(tmp_path, monkeypatch):
    path = tmp_path / "set/a.mp4"
    write_encoded(path, moving_pictures(60), **CODECS["key frames apart"])
    indexes = indexes_of(path, tmp_path / "cache")

    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(video_clip, "_write_clip", full)
    with pytest.raises(UnwritableError, match=naming(tmp_path, os.strerror(errno.ENOSPC), "data.episodes.cache")):
        cut_clip(indexes, "a.mp4", 10, 30, tmp_path)
