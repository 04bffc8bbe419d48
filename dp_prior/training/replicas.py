"""How a model and its optimizer's state lie on the ranks: whole on each, unless `train.shard` divides them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from torch import Tensor, nn

from dp_prior.tasks.weights import load_weights

if TYPE_CHECKING:
    from dp_prior.job.ranks import Ranks


class Optimizer(Protocol):
    """The parts of an optimizer that ranks divide; see `AdamW`."""

    replicas: Replicas
    parameters: list[nn.Parameter]


class Replicas:
    """Ranks that each hold all weights, gradients, averages and optimizer state; a subclass divides some of them.

    The optimizer and the averages see a local model, a plain module whose parameters are what this rank holds: of
    replicas the model itself.
    """

    def __init__(self, ranks: Ranks | None = None):
        """Args: ranks: None for an optimizer without a trainer."""
        self._ranks = ranks

    def distributed(self, loss_module: nn.Module, model: nn.Module) -> tuple[nn.Module, nn.Module]:
        """A module whose backward pass averages gradients over ranks, and the local model.

        Args:
            loss_module: maps a batch to its loss.
            model: inside of `loss_module`.
        """
        return self._ranks.distributed(loss_module), model

    def divide(self, optimizer: Optimizer) -> None:
        """Let an optimizer of the local model update what this rank has to update."""
        optimizer.replicas = self

    def whole(self, local: nn.Module, *, is_saved: bool = False) -> nn.Module:
        """A module like the local one with whole weights. A collective.

        Args:
            is_saved: whether the weights are needed on the main rank alone, on its host.
        """
        return local

    def load(self, local: nn.Module, tensors: dict[str, Tensor], problem: str, hint: str) -> None:
        """Load whole tensors by name into a local model; see `load_weights`."""
        load_weights(local, tensors, problem, hint)

    def take_gradients(self) -> None:
        """Give the parameters of the local model the gradients of a backward pass."""

    def total_norm(self, gradients: list[Tensor]) -> Tensor:
        """() the norm of the whole gradient, of which this rank has these tensors. A collective."""
        return nn.utils.get_total_norm(gradients)

    def is_own(self, parameter: nn.Parameter) -> bool:
        """Whether this rank updates a parameter of the local model."""
        return True

    def share(self, parameters: Iterable[nn.Parameter]) -> None:
        """Give all ranks the values of parameters that one rank has updated. A collective."""

    def gathered(self, parameter: nn.Parameter, tensor: Tensor) -> Tensor:
        """The whole of a tensor that this rank has in the shape of a local parameter. A collective."""
        return tensor

    def part(self, parameter: nn.Parameter, tensor: Tensor) -> Tensor:
        """This rank's part of a tensor in the shape of a whole parameter; other tensors are unchanged."""
        return tensor

    def size(self, parameter: nn.Parameter) -> int:
        """Number of elements of a whole parameter."""
        return parameter.numel()

    def collected(self, state: Mapping[nn.Parameter, dict[str, Tensor]]) -> Mapping[nn.Parameter, dict[str, Tensor]]:
        """The whole state of all parameters on the main rank, that of other ranks on the host. A collective.

        Args:
            state: of each parameter that was updated; see `AdamW`.
        """
        return state

    def __str__(self) -> str:
        """Describe the division in the plan; empty for replicas."""
        return ""
