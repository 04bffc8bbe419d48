"""Renames: observations of a policy under the names that stock clients send, such as `observation/state`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from dp_prior.config import ConfigError
from dp_prior.tensors.batch import Spec

_LAST_PART = re.compile("[/.]")
"""Separates the parts of stock clients' names, such as `observation/state`."""


def check_renames(renames: Mapping[str, str], spec: Spec) -> None:
    """Check that every renamed observation exists and has one new name.

    Args:
        renames: names of the policy by names of clients.

    Raises:
        ConfigError: an observation is unknown, renamed twice, or loses its name to another one; names both lists.
    """
    renamed_keys, keys = list(renames.values()), list(spec.cond_shapes)
    problems = []
    unknown = [name for name in renamed_keys if name not in keys]
    if unknown:
        problems.append(f"names {unknown} as observations of the policy, which reads {keys}")
    repeated = sorted({name for name in renamed_keys if renamed_keys.count(name) > 1})
    if repeated:
        problems.append(f"gives {repeated} several names: {dict(renames)}")
    taken = [name for name in renames if name in keys and renames[name] != name]
    hidden = [name for name in taken if name not in renamed_keys]
    if hidden:
        problems.append(f"takes the names {hidden}, which are observations of the policy, for others: {dict(renames)}")
    if problems:
        raise ConfigError("--rename", problems)


def renamed(request: Mapping[str, Any], renames: Mapping[str, str]) -> dict[str, Any]:
    """A request with the names of the policy, by which clients that know them may call observations too.

    Raises:
        ValueError: an observation is given under both names.
    """
    for name, key in renames.items():
        if {name, key} <= {*request} and key not in renames:
            raise ValueError(f"{name!r} and {key!r} are names of one observation; send one of them")
    return {renames.get(key, key): value for key, value in request.items()}


def refuse_other_names(request: Mapping[str, Any], keys: Iterable[str]) -> None:
    """Refuse a request that lacks observations and has others of which the names end like theirs.

    Args:
        keys: of the policy's observations.

    Raises:
        ValueError: with the options of the server that rename the observations.
    """
    missing = [key for key in keys if key not in request]
    likely = [f"--rename {name}={key}" for key in missing for name in request if _LAST_PART.split(name)[-1] == key]
    if likely:
        found = f"observations {', '.join(map(repr, missing))} are missing, and the request has {', '.join(request)}"
        raise ValueError(f"{found}. Start the server with {' '.join(likely)}, or send the names of the policy")
