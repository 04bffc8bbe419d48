"""What has changed between a checkpoint and the run that goes on from it, and whether it may.

The architecture, the data and the seed are what the tensors and the clock mean: they must be the same. Everything else
may change, and is told.
"""

from __future__ import annotations

from typing import Any

from dp_prior.config import ConfigError

_DATA = ("obs", "embeddings", "action", "split", "mask_padding", "block_rows", "shuffle_blocks")
FIXED = ("task", "seed", *(f"data.{name}" for name in _DATA), "train.ema")
FREE_WITHIN = ("task.sampler", "task.n_action_steps")


def check_changes(before: dict[str, Any], now: dict[str, Any], global_batch_size: int) -> list[str]:
    """Compare the documents of a snapshot with those of the run that would go on from it.

    Returns:
        One line for each setting that has changed and may.

    Raises:
        ConfigError: settings have changed that may not, all of them in one report.
    """
    old, new = _flat(before["config.json"]), _flat(now["config.json"])
    allowed, refused = [], []
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key) and key != "description":
            line = f"{key}: {old.get(key)!r} in the checkpoint, {new.get(key)!r} now"
            is_fixed = _within(key, FIXED) and not _within(key, FREE_WITHIN)
            (refused if is_fixed else allowed).append(line)
    fingerprints = before["data.json"]["fingerprint"], now["data.json"]["fingerprint"]
    if fingerprints[0] != fingerprints[1]:
        before_now = f"{fingerprints[0][:12]} in the checkpoint, {fingerprints[1][:12]} now"
        refused.append(f"the data set is another one: {before_now}")
    batch = before["progress.json"]["global_batch_size"]
    if batch != global_batch_size:
        allowed.append(f"global batch size: {batch} in the checkpoint, {global_batch_size} now; no sample is skipped")
    if refused:
        advice = "put these settings back, or train in another directory (--set tracker.data_path=...)"
        raise ConfigError("the checkpoint is of another run", [*refused, advice])
    return allowed


def _within(key: str, parts: tuple[str, ...]) -> bool:
    return any(key == part or key.startswith(part + ".") for part in parts)


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested objects as dotted keys; lists stay whole."""
    if not isinstance(value, dict) or not value:
        return {prefix: value}
    return {
        name: item
        for key, inner in value.items()
        for name, item in _flat(inner, f"{prefix}.{key}" if prefix else key).items()
    }
