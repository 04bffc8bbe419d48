"""Validation loss: the same number for the same weights, however it is computed."""

import copy
import math

import pytest
import torch

from dp_prior.config import ConfigError
from dp_prior.evaluation.loss import LossConfig
from dp_prior.tasks.policy import DiffusionPolicy
from dp_prior.tensors.randomness import Randomness
from tests.cases import every
from tests.evaluation.fakes import NOW, TinyPolicy, data, on_ranks
from tests.messages import naming
from tests.tiny import experiment, rows, tiny

MODELS = {"ema": TinyPolicy(0), "online": TinyPolicy(1)}
SPLIT = data(37)


class Spy:
    """A part of the data that remembers what was asked for."""

    def __init__(self, part):
        self.part, self.device, self.fetched = part, part.device, []

    def __len__(self):
        return len(self.part)

    def fetch(self, ids):
        self.fetched.append(ids.tolist())
        return self.part.fetch(ids)


def measure(accelerator=None, trained=MODELS, source=SPLIT, **fields):
    return LossConfig(**fields).create(source).run(trained, accelerator, NOW).metrics


def test_loss_is_the_objective_over_the_whole_split_at_once():
    batch = SPLIT.val.fetch(torch.arange(37))
    found = measure(batch_size=5)
    for name, model in MODELS.items():
        with torch.no_grad():
            whole = copy.deepcopy(model).eval()(batch, Randomness.from_counts(0, "validation", batch.ids))
        assert found[f"validation/{name}/loss"] == pytest.approx(whole.total.item(), rel=1e-6)
        quarter = whole.t * 4 // model.process.steps
        for q in range(4):
            row = quarter == q
            expected = (whole.per_sample * whole.valid)[row].sum() / whole.valid[row].sum()
            assert found[f"validation/{name}/loss_q{q}"] == pytest.approx(expected.item(), rel=1e-6)
    assert found["validation/ema/loss"] != found["validation/online/loss"]


@every(batch_size=[1, 7, 36, 37, 100])
def test_loss_does_not_depend_on_the_batch_size(batch_size):
    """Only rounding differs: a matrix product of another height may add up in another order."""
    assert measure(batch_size=batch_size) == pytest.approx(measure(batch_size=256), rel=1e-5)


@pytest.mark.parametrize("ranks", [2, 3])
def test_loss_does_not_depend_on_the_number_of_ranks(ranks):
    results = on_ranks(ranks, lambda models, accelerator: measure(accelerator, models), MODELS)
    for found in results:
        assert found == pytest.approx(measure(), rel=1e-5)


def test_fewer_samples_than_ranks():
    small = data(2)
    results = on_ranks(3, lambda models, accelerator: measure(accelerator, models, small), MODELS)
    expected = measure(source=small)["validation/ema/loss"]
    assert [found["validation/ema/loss"] for found in results] == pytest.approx([expected] * 3)


def test_measuring_again_after_training_more_gives_the_same_number():
    before = measure()
    torch.manual_seed(99)
    torch.randn(1000)
    assert measure() == before


def test_names_are_exactly_what_is_measured_and_absent_quarters_are_nan():
    evaluator = LossConfig(models=("online",), name="held_out").create(data(1))
    found = evaluator.run(MODELS, None, NOW).metrics
    assert list(found) == LossConfig(models=("online",), name="held_out").metric_names()
    assert list(found)[:2] == ["held_out/online/loss", "held_out/online/loss_q0"]
    assert sum(math.isnan(value) for value in found.values()) == 3


@every(change=[{"split": "test"}, {"max_samples": 10}, {"seed": 1}, {"name": "other"}, {"models": ("online",)}])
def test_every_knob_changes_the_measurement(change):
    assert measure(**change) != measure()


def test_other_knobs_are_kept():
    config = LossConfig.from_json('{"every": {"steps": 7}, "batch_size": 3}')
    assert config.create(SPLIT).every.steps == 7
    source = data(37)
    source.val = Spy(source.val)
    config.create(source).run(MODELS, None, NOW)
    assert max(map(len, source.val.fetched)) == 3
    assert config.measured_models() == ("ema", "online")


@pytest.mark.parametrize(
    ("diffusion", "terms"),
    [({"variance": {"type": "learned_range"}}, ["simple", "vb"]), ({"criterion": {"type": "vlb"}}, ["vb"])],
)
def test_every_term_of_the_loss_is_measured_like_the_loss(diffusion, terms):
    model = TinyPolicy(0, **diffusion).eval()
    found = measure(trained={"ema": model}, models=("ema",), batch_size=5)
    batch = SPLIT.val.fetch(torch.arange(37))
    with torch.no_grad():
        whole = model(batch, Randomness.from_counts(0, "validation", batch.ids))
    assert list(whole.terms) == terms
    parts = ("", "_q0", "_q1", "_q2", "_q3")
    assert list(found) == [f"validation/ema/{term}{part}" for term in ("loss", *terms) for part in parts]
    for term in terms:
        mean = (whole.terms[term] * whole.valid).sum() / whole.valid.sum()
        assert found[f"validation/ema/{term}"] == pytest.approx(mean.item(), rel=1e-5)
        row = whole.t * 4 // model.process.steps == 2
        mean = (whole.terms[term] * whole.valid)[row].sum() / whole.valid[row].sum()
        assert found[f"validation/ema/{term}_q2"] == pytest.approx(mean.item(), rel=1e-5)


class Supported(TinyPolicy):
    """A task of one's own, with a further term."""

    def forward(self, batch, random):
        loss = super().forward(batch, random)
        return loss._replace(terms={**loss.terms, "help": batch.x[:, 0].square().mean(1)})


@pytest.mark.parametrize("model", [TinyPolicy(0, variance={"type": "learned_range"}), Supported()])
def test_ranks_without_samples_know_the_terms(model):
    models = {"ema": model}
    results = on_ranks(3, lambda own, accelerator: measure(accelerator, own, data(2), models=("ema",)), models)
    expected = measure(trained=models, source=data(2), models=("ema",))
    for found in results:
        assert found == pytest.approx(expected, rel=1e-5, nan_ok=True)


def test_unknown_model_and_empty_split_say_what_to_do():
    with pytest.raises(ValueError, match=naming("'validation'", "'slow'", "train.ema")):
        LossConfig(models=("slow",)).create(SPLIT).run(MODELS, None, NOW)
    with pytest.raises(ValueError, match=naming("'validation'", "data.split", "val", "--split")):
        LossConfig().create(type("Data", (), {"train": [], "val": [], "test": []}))
    with pytest.raises(ConfigError, match=naming("models", "[]")):
        LossConfig.from_json('{"models": []}')


def test_a_further_term_of_a_task_is_logged_and_evaluated(tmp_path, monkeypatch):
    forward = DiffusionPolicy.forward

    def supported(self, *given):
        loss = forward(self, *given)
        return loss._replace(terms={**loss.terms, "help": 2 * loss.per_sample})

    monkeypatch.setattr(DiffusionPolicy, "forward", supported)
    experiment(tiny(tmp_path, train__steps=4, evaluate=[{"type": "loss", "every": {"steps": 4}}])).run()
    row = rows(tmp_path / "run")[-1]
    for name in ("train", "validation/ema", "validation/online"):
        for part in ("", "_q0", "_q3"):
            assert row[f"{name}/help{part}"] == pytest.approx(2 * row[f"{name}/loss{part}"], nan_ok=True)
