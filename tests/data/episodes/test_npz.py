import zipfile

import numpy as np
import pytest

from dp_prior.data.episodes.npz import NpzStoreConfig
from dp_prior.data.errors import DataError


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


def test_the_array_of_episode_ends_may_have_another_name(tmp_path):
    np.savez(tmp_path / "set.npz", state=np.zeros((10, 2)), ends=np.array([10]))
    store = NpzStoreConfig(path=tmp_path / "set.npz", episode_ends="ends").create()
    assert store.episode_ends.tolist() == [10] and list(store.keys()) == ["state"]
    message = problem_of(lambda: NpzStoreConfig(path=tmp_path / "set.npz").create())
    assert "has no array 'episode_ends' with the episode ends. Did you mean 'ends'? It has: ends, state" in message


def test_a_missing_file_is_named(tmp_path):
    message = problem_of(lambda: NpzStoreConfig(path=tmp_path / "none.npz").create())
    assert message == f"{tmp_path / 'none.npz'}: 1 problem\n  no such file; check data.episodes.path"


def test_a_folder_is_not_called_missing(tmp_path):
    assert "is a folder; expected one .npz file" in problem_of(lambda: NpzStoreConfig(path=tmp_path).create())


def test_a_file_that_is_no_npz_is_refused(tmp_path):
    (tmp_path / "set.npz").write_bytes(b"no zip file")
    assert "is not a readable .npz file" in problem_of(lambda: NpzStoreConfig(path=tmp_path / "set.npz").create())


@pytest.mark.promise("H1")
def test_a_file_cut_short_is_refused(path):
    path.write_bytes(path.read_bytes()[:-300])
    assert "is not a readable .npz file" in problem_of(lambda: NpzStoreConfig(path=path).create())


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
    assert "holds Python objects, which would have to be unpickled" in message and f"[{name}]" in message
    assert not Payload.decoded
