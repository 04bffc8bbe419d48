"""Parts of a model have the names of its tensors, and its encoders those of their observations."""

import pytest

from dp_prior.tasks.model_parts import check_parts, is_in, part_name
from dp_prior.tensors.batch import Spec
from tests.messages import naming

SPEC = Spec(x_shape=(4, 2), cond_shapes={"wrist": (1, 2), "agent": (1, 2)})


def test_an_encoder_is_named_by_its_observation_whatever_its_number():
    assert part_name("encoder.encoders.1.head.weight", SPEC) == "encoder.wrist.head.weight"
    assert part_name("normalizer.x/scale", SPEC) == "normalizer.x.scale"
    assert part_name("backbone.down.0.weight", SPEC) == "backbone.down.0.weight"


def test_a_part_contains_what_is_below_its_name_and_nothing_that_only_begins_alike():
    assert is_in("encoder.wrist.head", ["encoder.wrist"]) and is_in("encoder", ["encoder"])
    assert not is_in("encoder.wrist_left", ["encoder.wrist"])


def test_an_entry_without_a_part_is_answered_with_the_parts():
    check_parts(["encoder"], ["encoder.wrist.weight"])
    with pytest.raises(ValueError, match=naming("'encodr'", "encoder.wrist", "backbone.down")):
        check_parts(["encodr"], ["encoder.wrist.weight", "backbone.down.0"])
