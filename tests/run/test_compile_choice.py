"""`train.compile` "auto": on a CPU nothing changes; the ways of a GPU are taken by forcing the device's choice.

The backend `aot_eager` runs torch's own kernels, so what it compiles is as exact as eager and no faster: a clock that
each test sets says which is.
"""

import copy
import json
import logging

import pytest
import torch
from torch import nn

from dp_prior.config import ConfigError
from dp_prior.run import assembly, compile_choice
from dp_prior.run.config import TrainConfig
from dp_prior.tensors.randomness import Randomness
from dp_prior.training.trainer import PolicyTrainer
from dp_prior.training.training_config import TrainingConfig
from tests.messages import naming, told
from tests.tiny import assert_equal, experiment, rows, state, tiny, train, write

STEPS = {"train__steps": 8, "train__save_every": {"steps": 4}}
SELF_CONDITIONED = {"task__diffusion": {"schedule": {"type": "cosine", "steps": 10}, "self_condition": 0.5}}


class Backend:
    """Stands in for torch's compiler: `aot_eager`, or a function of the graph; counts what it compiles."""

    def __init__(self):
        self.modes, self.graph = [], None

    def compile(self, function, *, options, dynamic):
        self.modes.append("reduce-overhead" if options.get("triton.cudagraphs") else "default")
        return self.original(function, backend=self.graph or "aot_eager", dynamic=dynamic)

    @property
    def regions(self) -> int:
        return torch._dynamo.utils.counters["stats"]["unique_graphs"]


@pytest.fixture
def gpu(monkeypatch):
    """A CPU that is taken for a device that compiles, where a plain micro-batch takes a second and a compiled one half
    of that."""
    backend = Backend()
    backend.original = torch.compile
    monkeypatch.setattr(torch, "compile", backend.compile)
    monkeypatch.setattr(assembly, "COMPILED", {"cpu"})
    monkeypatch.setattr(compile_choice, "WORTH_S", 4.0)
    backend.plain_s, backend.fast_s = 1.0, 0.5

    measured = compile_choice._measured

    def timed(trainer, loss_of, variant):
        is_plain = loss_of == trainer.online.forward
        return measured(trainer, loss_of, variant)._replace(seconds=backend.plain_s if is_plain else backend.fast_s)

    monkeypatch.setattr(compile_choice, "_measured", timed)
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    yield backend
    torch.compiler.reset()


def begun(place, **changes):
    """A run that has made its choice, and its trainer."""
    place.mkdir(exist_ok=True)
    run = experiment(tiny(place, **STEPS | changes))
    trainer = run.parts.trainer(None, None)
    run.parts.choose_compilation(trainer)
    return run, trainer


def test_a_cpu_never_compiles_and_its_plan_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "compile", None)
    output = train(write(tmp_path, **STEPS)).output
    assert told(output, "compile", "off", "cpu")
    explicit = train(write(tmp_path, **STEPS, train__compile="off", tracker__data_path=str(tmp_path / "b"))).output
    assert not told(explicit, "compile")
    assert_equal(state(tmp_path / "run"), state(tmp_path / "b"))


@pytest.mark.slow
def test_a_run_long_enough_is_compiled_to_the_same_bits(tmp_path, gpu):
    output = train(write(tmp_path, **STEPS)).output
    assert told(output, "compile", "reduce-overhead", 500, "1e+03")
    assert gpu.regions == 1
    plain = tmp_path / "plain"
    plain.mkdir()
    experiment(tiny(plain, **STEPS, train__compile="off")).run()
    assert_equal(state(tmp_path / "run"), state(plain / "run"))
    assert rows(tmp_path / "run") == rows(plain / "run")


def test_a_short_rest_of_a_run_is_not_compiled(tmp_path, gpu):
    _, trainer = begun(tmp_path, train__steps=3)
    assert told(trainer.compilation, "off", 3)
    assert gpu.modes == []


