"""`sampler.compile` "auto": on a CPU nothing changes; the ways of a GPU are taken by forcing the device's choice.

The backend `aot_eager` runs torch's own kernels, as exact as eager and no faster: a clock of the test says which is.
"""

import contextlib
import copy
import logging
import pickle

import numpy as np
import pytest
import torch

from dp_prior.diffusion.sampler import DDIM, Heun
from dp_prior.inference import plans
from dp_prior.inference.agent import Agent
from dp_prior.inference.chunking import Guided, Prefix
from dp_prior.inference.load import load_policy
from dp_prior.inference.vector_agent import VectorAgent
from dp_prior.tasks.policy_config import PolicyConfig
from dp_prior.tensors.batch import Spec
from dp_prior.tensors.normalizer import Statistics
from dp_prior.tensors.randomness import Randomness
from dp_prior_client import PolicyClient
from dp_prior_client.realtime import RealtimeAgent
from dp_prior_robot import compiled_network
from tests.messages import told

SPEC = Spec(x_shape=(8, 2), cond_shapes={"position": (2, 2)})
DIFFUSION = {"schedule": {"type": "cosine", "steps": 10}, "objective": {"type": "v"}}
UNET = {"type": "unet1d", "down_dims": [8, 16], "n_groups": 4, "step_embed_dim": 8}
POLICIES = {
    "plain": {},
    "unet": {"backbone": UNET},
    "prefix": {"prefix": {"max_delay": 2}},
    "guided, self-conditioned": {
        "cond_dropout": {"position": 0.1},
        "diffusion": {**DIFFUSION, "self_condition": 0.5, "guidance": {"scale": 2.0}},
    },
}
BROKEN = ("sampler.compile", "eager")


class Backend:
    """Stands in for torch's compiler: `aot_eager`, or a function of the graph; and for the clock."""

    def __init__(self, compile_function):
        self.compile_function, self.graph, self.change = compile_function, None, None
        self.eager_s, self.compiled_s = 1.0, 0.5

    def compile(self, function, *, options, dynamic):
        fast = self.compile_function(function, backend=self.graph or "aot_eager", dynamic=dynamic, fullgraph=True)
        return fast if self.change is None else lambda *inputs: self.change(fast(*inputs))

    @property
    def regions(self):
        return torch._dynamo.utils.counters["stats"]["unique_graphs"]


@pytest.fixture
def gpu(monkeypatch):
    """A CPU that is taken for a device that compiles, where an eager evaluation takes a second and a compiled one half
    of that."""
    backend = Backend(torch.compile)
    monkeypatch.setattr(torch, "compile", backend.compile)
    monkeypatch.setattr(plans, "COMPILED", {"cpu"})
    measured = compiled_network._measured

    def timed(evaluate, inputs):
        is_eager = isinstance(evaluate, torch.nn.Module)
        return measured(evaluate, inputs)[0], backend.eager_s if is_eager else backend.compiled_s

    monkeypatch.setattr(compiled_network, "_measured", timed)
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    yield backend
    torch.compiler.reset()


def build(name="plain", compile_mode="auto"):
    torch.manual_seed(0)
    record = {
        "horizon": 8,
        "n_action_steps": 4,
        "backbone": {"type": "mlp", "hidden_dim": 16, "n_blocks": 1, "step_embed_dim": 8},
        "diffusion": DIFFUSION,
        "sampler": {"type": "ddim", "steps": 3, "compile": compile_mode},
    }
    policy = PolicyConfig.model_validate({**record, **POLICIES[name]}).create(SPEC)
    values = np.random.default_rng(0).uniform(-1, 1, (64, 2)).astype(np.float32)
    policy.normalizer.fit({"x": Statistics.of(values), "position": Statistics.of(values)})
    return policy.eval().requires_grad_(False)


def observed(step, rows=None):
    shape = (2,) if rows is None else (rows, 2)
    return {"position": np.random.default_rng(step).uniform(-1, 1, shape).astype(np.float32)}


def acted(agent, count=9):
    agent.reset(3)
    return np.stack([agent.act(observed(step)) for step in range(count)])


def acted_together(agent, rows, count=5):
    agent.reset(range(rows))
    return np.stack([agent.act(observed(step, rows)) for step in range(count)])


def assert_alike(actions, expected):
    np.testing.assert_allclose(actions, expected, rtol=0, atol=2e-5)


def test_on_a_cpu_auto_is_off_bit_for_bit(monkeypatch):
    monkeypatch.setattr(torch, "compile", None)
    policy = build()
    actions = acted(Agent(policy))
    assert policy.region is None
    assert np.array_equal(actions, acted(Agent(build(compile_mode="off"))))


