"""A graph maps arrays by name, from a file or its content; results that differ by more than rounding are told."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dp_prior_robot.export import sessions
from dp_prior_robot.export.sessions import LARGEST_ERROR, Graph, disagreement, median_seconds
from tests.messages import told
from tests.plugins.dp_prior_robot.export.policies import needs_onnx


@needs_onnx
def test_a_graph_is_read_from_a_file_or_from_its_content(tmp_path):
    from onnx import TensorProto, helper

    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xyz"]
    node = helper.make_node("Sub", ["x", "y"], ["z"])
    model = helper.make_model(
        helper.make_graph([node], "g", values[:2], values[2:]),
        opset_imports=[helper.make_opsetid("", 20)],
        ir_version=9,
    )
    (tmp_path / "graph.onnx").write_bytes(model.SerializeToString())
    arrays = {"y": np.array([1, 2], np.float32), "x": np.array([5, 7], np.float32), "unread": np.zeros(3)}
    for source in (tmp_path / "graph.onnx", model.SerializeToString()):
        graph = Graph(source)
        assert graph.inputs == ["x", "y"] and graph(arrays)["z"].tolist() == [4, 5]


@pytest.mark.parametrize("largest", [0.5, 1.0, 30.0])
def test_an_error_is_measured_by_the_largest_element_of_at_least_1(largest):
    expected = torch.tensor([largest, -largest / 2])
    allowed = LARGEST_ERROR * max(1.0, largest)
    assert disagreement(expected, expected + 0.5 * allowed) == ""
    assert told(disagreement(expected, expected + 3 * allowed), "onnxruntime", f"{allowed:.2g}")


def test_what_is_not_a_number_is_a_disagreement():
    assert disagreement(torch.zeros(2), torch.tensor([0.0, math.nan]))


@pytest.mark.parametrize(("least_turns", "least_s", "n_turns"), [(5, 0.0, 5), (3, 1.0, 8)])
def test_two_ways_take_turns_until_there_are_enough_turns_and_seconds(monkeypatch, least_turns, least_s, n_turns):
    now, calls = [0.0], []

    def way(name, times_s):
        def call():
            calls.append(name)
            now[0] += times_s[(calls.count(name) - 1) % len(times_s)]

        return call

    monkeypatch.setattr(sessions, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    ways = way("first", [0.08]), way("second", [0.05, 0.05, 0.05, 0.05, 0.03])  # an outlier leaves the median
    assert median_seconds(ways, least_turns, least_s) == pytest.approx((0.08, 0.05))
    assert calls == ["first", "second"] * n_turns
