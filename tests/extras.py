"""Tests of what an optional package does are skipped loudly without the package."""

from importlib.util import find_spec

import pytest


def needs(package: str, extra: str) -> None:
    """Skip the rest of this file unless `package` is installed; unlike `pytest.importorskip`, import nothing."""
    if find_spec(package) is None:
        pytest.skip(f"NOT CHECKED: the extra dp_prior[{extra}] is not installed", allow_module_level=True)
