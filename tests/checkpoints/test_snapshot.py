"""A snapshot in memory: owned, laid out as the file, and copied by threads."""

import itertools
import json
import math
import mmap

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from dp_prior.checkpoints.snapshot import (
    LARGEST_HEAD,
    MEMORY_PAGE,
    Snapshot,
    SnapshotMemory,
    file_pieces,
    file_tensors,
    nonfinite,
    parse_head,
)
from tests.examples import examples
from tests.messages import naming


def bytes_of(tensors):
    return b"".join(file_pieces(Snapshot({"a file": tensors}).copy().images["a file"]))


def some_tensors():
    return {"b": torch.tensor([True]), "a": torch.ones(2), "c": torch.ones(3, dtype=torch.float64)}


def test_the_file_is_that_of_the_library_but_for_padding_to_a_page():
    """Same order, same header: a file of ours is no special dialect."""
    ours, theirs = bytes_of(some_tensors()), safetensors.torch.save(some_tensors(), {"format": "pt"})
    length = int.from_bytes(ours[:8], "little")
    assert (length + 8) % MEMORY_PAGE == 0
    their_length = int.from_bytes(theirs[:8], "little")
    assert ours[8 : 8 + length].rstrip() == theirs[8 : 8 + their_length].rstrip()
    assert ours[8 + length :] == theirs[8 + their_length :]


def test_held_tensors_are_views_of_their_file_from_the_start_of_a_page():
    held = Snapshot({"model.safetensors": some_tensors()}).copy()
    image = held.images["model.safetensors"]
    assert [len(piece) for piece in file_pieces(image)] == [MEMORY_PAGE, 3 * 8 + 2 * 4 + 1]
    assert image.data_ptr() % mmap.PAGESIZE == 0
    for name, tensor in held.tensors["model.safetensors"].items():
        assert tensor.untyped_storage().data_ptr() == image.data_ptr()
        assert torch.equal(file_tensors(image)[name], tensor)


def test_opposite_infinities_do_not_cancel_and_a_large_sum_is_finite():
    infinite = {"w": torch.tensor([float("inf"), -float("inf")]), "n": torch.tensor([1]), "v": torch.tensor(0.0)}
    assert nonfinite(infinite) == ["w"]
    large = [torch.full((64,), 3e38), torch.full((64,), 6e4, dtype=torch.float16), torch.empty(0)]
    assert nonfinite({str(i): tensor for i, tensor in enumerate(large)}) == []


def test_memory_holds_every_kind_of_tensor_by_value(tmp_path):
    base = torch.arange(24.0).view(2, 3, 4)
    tied = torch.ones(3)
    tensors = {
        "transposed": base.transpose(0, 2),
        "slice": base[:, 1],
        "expanded": torch.ones(1, 2).expand(3, 2),
        "scalar": torch.tensor(4),
        "empty": torch.empty(0, 3),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "tied": tied,
        "tied again": tied,
        "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "flag": torch.tensor([True, False]),
    }
    expected = {key: tensor.detach().clone() for key, tensor in tensors.items()}
    documents = {"config.json": {"list": [1, 2], "nan": float("nan")}}
    held = Snapshot({"model.safetensors": tensors}, documents).copy()
    for tensor in {id(t): t for t in [base, tied, tensors["parameter"].data]}.values():
        tensor.zero_()
    documents["config.json"]["list"].append(3)
    assert held.documents == {"config.json": {"list": [1, 2], "nan": None}}
    held = held.tensors["model.safetensors"]
    for key in tensors:
        assert held[key].is_contiguous() and not held[key].requires_grad
        assert torch.equal(held[key], expected[key]), key


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 3, 1, 2), (4, 1, 1, 1), (2, 0, 3, 1)])
def test_tensors_in_any_order_of_axes_are_copied_as_they_lie_and_settled_later(shape):
    tensors = {}
    for order in itertools.permutations(range(4)):
        lying = torch.arange(math.prod(shape), dtype=torch.float64).view([shape[axis] for axis in order])
        tensors[str(order)] = lying.permute(sorted(range(4), key=order.__getitem__))
    memory = SnapshotMemory()
    held = memory.hold(Snapshot({"model.safetensors": tensors})).tensors["model.safetensors"]
    memory.settle()
    for key, tensor in tensors.items():
        assert tensor.shape == shape == held[key].shape
        assert torch.equal(held[key], tensor), key


def test_a_copy_that_was_never_settled_is_forgotten_by_the_next():
    """Settling it twice would permute its elements twice."""
    tensor, memory = torch.arange(120.0).view(2, 3, 4, 5).to(memory_format=torch.channels_last), SnapshotMemory()
    for _ in range(2):
        held = memory.hold(Snapshot({"a file": {"a": tensor}}))
    memory.settle()
    assert torch.equal(held.tensors["a file"]["a"], tensor)


def test_memory_is_reused_as_long_as_the_sizes_stay(monkeypatch):
    memory = SnapshotMemory()
    big = {"w": torch.ones(9 << 20), "b": torch.ones(3)}  # 36 MB: several copying threads and pieces
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    first = memory.hold(Snapshot({"model.safetensors": big}))
    place = first.tensors["model.safetensors"]["w"].data_ptr()
    big["w"].copy_(torch.arange(9 << 20))
    second = memory.hold(Snapshot({"model.safetensors": big}))
    assert second.tensors["model.safetensors"]["w"].data_ptr() == place
    assert torch.equal(second.tensors["model.safetensors"]["w"], big["w"])
    third = memory.hold(Snapshot({"model.safetensors": {"w": torch.ones(4)}}))
    assert torch.equal(third.tensors["model.safetensors"]["w"], torch.ones(4))


