"""JSON objects laid over each other, as files that extend each other are, with the file that each value comes from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Layers:
    """An object made of several, lowest first.

    Objects are merged key by key, but one with another `type` replaces the one below whole; so do lists, null and all
    other values.

    Attributes:
        data: the object.
        top: the file of the highest layer.
    """

    def __init__(self, data: dict[str, Any], file: str):
        self.data, self.top = data, file
        self._files: dict[tuple[str, ...], str] = {(): file}  # of a value and of all below it that have no own entry

    def lay(self, given: dict[str, Any], file: str) -> None:
        """Put an object over the others."""
        self.top = file
        self._merge(self.data, given, ())

    def _merge(self, below: dict[str, Any], given: dict[str, Any], path: tuple[str, ...]) -> None:
        for key, value in given.items():
            here = below.get(key)
            both = isinstance(here, dict) and isinstance(value, dict)
            if both and ("type" not in value or value["type"] == here.get("type")):
                self._merge(here, value, (*path, key))
            else:
                below[key] = value
                self.replaced((*path, key))

    def replaced(self, path: tuple[str, ...]) -> None:
        """The value at a path is that of the highest layer, or takes its place."""
        self._files = {at: file for at, file in self._files.items() if at[: len(path)] != path}
        self._files[path] = self.top

    def remark(self, path: Sequence[str | int]) -> str:
        """Names the other files that the value at a path comes from: "" if the highest layer has it all."""
        place = tuple(map(str, path))
        above = next(self._files[place[:n]] for n in range(len(place), -1, -1) if place[:n] in self._files)
        files = {above: None, **dict.fromkeys(file for at, file in self._files.items() if at[: len(place)] == place)}
        return "" if list(files) == [self.top] or not place else f" (in {' and '.join(files)})"