@pytest.mark.parametrize(
    "name", [name if name == "plain" else pytest.param(name, marks=pytest.mark.slow) for name in POLICIES]
)
def test_an_agent_compiles_one_region_at_its_start(gpu, name, caplog):
    policy, eager = build(name), build(name, "off")
    with caplog.at_level(logging.INFO):
        agent = Agent(policy)
    assert gpu.regions == 1 and policy.region.reason == ""
    assert told(caplog.text, "sampler.compile", 500, "1e+03")
    expected = acted(Agent(eager))
    assert_alike(acted(agent), expected)
    assert_alike(acted(Agent(policy)), expected)
    assert gpu.regions == 1, "a second agent, other observations and other steps compile nothing"
    assert eager.region is None


def evaluations(policy, monkeypatch):
    """Counts the eager evaluations of a policy's network from now on."""
    calls, forward = [], policy.backbone.forward
    monkeypatch.setattr(policy.backbone, "forward", lambda *inputs: calls.append(len(inputs[0])) or forward(*inputs))
    return calls


@pytest.mark.slow
def test_after_the_first_observation_no_evaluation_is_eager(gpu, monkeypatch):
    policy = build()
    agent = Agent(policy)
    eager = evaluations(policy, monkeypatch)
    acted(agent, 1)
    assert eager == []
    policy.region._unchecked.add(1)
    acted(agent, 1)
    assert eager == [1], "the first observation is compared"


def test_a_sampler_that_says_off_stays_off_beside_one_that_says_auto(gpu, monkeypatch):
    policy = build()
    Agent(policy)
    eager = evaluations(policy, monkeypatch)
    acted(Agent(policy, sampler=Heun(steps=2, compile="off")), 1)
    assert eager == [1] * 3
    eager.clear()
    acted(Agent(policy, sampler=Heun(steps=2)), 1)
    assert eager == []
    stored = build(compile_mode="off")
    acted(Agent(stored))
    assert stored.region is None and gpu.regions == 1


@pytest.mark.parametrize("fault", ["fails", "disagrees", "slow", "first observation", "not finite"])
def test_a_compiler_that_fails_disagrees_or_gains_nothing_is_told_in_one_line(gpu, caplog, fault):
    def failing(graph, inputs):
        raise RuntimeError("no g++ here:\n  a second line")

    parts = {
        "fails": ("RuntimeError", "no g++ here"),
        "disagrees": ("0.0001",),
        "slow": ("2e+03", "1e+03"),
        "first observation": ("0.0001",),
        "not finite": ("nan",),
    }
    offset = {"value": {"disagrees": 1e-4, "not finite": np.nan}.get(fault, 0.0)}
    gpu.change = lambda output: output + offset["value"]
    gpu.compiled_s = 2.0 if fault == "slow" else 0.5
    if fault == "fails":
        gpu.graph = failing
    policy = build()
    agent = Agent(policy)
    if fault == "first observation":
        assert policy.region.reason == ""
        policy.region._unchecked.add(1)
        offset["value"] = 1e-4
    assert np.array_equal(acted(agent), acted(Agent(build(compile_mode="off"))))
    (record,) = [line for line in caplog.records if told(line.getMessage(), *BROKEN, *parts[fault])]
    assert "\n" not in record.getMessage()
    before = gpu.regions
    acted(Agent(policy))
    assert gpu.regions == before, "what has failed is not tried again"


def test_compiled_code_that_breaks_while_a_robot_moves_costs_no_action(gpu, caplog):
    policy = build()
    agent = Agent(policy)
    policy.region._compiled[1] = lambda *inputs: (_ for _ in ()).throw(RuntimeError("driver 577"))
    assert np.array_equal(acted(agent), acted(Agent(build(compile_mode="off"))))
    assert told(caplog.text, *BROKEN, "RuntimeError", "driver 577")


def test_episodes_in_lockstep_compile_once_it_pays_and_fewer_rows_are_filled_up(gpu, monkeypatch):
    monkeypatch.setattr(compiled_network, "WORTH_EVALUATIONS", 5)
    policy, eager = build(), build(compile_mode="off")
    agent, plain = VectorAgent(policy), VectorAgent(eager)
    for rows, regions in ((6, 0), (6, 1), (6, 1), (4, 1), (1, 1)):
        assert_alike(acted_together(agent, rows, 1), acted_together(plain, rows, 1))
        assert gpu.regions == regions, rows
    eager_rows = evaluations(policy, monkeypatch)
    acted_together(agent, 5)
    assert eager_rows == []


