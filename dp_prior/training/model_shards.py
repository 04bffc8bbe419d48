"""Weights, gradients, averages and optimizer state divided among the ranks, by torch's FSDP2.

`fully_shard` cuts every parameter along its first dimension, gathers the wrap units of a network one at a time where
they are computed, and scatters the sums of their gradients. This module alone knows of its DTensors: the optimizer and
the averages work on local models, plain modules of this rank's parts, and evaluations and saves on whole ones, which
all ranks gather before. So nothing in an evaluation is a collective, however many predictions a rank makes.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from dp_prior.config import ConfigError
from dp_prior.job.ranks import Ranks
from dp_prior.tasks.weights import load_weights
from dp_prior.tensors.compilation import CUDA_GRAPHS
from dp_prior.training.optimizer import AdamW
from dp_prior.training.replicas import Replicas
from dp_prior.training.training_config import TrainingConfig


class ModelShards(Replicas):
    """This rank's parts of the parameters of a model, which share the memory of FSDP2's parts."""

    def __init__(self, ranks: Ranks, config: TrainingConfig):
        """Raises ConfigError: the precision is fp16, or CUDA graphs are recorded."""
        super().__init__(ranks)
        if config.precision == "fp16":
            raise _refused("train.precision is fp16, whose loss scale each rank would find by itself", "set it to bf16")
        if config.compile in CUDA_GRAPHS:
            problem = f"train.compile is {config.compile!r}, which records CUDA graphs, and they hold no exchange"
            raise _refused(problem, "set it to 'default' or 'off'")
        self._mesh = init_device_mesh(ranks.device.type, (ranks.num_processes,))
        self._whole_of: dict[nn.Parameter, DTensor] = {}

    def distributed(self, loss_module: nn.Module, model: nn.Module) -> tuple[nn.Module, nn.Module]:
        for name, parameter in model.named_parameters():
            if parameter.ndim == 0 or not parameter.numel():
                raise _refused(f"{name} has shape {tuple(parameter.shape)}, which cannot be divided", "give it rows")
            parameter.data = parameter.data.contiguous()  # whatever the kernels of a device prefer
        tensors = [*model.parameters(), *model.buffers()]
        self._ranks.share(tensors, 0)
        local = copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})
        for unit in wrap_units(model):
            fully_shard(unit, mesh=self._mesh)
        fully_shard(loss_module, mesh=self._mesh)
        self._whole_of = {_local_parameter(whole): whole for whole in model.parameters()}
        parts = {whole: part for part, whole in self._whole_of.items()}
        for name, whole in model.named_parameters(remove_duplicate=False):
            path, _, leaf = name.rpartition(".")
            setattr(local.get_submodule(path), leaf, parts[whole])
        prepare = self._ranks.accelerator.prepare_model
        return prepare(loss_module, device_placement=False, evaluation_mode=True), local  # autocast alone

    def divide(self, optimizer: AdamW) -> None:
        if not vars(type(optimizer)).get("updates_parts", False):
            problem = f"{type(optimizer).__qualname__} does not say that it can update parts of weights"
            remedy = "set `updates_parts = True` in the class if its `step_group` needs no whole weight"
            raise _refused(problem, f"{remedy} (docs/extending.md)")
        super().divide(optimizer)

    def whole(self, local: nn.Module, *, is_saved: bool = False) -> nn.Module:
        device = self._ranks.device
        if is_saved:
            device = torch.device("cpu" if self._ranks.is_main_process else "meta")
        parts = zip(local.parameters(), self._whole_of, strict=True)
        wholes = {id(part): self.gathered(like, part).to(device) for part, like in parts}
        return _with_parameters(local, wholes).to(device)  # with the memory layout of the device's kernels

    def load(self, local: nn.Module, tensors: dict[str, Tensor], problem: str, hint: str) -> None:
        parts = list(zip(local.parameters(), self._whole_of.values(), strict=True))
        whole = _with_parameters(local, {id(part): torch.empty(like.shape, dtype=like.dtype) for part, like in parts})
        load_weights(whole, tensors, problem, hint)
        with torch.no_grad():
            for (part, like), value in zip(parts, whole.parameters(), strict=True):
                part.copy_(_part_of(value.detach(), like))
            for buffer, value in zip(local.buffers(), whole.buffers(), strict=True):
                buffer.copy_(value)

    def take_gradients(self) -> None:
        for part, whole in self._whole_of.items():
            if whole.grad is not None:
                part.grad, whole.grad = whole.grad.to_local(), None

    def total_norm(self, gradients: list[Tensor]) -> Tensor:
        square = super().total_norm(gradients).to(self._ranks.device, torch.float64).square()
        dist.all_reduce(square)
        return square.sqrt()

    def gathered(self, parameter: nn.Parameter, tensor: Tensor) -> Tensor:
        like = self._whole_of[parameter]
        part = DTensor.from_local(
            tensor.detach(), like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
        )
        return part.full_tensor()

    def part(self, parameter: nn.Parameter, tensor: Tensor) -> Tensor:
        like = self._whole_of[parameter]
        return _part_of(tensor, like) if tensor.shape == like.shape else tensor

    def size(self, parameter: nn.Parameter) -> int:
        return self._whole_of[parameter].numel()

    def collected(self, state: Mapping[nn.Parameter, dict[str, Tensor]]) -> dict[nn.Parameter, dict[str, Tensor]]:
        collected: dict[nn.Parameter, dict[str, Tensor]] = {}
        for parameter, moments in state.items():
            collected[parameter] = {}
            for name, tensor in moments.items():
                whole = self.gathered(parameter, tensor) if tensor.shape == parameter.shape else tensor
                if self._ranks.is_main_process:
                    collected[parameter][name] = whole.cpu()
        return collected

    def __str__(self) -> str:
        return f"divided with the model among {self._ranks.num_processes} ranks"


def wrap_units(model: nn.Module) -> Iterator[nn.Module]:
    """The modules that are gathered each by itself, inner ones first: those of the classes that `shard_units` of a
    network lists, unless a weight of theirs is also used elsewhere."""
    uses = _uses(model)
    kinds: tuple[type[nn.Module], ...] = ()
    for module in model.modules():
        kinds += tuple(getattr(module, "shard_units", ()))
    for module in reversed(list(model.modules())):
        if isinstance(module, kinds) and all(uses[key] == count for key, count in _uses(module).items()):
            yield module


def _refused(problem: str, remedy: str) -> ConfigError:
    """The error of a training whose model cannot be divided."""
    return ConfigError("train.shard", [f"is 'model', but {problem}; {remedy}, or set train.shard to 'optimizer'"])


def _uses(module: nn.Module) -> Counter[nn.Parameter]:
    """How many names each parameter has in a module."""
    return Counter(parameter for _, parameter in module.named_parameters(remove_duplicate=False))


def _local_parameter(whole: DTensor) -> nn.Parameter:
    """This rank's part of a parameter, in the same memory."""
    return nn.Parameter(whole.detach().to_local(), requires_grad=whole.requires_grad)


def _part_of(tensor: Tensor, like: DTensor) -> Tensor:
    """This rank's part of a whole tensor."""
    tensor = tensor.to(like.device)
    return distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None).to_local()


def _with_parameters(local: nn.Module, tensors: Mapping[int, Tensor]) -> nn.Module:
    """A copy of a module with other parameters.

    Args:
        tensors: by the `id` of the parameter whose place they take.
    """
    parameters = {key: nn.Parameter(tensor, requires_grad=False) for key, tensor in tensors.items()}
    return copy.deepcopy(local, parameters)
