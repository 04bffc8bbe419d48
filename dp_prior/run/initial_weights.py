"""Weights that a new run takes from another checkpoint, and what differs between that checkpoint and the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dp_prior.checkpoints.documents import CONFIG
from dp_prior.checkpoints.format import read_checkpoint
from dp_prior.config import ConfigError
from dp_prior.config.overrides import flat
from dp_prior.job.ranks import Ranks
from dp_prior.places.reference import resolve
from dp_prior.run.changes import completed
from dp_prior.run.config import TrainConfig
from dp_prior.tasks.pretrained import Pretrained
from dp_prior.tasks.transfer import Transfer, choose
from dp_prior.tasks.weights import TransferConfig


def take_weights(
    model: Pretrained, config: TrainConfig, source: TransferConfig, ranks: Ranks, report: Callable[[str], None]
) -> None:
    """Load the weights and normalizer of another checkpoint into `model`, or the parts that `source` names, and report
    which, and what differs.

    Raises:
        ConfigError: the weights do not fit.
    """
    transfer = _transfer(model, source, ranks)
    model.load_state_dict({**model.state_dict(), **transfer.taken})
    report(f"  initialised   from {source.path}: {transfer}")
    for line in transfer.names:
        report(f"  initialised   {line}")
    warnings = list(transfer.warnings)
    if transfer.has_normalizer and not ranks.decide(lambda: _has_normalizer_of(config, source.path)):
        warnings.append("task.normalizer is not that of these weights, which is used; write the same one")
    for line in [*warnings, *ranks.decide(lambda: _reordered(config, source.path))]:
        report(f"  warning       {line}")


def _transfer(model: Pretrained, source: TransferConfig, ranks: Ranks) -> Transfer:
    directory = ranks.decide_unless_stopped(lambda: ranks.stop.leaving(lambda: resolve(source.path, whole=False)))
    try:
        return choose(model, Pretrained.from_pretrained(directory), source)
    except ValueError as error:
        raise ConfigError("train.init_from", [f"{source.path!r} does not fit: {error}"]) from None


def _has_normalizer_of(config: TrainConfig, reference: str) -> bool:
    """Whether the configuration's normalizer is that of a checkpoint, as far as its own configuration says."""
    documents = read_checkpoint(resolve(reference, whole=False), [CONFIG]).documents
    configurations = config.to_document(), completed(documents[CONFIG])
    mine, stored = (document["task"].get("normalizer") for document in configurations)
    return mine == stored


def _reordered(config: TrainConfig, reference: str) -> list[str]:
    """A line for each observation, and the action, that joins the same keys in another order than a checkpoint, as far
    as its own configuration says: shapes agree, and the numbers mean something else."""
    stored_data = read_checkpoint(resolve(reference, whole=False), [CONFIG]).documents[CONFIG].get("data") or {}
    stored_keys = [keys for data in _sets(stored_data).values() for keys in _joined(data).items()]
    lines = []
    for where, data in _sets(config.to_document()["data"]).items():
        for place, now in _joined(data).items():
            orders = [keys for other, keys in stored_keys if other == place and sorted(keys) == sorted(now)]
            if orders and now not in orders:
                joined, read = ", ".join(now), ", ".join(orders[0])
                lines.append(f"{where}.{place}.key joins {joined}, but these weights read {read}; write that order")
    return lines


def _sets(data: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Recorded data by the place of their settings; each set of a mixture."""
    sets = data.get("sets")
    return (
        {f"data.sets.{name}": settings for name, settings in sets.items()} if isinstance(sets, dict) else {"data": data}
    )


def _joined(data: dict[str, Any]) -> dict[str, list[str]]:
    """The keys of the action, and of each observation, that join several, by their place in the settings of a set."""
    settings, places = flat(data), ("action", *(f"obs.{name}" for name in data.get("obs") or {}))
    keys_by_place = {place: settings.get(f"{place}.key") for place in places}
    return {place: keys for place, keys in keys_by_place.items() if isinstance(keys, list)}
