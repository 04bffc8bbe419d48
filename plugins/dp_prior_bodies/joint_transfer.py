"""What a network for many bodies takes of another checkpoint (`train.init_from`): a network for many, or one policy.

A body that both have takes its policy as a whole: normalizer, encoders and its part of the shared network. A body that
the checkpoint does not have keeps its own normalizer and features; encoders of observations that some body of the
checkpoint has, by name, and the network come from there. What no body of the checkpoint gives begins anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dp_prior.tasks.model_parts import is_in, part_name
from dp_prior.tasks.pretrained import Pretrained
from dp_prior.tasks.transfer import Transfer, choose, covering
from dp_prior.tasks.weights import TransferConfig

SHARED = "encoder", "backbone"
"""Parts that a body unknown to the checkpoint takes of its other bodies."""

OWN_FEATURES = "encoder.body"
"""The learnt features of a body, which a plain policy does not have."""


def transfer(model: Any, source: Pretrained, record: TransferConfig) -> Transfer:
    """Choose what a network for many bodies takes of the model of a checkpoint. Both stay unchanged.

    Args:
        model: a `BodiesPolicy`, whose module imports this one.

    Raises:
        ValueError: the checkpoint has no body of the network, or its tensors do not fit; see `choose`.
    """
    policies = _policies(model, source, record)
    joint = _Joint(model)
    known = [name for name in model.bodies if name in policies]
    for name in known:
        joint.take(name, policies[name], record)
    for name in (name for name in model.bodies if name not in policies):
        for policy in policies.values():
            joint.take_shared(name, policy, record)
    return joint.transfer(policies)


def _policies(model: Any, source: Pretrained, record: TransferConfig) -> dict[str, Any]:
    """The policies of a checkpoint, by the body of the network that has the same name, or the same shapes."""
    if len(source.bodies) > 1 or (source.bodies and not hasattr(source.record, "body")):
        policies = {name: source.body(name) for name in source.bodies}
        if not {*policies} & {*model.bodies} and not record.may_differ:
            raise ValueError(
                f"it was trained for the bodies {', '.join(map(repr, source.bodies))}, of which data.sets has none, "
                f"but {', '.join(map(repr, model.bodies))}; to take the network for new bodies alone, name what may "
                f"differ in may_differ: {', '.join(SHARED)}"
            )
        return policies
    fitting = [name for name in source.bodies if name in model.bodies]
    fitting = fitting or [name for name, spec in model.spec.bodies.items() if _is_alike(spec, source.spec)]
    if len(fitting) != 1:
        finding = f"so do the bodies {', '.join(fitting)}" if fitting else "no body of data.sets does"
        raise ValueError(
            f"this policy reads {_shapes(source.spec)} and acts with {source.spec.x_shape[-1]} numbers, and {finding}; "
            f"expected exactly one such body"
        )
    return {fitting[0]: source}


def _is_alike(spec: Any, other: Any) -> bool:
    """Whether two bodies have actions of one size and the same observations."""
    return spec.x_shape[-1] == other.x_shape[-1] and _shapes(spec) == _shapes(other)


def _shapes(spec: Any) -> dict[str, tuple[int, ...]]:
    """The shape of each observation, without the steps, in alphabetical order."""
    return {key: spec.cond_shapes[key][1:] for key in sorted(spec.cond_shapes)}


@dataclass
class _Joint:
    """The tensors of a network for many bodies while parts of them are replaced.

    Attributes:
        tensors: by name.
        covered: by name, which places along the axis of bodies came from the checkpoint.
        incomplete: names of tensors of which a body took a part by the names of numbers.
        used: the parts of the policies of the checkpoint that were taken.
        lines, warnings: about the numbers of vectors, see `Transfer`.
    """

    model: Any
    tensors: dict[str, Tensor] = field(init=False)
    covered: dict[str, set[int]] = field(default_factory=dict)
    incomplete: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)
    lines: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tensors = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}

    def take(self, name: str, policy: Any, record: TransferConfig) -> None:
        """Take the policy of a body that the checkpoint has.

        Raises:
            ValueError: a tensor does not fit.
        """
        settings = record
        if not policy.bodies:  # a plain policy has no features of a body, which widen the network
            may_differ = (*record.may_differ, OWN_FEATURES, "backbone")
            settings = record.model_copy(update={"may_differ": may_differ})
        alone = self._alone(name)
        chosen = choose(alone, policy, settings)
        allowed = (*record.may_differ, OWN_FEATURES)
        misfits = [part for part in chosen.fresh if not record.only and not is_in(part, allowed)]
        if misfits and not policy.bodies:
            raise ValueError(
                f"{', '.join(covering(misfits))} of body {name!r} do not fit. What may differ is named in may_differ"
            )
        self._paste(name, alone, chosen, chosen.taken)
        self.warnings += [f"{name}: {line}" for line in chosen.warnings]

    def take_shared(self, name: str, policy: Any, record: TransferConfig) -> None:
        """Take of a policy what fits another body: encoders by observation, and the network."""
        only = record.only or SHARED
        settings = record.model_copy(update={"only": only, "may_differ": (*record.may_differ, *SHARED)})
        alone = self._alone(name)
        chosen = choose(alone, policy, settings)
        taken = {}
        for tensor_name, tensor in chosen.taken.items():
            if not is_in(part_name(tensor_name, alone.spec), ("normalizer", OWN_FEATURES)):
                taken[tensor_name] = tensor
        self._paste(name, alone, chosen, taken)

    def _alone(self, name: str) -> Any:
        """The policy of a body with the tensors as they are now."""
        alone = self.model.body(name)
        alone.load_state_dict(self.model.cut(name, self.tensors))
        return alone

    def _paste(self, name: str, alone: Any, chosen: Transfer, taken: dict[str, Tensor]) -> None:
        """Write tensors of a body's policy into those of the network."""
        for stored_name, name_of_body, axis, places in self.model.shares(name):
            if name_of_body not in taken:
                continue
            tensor, value = self.tensors[stored_name], taken[name_of_body]
            every = torch.arange(tensor.shape[axis] if tensor.dim() else 1)
            places = every if places is None else places
            if tensor.dim():
                value = value.unsqueeze(0) if value.dim() < tensor.dim() else value
                self.tensors[stored_name] = tensor.index_copy(axis, places, value.to(tensor.dtype))
            else:
                self.tensors[stored_name] = value.clone()
            part = part_name(name_of_body, alone.spec)
            self.used.add(part)
            if part in chosen.partly:
                self.incomplete.add(stored_name)
            self.covered.setdefault(stored_name, set()).update(places.tolist())
        self.lines += [f"{name}: {line}" for line in chosen.names]

    def transfer(self, policies: dict[str, Any]) -> Transfer:
        """Describe the transfer. Args: policies: those of the checkpoint."""
        sizes = {name: self.tensors[name].shape[axis] for name, axis in self._axes().items()}
        partly = [name for name, places in self.covered.items() if len(places) < sizes.get(name, len(places))]
        partly += [name for name in self.incomplete if name not in partly]
        unused = []
        for policy in policies.values():
            parts = (part_name(name, policy.spec) for name in policy.state_dict())
            unused += [part for part in parts if part not in self.used]
        if not self.covered:
            raise ValueError(f"none of its tensors fits a body of {', '.join(self.model.bodies)}")
        return Transfer(
            taken={name: self.tensors[name] for name in self.covered},
            partly=tuple(self._parts(partly)),
            fresh=tuple(self._parts(name for name in self.tensors if name not in self.covered)),
            unused=tuple(dict.fromkeys(unused)),
            names=tuple(dict.fromkeys(self.lines)),
            warnings=tuple(self.warnings),
        )

    def _axes(self) -> dict[str, int]:
        """By tensor the axis along which bodies have parts of it."""
        axes = {}
        for name in self.model.bodies:
            axes |= {
                stored_name: axis for stored_name, _, axis, places in self.model.shares(name) if places is not None
            }
        return axes

    def _parts(self, names: Iterable[str]) -> Iterator[str]:
        """Parts of the network, with the names of bodies and observations."""
        for name in names:
            part = part_name(name, self.model.spec)
            for number, body in enumerate(self.model.bodies):
                if part.startswith(f"normalizer.{number}."):
                    part = part.replace(f"normalizer.{number}.", f"normalizer.{body}.", 1)
            yield part
