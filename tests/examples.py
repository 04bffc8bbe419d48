"""A drawn test takes 25 examples in the default suite and 100 where slow tests run too; always the same ones.

Hypothesis would also draw constants of the modules that are imported when a test runs: other constants in every worker
and order, after a search of all sources that takes each worker a second.
"""

from typing import Any

import hypothesis
import pytest
from hypothesis.internal.conjecture import providers

# No deadline that a busy machine could miss.
hypothesis.settings.register_profile("whole suite", deadline=None, derandomize=True, print_blob=True, max_examples=100)
hypothesis.settings.register_profile(
    "default suite", parent=hypothesis.settings.get_profile("whole suite"), max_examples=25
)

if hasattr(providers, "_get_local_constants"):  # since 6.131; tests/test_examples.py notices another name
    providers._get_local_constants = providers.Constants


def pytest_configure(config: pytest.Config) -> None:
    is_default = config.getoption("markexpr") == "not slow"
    hypothesis.settings.load_profile("default suite" if is_default else "whole suite")


def examples(count: int, **others: Any) -> hypothesis.settings:
    """Settings of a test that takes `count` examples where slow tests run too, and a quarter of them by default."""
    return hypothesis.settings(max_examples=count * hypothesis.settings().max_examples // 100, **others)
