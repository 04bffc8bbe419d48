"""Arrays over all episodes with a mask of the steps that exist."""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dp_prior.data.errors import DataError
from dp_prior.data.formats import masked_arrays
from dp_prior.data.formats.masked_arrays import MaskedArraysConfig
from dp_prior_foreign.recognition import kind_of
from tests.messages import naming

LENGTHS = [4, 7, 2]


def write(folder, time_first, lengths=LENGTHS, longest=7):
    """Diffusion Policy's kitchen: steps first; its block pushing: episodes first."""
    random = np.random.default_rng(0)
    mask = np.arange(longest) < np.array(lengths)[:, None]
    arrays = {
        "observations_seq": random.normal(size=(len(lengths), longest, 5)),
        "actions_seq": random.normal(size=(len(lengths), longest, 3)).astype(np.float32),
        "existence_mask": mask.astype(np.float32),
    }
    folder.mkdir()
    for name, values in arrays.items():
        np.save(folder / f"{name}.npy", np.swapaxes(values, 0, 1) if time_first else values)
    np.save(folder / "onehot_goals.npy", np.zeros(9))
    return arrays


@pytest.mark.parametrize("time_first", [True, False])
def test_steps_that_do_not_exist_are_left_out(time_first, tmp_path):
    arrays = write(tmp_path / "d", time_first)
    assert kind_of(tmp_path / "d") == "masked_arrays"
    store = MaskedArraysConfig(path=tmp_path / "d").create()
    assert store.episode_ends.tolist() == [4, 11, 13]
    assert store.keys() == {"actions_seq": (3,), "observations_seq": (5,)}
    for key in ("actions_seq", "observations_seq"):
        expected = np.concatenate([arrays[key][n, :length] for n, length in enumerate(LENGTHS)])
        np.testing.assert_array_equal(store.read(key), expected)
    assert "shape (9,)" in store.unread()["onehot_goals"]


def test_an_array_is_mapped_once_for_all_episodes(tmp_path, monkeypatch):
    write(tmp_path / "d", True)
    mapped, names = masked_arrays.map_npy, []
    monkeypatch.setattr(masked_arrays, "map_npy", lambda path: names.append(path.stem) or mapped(path))
    store = MaskedArraysConfig(path=tmp_path / "d").create()
    assert [len(store.read(key)) for key in ("actions_seq", "observations_seq")] == [sum(LENGTHS)] * 2
    assert names == ["actions_seq", "observations_seq"]


@pytest.mark.parametrize("name", ["existence_mask", "observations_seq"])
def test_a_header_that_lies_and_a_pipe_are_refused_before_anything_is_read(name, tmp_path):
    write(tmp_path / "d", True)
    file = tmp_path / f"d/{name}.npy"
    with open(file, "wb") as stream:
        header = {"descr": "<f8", "fortran_order": False, "shape": (10**12, 3)}
        np.lib.format.write_array_header_1_0(stream, header)
    with pytest.raises(DataError, match=naming(f"{name}.npy", "0 bytes", "24,000,000,000,000")):
        MaskedArraysConfig(path=tmp_path / "d").create()
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(DataError, match=naming(f"{name}.npy", "named pipe")):
        MaskedArraysConfig(path=tmp_path / "d").create()


def test_what_is_no_mask_is_refused_with_what_it_holds(tmp_path):
    write(tmp_path / "d", True)
    masks = [
        (np.zeros((7, 3)), ("1", "(7, 3)")),
        (np.zeros((0, 3)), ("1", "(0, 3)")),
        (np.ones(7), ("float64", "(7,)")),
        (np.full((7, 3), np.nan), ("float64", "(7, 3)")),
        (np.full((7, 3), "1"), ("<U1", "(7, 3)")),
        (np.zeros((7, 3), [("a", "i4")]), ("'<i4'", "(7, 3)")),
        (np.ones((7, 3), complex), ("complex128",)),
        (np.arange(7)[:, None] < [4, 0, 2], ("episode 1",)),
        (np.arange(20)[:, None] < [9, 1, 2], ("existence_mask", "(9, 3)")),
    ]
    for mask, names in masks:
        np.save(tmp_path / "d/existence_mask.npy", mask)
        with pytest.raises(DataError, match=naming(tmp_path / "d", *names)):
            MaskedArraysConfig(path=tmp_path / "d").create()
    (tmp_path / "d/existence_mask.npy").write_bytes(b"torn")
    assert not MaskedArraysConfig.is_at(tmp_path / "d")
    with pytest.raises(DataError, match=naming("nowhere", "data.episodes.path")):
        MaskedArraysConfig(path=tmp_path / "nowhere").create()


def test_a_mask_that_is_full_needs_its_axis_and_one_with_holes_is_refused(tmp_path):
    write(tmp_path / "d", True, lengths=[7, 7, 7])
    with pytest.raises(DataError, match=naming("existence_mask.npy", "both axes", "steps_axis")):
        MaskedArraysConfig(path=tmp_path / "d").create()
    store = MaskedArraysConfig(path=tmp_path / "d", mask="existence_mask", steps_axis=0).create()
    assert store.episode_ends.tolist() == [7, 14, 21]
    np.save(tmp_path / "d/existence_mask.npy", np.array([[1, 0, 1], [0, 1, 0]]))
    with pytest.raises(DataError, match=naming("existence_mask.npy", "no axis")):
        MaskedArraysConfig(path=tmp_path / "d").create()
    with pytest.raises(DataError, match=naming("nothing", "mask", "'existence_mask'")):
        MaskedArraysConfig(path=tmp_path / "d", mask="nothing").create()


def test_arrays_are_mapped_as_numpy_reads_them_by_any_number_of_threads(tmp_path):
    arrays = [np.arange(24, dtype=np.int16).reshape(2, 3, 4), np.ones((3, 2), order="F"), np.array(2.5)]
    for number, array in enumerate(arrays):
        np.save(tmp_path / f"{number}.npy", array)
    with ThreadPoolExecutor(8) as pool:
        for number, found in enumerate(
            pool.map(masked_arrays.map_npy, [tmp_path / f"{one % 3}.npy" for one in range(300)])
        ):
            np.testing.assert_array_equal(found, arrays[number % 3], strict=True)
    np.save(tmp_path / "objects.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(ValueError, match=naming("Python objects")):
        masked_arrays.map_npy(tmp_path / "objects.npy")
