"""A policy that acts by onnxruntime acts as in torch, and whatever goes wrong leaves it in torch."""

import copy
import logging
import os
import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dp_prior.diffusion.sampler import DDIM
from dp_prior.inference import plans
from dp_prior.inference.agent import Agent
from dp_prior.inference.load import load_policy
from dp_prior.inference.vector_agent import VectorAgent
from dp_prior.networks.encoders.resnet import FrozenBatchNorm
from dp_prior.tensors.randomness import Randomness
from dp_prior_client import PolicyClient
from dp_prior_client.realtime import RealtimeAgent
from dp_prior_robot.export import graph_cache, onnx_runtime, sessions
from dp_prior_robot.export.chunk_sampling import ChunkSampling
from dp_prior_robot.export.conditioning import ChunkConditions
from dp_prior_robot.export.example_rows import observations
from tests.extension.installed import lay_out
from tests.messages import naming, told
from tests.plugins.dp_prior_robot.export.policies import CAMERA, build, needs_onnx
from tests.plugins.dp_prior_robot.serving.running import running

pytestmark = needs_onnx

UNIT = 100.0
"""Half the range of the actions of `build`."""

DIFFUSION = {"schedule": {"type": "cosine", "steps": 10}, "objective": {"type": "v"}}
POLICIES = {
    "mlp": {},
    "unet": {"backbone": {"type": "unet1d", "down_dims": [8, 16], "n_groups": 4, "step_embed_dim": 8}},
    "dit": {"backbone": {"type": "dit", "embed_dim": 16, "n_layers": 2, "n_heads": 2, "step_embed_dim": 8}},
    "local unet": {"backbone": {"type": "unet1d_local", "down_dims": [8, 16], "n_groups": 4, "step_embed_dim": 8}},
    "transformer": {"backbone": {"type": "transformer", "embed_dim": 16, "n_layers": 2, "n_heads": 2}},
    "guided, self-conditioned": {
        "cond_dropout": {"position": 0.1, "embedding": 0.1},
        "diffusion": {**DIFFUSION, "self_condition": 0.5, "guidance": {"scale": 2.0}},
    },
    "images": {
        "spec": CAMERA,
        "encoders": {"camera": {"type": "resnet", "width": 16, "blocks": [1], "crop": [16, 16]}},
    },
}


@pytest.fixture(scope="module")
def networks(tmp_path_factory):
    """Exported networks, which the tests of this file share."""
    return tmp_path_factory.mktemp("networks")


@pytest.fixture(autouse=True)
def switched_on(networks, monkeypatch):
    monkeypatch.setattr(onnx_runtime, "FEWEST_WEIGHTS", 0)
    monkeypatch.setattr(graph_cache, "CACHE", networks)
    monkeypatch.setattr(plans, "listeners", lambda event: [onnx_runtime.accelerate] if event == "runtimes" else [])


@pytest.fixture
def quick(monkeypatch):
    """Measurements that onnxruntime wins, whatever an earlier test has measured; their check of the numbers stays."""
    measured = onnx_runtime.OnnxNetwork._measured

    def faster(self, inputs):
        measured(self, inputs)
        return 1.0, 0.1

    monkeypatch.setattr(onnx_runtime, "MEASURED_S", 0.0)
    monkeypatch.setattr(onnx_runtime.OnnxNetwork, "_measured", faster)
    monkeypatch.setattr(graph_cache, "stored_choices", lambda folder: {})


def loaded(name="mlp"):
    policy = build(**POLICIES[name])
    policy.is_loaded = True
    return policy


def steps(policy, count):
    obs = [observations(policy, seed, 1) for seed in range(count)]
    return [{key: value[0, -1].numpy() for key, value in rows.items()} for rows in obs]


def acted(agent, policy):
    agent.reset(3)
    return np.stack([agent.act(obs) for obs in steps(policy, 9)])


def assert_acts_alike(actions, expected):
    np.testing.assert_allclose(actions / UNIT, expected / UNIT, rtol=0, atol=1e-5)


def assert_in_torch(policy, expected):
    assert policy.runtime is None and np.array_equal(acted(Agent(policy), policy), expected)


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

    for runtime in (onnx_runtime.OnnxNetwork, ChunkSampling):
        monkeypatch.setattr(runtime, "__call__", lambda *arguments: pytest.fail("used"))
    with pytest.raises(pytest.fail.Exception):
        acted(Agent(policy), policy)


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


