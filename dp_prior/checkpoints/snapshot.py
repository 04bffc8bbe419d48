"""The content of a checkpoint in memory, copied once into the very bytes of its files.

A safetensors file is a head (length, JSON, padding) and the tensors end to end. Memory that holds a snapshot is laid
out like that from the start of a page, so it goes to the disk as it is: nothing is serialised a second time.
"""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dp_prior.durable import encode_document

PAGE = 4096  # bytes; heads are padded to it, so that tensors start where direct input and output can
_PIECE = 16 << 20  # bytes handed to the kernel or a hash at once; a multiple of the page, flat from 4 to 64 MB
_COPIED_AT_ONCE = 2 << 20  # bytes; small enough that no thread is left alone with much at the end
_COPYING_THREADS = 4  # more do not copy faster; one nearly fills the memory bus of a small machine
_WORTH_A_THREAD = 16 << 20  # bytes to copy below which another thread costs more than it brings
LARGEST_HEAD = 100 << 20  # bytes; the limit of the safetensors library
_MOST_AXES = 64  # of a tensor, as in torch
_LONGEST_AXIS = 2**63 - 1
_DTYPES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}
_DTYPES_BY_NAME = {name: dtype for dtype, name in _DTYPES.items()}


@dataclass(frozen=True)
class Snapshot:
    """The content of a checkpoint in memory.

    Attributes:
        tensors: tensors by name, by file name ending in `.safetensors`.
        documents: what JSON can hold, by file name ending in `.json`.
    """

    tensors: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    documents: dict[str, Any] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensors in self.tensors.values() for tensor in tensors.values())

    def copy(self) -> Snapshot:
        """The same content in memory of its own, on the CPU."""
        memory = SnapshotMemory()
        held = memory.hold(self)
        memory.settle()
        return held


class SnapshotMemory:
    """Owned CPU memory that takes the place of one snapshot after another.

    The pages stay mapped between saves, because mapping them anew costs several times the copy itself.
    """

    def __init__(self) -> None:
        self._files: dict[str, _File] = {}
        self._unsettled: list[tuple[Tensor, tuple[int, ...]]] = []

    def reserve(self, snapshot: Snapshot) -> None:
        """Take the memory that a snapshot like this one will need, and have its pages mapped."""
        for name, tensors in snapshot.tensors.items():
            self._room(name, tensors).image.numpy()[PAGE::PAGE] = 0

    def hold(self, snapshot: Snapshot) -> Snapshot:
        """Copy a snapshot into this memory; it may be read after `settle`. What was held before is overwritten."""
        self._unsettled.clear()
        documents = {name: json.loads(encode_document(content)) for name, content in snapshot.documents.items()}
        copies: list[tuple[np.ndarray, np.ndarray]] = []
        tensors = {name: self._place(name, content, copies) for name, content in snapshot.tensors.items()}
        for name in self._files.keys() - tensors.keys():
            del self._files[name]
        _copy_all(copies)
        if any(tensor.is_cuda for content in snapshot.tensors.values() for tensor in content.values()):
            torch.cuda.synchronize()
        return Snapshot(tensors, documents)

    def settle(self) -> None:
        """Put what was copied as it lay into the order of a file; needs memory for a second copy of one tensor."""
        while self._unsettled:
            held, order = self._unsettled.pop()
            as_it_lay = held.view([held.shape[axis] for axis in order])
            held.copy_(as_it_lay.permute(sorted(range(held.ndim), key=order.__getitem__)).contiguous())

    def _place(
        self, name: str, tensors: dict[str, Tensor], copies: list[tuple[np.ndarray, np.ndarray]]
    ) -> dict[str, Tensor]:
        """Give each tensor of a file its place; copy the difficult ones and note the others as (to, from) bytes."""
        file = self._room(name, tensors)
        for key, tensor in tensors.items():
            tensor, held = tensor.detach(), file.tensors[key]
            if tensor.device.type == "cpu" and tensor.is_contiguous():
                copies.append((file.flat[key], _bytes(tensor)))
            elif tensor.device.type == "cpu" and (order := _order_in_memory(tensor)) is not None:
                copies.append((file.flat[key], _bytes(tensor.permute(order))))  # to turn it around takes much longer
                self._unsettled.append((held, order))
            else:
                held.copy_(tensor, non_blocking=tensor.is_cuda)
        return dict(file.tensors)

    def _room(self, name: str, tensors: dict[str, Tensor]) -> _File:
        """Memory for one file: what is there if it is for such tensors, or else its bytes if they are as many."""
        described = [(key, tensor.dtype, tensor.shape) for key, tensor in tensors.items()]
        known = self._files.pop(name, None)
        if known is None or known.described != described:
            head, places = _lay_out(tensors)
            size = len(head) + sum(tensor.nbytes for tensor in tensors.values())
            if known is not None and known.image.numel() == size:
                image = known.image
            else:
                known = None  # before more is taken
                image = allocate(size, is_pinned=any(tensor.is_cuda for tensor in tensors.values()))
            known = _File.of(described, image, head, places)
        self._files[name] = known
        return known


