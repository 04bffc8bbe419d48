"""The command that trains a run in a process of its own."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
ENVIRONMENT = {"ACCELERATE_USE_CPU": "true"}


def command(config: str, settings: Mapping[str, Any]) -> list[str]:
    """The command that trains a configuration of `configs/policy`, or continues its run, from `ROOT`.

    Args:
        settings: changes to it by dotted path; strings are given as they are, other values as JSON.
    """
    words = [sys.executable, "train_policy.py", "--config_file", f"configs/policy/{config}.json"]
    for assignment in assignments(settings):
        words += ["--set", assignment]
    return words


def assignments(settings: Mapping[str, Any]) -> list[str]:
    """The same changes as `TrainConfig.from_json_path` takes them."""
    return [f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in settings.items()]


def environment() -> dict[str, str]:
    """Environment variables of the process."""
    return {**os.environ, **ENVIRONMENT}
