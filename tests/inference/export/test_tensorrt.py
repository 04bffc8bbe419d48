"""Every operator of an export, with the type that it is applied to, is in TensorRT's published table.

No graph is run by TensorRT here; the table's restrictions on shapes and constants are not checked.
"""

import pytest

from dp_prior.inference.export.graph_files import graph_file
from dp_prior.inference.export.graph_options import GraphOptions
from dp_prior.inference.export.unrolled import unrolled_files
from dp_prior.inference.export.write import document, graph_parts
from tests.extras import needs
from tests.faults import assert_none
from tests.inference.export.policies import CAMERA, SPEC, build
from tests.inference.export.tensorrt import TENSORRT_8_6, TENSORRT_10_0

needs("onnxscript", "onnx")

TYPES = {1: "FP32", 10: "FP16", 6: "INT32", 7: "INT64", 2: "UINT8", 9: "BOOL"}
TABLES = {20: TENSORRT_10_0, 17: TENSORRT_8_6}
"""By opset: the newest one that the table's page names."""

UNET = {"backbone": {"type": "unet1d", "down_dims": [16, 32], "step_embed_dim": 16}}
DIT = {"backbone": {"type": "dit", "embed_dim": 32, "n_layers": 1, "n_heads": 2, "step_embed_dim": 16}}
TRANSFORMER = {"backbone": {"type": "transformer", "embed_dim": 32, "n_layers": 1, "n_heads": 2}}
RESNET = {"encoders": {"camera": {"type": "resnet", "width": 16, "blocks": [1, 1]}}}
KINDS = {
    "state, mlp": (SPEC, {}),
    "state, unet1d": (SPEC, UNET),
    "state, dit": (SPEC, DIT),
    "state, transformer": (SPEC, TRANSFORMER),
    "camera, resnet": (CAMERA, RESNET),
}


def unsupported(model, table):
    """The operators of a model that a table lacks, or lacks for the type of their first input."""
    from onnx import shape_inference

    graph = shape_inference.infer_shapes(model).graph
    known = [*graph.value_info, *graph.input, *graph.output]
    types = {one.name: one.type.tensor_type.elem_type for one in known}
    types |= {one.name: one.data_type for one in graph.initializer}
    supported = {name: row.split() for row, names in table.items() for name in names.split()}
    for node in graph.node:
        kind = TYPES[types[node.input[0]]] if node.input else "FP32"
        if kind == "INT64" and table is TENSORRT_8_6:
            kind = "INT32"  # its page: INT64 is cast down
        if kind not in supported.get(node.op_type, []):
            yield f"{node.op_type} of {kind}, which is {supported.get(node.op_type, 'not there')}"


def graphs(kind, options):
    import onnx

    spec, task = KINDS[kind]
    policy = build(spec, **task)
    if options.precision == "fp16":
        import torch

        policy.cast_weights(torch.float16)
    files = {
        f"{name}.onnx": graph_file(graph, inputs, "onnx", names, options)
        for name, graph, inputs, names in graph_parts(policy, options)
    }
    if options.unroll:
        files |= unrolled_files(files, document(policy, policy.sampler, options))
    return {name: onnx.load_from_string(content) for name, content in files.items()}


def check(kind, options):
    table = TABLES[options.opset or 20]
    made = graphs(kind, options)
    assert_none(
        f"{kind}, {name}: {one}" for name, model in made.items() for one in sorted({*unsupported(model, table)})
    )


def test_a_small_policy_has_operators_of_the_table_only():
    check("state, mlp", GraphOptions(opset=17, precision="fp16", unroll=True))


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("opset", [20, 17])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_policy_has_operators_of_the_table_only(kind, opset, precision):
    check(kind, GraphOptions(opset=opset, precision=precision, unroll=True))


def test_an_operator_or_a_type_that_is_not_in_the_table_is_found():
    from onnx import parser

    text = """<ir_version: 8, opset_import: ["": 17]>
              g (float[2] x, uint8[2] p) => (float[2] y, uint8[1] q) <int64[1] i = {0}>
              { y = Hardmax(x) q = Gather(p, i) }"""
    found = [*unsupported(parser.parse_model(text), TENSORRT_8_6)]
    assert len(found) == 2 and "Hardmax of FP32" in found[0] and "Gather of UINT8" in found[1], found
