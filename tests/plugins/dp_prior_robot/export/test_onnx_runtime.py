"""A policy that acts by onnxruntime acts as in torch, and whatever goes wrong leaves it in torch."""

import copy
import logging
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from dp_prior.diffusion.sampler import DDIM
from dp_prior.inference.agent import Agent
from dp_prior.inference.load import load_policy
from dp_prior.inference.vector_agent import VectorAgent
from dp_prior.tensors.randomness import Randomness
from dp_prior_client import PolicyClient
from dp_prior_client.realtime import RealtimeAgent
from dp_prior_robot.export import graph_cache, onnx_network, onnx_runtime
from dp_prior_robot.export.chunk_sampling import ChunkSampling
from dp_prior_robot.export.example_rows import observations
from dp_prior_robot.export.onnx_network import OnnxNetwork
from tests.extension.installed import lay_out
from tests.messages import naming, told
from tests.plugins.dp_prior_robot.export.accelerated import (
    POLICIES,
    acted,
    assert_acts_alike,
    assert_in_torch,
    loaded,
    steps,
)
from tests.plugins.dp_prior_robot.export.policies import build, needs_onnx
from tests.plugins.dp_prior_robot.serving.running import running

pytestmark = [needs_onnx, pytest.mark.usefixtures("switched_on")]


@pytest.mark.parametrize(
    "name", [name if name == "mlp" else pytest.param(name, marks=pytest.mark.slow) for name in POLICIES]
)
def test_every_agent_acts_as_in_torch(quick, name, monkeypatch):
    if name == "images":
        monkeypatch.setattr(onnx_runtime, "FEWEST_ENCODER_WEIGHTS", 0)
    policy, eager = loaded(name), build(**POLICIES[name])
    expected = acted(Agent(eager, sampler=DDIM(steps=2)), eager)
    assert_acts_alike(acted(Agent(policy, sampler=DDIM(steps=2)), policy), expected)

    vector, same = VectorAgent(policy, seed=1), VectorAgent(eager, seed=1)
    rows = {key: value[:, -1].numpy() for key, value in observations(policy, 4, 3).items()}
    vector.reset(range(3)), same.reset(range(3))
    assert_acts_alike(vector.act(rows), same.act(rows))

    served = {}
    for key, model in (("onnx", policy), ("torch", eager)):
        with running(model) as server, PolicyClient(f"ws://127.0.0.1:{server.port}") as client:
            client.reset(3)
            served[key] = np.stack([client.act(obs) for obs in steps(policy, 5)])
    assert_acts_alike(served["onnx"], served["torch"])

    realtime = {}
    for key, model in (("onnx", policy), ("torch", eager)):
        time_s = iter(np.arange(0, 100, 0.1))
        with RealtimeAgent(
            Agent(model), fps=10, n_obs_steps=2, n_action_steps=4, clock=lambda time_s=time_s: next(time_s)
        ) as agent:
            agent.reset()
            realtime[key] = agent.act(steps(policy, 1)[0])
    assert_acts_alike(realtime["onnx"], realtime["torch"])

    for runtime in (OnnxNetwork, ChunkSampling):
        monkeypatch.setattr(runtime, "__call__", lambda *arguments: pytest.fail("used"))
    with pytest.raises(pytest.fail.Exception):
        acted(Agent(policy), policy)


def broken(monkeypatch, kind):
    if kind == "disagrees":
        session = onnx_network._session
        monkeypatch.setattr(onnx_network, "_session", lambda path: lambda inputs: session(path)(inputs) + 1e-4)
        return "onnxruntime differs"
    if kind == "cannot be traced":
        monkeypatch.setattr(onnx_network, "graph_file", lambda *arguments: 1 / 0)
        monkeypatch.setattr(graph_cache, "FORM", "untraced")
        return "ZeroDivisionError"
    if kind == "full disk":
        monkeypatch.setattr(graph_cache, "FORM", "full")
        monkeypatch.setattr(graph_cache, "publish", lambda *arguments: (_ for _ in ()).throw(OSError(28, "full disk")))
        return "OSError"
    monkeypatch.setattr(
        onnx_network, "_session", lambda path: (_ for _ in ()).throw(RuntimeError("no such operator\nat"))
    )
    return "RuntimeError"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["disagrees", "cannot be traced", "full disk", "cannot be loaded"])
