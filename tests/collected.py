"""Notes which packages collection has imported, whatever imported them."""

import sys

import pytest

PACKAGES = pytest.StashKey[frozenset[str]]()


def pytest_collection_finish(session: pytest.Session) -> None:
    session.config.stash[PACKAGES] = frozenset(name.partition(".")[0] for name in sys.modules)
