"""Two ranks are one: the same losses and weights, each sample once, one set of files, one decision.

All that needs two processes is done in one pair of them, `two_ranks`, since starting them is what takes long.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from dp_prior.config import ConfigError
from dp_prior.data.errors import DataError
from dp_prior.envs.toy import demonstrations
from dp_prior.job.accelerator import make_accelerator
from dp_prior.job.ranks import Ranks
from dp_prior.job.stop import REQUEST
from dp_prior.training.trainer import PolicyTrainer
from tests.messages import naming, told
from tests.tiny import assert_equal, experiment, rows, state, tiny, write

ROOT = Path(__file__).parent.parent.parent
STEADY = {"train__log_every": {"steps": 1}}
WHOLE, HALF = {"data__batch_size": 8}, {"data__batch_size": 4}
PHASES = {"train__steps": 23, "train__log_every": {"steps": 5}}


def record_into(seen, patch=setattr, until=None):
    step = PolicyTrainer.step

    def recording(self, batches):
        seen.append([sample for batch in batches for sample in batch.ids.tolist()])
        step(self, batches)
        if self.progress.global_step == until:
            self.stop.ask(REQUEST)

    patch(PolicyTrainer, "step", recording)


def tensors(run: Path) -> dict[str, torch.Tensor]:
    return {name: value for name, value in state(run).items() if ":" in name and "means" not in name}


def digest(trainer: PolicyTrainer) -> dict[str, str]:
    """SHA-256 of each model that this rank holds."""
    return {
        name: hashlib.sha256(b"".join(t.numpy().tobytes() for t in model.state_dict().values())).hexdigest()
        for name, model in trainer.models.items()
    }


class Unused(torch.nn.Linear):
    """A part of another package, which its model does not use."""


def two_ranks(accelerator, place: Path) -> dict:
    """What one of two ranks sees; the directories with what the runs wrote are in `place`."""
    rank = accelerator.process_index
    written: list[str] = []

    def watch(event: str, arguments: tuple) -> None:
        is_write = event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+")
        if is_write or event in ("os.mkdir", "os.rename", "os.remove", "shutil.rmtree"):
            written.append(str(arguments[0]))

    sys.addaudithook(watch)
    found: dict = {"ranks": accelerator.num_processes}
    trainers: list[PolicyTrainer] = []
    build = PolicyTrainer.__init__

    def building(self, *arguments, **keywords):
        build(self, *arguments, **keywords)
        trainers.append(self)

    PolicyTrainer.__init__ = building

    experiment(tiny(place, **STEADY, **HALF, tracker__data_path=str(place / "halves"))).run()
    found["models"] = digest(trainers[-1])

    seen: list[list[int]] = []
    step = PolicyTrainer.step
    record_into(seen, until=11)
    phases = tiny(place, **PHASES, **HALF, tracker__data_path=str(place / "phases"))
    experiment(phases).run()
    found["seen"] = seen
    PolicyTrainer.step = step

    try:
        experiment(phases).run("never")
    except ConfigError as error:
        found["refusal"] = str(error)

    own = place / f"of_rank_{rank}.npz"
    arrays = demonstrations(4, seed=3)
    np.savez(own, **{**arrays, "action": arrays["action"] * (1.0 + rank)})
    other = tiny(place, **HALF, train__steps=1, tracker__data_path=str(place / "other"), data__episodes__path=str(own))
    try:
        experiment(other).run()
    except DataError as error:
        found["other data"] = str(error)
    found["allowed"] = experiment(other).run(allow_changes=["data.fingerprint"]).status

    def stop_in_the_third(self, batches):
        step(self, batches)
        if rank == 1 and self.progress.global_step == 3:
            self.stop.ask(REQUEST)

    PolicyTrainer.step = stop_in_the_third
    outcome = experiment(tiny(place, **HALF, tracker__data_path=str(place / "stopped"))).run()
    found["stopped"] = [outcome.status, outcome.progress.global_step]

    def poisoned(self, batches):
        if self.progress.global_step in (2, 3) and rank == 1:
            batches[0].x.fill_(float("nan"))
        step(self, batches)

    PolicyTrainer.step = poisoned
    experiment(tiny(place, **HALF, train__steps=5, tracker__data_path=str(place / "poisoned"))).run()
    found["poisoned"] = [trainers[-1].guard.counts.tolist(), digest(trainers[-1])]

    def extend(self, model, *arguments, **keywords):
        model.unused = Unused(2, 2)
        building(self, model, *arguments, **keywords)

    PolicyTrainer.step, PolicyTrainer.__init__ = step, extend
    outcome = experiment(tiny(place, **HALF, train__steps=3, tracker__data_path=str(place / "unused"))).run()
    found["unused"] = [outcome.progress.global_step, trainers[-1].online.unused.weight.grad is None]
    found["written"] = [path for path in written if str(place) in path]
    return found


_found: list[dict] = []
_place: list[Path] = []


@pytest.fixture
def ranks(run_ranks, tmp_path_factory):
    """`two_ranks` of both ranks, and where they ran; done once for this file."""
    if not _found:
        place = tmp_path_factory.mktemp("ranks")
        before = phase(place, 3)
        source = (
            "import json, sys; from pathlib import Path; from tests.job.test_ranks import two_ranks; "
            "print(json.dumps(two_ranks(accelerator, Path(sys.argv[1]))))"
        )
        _found.extend(json.loads(output.splitlines()[-1]) for output in run_ranks(source, 2, place))
        _found[0]["before"] = before
        _place.append(place)
    assert [one["ranks"] for one in _found] == [2, 2]
    return _found, _place[0]


def assert_near(run: Path, reference: Path, tolerance: float) -> None:
    found, expected = tensors(run), tensors(reference)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=tolerance, atol=tolerance)
    lines, others = rows(run), rows(reference)
    assert [line["step"] for line in lines] == [line["step"] for line in others]
    for line, other in zip(lines, others, strict=True):
        assert line == pytest.approx(other, rel=1e-5, abs=1e-5)  # a gradient's norm is farther from the weights


def test_two_ranks_equal_one_with_twice_the_batch(ranks, tmp_path):
    """Losses of each step, weights, averages and moments; only the order of sums differs."""
    experiment(tiny(tmp_path, **STEADY, **WHOLE)).run()
    assert len(rows(tmp_path / "run")) == 24
    assert_near(ranks[1] / "halves", tmp_path / "run", 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("backbone", ["mlp", "unet1d"])
def test_two_accumulated_batches_equal_one_twice_as_large(backbone, tmp_path):
    change = dict(STEADY)
    if backbone == "unet1d":
        small = {"type": "unet1d", "down_dims": [8, 16], "n_groups": 4, "step_embed_dim": 8}
        change = {"task__backbone": small, "train__log_every": {"steps": 1}, "train__steps": 12}
    for name, size in (("whole", WHOLE), ("halves", {**HALF, "train__accumulation": 2})):
        experiment(tiny(tmp_path, **change, **size, tracker__data_path=str(tmp_path / name))).run()
    assert_near(tmp_path / "halves", tmp_path / "whole", 1e-6)


def phase(place: Path, until: int | None) -> list[list[int]]:
    """Go on with the run in `place / "phases"` on one rank and stop after a step; ids of the samples of each step."""
    seen: list[list[int]] = []
    with pytest.MonkeyPatch.context() as patch:
        record_into(seen, patch.setattr, until)
        experiment(tiny(place, **PHASES, **WHOLE, tracker__data_path=str(place / "phases"))).run()
    return seen


@pytest.mark.promise("B3")
def test_run_that_goes_from_one_rank_to_two_and_back_is_one_run(ranks, tmp_path):
    """Each sample once an epoch, in the same order; the means of lines that span a change count each sample once."""
    found, place = ranks
    dealt = [
        [sample for pair in zip(*step, strict=True) for sample in pair]
        for step in zip(found[0]["seen"], found[1]["seen"], strict=True)
    ]
    first, last = found[0]["before"], phase(place, None)
    assert (len(first), len(dealt), len(last)) == (3, 8, 12)
    order = [sample for step in [*first, *dealt, *last] for sample in step]
    n = len(set(order))
    for start in range(0, len(order) - n + 1, n):
        assert sorted(order[start : start + n]) == list(range(n))
    assert order == [sample for step in phase(tmp_path, None) for sample in step]
    assert_near(place / "phases", tmp_path / "phases", 1e-5)


def test_both_ranks_hold_the_same_weights_and_averages(ranks):
    first, second = ranks[0]
    assert first["models"] == second["models"]
    assert set(first["models"]) == {"ema", "slow", "online"}
    assert len(set(first["models"].values())) == 3


def test_only_the_first_rank_writes_files(ranks):
    first, second = ranks[0]
    # stacks are there in a crash; how it ended is told by whoever is first; the script itself changes its own data
    own = ("stacks", "rank_1.txt", "exit.json", "of_rank_1.npz")
    files = [path for path in second["written"] if not Path(path).is_dir()]
    assert [path for path in files if not path.endswith(own)] == []
    assert not list(ranks[1].rglob("stacks"))
    assert len(first["written"]) > 50


def test_error_of_the_first_rank_reaches_all(ranks):
    first, second = ranks[0]
    assert told(first["refusal"], "step_00000011", "nothing")
    assert second["refusal"] == first["refusal"]


def test_a_rank_that_reads_other_data_ends_all_before_training_unless_that_is_allowed(ranks):
    for one in ranks[0]:
        assert told(one["other data"], "rank 1", "rank 0", "--allow-change data.fingerprint")
        assert one["allowed"] == "finished"


def test_request_to_one_rank_stops_all_after_the_same_step(ranks):
    found, place = ranks
    assert [one["stopped"] for one in found] == [["stopped", 3], ["stopped", 3]]
    assert state(place / "stopped")["progress"]["global_step"] == 3


def test_bad_sample_on_one_rank_is_skipped_on_all(ranks):
    (counts, models), (others, same) = (one["poisoned"] for one in ranks[0])
    assert counts == others == [2, 0, 4]
    assert models == same


def test_a_part_of_another_package_may_get_no_gradient(ranks):
    assert [one["unused"] for one in ranks[0]] == [[3, True]] * 2


def test_each_rank_knows_how_many_share_its_machine(run_ranks):
    """By the names of their machines, whatever launched them; here rank 2 of three says that it is on another one."""
    source = """
