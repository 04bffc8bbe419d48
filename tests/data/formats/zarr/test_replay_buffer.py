import json
import sys
import zipfile

import numpy as np
import pytest

from dp_prior.data.errors import DataError
from dp_prior.data.formats.zarr.replay_buffer import ZarrStoreConfig

zarr = pytest.importorskip("zarr", reason="NOT CHECKED: zarr stores, the extra dp_prior[zarr] is not installed")

STATE = np.arange(1.0, 201.0, dtype=np.float32).reshape(100, 2)


STATE_FILES = {2: [".zarray", "0.0", "9.0"], 3: ["zarr.json", "c/0/0", "c/9/0"]}


def write(path, zarr_format=2, data="data/", ends="meta/episode_ends", **changes):
    root = zarr.open_group(str(path), mode="w", zarr_format=zarr_format)
    arrays = {f"{data}state": STATE, f"{data}obs/points": np.ones((100, 3, 2)), ends: np.array([40, 100]), **changes}
    for name, values in arrays.items():
        root.create_array(name, data=values, chunks=(10, *values.shape[1:]))
    return path


def zipped(path, folder=""):
    with zipfile.ZipFile(f"{path}.zip", "w") as archive:
        for file in sorted(path.rglob("*")):
            if file.is_file():
                archive.write(file, f"{folder}{file.relative_to(path)}")
    return path.parent / f"{path.name}.zip"


def problem_of(action) -> str:
    with pytest.raises(DataError) as caught:
        action()
    return str(caught.value)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("pack", [lambda path: path, zipped], ids=["directory", "zip"])
def test_replay_buffers_of_both_formats_are_read_from_directory_and_zip(tmp_path, zarr_format, pack):
    store = ZarrStoreConfig(path=pack(write(tmp_path / "set.zarr", zarr_format))).create()
    assert store.keys() == {"state": (2,), "obs/points": (3, 2)}
    assert store.episode_ends.tolist() == [40, 100]
    np.testing.assert_array_equal(store.read("state"), STATE)
    assert store.read("obs/points").shape == (100, 3, 2)
    assert store.describe()["format"] == f"zarr v{zarr_format}"


def test_data_and_episode_ends_may_lie_elsewhere(tmp_path):
    path = write(tmp_path / "set.zarr", data="", ends="ends")
    store = ZarrStoreConfig(path=path, data="", episode_ends="ends").create()
    assert store.keys() == {"state": (2,), "obs/points": (3, 2)} and store.episode_ends.tolist() == [40, 100]
    assert store.metadata() == {"fps": None, "tasks": [], "names": {}}
    message = problem_of(lambda: ZarrStoreConfig(path=path).create())
    assert "2 problems" in message
    assert "has no arrays in a group 'data'" in message
    assert "has no array 'meta/episode_ends' with the episode ends. It has: ends, obs/points, state" in message


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.filterwarnings("ignore:Consolidated metadata")
def test_rows_appended_after_metadata_were_consolidated_are_read(tmp_path, zarr_format):
    path = write(tmp_path / "set.zarr", zarr_format)
    zarr.consolidate_metadata(str(path))
    root = zarr.open_group(str(path), mode="a", use_consolidated=False)
    root["data/state"].append(STATE[:20])
    root["meta/episode_ends"].append(np.array([120]))
    for place in (path, zipped(path)):
        store = ZarrStoreConfig(path=place).create()
        assert store.episode_ends.tolist() == [40, 100, 120]
        np.testing.assert_array_equal(store.read("state"), np.concatenate([STATE, STATE[:20]]))


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_attributes_and_hidden_files_beside_the_chunks_do_not_matter(tmp_path, zarr_format):
    path = write(tmp_path / "set.zarr", zarr_format)
    blosc = {2: "numcodecs", 3: "zarr.codecs"}[zarr_format]
    compressor = getattr(pytest.importorskip(blosc), {2: "Blosc", 3: "BloscCodec"}[zarr_format])()
    state = zarr.open_group(str(path), mode="a").create_array(
        "data/state", data=STATE, chunks=(10, 2), compressors=compressor, overwrite=True
    )
    state.attrs["converted from"] = "demonstrations.pickle"
    (path / "data/state/.DS_Store").write_bytes(b"left by a file browser")
    store = ZarrStoreConfig(path=path).create()
    np.testing.assert_array_equal(store.read("state"), STATE)
    assert path / "data/state/.DS_Store" not in store.files(["state"])


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
    assert message == f"{tmp_path / 'none.zarr'}: 1 problem\n  no such file or directory; check data.episodes.path"


def test_a_directory_that_is_no_group_is_refused(tmp_path):
    message = problem_of(lambda: ZarrStoreConfig(path=tmp_path).create())
    assert "is not a zarr group: it has no .zgroup or zarr.json" in message


def test_a_broken_zip_is_refused(tmp_path):
    path = zipped(write(tmp_path / "set.zarr"))
    path.write_bytes(path.read_bytes()[:-200])
    assert "is not a readable zarr group" in problem_of(lambda: ZarrStoreConfig(path=path).create())


def test_a_zip_with_the_buffer_one_folder_down_says_what_to_do(tmp_path):
    path = zipped(write(tmp_path / "set.zarr"), "pusht/set.zarr/")
    message = problem_of(lambda: ZarrStoreConfig(path=path).create())
    assert "The folder 'pusht/set.zarr' inside is one: give that as path (unpack it first" in message


