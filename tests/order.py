"""The stories at the top of `tests` come first: the last minute of several workers is then made of short tests."""

from pathlib import Path

import pytest

TESTS = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.parent != TESTS)
