"""The folder of a comparison or other work: the same command goes on there, another is refused, one process works at a
time."""

from __future__ import annotations

from itertools import chain, combinations
from pathlib import Path
from typing import Any

from dp_prior.config import ConfigError
from dp_prior.files.durable import replace_file
from dp_prior.files.json_text import encode_document
from dp_prior.files.locks import FileLock, NoLocksError
from dp_prior.files.regular_files import read_object
from dp_prior.files.temporary import is_alive, remove_leftovers

PLAYERS = "players.json"
"""File of the compared policies and the settings of the comparison."""


def claim(out: Path, identity: dict[str, Any], work: str = "a comparison") -> list[str]:
    """Make the folder of a comparison, or find this comparison in it.

    Args:
        identity: `policies` by name, and further settings that must stay.
        work: what the folder is for, in messages.

    Returns:
        The names of the policies, in the order of the first call.

    Raises:
        ConfigError: the folder holds another comparison, or two names have the same policy.
        FileExistsError: the folder holds something else, is a file, or another process works in it.
        OSError: the folder cannot be written.
    """
    policies = identity["policies"]
    for first, second in combinations(policies, 2):
        if policies[first] == policies[second]:
            raise ConfigError(second, [f"is the same policy as {first}; compare different ones"])
    path = out / PLAYERS
    if out.exists() and not out.is_dir():
        raise FileExistsError(f"{out} is a file; --out names a folder")
    if not path.is_file():
        out.mkdir(parents=True, exist_ok=True)
        with _locked(out):  # whose holder deletes temporary files
            remove_leftovers(out, f"_{PLAYERS}", is_stale=lambda host, pid: not is_alive(host, pid))
            if not any(out.iterdir()):
                replace_file(path, encode_document(identity))
            elif not path.is_file():
                raise FileExistsError(f"{out} is not empty and does not hold {work}; choose another --out")
    stored = read_object(path)
    difference = _difference(stored, identity)
    if difference is not None:
        raise ConfigError(str(out), [f"holds {work} {difference}; choose another --out"])
    return list(stored["policies"])


def held(out: Path, *inside: str) -> FileLock:
    """The folder, in which one process at a time may work. Deletes temporary files of processes that were killed there.

    Args:
        inside: patterns of the folders in it where the work also writes.

    Raises:
        FileExistsError: another process does.
        ConfigError: the file system has no locks.
    """
    lock = _locked(out)
    places = chain([out], *(out.glob(pattern) for pattern in inside))
    for folder in filter(Path.is_dir, places):
        remove_leftovers(folder, is_stale=lambda host, pid: True)  # under the lock nobody else writes here
    return lock


def _locked(out: Path) -> FileLock:
    """The lock of the folder; see `held`."""
    try:
        lock = FileLock.take(out, folder=True)
    except NoLocksError as error:
        problem = f"{out} cannot be locked ({error.strerror}); name a folder on a file system that supports flock"
        raise ConfigError("--out", [problem]) from None
    if lock is None:
        raise FileExistsError(f"another process works in {out}; wait for its end, or choose another --out")
    return lock


def _difference(stored: dict[str, Any], identity: dict[str, Any]) -> str | None:
    """How a stored comparison differs from this one in a message; None for the same. The order of policies is free."""
    before, now = stored.get("policies", {}), identity["policies"]
    if before.keys() != now.keys():
        return f"of {', '.join(before) or 'unknown policies'}"
    for name, policy in now.items():
        for key in {**before[name], **policy}:
            if before[name].get(key) != policy.get(key):
                return f"in which {name} had other {key}"
    settings = {key: value for key, value in identity.items() if key != "policies"}
    return next((f"with {key} {stored.get(key)}" for key, value in settings.items() if stored.get(key) != value), None)
