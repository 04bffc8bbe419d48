"""Our image policy is the published one: the classes of LeRobot and Stanford give the same numbers.

Needs a folder that `scripts/peers.sh` fills, named by DP_PRIOR_PEERS.
"""

import copy

import pytest
import torch
from torch import nn

from benchmarks import image_policy, peers
from dp_prior.networks.encoders.resnet import load_published
from dp_prior.networks.encoders.spatial_softmax import MeanPool
from dp_prior.tensors.randomness import Randomness

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(peers.missing() is not None, reason=f"NOT CHECKED: {peers.missing()}"),
]

WIDTHS = (64, 128, 256)
PUBLISHED = (512, 1024, 2048)


@pytest.fixture(scope="module")
def lerobot():
    torch.manual_seed(1)
    return peers.lerobot_policy(WIDTHS).eval()


@pytest.fixture(scope="module")
def stanford():
    torch.manual_seed(2)
    return peers.stanford_policy(WIDTHS).eval()


def ours(changes=()):
    return image_policy.policy(image_policy.record(WIDTHS, changes)).eval()


def close(found, expected, tolerance):
    """To a fraction of the largest element."""
    difference = (found - expected).abs().max() / expected.abs().max()
    print(f"relative difference {difference.item():.1e}")
    assert difference < tolerance


@pytest.mark.parametrize("make", [peers.lerobot_policy, peers.stanford_policy], ids=["LeRobot", "Stanford"])
def test_as_many_parameters_as_the_published_class(make):
    theirs = sum(p.numel() for name, p in make(PUBLISHED).named_parameters() if p.numel() and "_dummy" not in name)
    policy = image_policy.policy(image_policy.record(PUBLISHED))
    assert theirs == sum(p.numel() for p in policy.parameters()) == 262_709_026


def test_features_of_lerobots_encoder(lerobot):
    policy, batch = ours(), image_policy.batch(3)
    camera = policy.encoder.encoders[1]
    load_published(camera, lerobot.diffusion.rgb_encoder.state_dict(), source="LeRobot")
    with torch.no_grad():
        expected = lerobot.diffusion.rgb_encoder(image_policy.pixels(batch).flatten(0, 1)).view(3, 2, 64)
        close(camera(batch.cond["camera"]), expected, 1e-5)


def test_features_of_robomimics_encoder_as_stanford_uses_it(stanford):
    policy, batch = ours(), image_policy.batch(3)
    camera = policy.encoder.encoders[1]
    prefix = "obs_nets.image."
    weights = {
        name.removeprefix(prefix): value
        for name, value in stanford.obs_encoder.state_dict().items()
        if name.startswith(prefix)
    }
    load_published(camera, weights, source="Stanford")
    given = {"image": image_policy.pixels(batch).flatten(0, 1), "agent_pos": batch.cond["agent_pos"].flatten(0, 1)}
    with torch.no_grad():
        expected = stanford.obs_encoder(given)  # in the order of shape_meta: image, agent_pos
        assert torch.equal(expected[:, 64:], given["agent_pos"])
        close(camera(batch.cond["camera"]).flatten(0, 1), expected[:, :64], 1e-5)


def test_features_of_stanfords_encoder_of_several_cameras():
    torch.manual_seed(3)
    theirs = peers.stanford_encoder().eval()
    camera = ours(("task.encoders.camera.pool=mean", "task.encoders.camera.output_dim=null")).encoder.encoders[1]
    assert isinstance(camera.pool, MeanPool)
    prefix = "key_model_map.image."
    weights = {name.removeprefix(prefix): value for name, value in theirs.state_dict().items() if prefix in name}
    load_published(camera, weights, source="Stanford")
    batch = image_policy.batch(3)
    cropped = image_policy.pixels(batch)[..., 6:90, 6:90].flatten(0, 1)
    with torch.no_grad():
        close(camera(batch.cond["camera"]).flatten(0, 1), theirs({"image": cropped}), 1e-5)


def test_loss_and_gradient_of_a_step_of_lerobot(lerobot, monkeypatch):
    """With its weights, the centre crop, and our timesteps and noise.

    Weights are float64: in float32 a rounding decides on which side of a ReLU a value lies, and the two gradients
    differ by a few thousandths.
    """
    policy, batch = ours(), image_policy.batch(4)
    lerobot = copy.deepcopy(lerobot).double()
    lerobot.diffusion.unet.diffusion_step_encoder[0].register_forward_hook(lambda module, given, found: found.double())
    weights = image_policy.renamed_lerobot(lerobot.state_dict())
    assert set(weights) == {name for name in policy.state_dict() if name.startswith(("encoder", "backbone"))}
    policy.load_state_dict(policy.state_dict() | weights)
    policy.encoder.double(), policy.backbone.double()
    random = Randomness.from_counts(0, "training", batch.positions)
    loss = policy(batch, random, self_condition=False)
    loss.total.backward()

    noise = random.stream("noise").normal(16, 2).double()
    monkeypatch.setattr(torch, "randn", lambda *shape, **how: noise)
    monkeypatch.setattr(torch, "randint", lambda **how: loss.t)
    given = {
        "observation.state": batch.cond["agent_pos"].double(),
        "observation.image": image_policy.pixels(batch).double(),
        "action": batch.x.double(),
        "action_is_pad": ~batch.mask,
    }
    expected, _ = lerobot(given)
    expected.backward()
    monkeypatch.undo()
    assert loss.total.item() == pytest.approx(expected.item(), rel=1e-6)

    gradients = copy.deepcopy(policy)
    theirs = {name: p.grad for name, p in lerobot.named_parameters()}
    gradients.load_state_dict(policy.state_dict() | image_policy.renamed_lerobot(theirs))
    pairs = {
        name: (p.grad, value)
        for (name, p), value in zip(policy.named_parameters(), gradients.parameters(), strict=True)
    }
    whole = nn.utils.get_total_norm([value for _, value in pairs.values()])
    worst = max((found - value).norm() / whole for found, value in pairs.values())
    print(f"loss {loss.total.item():.6f} and {expected.item():.6f}; worst gradient {worst.item():.1e} of the norm")
    assert worst < 1e-6


def test_the_prediction_of_stanfords_network_for_the_same_features(stanford):
    """Its condition has image before position, ours the keys in alphabetical order."""
    from dp_prior.networks.backbones.unet1d import rename_published

    policy = ours()
    weights = rename_published(stanford.model.state_dict())
    step = peers.STEP_DIM
    order = [*range(step), *(step + 66 * i + j for i in range(2) for j in (64, 65, *range(64)))]
    for name, value in weights.items():
        if name.endswith("film.linear.weight"):
            weights[name] = value[:, order]
    policy.backbone.load_state_dict(weights)
    x, t, cond = torch.randn(3, 16, 2), torch.tensor([0, 50, 99]), torch.randn(3, 2, 66)
    theirs = torch.cat([cond[..., 2:], cond[..., :2]], dim=-1).flatten(1)
    with torch.no_grad():
        close(policy.backbone(x, t, cond), stanford.model(x, t, global_cond=theirs), 1e-5)
