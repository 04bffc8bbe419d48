"""Every row as a sample."""

import pytest
import torch

from dp_prior.data.samples.row_selection import EachRow


@pytest.mark.parametrize("shape", [(), (5,), (3, 2)])
def test_every_element_of_every_row_is_real(shape):
    rows, ids = EachRow(7, shape), torch.tensor([6, 0])
    mask = rows.mask(ids)
    assert len(rows) == 7 and rows.begins is None
    assert mask.shape == (2, *shape) and mask.all() and rows.count_valid(ids) == mask.numel()
    assert rows.to("meta").mask(ids).device.type == "meta" and len(rows.to("meta")) == 7
