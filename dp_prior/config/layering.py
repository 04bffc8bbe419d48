"""Merges the JSON objects of files that extend each other, and remembers the file of each value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Layers:
    """A JSON object merged from layers, lowest first.

    Objects are merged key by key, unless their `type` differs; then, as for lists, null and all other values, the upper
    layer replaces the lower value whole.

    Attributes:
        data: the merged object.
        top: the file of the highest layer.
    """

    def __init__(self, data: dict[str, Any], file: str):
        self.data, self.top = data, file
        self._files: dict[tuple[str, ...], str] = {(): file}  # for a value and everything below without an own entry

    def lay(self, given: dict[str, Any], file: str) -> None:
        """Merge an object as the new top layer."""
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
        """Mark the value at `path` as coming from the top file."""
        self._files = {at: file for at, file in self._files.items() if at[: len(path)] != path}
        self._files[path] = self.top

    def remark(self, path: Sequence[str | int]) -> str:
        """Text for a message naming the files that the value at `path` comes from; "" if only from the top file."""
        place = tuple(map(str, path))
        above = next(self._files[place[:n]] for n in range(len(place), -1, -1) if place[:n] in self._files)
        files = {above: None, **dict.fromkeys(file for at, file in self._files.items() if at[: len(place)] == place)}
        return "" if list(files) == [self.top] or not place else f" (in {' and '.join(files)})"
