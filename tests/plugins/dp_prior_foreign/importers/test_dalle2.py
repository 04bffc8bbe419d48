"""Published priors of DALLE2-pytorch, of today's version and of an early one: samples of their sampler written out."""

import json
import math
import runpy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from dp_prior import load_prior
from dp_prior.config import ConfigError
from dp_prior.diffusion.sampler import step_noise
from dp_prior.run.config import TrainConfig
from dp_prior.tensors.randomness import Randomness
from dp_prior_foreign.imported import import_published
from dp_prior_foreign.importers.dalle2 import is_early
from tests.messages import naming
from tests.networks.backbones.test_multi_query_prior import DIM, PLACES, THEIRS, PlainPriorNetwork

SCRIPT = Path(__file__).parents[4] / "scripts/export_torch_weights.py"
STEPS, ROWS = 24, 2
NET = THEIRS | {"num_timesteps": STEPS}


def network(**kind):
    torch.manual_seed(0)
    return PlainPriorNetwork(**NET, **kind)


def test_early_weights_are_told_by_their_names():
    torch.manual_seed(0)
    assert [is_early(PlainPriorNetwork(is_early=early).state_dict()) for early in (True, False)] == [True, False]


def imported(tmp_path, weights, settings, *, wrap=lambda one: one, net=NET):
    """A run of what the script writes from a state dict of a `DiffusionPrior`; CLIP's weights are left out."""
    held = {**{f"net.{name}": one for name, one in weights.items()}, "clip.weight": torch.ones(3)}
    torch.save(wrap(held), tmp_path / "latest.pth")
    prior = {"net": {"dim": DIM, **net}, "timesteps": STEPS, "image_embed_dim": DIM, **settings}
    (tmp_path / "prior.json").write_text(json.dumps(prior))
    main = runpy.run_path(str(SCRIPT))["main"]
    main(*(str(tmp_path / name) for name in ("latest.pth", "exported", "prior.json")))
    told = import_published(str(tmp_path / "exported"), tmp_path / "run")
    assert "DALLE2-pytorch's model" in told and "--set data.image.path=..." in told
    return load_prior(tmp_path / "run")


@torch.no_grad()
def sampled(theirs, settings, texts, scale, noise, draws):
    """Their DDPM over all timesteps, with guidance of the network's output; estimates are kept for the next step."""
    betas = {
        "linear": torch.linspace(0.1 / STEPS, 20 / STEPS, STEPS, dtype=torch.float64),
        "quadratic": torch.linspace((0.1 / STEPS) ** 0.5, (20 / STEPS) ** 0.5, STEPS, dtype=torch.float64) ** 2,
    }[settings["beta_schedule"]]
    products, length = (1 - betas).cumprod(0).float(), settings.get("image_embed_scale", math.sqrt(DIM))
    x = length * F.normalize(noise, dim=1) if settings.get("init_image_embed_l2norm") else noise
    estimate = torch.zeros_like(x) if settings.get("self_cond") else None
    for t in reversed(range(STEPS)):
        given = x, torch.full((ROWS,), t), texts["text_embed"], texts.get("text_encodings"), estimate
        output = theirs(*given)
        if scale != 1:
            without = theirs(*given, drops=True)
            output = without + scale * (output - without)
        if settings.get("predict_x_start", True):
            x_0 = length * F.normalize(output, dim=1) if settings.get("sampling_clamp_l2norm") else output
        else:
            x_0 = ((x - (1 - products[t]).sqrt() * output) / products[t].sqrt()).clamp(-1, 1)
        before = products[t - 1] if t else torch.tensor(1.0)
        beta = betas[t].float()
        mean = beta * before.sqrt() / (1 - products[t]) * x_0
        mean = mean + (1 - before) * (1 - beta).sqrt() / (1 - products[t]) * x
        x = mean + (beta * (1 - before) / (1 - products[t])).sqrt() * next(draws) if t else mean
        estimate = None if estimate is None else x_0
    if settings.get("sampling_final_clamp_l2norm") and settings.get("predict_x_start", True):
        return F.normalize(x, dim=1)
    return x / length


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "kind", "scale"),
    [
        ({"beta_schedule": "linear", "sampling_clamp_l2norm": True, "sampling_final_clamp_l2norm": True,
          "init_image_embed_l2norm": True, "image_embed_scale": 4.0, "cond_drop_prob": 0.1}, {}, 2.5),
        ({"beta_schedule": "quadratic", "predict_x_start": False, "self_cond": True}, {"self_cond": True}, 1),
        ({"beta_schedule": "quadratic", "condition_on_text_encodings": False}, {"is_early": True}, 1),
        ({"beta_schedule": "linear"}, {"is_early": True}, 1),
    ],
)  # fmt: skip
def test_samples_are_those_of_their_sampler(tmp_path, settings, kind, scale):
    theirs = network(**kind)
    given = {name: value for name, value in settings.items() if name != "self_cond"}
    net = NET | {name: value for name, value in kind.items() if name == "self_cond"}
    ours = imported(tmp_path, theirs.state_dict(), given, net=net)
    texts = {"text_embed": torch.randn(ROWS, DIM)}
    if settings.get("condition_on_text_encodings", True):
        texts["text_encodings"] = torch.randn(ROWS, PLACES, DIM)
        texts["text_encodings"][1, 4:] = 0
    random = Randomness.from_counts(1, "test", torch.arange(ROWS))
    found = ours.predict(**texts, candidates=1, random=random, guidance_scale=scale)
    row = random.stream("candidate", 0)
    noise, draws = row.stream("start").normal(DIM), iter(step_noise(row, (DIM,), STEPS))
    expected = sampled(theirs, settings, texts, scale, noise, draws)
    assert expected.std() > 0.05
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-5)


