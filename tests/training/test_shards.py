"""Ranks that divide the optimizer's state, by `shard` "optimizer": every byte is that of ranks that each have all."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from dp_prior.config import ConfigError
from dp_prior.job.ranks import Ranks
from dp_prior.job.stop import REQUEST
from dp_prior.training.muon import MuonConfig
from dp_prior.training.optimizer import AdamW, AdamWConfig, parameter_groups, set_learning_rate, update
from dp_prior.training.shards import Shards
from dp_prior.training.trainer import PolicyTrainer
from tests.messages import naming
from tests.tiny import assert_equal, experiment, rows, state, tiny

OPTIMIZERS = ["adamw", "muon"]
STEPS = {"train__steps": 12, "train__save_every": {"steps": 4}, "train__log_every": {"steps": 1}}


class Factored(AdamW):
    """An optimizer of another package: rows and columns of the second moment, which it makes at the first step."""

    def moments(self, parameter):
        return ("rows", "columns") if parameter.ndim == 2 else ("second",)

    def step_group(self, group, parameters):
        for parameter in parameters:
            square = self.gradient(parameter).square()
            sums = (square.sum(1), square.sum(0)) if square.ndim == 2 else (square,)
            if parameter not in self.state:
                self.state[parameter] = dict(zip(self.moments(parameter), map(torch.zeros_like, sums), strict=True))
            for held, one in zip(self.state[parameter].values(), sums, strict=True):
                held += 0.1 * (one - held)
            parameter -= group["lr"] * self.gradient(parameter)


class Odd(nn.Module):
    """Weights of several types, shapes and orders in memory."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
        self.shared = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5))
        self.shared[0].weight = self.shared[1].weight
        self.others = nn.ParameterList(
            [torch.randn(4, 3, dtype=torch.float64), torch.randn(7, 3).bfloat16(), torch.randn(6, 4).t()]
            + [torch.zeros(0, 3), torch.zeros(0), torch.tensor(0.5)]
        )

    def forward(self, x):
        return self.conv(x).mean() + self.shared(x.new_ones(5)).sum() + sum(w.double().sum() ** 2 for w in self.others)


class Unused(nn.Linear):
    """A part of another package, which its model does not use."""


def of_ranks(accelerator, place: Path) -> dict:
    """What one rank finds; the runs are in `place`."""
    batch, found = {"data__batch_size": 8 // accelerator.num_processes}, {}
    trainers: list[PolicyTrainer] = []
    build, step = PolicyTrainer.__init__, PolicyTrainer.step

    def building(self, model, *arguments, **keywords):
        model.unused = Unused(2, 2)
        build(self, model, *arguments, **keywords)
        trainers.append(self)

    def poisoned(self, batches):
        if self.progress.global_step in (2, 3) and accelerator.is_main_process:
            batches[0].x.fill_(float("nan"))
        step(self, batches)
        if self.progress.global_step == until:
            self.stop.ask(REQUEST)

    def go(run: str, optimizer: str, is_divided: bool) -> None:
        earlier, now = {"train__shard_optimizer": is_divided}, {"train__shard": "optimizer" if is_divided else False}
        keys = {"train__optimizer": {"type": optimizer}, **(earlier if optimizer == "muon" else now)}
        experiment(tiny(place, **STEPS, **batch, **keys, tracker__data_path=str(place / run))).run()

    PolicyTrainer.__init__, PolicyTrainer.step = building, poisoned
    for optimizer in OPTIMIZERS:
        until = None
        for name, is_divided in (("whole", False), ("divided", True)):
            go(f"{name} {optimizer}", optimizer, is_divided)
            held = trainers[-1].optimizer
            found[f"{name} {optimizer}"] = sum(
                tensor.numel() for tensors in held.state.values() for tensor in tensors.values()
            )
            found[f"unused {name} {optimizer}"] = trainers[-1].online.unused.weight in held.state
            found[f"skipped {name} {optimizer}"] = trainers[-1].guard.counts[0].item()
        for until, is_divided in ((3, True), (6, False), (9, True), (None, True)):  # noqa: B007 (read by `poisoned`)
            go(f"turns {optimizer}", optimizer, is_divided)
    found["scaled"] = scaled(Ranks(accelerator))
    found["odd"] = odd(Ranks(accelerator))
    return found


def odd(ranks: Ranks) -> list[str]:
    """Optimizers of which, with weights as odd as can be, the main rank collects another state than without shards."""
    makes = {each.__name__: each().create for each in (AdamWConfig, MuonConfig)}
    makes["Factored"] = lambda model: Factored(parameter_groups(model, 0.1), betas=(0.9, 0.9), eps=0.0)
    wrong = []
    for name, make in makes.items():
        found = []
        for is_divided in (False, True):
            torch.manual_seed(0)
            model = Odd()
            optimizer = make(model)
            if is_divided:
                Shards(ranks).divide(optimizer)
            for _ in range(2):
                set_learning_rate(optimizer, 0.01)
                model(torch.randn(2, 3, 6, 6)).backward()
                update(optimizer, 1.0)
            state = optimizer.collected()
            held = {f"{n} {key}": value for n, p in model.named_parameters() for key, value in state[p].items()}
            found.append(dict(model.named_parameters()) | (held if ranks.is_main_process else {}))
        whole, divided = found
        if whole.keys() != divided.keys() or not all(torch.equal(divided[key], whole[key]) for key in whole):
            wrong.append(name)
    return wrong


def scaled(ranks: Ranks) -> bool:
    """Whether a loss scaler, which skips a step, leaves the weights of ranks that each have the whole state."""
    weights = []
    for is_divided in (False, True):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv1d(3, 8, 3), nn.Flatten(), nn.Linear(48, 5))
        optimizer, scaler = AdamWConfig().create(net), torch.amp.GradScaler("cpu", init_scale=4.0)
        if is_divided:
            Shards(ranks).divide(optimizer)
        for number in range(4):
            for group in optimizer.param_groups:
                group["lr"] = 0.1
            loss = net(torch.randn(4, 3, 8)).square().mean() * (float("inf") if number == 1 else 1.0)
            scaler.scale(loss).backward()
            update(optimizer, 1.0, scaler)
        weights.append(torch.cat([parameter.detach().flatten() for parameter in net.parameters()]))
    return torch.equal(*weights) and bool(weights[0].isfinite().all())


