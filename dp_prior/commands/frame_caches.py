"""`dp-prior cache`: the decoded camera frames of configurations, built ahead of training or found unused."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from dp_prior.data.frames.unused import UnusedCache, unused_caches
from dp_prior.run_directory.config import TrainConfig


def unused_frame_caches(config_files: Iterable[Path], overrides: Iterable[str]) -> list[UnusedCache]:
    """The frame caches beside those of these configurations that none of them uses, largest first."""
    used: set[Path] = set()
    for config_file in config_files:
        config = TrainConfig.from_json_path(config_file, overrides)
        used |= config.open_data().cache_directories()
    return unused_caches(used)


def build_frame_caches(config_file: Path, overrides: Iterable[str], report: Callable[[str], None]) -> None:
    """Build the frame caches that a configuration needs and that are not complete.

    Args:
        report: receives lines about the cost, the rate and the time left.
    """
    config = TrainConfig.from_json_path(config_file, overrides)
    config.open_data().build_caches(report)
    report("all frames are cached")
