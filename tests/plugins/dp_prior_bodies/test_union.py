"""The union of the observations of several bodies, and the way back."""

import json

import torch

from dp_prior.tensors.batch import Batch, Spec
from dp_prior_bodies.union import BODY, joint_spec, narrowed, widened

BODIES = {
    "short": Spec(
        x_shape=(4, 2), cond_shapes={"state": (2, 2), "front": (2, 6, 8, 3), "depth": (2, 6, 8, 1)},
        kinds={"front": "image", "depth": "depth"}, depths={"depth": {"near": 0.1, "far": 2.0}},
    ),
    "long": Spec(x_shape=(4, 3), cond_shapes={"goal": (2, 2), "state": (2, 3)}),
}  # fmt: skip


def test_the_union_is_as_wide_as_the_widest_body():
    spec = joint_spec(BODIES)
    assert spec.x_shape == (4, 3)
    assert spec.cond_shapes == {
        "state": (2, 3), "front": (2, 6, 8, 3), "depth": (2, 6, 8, 1), "goal": (2, 2), BODY: (2,)
    }  # fmt: skip
    assert spec.kind("front") == "image" and spec.kind(BODY) == "label" and spec.classes == {BODY: ("short", "long")}
    assert Spec.from_json(json.dumps(spec.model_dump(mode="json")), source="spec.json") == spec


def test_a_spec_of_one_robot_does_not_mention_bodies():
    assert "bodies" not in BODIES["long"].model_dump(mode="json")


def test_narrowing_is_the_inverse_of_widening():
    generator = torch.Generator().manual_seed(0)
    for spec in BODIES.values():
        x = torch.rand(5, *spec.x_shape, generator=generator)
        cond = {key: torch.rand(5, *shape, generator=generator) for key, shape in spec.cond_shapes.items()}
        joint = joint_spec(BODIES)
        wide = {key: torch.full((5, *shape), 9.0) for key, shape in joint.cond_shapes.items()}
        wide |= {key: widened(value, joint.cond_shapes[key][-1]) for key, value in cond.items()}
        batch = Batch(widened(x, 3), wide, torch.ones(5, 4, dtype=torch.bool), torch.arange(5))
        narrow = narrowed(batch, spec)
        assert torch.equal(narrow.x, x) and narrow.cond.keys() == cond.keys()
        assert all(torch.equal(narrow.cond[key], value) for key, value in cond.items())
        assert (batch.x[..., spec.x_shape[1] :] == 0).all()
