"""Acting with one observation on one thread: in eager mode and as agents run it, beside the limit of the machine.

The limit of an evaluation is the larger of its products and of reading its weights once. Evaluations are timed
`EVALUATIONS` in a row, as a chunk by DDIM-8 makes them, and so is the limit: weights that stay in a cache between two
evaluations are read from that cache by both.
"""

from __future__ import annotations

import copy
import json
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import setting
from benchmarks.arithmetic import one_product
from benchmarks.image_policy import SPECS, policy, record
from benchmarks.kinds_of_work import shares
from benchmarks.measure import Case, Options, Timing, compare, cpu_seconds
from dp_prior.diffusion.draw import Draw
from dp_prior.diffusion.sampler import DDIM
from dp_prior.inference.agent import Agent
from dp_prior.networks.backbones.dit import DiTConfig
from dp_prior.tasks.policy import DiffusionPolicy
from dp_prior.tensors.randomness import Randomness
from dp_prior_robot.export import graph_cache, onnx_runtime
from dp_prior_robot.export.example_rows import observations
from dp_prior_robot.export.onnx_part import GRAPH, OnnxPart

EVALUATIONS = 8
DTYPES = {"": torch.float32, ", bf16 weights": torch.bfloat16}
ONNX_PRODUCTS = {"Conv", "FusedConv", "ConvTranspose", "Gemm", "FusedGemm", "MatMul", "FusedMatMul"}
EAGER, AS_AGENTS = "eager", "as agents run it"
QUICK_UNET = ("task.backbone.down_dims=[16,32]", "task.backbone.n_groups=4")


class Work(NamedTuple):
    """Work of a policy that acts, in two ways.

    Attributes:
        network: whose weights an evaluation reads.
        eager: does it in torch.
        chosen: does it as agents do.
        flops: of one evaluation.
        times: how often one call of either does the work whose time is given.
        is_one_graph: whether agents compute all evaluations of a chunk by one graph.
    """

    network: nn.Module
    eager: Callable[[], object]
    chosen: Callable[[], object]
    flops: int
    times: int = EVALUATIONS
    is_one_graph: bool = False


def parts(options: Options) -> dict[str, Callable[[], list[Case]]]:
    """Functions that measure an evaluation of each network, and a whole chunk of the main job."""
    works = {
        "UNet": (partial(setting.policy, options), _evaluation),
        "small UNet": (partial(_recipe, "pusht_state", options), _evaluation),
        "DiT": (partial(setting.policy, options, _dit(options)), _evaluation),
        "encoder of images": (partial(_camera_policy, options), _encoding),
        "main job, one chunk by DDIM-8": (partial(_recipe, "pusht_state", options), _chunk),
        "published image policy, one chunk by DDIM-8": (partial(_published_policy, options), _chunk),
    }
    return {
        f"{name}, acting{kind}": partial(_cases, f"{name}, acting{kind}", create, work, dtype, options)
        for name, (create, work) in works.items()
        for kind, dtype in DTYPES.items()
    }


def _dit(options: Options) -> DiTConfig:
    return DiTConfig(embed_dim=32, n_layers=1) if options.quick else DiTConfig()


def _recipe(name: str, options: Options) -> DiffusionPolicy:
    """A recipe of `configs/policy` without training."""
    return policy(record(None, QUICK_UNET if options.quick else (), name), SPECS[name])


def _camera_policy(options: Options) -> DiffusionPolicy:
    """The published image policy with a small UNet, of which nothing is measured."""
    quick = ("task.encoders.camera.width=16", "task.encoders.camera.blocks=[1,1]") if options.quick else ()
    return policy(record((16, 32), quick))


def _published_policy(options: Options) -> DiffusionPolicy:
    """The published image policy, with weights of 1 GB."""
    return _camera_policy(options) if options.quick else policy(record())


