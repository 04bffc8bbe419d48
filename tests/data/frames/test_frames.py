"""Every format gives the pixels that were written, frame for frame; whatever would not is refused by name."""

import errno
import hashlib
import os
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from dp_prior.data import frames as frames_module
from dp_prior.data.errors import DataError, UnreadableError
from dp_prior.data.frames.folder import FolderFrames
from dp_prior.data.frames.frame_cache import FrameCache
from dp_prior.data.frames.video_frames import read_video, size_of
from dp_prior.pixels.resize import Fit
from tests.data.frames.recordings import (
    ends_of,
    pictures,
    write_folder,
    write_video,
)
from tests.data.frames.sources import FORMATS, LENGTHS, NEEDS, gathered, need, written
from tests.messages import naming

RECORDED = Path(__file__).parents[3].parent / "shared" / "data"


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Seven frames at a time, so that episodes and blocks end at different frames."""
    monkeypatch.setattr(frames_module, "BLOCK_BYTES", 7 * 24 * 32 * 3)


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_gives_the_pixels_that_were_written(format, tmp_path):
    frames = pictures(sum(LENGTHS))
    source = written(format, tmp_path, frames)
    assert source.size == (24, 32)
    np.testing.assert_array_equal(gathered(source), frames)
    assert sorted(episode for part in source.parts for episode in part.episodes) == list(range(len(LENGTHS)))


@pytest.mark.parametrize("format", FORMATS)
def test_a_part_can_be_read_from_any_frame_on(format, tmp_path):
    lengths = [5, 9, 4]
    frames = pictures(sum(lengths))
    source = written(format, tmp_path, frames, lengths)
    for part in source.parts:
        whole = np.concatenate([block.copy() for block in source.read(part, 0)])
        for skip in range(len(whole) + 1):
            rest = [block.copy() for block in source.read(part, skip)]
            np.testing.assert_array_equal(np.concatenate([whole[:0], *rest]), whole[skip:])


def test_the_same_pixels_make_the_same_cache_from_every_format(tmp_path):
    """Formats whose package is not installed are left out; the tests of each say so."""
    frames, found = pictures(sum(LENGTHS)), {}
    formats = [format for format in FORMATS if all(map(find_spec, NEEDS.get(format.split()[0], [])))]
    for number, format in enumerate(formats):
        (tmp_path / str(number)).mkdir()
        source = written(format, tmp_path / str(number), frames)
        cache = FrameCache(source, Fit(size=(12, 12), how="crop"), tmp_path / "caches")
        cache.build()
        found[format] = hashlib.sha256((cache.directory / "frames.u8").read_bytes()).hexdigest()
    expected = Fit(size=(12, 12), how="crop").apply(torch.from_numpy(frames)).numpy().tobytes()
    assert found == dict.fromkeys(formats, hashlib.sha256(expected).hexdigest())
    assert len(list((tmp_path / "caches").glob("*/cache.json"))) == len(formats)


# Video ----------------------------------------------------------------------------------------------------------------


def read_all(path, lengths, size=(24, 32), skip=0):
    pytest.importorskip("av")
    return np.concatenate([block.copy() for block in read_video(path, size, lengths, skip)])


@pytest.fixture
def video(tmp_path):
    pytest.importorskip("av")
    return write_video(tmp_path / "v.mp4", pictures(40))


@pytest.mark.parametrize("codec, name", [("ffv1", "v.mkv"), ("libx264rgb", "v.mp4")])
def test_lossless_video_gives_the_pixels_that_were_encoded(codec, name, tmp_path):
    pytest.importorskip("av")
    frames = pictures(70)
    how = {"codec": codec, "pix_fmt": "bgr0", "options": {}} if codec == "ffv1" else {}
    path = write_video(tmp_path / name, frames, **how)
    assert size_of(path) == (24, 32)
    np.testing.assert_array_equal(read_all(path, {"0": 30, "1": 40}), frames)


def test_b_frames_come_in_the_order_of_display(tmp_path):
    pytest.importorskip("av")
    ramp = np.repeat(np.arange(30, dtype=np.uint8), 24 * 32 * 3).reshape(30, 24, 32, 3) * 8
    path = write_video(tmp_path / "v.mp4", ramp, codec="libx264", pix_fmt="yuv420p", options={"bf": "3", "crf": "1"})
    found = read_all(path, {"0": 30}).mean((1, 2, 3))
    assert (np.diff(found) > 0).all()


@pytest.mark.parametrize(
    "lengths, message",
    [
        ({"7": 39}, ("40 frames", "episode 7", "39 rows")),
        ({"7": 41}, ("40 frames", "episode 7", "41 rows")),
        ({"3": 20, "4": 25}, ("40 frames", "episodes 3 to 4", "45 rows", "episode 4", "20 of 25")),
    ],
)
def test_a_frame_too_few_or_too_many_names_file_episode_expected_and_found(video, lengths, message):
    with pytest.raises(DataError, match=naming(*message)) as error:
        read_all(video, lengths)
    assert error.value.source == str(video) and len(error.value.problems) == 1


@pytest.mark.parametrize("version", ["16.1.0", "18.1.0"])
def test_frames_are_converted_in_one_thread_by_any_version(video, version, monkeypatch):
    import av
    import av.video.reformatter

    asked, real = [], av.video.reformatter.VideoReformatter()

    class Reformatter:
        def reformat(self, frame, **how):
            asked.append(how)
            return real.reformat(frame, format=how["format"])  # the installed one may know no threads

    expected = np.concatenate(list(read_video(video, (24, 32), {"0": 40})))
    monkeypatch.setattr(av.video.reformatter, "VideoReformatter", Reformatter)
    monkeypatch.setattr(av, "__version__", version)
    assert np.array_equal(np.concatenate(list(read_video(video, (24, 32), {"0": 40}))), expected)
    threads = {} if version == "16.1.0" else {"threads": 1}
    assert asked == [{"format": "rgb24", **threads}] * 40


def test_a_file_cut_short_is_named_with_the_frames_that_it_gave(tmp_path):
    pytest.importorskip("av")
    path = write_video(tmp_path / "v.mkv", pictures(40), codec="ffv1", pix_fmt="bgr0", options={})
    data = path.read_bytes()
    for share in (0.9, 0.5, 0.1):
        path.write_bytes(data[: int(len(data) * share)])
        with pytest.raises(DataError, match=naming(path, "episode 0", "40 rows")):
            read_all(path, {"0": 40})
    whole = write_video(tmp_path / "v.mp4", pictures(40))
    whole.write_bytes(whole.read_bytes()[:-2000])
    with pytest.raises(DataError, match=naming("v.mp4", "0 frames")):
        read_all(whole, {"0": 40})


@pytest.mark.parametrize("content", [b"", b"no video at all" * 100])
def test_a_file_that_is_no_video_is_refused(content, tmp_path):
    pytest.importorskip("av")
    path = tmp_path / "v.mp4"
    path.write_bytes(content)
    with pytest.raises(DataError, match=naming("v.mp4", "0 frames")):
        size_of(path)
    with pytest.raises(DataError, match=naming("other.mp4", "incomplete")):
        size_of(tmp_path / "other.mp4")


def test_a_file_that_is_damaged_inside_is_refused_or_gives_every_frame(video):
    """No damage may shift frames: bits flipped anywhere lead to one DataError, or change pixels only."""
    data = bytearray(video.read_bytes())
    generator = np.random.default_rng(0)
    for _ in range(30):
        damaged = bytearray(data)
        for place in generator.integers(0, len(data), 20):
            damaged[place] ^= 1 << int(generator.integers(8))
        video.write_bytes(damaged)
        try:
            assert len(read_all(video, {"0": 40})) == 40
        except DataError as error:
            assert len(error.problems) == 1


@pytest.mark.parametrize("times", [[*range(20), *range(21, 41)], [0, *range(2, 41)], [*range(39), 40]])
def test_a_dropped_frame_shows_in_the_timestamps(times, tmp_path):
    pytest.importorskip("av")
    path = write_video(tmp_path / "v.mkv", pictures(40), times=times, codec="ffv1", pix_fmt="bgr0", options={})
    dropped = next(number for number in range(1, 40) if times[number] - times[number - 1] == 2)
    with pytest.raises(DataError, match=naming(f"frame {dropped}", 200, 100)):
        read_all(path, {"0": 40})


def test_timestamps_rounded_to_milliseconds_are_evenly_spaced(tmp_path):
    pytest.importorskip("av")
    path = write_video(tmp_path / "v.mkv", pictures(40), fps=30, codec="ffv1", pix_fmt="bgr0", options={})
    assert len(read_all(path, {"0": 40})) == 40  # 33, 34, 33 ms: Matroska knows nothing finer


@pytest.mark.parametrize(
    "pix_fmt, message",
    [
        ("gray16le", ("gray16le", "16 bit", "8 bit")),
        ("yuv420p10le", ("yuv420p10le", "10 bit", "8 bit")),
        ("bgra", ("bgra", "8 bit")),
    ],
)
def test_video_that_is_not_8_bit_colour_is_refused_by_name(pix_fmt, message, tmp_path):
    pytest.importorskip("av")
    path = write_video(tmp_path / "v.mkv", pictures(4), codec="ffv1", pix_fmt=pix_fmt, options={})
    with pytest.raises(DataError, match=naming(*message)):
        size_of(path)


def test_another_size_within_a_camera_is_named(video):
    with pytest.raises(DataError, match=naming("frame 0", "24 x 32", "48 x 64")):
        read_all(video, {"0": 40}, size=(48, 64))


# Folders --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["folder of pictures", "folder of videos", "lerobot v3.0 image"])
def test_files_that_the_system_refuses_to_read_are_no_damage(format, tmp_path, monkeypatch):
    source = written(format, tmp_path, pictures(sum(LENGTHS)))

    def refuse(path, *arguments, **named):
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr("av.open", refuse)
    monkeypatch.setattr("pyarrow.parquet.ParquetFile", refuse)
    monkeypatch.setattr("dp_prior.data.frames.folder.encoded_picture", refuse)
    with pytest.raises(UnreadableError, match=naming(os.strerror(errno.EIO), tmp_path)) as error:
        gathered(source)
    assert error.value.errno == errno.EIO


def test_a_pipe_among_pictures_is_refused_without_waiting_for_its_writer(tmp_path):
    source = written("folder of pictures", tmp_path, pictures(sum(LENGTHS)))
    file = source.files()[-1]
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(DataError, match=naming("7.png", "named pipe")):
        gathered(source)


def test_folders_that_do_not_match_the_episodes_are_refused(tmp_path):
    need("folder")
    path = write_folder(tmp_path / "f", pictures(7), [3, 4], "picture")
    with pytest.raises(DataError, match=naming(tmp_path / "g")):
        FolderFrames(tmp_path / "g", ends_of([3, 4]))
    with pytest.raises(DataError, match=naming("2 episodes", 3)):
        FolderFrames(path, ends_of([3, 4, 5]))
    with pytest.raises(DataError, match=naming("run0", "3 pictures", "4 rows")) as error:
        FolderFrames(path, ends_of([4, 3]))
    assert len(error.value.problems) == 2
    (path / "run1/depth.exr").write_bytes(b"")
    (path / "run1/.DS_Store").write_bytes(b"")
    with pytest.raises(DataError, match=naming("run1", "'depth.exr'", ".png")):
        FolderFrames(path, ends_of([3, 4]))
    (path / "notes.txt").write_text("")
    with pytest.raises(DataError, match=naming("'notes.txt'")):
        FolderFrames(path, ends_of([3, 4]))


def test_an_episode_that_is_left_out_needs_an_empty_folder_at_most(tmp_path):
    need("folder")
    path = write_folder(tmp_path / "f", pictures(7), [3, 4], "picture")
    (path / "run00").mkdir()  # between run0 and run1
    ends, numbers = ends_of([3, 5, 4]), np.array([0, 2])
    np.testing.assert_array_equal(gathered(FolderFrames(path, ends, numbers)), pictures(7))
    (path / "run00").rmdir()
    with pytest.raises(DataError, match=naming("2 episodes", 3, "empty folder")):
        FolderFrames(path, ends, numbers)


# Recorded data --------------------------------------------------------------------------------------------------------

VIDEOS = {
    "pusht/lerobot_v30/videos/observation.image/chunk-000/file-000.mp4": 25650,
    "cr5_banana_plate/lerobot/videos/chunk-000/observation.images.top/episode_000000.mp4": 197,
    "g1_yellow_bottle/lerobot/videos/chunk-000/observation.images.cam_high/episode_000001.mp4": 277,
    "gr00t_gr1_picknplace/lerobot/videos/chunk-000/observation.images.ego_view/episode_000002.mp4": 470,
    "lingzu_open50_v30/lerobot/videos/image/chunk-000/file-028.mp4": 440,
    "lingzu_open50_v30/lerobot/videos/image/chunk-000/file-038.mp4": 362,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", VIDEOS)
def test_recorded_video_equals_what_the_ffmpeg_command_decodes_bit_for_bit(name):
    pytest.importorskip("av")
    path, ffmpeg = RECORDED / name, shutil.which("ffmpeg")
    if not path.exists() or ffmpeg is None:
        pytest.skip(f"NOT CHECKED against an independent decoder: {path if ffmpeg else 'ffmpeg'} is not there")
    command = [ffmpeg, "-v", "error", "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    size = size_of(path)
    with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
        for block in read_video(path, size, {"0": VIDEOS[name]}):
            assert other.stdout.read(block.nbytes) == block.tobytes()
        assert other.stdout.read() == b""


def test_a_folder_per_episode_may_hold_a_video_for_each_camera(tmp_path):
    """As Diffusion Policy's real robot records: videos/<episode>/<camera>.mp4."""
    need("folder")
    frames = {camera: pictures(9, seed=camera) for camera in (0, 1)}
    for camera, episode, rows in ((camera, *one) for camera in (0, 1) for one in ((2, slice(0, 4)), (10, slice(4, 9)))):
        write_video(tmp_path / f"videos/{episode}/{camera}.mp4", frames[camera][rows])
    for camera in (0, 1):
        source = FolderFrames(tmp_path / "videos", ends_of([4, 5]), file=f"{camera}.mp4")
        np.testing.assert_array_equal(gathered(source), frames[camera])
        assert source.describe() == {"format": "video per episode", "file": f"{camera}.mp4"}
    with pytest.raises(DataError, match=naming("videos/2", "0.mp4", "1.mp4", '"file": "0.mp4"')):
        FolderFrames(tmp_path / "videos", ends_of([4, 5]))
    with pytest.raises(DataError, match=naming("2/7.mp4", "videos/10/7.mp4")):
        FolderFrames(tmp_path / "videos", ends_of([4, 5]), file="7.mp4")
    (tmp_path / "videos/3").mkdir()  # between 2 and 10, without a video
    source = FolderFrames(tmp_path / "videos", ends_of([4, 6, 5]), np.array([0, 2]), "1.mp4")
    np.testing.assert_array_equal(gathered(source), frames[1])
