"""The resize in the graph gives the pixels of training's resize, for every way of fitting."""

import numpy as np
import pytest
import torch

from dp_prior.config import ConfigError
from dp_prior.inference.agent import Agent
from dp_prior.tensors.pixels.resize import Fit
from dp_prior_client.onboard.scene import TURNS
from dp_prior_robot.export.example_rows import observations
from dp_prior_robot.export.exported_agent import ExportAgent
from dp_prior_robot.export.exported_policy import OnnxPolicy
from dp_prior_robot.export.fit_graph import FitGraph
from dp_prior_robot.export.graph_options import GraphOptions
from dp_prior_robot.export.graphs import EncoderGraph
from dp_prior_robot.export.parity import parity
from dp_prior_robot.export.torch_policy import AgentPolicy
from dp_prior_robot.export.write import write_export
from tests.cases import every
from tests.messages import naming
from tests.plugins.dp_prior_robot.export.policies import CAMERA, ByTorch, build

FITTED = CAMERA.model_copy(update={"fits": {"camera": Fit(size=(16, 16), how="crop")}})
RESNET = {"encoders": {"camera": {"type": "resnet", "width": 16, "blocks": [1]}}}


def pictures(kind, high, wide):
    random = torch.Generator().manual_seed(high * wide)
    if kind == "noise":
        return torch.randint(0, 256, (2, high, wide, 3), dtype=torch.uint8, generator=random)
    rows, columns = torch.meshgrid(torch.arange(high), torch.arange(wide), indexing="ij")
    waves = 127.5 + 127.5 * torch.sin(torch.stack([rows / 7, columns / 11, (rows + columns) / 5], -1))
    return waves.to(torch.uint8)[None]


@pytest.mark.slow
@every(
    how=("resize", "crop", "letterbox"),
    region=(None, (0.1, 0.25, 0.85, 0.9)),
    kind=("noise", "waves"),
    turn=(None, *TURNS),
    bgr=(False, True),
    sizes=(
        ((480, 640), (96, 96)),
        ((120, 90), (84, 112)),
        ((30, 40), (64, 64)),
        ((96, 96), (96, 96)),
        ((5, 3), (1, 7)),
    ),
)
def test_the_pixels_are_those_of_the_resize_of_training(how, region, kind, turn, bgr, sizes):
    """At most 1 of 255, in fewer than 1 in 1,000 values: sums that lie within rounding of a half."""
    size, fitted = sizes
    fit = Fit(size=fitted, how=how, region=region, turn=turn, bgr=bgr)
    frames = pictures(kind, *size)
    found = FitGraph(fit, size)(frames[:, None])[:, 0].int()
    difference = (found - fit.apply(frames).int()).abs()
    assert difference.max() <= 1 and (difference > 0).float().mean() < 1e-3


def test_an_encoder_sees_frames_of_the_robot_as_it_saw_those_of_training():
    policy, frames = build(FITTED, **RESNET), {"camera": (48, 64)}
    obs = observations(policy, 0, 2, frames)
    assert obs["camera"].shape == (2, 2, 48, 64, 3)
    fitted = policy.spec.fits["camera"].apply(obs["camera"].flatten(0, 1)).view(2, 2, 16, 16, 3)
    with torch.no_grad():
        found, expected = EncoderGraph(policy, frames)(obs), EncoderGraph(policy)({**obs, "camera": fitted})
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [{}, {"region": (0.25, 0.0, 1.0, 0.5)}, {"turn": "right", "bgr": True}, {"turn": "half"}]
)
def test_a_robot_without_torch_gives_its_frames_as_they_are(tmp_path, changes):
    pytest.importorskip("onnxscript", reason="onnxscript is not installed: the resize in ONNX is NOT tested")
    fits, frames = {"camera": Fit(size=(16, 16), how="crop", **changes)}, {"camera": (48, 64)}
    policy = build(FITTED.model_copy(update={"fits": fits}), **RESNET)
    report = write_export(policy, tmp_path / "out", "onnx", source="run", options=GraphOptions(frames=frames))
    assert report["largest_error"] < 1e-4
    exported = OnnxPolicy.load(tmp_path / "out")
    agents = [Agent(policy), ExportAgent(exported), Agent(AgentPolicy(exported))]
    for step in range(6):
        obs = {key: value[0, 0].numpy() for key, value in observations(policy, step, 1, frames).items()}
        expected, *found = [agent.act(obs) for agent in agents]
        for one in found:
            np.testing.assert_allclose(one, expected, atol=1e-2)  # of a range of 100
    with pytest.raises(ValueError, match=naming("'camera'", (16, 16, 3), "uint8 (48, 64, 3)", "--frames")):
        agents[1].act({**obs, "camera": np.zeros((16, 16, 3), np.uint8)})


@pytest.mark.parametrize("changes", [{"region": (0.5, 0.0, 1.0, 1.0)}, {"turn": "half"}, {"bgr": True}])
def test_frames_as_large_as_fitted_ones_are_cut_and_turned_too(changes):
    """Once: by the graph, and not by the agent in front of it."""
    fits = {"camera": Fit(size=(16, 16), **changes)}
    policy, frames = build(FITTED.model_copy(update={"fits": fits}), **RESNET), {"camera": (16, 16)}
    exported = ByTorch.of(policy, options=GraphOptions(frames=frames))
    report = parity(policy, policy, exported, policy.sampler, GraphOptions(frames=frames))
    assert report["largest_error"] < 1e-4
    obs = {key: value[0, 0].numpy() for key, value in observations(policy, 0, 1, frames).items()}
    for other in (exported, AgentPolicy(exported)):
        agent = ExportAgent(other) if other is exported else Agent(other)
        np.testing.assert_allclose(agent.act(obs), Agent(policy).act(obs), atol=1e-2)


def test_a_region_needs_the_size_of_whole_frames(tmp_path):
    fits = {"camera": Fit(size=(16, 16), region=(0.5, 0.0, 0.51, 1.0))}
    policy = build(FITTED.model_copy(update={"fits": fits}), **RESNET)
    for frames, told in (({}, ("'camera'", [0.5, 0.0, 0.51, 1.0], "--frames camera=")),
                         ({"camera": (24, 32)}, ("--frames camera", "0 rows", "24 x 32"))):  # fmt: skip
        with pytest.raises(ConfigError, match=naming(*told)):
            write_export(policy, tmp_path / "out", "onnx", source="run", options=GraphOptions(frames=frames))


@pytest.mark.parametrize("changes", [{"turn": "half"}, {"bgr": True}])
def test_turned_frames_need_the_size_of_the_robots_frames(tmp_path, changes):
    policy = build(FITTED.model_copy(update={"fits": {"camera": Fit(size=(16, 16), **changes)}}), **RESNET)
    with pytest.raises(ConfigError, match=naming("'camera'", "turned", "--frames camera=")):
        write_export(policy, tmp_path / "out", "onnx", source="run", options=GraphOptions())


def test_frames_of_a_camera_that_the_policy_does_not_resize_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=naming("frames", "front", ["camera"])):
        write_export(
            build(FITTED, **RESNET),
            tmp_path / "out",
            "onnx",
            source="run",
            options=GraphOptions(frames={"front": (48, 64)}),
        )
