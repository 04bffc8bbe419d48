import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dp_prior.config import ConfigError
from dp_prior.pixels.resize import Fit
from tests.examples import examples
from tests.messages import naming

HOWS = ["resize", "crop", "letterbox"]
sizes = st.tuples(st.integers(1, 70), st.integers(1, 70))


def pictures(n, height, width, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (n, height, width, 3), dtype=torch.uint8, generator=generator)


@examples(150)
@given(sizes, sizes, st.sampled_from(HOWS), st.integers(0, 1000))
def test_one_by_one_equals_in_batches_bit_for_bit(before, after, how, seed):
    fit, frames = Fit(size=after, how=how), pictures(5, *before, seed)
    together = fit.apply(frames)
    assert together.shape == (5, *after, 3) and together.dtype == torch.uint8 and together.is_contiguous()
    assert torch.equal(together, torch.cat([fit.apply(frame[None]) for frame in frames]))
    assert torch.equal(together, torch.cat([fit.apply(frames[:2]), fit.apply(frames[2:])]))


@pytest.mark.parametrize("how", HOWS)
def test_layout_in_memory_and_number_of_threads_change_nothing(how):
    fit, frames = Fit(size=(48, 64), how=how), pictures(3, 120, 97)
    expected, threads = fit.apply(frames), torch.get_num_threads()
    planes = frames.permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1)  # the same pixels, channels first in memory
    wider = torch.cat([frames, frames], dim=2)[:, :, :97]
    try:
        for count in (1, 2, 4):
            torch.set_num_threads(count)
            assert torch.equal(fit.apply(planes), expected)
            assert torch.equal(fit.apply(wider), expected)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.slow
def test_every_kernel_that_torch_has_for_this_processor_gives_the_same_pixels():
    program = """
import hashlib, torch
from dp_prior.pixels.resize import Fit
x = torch.randint(0, 256, (4, 120, 97, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
hows = ("resize", "crop", "letterbox")
y = [Fit(size=size, how=how).apply(x) for size in ((48, 64), (224, 224), (1, 1)) for how in hows]
print(hashlib.sha256(b"".join(part.numpy().tobytes() for part in y)).hexdigest())
"""
    found = set()
    for kernel in ("default", "avx2", "avx512"):
        env = {**os.environ, "ATEN_CPU_CAPABILITY": kernel}
        output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env=env)
        found.add(output.stdout)
        assert output.returncode == 0, output.stderr
    assert len(found) == 1


@pytest.mark.parametrize("before", [(480, 640), (256, 256), (96, 96), (31, 57), (720, 1280)])
@pytest.mark.parametrize("after", [(96, 128), (84, 84), (224, 224), (1, 7)])
def test_it_is_the_antialiased_bilinear_resize_of_pillow_but_for_rounding(before, after):
    image = pytest.importorskip("PIL.Image")
    frames = pictures(2, *before)
    found = Fit(size=after).apply(frames).numpy().astype(int)
    for frame, picture in zip(frames.numpy(), found, strict=True):
        expected = np.asarray(image.fromarray(frame).resize(after[::-1], image.Resampling.BILINEAR)).astype(int)
        difference = np.abs(picture - expected)
        assert difference.max() <= 1  # one rounding after rows, one after columns
        assert difference.mean() < 0.02  # measured: 0.0003 to 0.008


@pytest.mark.parametrize("how", HOWS)
def test_pictures_of_the_right_size_are_passed_on_as_they_are(how):
    frames = pictures(2, 20, 30)
    assert Fit(size=(20, 30), how=how).apply(frames) is frames


@examples(100)
@given(sizes, sizes, st.sampled_from(HOWS), st.integers(0, 255))
def test_one_colour_stays_one_colour(before, after, how, value):
    frames = torch.full((1, *before, 3), value, dtype=torch.uint8)
    found = set(Fit(size=after, how=how).apply(frames).flatten().tolist())
    assert value in found and found <= {value, 0 if how == "letterbox" else value}


def test_crop_cuts_equal_strips_and_letterbox_adds_them():
    frames = pictures(1, 4, 8)
    assert torch.equal(Fit(size=(4, 4), how="crop").apply(frames), frames[:, :, 2:6])
    boxed = Fit(size=(8, 8), how="letterbox").apply(frames)
    assert torch.equal(boxed[:, 2:6], frames) and not boxed[:, :2].any() and not boxed[:, 6:].any()
    tall = frames.transpose(1, 2)
    assert torch.equal(Fit(size=(4, 4), how="crop").apply(tall), tall[:, 2:6])
    assert torch.equal(Fit(size=(8, 8), how="letterbox").apply(tall)[:, :, 2:6], tall)


def test_no_pictures_give_no_pictures():
    for how in HOWS:
        assert Fit(size=(4, 6), how=how).apply(pictures(0, 8, 8)).shape == (0, 4, 6, 3)


def test_other_arrays_are_refused():
    fit = Fit(size=(4, 4))
    with pytest.raises(ValueError, match=naming("torch.float32", "(1, 8, 8, 3)", "uint8", "(N, H, W, 3)")):
        fit.apply(pictures(1, 8, 8).float())
    with pytest.raises(ValueError, match=naming("(1, 8, 8, 1)", "uint8")):
        fit.apply(pictures(1, 8, 8)[..., :1])
    with pytest.raises(ValueError, match=naming("meta", "CPU")):
        fit.apply(pictures(1, 8, 8).to("meta"))


def test_record_survives_json_and_refuses_what_it_does_not_know():
    fit = Fit(size=(96, 128), how="crop")
    assert Fit.from_json(fit.to_json()) == fit
    with pytest.raises(ConfigError, match=naming("version", 2)):
        Fit.from_json(json.dumps({"size": [96, 96], "version": 2}))
    with pytest.raises(ConfigError, match=naming("size.0", 0)):
        Fit.from_json(json.dumps({"size": [0, 96]}))


@pytest.mark.parametrize("how", ["resize", "crop", "letterbox"])
def test_of_depth_no_value_is_invented(how):
    random = torch.Generator().manual_seed(0)
    for high, wide, height, width in ((5, 7, 3, 4), (3, 4, 5, 7), (24, 32, 12, 16), (2, 9, 9, 2), (1, 1, 4, 3)):
        depth = torch.rand((2, high, wide, 1), generator=random) + 1
        found = Fit(size=(height, width), how=how).apply(depth)
        assert found.shape == (2, height, width, 1) and found.dtype == torch.float32
        for one, before in zip(found, depth, strict=True):
            assert {*one.flatten().tolist()} <= {*before.flatten().tolist(), *([0.0] if how == "letterbox" else [])}


def test_depth_takes_the_nearest_pixel():
    depth = torch.arange(9 * 15, dtype=torch.float32).view(1, 9, 15, 1)
    assert torch.equal(Fit(size=(3, 5)).apply(depth), depth[:, 1::3, 1::3]), "the middle one of three"
    larger = Fit(size=(18, 45)).apply(depth)
    assert torch.equal(larger, depth.repeat_interleave(2, 1).repeat_interleave(3, 2))
    assert Fit(size=(9, 15)).apply(depth) is depth
