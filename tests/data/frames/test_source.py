"""Every format gives the pixels that were written, frame for frame; whatever would not is refused by name."""

import errno
import hashlib
import json
import os
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from dp_prior.data import frames as frames_module
from dp_prior.data.episodes.lerobot import LeRobotStoreConfig
from dp_prior.data.episodes.npz import NpzStoreConfig
from dp_prior.data.episodes.robomimic import RobomimicStoreConfig
from dp_prior.data.episodes.zarr import ZarrStoreConfig
from dp_prior.data.errors import DataError, UnreadableError
from dp_prior.data.frames.cache import FrameCache
from dp_prior.data.frames.folder import FolderFrames
from dp_prior.data.frames.source import open_source
from dp_prior.data.frames.video import read_video, size_of
from dp_prior.resize import Fit
from tests.data.frames.recordings import (
    KEY,
    ends_of,
    pictures,
    png,
    write_folder,
    write_lerobot,
    write_npz,
    write_robomimic,
    write_video,
    write_zarr,
    zip_of,
)

LENGTHS = [3, 7, 1, 4, 2, 5, 1, 1, 6, 2, 3, 8]  # twelve: names sort 10 before 2
RECORDED = Path(__file__).parents[3].parent / "shared" / "data"

LEROBOT = {f"lerobot {version} {kind}": (version, kind) for version in ("v2.1", "v3.0") for kind in ("video", "image")}
FORMATS = ["zarr v2", "zarr v3", "zarr zip", "zarr channels first", "npz", "robomimic", *LEROBOT]
FORMATS += ["folder of pictures", "folder of videos"]
NEEDS = {"zarr": ["zarr"], "robomimic": ["h5py"], "lerobot": ["pyarrow", "av", "PIL"], "folder": ["av", "PIL"]}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Seven frames at a time, so that episodes and blocks end at different frames."""
    monkeypatch.setattr(frames_module, "BLOCK_BYTES", 7 * 24 * 32 * 3)


def need(format):
    for package in NEEDS.get(format.split()[0], []):
        pytest.importorskip(package)


def written(format, path, frames, lengths=LENGTHS):
    """The source of frames written in a format."""
    need(format)
    ends = ends_of(lengths)
    if format.startswith("folder"):
        return FolderFrames(write_folder(path / "frames", frames, lengths, format[10:].rstrip("s")), ends)
    if format == "npz":
        store = NpzStoreConfig(path=write_npz(path / "d.npz", frames, lengths)).create()
    elif format == "robomimic":
        store = RobomimicStoreConfig(path=write_robomimic(path / "d.hdf5", frames, lengths)).create()
        return open_source(store, f"obs/{KEY}", ends)
    elif format.startswith("lerobot"):
        store = LeRobotStoreConfig(path=write_lerobot(path / "d", frames, lengths, *LEROBOT[format])).create()
    else:
        if format == "zarr channels first":
            frames = np.ascontiguousarray(frames.transpose(0, 3, 1, 2))
        folder = write_zarr(path / "d", frames, lengths, version=3 if format == "zarr v3" else 2)
        store = ZarrStoreConfig(path=zip_of(folder) if format == "zarr zip" else folder).create()
    return open_source(store, KEY, ends)


def gathered(source, skip=0):
    """All frames by row, read part by part."""
    ends, lengths = source.ends, np.diff(source.ends, prepend=0)
    found = np.zeros((ends[-1], *source.size, 3), np.uint8)
    for part in source.parts:
        rows = np.concatenate([np.arange(ends[e] - lengths[e], ends[e]) for e in part.episodes])[skip:]
        blocks = [block.copy() for block in source.read(part, skip)]
        if len(rows):
            found[rows] = np.concatenate(blocks)
    return found


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


# Arrays ---------------------------------------------------------------------------------------------------------------

ARRAYS = {
    "grey": (pictures(6)[..., 0], r"holds uint8 of shape \(6, 24, 32\), which is greyscale; expected .*np.stack"),
    "grey channel": (pictures(6)[..., :1], r"of shape \(6, 24, 32, 1\), which is greyscale; .*axis=3"),
    "grey first": (pictures(6)[:, None, ..., 0], r"of shape \(6, 1, 24, 32\), which is greyscale; .*axis=1"),
    "alpha": (np.ones((6, 24, 32, 4), np.uint8), r"has 4 channels \(alpha or depth\).*x\[..., :3\]"),
    "alpha first": (np.ones((6, 4, 24, 32), np.uint8), r"has 4 channels \(alpha or depth\).*x\[:, :3\]"),
    "depth": (np.ones((6, 24, 32), np.uint16), r"holds uint16 of shape \(6, 24, 32\), which may be depth"),
    "16 bit": (np.ones((6, 24, 32, 3), np.uint16), r"holds uint16 .*may be depth or 16 bit pictures; expected"),
    "unit": (pictures(6).astype(np.float32) / 255, r"holds float32 .* with values from 0 to 1; .*np.round\(x \* 255\)"),
    "float": (pictures(6).astype(np.float64), r"with values from 0 to 255; .*np.round\(x\).astype\(np.uint8\)"),
    "signed": (np.ones((6, 24, 32, 3), np.int8), r"holds int8 of shape .*; expected \(N, H, W, 3\) uint8"),
    "either": (np.ones((6, 3, 32, 3), np.uint8), r"whether channels come first or last cannot be told"),
    "five": (np.ones((6, 5, 32, 5), np.uint8), r"has no axis of 3 channels"),
    "state": (np.ones((6, 2), np.uint8), r"is no array of pictures; .*If they are PNG or JPEG, decode them, or write"),
    "long": (pictures(7), r"holds 7 frames, but the episodes have 6 rows; expected one per row"),
    "short": (pictures(5), r"holds 5 frames, but the episodes have 6 rows"),
}


@pytest.mark.parametrize("format", ["zarr v2", "zarr v3", "npz"])
@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_that_are_no_rgb_pictures_are_refused_by_name(format, name, tmp_path):
    values, message = ARRAYS[name]
    with pytest.raises(DataError, match=message):
        written(format, tmp_path, values, [2, 4])


@pytest.mark.parametrize("name", ["grey", "grey channel", "grey first", "alpha", "alpha first", "unit", "float"])
def test_what_the_remedy_makes_of_them_is_read(name, tmp_path):
    values, _ = ARRAYS[name]
    with pytest.raises(DataError) as caught:
        written("npz", tmp_path, values, [2, 4])
    remedy = re.search(r"(np\.|x\[).*", str(caught.value))[0]
    repaired = eval(remedy, {"np": np, "x": values})
    found = gathered(written("npz", tmp_path, repaired, [2, 4]))
    expected = np.ones_like(found) if "alpha" in name else pictures(6)
    np.testing.assert_array_equal(found[..., 0], expected[..., 0])


def test_missing_and_short_chunks_are_named(tmp_path):
    pytest.importorskip("zarr")
    folder = write_zarr(tmp_path / "d", pictures(12), [4, 8])
    store = ZarrStoreConfig(path=folder).create()
    chunk = folder / f"data/{KEY}/1.0.0.0"
    whole = chunk.read_bytes()
    chunk.write_bytes(whole[:-9])
    with pytest.raises(DataError, match="chunk|cannot be read"):
        gathered(open_source(store, KEY, store.episode_ends))
    chunk.unlink()
    with pytest.raises(DataError, match=r"1 of 3 chunks are missing: 1.0.0.0 \(rows 5 to 9, episode 1\).*Copy"):
        open_source(store, KEY, store.episode_ends)


def test_a_fortran_array_is_refused_and_a_damaged_archive_named(tmp_path):
    path = tmp_path / "d.npz"
    np.savez(path, **{KEY: np.asfortranarray(pictures(6)), "episode_ends": ends_of([6])})
    with pytest.raises(DataError, match="Fortran order; save np.ascontiguousarray"):
        gathered(open_source(NpzStoreConfig(path=path).create(), KEY, ends_of([6])))
    write_npz(path, pictures(60), [60])
    store = NpzStoreConfig(path=path).create()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(data)
    with pytest.raises(DataError, match="frames of rows 0 to 59 cannot be read"):
        gathered(open_source(store, KEY, ends_of([60])))


def test_a_demonstration_without_the_camera_or_with_another_size_is_named(tmp_path):
    h5py = pytest.importorskip("h5py")
    path = write_robomimic(tmp_path / "d.hdf5", pictures(12), [4, 8])
    with h5py.File(path, "a") as file:
        del file[f"data/demo_1/obs/{KEY}"]
    store = RobomimicStoreConfig(path=path).create()
    with pytest.raises(DataError, match=f"data/demo_1 has no 'obs/{KEY}', but data/demo_0 has one"):
        open_source(store, f"obs/{KEY}", store.episode_ends)
    with h5py.File(path, "a") as file:
        file[f"data/demo_1/obs/{KEY}"] = pictures(8, 10, 10)
    with pytest.raises(DataError, match=r"data/demo_1/obs/image holds uint8 of shape \(8, 10, 10, 3\); expected"):
        open_source(store, f"obs/{KEY}", store.episode_ends)


def test_filters_that_select_as_many_rows_have_caches_of_their_own(tmp_path):
    h5py = pytest.importorskip("h5py")
    path = write_robomimic(tmp_path / "d.hdf5", pictures(12), [4, 4, 4])
    with h5py.File(path, "a") as file:
        file["mask/a"], file["mask/b"] = np.array([b"demo_0", b"demo_1"]), np.array([b"demo_0", b"demo_2"])
    found = {}
    for name in ("a", "b"):
        store = RobomimicStoreConfig(path=path, filter=name).create()
        source = open_source(store, f"obs/{KEY}", store.episode_ends)
        cache = FrameCache(source, Fit(size=(24, 32)), tmp_path)
        found[cache.digest] = cache.open().rows(torch.arange(4, 8)).numpy()
    np.testing.assert_array_equal(np.concatenate(list(found.values())), pictures(12)[4:])


def test_an_unknown_key_names_the_nearest(tmp_path):
    store = NpzStoreConfig(path=write_npz(tmp_path / "d.npz", pictures(3), [3])).create()
    with pytest.raises(DataError, match="has no key 'imag'. Did you mean 'image'"):
        open_source(store, "imag", ends_of([3]))
    with pytest.raises(DataError, match="has no episodes"):
        open_source(store, KEY, ends_of([]))


def test_a_store_of_another_package_has_no_frames(tmp_path):
    class Other:
        def keys(self):
            return {"image": (4, 4, 3)}

        def describe(self):
            return {"path": "there"}

    with pytest.raises(DataError, match="frames are not read by Other; give them as files in data.images"):
        open_source(Other(), "image", np.array([3]))


def test_a_camera_without_a_place_in_the_episode_list_is_named(tmp_path):
    store = lerobot(tmp_path, pictures(9), [3, 3, 3], "v3.0", "video")
    listing = store.path / "meta/episodes/chunk-000/file-000.parquet"
    change_parquet(listing, lambda columns: columns.pop(f"videos/{KEY}/from_timestamp"))
    with pytest.raises(DataError, match="has no column 'videos/image/from_timestamp', so camera 'image' has no videos"):
        open_source(store, KEY, store.episode_ends)


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
        ({"7": 39}, "holds 40 frames, but its episode 7 has 39 rows. Encode it again with one frame per row"),
        ({"7": 41}, "holds 40 frames, but its episode 7 has 41 rows: it ends in episode 7 after 40 of 41 frames"),
        ({"3": 20, "4": 25}, "its episodes 3 to 4 have 45 rows: it ends in episode 4 after 20 of 25 frames"),
    ],
)
def test_a_frame_too_few_or_too_many_names_file_episode_expected_and_found(video, lengths, message):
    with pytest.raises(DataError, match=message) as error:
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
            return real.reformat(frame, **how)

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
        with pytest.raises(DataError, match=r"cannot be decoded after \d+ frames|holds \d+ frames, but|is damaged"):
            read_all(path, {"0": 40})
    whole = write_video(tmp_path / "v.mp4", pictures(40))
    whole.write_bytes(whole.read_bytes()[:-2000])
    with pytest.raises(DataError, match=r"cannot be decoded after 0 frames: .*copy or encode it again"):
        read_all(whole, {"0": 40})


@pytest.mark.parametrize("content", [b"", b"no video at all" * 100])
def test_a_file_that_is_no_video_is_refused(content, tmp_path):
    pytest.importorskip("av")
    path = tmp_path / "v.mp4"
    path.write_bytes(content)
    with pytest.raises(DataError, match="cannot be decoded after 0 frames"):
        size_of(path)
    with pytest.raises(DataError, match="no such file"):
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
    with pytest.raises(DataError, match=f"frame {dropped} comes .* others .*: a frame was dropped or repeated"):
        read_all(path, {"0": 40})


def test_timestamps_rounded_to_milliseconds_are_evenly_spaced(tmp_path):
    pytest.importorskip("av")
    path = write_video(tmp_path / "v.mkv", pictures(40), fps=30, codec="ffv1", pix_fmt="bgr0", options={})
    assert len(read_all(path, {"0": 40})) == 40  # 33, 34, 33 ms: Matroska knows nothing finer


@pytest.mark.parametrize(
    "pix_fmt, message",
    [
        ("gray", r"pixel format gray \(greyscale\); expected 8 bit colour"),
        ("gray16le", r"pixel format gray16le \(16 bit, perhaps depth\)"),
        ("yuv420p10le", r"\(10 bit, perhaps depth\)"),
        ("bgra", r"pixel format bgra \(an alpha channel\)"),
    ],
)
def test_video_that_is_not_8_bit_colour_is_refused_by_name(pix_fmt, message, tmp_path):
    pytest.importorskip("av")
    path = write_video(tmp_path / "v.mkv", pictures(4), codec="ffv1", pix_fmt=pix_fmt, options={})
    with pytest.raises(DataError, match=message):
        size_of(path)


def test_another_size_within_a_camera_is_named(video):
    with pytest.raises(DataError, match="frame 0 is 24 x 32; expected 48 x 64 as in the other frames of this camera"):
        read_all(video, {"0": 40}, size=(48, 64))


# LeRobot --------------------------------------------------------------------------------------------------------------


def lerobot(path, *args, **how):
    for package in NEEDS["lerobot"]:
        pytest.importorskip(package)
    return LeRobotStoreConfig(path=write_lerobot(path / "d", *args, **how)).create()


def change_parquet(path, change):
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = pq.read_table(path).to_pydict()
    change(columns)
    pq.write_table(pa.table(columns), path)


def test_episodes_without_video_are_all_listed(tmp_path):
    store = lerobot(tmp_path, pictures(9), [3, 3, 3], "v2.1", "video")
    for episode in (0, 2):
        (store.path / f"videos/chunk-000/{KEY}/episode_{episode:06d}.mp4").unlink()
    with pytest.raises(
        DataError, match="episode_000000.mp4: no such file; 'image' of episode 0 belongs there"
    ) as error:
        open_source(store, KEY, store.episode_ends)
    assert [("episode_000002.mp4" in line) for line in error.value.problems] == [False, True]


def test_an_episode_that_begins_at_another_frame_is_named(tmp_path):
    store = lerobot(tmp_path, pictures(9), [3, 3, 3], "v3.0", "video")

    def shift(columns):
        columns[f"videos/{KEY}/from_timestamp"][1] += 0.1

    change_parquet(store.path / "meta/episodes/chunk-000/file-000.parquet", shift)
    with pytest.raises(
        DataError, match=r"file-000.mp4: episode 1 begins at frame 4 \(from_timestamp x fps\); expected 3"
    ):
        open_source(store, KEY, store.episode_ends)


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), "soon"])
def test_a_place_that_is_none_is_named(value, tmp_path):
    store = lerobot(tmp_path, pictures(9), [3, 3, 3], "v3.0", "video")

    def spoil(columns):
        values = columns[f"videos/{KEY}/from_timestamp"]
        columns[f"videos/{KEY}/from_timestamp"] = [value] * 3 if value == "soon" else [values[0], value, values[2]]

    change_parquet(store.path / "meta/episodes/chunk-000/file-000.parquet", spoil)
    with pytest.raises(DataError, match="has no usable place in the videos of 'image'"):
        open_source(store, KEY, store.episode_ends)


def test_episodes_may_lie_in_the_video_in_another_order_than_in_the_rows(tmp_path):
    frames, lengths = pictures(9), [2, 3, 4]
    store = lerobot(tmp_path, frames, lengths, "v3.0", "video")

    def swap(columns):  # episode 2 first, then 0, then 1
        columns[f"videos/{KEY}/from_timestamp"] = [0.4, 0.6, 0.0]

    change_parquet(store.path / "meta/episodes/chunk-000/file-000.parquet", swap)
    write_video(store.path / f"videos/{KEY}/chunk-000/file-000.mp4", np.concatenate([frames[5:], frames[:5]]))
    np.testing.assert_array_equal(gathered(open_source(store, KEY, store.episode_ends)), frames)


def test_depth_by_declaration_and_columns_that_are_no_camera_are_refused(tmp_path):
    store = lerobot(tmp_path, pictures(4), [4], "v2.1", "video", info={"info": {"video.is_depth_map": True}})
    with pytest.raises(DataError, match="key 'image' is depth .*; only RGB is read"):
        open_source(store, KEY, store.episode_ends)
    with pytest.raises(DataError, match="key 'action' is float32; expected video or image. .*It has: image"):
        open_source(store, "action", store.episode_ends)


def test_a_template_that_leaves_the_data_set_is_refused(tmp_path):
    store = lerobot(tmp_path, pictures(4), [4], "v2.1", "video")
    info = json.loads((store.path / "meta/info.json").read_text())
    (store.path / "meta/info.json").write_text(json.dumps({**info, "video_path": "../{video_key}.mp4"}))
    store = LeRobotStoreConfig(path=store.path).create()
    with pytest.raises(DataError, match="video_path '../{video_key}.mp4' leaves the data set"):
        open_source(store, KEY, store.episode_ends)


@pytest.mark.parametrize(
    "spoil, message",
    [
        (lambda frame: {"bytes": png(frame, "L")}, r"row 2: 1 problem\s+has mode L \(greyscale\); expected 8 bit RGB"),
        (lambda frame: {"bytes": png(frame, "RGBA")}, r"has mode RGBA \(an alpha channel\)"),
        (lambda frame: {"bytes": png(frame, "P")}, r"has mode P \(a palette\)"),
        (lambda frame: {"bytes": png(frame[..., 0].astype(np.uint16))}, r"has mode I;16 \(16 bit, perhaps depth\)"),
        (lambda frame: {"bytes": png(frame[:-1])}, r"is 23 x 32; expected 24 x 32 as in the other frames"),
        (lambda frame: {"bytes": png(frame)[:90]}, r"row 2: 1 problem\s+is no readable picture"),
        (lambda frame: {"bytes": b"GIF"}, r"is no readable picture"),
        (lambda frame: {"bytes": None}, r"row 2 has no bytes, perhaps only the path of a picture"),
    ],
)
def test_pictures_in_columns_that_are_not_alike_are_named(spoil, message, tmp_path):
    frames = pictures(4)
    store = lerobot(tmp_path, frames, [4], "v2.1", "image")

    def change(columns):
        columns[KEY][2] = {**columns[KEY][2], **spoil(frames[2])}

    change_parquet(store.path / "data/chunk-000/episode_000000.parquet", change)
    with pytest.raises(DataError, match=message):
        gathered(open_source(store, KEY, store.episode_ends))


def test_a_column_with_other_rows_than_the_episode_list_is_named(tmp_path):
    store = lerobot(tmp_path, pictures(4), [4], "v2.1", "image")
    change_parquet(
        store.path / "data/chunk-000/episode_000000.parquet",
        lambda columns: columns.update({name: values[:3] for name, values in columns.items()}),
    )
    with pytest.raises(DataError, match="holds 3 rows, but the episode list gives its episodes 4"):
        gathered(open_source(store, KEY, store.episode_ends))
    change_parquet(store.path / "data/chunk-000/episode_000000.parquet", lambda columns: columns.pop(KEY))
    with pytest.raises(DataError, match="key 'image' is missing; expected encoded pictures"):
        open_source(store, KEY, store.episode_ends)


# Folders --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["folder of pictures", "folder of videos", "lerobot v3.0 image"])
def test_files_that_the_system_refuses_to_read_are_no_damage(format, tmp_path, monkeypatch):
    source = written(format, tmp_path, pictures(sum(LENGTHS)))

    def refuse(path, *arguments, **named):
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr("av.open", refuse)
    monkeypatch.setattr("pyarrow.parquet.ParquetFile", refuse)
    monkeypatch.setattr("dp_prior.data.frames.folder.open_regular", refuse)
    with pytest.raises(UnreadableError, match="Input/output error") as error:
        gathered(source)
    assert error.value.errno == errno.EIO


def test_a_pipe_among_pictures_is_refused_without_waiting_for_its_writer(tmp_path):
    source = written("folder of pictures", tmp_path, pictures(sum(LENGTHS)))
    file = source.files()[-1]
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(DataError, match="is a named pipe, socket or device; expected a regular file"):
        gathered(source)


def test_folders_that_do_not_match_the_episodes_are_refused(tmp_path):
    need("folder")
    path = write_folder(tmp_path / "f", pictures(7), [3, 4], "picture")
    with pytest.raises(DataError, match="no such folder of frames"):
        FolderFrames(tmp_path / "g", ends_of([3, 4]))
    with pytest.raises(DataError, match="holds frames of 2 episodes; expected 3"):
        FolderFrames(path, ends_of([3, 4, 5]))
    with pytest.raises(DataError, match="run0 holds 3 pictures, but its episode has 4 rows") as error:
        FolderFrames(path, ends_of([4, 3]))
    assert len(error.value.problems) == 2
    (path / "run1/depth.exr").write_bytes(b"")
    (path / "run1/.DS_Store").write_bytes(b"")
    with pytest.raises(DataError, match=r"run1 holds 'depth.exr'; expected pictures \(.png"):
        FolderFrames(path, ends_of([3, 4]))
    (path / "notes.txt").write_text("")
    with pytest.raises(DataError, match="holds 'notes.txt'; expected"):
        FolderFrames(path, ends_of([3, 4]))


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


def test_recorded_video_has_one_frame_per_row_in_every_complete_set():
    pytest.importorskip("av")
    pytest.importorskip("pyarrow")
    sets = {
        "cr5_banana_plate": ("observation.images.top", (480, 640)),
        "gr00t_gr1_picknplace": ("observation.images.ego_view", (256, 256)),
    }
    for name, (key, size) in sets.items():
        path = RECORDED / name / "lerobot"
        if not path.exists():
            pytest.skip(f"NOT CHECKED against recorded data: {path} is not there")
        store = LeRobotStoreConfig(path=path).create()
        source = open_source(store, key, store.episode_ends)
        assert source.size == size
        part = source.parts[0]
        assert sum(map(len, source.read(part, 0))) == store.episode_ends[0]


def test_cameras_that_recorded_sets_declare_but_do_not_have_are_named():
    pytest.importorskip("av")
    pytest.importorskip("pyarrow")
    for name, key, count in (
        ("gr00t_gr1_picknplace", "observation.images.egoview", 5),
        ("lingzu_open50_v30", "image", 48),
    ):
        path = RECORDED / name / "lerobot"
        if not path.exists():
            pytest.skip(f"NOT CHECKED against recorded data: {path} is not there")
        store = LeRobotStoreConfig(path=path).create()
        with pytest.raises(DataError, match="no such file; ") as error:
            open_source(store, key, store.episode_ends)
        assert len(error.value.problems) == count
