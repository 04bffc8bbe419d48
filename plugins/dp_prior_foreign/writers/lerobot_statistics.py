"""Statistics as LeRobot stores them: of each episode in its list of episodes, and pooled over all in `stats.json`.

Quantiles of a data set are the weighted means of the episodes' quantiles: LeRobot pools a new episode with the stored
statistics of all earlier episodes.
"""

from __future__ import annotations

import numpy as np

QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}

Statistics = dict[str, np.ndarray]
"""By name: `min`, `max`, `mean`, `std` and QUANTILES, float64 of one shape, and `count` of shape (1,), the frames."""


def number_statistics(values: np.ndarray) -> Statistics:
    """Compute the statistics of (n, *shape) numbers along all axes but the last; a number per frame gives shape
    (1,)."""
    rows = values.reshape(len(values), -1) if values.ndim < 2 else values.reshape(-1, values.shape[-1])
    rows = rows.astype(np.float64)
    statistics = {"min": rows.min(0), "max": rows.max(0), "mean": rows.mean(0), "std": rows.std(0)}
    statistics["count"] = np.array([len(values)])
    quantiles = np.quantile(rows, list(QUANTILES.values()), axis=0, method="inverted_cdf")
    return statistics | dict(zip(QUANTILES, quantiles, strict=True))


def pixel_statistics(frames: np.ndarray) -> Statistics:
    """Compute the statistics of (k, H, W, channels) frames by channel, each (channels, 1, 1): uint8 is scaled to values
    from 0 to 1, depth in uint16 is not scaled."""
    n_channels, n_levels = frames.shape[-1], np.iinfo(frames.dtype).max + 1
    counts = np.zeros((n_channels, n_levels), np.int64)
    for frame in frames:
        counts += [np.bincount(frame[..., channel].ravel(), minlength=n_levels) for channel in range(n_channels)]
    levels, total, ranks = np.arange(n_levels), frames[..., 0].size, counts.cumsum(1)
    mean = counts @ levels / total
    statistics = {
        "min": (counts > 0).argmax(1),
        "max": n_levels - 1 - (counts[:, ::-1] > 0).argmax(1),
        "mean": mean,
        "std": np.sqrt(np.maximum(counts @ levels**2 / total - mean**2, 0)),
        **{name: (ranks >= share * total).argmax(1) for name, share in QUANTILES.items()},
    }
    scale = 255 if frames.dtype == np.uint8 else 1
    shaped = {name: (value / scale).reshape(n_channels, 1, 1) for name, value in statistics.items()}
    return shaped | {"count": np.array([len(frames)])}


def pooled(first: Statistics, second: Statistics) -> Statistics:
    """Combine the statistics of two sets of frames."""
    share = second["count"] / (first["count"] + second["count"])

    def between(name: str, power: int = 1) -> np.ndarray:
        return first[name] ** power + share * (second[name] ** power - first[name] ** power)

    apart = second["mean"] - first["mean"]
    variance = between("std", 2) + share * (1 - share) * apart**2
    return {
        "min": np.minimum(first["min"], second["min"]),
        "max": np.maximum(first["max"], second["max"]),
        "mean": between("mean"),
        "std": np.sqrt(variance),
        "count": first["count"] + second["count"],
        **{name: between(name) for name in QUANTILES},
    }
