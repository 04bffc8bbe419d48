"""Stock clients name observations in their own way; a rename that fits no observation ends the server at its start."""

import numpy as np
import pytest

from dp_prior.config import ConfigError
from dp_prior_robot.serving.renames import check_renames, refuse_other_names, renamed
from tests.messages import naming
from tests.plugins.dp_prior_robot.serving.running import Fake

SPEC = Fake().spec


def test_requests_get_the_names_of_the_policy_whichever_name_they_use():
    renames = {"observation/state": "pos"}
    value = np.zeros(3)
    for request in ({"observation/state": value, "prompt": "go"}, {"pos": value, "prompt": "go"}):
        assert renamed(request, renames) == {"pos": value, "prompt": "go"} or renamed(request, renames)["pos"] is value
    with pytest.raises(ValueError, match=naming("'observation/state'", "'pos'", "send one")):
        renamed({"observation/state": value, "pos": value}, renames)


def test_two_observations_may_change_their_names():
    """Left and right, for a robot whose cameras are mounted the other way round."""
    swap = {"pos": "a b/c", "a b/c": "pos"}
    check_renames(swap, SPEC)
    assert renamed({"pos": 1, "a b/c": 2}, swap) == {"a b/c": 1, "pos": 2}


def test_what_does_not_fit_the_policy_is_refused_with_both_lists():
    for renames, told in (
        ({"observation/state": "state"}, (["state"], ["pos", "a b/c"])),
        ({"x": "pos", "y": "pos"}, (["pos"], "several names", {"x": "pos", "y": "pos"})),
        ({"pos": "a b/c"}, (["pos"], "for others", {"pos": "a b/c"})),
    ):
        with pytest.raises(ConfigError, match=naming("--rename", *told)):
            check_renames(renames, SPEC)


@pytest.mark.parametrize("name", ["observation/pos", "observation.pos", "robot/observation/pos"])
def test_names_of_stock_clients_are_answered_with_the_options_that_rename_them(name):
    with pytest.raises(ValueError, match=naming("'pos'", name, f"--rename {name}=pos")):
        refuse_other_names({name: 0, "prompt": "go"}, ["pos", "front"])
    for request in ({"pos": 0, name: 1, "front": 0}, {"state": 0}, {"position": 0}, {}):
        refuse_other_names(request, ["pos", "front"])