@pytest.mark.slow
def test_the_choice_leaves_trainer_model_and_random_numbers_as_they_were(tmp_path, gpu):
    run, trainer = begun(tmp_path)
    assert trainer.compilation.startswith("reduce-overhead")
    assert all(parameter.grad is None for parameter in trainer.online.parameters())
    assert trainer.progress.samples_seen == 0 and not trainer.optimizer.state
    other, plain = begun(tmp_path / "plain", train__compile="off")
    batches = run.parts.loader.global_batch(0), other.parts.loader.global_batch(0)
    for each, micro_batches in zip((trainer, plain), batches, strict=True):
        each.step(micro_batches)
    for value, expected in zip(trainer.online.parameters(), plain.online.parameters(), strict=True):
        assert torch.equal(value, expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "parts"),
    [
        ("fails", ("RuntimeError", "no g++ here")),
        ("loss", ("first loss", "compiled", "plain", 0.001)),
        ("gradient", ("first gradient", 0.02)),
        ("slow", ("2 s", "plain one 1")),
    ],
)
def test_a_compiler_that_fails_disagrees_or_gains_nothing_is_told_in_one_line(tmp_path, gpu, caplog, fault, parts):
    compile_function = gpu.compile

    def failing(graph, inputs):
        raise RuntimeError("no g++ here:\n  a second line")

    def wrong(function, **options):
        fast = compile_function(function, **options)

        def call(*arguments):
            loss = fast(*arguments)
            factor = 1.01 if fault == "loss" else 1.0
            total = loss.total * factor
            return loss._replace(total=total if fault == "loss" else total.detach() + 1.1 * (total - total.detach()))

        return call

    if fault == "fails":
        gpu.graph = failing
    elif fault == "slow":
        gpu.fast_s = 2.0
    else:
        torch.compile = wrong  # the fixture puts it back
    with caplog.at_level(logging.WARNING):
        run, trainer = begun(tmp_path)
    assert told(trainer.compilation, "off", *parts)
    (record,) = [each for each in caplog.records if told(each.getMessage(), "train.compile", *parts)]
    assert "\n" not in record.getMessage()
    assert trainer.loss_module.loss_of == trainer.online.forward
    assert run.run().status == "finished"


