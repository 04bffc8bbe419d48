"""The fingerprint of an environment: scores are comparable only between equal packages and starts.

A simulator's new version may move an object, a camera or a contact; scores then differ without another trace.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from dp_prior.config import Config
from dp_prior.config.origins import origins_of
from dp_prior.envs.vector import VectorEnv

DIGITS = 6
"""Decimals of an observation that count: the last bits may depend on the processor."""


def fingerprint(record: Config, env: VectorEnv, seed: int) -> dict[str, Any]:
    """Describe an environment as JSON: the packages that simulate, and a digest of the start of one seed. Resets the
    environment."""
    obs = {key: value[0] for key, value in env.reset([seed]).items()}
    return {"packages": versions(record), "seed": seed, "start": start_digest(obs)}


def versions(record: Config) -> dict[str, str]:
    """Versions of the packages that simulate, by name; of an environment of another package, its version and module."""
    if record.packages is not None:
        return {**record.packages} | origins_of(record)
    names = itertools.chain.from_iterable(_packages().get(module, ()) for module in record.modules)
    return {name: importlib.metadata.version(name) for name in names} | origins_of(record)


@functools.cache  # reading the metadata of all installed packages takes 100 ms
def _packages() -> Mapping[str, list[str]]:
    """Packages by the top module that they install."""
    return importlib.metadata.packages_distributions()


def start_digest(obs: Mapping[str, np.ndarray]) -> str:
    """Digest one start: (*shape) by key, including texts."""
    digest = hashlib.sha256()
    for key, value in sorted(obs.items()):
        value = np.asarray(value)
        if value.dtype.kind == "f":
            value = np.round(value.astype(np.float64), DIGITS) + 0.0  # one zero
        digest.update(f"{key} {value.dtype.kind} {value.shape}".encode())
        digest.update(str(value).encode() if value.dtype.kind == "U" else np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()[:16]


def differences(stored: Mapping[str, Any], present: Mapping[str, Any]) -> Iterator[str]:
    """List the differences of two stored fingerprints: packages with both versions, or the start."""
    before, after = stored["packages"], present["packages"]
    for name in sorted(before | after):
        if before.get(name) != after.get(name):
            yield f"{name} {before.get(name, 'missing')} against {after.get(name, 'missing')}"
    if stored["start"] != present["start"] and stored["seed"] == present["seed"]:
        yield f"the start of seed {stored['seed']}"
