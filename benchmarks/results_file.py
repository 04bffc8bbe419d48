"""Results of a benchmark that may be stopped and called again."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click


class ResultsFile:
    """Results by name, in a file with a line of JSON for each; a line that a kill cut off is measured again."""

    def __init__(self, path: Path, **options: Any):
        """
        Args:
            options: settings that the results depend on; also those of a file that names no options.

        Raises:
            click.ClickException: the file holds results of other options.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab+") as file:
            file.seek(0)
            whole = file.read().rpartition(b"\n")[0].splitlines(keepends=True)
            file.truncate(sum(map(len, whole)) + bool(whole))
        self._path, self.results = path, {row["name"]: row["result"] for row in map(json.loads, whole)}
        stored_options = self.results.pop("options", None)
        if stored_options is None:
            self._append("options", options)
        elif stored_options != options:
            problem = f"holds results of {stored_options}, not of {options}; name another folder"
            raise click.ClickException(f"{path} {problem}")

    def note(self, name: str, result: Any) -> None:
        """Store a result durably, and print it."""
        self.store(name, result)
        click.echo(f"{name}: {json.dumps(result)}")

    def store(self, name: str, result: Any) -> None:
        """Store a result durably."""
        self.results[name] = result
        self._append(name, result)

    def _append(self, name: str, result: Any) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"name": name, "result": result}) + "\n")
            file.flush()
            os.fsync(file.fileno())
