"""Cameras that are exchanged, blue for red, or moved in an episode are found, and right ones are not."""

import itertools
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from dp_prior.data.formats.choice import ChoiceConfig
from dp_prior_foreign.recognition import kind_of, record_of
from dp_prior_studio.inspection.survey import survey
from dp_prior_studio.inspection.viewpoints import SIZE, Views, _best_shift, find_in_views
from tests.messages import told, told_each
from tests.plugins.dp_prior_studio.inspection.recordings import clean, write_npz

pytest.importorskip("PIL")

RECORDED = Path(__file__).parents[5] / "shared" / "data"
REAL = {"g1_yellow_bottle/lerobot": (), "cr5_banana_plate/lerobot": (), "lingzu_open50_v30/lerobot": (28, 38)}


def scene(seed):
    """(height, width, 3) of a place with things of several colours, larger than a frame."""
    random, size = np.random.default_rng(seed), (SIZE[0], SIZE[1] + 16)
    picture = np.full((*size, 3), random.uniform(80, 160, 3))
    for _ in range(25):
        top, left = random.integers(0, size[0] - 6), random.integers(0, size[1] - 6)
        picture[top : top + 9, left : left + 9] = random.uniform(20, 235, 3)
    return picture


def episode_of(picture, seed, n, left=0):
    """(n, *SIZE, 3) uint8 frames in which something small moves, under noise."""
    random = np.random.default_rng(seed)
    frames = np.repeat(picture[None, :, left : left + SIZE[1]], n, 0) + random.normal(0, 3, (n, *SIZE, 3))
    at = random.integers(5, 35)
    for row, frame in enumerate(frames):
        frame[at : at + 5, row // 3 : row // 3 + 5] = 240
    return frames.clip(0, 255).astype(np.uint8)


def found_in(tmp_path, change=lambda number, cameras: cameras, n=6):
    """The findings about n episodes of two cameras, of which `change` may change those of an episode."""
    episodes, (front, wrist) = clean(n), (scene(1), scene(2))
    for number, episode in enumerate(episodes):
        steps = len(episode["action"])
        pair = episode_of(front, 10 + number, steps), episode_of(wrist, 30 + number, steps)
        episode["front"], episode["wrist"] = change(number, pair)
    store = record_of("npz", write_npz(tmp_path / "d.npz", episodes)).create()
    seen = survey(store)
    views = {key: Views.of(key, store.frames(key, store.episode_ends)) for key in seen.cameras}
    assert [list(each.pictures) for each in views.values()] == [list(range(n))] * 2
    return list(find_in_views(views, seen))


@pytest.mark.parametrize("n", [pytest.param(2, marks=pytest.mark.slow), 3, pytest.param(6, marks=pytest.mark.slow)])
def test_cameras_that_stay_what_they_are_have_no_finding(tmp_path, n):
    assert found_in(tmp_path, n=n) == []


@pytest.mark.slow
def test_light_that_changes_its_strength_and_colour_is_no_finding(tmp_path):
    def under(number, cameras):
        light = np.array([1.15, 1.0, 0.85]) if number == 3 else 1.0
        return tuple((frames * light).clip(0, 255).astype(np.uint8) for frames in cameras)

    assert found_in(tmp_path, under) == []


def blue_for_red(number, cameras):
    return (cameras[0][..., ::-1], cameras[1]) if number == 3 else cameras


def exchanged(number, cameras):
    return cameras[::-1] if number == 3 else cameras


def moved(number, cameras):
    left = 10  # 15 % of the width
    return (episode_of(scene(1), 50, len(cameras[0]), left), cameras[1]) if number == 3 else cameras


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (blue_for_red, ("front", "red", "blue", "exchanged")),
        pytest.param(exchanged, ("front", "wrist", "exchanged"), marks=pytest.mark.slow),
        pytest.param(moved, ("front", "16% of", "width", "0% of", "height"), marks=pytest.mark.slow),
    ],
)
def test_an_episode_that_differs_is_named_and_left_out(tmp_path, change, parts):
    [found] = found_in(tmp_path, change)
    assert found.severity == "warning" and told(found.text, *parts) and found.leave_out == [3]
    [of_two] = found_in(tmp_path, lambda number, cameras: change(3 * number, cameras), n=2)
    assert told(of_two.text, *parts, "episodes 0, 1") and not of_two.leave_out


def test_cameras_that_moved_by_different_ways_are_told_with_the_largest():
    place = scene(1).astype(np.float32)
    pictures = {number: place[:, : SIZE[1]] for number in range(5)}
    pictures[1] = place[:, 10 : 10 + SIZE[1]]
    pictures[3] = np.concatenate([scene(2)[:6, : SIZE[1]], pictures[0][:-6]])
    seen = SimpleNamespace(chosen=SimpleNamespace(named=list))
    [found] = find_in_views({"front": Views("front", pictures)}, seen)
    assert told(found.text, "front", "16% of", "12% of", "episodes 1, 3 of 5") and found.leave_out == [1, 3]


def test_the_best_shift_is_that_of_all_overlaps_one_by_one():
    draw = np.random.default_rng(0)
    for height, width in ((20, 30), (21, 17)):
        usual = draw.normal(size=(height, width)).astype(np.float32)
        mine = np.roll(usual, (3, -2), (0, 1)) + draw.normal(size=usual.shape).astype(np.float32)
        matches = {}
        for down, right in itertools.product(range(-int(0.3 * height), 7), range(-int(0.3 * width), 6)):
            rows, columns = slice(max(0, down), height + down), slice(max(0, right), width + right)
            there = slice(max(0, -down), height - down), slice(max(0, -right), width - right)
            matches[down / height, right / width] = np.corrcoef(mine[rows, columns].ravel(), usual[there].ravel())[0, 1]
        best = max(matches, key=matches.get)
        assert best == (3 / height, -2 / width)
        assert _best_shift(mine, usual) == (best, pytest.approx(matches[best], abs=1e-6))
        assert _best_shift(0 * mine + 3, usual)[1] == 0, "a picture without contrast"


@pytest.mark.parametrize("name", REAL)
def test_real_cameras_have_no_finding_until_an_episode_is_changed(name):
    pytest.importorskip("av")
    if not (RECORDED / name).exists():
        pytest.skip(f"{RECORDED / name} is absent: real cameras are NOT compared")
    store = record_of(kind_of(RECORDED / name), RECORDED / name).create()
    seen = survey(store, None, ChoiceConfig(only=REAL[name] or None))
    key = next(iter(seen.cameras))
    views = Views.of(key, store.frames(key, seen.chosen.recorded, numbers=seen.chosen.numbers))
    assert list(find_in_views({key: views}, seen)) == []
    place = list(views.pictures)[1]
    turned = Views(key, {**views.pictures, place: views.pictures[place][..., ::-1]})
    assert told_each((one.text for one in find_in_views({key: turned}, seen)), (key, "red", "blue"))


@pytest.mark.parametrize(("away", "is_told"), [(1.0, False), (10.0, True)])
def test_cameras_that_see_nearly_the_same_cannot_be_exchanged(away, is_told):
    place = scene(1)[:, : SIZE[1]].astype(np.float32)
    first, second = ({number: place + shift for number in range(5)} for shift in (0.0, np.float32(away)))
    first[2], second[2] = second[2], first[2]
    views = {name: Views(name, pictures) for name, pictures in (("front", first), ("wrist", second))}
    seen = SimpleNamespace(chosen=SimpleNamespace(named=list))
    assert told_each((finding.text for finding in find_in_views(views, seen)), *([("front", "wrist", 2)] * is_told))