def _cases(
    name: str,
    create: Callable[[], DiffusionPolicy],
    work_of: Callable[[DiffusionPolicy, DiffusionPolicy], Work],
    dtype: torch.dtype,
    options: Options,
) -> list[Case]:
    eager = create().eval().requires_grad_(False)
    for parameter in eager.parameters():
        if not parameter.any():  # an exported graph stores equal tensors once, and reads them once
            parameter.normal_(std=0.02)
    eager.cast_weights(dtype)
    with torch.no_grad(), _accelerated(eager) as chosen:
        work = work_of(eager, chosen)
        n_weights = sum(parameter.numel() for parameter in work.network.parameters())
        limits = [_repeated(_reading(n_weights * dtype.itemsize), EVALUATIONS)]
        limits += [one_product(EVALUATIONS * work.flops, dtype)]
        variants = {"limit": max(limits, key=_seconds), EAGER: work.eager, AS_AGENTS: work.chosen}
        is_alone = torch.get_num_threads() == 1
        timings = compare(variants, options.times(15), 1e3 / work.times, cpu_seconds if is_alone else None)
        lines = ", ".join(f"{kind} {share:.0%}" for kind, share in shares({"": work.eager}, options.times(3)).items())
        graph = graph_of(chosen.encoding if work.network is eager.encoder else chosen.runtime)
        limit_s, whole_s = (timings[way].median * work.times / 1e3 / EVALUATIONS for way in ("limit", AS_AGENTS))
        if work.is_one_graph:
            kernels = "the evaluations of a chunk as one graph"
        else:
            nodes = None if graph is None else node_seconds(graph, options.times(50))
            kernels = "in torch" if nodes is None else described(nodes, limit_s, whole_s)
    about = f"{n_weights / 1e6:.3g} M weights, {work.flops / 1e9:.3g} GFLOP an evaluation"
    note = f"{fractions(timings)}; {about}; {EAGER}: {lines}; {AS_AGENTS}: {kernels}"
    return [Case(name, "CPU ms" if is_alone else "ms", timings, note=note)]


def graph_of(part: OnnxPart | None) -> Path | None:
    """The file of the graph that an agent runs in every evaluation; None for a part that stays in torch."""
    is_onnx = part is not None and part.choose(part.example)
    return part._folder / GRAPH if is_onnx else None


