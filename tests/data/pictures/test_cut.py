"""The window of a picture that a model sees, and the reduced image of it."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from dp_prior.data.pictures.cut import PictureCut, reduced
from dp_prior.tensors.batch import Batch
from dp_prior.tensors.crop import Crop
from dp_prior.tensors.randomness import Randomness


def test_the_reduced_image_is_a_mean_over_blocks():
    pixels = np.random.default_rng(0).integers(256, size=(50, 40, 3), dtype=np.uint8)
    x = torch.from_numpy(pixels)[None]
    blocks = x.float().unflatten(1, (10, 5)).unflatten(3, (10, 4)).mean((2, 4)).round()
    assert torch.equal(reduced(x, (10, 10)).float(), blocks)
    area = F.interpolate(x.movedim(-1, 1).float(), (10, 10), mode="area").movedim(1, -1)  # improved-diffusion's
    assert (area - blocks).abs().max() <= 0.5


@pytest.mark.parametrize("random", [None, Randomness.from_counts(0, "cut", torch.arange(5))])
def test_the_reduced_image_is_that_of_the_window_and_is_made_where_it_is_seen(random):
    x = torch.from_numpy(np.random.default_rng(0).integers(256, size=(5, 9, 8, 3), dtype=np.uint8))
    batch = Batch(x=x, cond={"label": torch.arange(5)}, mask=torch.ones(5, 6, 4, dtype=torch.bool), ids=torch.arange(5))
    cut = PictureCut(Crop.of((9, 8), (6, 4)), (3, 2))
    found = cut(batch, random)
    assert found.x.shape == (5, 6, 4, 3) and torch.equal(found.cond["low_res"], reduced(found.x, (3, 2)))
    assert torch.equal(cut.seeing(["label"])(batch, random).x, found.x)
    assert cut.seeing(["label"])(batch, random).cond.keys() == {"label"}
    assert cut.seeing(["low_res"])(batch, random).cond.keys() == {"label", "low_res"}
    if random is None:
        assert torch.equal(found.x, x[:, 2:8, 2:6])