def test_a_failing_copy_thread_is_not_silent(monkeypatch):
    """The copy raises in the caller, whichever thread failed."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)

    def broken(to, source):
        raise MemoryError("no memory")

    monkeypatch.setattr(np, "copyto", broken)
    with pytest.raises(MemoryError):
        Snapshot({"model.safetensors": {"w": torch.ones(9 << 20)}}).copy()


OVERFLOWING = {"a": {"dtype": "F32", "shape": [2**62, 4, 0], "data_offsets": [0, 0]}}
"""No byte, but its lengths multiply beyond 64 bits."""


def image_of(data):
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def test_files_of_other_writers_are_read_also_when_nothing_is_aligned():
    """A head of odd length, and narrow elements before wide ones."""
    entries = {
        "flag": {"dtype": "BOOL", "shape": [3], "data_offsets": [0, 3]},
        "wide": {"dtype": "F64", "shape": [2, 1], "data_offsets": [3, 19]},
        "none": {"dtype": "F32", "shape": [0, 4], "data_offsets": [19, 19]},
    }
    values = np.array([1.5, -2.0])
    text = json.dumps(entries).encode()
    data = len(text).to_bytes(8, "little") + text + b"\1\0\1" + values.tobytes()
    tensors = file_tensors(image_of(data))
    assert tensors["flag"].tolist() == [True, False, True]
    assert tensors["wide"].tolist() == [[1.5], [-2.0]] and tensors["none"].shape == (0, 4)


ENTRIES = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "U8", "F64", "X", 3]),
        "shape": st.lists(st.integers(-1, 3), max_size=2) | st.just("ab") | st.just([1.5]),
        "data_offsets": st.tuples(st.integers(-4, 16), st.integers(-4, 24)).map(list) | st.just([0]) | st.none(),
    }
)
HEADS = st.dictionaries(st.sampled_from("abc"), ENTRIES | st.none() | st.just({}), max_size=3) | st.just([]) | st.none()


@examples(300)
@given(HEADS, st.integers(0, 24), st.integers(-9, 9).filter(lambda change: change % 2) | st.just(0))
def test_nothing_is_read_that_the_library_would_refuse(head, size, change):
    text = json.dumps(head).encode()
    data = max(0, len(text) + change).to_bytes(8, "little") + text + bytes(range(size))
    try:
        tensors = file_tensors(image_of(data))
    except ValueError:
        return
    theirs = safetensors.torch.load(data)
    assert tensors.keys() == theirs.keys()
    assert all(bytes_of({"": tensors[key]}) == bytes_of({"": theirs[key]}) for key in theirs)


@examples(100)
@given(st.lists(st.tuples(st.sampled_from([torch.float32, torch.uint8, torch.bool]), st.integers(0, 5)), max_size=4))
def test_everything_is_read_that_the_library_writes(kinds):
    tensors = {str(i): torch.arange(size).to(dtype) for i, (dtype, size) in enumerate(kinds)}
    ours = file_tensors(image_of(safetensors.torch.save(tensors, {"who": "the library"})))
    assert ours.keys() == tensors.keys()
    assert all(torch.equal(ours[key], tensors[key]) and ours[key].dtype == tensors[key].dtype for key in tensors)


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", "head"),
        (b"1234567", "head"),
        (b"\0" * 8, "char 0"),
        (b"\2" + b"\0" * 7 + b"{}x", "10 of 11"),
        ((5).to_bytes(8, "little"), "head"),
        (b"\x89" + b"\0" * 7 + json.dumps(OVERFLOWING).encode().ljust(137), f"{[2**62, 4, 0]}"),
    ],
)
def test_what_is_too_short_or_too_long_is_refused(data, found):
    with pytest.raises(ValueError, match=naming(found)):
        file_tensors(image_of(data))


def test_a_head_larger_than_any_is_not_read():
    with pytest.raises(ValueError, match=naming(f"{LARGEST_HEAD + 1} bytes", LARGEST_HEAD)):
        parse_head(memoryview((LARGEST_HEAD + 1).to_bytes(8, "little")), LARGEST_HEAD + 100)


def test_a_file_that_a_later_snapshot_lacks_is_not_held_any_more():
    memory, tensor = SnapshotMemory(), torch.ones(3)
    memory.hold(Snapshot({"a.safetensors": {"w": tensor}, "b.safetensors": {"w": tensor}}))
    held = memory.hold(Snapshot({"a.safetensors": {"w": tensor}}))
    assert held.images.keys() == held.tensors.keys() == {"a.safetensors"}


def test_memory_reserved_beforehand_is_the_memory_that_is_used():
    tensors = {"w": torch.ones(9 << 20)}
    memory = SnapshotMemory()
    memory.reserve(Snapshot({"model.safetensors": tensors}))
    place = memory._files["model.safetensors"].image.data_ptr()
    held = memory.hold(Snapshot({"model.safetensors": tensors})).tensors["model.safetensors"]["w"]
    assert held.untyped_storage().data_ptr() == place and torch.equal(held, tensors["w"])


def test_memory_reserved_beforehand_keeps_a_head_of_several_pages():
    tensors = {f"a tensor with a name that fills the head, number {i}": torch.full((3,), float(i)) for i in range(200)}
    memory = SnapshotMemory()
    memory.reserve(Snapshot({"model.safetensors": tensors}))
    image = memory.hold(Snapshot({"model.safetensors": tensors})).images["model.safetensors"]
    assert image.numpy().tobytes() == bytes_of(tensors) and image.numel() > 5 * MEMORY_PAGE
    assert file_tensors(image).keys() == tensors.keys()
