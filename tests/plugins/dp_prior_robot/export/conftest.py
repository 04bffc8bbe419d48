from functools import partial

import pytest

from dp_prior.inference import plans
from dp_prior.inference.agent import Agent
from dp_prior_robot.export import graph_cache, onnx_part, onnx_runtime
from dp_prior_robot.export.example_rows import observations
from dp_prior_robot.export.onnx_network import OnnxNetwork
from dp_prior_robot.export.write import write_export
from tests.once import made_once
from tests.plugins.dp_prior_robot.export.policies import TASK, build


@pytest.fixture(scope="session")
def policy():
    """A policy of relative actions, for tests that only read it."""
    return build(**TASK)


@pytest.fixture(scope="session")
def exported(policy, tmp_path_factory):
    """Its export, likewise."""
    make = partial(write_export, policy, layout="onnx", source="a test")
    return made_once(tmp_path_factory, "export", lambda place: make(place / "onnx")) / "onnx"


@pytest.fixture(scope="session")
def networks(tmp_path_factory):
    """Exported networks, which the tests of a worker share."""
    return tmp_path_factory.mktemp("networks")


@pytest.fixture
def switched_on(networks, monkeypatch):
    """Agents give even small policies a runtime."""
    monkeypatch.setattr(onnx_runtime, "FEWEST_WEIGHTS", 0)
    monkeypatch.setattr(graph_cache, "CACHE", networks)
    monkeypatch.setattr(plans, "listeners", lambda event: [onnx_runtime.accelerate] if event == "runtimes" else [])


@pytest.fixture
def quick(monkeypatch):
    """Measurements that onnxruntime wins, whatever an earlier test has measured; their check of the numbers stays."""
    measured = OnnxNetwork._measured

    def faster(self, inputs):
        measured(self, inputs)
        return 1.0, 0.1

    monkeypatch.setattr(onnx_part, "MEASURED_S", 0.0)
    monkeypatch.setattr(OnnxNetwork, "_measured", faster)
    monkeypatch.setattr(graph_cache, "stored_choices", lambda folder: {})


@pytest.fixture
def encoding(quick, monkeypatch):
    """A policy whose encoder has an `encoding`, the same in torch, observations, and how many rows it computed."""
    monkeypatch.setattr(onnx_runtime, "FEWEST_ENCODER_WEIGHTS", 0)
    states = {key: {"type": "state", "hidden_dims": [8], "output_dim": 4} for key in ("position", "embedding")}
    policy, eager = build(encoders=states), build(encoders=states)
    policy.is_loaded = True
    Agent(policy)
    run, computed = policy.encoding._run, []
    policy.encoding._run = lambda values: (computed.append(len(values["position"])), run(values))[1]
    return policy, eager, observations(policy, 0, 3), computed
