"""Published images of improved-diffusion: the script's files, and the samples of their sampler written out."""

import json
import runpy
from pathlib import Path

import pytest
import torch

from dp_prior import load_image
from dp_prior.config import ConfigError
from dp_prior.diffusion.sampler import step_noise
from dp_prior.run.config import TrainConfig
from dp_prior.tensors.randomness import Randomness
from dp_prior_foreign.imported import import_published
from dp_prior_foreign.importers.improved_diffusion import rename_published
from dp_prior_foreign.translation.foreign_settings import read_flags
from dp_prior_foreign.translation.improved_diffusion_table import IMPROVED_DIFFUSION
from dp_prior_foreign.translation.translate import translate
from tests import forks
from tests.extras import needs
from tests.messages import naming, told
from tests.networks.backbones.test_unet2d import PlainUNetModel

needs("diffusers", "image")

SCRIPT = Path(__file__).parents[4] / "scripts/export_torch_weights.py"
STEPS, SIDE = 12, 32
NAN = torch.full((128,), torch.nan)
FLAGS = [
    *("--image_size", SIDE, "--num_channels", 32, "--num_res_blocks", 1, "--num_heads", 2, "--num_heads_upsample", 4),
    *("--learn_sigma", True, "--diffusion_steps", STEPS, "--noise_schedule", "cosine", "--class_cond", True),
]


def test_names_that_are_not_published_stay_as_they_are():
    odd = {"a": torch.zeros(1), "input_blocks.1.0.other.weight": torch.zeros(1), "middle_block.x": torch.zeros(1)}
    assert rename_published(odd, n_res_blocks=1, heads=4) == odd


def exported(tmp_path, weights, *flags, name="model.pt"):
    """The folder that the script writes from a checkpoint of `torch.save`."""
    torch.save(weights, tmp_path / name)
    runpy.run_path(str(SCRIPT))["main"](*map(str, (tmp_path / name, tmp_path / "exported", *flags)))
    return tmp_path / "exported"


def network(**change):
    """Their network at 32 pixels, levels (1, 2, 2, 2); attention at heights 16 to 4."""
    torch.manual_seed(0)
    sizes = {
        "mult": (1, 2, 2, 2),
        "outputs": 6,
        "classes": 5,
        "heads": 2,
        "heads_up": 4,
        "timestep_scale": 1000 / STEPS,
    }
    return PlainUNetModel(**{**sizes, **change})


@pytest.mark.slow
def test_samples_are_those_of_their_sampler(tmp_path):
    """DDPM with a learned variance over all timesteps, labels, rescaled timesteps and other heads on the way up."""
    theirs = network()
    source = exported(tmp_path, theirs.state_dict(), *FLAGS, "--attention_resolutions", "16,8,4")
    printed = import_published(str(source), tmp_path / "run")
    assert "improved-diffusion's model" in printed and "--set data.source.path=..." in printed
    ours = load_image(tmp_path / "run")
    random, labels = Randomness.from_counts(1, "test", torch.arange(2)), torch.tensor([4, 0])
    found = ours.predict(["4", "0"], random=random).float() / 127.5 - 1
    shape = (SIDE, SIDE, 3)
    x, draws = random.stream("start").normal(*shape), iter(step_noise(random, shape, STEPS))
    levels = torch.cos((torch.arange(STEPS + 1) / STEPS + 0.008) / 1.008 * torch.pi / 2).double() ** 2
    betas = (1 - levels[1:] / levels[:-1]).clamp(max=0.999)
    products = (1 - betas).cumprod(0)
    for t in reversed(range(STEPS)):
        with torch.no_grad():
            output = theirs(x.movedim(-1, 1), torch.full((2,), float(t)), labels).movedim(1, -1)
        eps, share = output[..., :3], (output[..., 3:] + 1) / 2
        before = products[t - 1] if t else torch.tensor(1.0)
        x_0 = ((x - (1 - products[t]).sqrt() * eps) / products[t].sqrt()).clamp(-1, 1)
        mean = betas[t] * before.sqrt() / (1 - products[t]) * x_0
        mean = mean + (1 - before) * (1 - betas[t]).sqrt() / (1 - products[t]) * x
        smallest = (
            betas[t] * (1 - before) / (1 - products[t]) if t else betas[1] * (1 - products[0]) / (1 - products[1])
        )
        log_variance = share * betas[t].log() + (1 - share) * smallest.log()
        x = (mean + (t > 0) * (0.5 * log_variance).exp() * (next(draws) if t else 0)).float()
    assert x.std() > 0.2
    torch.testing.assert_close(found, x.clamp(-1, 1), rtol=0, atol=1.1 / 127.5)