import platform
from dp_prior.job.ranks import Ranks
if rank == 2:
    platform.node = lambda: "another machine"
print(Ranks(accelerator).num_local_processes)
"""
    assert run_ranks(source, 3) == ["2\n", "2\n", "1\n"]
    assert Ranks(make_accelerator("fp32")).num_local_processes == 1


def test_the_facts_of_a_start_are_those_of_accelerate_as_json(tmp_path):
    accelerator = make_accelerator("bf16")
    facts = Ranks(accelerator).facts
    assert (
        json.loads(json.dumps(facts))
        == facts
        == {
            "distributed_type": str(accelerator.distributed_type.value),
            "num_processes": accelerator.num_processes,
            "mixed_precision": "bf16",
            "device": str(accelerator.device),
            "backend": accelerator.state.backend,
        }
    )


def test_decision_of_one_process_is_its_own(monkeypatch):
    alone = Ranks(make_accelerator("fp32"))
    assert alone.decide(lambda: 3) == 3
    with pytest.raises(ConfigError, match=naming("--resume", "no")) as caught:
        alone.decide(lambda: (_ for _ in ()).throw(ConfigError("--resume", ["no"])))
    assert caught.value.problems == ["no"] and not hasattr(caught.value, "is_relayed")


def test_an_error_of_the_main_rank_is_marked_as_told_on_the_others_alone(monkeypatch):
    """So that a command prints it once, and not once per rank."""
    ranks = Ranks(make_accelerator("fp32"))
    monkeypatch.setattr(ranks, "num_processes", 2)
    monkeypatch.setattr(ranks, "is_main_process", False)

    def receive(outcome):
        outcome[:] = [None, ConfigError, "--resume: 1 problem"]

    monkeypatch.setattr("dp_prior.job.ranks.broadcast_object_list", receive)
    with pytest.raises(ConfigError, match=naming("--resume")) as caught:
        ranks.decide(lambda: pytest.fail("only the main rank chooses"))
    assert caught.value.is_relayed


def launched(command: list[str], config: Path, **environment: str) -> tuple[int, str]:
    """Exit code and output of a launcher in a process group of its own, of which nothing may be left."""
    process = subprocess.Popen(
        [sys.executable, "-m", *command, "train_policy.py", "--config_file", str(config)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=250)
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
            orphaned = True
        except ProcessLookupError:
            orphaned = False
    assert not orphaned, output
    return process.returncode, output


TORCHRUN = ["torch.distributed.run", "--standalone", "--nproc_per_node", "2"]


@pytest.mark.slow
def test_torchrun_trains_on_two_ranks(tmp_path):
    """Stories under torchrun that run by default are in `tests/test_chaos.py`."""
    config = write(tmp_path, **HALF, train__steps=4)
    code, output = launched(TORCHRUN, config, ACCELERATE_USE_CPU="true")
    assert code == 0, output
    assert "8 = 4 a micro-batch x 1 summed x 2 ranks" in output
    assert output.count("finished: 32 samples in 4 steps") == 1
    assert state(tmp_path / "run")["progress"]["world_size"] == 2


@pytest.mark.slow
def test_three_ranks_that_resume_equal_three_that_went_on(tmp_path):
    """A sum of three numbers depends on its order, which the place of a gradient in its bucket decides."""
    runs = {}
    for name, budgets in (("whole", [20]), ("resumed", [9, 20])):
        place = tmp_path / name
        place.mkdir()
        for steps in budgets:
            backbone = {"type": "mlp", "hidden_dim": 64, "n_blocks": 2, "step_embed_dim": 8}
            changes = {"task__backbone": backbone, "train__lr": {"type": "constant", "peak": 1e-2}, "evaluate": []}
            config = write(place, data__batch_size=4, train__steps=steps, **changes)
            code, output = launched([*TORCHRUN[:-1], "3"], config, ACCELERATE_USE_CPU="true")
            assert code == 0, output
        runs[name] = {key: one for key, one in state(place / "run").items() if ":" in key and ":means." not in key}
    assert_equal(runs["whole"], runs["resumed"])


@pytest.mark.slow
def test_torchrun_without_gpus_is_told_what_to_set(tmp_path):
    code, output = launched(TORCHRUN, write(tmp_path, **HALF))
    assert code != 0
    assert "error: the launcher: 1 problem" in output and "set ACCELERATE_USE_CPU=true" in output
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_accelerate_launch_trains(ranks, tmp_path):
    several = ["--multi_gpu", "--num_processes", "2"] if ranks == 2 else ["--num_processes", "1"]
    command = ["accelerate.commands.launch", *several, "--main_process_port", "0"]
    code, output = launched(command, write(tmp_path, **HALF, train__steps=4), ACCELERATE_USE_CPU="true")
    assert code == 0, output
    assert f"x {ranks} rank" in output and f"finished: {16 * ranks} samples in 4 steps" in output


def test_batch_that_no_number_of_ranks_can_fill_is_refused_with_its_arithmetic(tmp_path):
    with pytest.raises(ConfigError, match=naming("batch_size 64 x accumulation 1 x 1 rank = 64", 59)):
        experiment(tiny(tmp_path, data__batch_size=64))
