"""One test over many cases: all are tried, and each that breaks the law is reported by its values."""

import inspect
import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest


def every(draw: int | None = None, **axes: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a law a test of all combinations of its arguments' values, or of `draw` of them.

    The law's other arguments are fixtures, which its cases share.
    """
    values = {name: [*axis] for name, axis in axes.items()}

    def decorate(law: Callable[..., None]) -> Callable[..., None]:
        def test(subtests: pytest.Subtests, **fixtures: Any) -> None:
            for case in itertools.product(*values.values()) if draw is None else drawn(draw, *values.values()):
                named = dict(zip(values, case, strict=True))
                with subtests.test(**named):
                    law(**named, **fixtures)

        fixtures = [name for name in inspect.signature(law).parameters if name not in values]
        asked = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in ("subtests", *fixtures)]
        test.__signature__ = inspect.Signature(asked)
        test.__name__, test.__qualname__ = law.__name__, law.__qualname__
        test.__module__, test.__doc__ = law.__module__, law.__doc__
        return test

    return decorate


def drawn(count: int, *axes: list[Any]) -> Iterator[tuple[Any, ...]]:
    """`count` combinations, always the same, among which are every value and as many pairs as chance makes."""
    assert all(len(axis) <= count for axis in axes), "a draw is to hold every value"
    draw = random.Random(0)
    columns = []
    for axis in axes:
        column = [*itertools.islice(itertools.cycle(axis), count)]
        draw.shuffle(column)
        columns.append(column)
    return zip(*columns, strict=True)