@dataclass(frozen=True)
class _File:
    """The memory of one file.

    Attributes:
        described: the tensors that it is for.
        image: (size,) uint8, the whole file; the head is written already.
        tensors: views of it.
        flat: the same as (nbytes,) uint8.
    """

    described: list[tuple[str, torch.dtype, torch.Size]]
    image: Tensor
    tensors: dict[str, Tensor]
    flat: dict[str, np.ndarray]

    @classmethod
    def of(
        cls, described: list[tuple[str, torch.dtype, torch.Size]], image: Tensor, head: bytes, places: dict[str, int]
    ) -> _File:
        image.numpy()[: len(head)] = np.frombuffer(head, np.uint8)
        flat = {
            key: image[places[key] : places[key] + shape.numel() * dtype.itemsize] for key, dtype, shape in described
        }
        tensors = {key: flat[key].view(dtype).view(shape) for key, dtype, shape in described}
        return cls(described, image, tensors, {key: value.numpy() for key, value in flat.items()})


def file_pieces(tensors: dict[str, Tensor]) -> Iterator[memoryview]:
    """The bytes of the safetensors file of these tensors, in pieces. Held tensors are passed on as they lie."""
    head, places = _lay_out(tensors)
    image = _image(tensors, head, places)
    if image is not None:
        yield from _cut(memoryview(image))
        return
    yield memoryview(head)
    for key in places:
        yield from _cut(memoryview(_bytes(tensors[key])))


def parse_head(data: bytes | memoryview, size: int) -> dict[str, tuple[torch.dtype, list[int], int]]:
    """What the head of a safetensors file says of its tensors.

    Args:
        data: the file from its start, at least its head.
        size: of the whole file.

    Returns:
        Dtype, shape and position in the file of each tensor by name.

    Raises:
        ValueError: it is none, or its tensors are not laid out end to end until the end of the file.
    """
    length = int.from_bytes(data[:8], "little")
    start = 8 + length
    if size < 8 or start > size:
        raise ValueError("it is shorter than its head")
    if length > LARGEST_HEAD:
        raise ValueError(f"its head has {length} bytes, at most {LARGEST_HEAD} are read")
    try:
        entries = json.loads(bytes(data[8:start]))
        entries.pop("__metadata__", None)
        found, position = {}, start
        for key, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):
            dtype, shape = _DTYPES_BY_NAME[entry["dtype"]], entry["shape"]
            if len(shape) > _MOST_AXES or not all(type(n) is int and 0 <= n <= _LONGEST_AXIS for n in shape):
                raise ValueError(f"tensor {key!r} has a shape that no tensor has")
            end = position + math.prod(shape) * dtype.itemsize
            if entry["data_offsets"] != [position - start, end - start] or end > size:
                expected = [position - start, end - start]
                raise ValueError(f"tensor {key!r} lies at {entry['data_offsets']}, expected {expected} of {size} bytes")
            found[key] = dtype, shape, position
            position = end
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"its head is not that of a safetensors file ({error!r})") from None
    if position != size:
        raise ValueError(f"its tensors end at byte {position} of {size}")
    return found


def file_tensors(image: Tensor) -> dict[str, Tensor]:
    """The tensors of a safetensors file, as views of its bytes.

    Args:
        image: (size,) uint8, the whole file.

    Raises:
        ValueError: see `parse_head`.
    """
    data = memoryview(image.numpy())
    tensors = {}
    for key, (dtype, shape, position) in parse_head(data, len(data)).items():
        flat = image[position : position + math.prod(shape) * dtype.itemsize]
        if position % dtype.itemsize:  # other writers need not align
            flat = flat.clone()
        try:
            tensors[key] = flat.view(dtype).view(shape)
        except RuntimeError as error:  # strides of an empty tensor that no integer holds
            raise ValueError(f"tensor {key!r} has shape {shape}: {error}") from None
    return tensors


