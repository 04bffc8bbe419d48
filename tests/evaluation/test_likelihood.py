"""Likelihood: the bound over the whole split, however it is computed, and its parts."""

import json

import pytest
import torch

from dp_prior.evaluation.likelihood import LikelihoodConfig
from dp_prior.tasks.policy_config import PolicyConfig
from dp_prior.tensors.randomness import Randomness
from tests.cases import every
from tests.diffusion.test_process import MIP
from tests.evaluation.fakes import NOW, TinyPolicy, data, on_ranks
from tests.messages import told_each

SMALL = {"schedule": {"type": "cosine", "steps": 20}}
MODELS = {"ema": TinyPolicy(0, **SMALL), "online": TinyPolicy(1, **SMALL)}
SPLIT = data(37)
KINDS = ("bits_per_dim", "prior_bits", "step_bits")


def measure(accelerator=None, trained=MODELS, source=SPLIT, **fields):
    return LikelihoodConfig(**fields).create(source).run(trained, accelerator, NOW).metrics


def test_likelihood_is_the_bound_over_the_whole_split_at_once():
    batch = SPLIT.val.fetch(torch.arange(37))
    found = measure(batch_size=5, models=("ema", "online"))
    for name, model in MODELS.items():
        bits = model.eval().bits_per_dim(batch, Randomness.from_counts(0, "likelihood", batch.ids))
        share = bits.valid / batch.mask.sum()
        for total, values in zip(KINDS, (bits.total, bits.prior, bits.vb.sum(1)), strict=True):
            assert found[f"likelihood/{name}/{total}"] == pytest.approx((values * share).sum().item(), rel=1e-4)
        parts = found[f"likelihood/{name}/prior_bits"] + found[f"likelihood/{name}/step_bits"]
        assert found[f"likelihood/{name}/bits_per_dim"] == pytest.approx(parts, rel=1e-6)
    assert found["likelihood/ema/bits_per_dim"] != found["likelihood/online/bits_per_dim"]


@pytest.mark.parametrize("source", [SPLIT, data(2)], ids=["37 samples", "fewer than ranks"])
def test_likelihood_does_not_depend_on_ranks_and_batches(source):
    whole = measure(source=source)
    assert measure(source=source, batch_size=3) == pytest.approx(whole, rel=1e-5)
    for found in on_ranks(3, lambda models, accelerator: measure(accelerator, models, source), MODELS):
        assert found == pytest.approx(whole, rel=1e-5)


def test_the_report_has_every_timestep(tmp_path):
    evaluator = LikelihoodConfig().create(SPLIT, tmp_path)
    result = evaluator.run(MODELS, None, NOW)
    assert list(result.metrics) == LikelihoodConfig().metric_names()
    rows = json.loads((tmp_path / "likelihood_00000100.json").read_text())["tables"]["likelihood/ema/by_timestep"]
    assert [row["timestep"] for row in rows] == list(range(20))
    assert sum(row["vb"] for row in rows) == pytest.approx(result.metrics["likelihood/ema/step_bits"], rel=1e-4)
    snr = MODELS["ema"].process.table.snr.tolist()
    assert [row["eps_error"] for row in rows] == pytest.approx(
        [row["x_0_error"] * snr[row["timestep"]] for row in rows], rel=1e-3
    )


@every(change=[{"split": "test"}, {"max_samples": 10}, {"seed": 1}, {"name": "other"}, {"models": ("online",)}])
def test_every_knob_changes_the_measurement(change):
    assert measure(**change) != measure()


def test_other_knobs_are_kept():
    config = LikelihoodConfig.from_json('{"every": {"steps": 7}, "batch_size": 3}')
    assert config.create(SPLIT).every.steps == 7 and config.batch_size == 3
    assert config.measured_models() == ("ema",)


@pytest.mark.parametrize(
    ("diffusion", "sampler"),
    [
        ({**MIP, "objective": {"type": "x0"}}, {"type": "ddim", "steps": 2}),
        ({"timesteps": {"type": "listed", "listed": [99]}}, {"type": "ddim", "steps": 1}),
        ({}, {"type": "ddim"}),
    ],
)  # fmt: skip
def test_policies_that_are_not_trained_at_every_timestep_have_no_likelihood(diffusion, sampler):
    task = PolicyConfig.from_json(json.dumps({"diffusion": diffusion, "sampler": sampler}))
    parts = ("'likelihood'", "every timestep", "remove")
    assert told_each(LikelihoodConfig().task_faults(task), *([parts] if diffusion else []))
