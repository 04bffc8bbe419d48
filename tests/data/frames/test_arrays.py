"""Arrays of pictures in any format; what is none is refused by name, with what to do."""

import re

import numpy as np
import pytest
import torch

from dp_prior.data.errors import DataError
from dp_prior.data.formats.npz import NpzStoreConfig
from dp_prior.data.formats.robomimic import RobomimicStoreConfig
from dp_prior.data.formats.zarr.replay_buffer import ZarrStoreConfig
from dp_prior.data.frames.frame_cache import FrameCache
from dp_prior.pixels.resize import Fit
from tests.data.frames.recordings import (
    KEY,
    ends_of,
    pictures,
    write_npz,
    write_robomimic,
    write_zarr,
)
from tests.data.frames.sources import gathered, written

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
        gathered(store.frames(KEY, store.episode_ends))
    chunk.unlink()
    with pytest.raises(DataError, match=r"1 of 3 chunks are missing: 1.0.0.0 \(rows 5 to 9, episode 1\).*Copy"):
        store.frames(KEY, store.episode_ends)


def test_a_fortran_array_is_refused_and_a_damaged_archive_named(tmp_path):
    path = tmp_path / "d.npz"
    np.savez(path, **{KEY: np.asfortranarray(pictures(6)), "episode_ends": ends_of([6])})
    with pytest.raises(DataError, match="Fortran order; save np.ascontiguousarray"):
        gathered(NpzStoreConfig(path=path).create().frames(KEY, ends_of([6])))
    write_npz(path, pictures(60), [60])
    store = NpzStoreConfig(path=path).create()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(data)
    with pytest.raises(DataError, match="frames of rows 0 to 59 cannot be read"):
        gathered(store.frames(KEY, ends_of([60])))


def test_a_demonstration_without_the_camera_or_with_another_size_is_named(tmp_path):
    h5py = pytest.importorskip("h5py")
    path = write_robomimic(tmp_path / "d.hdf5", pictures(12), [4, 8])
    with h5py.File(path, "a") as file:
        del file[f"data/demo_1/obs/{KEY}"]
    store = RobomimicStoreConfig(path=path).create()
    with pytest.raises(DataError, match=f"data/demo_1 has no 'obs/{KEY}', but data/demo_0 has one"):
        store.frames(f"obs/{KEY}", store.episode_ends)
    with h5py.File(path, "a") as file:
        file[f"data/demo_1/obs/{KEY}"] = pictures(8, 10, 10)
    with pytest.raises(DataError, match=r"data/demo_1/obs/image holds uint8 of shape \(8, 10, 10, 3\); expected"):
        store.frames(f"obs/{KEY}", store.episode_ends)


def test_filters_that_select_as_many_rows_have_caches_of_their_own(tmp_path):
    h5py = pytest.importorskip("h5py")
    path = write_robomimic(tmp_path / "d.hdf5", pictures(12), [4, 4, 4])
    with h5py.File(path, "a") as file:
        file["mask/a"], file["mask/b"] = np.array([b"demo_0", b"demo_1"]), np.array([b"demo_0", b"demo_2"])
    found = {}
    for name in ("a", "b"):
        store = RobomimicStoreConfig(path=path, filter=name).create()
        source = store.frames(f"obs/{KEY}", store.episode_ends)
        cache = FrameCache(source, Fit(size=(24, 32)), tmp_path)
        found[cache.digest] = cache.open().rows(torch.arange(4, 8)).numpy()
    np.testing.assert_array_equal(np.concatenate(list(found.values())), pictures(12)[4:])


def test_an_unknown_key_names_the_nearest(tmp_path):
    store = NpzStoreConfig(path=write_npz(tmp_path / "d.npz", pictures(3), [3])).create()
    with pytest.raises(DataError, match="has no key 'imag'. Did you mean 'image'"):
        store.frames("imag", ends_of([3]))
    with pytest.raises(DataError, match="has no episodes"):
        store.frames(KEY, ends_of([]))