def test_what_fails_is_one_line_and_torch_goes_on(monkeypatch, caplog, kind, networks):
    policy, eager = loaded(), build()
    expected = acted(Agent(eager), eager)
    for choices in networks.glob(f"*/{graph_cache.CHOICES}"):
        choices.unlink()
    cause = broken(monkeypatch, kind)
    with caplog.at_level(logging.INFO):
        Agent(policy)
    [line] = [record.message for record in caplog.records if "since" in record.message]
    assert told(line, cause) and "\n" not in line
    assert_in_torch(policy, expected)
    assert not [path for path in networks.iterdir() if path.name in ("untraced", "full") or "tmp" in path.name]


def test_a_missing_library_is_one_line_and_torch_goes_on(monkeypatch, caplog):
    policy, eager = loaded(), build()
    expected = acted(Agent(eager), eager)
    monkeypatch.setattr(onnx_runtime, "versions", lambda: {"torch": "2", "onnxruntime": None})
    with caplog.at_level(logging.INFO):
        assert_in_torch(policy, expected)
    assert told(caplog.text, "dp_prior[onnx]")


def test_threads_make_agents_of_one_policy_at_the_same_time(quick):
    policy = loaded()
    [obs] = steps(policy, 1)

    def act(seed):
        for episode in range(5):
            agent = Agent(policy, seed=seed)
            agent.reset(episode)
            agent.act(obs)
        return policy.runtime

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(act, range(8)))) == 1 and policy.runtime is not None


def test_models_that_were_not_loaded_small_ones_and_those_in_bfloat16_stay_in_torch(monkeypatch, caplog):
    policy = build()
    Agent(policy)
    assert policy.runtime is None
    policy.is_loaded = True
    half = copy.deepcopy(policy)
    half.cast_weights(torch.bfloat16)
    for _ in range(2):
        Agent(half)
    assert half.runtime is None
    [line] = caplog.messages
    assert told(line, "bfloat16", "onnxruntime", "float32", "dtype")
    monkeypatch.setattr(onnx_runtime, "FEWEST_WEIGHTS", 1_000_000)
    Agent(policy)
    assert policy.runtime is None


def test_a_policy_is_loaded_to_act_faster_unless_eager_is_asked_for(tmp_path):
    place = build().save_pretrained(tmp_path / "policy")
    assert load_policy(place).is_loaded and not load_policy(place, runtime="eager").is_loaded
    with pytest.raises(ValueError, match=naming("runtime", "'onnx'", "'auto'", "'eager'")):
        load_policy(place, runtime="onnx")


def test_an_installed_package_is_asked_for_loaded_policies_only(tmp_path, monkeypatch):
    from dp_prior.files import entry_points

    monkeypatch.undo()
    lay_out(tmp_path, "some_runtime", "def f(policy):\n    policy.seen = 1", {"runtimes.some": "some_runtime:f"})
    monkeypatch.syspath_prepend(tmp_path)
    entry_points._installed.cache_clear()
    try:
        policy = build()
        Agent(policy)
        assert not hasattr(policy, "seen")
        policy.is_loaded = True
        Agent(policy)
        assert policy.seen == 1
    finally:
        entry_points._installed.cache_clear()


def test_samples_do_not_depend_on_who_computes_them_but_for_rounding(quick):
    """The noise stays, and a compiled sampler too, which has a network of its own."""
    policy, eager = loaded(), build()
    Agent(policy)
    obs, random = observations(policy, 0, 2), Randomness.from_counts(0, "test", torch.arange(2))
    with torch.no_grad():
        assert_acts_alike(policy.predict(obs, random).numpy(), eager.predict(obs, random).numpy())
