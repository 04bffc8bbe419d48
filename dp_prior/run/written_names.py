"""Names of a new run that some disks refuse, or take for one."""

from __future__ import annotations

import itertools

from dp_prior.config import Config, ConfigError
from dp_prior.files.file_names import alike, is_portable


def check_names(config: Config) -> None:
    """Check the names of a new run that become files; stored runs keep the names that they have.

    Args:
        config: a `TrainConfig`.

    Raises:
        ConfigError: some disks refuse a name, or take two names for one.
    """
    copies = itertools.chain.from_iterable(saver.copies_to for saver in config.tracker.save)
    names = {
        "evaluators": [record.name for record in (*config.evaluate, *config.test) if record.reports],
        "averages (train.ema)": [*config.train.ema],
        "data sets": [*config.data.recorded_sets()],
        "places of copies": [*map(str, copies)],
        "outboxes of savers": [saver.outbox for saver in config.tracker.save if saver.outbox is not None],
    }
    disks = "disks of Windows, macOS and network shares"
    problems = [
        f"evaluator {name!r} names files, but {disks} refuse or change this name; use letters, digits, _ and -"
        for name in names["evaluators"]
        if not is_portable(f"{name}_0.json")
    ]
    pairs = {kind: alike(texts) for kind, texts in names.items()}
    problems += [
        f"the {kind} {pair[0]!r} and {pair[1]!r} are one name to {disks}, which ignore case; rename one of them"
        for kind, pair in pairs.items()
        if pair is not None
    ]
    if problems:
        raise ConfigError("config", problems)
