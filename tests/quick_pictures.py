"""Pictures of one pixel and charts without a mark: drawing real ones took most of a tiny run and of its page."""

import contextlib
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dp_prior.evaluation.grid import write_png


def one_pixel(rows: Path, output: Path) -> Path:
    """In place of `draw_learning_curve`."""
    write_png(output, np.zeros((1, 1, 3), np.uint8))
    return output


def one_pixel_of_rollouts(path: Path, *shown: Any) -> None:
    """In place of `draw_rollouts`."""
    write_png(path, np.zeros((1, 1, 3), np.uint8))


def no_marks(figure: Any, title: str) -> str:
    """In place of `svg`."""
    return "<svg></svg>"


# Who draws, by what name, where this name is defined, and what comes in its place.
_DRAWN = (
    ("dp_prior.run.ending", "draw_learning_curve", "dp_prior.evaluation.curve", one_pixel),
    ("dp_prior.evaluation.rollout_evaluator", "draw_rollouts", "dp_prior.evaluation.picture", one_pixel_of_rollouts),
    ("dp_prior_studio.pages.drawing", "svg", "dp_prior_studio.pages.charts", no_marks),
)


def quicken() -> None:
    """Put these in the place of what this process draws with."""
    for module, name, _, quick in _DRAWN:
        drawing = importlib.import_module(module)
        assert hasattr(drawing, name), f"{module} no longer draws with {name}: say here what does"
        setattr(drawing, name, quick)


@contextlib.contextmanager
def really_drawn() -> Iterator[None]:
    """Draw as users see it."""
    with pytest.MonkeyPatch.context() as patch:
        for module, name, home, _ in _DRAWN:
            patch.setattr(f"{module}.{name}", getattr(importlib.import_module(home), name))
        yield
