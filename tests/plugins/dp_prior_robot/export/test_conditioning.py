"""Both parts of a divided graph compute the whole graph, and a chunk reads the weights of its condition once."""

import numpy as np
import pytest

from dp_prior_robot.export.conditioning import MOST_ROWS, ChunkConditions, divided
from tests.plugins.dp_prior_robot.export.policies import needs_onnx

GRAPH = """<ir_version: 9, opset_import: ["" : 20]>
network (float[ROWS, 4, 2] x_t, int64[ROWS] t, float[ROWS, 1, 3] tokens) => (float[ROWS, 4, 2] output)
    <float[3, 4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, float[2, 2] v = {1, -1, 2, 3},
     int64[3] to_rows = {-1, 1, 1}, float[ROWS, 1, 4] scaled, float[ROWS, 1, 2] shift, float[ROWS, 1, 2] scale> {
        time = Cast <to = 1> (t)
        column = Reshape(time, to_rows)
        read = MatMul(tokens, w)
        scaled = Mul(read, column)
        shift, scale = Split <axis = 2, num_outputs = 2> (scaled)
        shape = Shape(tokens)
        product = MatMul(x_t, v)
        modulated = Mul(product, scale)
        output = Add(modulated, shift)
    }"""


def network(x_t, t, tokens):
    read = tokens @ np.arange(1, 13, dtype=np.float32).reshape(3, 4) * t[:, None, None]
    return x_t @ np.array([[1, -1], [2, 3]], np.float32) * read[..., 2:] + read[..., :2]


@needs_onnx
def test_the_parts_compute_the_whole_and_the_border_passes_one_tensor():
    import onnx
    from onnx.reference import ReferenceEvaluator

    condition, step = map(ReferenceEvaluator, divided(onnx.parser.parse_model(GRAPH)))
    assert condition.input_names == ["t", "tokens"] and condition.output_names == ["scaled"]
    assert {*step.input_names} == {"x_t", "tokens", "scaled"} and step.output_names == ["output"]
    random = np.random.default_rng(0)
    x_t, tokens = (random.normal(size=shape).astype(np.float32) for shape in ((5, 4, 2), (5, 1, 3)))
    t = np.arange(5)
    [scaled] = condition.run(None, {"t": t, "tokens": tokens})
    [output] = step.run(None, {"x_t": x_t, "tokens": tokens, "scaled": scaled})
    np.testing.assert_allclose(output, network(x_t, t, tokens), rtol=1e-5)


@needs_onnx
@pytest.mark.parametrize("declaration", ["float[8, 1, 4] scaled, ", "float[N, 1, 4] scaled, ", ""])
def test_a_value_that_has_no_row_for_each_of_the_inputs_is_computed_at_every_step(declaration):
    import onnx
    from onnx.reference import ReferenceEvaluator

    text = GRAPH.replace(
        "float[ROWS, 1, 4] scaled, ", declaration + "float[ROWS, 1, 1] column, float[ROWS, 1, 4] read, "
    )
    condition, step = map(ReferenceEvaluator, divided(onnx.parser.parse_model(text)))
    assert condition.output_names == ["column", "read"] and {*step.input_names} == {"x_t", "tokens", "column", "read"}


def counting():
    calls = []

    def compute(t, tokens):
        calls.append([*map(int, t)])
        return {"sums": tokens.sum((1, 2)) * 1000 + t}

    return calls, compute


def assert_values(conditions, compute, path, tokens):
    for timestep in path:
        values = conditions.at(np.full(len(tokens), timestep), tokens, compute)
        np.testing.assert_array_equal(values["sums"], tokens.sum((1, 2)) * 1000 + timestep)


def test_a_chunk_computes_the_timesteps_of_the_chunk_before_at_once():
    calls, compute = counting()
    tokens = np.arange(6.0).reshape(2, 1, 3)
    first = ChunkConditions([])
    assert_values(first, compute, [90, 60, 30], tokens)
    assert calls == [[90, 90], [60, 60], [30, 30]]
    calls.clear()
    second = ChunkConditions(first.visited)
    assert_values(second, compute, [90, 60, 60, 30], tokens)
    assert calls == [[90, 90, 60, 60, 30, 30]] and second.visited == [90, 60, 60, 30]
    calls.clear()
    assert_values(ChunkConditions(second.visited), compute, [95, 60, 10], tokens)
    assert calls == [[95, 95], [60, 60, 30, 30], [10, 10]], "another sampler"


@pytest.mark.parametrize("rows", [1, 10, MOST_ROWS, 2 * MOST_ROWS])
def test_a_batch_of_timesteps_has_a_bounded_number_of_rows(rows):
    calls, compute = counting()
    path = [*range(100, 0, -1)]
    assert_values(ChunkConditions(path), compute, path, np.ones((rows, 1, 1)))
    assert max(map(len, calls)) <= max(rows, MOST_ROWS) and sum(map(len, calls)) == rows * len(path)


@pytest.mark.parametrize("rows", [1, 10, 2 * MOST_ROWS])
def test_a_chunk_holds_no_more_values_than_a_batch_has_and_computes_no_timestep_twice_in_a_row(rows):
    calls, compute = counting()
    path = [timestep for timestep in range(300, 0, -1) for _ in range(2)]
    for conditions in (ChunkConditions([]), ChunkConditions(path)):
        calls.clear()
        for timestep in path:
            assert_values(conditions, compute, [timestep], np.ones((rows, 1, 1)))
            assert rows * len(conditions._values) <= max(rows, MOST_ROWS)
        assert sum(map(len, calls)) == rows * 300


def test_rows_of_different_timesteps_are_computed_as_they_are():
    calls, compute = counting()
    conditions, tokens = ChunkConditions([5, 4]), np.ones((2, 1, 1))
    np.testing.assert_array_equal(conditions.at(np.array([5, 4]), tokens, compute)["sums"], [1005, 1004])
    assert calls == [[5, 4]] and conditions.visited == []