def node_seconds(graph: Path, repeats: int) -> list[tuple[str, float]]:
    """The kind of each operator of a graph and the shortest of its times, for one row of random inputs."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.enable_profiling, options.log_severity_level = (
        torch.get_num_threads(),
        True,
        3,
    )
    options.profile_file_prefix = str(graph.with_suffix(""))
    session = onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
    types = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(uint8)": np.uint8}
    inputs = {}
    for value in session.get_inputs():
        shape = [size if isinstance(size, int) else 1 for size in value.shape]
        inputs[value.name] = np.random.default_rng(0).integers(0, 2, shape).astype(types[value.type])
    for _ in range(repeats):
        session.run(None, inputs)
    return fastest_of(json.loads(Path(session.end_profiling()).read_text()))


def fastest_of(events: list[dict[str, Any]]) -> list[tuple[str, float]]:
    """The kind of each operator and the shortest of its times in seconds, of a profile of onnxruntime, whose clock runs
    on while other processes have the core."""
    times: dict[tuple[str, str], list[float]] = {}
    for event in events:
        if event["cat"] == "Node" and event["name"].endswith("_kernel_time"):
            times.setdefault((event["args"]["op_name"], event["name"]), []).append(event["dur"] / 1e6)
    return [(kind, min(values)) for (kind, _), values in times.items()]


def described(nodes: list[tuple[str, float]], limit_s: float, whole_s: float) -> str:
    """What the products of a graph reach of the limit, and how long the rest of an evaluation takes, as text.

    Args:
        whole_s: of an evaluation without a profile, which doubles the time of small operators.
    """
    products = sum(seconds for kind, seconds in nodes if kind in ONNX_PRODUCTS)
    count = sum(kind not in ONNX_PRODUCTS for kind, _ in nodes)
    rest = 1e6 * (whole_s - products) / count
    return f"products alone {limit_s / products:.2f} of the limit, {count} other operators {rest:.2g} microseconds each"


def fractions(timings: dict[str, Timing]) -> str:
    """The share of the limit that each way of acting reaches, as text."""
    limit, *ways = timings
    reached = {way: timings[limit].median / timings[way].median for way in ways}
    return "of the limit " + ", ".join(f"{share:.3f} {way}" for way, share in reached.items())


def _evaluation(eager: DiffusionPolicy, chosen: DiffusionPolicy) -> Work:
    """Evaluations of the backbone."""
    obs = observations(eager, 0, 1)
    tokens = eager.encode(obs).float()
    x_t, t = torch.randn(1, *eager.x_shape), torch.tensor([50])
    eager_network, chosen_network = eager.network(tokens), chosen.network(tokens)
    random = Randomness.from_counts(0, "benchmark", torch.arange(1))
    at_once = partial(chosen.sampling or _nothing, obs, x_t, random, Draw(DDIM(steps=EVALUATIONS)))
    is_one_graph = at_once() is not None
    return Work(
        eager.backbone,
        _repeated(lambda: eager_network(x_t, t), EVALUATIONS),
        at_once if is_one_graph else _repeated(lambda: chosen_network(x_t, t), EVALUATIONS),
        flops(lambda: eager.backbone(x_t, t, tokens)),
        is_one_graph=is_one_graph,
    )


def _nothing(*arguments: object) -> None:
    return None


def _encoding(eager: DiffusionPolicy, chosen: DiffusionPolicy) -> Work:
    """Encodings of an observation with a camera."""
    obs = observations(eager, 0, 1)
    return Work(
        eager.encoder,
        _repeated(lambda: eager.encode(obs), EVALUATIONS),
        _repeated(lambda: chosen.encode(obs), EVALUATIONS),
        flops(lambda: eager.encode(obs)),
    )


def _chunk(eager: DiffusionPolicy, chosen: DiffusionPolicy) -> Work:
    """A chunk from an observation, by an agent, which checks the observation and judges the actions."""
    obs = {key: value[0].numpy() for key, value in observations(eager, 0, 1).items()}
    agents = [Agent(acting_policy, sampler=DDIM(steps=EVALUATIONS)) for acting_policy in (eager, chosen)]
    for agent in agents:
        agent.reset(0)
        agent.infer(obs)
    eager_chunk, chosen_chunk = (partial(agent.infer, obs) for agent in agents)
    return _evaluation(eager, chosen)._replace(eager=eager_chunk, chosen=chosen_chunk, times=1)


@contextmanager
def _accelerated(eager: DiffusionPolicy) -> Iterator[DiffusionPolicy]:
    """A copy as agents have it after its first chunk, which they check; its exported network is deleted at the end."""
    chosen = copy.deepcopy(eager)
    chosen.is_loaded = True
    cache = graph_cache.CACHE
    with tempfile.TemporaryDirectory() as place:
        graph_cache.CACHE = Path(place)
        try:
            onnx_runtime.accelerate(chosen)
            chosen.predict(observations(chosen, 0, 1), Randomness.from_counts(0, "benchmark", torch.arange(1)))
            yield chosen
        finally:
            graph_cache.CACHE = cache


def flops(compute: Callable[[], object]) -> int:
    """Floating-point operations of the products in some work, in the form in which the counter knows every product:
    in bfloat16, with attention as two products."""
    in_place = {torch.ops.aten.addmm_: lambda _, left, right, **__: 2 * math.prod(left) * right[-1]}  # unknown to it
    counter = FlopCounterMode(display=False, custom_mapping=in_place)
    with counter, torch.autocast("cpu", torch.bfloat16), sdpa_kernel(SDPBackend.MATH):
        compute()
    return counter.get_total_flops()


def _repeated(work: Callable[[], object], times: int) -> Callable[[], None]:
    def repeat() -> None:
        for _ in range(times):
            work()

    return repeat


def _reading(n_bytes: int) -> Callable[[], Tensor]:
    """The sum of as many bytes of float32. Of the reductions and products of a vector none reads up to 30 MB faster;
    the maximum of 130 MB took up to a fifth less."""
    weights = torch.randn(max(1, n_bytes // 4))
    return lambda: weights.sum()


def _seconds(work: Callable[[], object]) -> float:
    """Of the fastest of a few calls."""
    times = []
    for _ in range(5):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return min(times)
