"""The stories at the top of `tests` come first: the last minute of several workers is then made of short tests.

Files that import the same large library follow each other, so that one worker imports the library and not each.
"""

import functools
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
# Each takes a worker 0.5 s or more, and none of them is imported by collection.
LIBRARIES = (
    *("diffusers", "transformers", "sklearn", "scipy", "matplotlib", "wandb"),
    *("robosuite", "metaworld", "lance", "pandas", "zarr"),
)
_IMPORTED = re.compile(rf"(?:import |from |importorskip\(\"|needs\(\")({'|'.join(LIBRARIES)})\b")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: (item.path.parent != TESTS, rank(item.path)))


@functools.cache
def rank(path: Path) -> int:
    """The place of a file of tests: that of the first of the libraries which it imports, or else behind them all."""
    imported = _IMPORTED.findall(path.read_text(encoding="utf-8"))
    return min(map(LIBRARIES.index, imported), default=len(LIBRARIES))
