"""Our image model is the published one: improved-diffusion's and lucidrains' classes give the same numbers.

Needs a folder that `scripts/peers.sh` fills, named by DP_PRIOR_PEERS.
"""

import pytest
import torch
from torch import nn

from benchmarks import image_peers, images
from benchmarks.subjects import image_folder
from dp_prior.diffusion.draw import Draw
from dp_prior.diffusion.sampler import DDIM
from dp_prior.tasks.image import PixelRange
from dp_prior.tensors.randomness import Randomness
from dp_prior_foreign.importers.improved_diffusion import rename_published
from tests.extras import needs

needs("diffusers", "image")
pytestmark = pytest.mark.skipif(image_peers.missing() is not None, reason=f"NOT CHECKED: {image_peers.missing()}")

SMALL = (*images.QUICK, "task.backbone.dropout=0.0")
SIZES = {"n_res_blocks": 1, "heads": 4}


def pair():
    """Their network and process, and our model with its weights, all of them drawn."""
    torch.manual_seed(1)
    network, diffusion = image_peers.improved(num_channels=32, num_res_blocks=1, dropout=0.0, rescale_timesteps=False)
    with torch.no_grad():
        for parameter in network.parameters():
            if not parameter.any():
                parameter.normal_(std=0.05)
    ours = images.model(images.record(*SMALL))
    ours.backbone.load_state_dict(rename_published(network.state_dict(), **SIZES))
    return network, diffusion, ours


def test_as_many_parameters_as_the_published_class():
    with torch.device("meta"):
        network, _ = image_peers.improved()
    assert sum(p.numel() for p in network.parameters()) == 52_546_438  # ours: tests/networks/backbones/test_unet2d.py


def test_predictions_are_those_of_improved_diffusion():
    network, _, ours = pair()
    x, t = torch.randn(3, 32, 32, 3), torch.tensor([0, 1600, 3999])
    with torch.no_grad():
        expected = network(x.movedim(-1, 1), t).movedim(1, -1)
        found = ours.backbone(x, t, torch.zeros(3, 0, 128))
    assert expected.std() > 0.05
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5)


def test_loss_and_gradient_are_those_of_improved_diffusion():
    network, diffusion, ours = pair()
    batch = images.batch(4)
    random = Randomness.from_counts(0, "training", batch.positions)
    loss = ours(batch, random)
    loss.total.backward()
    noise, x_0 = random.stream("noise").normal(32, 32, 3), ours.normalizer.normalize("x", batch.x)
    terms = diffusion.training_losses(network, x_0.movedim(-1, 1), loss.t, noise=noise.movedim(-1, 1))
    terms["loss"].mean().backward()
    assert (loss.t > 0).all()  # there its likelihood of a pixel is an approximation
    torch.testing.assert_close(loss.per_sample, terms["loss"], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(loss.terms["simple"], terms["mse"], rtol=1e-4, atol=1e-5)
    gradients = rename_published({name: one.grad for name, one in network.named_parameters()}, **SIZES)
    whole = nn.utils.get_total_norm(list(gradients.values()))
    for name, parameter in ours.backbone.named_parameters():
        assert (parameter.grad - gradients[name]).norm() < 1e-4 * whole, name


def test_samples_of_ddim_are_those_of_improved_diffusion():
    network, _, ours = pair()
    flags = {"num_channels": 32, "num_res_blocks": 1, "dropout": 0.0, "rescale_timesteps": False}
    _, diffusion = image_peers.improved(**flags, timestep_respacing="5")
    noise = torch.randn(2, 32, 32, 3)
    expected = diffusion.ddim_sample_loop(network.eval(), (2, 3, 32, 32), noise.movedim(-1, 1), device="cpu")
    sampler = DDIM(steps=None, spacing=(5,))
    found = ours.eval().sample({}, Randomness(torch.arange(2)), Draw(sampler, noise=noise))
    assert found.std() > 30  # of 0 to 255
    torch.testing.assert_close(found, (expected.movedim(1, -1) + 1) * 127.5, rtol=0, atol=0.05)


def test_pixels_of_a_folder_are_those_of_torchvision(tmp_path):
    images.write_folder(tmp_path, 12)
    theirs = image_folder.torchvision_loader(tmp_path, 0).dataset
    batch = image_folder.open_images(tmp_path, tmp_path / "cache").train.fetch(torch.arange(12))
    for row, (pixels, label) in enumerate(theirs):
        x, found = PixelRange().normalize("x", batch.x[row]), pixels.movedim(0, -1)
        torch.testing.assert_close(found if (found - x).abs().max() < 0.1 else found.flip(1), x, rtol=0, atol=1e-6)
        assert batch.cond["label"][row] == label


def test_the_loss_is_that_of_lucidrains():
    """Around our network; its bound is not multiplied by the number of timesteps."""
    ours = images.model(images.record("task.diffusion.variance.vlb_weight=2.5e-7", *images.QUICK)).eval()
    nn.init.normal_(ours.backbone.unet.conv_out.weight, std=0.05)
    theirs, batch = image_peers.lucidrains(16), images.batch(4)
    random = Randomness.from_counts(0, "training", batch.positions)
    with torch.no_grad():
        loss = ours(batch, random)
        theirs.model.forward = lambda x, t: ours.backbone(x.movedim(1, -1), t, torch.zeros(4, 0, 1)).movedim(-1, 1)
        noise = random.stream("noise").normal(32, 32, 3).movedim(-1, 1)
        x_0 = ours.normalizer.normalize("x", batch.x).movedim(-1, 1)
        expected = theirs.p_losses(x_0, loss.t, noise, loss_reduction="none")
    assert (loss.t > 0).all()
    torch.testing.assert_close(loss.per_sample, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["improved-diffusion", "lucidrains"])
def test_a_step_of_their_trainers_changes_weights_and_average(kind, tmp_path):
    pixels = image_peers.floats(images.batch(2).x)
    if kind == "lucidrains":
        images.write_folder(tmp_path, 100)
        model = image_peers.lucidrains(16)
        step = image_peers.lucidrains_step(model, pixels, tmp_path, tmp_path / "results")
    else:
        model, diffusion = image_peers.improved(num_channels=32, num_res_blocks=1)
        step = image_peers.improved_step(model, diffusion, 2 * pixels - 1, tmp_path)
    before = [parameter.clone() for parameter in model.parameters()]
    step()
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
