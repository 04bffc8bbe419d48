"""From arrays in memory to batches: a gather against one window per call."""

from __future__ import annotations

import itertools

import torch

from benchmarks import baseline, setting
from benchmarks.measure import Case, Options, per_second


def run(options: Options) -> list[Case]:
    data = baseline.WindowDataset(setting.arrays(), setting.HORIZON, setting.N_OBS_STEPS, setting.N_ACTION_STEPS)
    loader = setting.loader(options)
    assert len(data) == len(loader)
    one_by_one = baseline.batches(data, options.batch_size)
    starts = itertools.count(0, 40 * options.batch_size)

    def theirs() -> int:
        return sum(len(batch["action"]) for batch in itertools.islice(one_by_one, 8 if options.quick else 40))

    def ours() -> int:
        """A place in the order that was not asked for before, so that epochs are shuffled as in a run."""
        batches = loader.from_sample(next(starts))
        return sum(len(parts[0]) for parts in itertools.islice(batches, 40))

    floor = torch.randint(0, len(data), (40, options.batch_size))
    windows = torch.randn(len(data), setting.HORIZON * setting.ACTION_DIM + setting.COND_DIM)

    def limit() -> int:
        return sum(len(windows.index_select(0, rows)) for rows in floor)

    variants = per_second({"baseline": theirs, "dp_prior": ours, "index_select alone": limit}, options.times(9))
    return [Case("batches from memory", "windows/s", variants, more_is_better=True)]
