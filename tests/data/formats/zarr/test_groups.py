"""Groups are found in directories, links and zip files; what is no group says so."""

import json
import shutil
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest

from dp_prior.data.formats.zarr.groups import check_codecs
from dp_prior.data.formats.zarr.replay_buffer import ZarrStoreConfig
from dp_prior.files.regular_files import SMALL
from tests.data.formats.zarr.test_replay_buffer import STATE, STATE_FILES, problem_of, write, zipped
from tests.extras import needs
from tests.messages import told

needs("zarr", "zarr")


@pytest.mark.parametrize("link", ["data", "data/state"])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_groups_and_arrays_may_be_links_to_another_disk(tmp_path, zarr_format, link):
    path = write(tmp_path / "set.zarr", zarr_format)
    (path / link).rename(tmp_path / "elsewhere")
    (path / link).symlink_to(tmp_path / "elsewhere")
    store = ZarrStoreConfig(path=path).create()
    np.testing.assert_array_equal(store.read("state"), STATE)
    assert {path / "data/state" / file for file in STATE_FILES[zarr_format]} <= set(store.files(["state"]))


def test_a_missing_path_is_named(tmp_path):
    message = problem_of(lambda: ZarrStoreConfig(path=tmp_path / "none.zarr").create())
    assert told(message, tmp_path / "none.zarr", "no such", "data.episodes.path")


def test_a_directory_that_is_no_group_is_refused(tmp_path):
    message = problem_of(lambda: ZarrStoreConfig(path=tmp_path).create())
    assert told(message, "zarr group", ".zgroup", "zarr.json")


def test_a_broken_zip_is_refused(tmp_path):
    path = zipped(write(tmp_path / "set.zarr"))
    path.write_bytes(path.read_bytes()[:-200])
    assert told(problem_of(lambda: ZarrStoreConfig(path=path).create()), path, "readable")


def test_metadata_too_large_to_be_any_are_not_read(tmp_path):
    path = zipped(write(tmp_path / "set.zarr"))
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data/large/.zarray", " " * (SMALL + 1))
    message = problem_of(lambda: ZarrStoreConfig(path=path).create())
    assert told(message, f"{path}/data/large/.zarray:", f"{SMALL + 1} bytes", SMALL)


def test_a_zip_with_the_separators_of_windows_says_what_to_do(tmp_path):
    path = zipped(write(tmp_path / "b.zarr"))
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(tmp_path / "w.zip", "w") as copy:
        for name in archive.namelist():
            info = zipfile.ZipInfo("name")
            info.filename = name.replace("/", "\\")
            copy.writestr(info, archive.read(name))
    assert told(problem_of(ZarrStoreConfig(path=tmp_path / "w.zip").create), "Windows", "zipfile")


def test_a_zip_with_the_buffer_one_folder_down_says_what_to_do(tmp_path):
    path = zipped(write(tmp_path / "set.zarr"), "pusht/set.zarr/")
    message = problem_of(lambda: ZarrStoreConfig(path=path).create())
    assert told(message, "'pusht/set.zarr'", "path", "unpack")


@pytest.mark.promise("H9", "K1")
@pytest.mark.parametrize("length", ["2", -1, None, 2.0])
def test_an_array_whose_shape_is_none_is_no_key(tmp_path, length):
    metadata = write(tmp_path / "set.zarr") / "data/obs/points/.zarray"
    metadata.write_text(json.dumps(json.loads(metadata.read_text()) | {"shape": [100, length]}))
    assert ZarrStoreConfig(path=tmp_path / "set.zarr").create().keys() == {"state": (2,)}


