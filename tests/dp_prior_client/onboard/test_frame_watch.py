"""What a watch reports: never frames of training, always frames without a picture, and other readings of a picture."""

import dataclasses
import logging
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_prior_client.onboard.frame_watch import UNWATCHED, FrameLimits, FrameWatch, _Reference
from dp_prior_client.onboard.obs_spec import ObsSpec, Reads
from dp_prior_client.onboard.scene import CELLS, QUANTILES, TURNS, FrameSummary, Scene, turned
from tests.dp_prior_client.onboard.test_scene import picture, scene
from tests.examples import examples
from tests.messages import naming, told

SIZE = (120, 160)
BLACK, WHITE, GREY = (np.full((*SIZE, 3), level, np.uint8) for level in (0, 255, 120))


def noisy(frame, seed):
    """The frame as a camera gives it again."""
    noise = np.random.default_rng(seed).normal(0, 3, frame.shape)
    return np.clip(frame + noise, 0, 255).astype(np.uint8)


def recording(seed, count=20):
    return [noisy(picture(seed), number) for number in range(count)]


def reads(**scenes):
    return ObsSpec(
        {key: Reads((None, None, 3), "uint8", "image", size=(96, 96), scene=one) for key, one in scenes.items()}
    )


def watch(limits=None, clock=lambda: 0.0, **scenes):
    return FrameWatch(reads(**scenes), limits, clock)


def lines(caplog):
    return [record.message for record in caplog.records if record.levelno == logging.WARNING]