def nonfinite(tensors: dict[str, Tensor]) -> list[str]:
    """Names of the tensors that hold NaN or infinity."""
    return [key for key, tensor in tensors.items() if tensor.dtype.is_floating_point and not _is_finite(tensor)]


def _is_finite(tensor: Tensor) -> bool:
    """A sum over NaN or infinity is never finite, so a finite sum clears a tensor at the speed of memory."""
    if tensor.dtype in (torch.float32, torch.float64):
        values = tensor.detach().cpu().numpy()
        with np.errstate(over="ignore", invalid="ignore"):
            return bool(np.isfinite(values.sum()) or np.isfinite(values).all())
    return bool(torch.isfinite(tensor.float()).all())  # the narrowest types have no test of their own


def _lay_out(tensors: dict[str, Tensor]) -> tuple[bytes, dict[str, int]]:
    """The head of a file, and the place in it of each tensor in order: wide elements first, so that all are aligned."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    places: dict[str, int] = {}
    position = 0
    for key in sorted(tensors, key=lambda key: (-tensors[key].element_size(), key)):
        tensor = tensors[key]
        if tensor.dtype not in _DTYPES:
            raise ValueError(f"tensor {key!r} is {tensor.dtype}, which safetensors cannot hold")
        places[key] = position
        position += tensor.nbytes
        entries[key] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [places[key], position],
        }
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(len(text) + 8) % PAGE)
    head = len(text).to_bytes(8, "little") + text
    return head, {key: place + len(head) for key, place in places.items()}


def _image(tensors: dict[str, Tensor], head: bytes, places: dict[str, int]) -> np.ndarray | None:
    """The memory around these tensors, if it is byte for byte their file; else None."""
    first = next((tensors[key] for key in places if tensors[key].numel()), None)
    if first is None or first.device.type != "cpu":
        return None
    storage = first.untyped_storage()
    if storage.nbytes() != len(head) + sum(tensor.nbytes for tensor in tensors.values()):
        return None
    base = storage.data_ptr()
    for key, tensor in tensors.items():
        if tensor.numel() and not (tensor.is_contiguous() and tensor.data_ptr() == base + places[key]):
            return None
    image = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
    return image if image[: len(head)].tobytes() == head else None


def _cut(data: memoryview) -> Iterator[memoryview]:
    """Pieces of whole pages, and the rest."""
    pages = len(data) // PAGE * PAGE
    for start in range(0, pages, _PIECE):
        yield data[start : min(start + _PIECE, pages)]
    if pages < len(data):
        yield data[pages:]


def _bytes(tensor: Tensor) -> np.ndarray:
    """(nbytes,) uint8 view of a CPU tensor, or a copy of any other."""
    if not tensor.numel():
        return np.empty(0, np.uint8)
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()


def _order_in_memory(tensor: Tensor) -> tuple[int, ...] | None:
    """The order of axes in which the elements lie end to end; None if they do not."""
    order = tuple(sorted(range(tensor.ndim), key=lambda axis: -tensor.stride(axis)))
    return order if tensor.permute(order).is_contiguous() else None


def _copy_all(copies: list[tuple[np.ndarray, np.ndarray]]) -> None:
    """Copy bytes in a few threads that take piece after piece.

    Torch's own parallel copy meets at a barrier after every tensor: when another process holds one of the cores it
    was measured 10 to 20 times slower than this (1.06 GB in 420 tensors on 2 cores, 2026).
    """
    pieces = (
        (to[start : start + _COPIED_AT_ONCE], source[start : start + _COPIED_AT_ONCE])
        for to, source in copies
        for start in range(0, len(to), _COPIED_AT_ONCE)
    )
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:  # a generator must not be entered twice
                piece = next(pieces, None)
            if piece is None:
                return
            np.copyto(*piece)

    size = sum(len(to) for to, _ in copies)
    count = max(1, min(_COPYING_THREADS, torch.get_num_threads(), size // _WORTH_A_THREAD))
    with ThreadPoolExecutor(count, thread_name_prefix="checkpoint-copy") as pool:
        helpers = [pool.submit(work) for _ in range(count - 1)]
        work()
    for helper in helpers:
        helper.result()


def allocate(size: int, is_pinned: bool = False) -> Tensor:
    """(size,) uint8 from the start of a page; in huge pages where granted, since each page costs a fault at first."""
    if size == 0:
        return torch.empty(0, dtype=torch.uint8)
    if is_pinned:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)
    memory = mmap.mmap(-1, size)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)
