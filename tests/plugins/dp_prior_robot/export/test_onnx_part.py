"""A part in onnxruntime is used while it is the same function, where it is faster; else torch goes on."""

import copy
import logging
import os
import pickle
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dp_prior.inference.agent import Agent
from dp_prior.inference.vector_agent import VectorAgent
from dp_prior.tensors.randomness import Randomness
from dp_prior_robot.export import graph_cache, sessions
from dp_prior_robot.export.example_rows import observations
from dp_prior_robot.export.onnx_network import CONDITIONS, OnnxNetwork
from dp_prior_robot.export.onnx_part import GRAPH
from tests.messages import told
from tests.plugins.dp_prior_robot.export.accelerated import (
    assert_acts_alike,
    loaded,
)
from tests.plugins.dp_prior_robot.export.policies import build, needs_onnx

pytestmark = [needs_onnx, pytest.mark.usefixtures("switched_on")]


def test_the_faster_one_is_chosen_told_and_remembered(networks, monkeypatch, caplog):
    policy = loaded()
    choices = graph_cache.place_of(policy, policy.backbone) / graph_cache.CHOICES
    for seconds, library, other in (((1.0, 0.2), "onnxruntime", False), ((0.2, 1.0), "torch", True)):
        choices.unlink(missing_ok=True)
        caplog.clear()
        monkeypatch.setattr(OnnxNetwork, "_measured", lambda self, inputs, seconds=seconds: seconds)
        with caplog.at_level(logging.INFO), torch.no_grad():
            policy.runtime = None
            Agent(policy)
            assert (policy.runtime(policy.runtime.example[2]) is None) == other
        assert told(caplog.text, f"in {library}: 1", "1000.00 ms", "200.00 ms")
        monkeypatch.setattr(OnnxNetwork, "_measured", lambda *arguments: pytest.fail("measured again"))
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
        monkeypatch.setattr(OnnxNetwork, "choose", lambda self, inputs: True)
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


def test_a_read_only_network_of_another_user_is_used(quick, networks, monkeypatch, caplog):
    Agent(loaded())
    monkeypatch.setattr(graph_cache.os, "utime", lambda path: (_ for _ in ()).throw(PermissionError(path)))
    policy = loaded()
    Agent(policy)
    assert policy.runtime is not None and graph_cache.place_of(policy, policy.backbone).is_dir()


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
def test_a_batch_without_rows_leaves_onnxruntime_to_those_that_come_after(encoding, caplog):
    policy, eager, obs, computed = encoding
    nothing = {key: value[:0] for key, value in obs.items()}
    policy.encode(obs)  # measured
    computed.clear()
    with caplog.at_level(logging.WARNING):
        assert policy.encode(nothing).shape == eager.encode(nothing).shape
    policy.encode(obs)
    assert computed == [3] and not caplog.messages


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
    graphs = {name: (folder / name).read_bytes() for name in (GRAPH, CONDITIONS)}
    stored = {**graphs, graph_cache.DIGEST: (folder / graph_cache.DIGEST).read_bytes()}
    graph = stored[GRAPH]
    monkeypatch.setattr(OnnxNetwork, "files", lambda *arguments: graphs)
    monkeypatch.setattr(graph_cache, "place_of", lambda *arguments: networks / "twice")
    folder = networks / "twice"

    def exists(path):  # as another process creates it meanwhile
        folder.mkdir()
        for name, content in stored.items():
            (folder / name).write_bytes(content)
        raise FileExistsError(path)

    with monkeypatch.context() as patch:
        patch.setattr(graph_cache, "publish", lambda temporary, path: exists(path))
        assert OnnxNetwork.of(policy)
    changed_bit = bytes([*graph[:-9], graph[-9] ^ 1, *graph[-8:]])
    for damaged in (graph[: len(graph) // 2], changed_bit):
        (folder / GRAPH).write_bytes(damaged)
        (folder / graph_cache.CHOICES).write_text("{")
        policy.runtime, policy.is_loaded = None, True
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            Agent(policy)
        assert policy.runtime is None and not folder.exists() and told(caplog.text, "since", str(folder))
        policy.is_loaded = True
        Agent(policy)
        assert policy.runtime is not None and (folder / GRAPH).read_bytes() == graph
    for place in ("a file", "a link that leads nowhere"):
        shutil.rmtree(folder)
        folder.write_text("x") if place == "a file" else folder.symlink_to(networks / "nowhere")
        for is_repaired in (False, True):
            policy.runtime, policy.is_loaded = None, True
            Agent(policy)
            assert (policy.runtime is not None) == is_repaired, place