@torch.no_grad()
def test_the_encoder_of_an_agent_encodes_as_in_torch_unless_conditions_are_dropped(encoding):
    policy, eager, obs, computed = encoding
    torch.testing.assert_close(policy.encode(obs), eager.encode(obs), rtol=0, atol=1e-5)
    computed.clear()
    torch.testing.assert_close(policy.encode(obs), eager.encode(obs), rtol=0, atol=1e-5)
    assert computed == [3]
    random = Randomness.from_counts(0, "test", torch.arange(3))
    assert torch.equal(policy.encode(obs, keep=False), eager.encode(obs, keep=False))
    assert torch.equal(policy.encode(obs, random), eager.encode(obs, random))
    with torch.enable_grad():
        assert torch.equal(policy.encode(obs), eager.encode(obs))
    assert copy.deepcopy(policy).encoding is None and computed == [3]
    next(policy.encoder.parameters()).mul_(2)
    assert not torch.equal(policy.encode(obs), eager.encode(obs)) and computed == [3]


@torch.no_grad()
def test_an_encoder_that_differs_at_first_is_one_line_and_torch_goes_on(encoding, caplog):
    policy, eager, obs, computed = encoding
    run = policy.encoding._run
    policy.encoding._run = lambda values: run(values) + 1e-3
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert torch.equal(policy.encode(obs), eager.encode(obs))
    [line] = caplog.messages
    assert told(line, "encoder", "differs") and policy.runtime is not None


def test_the_faster_one_is_chosen_told_and_remembered(networks, monkeypatch, caplog):
    policy = loaded()
    choices = graph_cache.place_of(policy, policy.backbone) / graph_cache.CHOICES
    for seconds, library, other in (((1.0, 0.2), "onnxruntime", False), ((0.2, 1.0), "torch", True)):
        choices.unlink(missing_ok=True)
        caplog.clear()
        monkeypatch.setattr(onnx_runtime.OnnxNetwork, "_measured", lambda self, inputs, seconds=seconds: seconds)
        with caplog.at_level(logging.INFO), torch.no_grad():
            policy.runtime = None
            Agent(policy)
            assert (policy.runtime(policy.runtime.example[2]) is None) == other
        assert told(caplog.text, f"in {library}: 1", "1000.00 ms", "200.00 ms")
        monkeypatch.setattr(onnx_runtime.OnnxNetwork, "_measured", lambda *arguments: pytest.fail("measured again"))
        again = loaded()
        Agent(again)
        with torch.no_grad():
            assert (again.runtime(again.runtime.example[2]) is None) == other


