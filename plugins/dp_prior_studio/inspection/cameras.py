"""Frames of a camera: a few of some episodes to look at, and whether they are dark or frozen."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from dp_prior.data.errors import DataError, first_few
from dp_prior.data.formats.episode_files import EpisodeFilesStore
from dp_prior.data.frames import FramePart, FrameSource
from dp_prior.data.recorded.camera import FramesConfig
from dp_prior.evaluation.samples import evenly_spread
from dp_prior.files.json_text import readable_json
from dp_prior.tensors.pixels.picture_files import import_pillow
from dp_prior.tensors.pixels.resize import Fit
from dp_prior_studio.inspection.data_urls import address
from dp_prior_studio.inspection.finding import Finding, refused
from dp_prior_studio.inspection.roles import is_sensor
from dp_prior_studio.inspection.survey import Survey
from dp_prior_studio.inspection.viewpoints import Views, find_in_views

EPISODES, STILLS, STILL_HEIGHT = 3, 8, 120
MOST_FRAMES, CLIP_FRAMES = 400, 100
"""Frames that are decoded of an episode, for files are decoded from their beginning; and frames of a clip at most."""

MOST_SKIPPED = 10_000
"""Frames before an episode in its file that are decoded only to reach it."""

FRAMED = (255, 127, 14)
"""Colour of the line around the region that a policy sees."""

_CLOCK = re.compile("time|stamp|clock|(^|[./])t$", re.IGNORECASE)

_OFF_RATE = re.compile(r"(?:u?int\d+|float\d+) of shape \((\d+), \d+, \d+, [134]\)|encoded pictures of shape \((\d+),")

DARK, FROZEN = 8, 15
"""Mean brightness (of 255) below which a camera is dark, and equal frames in a row from which a camera is frozen."""


@dataclass(frozen=True)
class Strip:
    """The beginning of an episode as one camera saw it.

    Attributes:
        size: height and width of the recorded frames.
        episode: its own number.
        frames: number of each still in the episode.
        stills: (k, h, w, 3) uint8.
        clip: (n, h, w, 3) uint8, evenly spread; none but of the first episode of a camera.
        stride: frames of the episode from one of the clip to the next.
        frozen: first frame and length of the longest run of equal frames.
        brightness: mean of all frames that were decoded, of 255.
        seen: the part of a frame that a policy sees if a configuration gives the camera a region, which stills and clip
            frame, and the turn of both.
    """

    camera: str
    size: tuple[int, int]
    episode: int
    frames: list[int]
    stills: np.ndarray
    clip: np.ndarray
    stride: int
    frozen: tuple[int, int]
    brightness: float
    seen: str = ""

    @property
    def picture(self) -> str:
        """The stills side by side, as an address that holds a JPEG."""
        return address(np.concatenate(list(self.stills), axis=1))


def look(survey: Survey, cameras: Mapping[str, FramesConfig | None]) -> tuple[list[Strip], list[Finding], list[str]]:
    """Strips of these cameras, what is wrong with them, and a line for each camera without frames.

    Args:
        cameras: the record of each camera in a configuration, so that training refuses what cannot be read. None
            without a configuration: then frames may be missing, as in a copy without its videos.
    """
    strips: list[Strip] = []
    findings: list[Finding] = []
    gaps: list[str] = []
    views: dict[str, Views] = {}
    for key, stated in cameras.items():
        try:
            missing = _missing_videos(survey, key, stated is not None)
            if missing:
                rest = _rest(key, missing, survey) if stated is None else None
                findings.append(missing)
                if rest is not None:  # first settings leave out these episodes, not the camera
                    strips += strips_of(key, _frames(rest, key), rest, None)
                continue
            source = _frames(survey, key) if stated is None else stated.source(survey.store, survey.chosen)
            camera_strips = strips_of(key, source, survey, stated)
            views[key] = Views.of(key, source)
        except DataError as error:
            problems = error.placed(survey.store.path)
            if stated is not None:
                findings += refused(key, problems)
            elif survey.store.dtype(key) == "video" and not has_videos(survey, key):
                gaps.append(f"{key}: first settings leave this out: {problems[0]}")
            else:
                findings.append(left_out(key, problems[0]))
        except ImportError as error:
            gaps.append(f"{key}: {error}")
        else:
            strips += camera_strips
            findings += [*_dark(camera_strips, len(survey.numbers)), *frozen(camera_strips, survey)]
    return strips, [*findings, *find_in_views(views, survey)], gaps


def _rest(key: str, missing: Finding, survey: Survey) -> Survey:
    """The survey without the episodes whose videos are missing.

    Raises:
        DataError: half of the episodes or more would be left out.
    """
    rest = _without(survey, missing.leave_out)
    if 2 * len(rest.lengths) <= len(survey.lengths):
        raise DataError(key, [str(missing).removeprefix(f"{key}: ")])
    return rest


def off_rate(survey: Survey) -> Iterator[Finding]:
    """A warning for each array of pictures that has no row for each step, which is no key."""
    for key, line in survey.unused.items():
        array = _OFF_RATE.match(line)
        if array is not None and is_sensor(key):
            yield left_out(key, f"{line}{_by_clocks(survey, key, array[1] or array[2])}")


def _by_clocks(survey: Survey, key: str, rows: str) -> str:
    """The settings that read an array of another rate by two arrays of times; empty without such arrays."""
    if not isinstance(survey.store, EpisodeFilesStore):
        return ""
    times = [name for name, meaning in survey.unused.items() if f" of shape ({rows},) in the first " in meaning]
    times = sorted(filter(_CLOCK.search, times), key=lambda name: name.rpartition("/")[0] != key.rpartition("/")[0])
    store = survey.store
    steps = [name for name, shape in store.keys().items() if math.prod(shape) == 1 and store.is_number(name)]
    steps = [*filter(_CLOCK.search, steps)]
    if not times or not steps:
        return ""
    settings = readable_json({"clock": steps[0], "clocks": {key: times[0]}})
    return f"; or write into data.episodes: {settings[1:-1].strip()}"


def left_out(key: str, problem: str) -> Finding:
    """The finding that first settings lack a camera, depth or cloud, whose frames training would refuse."""
    return Finding(
        "warning",
        f"{key}: first settings leave this out, which training would refuse: {problem}",
        code="left-out-of-proposal",
    )


def strips_of(key: str, source: FrameSource, survey: Survey, stated: FramesConfig | None) -> list[Strip]:
    """Strips of evenly spread episodes of 8 bit RGB frames.

    Raises:
        DataError: they cannot be read, or the region of the record in a configuration has no pixel.
        ImportError: Pillow is not installed.
    """
    import_pillow()
    places = _places(source)
    strips = [_strip(key, source, place, survey, has_clip=place is places[0]) for place in places]
    if stated is not None and (region := stated.seen(source)):
        strips = [_framed(_turned(strip, stated.resize), stated.resize, region) for strip in strips]
    return strips


def frozen(strips: list[Strip], survey: Survey) -> Iterator[Finding]:
    """Where frames are equal while the robot moves."""
    for strip in strips:
        first, count = strip.frozen
        if count >= FROZEN and _moves(survey, strip.episode, first, first + count):
            text = f"{strip.camera}: {count} equal frames one after another while the robot moves; the camera hung"
            yield Finding("warning", text, strip.episode, first, [strip.episode], code="frames-frozen")


def _frames(survey: Survey, key: str) -> FrameSource:
    return survey.store.frames(key, survey.chosen.recorded, numbers=survey.chosen.numbers)


def _without(survey: Survey, names: Collection[int]) -> Survey:
    """Leave out episodes, by their recorded numbers, before frames are read."""
    numbers = survey.chosen.numbers
    remaining = numbers[~np.isin(survey.chosen.names[numbers], names)]
    return replace(survey, chosen=replace(survey.chosen, numbers=remaining), episodes=np.array([], np.int64))


def _missing_videos(survey: Survey, key: str, is_named: bool) -> Finding | None:
    """Videos that the metadata of a data set name, but that are not there."""
    chosen = survey.chosen
    videos = survey.store.frame_files(key, chosen.recorded) if key in survey.cameras else []
    used_episodes = set(chosen.numbers.tolist())
    videos = [video for video in videos if used_episodes.intersection(video.episodes)]
    lost = [video for video in videos if not video.path.is_file()]
    if lost and (is_named or len(lost) < len(videos)):
        lost_episodes = list(itertools.chain.from_iterable(video.episodes for video in lost))
        numbers = sorted(chosen.names[lost_episodes].tolist())
        files = first_few([video.path.relative_to(survey.store.path) for video in lost])
        text = f"{key}: {len(lost)} of {len(videos)} video files are missing, with all frames of {len(numbers)} of "
        return Finding(
            "error",
            f"{text}{len(survey.lengths)} episodes: {files}",
            numbers[0],
            leave_out=numbers,
            code="video-missing",
        )
    return None


def has_videos(survey: Survey, key: str) -> bool:
    """Whether a camera has videos that are there, or a list of them that cannot be used."""
    try:
        return any(video.path.is_file() for video in survey.store.frame_files(key, survey.chosen.recorded))
    except DataError:
        return True


class _Place(NamedTuple):
    """An episode in a file: the frames before it, and its place among the chosen episodes."""

    part: FramePart
    skip: int
    episode: int


def _places(source: FrameSource) -> list[_Place]:
    """Evenly spread episodes, in the order of the rows, that begin at most `MOST_SKIPPED` frames into their file."""
    lengths, places = np.diff(source.ends, prepend=0), []
    for part in source.parts:
        before = np.cumsum([0, *lengths[list(part.episodes)]]).tolist()
        places += [_Place(part, skip, episode) for episode, skip in zip(part.episodes, before, strict=False)]
    places = sorted((place for place in places if place.skip <= MOST_SKIPPED), key=lambda place: place.episode)
    return [places[number] for number in evenly_spread(len(places), EPISODES).tolist()]


def _strip(camera: str, source: FrameSource, place: _Place, survey: Survey, has_clip: bool) -> Strip:
    length = min(int(survey.lengths[place.episode]), MOST_FRAMES)
    chosen = sorted({number * (length - 1) // max(1, STILLS - 1) for number in range(STILLS)})
    stride = -(-length // CLIP_FRAMES)
    in_clip = range(0, length if has_clip else 0, stride)
    fit = Fit(size=_small(source.size), how="resize")
    small, sums, repeats, previous = {}, 0.0, np.zeros(length, np.int64), None
    frames = itertools.chain.from_iterable(source.read(place.part, place.skip))
    for number, frame in zip(range(length), frames, strict=False):
        if previous is not None and np.array_equal(frame, previous):
            repeats[number] = repeats[number - 1] + 1
        previous = frame
        sums += float(frame[::4, ::4].mean())
        if number in chosen or number in in_clip:
            small[number] = fit.apply(torch.from_numpy(np.array(frame))[None])[0].numpy()
    if (length, place.episode) == (int(survey.lengths[place.episode]), place.part.episodes[-1]):
        next(frames, None)  # its end checks that no frame is left
    last = int(repeats.argmax())
    frozen = (last - int(repeats[last]), int(repeats[last]) + 1)
    stills = np.array([small[number] for number in chosen], np.uint8)
    clip = np.array([small[number] for number in in_clip], np.uint8)
    number = survey.chosen.named([place.episode])[0]
    return Strip(camera, source.size, number, chosen, stills, clip, stride, frozen, sums / length)


def _turned(strip: Strip, fit: Fit) -> Strip:
    """The strip with its pictures turned as the policy sees them."""
    stills, clip = (
        fit.turned(torch.from_numpy(pictures)).contiguous().numpy() if len(pictures) else pictures
        for pictures in (strip.stills, strip.clip)
    )
    return replace(strip, stills=stills, clip=clip)


def _framed(strip: Strip, fit: Fit, region: str) -> Strip:
    """The strip with a line along the edges of the region, if the camera has one, in its turned pictures."""
    sizes = (fit.turned_size(*size) for size in (_small(strip.size), strip.size))
    (top, bottom), (left, right) = (
        (span.start * small // large, (span.stop * small - 1) // large)
        for span, small, large in zip(fit.box(*strip.size), *sizes, strict=True)
    )
    for pictures in filter(len, (strip.stills, strip.clip) if fit.region is not None else ()):
        pictures[:, [top, bottom], left : right + 1] = FRAMED
        pictures[:, top : bottom + 1, [left, right]] = FRAMED
    return replace(strip, seen=region)


def _small(size: tuple[int, int]) -> tuple[int, int]:
    height = min(STILL_HEIGHT, size[0])
    return height, max(1, round(size[1] * height / size[0]))


def _dark(strips: list[Strip], n_episodes: int) -> Iterator[Finding]:
    """A line for a camera, whether one episode or all are dark."""
    dark = [strip for strip in strips if strip.brightness < DARK]
    if dark:
        count = f" in {len(dark)} of {len(strips)} episodes looked at" if len(strips) > 1 else ""
        if len(dark) < len(strips) < n_episodes:
            count += f" (perhaps in others of the {n_episodes - len(strips):,} not looked at)"
        text = f"{dark[0].camera}: frames are dark{count}, {dark[0].brightness:.1f} of 255 on average"
        yield Finding("warning", text, dark[0].episode, code="frames-dark")


def _moves(survey: Survey, episode: int, first: int, stop: int) -> bool:
    """Whether an observation changes between two frames of an episode; True if that episode was not read."""
    if episode not in survey.numbers:
        return True
    begin = int(survey.bounds[int(np.searchsorted(survey.numbers, episode))])
    return any(
        (np.ptp(signal.values[begin + first : begin + stop], axis=0) > 0.02 * np.ptp(signal.values, axis=0)).any()
        for signal in survey.of("observation")
    )
