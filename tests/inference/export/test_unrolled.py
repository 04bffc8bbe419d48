"""The sampler as one graph gives the actions of the loop over the graphs, for every kind of sampler."""

import json

import numpy as np
import pytest
import torch

from dp_prior.inference.export.example_rows import observations
from dp_prior.inference.export.exported_policy import OnnxPolicy, graph_names
from dp_prior.inference.export.graph_files import graph_file
from dp_prior.inference.export.graph_options import GraphOptions
from dp_prior.inference.export.unrolled import unrolled, unrolled_files
from dp_prior.inference.export.write import document, graph_parts
from tests.extras import needs
from tests.inference.export.policies import SAMPLERS, as_numpy, build, error
from tests.messages import naming

needs("onnxscript", "onnx")

ONE = GraphOptions(unroll=True)
POLICIES = {
    "relative": {"relative_to": "position"},
    "self-conditioned and guided": {
        "diffusion": {
            "schedule": {"type": "cosine", "steps": 10},
            "objective": {"type": "v"},
            "self_condition": 0.5,
            "guidance": {"scale": 2.0},
        },
        "cond_dropout": {"position": 0.1, "embedding": 0.1},
    },
}


def parts_of(policy, options=ONE):
    """The files of the parts, which are the same for every sampler."""
    return {
        f"{name}.onnx": graph_file(graph, inputs, "onnx", names, options)
        for name, graph, inputs, names in graph_parts(policy, options)
    }


@pytest.fixture(scope="module", params=POLICIES)
def exported(request):
    policy = build(**POLICIES[request.param])
    return policy, parts_of(policy)


def loaded(policy, sampler, files, options):
    """The export of a policy with another sampler, from its files."""
    described = json.loads(json.dumps(document(policy, sampler, options)))
    names = graph_names(described) if options.unroll else ["encoder", "denoiser"]
    return OnnxPolicy(described, {name: OnnxPolicy.graph(files[f"{name}.onnx"], threads=1) for name in names})


def test_one_graph_has_the_actions_of_the_loop_for_every_sampler(exported, capfd):
    policy, files = exported
    obs = as_numpy(observations(policy, 5, 3))
    previous = 100 * np.random.default_rng(0).random((3, 8, 2), np.float32)
    for record in SAMPLERS:
        sampler = build(sampler={**record, "renoise": 0.6}).sampler
        one = loaded(policy, sampler, unrolled_files(files, document(policy, sampler, ONE)), ONE)
        loop = loaded(policy, sampler, files, GraphOptions())
        for given in (None, previous):
            expected = loop.predict(obs, 7, previous=given)
            assert error(policy, one.predict(obs, 7, previous=given), torch.tensor(expected)) < 2e-6, (record, given)
        assert error(policy, one.predict(obs, 8), torch.tensor(loop.predict(obs, 7))) > 1e-3, "another seed"
    assert "Removing initializer" not in capfd.readouterr().err, "a weight that nothing reads"


def test_weights_are_held_once_and_every_number_of_rows_is_taken(exported):
    import onnx

    policy, files = exported
    made = unrolled_files(files, document(policy, policy.sampler, ONE))
    assert list(made) == ["cold.onnx", "warm.onnx"]
    onnx.checker.check_model(onnx.load_from_string(made["cold.onnx"]), full_check=True)
    weights = sum(one.nbytes for one in policy.backbone.parameters())
    held = sum(len(one.raw_data) for one in onnx.load_from_string(made["cold.onnx"]).graph.initializer)
    assert weights <= held < 1.5 * weights
    one = loaded(policy, policy.sampler, made, ONE)
    obs = as_numpy(observations(policy, 5, 3))
    rows = [one.predict({key: value[i : i + 1] for key, value in obs.items()}, 7)[0] for i in range(1)]
    assert error(policy, one.predict(obs, 7)[0], torch.tensor(rows[0])) < 1e-5


def test_a_sampler_that_starts_from_zeros_and_a_fixed_batch():
    flow = {"schedule": {"type": "flow", "steps": 2, "scale": 9}, "objective": {"type": "x0"}, "start": "zeros"}
    policy = build(sampler={"type": "ddim", "steps": 2}, diffusion=flow)
    options = GraphOptions(unroll=True, batch=2)
    one = loaded(
        policy, policy.sampler, unrolled_files(parts_of(policy, options), document(policy, policy.sampler)), options
    )
    obs = observations(policy, 5, 2)
    with torch.no_grad():
        from dp_prior.tensors.randomness import Randomness

        expected = policy.predict(obs, Randomness.from_counts(7, "predict", torch.arange(2)))
    assert error(policy, one.predict(as_numpy(obs), 7), expected) < 1e-5
    with pytest.raises(ValueError, match=naming("2 rows", "given 3", "without --batch")):
        one.predict(as_numpy(observations(policy, 5, 3)), 7)


def test_a_part_with_branches_is_refused():
    from onnx import helper

    branch = helper.make_graph([], "b", [], [])
    node = helper.make_node("If", ["x"], ["y"], then_branch=branch, else_branch=branch)
    value = helper.make_tensor_value_info("obs.a", 1, ["batch", 2])
    part = helper.make_model(helper.make_graph([node], "g", [value], []))
    with pytest.raises(ValueError, match=naming("encoder", "branches", "If")):
        unrolled({"encoder": part, "denoiser": part}, {"draws": 0}, from_previous=False, self_condition=False)