def test_an_early_prior_is_not_guided_since_it_never_dropped_a_text(tmp_path):
    ours = imported(tmp_path, network(is_early=True).state_dict(), {"beta_schedule": "linear", "cond_drop_prob": 0.1})
    texts = {"text_embed": torch.randn(1, DIM), "text_encodings": torch.randn(1, PLACES, DIM)}
    with pytest.raises(ConfigError, match=naming("guidance_scale", "never dropped", "text_dropout")):
        ours.predict(**texts, guidance_scale=2.0)


def test_of_a_trainers_checkpoint_the_average_is_taken_and_its_configuration_fine_tunes(tmp_path):
    def wrap(weights):
        return {"model": {name: 0 * one for name, one in weights.items()}, "ema_model": weights, "step": torch.ones(1)}

    theirs = network()
    ours = imported(tmp_path, theirs.state_dict(), {"beta_schedule": "linear"}, wrap=wrap)
    assert torch.equal(ours.backbone.query, theirs.weights["learned_query"])
    config = TrainConfig.from_json_path(tmp_path / "run/config.json")
    assert config.train.init_from == str(tmp_path / "run") and config.data.image.path == "FILL_IN/image_embeddings"
    assert ours.spec.cond_shapes == {"text": (DIM,), "text_encodings": (PLACES, DIM)}


@pytest.mark.parametrize(
    ("kind", "weights", "net", "settings", "message"),
    [
        ({}, {"learned_query": None}, {}, {}, ("net.learned_query", "DiffusionPrior")),
        ({"is_early": True}, {"null_image_embed": torch.ones(1, DIM)}, {}, {}, ("1.2", "1.15")),
        ({"is_early": True}, {}, {"num_timesteps": None}, {}, ("num_timesteps", "sines")),
        ({}, {"other": torch.ones(1)}, {}, {}, ("backbone.other", "unknown")),
        ({}, {}, {"deepth": 3}, {}, ("prior.net.deepth", "DALLE2-pytorch")),
        ({}, {}, {"num_timesteps": 20}, {}, ("backbone.time_table", 20, STEPS)),
    ],
    ids=["no prior", "between", "sines", "unknown", "a setting", "a table"],
)  # fmt: skip
def test_what_does_not_fit_is_refused_and_nothing_is_written(tmp_path, kind, weights, net, settings, message):
    held = {name: one for name, one in {**network(**kind).state_dict(), **weights}.items() if one is not None}
    with pytest.raises(ConfigError, match=naming(*message)):
        imported(tmp_path, held, settings, net=NET | net)
    assert not (tmp_path / "run").exists()