@examples(20)
@given(seeds=st.lists(st.integers(0, 10**6), min_size=1, max_size=6), levels=st.integers(1, 40))
def test_a_frame_of_training_is_never_reported(seeds, levels):
    """Whatever training showed, dark frames and pictures that change included; refusing is the strictest limit."""
    frames = [picture(seed) // levels for seed in seeds]
    guard = watch(FrameLimits(math.inf, unlike="refuse"), front=scene(*frames), other=scene(picture(0)))
    for frame in frames:
        guard.check({"front": frame})


@examples(20)
@given(seeds=st.lists(st.integers(0, 10**6), min_size=1, max_size=6), levels=st.integers(1, 8))
def test_a_frame_without_a_picture_is_always_reported(seeds, levels):
    guard = watch(FrameLimits(unlike="refuse"), front=scene(*(picture(seed) // levels for seed in seeds)))
    for frame in (BLACK, WHITE, GREY):
        with pytest.raises(ValueError, match=naming("'front'", "in training", "frames.unlike", "not remembered")):
            guard.check({"front": frame})


FAULTS = {
    "black": (lambda frame: frame // 20, ("mean brightness", "lens")),
    "overexposed": (lambda frame: np.clip(frame.astype(int) * 4, 0, 255).astype(np.uint8), ("exposure",)),
    "empty": (lambda frame: noisy(GREY, 5), ("contrast",)),
    "channels exchanged": (lambda frame: frame[..., ::-1], ("blue", "red", "BGR")),
    "upside down": (lambda frame: frame[::-1, ::-1], ("upside down",)),
    "squeezed": (lambda frame: frame[:, ::2], ("80 x 120", "160 x 120", "squeezed")),
}


@pytest.mark.parametrize("scenes", [2, pytest.param(10, marks=pytest.mark.slow)])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_reported_once_an_episode_in_its_own_words(fault, scenes, caplog):
    """A change that is no fault is not reported: noise, and light that is a fifth weaker or of another colour."""
    change, words = FAULTS[fault]
    for seed in range(scenes):
        frames, other = recording(seed), recording(seed + 100)
        guard = watch(front=scene(*frames), other=scene(*other))
        for frame in (frames[0] // 5 * 4, np.clip(frames[0] + np.array([12, 0, -12]), 0, 255).astype(np.uint8)):
            guard.check({"front": noisy(frame, 77)})
        assert not lines(caplog)
        for step in range(3):
            guard.check({"front": change(noisy(frames[0], 30 + step))})
        (line,) = lines(caplog)
        assert told(line, "'front'", *words), (seed, line)
        guard.reset()
        guard.check({"front": change(frames[0])})
        again = lines(caplog)[1:]
        assert len(again) == 1 and told(again[0], "'front'", *words), "the next episode reports it again"
        caplog.clear()


def test_two_cameras_that_are_exchanged_are_both_named_with_the_other(caplog):
    frames, others = recording(1), recording(2)
    guard = watch(front=scene(*frames), wrist=scene(*others))
    guard.check({"front": noisy(others[0], 9), "wrist": noisy(frames[0], 9)})
    first, second = lines(caplog)
    assert told(first, "'front'", "'wrist'", "exchanged") and told(second, "'wrist'", "'front'", "exchanged")


def test_a_frame_of_the_size_of_the_policy_is_not_squeezed_and_an_unknown_size_is_not_compared(caplog):
    for shape, size in (((96, 96), SIZE), ((96, 40), None)):
        frames = [picture(4, *shape)]
        watch(front=dataclasses.replace(scene(*frames), size=size)).check({"front": frames[0]})
    assert not lines(caplog)


@pytest.mark.parametrize("turn", TURNS)
def test_frames_are_turned_as_those_of_training_before_they_are_compared(turn, caplog):
    """A frame of the robot is as the recorder's camera gave it; one that is upside down or of other colours is told."""
    frame = picture(4)
    sensor = Reads((None, None, 3), "uint8", "image", size=(96, 96), turn=turn, bgr=True)
    spec = ObsSpec({"front": sensor._replace(scene=scene(turned(frame, turn, True)))})
    FrameWatch(spec, None, lambda: 0.0).check({"front": frame})
    assert not lines(caplog)
    FrameWatch(spec, None, lambda: 0.0).check({"front": frame[::-1, ::-1, ::-1]})
    assert lines(caplog)


def test_frozen_frames_are_reported_by_the_clock_and_left_to_a_caller_that_looks_itself(caplog):
    times, depth = iter([0.0, 1.0, 1.1, 9.0, 9.0]), np.full((4, 4, 1), 2.0, np.float32)
    guard = FrameWatch(
        ObsSpec({"depth": Reads((4, 4, 1), "float32", "depth", scene=Scene((4, 4)))}), None, lambda: next(times)
    )
    for expected in (0, 0, 1):
        guard.check({"depth": depth})
        assert len(lines(caplog)) == expected
    guard.reset()
    guard.leave_frozen()
    guard.check({"depth": depth})
    assert len(lines(caplog)) == 1
    strict, now = FrameLimits(frozen="refuse"), iter([0.0, 2.0])
    guard = FrameWatch(ObsSpec({"front": Reads((4, 4, 3), "uint8", "image")}), strict, lambda: next(now))
    guard.leave_frozen()
    guard.check({"front": BLACK})
    with pytest.raises(ValueError, match=naming("'front'", "2 s")):
        guard.check({"front": BLACK})


def test_what_is_not_watched_costs_nothing_and_says_nothing(caplog):
    assert FrameWatch(reads(front=scene(picture(0))), UNWATCHED).keys == ()
    watch(FrameLimits(unlike="ignore"), front=scene(picture(0))).check({"front": BLACK})
    watch(front=None).check({"front": BLACK})
    assert not lines(caplog)
    with pytest.raises(ValueError, match=naming("unlike", "'stop'", '"ignore"')):
        FrameLimits(unlike="stop")
    with pytest.raises(ValueError, match=naming("frame_s front is -1")):
        FrameLimits(frame_s={"front": -1})


def summary(level=150.0, contrast=20.0, clipped=0.0, colours=0.0, seed=0):
    """A view of a bright pattern, of which red minus blue goes from minus to plus `colours`."""
    pattern = np.random.default_rng(seed).normal(size=(CELLS, CELLS, 1))
    shown = np.repeat(level + contrast * (pattern - pattern.mean()) / pattern.std(), 3, -1).astype(np.float32)
    return FrameSummary(shown, np.linspace(-colours, 3 * colours, QUANTILES).astype(np.float32), clipped)


def reference(*views, **changes):
    return _Reference(dataclasses.replace(Scene.of(SIZE, "resize", views), **changes))


@pytest.mark.parametrize(("level", "fault"), [(49, "brightness"), (51, None), (226, None), (229, "brightness")])
def test_light_is_another_beyond_half_the_darkest_and_half_the_way_to_white(level, fault):
    dark_to_bright = reference(summary(100.0), summary(200.0))
    found = dark_to_bright.light_fault(summary(float(level)))
    assert (found and found[0]) == fault


@pytest.mark.parametrize(("clipped", "fault"), [(0.3, None), (0.74, None), (0.76, "clipped")])
def test_a_quarter_more_than_in_training_may_be_at_the_upper_end(clipped, fault):
    found = reference(summary(clipped=0.5), summary()).light_fault(summary(clipped=clipped))
    assert (found and found[0]) == fault


@pytest.mark.parametrize(("colours", "is_told"), [(0.4, False), (30.0, True)])
def test_colours_are_exchanged_by_a_level_at_least(colours, is_told):
    mine, usual = summary(colours=colours), reference(summary(colours=colours))
    exchanged = mine._replace(colours=-mine.colours[::-1])
    assert usual.colour_fault(mine) is None and bool(usual.colour_fault(exchanged)) == is_told


@pytest.mark.parametrize(("spread", "is_known"), [(0.1, True), (0.6, True), (0.7, False)])
def test_a_camera_whose_picture_changes_much_is_recognised_nowhere(spread, is_known):
    usual = reference(summary(), picture_spread=spread)
    assert usual.resembles(summary().picture, 2.0) == is_known
    assert not usual.resembles(summary().picture, 0.0001) and not usual.resembles(summary(seed=1).picture, 2.0)


def test_a_camera_that_showed_the_same_in_the_last_episode_is_not_frozen(caplog):
    times = iter([0.0, 0.9, 5.0, 5.9, 6.1])
    guard = FrameWatch(ObsSpec({"front": Reads((4, 4, 3), "uint8", "image")}), None, lambda: next(times))
    for expected in (0, 0, None, 0, 0, 1):
        if expected is None:
            guard.reset()
            continue
        guard.check({"front": GREY})
        assert len(lines(caplog)) == expected
