"""The limits of acting are as much arithmetic and as many bytes as the network has; no test looks at a time."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import acting
from benchmarks.arithmetic import SIDE, one_product
from benchmarks.measure import Options, Timing
from dp_prior.networks.backbones.dit import DiTConfig
from dp_prior.networks.convolution import Conv1d
from tests.messages import told


def counted(work):
    with FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


@pytest.mark.parametrize("flops", [2 * 256**2, 5_000_000, 1_073_741_824, 2 * SIDE**3])
def test_one_product_has_as_much_arithmetic_as_asked(flops):
    dtype = torch.bfloat16  # whose products torch counts
    assert counted(one_product(flops, dtype)) == pytest.approx(flops, rel=0.03)


def test_the_arithmetic_of_a_transformer_is_that_of_its_matrices_and_of_its_attention():
    horizon, tokens, dim = 16, 2, 32
    network = DiTConfig(embed_dim=dim, n_layers=3).create((horizon, 2), (tokens, 5)).eval()
    rows = {"token_in": horizon, "cond_in": tokens, "head": horizon}
    rows |= {"queries_keys_values": horizon, "attention_out": horizon, "expand": horizon, "contract": horizon}
    rows |= {"cond_keys_values": tokens}
    linears = {name: layer for name, layer in network.named_modules() if isinstance(layer, nn.Linear)}
    products = sum(2 * layer.weight.numel() * rows.get(name.split(".")[-1], 1) for name, layer in linears.items())
    attention = 3 * 2 * 2 * horizon * (horizon + tokens) * dim
    inputs = torch.randn(1, horizon, 2), torch.tensor([5]), torch.randn(1, tokens, 5)
    with torch.no_grad():
        assert acting.flops(lambda: network(*inputs)) == products + attention


@pytest.mark.parametrize(("length", "meetings"), [(4, 14), (16, 74)])
def test_the_arithmetic_of_a_convolution_counts_where_its_kernel_meets_input_forward_and_twice_backward(
    length, meetings
):
    layer, x = Conv1d(128, 256, 5), torch.randn(3, length, 128, requires_grad=True)
    once = 2 * 3 * meetings * layer.weight[:, 0].numel()
    assert acting.flops(lambda: layer(x).sum().backward()) == 3 * once


def test_fractions_are_of_the_limit():
    timings = {"limit": Timing([1.0, 3.0, 2.0]), "eager": Timing([8.0]), "as agents run it": Timing([2.5])}
    assert acting.fractions(timings) == "of the limit 0.250 eager, 0.800 as agents run it"


def test_a_profile_is_divided_into_products_and_other_operators():
    def event(kind, name, microseconds, suffix="_kernel_time"):
        return {"cat": "Node", "name": name + suffix, "dur": microseconds, "args": {"op_name": kind}}

    events = [event("MatMul", "a", time) for time in (900, 500, 700)]
    events += [event("Gemm", "b", 300), event("Add", "c", 4), event("Mul", "d", 2), event("Mul", "d", 9, "_fence")]
    nodes = acting.fastest_of([*events, {"cat": "Session", "name": "run", "dur": 10**6}])
    assert dict(nodes) == pytest.approx({"MatMul": 5e-4, "Gemm": 3e-4, "Add": 4e-6, "Mul": 2e-6})
    assert told(acting.described(nodes, 4e-4, 8.2e-4), "products", "0.50", 2, "operators", 10)


@pytest.mark.parametrize("kind", acting.DTYPES)
@pytest.mark.parametrize(("name", "times"), [("small UNet", 8), ("main job, one chunk by DDIM-8", 1)])
def test_a_row_compares_the_limit_of_eight_evaluations_with_eight_evaluations(name, times, kind, monkeypatch):
    evaluated, read = [], []
    options, dtype = Options(quick=True), acting.DTYPES[kind]

    def compare(variants, repeats, scale, clock):
        assert [*variants] == ["limit", "eager", "as agents run it"] and scale == 1e3 / times
        for way in ("eager", "as agents run it"):
            evaluated.clear()
            variants[way]()
            assert len(evaluated) == acting.EVALUATIONS
        return {way: Timing([float(turn)]) for turn, way in enumerate(variants, start=1)}

    def reading(n_bytes):
        read.append(n_bytes)
        return lambda: None

    create = acting._recipe("pusht_state", options)
    monkeypatch.setattr(acting, "_recipe", lambda name, options: create)
    monkeypatch.setattr(acting, "compare", compare)
    monkeypatch.setattr(acting, "_reading", reading)
    forward = type(create.backbone).forward
    monkeypatch.setattr(
        type(create.backbone), "forward", lambda *inputs: (evaluated.append(len(inputs)), forward(*inputs))[1]
    )
    [case] = acting.parts(options)[f"{name}, acting{kind}"]()
    n_weights = sum(parameter.numel() for parameter in create.backbone.parameters())
    assert read == [n_weights * dtype.itemsize] and f"{n_weights / 1e6:.3g} M weights" in case.note
    assert case.note.startswith("of the limit 0.500 eager, 0.333 as agents run it; ")


def test_every_network_acts_in_each_type_of_weights():
    names = acting.parts(Options(quick=True))
    assert len(names) == 6 * len(acting.DTYPES)
    assert all(f"{name}, acting{kind}" in names for name in ("UNet", "DiT", "small UNet") for kind in acting.DTYPES)