SOURCE = """
import json, sys
from pathlib import Path
from tests.training.test_shards import of_ranks
print(json.dumps(of_ranks(accelerator, Path(sys.argv[1]))))
"""


@pytest.mark.parametrize("n_ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_every_byte_is_that_of_ranks_which_each_have_the_whole_state(n_ranks, run_ranks, tmp_path):
    """Also with steps that are skipped, weights without gradient, and starts that take turns."""
    found = [json.loads(output.splitlines()[-1]) for output in run_ranks(SOURCE, n_ranks, tmp_path)]
    for optimizer in OPTIMIZERS:
        whole, divided = tmp_path / f"whole {optimizer}", tmp_path / f"divided {optimizer}"
        assert len(rows(whole)) == 12 and rows(divided) == rows(whole)
        assert_equal(state(divided), state(whole))
        assert_equal(state(tmp_path / f"turns {optimizer}"), state(whole))
        held = [one[f"divided {optimizer}"] for one in found]
        assert {one[f"whole {optimizer}"] for one in found} == {sum(held)} and max(held) < 1.4 * sum(held) / n_ranks
        assert not any(one[f"unused {name} {optimizer}"] for one in found for name in ("whole", "divided"))
        assert {one[f"skipped {name} {optimizer}"] for one in found for name in ("whole", "divided")} == {2}
    assert all(one["scaled"] for one in found)
    assert [one["odd"] for one in found] == [[]] * n_ranks


def test_the_largest_parameters_go_first_to_the_rank_with_the_fewest_numbers():
    parameters = [nn.Parameter(torch.zeros(size)) for size in (3, 9, 1, 4, 4)]
    shards = [Shards(SimpleNamespace(num_processes=2, process_index=rank)) for rank in range(2)]
    for division in shards:
        division.divide(SimpleNamespace(parameters=parameters))
    assert [shards[0].rank_of(parameter) for parameter in parameters] == [1, 0, 0, 1, 1]
    assert [[one.is_own(parameter) for one in shards].count(True) for parameter in parameters] == [1] * 5


def test_one_rank_has_the_whole_state(tmp_path):
    run = experiment(tiny(tmp_path, train__shard_optimizer=True))
    trainer = run.parts.trainer(None, None)
    assert not str(trainer.replicas) and all(map(trainer.optimizer.updates, trainer.optimizer.parameters))


def test_an_optimizer_that_updates_the_weights_of_other_ranks_is_refused():
    """Each rank would have the whole state, and after a resume none of those weights."""

    class Whole(AdamW):
        def step(self):
            for parameter in self.parameters:
                self.step_group(self.param_groups[0], [parameter])

    layer = nn.Linear(2, 2)
    optimizer = Whole(parameter_groups(layer, 0.0), betas=(0.9, 0.9), eps=1e-8)
    Shards(SimpleNamespace(num_processes=2, process_index=0)).divide(optimizer)
    layer(torch.ones(2)).sum().backward()
    with pytest.raises(ConfigError, match=naming("train.shard", "`step_group`")):
        update(optimizer, 1.0)