@pytest.mark.slow
def test_few_numbers_of_rows_are_compiled(gpu, monkeypatch):
    monkeypatch.setattr(compiled_network, "WORTH_EVALUATIONS", 0)
    policy = build()
    agent = VectorAgent(policy)
    for rows in range(1, 9):
        acted_together(agent, rows, 1)
    assert gpu.regions == compiled_network.MOST_SIZES
    acted_together(VectorAgent(policy), 3)
    assert gpu.regions == compiled_network.MOST_SIZES


def test_a_network_that_is_differentiated_trained_or_cast_is_eager(gpu, monkeypatch):
    policy = build()
    agent = Agent(policy, merge=Guided())
    eager = evaluations(policy, monkeypatch)
    agent.reset(0)
    prefix = np.zeros((3, 2), np.float32)
    agent._predict({"position": np.zeros((2, 2), np.float32)}, prefix, 1)
    assert len(eager) == 3
    obs = {"position": torch.zeros(1, 2, 2)}
    for state in (torch.autocast("cpu", torch.bfloat16), contextlib.nullcontext(policy.train())):
        eager.clear()
        with state, torch.no_grad():
            policy.predict(obs, Randomness.from_counts(0, "test", torch.arange(1)))
        assert len(eager) == 3


def test_weights_that_move_are_not_read_where_they_were(gpu, caplog):
    policy = build()
    agent = Agent(policy)
    for parameter in policy.parameters():
        parameter.data = 2 * parameter.data
    moved = build(compile_mode="off")
    moved.load_state_dict(policy.state_dict())
    expected = acted(Agent(moved))
    assert np.array_equal(acted(agent), expected)
    assert told(caplog.text, *BROKEN, "moved")
    region = policy.region
    assert_alike(acted(Agent(policy)), expected)  # by a region for the new place
    assert policy.region is not region and policy.region.reason == ""
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(0.5)
    assert_alike(acted(Agent(policy)), acted(Agent(build(compile_mode="off"))))


def test_weights_that_move_before_anything_is_compiled_are_no_line_in_the_log(gpu, monkeypatch, caplog):
    monkeypatch.setattr(compiled_network, "WORTH_EVALUATIONS", 3)
    policy, eager = build(), build(compile_mode="off")
    agent = VectorAgent(policy)
    for parameter in policy.parameters():
        parameter.data = parameter.data.clone()
    for regions in (0, 1):
        assert_alike(acted_together(agent, 2, 1), acted_together(VectorAgent(eager), 2, 1))
        assert gpu.regions == regions
    assert "eager" not in caplog.text


@pytest.mark.parametrize("fault", ["fails", "no compiler at all"])
def test_on_cuda_the_kernels_of_eager_mode_are_recorded_where_the_compiler_fails(gpu, monkeypatch, caplog, fault):
    def failing(*arguments, **options):
        raise RuntimeError("no triton 31")

    if fault == "fails":
        gpu.graph = failing
    else:
        monkeypatch.setattr(torch, "compile", failing)
    recorded = []

    def recording(evaluate, inputs):
        evaluate(*inputs)
        recorded.append(evaluate)
        return lambda *values: evaluate(*values)

    ways = compiled_network.CompiledNetwork._ways
    monkeypatch.setattr(compiled_network.CompiledNetwork, "_ways", lambda self, _: ways(self, torch.device("cuda")))
    monkeypatch.setattr(compiled_network, "_recorded", recording)
    policy = build()
    with caplog.at_level(logging.INFO):
        agent = Agent(policy)
    assert recorded == [policy.backbone] and policy.region.reason == ""
    assert told(caplog.text, "sampler.compile", 500, "RuntimeError", "no triton 31")
    assert np.array_equal(acted(agent), acted(Agent(build(compile_mode="off"))))


@pytest.mark.parametrize("register", ["register_forward_pre_hook", "register_forward_hook"])
def test_a_network_with_hooks_as_of_ranks_that_divide_it_is_left_alone(gpu, register):
    policy, calls = build(), []
    getattr([*policy.backbone.modules()][-1], register)(lambda *arguments: calls.append(1))
    actions = acted(Agent(policy))
    assert policy.region is None and gpu.regions == 0 and calls
    assert np.array_equal(actions, acted(Agent(build(compile_mode="off"))))


def test_copies_and_pickles_have_no_region(gpu):
    policy = build()
    Agent(policy)
    assert copy.deepcopy(policy).region is None and pickle.loads(pickle.dumps(policy)).region is None


