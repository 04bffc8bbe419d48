"""Depth in arrays, pictures and videos is the metres that were stored."""

import io

import numpy as np
import pytest

from dp_prior.data.errors import DataError
from dp_prior.data.frames.depths import Depths
from dp_prior.data.frames.folder import FolderFrames
from dp_prior.data.frames.stored_pixels import PixelError
from tests.data.frames.recordings import write_video
from tests.messages import naming

SIZE = (24, 32)
MILLIMETRES = np.random.default_rng(0).integers(0, 4000, (7, *SIZE)).astype(np.uint16)
METRES = (MILLIMETRES.astype(np.float32) * np.float32(0.001))[..., None]


def picture(values, kind):
    image = pytest.importorskip("PIL.Image", reason="NOT CHECKED: Pillow is not installed")
    stream = io.BytesIO()
    image.fromarray(values).save(stream, kind)
    return stream.getvalue()


@pytest.mark.parametrize("axes", [(), (1,), (3,)], ids=["no channel", "channel first", "channel last"])
@pytest.mark.parametrize(
    ("dtype", "unit"), [("uint16", None), ("int32", 0.001), ("float32", 0.001), ("float64", 0.001), ("float16", 2.0)]
)
def test_arrays_of_any_layout_and_type_are_their_numbers_times_the_unit(dtype, unit, axes):
    values = MILLIMETRES.astype(dtype) if dtype != "float16" else (MILLIMETRES % 2048).astype(dtype)
    expected = values.astype(np.float32) * np.float32(unit or 0.001)
    values = np.expand_dims(values, axes)
    stored = Depths(unit).stored(values.shape, values.dtype)
    stored.check(lambda: values)
    found = stored.frames(values)
    assert stored.size == SIZE and found.dtype == np.float32 and found.shape == (7, *SIZE, 1)
    np.testing.assert_array_equal(found[..., 0], expected)


def test_floats_are_metres_unless_told_and_no_distance_is_0():
    odd = np.array([[[0.5, 0, -1, np.nan, np.inf, -np.inf, 1e39]]])
    np.testing.assert_array_equal(Depths().metres(odd), np.array([[[0.5, 0, 0, 0, 0, 0, 0]]], np.float32))


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_pictures_of_16_bits_and_of_floats_are_the_arrays(kind):
    found = Depths().decode(picture(MILLIMETRES[0], kind), "a", SIZE)
    np.testing.assert_array_equal(found, METRES[0])
    if kind == "TIFF":
        np.testing.assert_array_equal(Depths().decode(picture(METRES[0, ..., 0], kind), "a", None), METRES[0])


def test_videos_of_more_than_8_bits_are_the_arrays(tmp_path):
    pytest.importorskip("av", reason="NOT CHECKED: PyAV is not installed")
    write_video(tmp_path / "front" / "0.mkv", MILLIMETRES[:4], codec="ffv1", pix_fmt="gray16le", options={})
    write_video(tmp_path / "front" / "1.mkv", MILLIMETRES[4:], codec="ffv1", pix_fmt="gray12le", options={})
    source = FolderFrames(tmp_path / "front", np.array([4, 7]), contents=Depths())
    found = np.concatenate([block for part in source.parts for block in source.read(part, 0)])
    np.testing.assert_array_equal(found, METRES)
    assert source.size == SIZE and source.describe()["depth"] is None


def test_a_folder_of_pictures_is_depth_too(tmp_path):
    (tmp_path / "front" / "0").mkdir(parents=True)
    for number, values in enumerate(MILLIMETRES):
        (tmp_path / "front" / "0" / f"{number}.png").write_bytes(picture(values, "PNG"))
    source = FolderFrames(tmp_path / "front", np.array([7]), contents=Depths(0.002))
    (block,) = source.read(source.parts[0], 0)
    np.testing.assert_array_equal(block, MILLIMETRES[..., None].astype(np.float32) * np.float32(0.002))


@pytest.mark.parametrize(
    ("values", "named"),
    [
        (np.zeros((2, 8, 8, 3), np.uint8), ("uint8", "(2, 8, 8, 3)", "data.images")),
        (np.zeros((2, 8, 8), np.uint8), ("uint8", "(N, H, W)")),
        (np.zeros((2, 8, 8, 2), np.uint16), ("(2, 8, 8, 2)", "(N, H, W, 1)")),
        (np.zeros((2, 8), np.float32), ("float32", "(2, 8)")),
        (np.zeros((2, 0, 8), np.uint16), ("(2, 0, 8)",)),
    ],
)
def test_an_array_of_something_else_is_refused(values, named):
    with pytest.raises(PixelError, match=naming(*named)):
        Depths().stored(values.shape, values.dtype)


def test_a_picture_of_something_else_is_refused():
    eight = picture((MILLIMETRES[0] % 256).astype(np.uint8), "PNG")
    for data, size, named in (
        (eight, SIZE, ("L", 16)),
        (picture(MILLIMETRES[0], "PNG"), (4, 5), ("24 x 32", "4 x 5")),
        (b"no picture", SIZE, ("here", "PNG")),
    ):
        with pytest.raises(DataError, match=naming("here", *named)):
            Depths().decode(data, "here", size)


def test_a_video_of_8_bits_is_refused(tmp_path):
    pytest.importorskip("av", reason="NOT CHECKED: PyAV is not installed")
    few = (MILLIMETRES % 256).astype(np.uint8)
    write_video(tmp_path / "front" / "0.mkv", few, codec="ffv1", pix_fmt="gray", options={})
    with pytest.raises(DataError, match=naming("0.mkv", "gray", "8 bit", "gray16le")):
        FolderFrames(tmp_path / "front", np.array([7]), contents=Depths())
