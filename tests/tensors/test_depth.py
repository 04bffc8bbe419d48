"""Depth is scaled to what a network reads, and back."""

import pytest
import torch

from dp_prior.tensors.depth import DepthRange
from tests.messages import naming

RANGE = DepthRange(near=0.25, far=2.25)


def test_metres_come_back_within_the_range_and_what_was_not_measured_stays_so():
    metres = torch.cat([torch.zeros(3), torch.linspace(0.25, 2.25, 401)])
    scaled = RANGE.scaled(metres)
    assert (scaled[:3] == -1).all() and scaled[3] == 0 and scaled[-1] == 1 and (scaled[3:].diff() > 0).all()
    torch.testing.assert_close(RANGE.metres(scaled), metres, rtol=1e-6, atol=1e-7)


def test_what_lies_outside_reads_as_the_nearest_end():
    assert RANGE.scaled(torch.tensor([0.01, 2.3, 65.5])).tolist() == [0, 1, 1]


def test_a_range_without_distances_is_refused():
    with pytest.raises(ValueError, match=naming("near", 2, "far", 0.5)):
        DepthRange(near=2, far=0.5)
