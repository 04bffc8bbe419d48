"""Parts of a network with a learning rate or weight decay of their own, by the names of their tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import nn

from dp_prior.config import ConfigError
from dp_prior.tasks.model_parts import check_parts, is_in, part_name


def part_of_each(model: nn.Module, entries: Iterable[str]) -> dict[str, str]:
    """For each trainable parameter that an entry names, the longest such entry.

    Args:
        entries: parts, named as in `part_names`; of a model without a `spec` by the parameters' own names.

    Raises:
        ConfigError: an entry names no trainable parameter, or only those of longer entries.
    """
    spec, entries = getattr(model, "spec", None), sorted(entries, key=len, reverse=True)
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    parts = {name: name if spec is None else part_name(name, spec) for name in trained}
    try:
        check_parts(entries, parts.values())
    except ValueError as error:
        raise ConfigError("train.optimizer.parts", [f"{error}, as far as they are trained"]) from None
    entry_of = {name: next((entry for entry in entries if is_in(part, [entry])), None) for name, part in parts.items()}
    covered = [entry for entry in entries if entry not in entry_of.values()]
    if covered:
        raise ConfigError("train.optimizer.parts", [f"{covered[0]!r} has no effect: longer entries name all it holds"])
    return {name: entry for name, entry in entry_of.items() if entry is not None}


def tuned_parts(param_groups: list[dict], size_of: Callable[[nn.Parameter], int]) -> str:
    """The learning rate and weight decay of each part of the network, for the plan.

    Args:
        param_groups: of an optimizer.
        size_of: number of elements of a whole parameter.
    """
    descriptions = []
    for part in sorted({group["part"] for group in param_groups}, reverse=True):  # all others come last
        groups = [group for group in param_groups if group["part"] == part]
        weights = sum(size_of(parameter) for group in groups for parameter in group["params"])
        lr_scales = sorted({group["lr_scale"] for group in groups})
        scales = " and ".join(f"{scale:g}" for scale in lr_scales)
        decays = {group["weight_decay"] for group in groups if group["is_decayed"]}
        decay = "".join(f", weight decay {decay:g}" for decay in decays)
        descriptions.append(f"{part or 'all others'}: {weights / 1e6:.2f} M at {scales} x lr{decay}")
    return "; ".join(descriptions)