@pytest.mark.slow
def test_an_upsampler_is_read(tmp_path):
    flags = ["--large_size", 64, "--small_size", 16, "--num_channels", 32, "--num_res_blocks", 1, "--num_heads", 2]
    theirs = network(mult=(1, 2, 3, 4), inputs=6, outputs=3, classes=0, heads_up=2, timestep_scale=1.0)
    source = exported(tmp_path, theirs.state_dict(), *flags, "--attention_resolutions", "32,16,8")
    import_published(str(source), tmp_path / "run")
    ours = load_image(tmp_path / "run")
    assert ours.spec.cond_shapes == {"low_res": (16, 16, 3)} and ours.spec.x_shape == (64, 64, 3)
    x, low_res, t = (
        torch.randn(1, 64, 64, 3),
        torch.randint(0, 256, (1, 16, 16, 3), dtype=torch.uint8),
        torch.tensor([7]),
    )
    found = ours.network(ours.encode({"low_res": low_res}))(x, t)
    large = torch.nn.functional.interpolate(low_res.movedim(-1, 1) / 127.5 - 1, size=(64, 64), mode="bilinear")
    expected = theirs(torch.cat([x.movedim(-1, 1), large], 1), t).movedim(1, -1)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("flags", "backbone"),
    [
        pytest.param("--image_size 64 --num_channels 128 --num_res_blocks 3 --learn_sigma True --diffusion_steps 4000",
         {"channels": 128, "heads": 4, "timestep_scale": 0.25}, marks=pytest.mark.slow),
        ("--image_size 64 --num_channels 192 --num_res_blocks 3 --learn_sigma True --class_cond True "
         "--diffusion_steps 4000 --rescale_timesteps False", {"channels": 192, "heads": 4, "timestep_scale": 1.0}),
        pytest.param(
         "--image_size 64 --num_channels 128 --num_res_blocks 3 --learn_sigma True --diffusion_steps 4000 "
         "--use_kl True --schedule_sampler loss-second-moment", {"channels": 128, "timestep_scale": 0.25},
         marks=pytest.mark.slow),
        ("--num_channels 128", {"channels": 128, "n_res_blocks": 2, "heads": 4}),
    ],
)  # fmt: skip
def test_the_default_and_the_three_recipes_of_imagenet_are_networks_here(flags, backbone):
    """As many weights as their class has, which is written out at small sizes above."""

    given = read_flags(flags.split())
    task = TrainConfig.from_json(json.dumps(translate(IMPROVED_DIFFUSION, given).config)).task
    found = task.backbone
    assert found.channel_mult == (1, 2, 3, 4) and {name: getattr(found, name) for name in backbone} == backbone
    outputs = 2 if given.get("learn_sigma") else 1
    with torch.device("meta"):
        network = found.create((64, 64, 3), (0, found.cond_dim), outputs)
        theirs = PlainUNetModel(found.channels, (1, 2, 3, 4), found.n_res_blocks, 3, 3 * outputs, attended=2)
    ours = sum(parameter.numel() for parameter in network.parameters())
    assert ours == sum(one.numel() for one in theirs.weights.values())


