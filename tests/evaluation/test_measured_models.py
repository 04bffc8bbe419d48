"""The models that are measured: chosen by name, and left as they were."""

import pytest
import torch
from torch import nn

from dp_prior.diffusion.sampler import DDIM
from dp_prior.evaluation.measured_models import device_of, evaluation_mode, pick_models, with_steps
from tests.messages import naming


def test_a_model_goes_back_to_the_mode_it_was_in_even_after_an_error():
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(), nn.Sequential(nn.Dropout())).train()
    model[0].eval()
    model[2].eval()
    before = [module.training for module in model.modules()]
    with pytest.raises(KeyError), evaluation_mode(model):
        assert not any(module.training for module in model.modules())
        assert not model(torch.ones(1, 2)).requires_grad
        raise KeyError
    assert [module.training for module in model.modules()] == before
    assert torch.is_grad_enabled()


def test_models_come_in_the_order_of_their_names_and_a_missing_one_is_told_with_those_there_are():
    models = {"online": nn.Linear(1, 1), "ema": nn.Linear(1, 1), "slow": nn.Linear(1, 1)}
    picked = pick_models(models, ("ema", "online"), "loss")
    assert list(picked) == ["ema", "online"] and all(picked[name] is models[name] for name in picked)
    with pytest.raises(ValueError, match=naming("'loss'", "'other'", "online", "ema", "slow", "train.ema")):
        pick_models(models, ("ema", "other"), "loss")


def test_a_sampler_with_other_steps_is_the_same_otherwise():
    sampler = DDIM(steps=4, eta=0.5)
    assert with_steps(sampler, 9) == DDIM(steps=9, eta=0.5) and with_steps(sampler, 4) == sampler


def test_the_device_is_that_of_the_parameters():
    assert device_of(nn.Linear(1, 1, device="meta")).type == "meta"
    assert device_of(nn.Identity()).type == "cpu"
