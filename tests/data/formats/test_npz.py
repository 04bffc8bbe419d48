import io
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp_prior.data.errors import DataError
from dp_prior.data.formats.npz import NpzStoreConfig, read_blocks, read_headers
from tests.messages import told


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "set.npz"
    np.savez(path, state=np.arange(20.0).reshape(10, 2), points=np.zeros((10, 3, 2)), episode_ends=np.array([4, 10]))
    return path


def problem_of(action) -> str:
    with pytest.raises(DataError) as caught:
        action()
    return str(caught.value)


def test_arrays_come_back_as_written_with_their_shapes_known_beforehand(path):
    store = NpzStoreConfig(path=path).create()
    assert store.keys() == {"state": (2,), "points": (3, 2)}
    assert store.episode_ends.tolist() == [4, 10]
    np.testing.assert_array_equal(store.read("state"), np.arange(20.0).reshape(10, 2))
    assert store.describe() == {"format": "npz", "path": str(path)}


def test_compressed_and_fortran_ordered_arrays_are_read(tmp_path):
    values = np.asfortranarray(np.arange(20.0).reshape(10, 2))
    np.savez_compressed(tmp_path / "set.npz", state=values, episode_ends=np.array([10]))
    np.testing.assert_array_equal(NpzStoreConfig(path=tmp_path / "set.npz").create().read("state"), values)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("order", ["C", "F"])
@given(lengths=st.lists(st.integers(1, 5), min_size=2, max_size=6), width=st.integers(0, 3), data=st.data())
@settings(max_examples=20, deadline=None)
def test_some_episodes_are_read_as_from_the_whole_array(tmp_path_factory, save, order, lengths, width, data):
    ends, path = np.cumsum(lengths), tmp_path_factory.mktemp("spans") / "set.npz"
    values = np.arange(ends[-1] * width, dtype=np.int16).reshape(ends[-1], width)
    save(path, state=np.asarray(values, order=order), flat=np.arange(ends[-1]), short=values[:-1], ends=ends)
    store = NpzStoreConfig(path=path, episode_ends="ends").create()
    numbers = np.array(sorted(data.draw(st.sets(st.integers(0, len(lengths) - 1), min_size=1))))
    rows = np.concatenate([np.arange(ends[number] - lengths[number], ends[number]) for number in numbers])
    found = store.episodes("state", ends, numbers)
    assert found.dtype == np.int16 and np.array_equal(found, values[rows])
    assert np.array_equal(store.episodes("flat", ends, numbers), rows)
    assert f"{ends[-1] - 1} rows; expected" in problem_of(lambda: store.episodes("short", ends, numbers))


def test_python_objects_and_damaged_arrays_are_refused_in_some_episodes_too(path):
    ends, first = np.array([4, 10]), np.array([0])
    np.savez(path, state=np.arange(10.0), objects=np.array([None] * 10), episode_ends=ends)
    store = NpzStoreConfig(path=path).create()
    assert "Python objects" in problem_of(lambda: store.episodes("objects", ends, first))
    path.write_bytes(path.read_bytes()[:-300])
    assert told(problem_of(lambda: store.episodes("state", ends, first)), "cannot", "read")


def test_the_array_of_episode_ends_may_have_another_name(tmp_path):
    np.savez(tmp_path / "set.npz", state=np.zeros((10, 2)), ends=np.array([10]))
    store = NpzStoreConfig(path=tmp_path / "set.npz", episode_ends="ends").create()
    assert store.episode_ends.tolist() == [10] and list(store.keys()) == ["state"]
    message = problem_of(lambda: NpzStoreConfig(path=tmp_path / "set.npz").create())
    assert told(message, "'episode_ends'", "Did you mean 'ends'?", "ends, state", "np.cumsum(lengths)")


def test_a_missing_file_is_named(tmp_path):
    message = problem_of(lambda: NpzStoreConfig(path=tmp_path / "none.npz").create())
    assert told(message, tmp_path / "none.npz", "no such", "data.episodes.path")


def test_a_folder_is_not_called_missing(tmp_path):
    assert told(problem_of(lambda: NpzStoreConfig(path=tmp_path).create()), tmp_path, "folder", ".npz")


def test_a_file_that_is_no_npz_is_refused(tmp_path):
    (tmp_path / "set.npz").write_bytes(b"no zip file")
    assert told(problem_of(lambda: NpzStoreConfig(path=tmp_path / "set.npz").create()), "set.npz", "readable")


@pytest.mark.promise("H1")
def test_a_file_cut_short_is_refused(path):
    path.write_bytes(path.read_bytes()[:-300])
    assert told(problem_of(lambda: NpzStoreConfig(path=path).create()), path, "readable")


@pytest.mark.promise("H1")
def test_flipped_bytes_are_noticed(path):
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        offset = archive.getinfo("state.npy").header_offset
    content[offset + 250] ^= 0xFF
    path.write_bytes(content)
    assert "Bad CRC-32 for file 'state.npy'" in problem_of(lambda: NpzStoreConfig(path=path).create().read("state"))


class Payload:
    decoded = False

    def __reduce__(self):
        return (setattr, (Payload, "decoded", True))


@pytest.mark.promise("H9", "K1")
@pytest.mark.parametrize("name", ["state", "episode_ends"])
def test_object_arrays_are_never_decoded(tmp_path, name):
    arrays = {"state": np.zeros((10, 2)), "episode_ends": np.array([10])}
    np.savez(tmp_path / "set.npz", **{**arrays, name: np.array([Payload()] * 10, dtype=object)})
    message = problem_of(lambda: NpzStoreConfig(path=tmp_path / "set.npz").create().read("state"))
    assert told(message, "Python objects", f"[{name}]")
    assert not Payload.decoded


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("step", [1, 3, 100])
def test_blocks_are_the_rows_that_are_asked_for(tmp_path, order, step):
    values = np.arange(60).reshape(10, 3, 2)
    np.savez_compressed(tmp_path / "d.npz", x=np.asarray(values, order=order))
    for first in range(10):
        for stop in range(first + 1, 11):
            blocks = [block.copy() for block in read_blocks(tmp_path / "d.npz", "x", first, stop, step)]
            assert [len(block) for block in blocks[:-1]] == [step] * (len(blocks) - 1)
            np.testing.assert_array_equal(np.concatenate(blocks), values[first:stop])


@pytest.mark.parametrize("held", [40, 48, 56])
def test_an_array_of_other_bytes_than_its_header_declares_is_refused(tmp_path, held):
    stream = io.BytesIO()
    np.save(stream, np.arange(6.0))
    content = (stream.getvalue() + bytes(8))[: len(stream.getvalue()) - 48 + held]
    with zipfile.ZipFile(tmp_path / "d.npz", "w") as archive:
        archive.writestr("x.npy", content)
    if held != 48:
        assert told(problem_of(lambda: read_headers(tmp_path / "d.npz")), "x.npy", f"{held} bytes", "declares 48")
    else:
        assert read_headers(tmp_path / "d.npz") == {"x": ((6,), np.dtype(np.float64))}


def test_no_rows_are_one_empty_block(tmp_path):
    np.savez(tmp_path / "d.npz", x=np.zeros((10, 3)))
    assert [block.shape for block in read_blocks(tmp_path / "d.npz", "x", 4, 4, 2)] == [(0, 3)]