def test_a_codec_that_is_not_registered_is_named_with_its_package_and_the_line():
    for metadata in ({"compressor": {"id": "imagecodecs_jpegxl"}}, {"filters": [{"id": "imagecodecs_jpegxl"}]}):
        message = problem_of(lambda metadata=metadata: check_codecs("data/camera0_rgb", metadata))
        assert told(message, "data/camera0_rgb", "'imagecodecs_jpegxl'", "imagecodecs", "--import")
        assert "imagecodecs.numcodecs.register_codecs()" in message
    message = problem_of(lambda: check_codecs("data/camera0_rgb", {"compressor": {"id": "my_codec"}}))
    assert told(message, "'my_codec'", "install", "--import")
    for metadata in ({}, {"compressor": None, "filters": None}, {"compressor": {"id": "blosc"}}, {"codecs": [{}]}):
        check_codecs("data/camera0_rgb", metadata)


TEXTS = np.array(["push", "", "lift the red cube", "é"])


def memory_taken(action) -> int:
    """The peak of the memory that numpy and Python take while `action` runs, which need not be touched."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def texts_of(folder, zarr_format, compressors):
    """A replay buffer with texts of 4 steps, stored in the given form."""
    import zarr

    root = zarr.open_group(str(folder), mode="w", zarr_format=zarr_format)
    root.create_array("data/state", data=np.ones((4, 2), np.float32))
    root.create_array("meta/episode_ends", data=np.array([4]))
    root.create_array("data/task", shape=(4,), chunks=(4,), dtype="str", compressors=compressors)[:] = TEXTS
    return folder


@pytest.mark.promise("K8")
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("is_compressed", [False, True])
@pytest.mark.parametrize("declared", [5, 915_735_680, 2**32 - 1])
def test_a_chunk_that_declares_more_texts_than_it_has_bytes_takes_no_memory(
    tmp_path, zarr_format, is_compressed, declared
):
    import numcodecs

    compressor = {2: numcodecs.GZip(1), 3: {"name": "gzip", "configuration": {"level": 1}}}[zarr_format]
    path = texts_of(tmp_path / "set.zarr", zarr_format, compressor if is_compressed else None)
    assert ZarrStoreConfig(path=path).create().read("task").tolist() == TEXTS.tolist()
    chunk = path / {2: "data/task/0", 3: "data/task/c/0"}[zarr_format]
    content = struct.pack("<I", declared) + bytes(4 * min(declared - 1, 60))
    chunk.write_bytes(numcodecs.GZip(1).encode(content) if is_compressed else content)
    store = ZarrStoreConfig(path=path).create()
    peak = memory_taken(
        lambda: told(problem_of(lambda: store.read("task")), path / "data/task", f"{len(content)} bytes")
    )
    assert peak < 20 << 20


@pytest.mark.promise("K8")
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_episode_ends_of_texts_are_refused_before_a_chunk_is_decoded(tmp_path, zarr_format):
    path = texts_of(tmp_path / "set.zarr", zarr_format, None)
    shutil.rmtree(path / "meta/episode_ends")
    shutil.copytree(path / "data/task", path / "meta/episode_ends")
    for chunk in (path / "meta/episode_ends").rglob("*0"):
        chunk.write_bytes(struct.pack("<I", 915_735_680) + bytes(60))
    assert told(problem_of(ZarrStoreConfig(path=path).create), path / "meta/episode_ends", "texts", "numeric")


@pytest.mark.promise("K1", "K8")
@pytest.mark.parametrize("place", ["filters", "compressor"])
@pytest.mark.parametrize("codec", ["json2", "msgpack2"])
def test_codecs_that_make_python_objects_are_refused_for_numbers_as_well(tmp_path, place, codec):
    """Such a chunk names the shape of what it decodes to, so that 30 bytes declare any memory."""
    path = write(tmp_path / "set.zarr")
    metadata, coding = path / "data/state/.zarray", {"id": codec}
    changed = {place: [coding] if place == "filters" else coding}
    metadata.write_text(json.dumps(json.loads(metadata.read_text()) | changed))
    (path / "data/state/0.0").write_text('[1, "<f4", [900000000]]')
    message = problem_of(lambda: ZarrStoreConfig(path=path).create().read("state"))
    assert told(message, path / "data/state", "never", "Python objects")