class Odd(nn.Module):
    """A module of a user that changes itself in a forward pass in every way that torch allows."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm, self.frozen_norm = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.BatchNorm1d(8).eval()
        self.codebook = nn.Parameter(torch.zeros(8), requires_grad=False)
        self.register_buffer("mean", torch.zeros(8))
        self.calls = 0

    def forward(self, batch):
        inputs = torch.cat([value.flatten(1)[:, :2] for _, value in sorted(batch.cond.items())], 1)
        hidden = self.frozen_norm(self.norm(self.layer(inputs)))
        self.calls += 1
        self.mean = 0.9 * self.mean + 0.1 * hidden.detach().mean(0)
        with torch.no_grad():
            self.codebook.mul_(0.9).add_(hidden.mean(0))
        if not hasattr(self, "first"):
            self.register_buffer("first", hidden.detach().mean(0))
        return (hidden - self.mean - self.codebook - self.first).square().mean(1)


def test_the_choice_undoes_all_that_a_module_changes_in_a_forward_pass(tmp_path, gpu):
    parts = experiment(tiny(tmp_path, **STEPS)).parts
    torch.manual_seed(0)
    module = Odd()
    trainer = PolicyTrainer(module, parts.loader, parts.config.train, ranks=parts.ranks)

    def contents():
        modes = [part.training for part in module.modules()]
        return copy.deepcopy(module.state_dict()), modes, module.calls, torch.get_rng_state()

    state_before, *rest, numbers = contents()
    assert not told(compile_choice.choose(trainer), "off"), "a change that stays makes the trials differ"
    state_after, *rest_after, numbers_after = contents()
    assert_equal(state_after, state_before)
    assert rest_after == rest and torch.equal(numbers_after, numbers)


def test_a_request_to_stop_ends_the_choice_at_the_next_trial(tmp_path, gpu, monkeypatch):
    run = experiment(tiny(tmp_path, **STEPS))
    trainer = run.parts.trainer(None, None)
    monkeypatch.setattr(compile_choice, "compiled", lambda function, *_, **__: trainer.stop.ask("SIGTERM") or function)
    run.parts.choose_compilation(trainer)
    assert told(trainer.compilation, "off", "stop")
    assert run.run().status == "stopped"


def test_code_that_trains_other_parameters_is_not_taken():
    """A parameter of gradient None keeps its value; weight decay would shrink one of gradient zero."""
    weight = torch.ones(2)
    plain = compile_choice.MeasuredGradient(1.0, {"weight": weight}, 2.0)
    trial = compile_choice.MeasuredGradient(1.0, {"weight": weight, "unused": 0 * weight}, 1.0)
    compile_choice._check(plain._replace(seconds=1.0), plain, 0.0, 0.0)
    with pytest.raises(ValueError, match=naming("gradient", "unused")):
        compile_choice._check(trial, plain, 0.0, 0.0)


def test_an_explicit_mode_fails_as_it_did(tmp_path, gpu):
    def failing(graph, inputs):
        raise RuntimeError("no g++ here")

    gpu.graph = failing
    with pytest.raises(ConfigError):
        experiment(tiny(tmp_path, **STEPS, train__compile="default")).run()


@pytest.mark.slow
def test_no_step_compiles_again(tmp_path, gpu):
    """Two sizes of micro-batch and steps with and without self-conditioning: four regions, none of them later."""
    changes = {"data__global_batch_size": 15, "data__batch_size": 8, **SELF_CONDITIONED}
    run, trainer = begun(tmp_path, **changes)
    assert gpu.modes == ["default"], "a CUDA graph would overwrite the gradient of the micro-batch before"
    assert gpu.regions == 4
    conditions = set()
    for step in range(6):
        micro_batches = run.parts.loader.global_batch(trainer.progress.samples_seen)
        conditions.add(trainer.process.self_conditions(trainer.seed, trainer.progress.samples_seen))
        trainer.step(micro_batches)
        assert gpu.regions == 4, step
    assert conditions == {False, True}
    batch = micro_batches[0][:3]
    random = Randomness.from_counts(trainer.seed, "training", batch.positions)
    assert torch.isfinite(trainer.loss_module(batch, random, False).total)
    assert gpu.regions == 4, "another shape is computed without the compiler"


@pytest.mark.slow
def test_a_resumed_run_compiles_once_for_its_start_and_goes_on_exactly(tmp_path, gpu):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir(), parts.mkdir()
    experiment(tiny(whole, **STEPS, train__compile="off")).run()
    gpu.plain_s, gpu.fast_s = 2.0, 1.0
    first = experiment(tiny(parts, **STEPS))
    step = first.parts.loader.from_sample

    def stopping(start):
        for number, batches in enumerate(step(start), start=1):
            if number == 4:
                first.parts.ranks.stop.reason = "request"
            yield batches

    first.parts.loader.from_sample = stopping
    assert first.run().status == "stopped" and len(gpu.modes) == 1
    experiment(tiny(parts, **STEPS)).run()
    assert len(gpu.modes) == 2 and gpu.regions <= 2
    assert_equal(state(parts / "run"), state(whole / "run"))
    experiment(tiny(parts, **STEPS)).run()
    assert len(gpu.modes) == 2, "a finished run has nothing left to compile for"


@pytest.mark.parametrize("stored", ["off", None])
def test_a_run_from_before_goes_on_without_a_refusal(tmp_path, stored):
    place = tmp_path / "run"
    changes = {"train__compile": stored} if stored else {}
    config = tiny(tmp_path, **STEPS, **changes)
    run = experiment(config)
    first = run.parts.loader.from_sample

    def stopping(start):
        for number, batches in enumerate(first(start), start=1):
            if number == 4:
                run.parts.ranks.stop.reason = "request"
            yield batches

    run.parts.loader.from_sample = stopping
    assert run.run().status == "stopped"
    assert TrainConfig.from_json((place / "config.json").read_text()).train.compile == (stored or "auto")
    lines = []
    resumed = experiment(tiny(tmp_path, **STEPS))
    resumed.parts.report = lines.append
    assert resumed.run().status == "finished"
    changed = [line for line in lines if told(line, "train.compile", '"off"', '"auto"', "harmless")]
    assert len(changed) == (stored == "off")
    assert TrainingConfig.model_validate({"steps": 1, "compile": "off"}).compile == "off"


RANKS = """
import json, sys
import torch
from torch import compile as compile_function
from dp_prior.run import assembly, compile_choice
from torch._dynamo.utils import counters
from tests.tiny import experiment, tiny
torch.compile = lambda function, options, dynamic: compile_function(function, backend="aot_eager", dynamic=dynamic)
assembly.COMPILED = {"cpu"}
compile_choice.WORTH_S = 0.0
measured = compile_choice._measured
def timed(trainer, loss_of, variant):
    is_plain = loss_of == trainer.online.forward
    if not is_plain and sys.argv[2] == str(trainer.ranks.process_index):
        raise RuntimeError("no compiler on this machine")
    return measured(trainer, loss_of, variant)._replace(seconds=1.0 if is_plain else 0.5)
compile_choice._measured = timed
run, lines = experiment(json.loads(sys.argv[1])), []
run.parts.report = lines.append
run.run()
expected = "default, " if sys.argv[2] == "none" else "off, RuntimeError: no compiler on this machine"
assert any(f"compile       {expected}" in line for line in lines), lines
assert counters["stats"]["unique_graphs"] <= 1, counters["stats"]
"""


@pytest.mark.slow
@pytest.mark.parametrize("failing_rank", ["none", "1"])
def test_two_ranks_choose_together_and_train_what_one_plain_rank_does(tmp_path, run_ranks, failing_rank):
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir(), two.mkdir()
    experiment(tiny(one, **STEPS, train__compile="off")).run()
    run_ranks(RANKS, 2, json.dumps(tiny(two, **STEPS, data__batch_size=4)), failing_rank)
    found, expected = state(two / "run"), state(one / "run")
    for name, value in expected.items():
        if isinstance(value, torch.Tensor) and "means" not in name:
            torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5)