def test_the_measurement_takes_about_a_second(monkeypatch):
    policy = loaded()
    Agent(policy)  # exported
    runtime, now = policy.runtime, [0.0]

    def taking(seconds, compute):
        def call(inputs):
            now[0] += seconds
            return compute(inputs)

        return call

    monkeypatch.setattr(sessions, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(runtime, "expected", taking(0.05, runtime.expected))
    monkeypatch.setattr(runtime, "_run", taking(0.02, runtime._run))
    assert runtime._measured(runtime.example) == pytest.approx((0.05, 0.02))
    assert 1.0 <= now[0] < 1.3


def broken(monkeypatch, kind):
    if kind == "disagrees":
        session = onnx_runtime._session
        monkeypatch.setattr(onnx_runtime, "_session", lambda path: lambda inputs: session(path)(inputs) + 1e-4)
        return "onnxruntime differs"
    if kind == "cannot be traced":
        monkeypatch.setattr(onnx_runtime, "graph_file", lambda *arguments: 1 / 0)
        monkeypatch.setattr(graph_cache, "FORM", "untraced")
        return "ZeroDivisionError"
    if kind == "full disk":
        monkeypatch.setattr(graph_cache, "FORM", "full")
        monkeypatch.setattr(graph_cache, "publish", lambda *arguments: (_ for _ in ()).throw(OSError(28, "full disk")))
        return "OSError"
    monkeypatch.setattr(
        onnx_runtime, "_session", lambda path: (_ for _ in ()).throw(RuntimeError("no such operator\nat"))
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


@pytest.mark.slow
def test_a_first_observation_at_which_it_differs_leaves_the_policy_in_torch(quick, monkeypatch, caplog):
    policy, eager = loaded(), build()
    agent = Agent(policy)
    run = policy.runtime._run
    policy.runtime._run = lambda inputs: run(inputs) + 1e-3
    expected = acted(Agent(eager), eager)
    with caplog.at_level(logging.WARNING):
        assert np.array_equal(acted(agent, policy), expected)
    assert len([line for line in caplog.messages if "differs" in line]) == 1


@pytest.mark.parametrize("kind", ["more rows differ", "more rows fail", "fails later"])
def test_what_fails_while_a_robot_moves_is_one_line_and_torch_goes_on(quick, networks, monkeypatch, caplog, kind):
    policy, eager = loaded(), build()
    Agent(policy)
    caplog.clear()  # of the export of the network, which the first of these tests makes
    run = policy.runtime._run

    def bad(inputs):
        if kind == "more rows differ":
            return run(inputs) + 1e-3 * (len(inputs[0]) > 1)
        raise RuntimeError("no memory\nat")

    policy.runtime._choices = {key: True for key in policy.runtime._choices if kind != "fails later"}
    if kind == "fails later":
        monkeypatch.setattr(onnx_runtime.OnnxNetwork, "choose", lambda self, inputs: True)
    policy.runtime._run = bad
    rows = {key: value[:, -1].numpy() for key, value in observations(policy, 4, 3).items()}
    vector, same = VectorAgent(policy, seed=1), VectorAgent(eager, seed=1)
    vector.reset(range(3)), same.reset(range(3))
    with caplog.at_level(logging.WARNING):
        np.testing.assert_array_equal(vector.act(rows), same.act(rows))
        vector.reset(range(3)), same.reset(range(3))
        np.testing.assert_array_equal(vector.act(rows), same.act(rows))
    [line] = caplog.messages
    assert told(line, "ValueError: onnxruntime differs" if kind == "more rows differ" else "RuntimeError: no memory")


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


def test_a_read_only_network_of_another_user_is_used(quick, networks, monkeypatch, caplog):
    Agent(loaded())
    monkeypatch.setattr(graph_cache.os, "utime", lambda path: (_ for _ in ()).throw(PermissionError(path)))
    policy = loaded()
    Agent(policy)
    assert policy.runtime is not None and graph_cache.place_of(policy, policy.backbone).is_dir()


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


def test_changed_weights_gradients_and_other_processes_are_not_for_the_export(quick):
    policy = loaded()
    Agent(policy)
    tokens = policy.runtime.example.tokens
    assert policy.runtime(tokens) is None, "gradients are enabled"
    with torch.no_grad():
        assert policy.runtime(tokens) is not None and policy.runtime(tokens.bfloat16()) is None
        policy.runtime._process += 1
        assert policy.runtime(tokens) is None
        policy.runtime._process = os.getpid()
        next(policy.backbone.parameters()).mul_(1.5)
        assert policy.runtime(tokens) is None


@torch.no_grad()
@pytest.mark.parametrize("part", ["backbone", "encoder"])
def test_a_module_that_replaces_the_exported_one_acts(encoding, part):
    policy, eager, obs, computed = encoding
    random, other = Randomness.from_counts(0, "test", torch.arange(3)), copy.deepcopy(getattr(eager, part))
    policy.predict(obs, random)
    for parameter in other.parameters():
        parameter.mul_(1.5)
    setattr(policy, part, other), setattr(eager, part, other)
    assert_acts_alike(policy.predict(obs, random).numpy(), eager.predict(obs, random).numpy())


@torch.no_grad()
def test_autocast_computes_as_in_torch(encoding):
    policy, eager, obs, computed = encoding
    random = Randomness.from_counts(0, "test", torch.arange(3))
    policy.predict(obs, random)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(policy.predict(obs, random), eager.predict(obs, random))


@torch.no_grad()
def test_buffers_that_change_are_not_for_the_export(quick, monkeypatch):
    monkeypatch.setattr(onnx_runtime, "FEWEST_ENCODER_WEIGHTS", 0)
    monkeypatch.setattr(onnx_runtime, "FEWEST_WEIGHTS", 10**9)  # the encoder alone is exported
    policy, eager = loaded("images"), loaded("images")
    for module in [*policy.encoder.modules(), *eager.encoder.modules()]:
        for name, child in module.named_children():
            if isinstance(child, torch.nn.GroupNorm):  # as in a pretrained network
                setattr(module, name, FrozenBatchNorm(child.num_channels).requires_grad_(False))
    Agent(policy)
    obs, before = observations(policy, 0, 1), eager.encode(observations(policy, 0, 1))
    assert_acts_alike(policy.encode(obs).numpy(), before.numpy())
    for model in (policy, eager):
        for name, buffer in model.encoder.named_buffers():
            if name.endswith("running_var"):
                buffer.mul_(4)
    assert torch.equal(policy.encode(obs), eager.encode(obs)) and not torch.equal(policy.encode(obs), before)


@torch.no_grad()
def test_a_batch_without_rows_leaves_onnxruntime_to_those_that_come_after(encoding, caplog):
    policy, eager, obs, computed = encoding
    nothing = {key: value[:0] for key, value in obs.items()}
    policy.encode(obs)  # measured
    computed.clear()
    with caplog.at_level(logging.WARNING):
        assert policy.encode(nothing).shape == eager.encode(nothing).shape
    policy.encode(obs)
    assert computed == [3] and not caplog.messages


@torch.no_grad()
def test_both_networks_of_guidance_compute_the_timesteps_of_a_chunk_at_once(quick, monkeypatch):
    policy = loaded("guided, self-conditioned")
    Agent(policy)
    batches, at = [], ChunkConditions.at

    def counted(conditions, t, tokens, compute):
        return at(conditions, t, tokens, lambda *inputs: (batches.append(len(inputs[0])), compute(*inputs))[1])

    obs, random = observations(policy, 0, 1), Randomness.from_counts(0, "test", torch.arange(1))
    policy.predict(obs, random)
    monkeypatch.setattr(ChunkConditions, "at", counted)
    policy.predict(obs, random)
    assert batches == [3, 3]


def test_weights_written_past_the_counters_of_torch_are_not_for_the_export(quick):
    policy = loaded()
    Agent(policy)
    tokens = policy.runtime.example[2]
    with torch.no_grad():
        weights = next(policy.backbone.parameters()).data
        weights.mul_(2)
        assert policy.runtime(tokens) is None
        weights.div_(2)
        assert policy.runtime(tokens) is not None


def test_copies_and_pickles_act_in_torch_and_may_have_a_runtime_of_their_own(quick):
    policy = loaded()
    Agent(policy)
    for copied in (copy.deepcopy(policy), pickle.loads(pickle.dumps(policy))):
        assert copied.runtime is None and copied.is_loaded
        Agent(copied)
        assert copied.runtime is not None and copied.runtime is not policy.runtime


def test_another_process_that_was_faster_wins_and_damage_is_repaired(quick, networks, monkeypatch, caplog):
    policy = loaded()
    Agent(policy)
    folder = graph_cache.place_of(policy, policy.backbone)
    graphs = {name: (folder / name).read_bytes() for name in (onnx_runtime.GRAPH, onnx_runtime.CONDITIONS)}
    stored = {**graphs, graph_cache.DIGEST: (folder / graph_cache.DIGEST).read_bytes()}
    graph = stored[onnx_runtime.GRAPH]
    monkeypatch.setattr(onnx_runtime.OnnxNetwork, "files", lambda *arguments: graphs)
    monkeypatch.setattr(graph_cache, "place_of", lambda *arguments: networks / "twice")
    folder = networks / "twice"

    def exists(path):  # as another process creates it meanwhile
        folder.mkdir()
        for name, content in stored.items():
            (folder / name).write_bytes(content)
        raise FileExistsError(path)

    with monkeypatch.context() as patch:
        patch.setattr(graph_cache, "publish", lambda temporary, path: exists(path))
        assert onnx_runtime.OnnxNetwork.of(policy)
    changed_bit = bytes([*graph[:-9], graph[-9] ^ 1, *graph[-8:]])
    for damaged in (graph[: len(graph) // 2], changed_bit):
        (folder / onnx_runtime.GRAPH).write_bytes(damaged)
        (folder / graph_cache.CHOICES).write_text("{")
        policy.runtime, policy.is_loaded = None, True
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            Agent(policy)
        assert policy.runtime is None and not folder.exists() and told(caplog.text, "since", str(folder))
        policy.is_loaded = True
        Agent(policy)
        assert policy.runtime is not None and (folder / onnx_runtime.GRAPH).read_bytes() == graph
    for place in ("a file", "a link that leads nowhere"):
        shutil.rmtree(folder)
        folder.write_text("x") if place == "a file" else folder.symlink_to(networks / "nowhere")
        for is_repaired in (False, True):
            policy.runtime, policy.is_loaded = None, True
            Agent(policy)
            assert (policy.runtime is not None) == is_repaired, place


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
