"""The conditions of drawn samples: rows of a data set or a file in turn, and labels."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dp_prior.config import ConfigError
from dp_prior.data.files import load_npz, raise_refusal
from dp_prior.data.samples.over_columns import Samples
from dp_prior.tensors.batch import LABEL, Spec
from dp_prior.tensors.randomness import Randomness

NPY_MAGIC = b"\x93NUMPY"
"""First bytes of an .npy file; an .npz file, which is a zip archive, begins otherwise."""


class Conditions:
    """Conditions of samples by index; these are of a model without any.

    Attributes:
        identity: equal for equal conditions; JSON.
    """

    identity: dict[str, Any] = {}

    def rows(self, ids: Tensor) -> dict[str, Tensor]:
        """(B, *shape) by key, data units, for the samples ids (B,) int64."""
        return {}

    def labels(self, ids: Tensor) -> Tensor | None:
        """(B,) int64 the labels among them, for the target; None where there are none to tell."""
        return None


class HeldOut(Conditions):
    """Conditions of the samples of a data set, in turn."""

    def __init__(self, samples: Samples, identity: dict[str, Any]):
        self._samples, self.identity = samples, identity

    def rows(self, ids: Tensor) -> dict[str, Tensor]:
        return self._samples.fetch((ids % len(self._samples)).to(self._samples.device)).to(ids.device).cond


class ConditionsFile(Conditions):
    """Conditions from a file, in turn: arrays by their names, or what `dp-prior sample` drew with another model."""

    def __init__(self, path: Path, spec: Spec):
        """
        Raises:
            FileNotFoundError: there is no such file.
            ConfigError: it does not hold the conditions that the model reads.
            UnreadableError: the system refused to read it.
        """
        content = path.read_bytes()
        self.identity = {"conditions": hashlib.sha256(content).hexdigest()}
        arrays = _as_conditions(_arrays_in(content, spec, path), spec)
        self._count = _checked_count(arrays, spec, path)
        self._arrays = {key: _as_read(value, key, spec, path) for key, value in arrays.items()}

    def rows(self, ids: Tensor) -> dict[str, Tensor]:
        return {key: self._rows_of(key, ids) for key in self._arrays}

    def labels(self, ids: Tensor) -> Tensor | None:
        return self._rows_of(LABEL, ids) if LABEL in self._arrays else None

    def _rows_of(self, key: str, ids: Tensor) -> Tensor:
        """(B, *shape) of one key, for the samples ids (B,) int64."""
        chosen = (ids % self._count).cpu().numpy()
        return torch.from_numpy(np.ascontiguousarray(self._arrays[key][chosen])).to(ids.device)


def _arrays_in(content: bytes, spec: Spec, path: Path) -> dict[str, np.ndarray]:
    """The arrays in the content of a file; see `ConditionsFile` for the errors."""
    if content.startswith(NPY_MAGIC):
        remedy = f"save numpy.savez(FILE, NAME=array) with the names {list(spec.cond_shapes)}"
        raise ConfigError(f"--conditions {path}", [f"is one .npy array without a name; {remedy}"])
    try:
        return load_npz(io.BytesIO(content))
    except Exception as error:  # on damaged files, NumPy and zipfile raise all kinds
        raise_refusal(path, error)
        raise ConfigError(f"--conditions {path}", [f"is no .npz file of arrays: {error}"]) from None


def _checked_count(arrays: dict[str, np.ndarray], spec: Spec, path: Path) -> int:
    """The number of rows of arrays that have the shapes and the classes of a model's conditions.

    Raises:
        ConfigError: they have not.
    """
    counts = {len(value) if value.ndim else 0 for value in arrays.values()}
    has_shapes = {key: value.shape[1:] for key, value in arrays.items()} == spec.cond_shapes
    is_numeric = all(value.dtype.kind in "biuf" for value in arrays.values())
    if not has_shapes or len(counts) != 1 or 0 in counts or not is_numeric:
        stored, expected = (
            {key: f"{value.dtype} {value.shape}" for key, value in arrays.items()},
            dict(spec.cond_shapes),
        )
        problem = f"holds {stored}; expected numbers (m, *shape) with one m above 0 for the shapes {expected}"
        raise ConfigError(f"--conditions {path}", [problem])
    for key, names in spec.classes.items():
        if not np.isin(arrays[key], np.arange(len(names))).all():
            problem = f"{key} holds other numbers than those of the classes, 0 to {len(names) - 1}"
            raise ConfigError(f"--conditions {path}", [problem])
    return counts.pop()


def _as_conditions(arrays: dict[str, np.ndarray], spec: Spec) -> dict[str, np.ndarray]:
    """Arrays as `dp-prior sample` writes them, under the names of the conditions: the samples `arr_0` are the only
    condition besides the labels `arr_1`. Labels that the model does not read are left out; other files stay as they
    are."""
    unlabelled = spec.cond_shapes.keys() - {LABEL}
    if "arr_0" not in arrays or not arrays.keys() <= {"arr_0", "arr_1"} or len(unlabelled) != 1:
        return arrays
    names = {"arr_0": unlabelled.pop(), **({"arr_1": LABEL} if LABEL in spec.cond_shapes else {})}
    return {names[key]: value for key, value in arrays.items() if key in names}


def _as_read(value: np.ndarray, key: str, spec: Spec, path: Path) -> np.ndarray:
    """Numbers in the type that a model reads.

    Raises:
        ConfigError: the type does not hold one of them.
    """
    dtype = torch.empty(0, dtype=spec.dtype(key)).numpy().dtype
    with np.errstate(over="ignore", invalid="ignore"):
        read = value.astype(dtype)
    if dtype.kind == "f":
        expected, is_lost = "finite numbers", ~np.isfinite(read)
        is_lost &= spec.kind(key) not in ("depth", "points")  # there it stands for no distance, and no point
    else:
        limits = np.iinfo(dtype)
        expected, is_lost = f"whole numbers from {limits.min} to {limits.max}", read != value
    if is_lost.any():
        row, *_ = place = tuple(np.argwhere(is_lost)[0].tolist())
        raise ConfigError(f"--conditions {path}", [f"{key} holds {value[place]} in row {row}; expected {expected}"])
    return read


class Labelled(Conditions):
    """Other conditions with labels that are given in turn, or drawn uniformly by seed and index."""

    def __init__(self, conditions: Conditions, classes: Sequence[str], labels: Sequence[str], seed: int):
        """
        Raises:
            ConfigError: a label is neither the name nor the number of a class.
        """
        numbers = {name: number for number, name in enumerate(classes)}
        numbers = {str(number): number for number in range(len(classes))} | numbers
        if unknown := [label for label in labels if label not in numbers]:
            choices = f"0 to {len(classes) - 1}, or a name of {list(classes[:20])}"
            raise ConfigError("--labels", [f"{unknown[0]!r} is no class; expected {choices}"])
        self._others, self._seed, self._n_classes = conditions, seed, len(classes)
        self._labels = torch.tensor([numbers[label] for label in labels], dtype=torch.int64)
        self.identity = {**conditions.identity, "labels": self._labels.tolist()}

    def rows(self, ids: Tensor) -> dict[str, Tensor]:
        return {**self._others.rows(ids), LABEL: self.labels(ids)}

    def labels(self, ids: Tensor) -> Tensor:
        if len(self._labels):
            return self._labels.to(ids.device)[ids % len(self._labels)]
        return Randomness.from_counts(self._seed, LABEL, ids).integers(self._n_classes)
