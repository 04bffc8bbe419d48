"""Ranks that divide the optimizer's state, by `shard_optimizer`: every byte is that of ranks that each have all."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from dp_prior.job.ranks import Ranks
from dp_prior.job.stop import REQUEST
from dp_prior.training.optimizer import AdamWConfig, update
from dp_prior.training.shards import Shards
from dp_prior.training.trainer import PolicyTrainer
from tests.tiny import assert_equal, experiment, rows, state, tiny

OPTIMIZERS = ["adamw", "muon"]
STEPS = {"train__steps": 12, "train__save_every": {"steps": 4}, "train__log_every": {"steps": 1}}


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
        keys = {"train__optimizer": {"type": optimizer}, "train__shard_optimizer": is_divided}
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
    return found


def scaled(ranks: Ranks) -> bool:
    """Whether a loss scaler, which skips a step, leaves the weights of ranks that each have the whole state."""
    weights = []
    for is_divided in (False, True):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv1d(3, 8, 3), nn.Flatten(), nn.Linear(48, 5))
        optimizer, scaler = AdamWConfig().create(net), torch.amp.GradScaler("cpu", init_scale=4.0)
        if is_divided:
            optimizer.shards = Shards(optimizer.parameters, ranks)
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


def test_the_largest_parameters_go_first_to_the_rank_with_the_fewest_numbers():
    parameters = [nn.Parameter(torch.zeros(size)) for size in (3, 9, 1, 4, 4)]
    shards = [Shards(parameters, SimpleNamespace(num_processes=2, process_index=rank)) for rank in range(2)]
    assert [shards[0].rank_of(parameter) for parameter in parameters] == [1, 0, 0, 1, 1]
    assert [[one.is_own(parameter) for one in shards].count(True) for parameter in parameters] == [1] * 5


def test_one_rank_has_the_whole_state(tmp_path):
    run = experiment(tiny(tmp_path, train__shard_optimizer=True))
    trainer = run.parts.trainer(None, None)
    assert trainer.optimizer.shards is None and all(map(trainer.optimizer.updates, trainer.optimizer.parameters))
