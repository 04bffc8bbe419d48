"""A test that warns of nothing."""

import pytest

quiet = pytest.mark.filterwarnings(
    "error", "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
"""A warning fails the test, but for those of garbage: an earlier test may have left it."""
