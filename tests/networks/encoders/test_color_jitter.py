"""The affine map of the jitter against Pillow and against the formulas of its four parts applied one after another."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance

from dp_prior.networks.encoders.color_jitter import ColorJitterConfig
from dp_prior.tensors.randomness import Randomness

OFF = {"brightness": 0.0, "contrast": 0.0, "saturation": 0.0, "hue": 0.0}
LUMA = np.array([0.299, 0.587, 0.114])


def rows(count, first=0):
    return Randomness.from_counts(0, "batch", torch.arange(first, first + count))


def draws(count):
    """What the jitter draws, from -1 to 1: brightness, contrast, saturation, hue."""
    return (2 * rows(count).stream("jitter").uniform(4) - 1).double().numpy()


def pixels(count=4, low=0, high=256):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(low, high, (count, 2, 8, 6, 3), generator=generator).float()


def jitter(**strengths):
    return ColorJitterConfig(**{**OFF, **strengths}).create()


@pytest.mark.parametrize(
    ("name", "enhance", "column"),
    [("brightness", ImageEnhance.Brightness, 0), ("contrast", ImageEnhance.Contrast, 1)]
    + [("saturation", ImageEnhance.Color, 2)],
)
def test_each_strength_does_what_pillow_does(name, enhance, column):
    given = pixels()
    if name == "contrast":  # Pillow's pivot is the mean of the image, so give it one of mid-grey
        given = torch.cat([given, 255 - given], dim=2)
    found = jitter(**{name: 0.5})(given, rows(4))
    for i, draw in enumerate(draws(4)[:, column]):
        for step in range(2):
            image = Image.fromarray(given[i, step].to(torch.uint8).numpy())
            expected = np.asarray(enhance(image).enhance(1 + 0.5 * draw), dtype=float)
            assert np.abs(found[i, step].numpy() - expected).max() <= 1.5  # Pillow rounds grey, then truncates


def test_hue_rotates_the_chroma_and_keeps_the_luma():
    given = pixels(low=100, high=156)  # far from black and white, so that nothing is clamped
    found = jitter(hue=0.1)(given, rows(4)).double().numpy()
    yiq = np.array([LUMA, [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]])
    before, after = given.double().numpy() @ yiq.T, found @ yiq.T
    np.testing.assert_allclose(after[..., 0], before[..., 0], atol=1e-3)
    turned = (before[..., 1] + 1j * before[..., 2]) * np.exp(2j * np.pi * 0.1 * draws(4)[:, 3])[:, None, None, None]
    np.testing.assert_allclose(after[..., 1] + 1j * after[..., 2], turned, atol=1e-3)


def test_the_parts_are_applied_one_after_another():
    record = ColorJitterConfig(brightness=0.1, contrast=0.1, saturation=0.1, hue=0.05)
    given = pixels(low=90, high=166)
    found = record.create()(given, rows(4)).double().numpy()
    yiq = np.array([LUMA, [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]])
    for i, (brightness, contrast, saturation, hue) in enumerate(draws(4)):
        x = given[i].double().numpy() / 255
        x = x * (1 + 0.1 * brightness)
        x = 0.5 + (x - 0.5) * (1 + 0.1 * contrast)
        grey = (x @ LUMA)[..., None]
        x = grey + (x - grey) * (1 + 0.1 * saturation)
        angle = 2 * np.pi * 0.05 * hue
        turn = np.array([[1, 0, 0], [0, np.cos(angle), -np.sin(angle)], [0, np.sin(angle), np.cos(angle)]])
        x = x @ (np.linalg.inv(yiq) @ turn @ yiq).T
        np.testing.assert_allclose(found[i], 255 * x, atol=2e-4)


def test_without_strength_nothing_changes():
    matrices = jitter().matrices(rows(3))
    assert torch.equal(matrices, torch.eye(3, 4).expand(3, 3, 4))
    assert torch.equal(jitter()(pixels(), rows(4)), pixels())


def test_grey_stays_grey_under_saturation_and_hue():
    grey = torch.arange(0.0, 256.0).view(1, 1, 16, 16, 1).expand(1, 1, 16, 16, 3)
    found = jitter(saturation=1.0, hue=0.5)(grey, rows(1))
    torch.testing.assert_close(found, grey.contiguous(), rtol=0, atol=1e-3)


def test_colours_are_clamped_to_the_range_of_pixels():
    found = jitter(brightness=1.0, contrast=1.0)(pixels(count=64), rows(64))
    assert found.min() == 0 and found.max() == 255


def test_factors_are_uniform_around_one():
    matrices = jitter(brightness=0.3).matrices(rows(5000))
    factors = matrices[:, 0, 0]
    assert 0.7 <= factors.min() < 0.701 and 1.299 < factors.max() <= 1.3
    assert abs(factors.mean() - 1) < 0.01 and abs(factors.std() - 0.6 / 12**0.5) < 0.005


def test_a_sample_keeps_its_colours_in_any_batch():
    record = ColorJitterConfig()
    whole = record.create().matrices(rows(6))
    assert torch.equal(whole[4:], record.create().matrices(rows(2, first=4)))
    assert not torch.equal(whole[0], whole[1])


@pytest.mark.parametrize("field", list(ColorJitterConfig.model_fields))
def test_every_field_changes_the_colours(field):
    defaults = ColorJitterConfig()
    changed = defaults.model_copy(update={field: getattr(defaults, field) / 2})
    assert not torch.equal(defaults.create().matrices(rows(2)), changed.create().matrices(rows(2)))
