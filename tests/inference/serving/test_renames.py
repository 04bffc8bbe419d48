"""Stock clients name observations in their own way; a rename that fits no observation ends the server at its start."""

import numpy as np
import pytest

from dp_prior.config import ConfigError
from dp_prior.inference.serving.renames import check_renames, renamed
from tests.inference.serving.running import Fake

SPEC = Fake().spec


def test_requests_get_the_names_of_the_policy_whichever_name_they_use():
    renames = {"observation/state": "pos"}
    value = np.zeros(3)
    for request in ({"observation/state": value, "prompt": "go"}, {"pos": value, "prompt": "go"}):
        assert renamed(request, renames) == {"pos": value, "prompt": "go"} or renamed(request, renames)["pos"] is value
    with pytest.raises(ValueError, match="'observation/state' and 'pos' are names of one observation; send one"):
        renamed({"observation/state": value, "pos": value}, renames)


def test_two_observations_may_change_their_names():
    """Left and right, for a robot whose cameras are mounted the other way round."""
    swap = {"pos": "a b/c", "a b/c": "pos"}
    check_renames(swap, SPEC)
    assert renamed({"pos": 1, "a b/c": 2}, swap) == {"a b/c": 1, "pos": 2}


def test_what_does_not_fit_the_policy_is_refused_with_both_lists():
    for renames, line in (
        (
            {"observation/state": "state"},
            r"names \['state'\] as observations of the policy, which reads \['pos', 'a b/c'\]",
        ),
        ({"x": "pos", "y": "pos"}, r"gives \['pos'\] several names: {'x': 'pos', 'y': 'pos'}"),
        ({"pos": "a b/c"}, r"takes the names \['pos'\], which are observations of the policy, for others"),
    ):
        with pytest.raises(ConfigError, match=line):
            check_renames(renames, SPEC)
