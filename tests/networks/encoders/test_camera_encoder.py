"""From frames to images: normalisation, where the crop is applied, and every camera that is refused."""

import pytest
import torch

from dp_prior.networks.encoders.camera_encoder import Camera
from dp_prior.networks.encoders.color_jitter import ColorJitterConfig
from dp_prior.networks.encoders.resnet import ResNetEncoderConfig
from dp_prior.tensors.crop import Crop
from dp_prior.tensors.randomness import Randomness
from tests.cases import every
from tests.messages import naming

MEAN, STD = (0.1, 0.2, 0.3), (0.5, 0.25, 2.0)


def rows(count):
    return Randomness.from_counts(0, "batch", torch.arange(count))


def frames(*shape):
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def camera(jitter=None, size=(6, 8)):
    return Camera(crop=Crop((8, 10), size), jitter=jitter, mean=MEAN, std=STD)


def test_images_are_normalised_channels_first():
    given = frames(3, 2, 8, 10, 3)
    found = camera(size=(8, 10))(given, None)
    expected = (given.flatten(0, 1).permute(0, 3, 1, 2) / 255 - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[
        :, None, None
    ]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert found.is_contiguous(memory_format=torch.channels_last)


def test_frames_in_any_memory_layout_give_the_same_images():
    given, of = frames(3, 2, 8, 10, 3), camera()
    planar = given.permute(0, 1, 4, 2, 3).contiguous().permute(0, 1, 3, 4, 2)
    for random in (None, rows(3)):
        expected = of(given, random)
        assert torch.equal(of(planar, random), expected)
        assert of(planar, random).is_contiguous(memory_format=torch.channels_last)


def test_frames_are_not_changed():
    given = frames(3, 2, 8, 10, 3)
    before = given.clone()
    camera(ColorJitterConfig())(given, rows(3))
    assert torch.equal(given, before)


@pytest.mark.parametrize("jitter", [None, ColorJitterConfig()], ids=["plain", "jitter"])
def test_cropping_early_or_late_gives_equal_images(jitter):
    given, late = frames(5, 2, 8, 10, 3), camera(jitter)
    top, left = late.crop.offsets(rows(5))
    early = torch.stack([given[i, :, y : y + 6, x : x + 8] for i, (y, x) in enumerate(zip(top, left, strict=True))])
    assert torch.equal(late(early, rows(5)), late(given, rows(5)))


def test_training_crops_and_recolours_at_random_and_acting_does_neither():
    given, of = frames(1, 2, 8, 10, 3).expand(6, -1, -1, -1, -1), camera(ColorJitterConfig())
    trained, acting = of(given, rows(6)).reshape(6, -1), of(given, None).reshape(6, -1)
    assert len({tuple(image) for image in trained.tolist()}) == 6
    assert len({tuple(image) for image in acting.tolist()}) == 1
    assert torch.equal(acting, camera()(given[:, :, 1:7, 1:9], rows(6)).reshape(6, -1))  # the centre


def test_all_steps_of_a_sample_get_one_crop_and_one_colour_map():
    given = frames(6, 1, 8, 10, 3).expand(-1, 3, -1, -1, -1)
    images = camera(ColorJitterConfig())(given, rows(6)).reshape(6, 3, 3, 6, 8)
    assert torch.equal(images, images[:, :1].expand_as(images))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (torch.zeros(2, 1, 8, 10, 3), ("torch.float32", "torch.uint8", "RGB", 0, 255)),
        (frames(2, 1, 3, 8, 10), ("(2, 1, 3, 8, 10)", "(samples, n_obs_steps, 8, 10, 3)")),
        (frames(2, 1, 8, 10, 1), ("(2, 1, 8, 10, 1)", "(samples, n_obs_steps, 8, 10, 3)")),
        (frames(2, 1, 10, 8, 3), ("(2, 1, 10, 8, 3)", "height 8", "width 10")),
        (frames(2, 8, 10, 3), ("(2, 8, 10, 3)", "(samples, n_obs_steps, 8, 10, 3)")),
        (
            frames(2, 1, 6, 8, 3),
            ("(2, 1, 6, 8, 3)", "(samples, n_obs_steps, 8, 10, 3)"),
        ),  # the size of the crop, but not while training
    ],
    ids=["float", "channels first", "greyscale", "transposed", "no steps", "cropped while acting"],
)
def test_frames_of_another_camera_are_refused(given, message):
    with pytest.raises(ValueError, match=naming(*message)):
        camera()(given, None)


@pytest.mark.parametrize(
    ("shape", "remedy"),
    [
        ((96, 96), "greyscale"),
        ((96, 96, 1), "greyscale"),
        ((96, 96, 4), "fourth channel"),
        ((3, 96, 96), "channels"),
        ((7,), "encoder"),
    ],
)
def test_shapes_that_are_no_rgb_frames_are_refused_with_the_remedy(shape, remedy):
    with pytest.raises(ValueError, match=naming("(height, width, 3)", shape, remedy)):
        ResNetEncoderConfig().create(shape)


def test_a_crop_larger_than_the_camera_is_refused():
    with pytest.raises(ValueError, match=naming("crop", "84x84", "64x96")):
        ResNetEncoderConfig(crop=(84, 84)).create((64, 96, 3))


@every(fault=["[0, 4]", "1.5", "0", "1", "-0.5", "[4]", '"84"'])
def test_crops_that_mean_nothing_are_refused(fault):
    with pytest.raises(ValueError, match=naming("config", "crop")):
        ResNetEncoderConfig.from_json(f'{{"crop": {fault}}}')
