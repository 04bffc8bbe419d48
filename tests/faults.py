"""A list is one test, which names every fault of every line."""

from collections.abc import Iterable


def assert_none(faults: Iterable[str]) -> None:
    """Fail with all faults, one a line; each names its place and what was expected there."""
    found = [*faults]
    assert not found, f"{len(found)} faults:\n" + "\n".join(found)