@pytest.mark.promise("H1")
@pytest.mark.parametrize(("zarr_format", "chunk"), [(2, "data/state/3.0"), (3, "data/state/c/3/0")])
def test_a_missing_chunk_is_an_error_and_never_zeros_unless_asked_for(tmp_path, zarr_format, chunk):
    path = write(tmp_path / "set.zarr", zarr_format)
    (path / chunk).unlink()
    message = problem_of(lambda: ZarrStoreConfig(path=path).create().read("state"))
    name = chunk.removeprefix("data/state/")
    assert f"1 of 10 chunks are missing: {name} (rows 30 to 39, episode 0). Copy" in message
    assert "set data.episodes.missing_chunks to 'fill'" in message
    assert f"{path}/data/state" in message
    assert (ZarrStoreConfig(path=path, missing_chunks="fill").create().read("state")[30:40] == 0).all()


def test_many_missing_chunks_are_counted_and_the_first_named_with_their_episodes(tmp_path):
    path = write(tmp_path / "set.zarr")
    for chunk in (1, 3, 4, 7, 9):
        (path / f"data/obs/points/{chunk}.0.0").unlink()
    for place in (path, zipped(path)):
        message = problem_of(lambda place=place: ZarrStoreConfig(path=place).create().read("obs/points"))
        assert "5 of 10 chunks are missing: 1.0.0 (rows 10 to 19, episode 0), 3.0.0 (rows 30 to 39, " in message
        assert "4.0.0 (rows 40 to 49, episode 1), .... Copy" in message


def test_missing_chunks_of_episode_ends_are_an_error_too(tmp_path):
    path = write(tmp_path / "set.zarr")
    (path / "meta/episode_ends/0").unlink()
    assert "1 of 1 chunks are missing: 0. Copy" in problem_of(lambda: ZarrStoreConfig(path=path).create())


CODECS = {
    "blosc": {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0},
    "zlib": {"id": "zlib", "level": 1},
}


@pytest.mark.promise("H1")
@pytest.mark.parametrize(("zarr_format", "codec"), [(2, "blosc"), (2, "zlib"), (2, None), (3, "auto")])
@pytest.mark.parametrize("kept", [0.0, 0.1, 0.25, 0.5, 0.99], ids="{:.0%}".format)
def test_a_chunk_cut_short_is_an_error(tmp_path, zarr_format, codec, kept):
    numcodecs = pytest.importorskip("numcodecs")
    path = write(tmp_path / "set.zarr", zarr_format)
    if zarr_format == 2:
        compressor = None if codec is None else numcodecs.get_codec(CODECS[codec])
        root = zarr.open_group(str(path), mode="a")
        root.create_array("data/state", data=STATE, chunks=(10, 2), compressors=compressor, overwrite=True)
    chunk = path / ("data/state/3.0" if zarr_format == 2 else "data/state/c/3/0")
    content = chunk.read_bytes()
    length = int(kept * len(content))
    chunk.write_bytes(content[:length])
    message = problem_of(lambda: ZarrStoreConfig(path=path).create().read("state"))
    assert f"{path}/data/state: 1 problem" in message
    if codec == "blosc":
        expected = len(content) if length >= 16 else 16
        assert f"chunk 3.0 is {length} bytes long; expected {expected}. Copy the data set again" in message
    else:
        assert "cannot be read" in message


def test_a_damaged_zip_member_is_an_error(tmp_path):
    path = zipped(write(tmp_path / "set.zarr"))
    with zipfile.ZipFile(path) as archive:
        offset = archive.getinfo("data/state/3.0").header_offset
    content = bytearray(path.read_bytes())
    content[offset + 30 + len("data/state/3.0") + 40] ^= 0xFF
    path.write_bytes(content)
    assert "Bad CRC-32" in problem_of(lambda: ZarrStoreConfig(path=path).create().read("state"))


def test_an_array_nobody_asks_for_does_not_get_in_the_way(tmp_path):
    path = write(tmp_path / "set.zarr")
    (path / "data/names").mkdir()
    metadata = (path / "data/state/.zarray").read_text().replace('"<f4"', '"|O"')
    (path / "data/names/.zarray").write_text(metadata)
    np.testing.assert_array_equal(ZarrStoreConfig(path=path).create().read("state"), STATE)
    assert "holds Python objects" in problem_of(lambda: ZarrStoreConfig(path=path).create().read("names"))


class Payload:
    decoded = False

    def __reduce__(self):
        return (setattr, (Payload, "decoded", True))


@pytest.mark.promise("H9", "K1")
@pytest.mark.parametrize("length", ["2", -1, None, 2.0])
def test_an_array_whose_shape_is_none_is_no_key(tmp_path, length):
    metadata = write(tmp_path / "set.zarr") / "data/obs/points/.zarray"
    metadata.write_text(json.dumps(json.loads(metadata.read_text()) | {"shape": [100, length]}))
    assert ZarrStoreConfig(path=tmp_path / "set.zarr").create().keys() == {"state": (2,)}


def test_pickled_arrays_are_never_decoded(tmp_path):
    numcodecs = pytest.importorskip("numcodecs")
    path = write(tmp_path / "set.zarr")
    array = path / "data/state"
    metadata = (array / ".zarray").read_text().replace('"filters": null', '"filters": [{"id": "pickle"}]')
    assert "pickle" in metadata
    (array / ".zarray").write_text(metadata)
    values = np.array([Payload()] * 20, dtype=object).reshape(10, 2)
    (array / "0.0").write_bytes(numcodecs.Pickle().encode(values))
    message = problem_of(lambda: ZarrStoreConfig(path=path).create().read("state"))
    assert "holds Python objects; they are never decoded" in message
    assert not Payload.decoded


def test_a_missing_package_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "zarr", None)
    with pytest.raises(ImportError, match=r'pip install "dp_prior\[zarr\]"'):
        ZarrStoreConfig(path=tmp_path).create()
