"""Why a module that `--import` names cannot be imported, and where."""

from __future__ import annotations

import os
import traceback
from pathlib import Path

import pydantic

import dp_prior

_IMPORTLIB = Path(os.__file__).parent / "importlib"
_TOOLS = (str(Path(dp_prior.__file__).parent), str(Path(pydantic.__file__).parent), str(_IMPORTLIB), "<")
"""Files of which no line is the user's."""


def import_fault(name: str, error: BaseException) -> str:
    """The line about a module that the user names, with the place in the user's code."""
    if isinstance(error, ImportError) and error.name is not None and f"{name}.".startswith(f"{error.name}."):
        return f"there is no such module, installed or in {Path.cwd()}; expected a name such as my_parts"
    places = [f"{frame.filename}, line {frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)]
    where = next((f" ({place})" for place in reversed(places) if not place.startswith(_TOOLS)), "")
    return f"{type(error).__name__}: {error}{where}"
