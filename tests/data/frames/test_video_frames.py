"""A video gives the frames that were encoded, in the order of display and upright, or is refused by name."""

import os
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest

from dp_prior.data.errors import DataError
from dp_prior.data.frames.folder import FolderFrames
from dp_prior.data.frames.video_frames import _unevenly_spaced, read_video, size_of, turned, wrong_count
from tests.data.frames.recordings import ends_of, pictures, write_video
from tests.data.frames.sources import gathered
from tests.messages import naming, told

pytestmark = pytest.mark.usefixtures("small_blocks")


def write_turned(path, frames, matrix):
    """A lossless mp4 whose track header says a, b, c, d of the display matrix."""
    data = bytearray(write_video(path, frames).read_bytes())
    place = data.find(b"tkhd") + 44
    a, b, c, d = (value << 16 for value in matrix)
    data[place : place + 36] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    "matrix, turns", [((1, 0, 0, 1), 0), ((0, -1, 1, 0), 1), ((-1, 0, 0, -1), 2), ((0, 1, -1, 0), 3)]
)
def test_a_video_is_turned_as_its_display_matrix_says(matrix, turns, tmp_path):
    pytest.importorskip("av")
    frames = pictures(5)
    write_turned(tmp_path / "videos" / "episode_0.mp4", frames, matrix)
    source = FolderFrames(tmp_path / "videos", ends_of([5]))
    np.testing.assert_array_equal(gathered(source), np.rot90(frames, turns, axes=(1, 2)))
    upright = {"format": "video per episode"}
    assert source.describe() == (upright if not turns else {**upright, "turned": 90 * turns})


def test_a_video_that_is_mirrored_is_refused(tmp_path):
    pytest.importorskip("av")
    path = write_turned(tmp_path / "v.mp4", pictures(3), (-1, 0, 0, 1))
    with pytest.raises(DataError, match=naming("v.mp4", "display matrix", "quarter turns")):
        size_of(path)


def test_greyscale_is_repeated(tmp_path):
    pytest.importorskip("av")
    frames = np.repeat(pictures(4)[..., :1], 3, axis=3)
    path = write_video(tmp_path / "v.mkv", frames, codec="ffv1", pix_fmt="gray", options={})
    found = np.concatenate(list(read_video(path, size_of(path), {"0": 4})))
    assert (found == found[..., :1]).all()
    assert np.abs(found.astype(int) - frames).max() <= 1, "the test's own conversion to greyscale"
    assert turned(path) == {}


RECORDED = Path(__file__).parents[3].parent / "shared" / "data"


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


def test_a_video_with_a_palette_is_refused_by_name(tmp_path):
    av = pytest.importorskip("av")
    with av.open(str(tmp_path / "v.mov"), "w") as container:
        stream = container.add_stream("png", rate=10)
        stream.height, stream.width, stream.pix_fmt = 24, 32, "pal8"
        frame = av.VideoFrame.from_ndarray((np.zeros((24, 32), np.uint8), np.zeros((256, 4), np.uint8)), format="pal8")
        container.mux([*stream.encode(frame), *stream.encode()])
    with pytest.raises(DataError, match=naming("v.mov", "pal8", "palette", "8 bit")):
        size_of(tmp_path / "v.mov")


def test_what_is_no_file_of_one_video_says_what_it_is(tmp_path):
    av = pytest.importorskip("av")
    with av.open(str(tmp_path / "sound.mkv"), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=8000)
        sound = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), layout="mono")
        sound.rate = 8000
        container.mux([*stream.encode(sound), *stream.encode()])
    os.mkfifo(tmp_path / "pipe.mp4")
    (tmp_path / "folder.mp4").mkdir()
    for name, found in {"sound.mkv": "0 video streams", "pipe.mp4": "named pipe", "folder.mp4": "folder"}.items():
        with pytest.raises(DataError, match=naming(name, found)):
            size_of(tmp_path / name)


def test_another_size_within_a_camera_is_named(video):
    with pytest.raises(DataError, match=naming("frame 0", "24 x 32", "48 x 64")):
        read_all(video, {"0": 40}, size=(48, 64))


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


@pytest.mark.parametrize(
    ("times", "number"),
    [
        ([0, 10, 20, 30], None),
        ([0, 10, 24, 34], None),
        ([0, 10, 20, 24, 34], 3),
        ([0, 10, 20, 36, 46], 3),
        ([0, 10, 10, 20, 30], 2),
        ([0, 10, 20, 10, 20], 3),
        ([0, 10, None, 30], 2),
        ([7], None),
        ([], None),
        ([0, 1, 2, 3, 4, 100, 101], 5),
    ],
)
def test_the_first_frame_off_the_usual_time_is_told(times, number):
    found = _unevenly_spaced(times)
    assert (None if found is None else found[0]) == number
    assert found is None or told(found[1], f"frame {number}")


@pytest.mark.parametrize(("count", "fits"), [(27, False), (28, True), (30, True), (33, True), (34, False)])
def test_a_faster_camera_may_stop_within_the_last_row_or_one_row_later(count, fits):
    problem = wrong_count(count, {"a": 10}, 3)
    assert (problem is None) == fits and (fits or told(problem, f"{count} frames", "28 to 33"))
    assert wrong_count(610, {"a": 100}, 6) is None and wrong_count(631, {"a": 100}, 6) is not None, "5 % of the time"


@pytest.mark.parametrize(
    ("count", "words"), [(2, ("episode a", "2 of 3")), (3, ("episode b", "0 of 4")), (6, ("episode b", "3 of 4"))]
)
def test_a_short_video_ends_in_the_episode_of_its_first_lost_frame(count, words):
    assert wrong_count(7, {"a": 3, "b": 4}, None) is None
    assert told(wrong_count(count, {"a": 3, "b": 4}, None), f"holds {count} frames", "7 rows", *words)


@pytest.mark.parametrize(("count", "how"), [(41, "-frames:v 40"), (42, "-frames:v 40"), (50, "fps="), (120, "fps=")])
def test_a_video_of_another_rate_is_not_cut_to_its_first_frames(count, how):
    advice = wrong_count(count, {"a": 40}, None)
    assert [way for way in ("-frames:v 40", "fps=") if way in advice] == [how]


@pytest.mark.parametrize("skip", [0, 1, 4])
def test_frames_that_are_skipped_are_the_first(tmp_path, skip):
    pytest.importorskip("av")
    frames = pictures(5)
    video = write_video(tmp_path / "v.mp4", frames)
    read = [block.copy() for block in read_video(video, frames.shape[1:3], {"a": 2, "b": 3}, skip)]
    np.testing.assert_array_equal(np.concatenate(read), frames[skip:])
