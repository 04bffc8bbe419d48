"""Images in .npz files: published layouts, and one line for each thing that is wrong."""

import io
import zipfile

import numpy as np
import pytest

from dp_prior.data.errors import DataError
from dp_prior.data.pictures.npz import NpzImagesConfig
from tests.data.pictures.sets import images
from tests.messages import naming


def source(path, arrays, **config):
    np.savez_compressed(path / "a.npz", **arrays)
    return NpzImagesConfig(path=path / "a.npz", **config).create(labelled="label" in "".join(arrays), uniform=True)


@pytest.mark.parametrize("shape", [(5, 4), (5, 4, 1), (5, 4, 3), (5, 4, 4)])
def test_greyscale_rgb_and_alpha(shape, tmp_path, monkeypatch):
    monkeypatch.setattr("dp_prior.data.pictures.image_source.IMAGES_AT_ONCE", 3)
    monkeypatch.setattr("dp_prior.data.frames.BLOCK_BYTES", 200)
    pixels = np.random.default_rng(0).integers(256, size=(7, *shape), dtype=np.uint8)
    found = source(tmp_path, {"images": pixels})
    assert len(found) == 7 and found.size == (5, 4) and found.ends.tolist() == [3, 6, 7] and len(found.parts) == 1
    expected = pixels if len(shape) == 3 else pixels[..., None]
    if shape[2:] == (4,):
        alpha = pixels[..., 3:] / 255
        expected = np.round(pixels[..., :3] * alpha + 255 * (1 - alpha)).astype(np.uint8)
    for skip in (0, 4):
        blocks = np.concatenate(list(found.read(found.parts[0], skip)))
        assert np.array_equal(blocks, np.broadcast_to(expected, (7, 5, 4, 3))[skip:])


def test_arrays_are_those_named_or_those_of_published_files(tmp_path):
    pixels, labels = images(6)
    arrays = {"images": pixels, "labels": np.arange(6)[:, None] % 2, "arr_0": pixels[:4], "arr_1": np.array(labels[:4])}
    assert source(tmp_path, arrays).classes == ("0", "1")
    found = source(tmp_path, arrays, images="arr_0", labels="arr_1")
    assert len(found) == 4 and found.classes == ("cat", "dog")


@pytest.mark.parametrize(
    ("arrays", "config", "message"),
    [
        ({"x": np.zeros(3)}, {}, ("'images'", "'arr_0'", "x")),
        ({"images": np.zeros((3, 4, 4), np.uint8)}, {"images": "image"}, ("'image'", "'images'")),
        ({"images": np.zeros((3, 4, 4, 3))}, {}, ("float64", "(3, 4, 4, 3)", "uint8")),
        ({"images": np.zeros((3, 3, 4, 4, 1), np.uint8)}, {}, ("uint8", "(3, 3, 4, 4, 1)")),
        ({"images": np.zeros((3, 2, 4, 4), np.uint16)}, {}, ("uint16", "a.npz[images]", "(3, 2, 4, 4)")),
        ({"images": np.zeros((0, 4, 4), np.uint8)}, {}, ("a.npz", "no images")),
        ({"images": np.zeros((2, 0, 4), np.uint8)}, {}, ("a.npz[images]", "size 0")),
        ({"images": np.asfortranarray(np.zeros((2, 4, 4), np.uint8))}, {}, ("a.npz[images]", "np.ascontiguousarray")),
        (
            {"images": np.zeros((2, 4, 4), np.uint8), "labels": np.arange(3)},
            {},
            ("a.npz[labels]", "3 labels", "2 images"),
        ),
        (
            {"images": np.zeros((2, 4, 4), np.uint8), "labels": np.zeros((2, 3), int)},
            {},
            ("int64", "(2, 3)", "(N,)"),
        ),
        ({"images": np.zeros((2, 4, 4), np.uint8), "labels": np.array(3)}, {}, ("int64", "()")),
        (
            {"images": np.zeros((2, 4, 4), np.uint8), "labels": np.array([None, 1])},
            {},
            ("a.npz[labels]", "object", "(2,)", "(N,)"),
        ),
    ],
)
def test_files_that_are_refused(arrays, config, message, tmp_path):
    with pytest.raises(DataError, match=naming(*message)):
        source(tmp_path, arrays, **config)


def test_damaged_and_missing_files_are_named(tmp_path):
    found = source(tmp_path, {"images": images(200)[0]})
    path = tmp_path / "a.npz"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(data)
    with pytest.raises(DataError, match=naming("a.npz[images]", "CRC-32")):
        list(found.read(found.parts[0], 0))
    path.write_bytes(data[:100])
    with pytest.raises(DataError, match=naming("a.npz", "zip")):
        NpzImagesConfig(path=path).create(labelled=False, uniform=True)
    with pytest.raises(DataError, match=naming("data.source.path", "b.npz")):
        NpzImagesConfig(path=tmp_path / "b.npz").create(labelled=False, uniform=True)


@pytest.mark.promise("K8", "K12")
def test_sizes_are_checked_before_memory_is_taken(tmp_path):
    """A header of a trillion images, and a million labels for nine images."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (10**12, 8, 8)})
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("images.npy", header.getvalue() + bytes(640))
    with pytest.raises(DataError, match=naming(640, 64000000000000)):
        NpzImagesConfig(path=tmp_path / "a.npz").create(labelled=False, uniform=True)
    pixels = np.zeros((9, 4, 5, 3), np.uint8)
    with pytest.raises(DataError, match=naming("1000000 labels", "9 images")):
        source(tmp_path, {"images": pixels, "labels": np.zeros(10**6, np.uint8)})