def test_a_prefix_is_continued_by_the_same_region(gpu):
    policy, eager = build("prefix"), build("prefix", "off")
    settings = {"merge": Prefix(), "delay": 1}
    agent, plain = VectorAgent(policy, **settings), VectorAgent(eager, **settings)
    Agent(policy)
    assert_alike(acted_together(agent, 1, 12), acted_together(plain, 1, 12))
    assert gpu.regions == 1


@pytest.mark.slow
def test_a_server_and_a_realtime_agent_use_the_region_in_their_threads(gpu, monkeypatch):
    from tests.plugins.dp_prior_robot.serving.running import running

    policy, eager = build(), build(compile_mode="off")
    served, realtime = {}, {}
    for key, model in (("compiled", policy), ("eager", eager)):
        with running(model) as server, PolicyClient(f"ws://127.0.0.1:{server.port}") as client:
            client.reset(3)
            served[key] = np.stack([client.act(observed(step)) for step in range(5)])
        ticks = iter(np.arange(0, 100, 0.1))
        with RealtimeAgent(
            Agent(model), fps=10, n_obs_steps=2, n_action_steps=4, clock=lambda ticks=ticks: next(ticks)
        ) as agent:
            agent.reset()
            realtime[key] = agent.act(observed(0))
    assert_alike(served["compiled"], served["eager"])
    assert_alike(realtime["compiled"], realtime["eager"])
    assert gpu.regions == 1 and policy.region.reason == ""


def test_a_policy_loaded_as_eager_stays_eager(gpu, tmp_path):
    build().save_pretrained(tmp_path)
    policy = load_policy(tmp_path, runtime="eager")
    acted(Agent(policy))
    assert policy.region is None and gpu.regions == 0
    Agent(policy := load_policy(tmp_path))
    assert policy.region is not None and gpu.regions == 1


class Graph:
    """Stands in for a CUDA graph: computes again what was recorded, on the memory of the recording."""

    recording = None

    def __init__(self):
        self.kernels = []

    def replay(self):
        for output, evaluate, memory in self.kernels:
            output.copy_(evaluate(*memory))


def test_a_recorded_evaluation_reads_new_values_and_hands_out_copies(monkeypatch):
    """Without a GPU: the order of what `torch.cuda` is asked, and whose memory is whose."""
    stream = type("Stream", (), {"__init__": lambda self, *_: None, "wait_stream": lambda self, other: None})
    none = lambda *arguments, **options: contextlib.nullcontext()  # noqa: E731
    for name, value in {"Stream": stream, "CUDAGraph": Graph, "device": none, "stream": none}.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: stream())

    @contextlib.contextmanager
    def graph(recording, capture_error_mode):
        assert capture_error_mode == "thread_local"
        Graph.recording = recording
        yield
        Graph.recording = None

    def evaluate(*memory):
        output = memory[0] + memory[2].sum() + memory[1]
        if Graph.recording is not None:
            Graph.recording.kernels.append((output, lambda *now: now[0] + now[2].sum() + now[1], memory))
        return output

    monkeypatch.setattr(torch.cuda, "graph", graph)
    inputs = torch.zeros(2), torch.ones(2, dtype=torch.int64), torch.full((3,), 2.0)
    replay = compiled_network._recorded(evaluate, inputs)
    first = replay(*inputs)
    second = replay(inputs[0] + 5, *inputs[1:])
    assert first.tolist() == [7, 7] and second.tolist() == [12, 12] and inputs[0].tolist() == [0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["there", "missing"])
def test_with_torchs_own_compiler_an_agent_acts_alike_or_in_eager_mode(monkeypatch, caplog, compiler):
    from torch._dynamo import config as dynamo
    from torch._inductor import config as inductor

    monkeypatch.setattr(plans, "COMPILED", {"cpu"})
    measured = compiled_network._measured
    is_eager = {True: 1.0, False: 0.5}
    monkeypatch.setattr(
        compiled_network,
        "_measured",
        lambda evaluate, inputs: (measured(evaluate, inputs)[0], is_eager[isinstance(evaluate, torch.nn.Module)]),
    )
    torch.compiler.reset()
    policy = build("unet")
    settings = {"fx_graph_cache": False, "force_disable_caches": True} if compiler == "missing" else {}
    missing = {"cpp.cxx": ("/missing/g++",)} if compiler == "missing" else {}
    with inductor.patch({**settings, **missing}), dynamo.patch(suppress_errors=False):
        actions = acted(Agent(policy, sampler=DDIM(steps=4)))
    assert_alike(actions, acted(Agent(build("unet", "off"), sampler=DDIM(steps=4, compile="off"))))
    assert bool(policy.region.reason) == (compiler == "missing")
    if compiler == "missing":
        assert told(caplog.text, *BROKEN, "C++", "Triton")
    torch.compiler.reset()