def test_a_respacing_whose_first_step_is_moved_is_told(tmp_path):
    """Sections of 12 timesteps from 0 to 5 and 6 to 11, of which theirs begins at 6; every sixth of 40 ends at 36."""
    held = network().state_dict()
    for name, steps, respacing, moved in (
        ("a", 12, "3,1", (11, 6)),
        ("b", 40, "ddim7", (39, 36)),
        ("c", 12, "1,3", None),
        ("d", 40, "ddim8", None),
    ):
        flags = ["--attention_resolutions", "16,8,4", "--diffusion_steps", steps, "--timestep_respacing", respacing]
        printed = import_published(str(exported(tmp_path, held, *FLAGS, *flags)), tmp_path / name)
        assert told(printed, "timestep_respacing", *moved or ()) == (moved is not None), respacing


@pytest.mark.parametrize(
    ("weights", "flags", "message"),
    [
        ({}, ["--class_cond", "False"], ("not --class_cond", "label_emb.weight")),
        ({"label_emb.weight": None}, [], ("--class_cond", "label_emb.weight")),
        ({}, ["--num_headz", 4], ("num_headz", "improved-diffusion")),
        ({}, ["--num_heads", 5], ("5 heads",)),
        ({"time_embed.0.bias": NAN}, [], ("backbone.unet.time_embedding.linear_1.bias", "NaN")),
        ({"out.2.bias": None}, [], ("backbone.unet.conv_out.bias", "missing")),
    ],
    ids=["a label", "no label", "a flag", "heads", "NaN", "missing"],
)
def test_what_does_not_fit_is_refused_and_nothing_is_written(tmp_path, weights, flags, message):
    held = {**network().state_dict(), **weights}
    held = {name: value for name, value in held.items() if value is not None}
    source = exported(tmp_path, held, *FLAGS, "--attention_resolutions", "16,8,4", *flags)
    with pytest.raises(ConfigError, match=naming(*message)):
        import_published(str(source), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_script_reads_nothing_but_tensors_unless_it_is_told_to(tmp_path):
    torch.save({"model": network().state_dict(), "version": Path("1.0")}, tmp_path / "odd.pt")
    words = [SCRIPT, tmp_path / "odd.pt", tmp_path / "exported", "--image_size", 32]
    refused = forks.call(words)
    assert refused.returncode == 1 and "--trust" in refused.stderr and not (tmp_path / "exported").exists()
    assert forks.call([*words, "--trust"]).returncode == 0


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"no checkpoint", ("model.pt", "torch.save")),
        (b"", ("model.pt", "torch.save")),
        ([1, 2], ("list", "dictionary")),
        ({"step": 3}, ("step", "no tensors")),
    ],
)
def test_the_script_names_what_is_no_checkpoint_and_writes_nothing(content, words, tmp_path):
    if isinstance(content, bytes):
        (tmp_path / "model.pt").write_bytes(content)
    else:
        torch.save(content, tmp_path / "model.pt")
    with pytest.raises(SystemExit, match=naming(*words)):
        runpy.run_path(str(SCRIPT))["main"](str(tmp_path / "model.pt"), str(tmp_path / "exported"), *map(str, FLAGS))
    assert not (tmp_path / "exported").exists()


def test_the_script_names_files_that_are_not_there(tmp_path):
    main = runpy.run_path(str(SCRIPT))["main"]
    torch.save({"net.learned_query": torch.zeros(3)}, tmp_path / "latest.pth")
    for absent, words in (("absent.pt", ("absent.pt", "--image_size")), ("a.json", ("latest.pth", "a.json"))):
        checkpoint, setting = (one if one.startswith("-") else str(tmp_path / one) for one in words)
        with pytest.raises(SystemExit, match=naming(str(tmp_path / absent), "no file")):
            main(checkpoint, str(tmp_path / "exported"), setting)
    assert not (tmp_path / "exported").exists()
