"""Divides the graph of a network: the noisy chunk is an input of one part alone, the other reads the condition.

The second part is computed once per chunk, for all timesteps of the sampler as rows of one batch: its weights are read
once instead of at every evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto

MOST_ROWS = 64
"""Rows of the batch in which the conditions of several timesteps are computed."""

Arrays = dict[str, np.ndarray]
Compute = Callable[[np.ndarray, np.ndarray], Arrays]
"""Maps t (n,) int64 and tokens (n, N, D) to what the conditioning graph computes from them, by name, n rows each."""


def divided_graph(content: bytes) -> tuple[bytes, bytes]:
    """Divide a graph as bytes, see `divided`."""
    import onnx

    condition, step = divided(onnx.load_from_string(content))
    return condition.SerializeToString(), step.SerializeToString()


def divided(model: ModelProto) -> tuple[ModelProto, ModelProto]:
    """Divide a graph with the inputs `x_t`, `t` and `tokens`.

    Returns:
        a graph with the inputs `t` and `tokens`, and a graph with the outputs of the whole, whose inputs are `x_t`, the
        outputs of the first graph, and `t` or `tokens` where a node reads them. All have the same number of rows.
    """
    from onnx import helper

    graph = model.graph
    of_step = _of_step(graph)
    parts = {True: [], False: []}
    for node in graph.node:
        parts[of_step[node.output[0]]].append(node)
    computed = set().union(*(node.output for node in parts[False]))
    read = set().union(*(node.input for node in parts[True]))
    declared = {value.name: value for value in (*graph.value_info, *graph.input)}
    border = [declared[name] for name in sorted(computed & read)]
    inputs = [value for value in graph.input if value.name in read or value.name == "x_t"]

    def part(nodes: list[NodeProto], inputs: list[ValueInfoProto], outputs: list[ValueInfoProto]) -> ModelProto:
        names = set().union(*(node.input for node in nodes))
        weights = [weight for weight in graph.initializer if weight.name in names]
        part_graph = helper.make_graph(nodes, graph.name, inputs, outputs, weights)
        return helper.make_model(
            part_graph,
            opset_imports=[*model.opset_import],
            ir_version=model.ir_version,
            functions=[*model.functions],
        )

    conditions = [value for value in graph.input if value.name != "x_t"]
    return part(parts[False], conditions, border), part(parts[True], [*inputs, *border], [*graph.output])


def _of_step(graph: GraphProto) -> dict[str, bool]:
    """Map the name of a value to whether every step computes it: from x_t, or since the value has no rows."""
    of_step = {"x_t": True, "t": False, "tokens": False}
    readers: dict[str, list[NodeProto]] = {}
    for node in graph.node:
        sources = [of_step[name] for name in node.input if name in of_step]
        is_constant = not sources
        of_step |= dict.fromkeys(node.output, is_constant or any(sources) or node.op_type == "Shape")
        for name in node.input:
            readers.setdefault(name, []).append(node)
    has_rows = _values_with_rows(graph)
    for node in reversed(graph.node):
        reading = sum((readers.get(name, []) for name in node.output), [])
        by_steps = [of_step[reader.output[0]] for reader in reading]
        is_split = node.op_type == "Split" and all(by_steps)  # one tensor is passed in place of several
        if is_split or (any(by_steps) and not has_rows.issuperset(node.output)):
            of_step |= dict.fromkeys(node.output, True)
    return of_step


def _values_with_rows(graph: GraphProto) -> set[str]:
    """Names of the values of a declared type whose first dimension is the number of rows."""
    declared = {value.name: value.type.tensor_type for value in (*graph.value_info, *graph.input)}
    rows = declared["x_t"].shape.dim[0].dim_param
    return {name for name, kind in declared.items() if len(kind.shape.dim) and kind.shape.dim[0].dim_param == rows}


class ChunkConditions:
    """What the conditioning graph computes in a chunk, by timestep; at most as many values as a batch has."""

    def __init__(self, path: Sequence[int]):
        """Args: path: the timesteps of an earlier chunk in order, which this one is expected to visit too."""
        self._path = path
        self._values: dict[int, Arrays] = {}
        self.visited: list[int] = []

    def at(self, t: np.ndarray, tokens: np.ndarray, compute: Compute) -> Arrays:
        """The values for a timestep, computed together with those of the timesteps that follow on the path.

        Args:
            t: (B,) int64.
            tokens: (B, N, D), the same at every call.
        """
        timestep, rows = int(t[0]), len(tokens)
        if not (t == timestep).all():
            return compute(t, tokens)
        self.visited.append(timestep)
        if timestep not in self._values:
            following = self._path[self._path.index(timestep) :] if timestep in self._path else [timestep]
            most = max(1, MOST_ROWS // rows)
            timesteps = [*dict.fromkeys(following)][:most]
            if len(self._values) + len(timesteps) > most:  # all timesteps of many rows would take gigabytes
                self._values.clear()
            repeated = np.tile(tokens, (len(timesteps), 1, 1))
            values = compute(np.repeat(np.array(timesteps, t.dtype), rows), repeated)
            for index, computed in enumerate(timesteps):
                own_rows = slice(index * rows, (index + 1) * rows)
                self._values[computed] = {name: value[own_rows] for name, value in values.items()}
        return self._values[timestep]
