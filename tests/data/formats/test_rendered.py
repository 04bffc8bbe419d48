"""Frames that are drawn from recorded states: those of the renderer, found by the states, drawn once."""

import os
import shutil

import numpy as np
import pytest
import torch

from dp_prior.data.errors import DataError, UnwritableError
from dp_prior.data.formats import rendered
from dp_prior.data.formats.choice import ALL_EPISODES
from dp_prior.data.formats.chosen import Chosen
from dp_prior.data.formats.npz import NpzStoreConfig
from dp_prior.data.formats.rendered import RenderedFrames
from dp_prior.data.formats.zarr.replay_buffer import ZarrStoreConfig
from dp_prior.data.frames.frame_cache import FrameCache
from dp_prior.data.recorded.camera import ImageConfig
from dp_prior.tensors.pixels.resize import Fit
from dp_prior_worlds.renderers.pusht import PushTRenderer, PushTRendererConfig
from tests.data.frames.recordings import ends_of, write_zarr
from tests.extras import needs
from tests.messages import naming

needs("gym_pusht", "pusht")
LENGTHS = [3, 7, 1, 4, 5]
STATES = np.random.default_rng(0).uniform([0, 0, 60, 60, 0], [512, 512, 450, 450, 6], (20, 5)).astype(np.float32)
SIZE = (24, 32)


@pytest.fixture(scope="module")
def expected() -> np.ndarray:
    """The frames of all states."""
    return PushTRendererConfig().create(SIZE)(STATES)


def saved(path, states=STATES, lengths=LENGTHS):
    np.savez(path, state=states, other=states[:, :2], episode_ends=ends_of(lengths))
    return NpzStoreConfig(path=path).create()


def source_of(store, key="state", lengths=LENGTHS):
    chosen = Chosen(ends_of(lengths), np.arange(len(lengths)), store.numbers())
    return RenderedFrames(store, key, chosen, PushTRendererConfig(), SIZE)


def cache_of(tmp_path, store):
    return FrameCache(source_of(store), Fit(size=SIZE), tmp_path / "caches")


@pytest.fixture
def blocks_of_three(monkeypatch):
    monkeypatch.setattr(rendered, "frames_per_block", lambda _: 3)


@pytest.mark.parametrize("format", ["npz", "zarr"])
def test_the_frames_of_any_format_are_those_of_the_renderer(tmp_path, format, blocks_of_three, expected):
    if format == "zarr":
        pytest.importorskip("zarr")
        frames = np.zeros((20, 2, 2, 3), np.uint8)
        store = ZarrStoreConfig(path=write_zarr(tmp_path / "d", frames, LENGTHS, **{"data/state": STATES})).create()
    else:
        store = saved(tmp_path / "d.npz")
    source = source_of(store)
    for skip in range(21):
        rest = list(source.read(source.parts[0], skip))
        assert np.array_equal(np.concatenate([expected[:0], *rest]), expected[skip:])


def test_the_cache_holds_them_and_a_build_goes_on_where_it_failed(tmp_path, monkeypatch, blocks_of_three, expected):
    drawn = []

    def failing(self, states, draw=PushTRenderer.__call__):
        if len(drawn) == 4:
            raise OSError("no screen")
        drawn.append(len(states))
        return draw(self, states)

    store = saved(tmp_path / "d.npz")
    with monkeypatch.context() as patch:
        patch.setattr(PushTRenderer, "__call__", failing)
        with pytest.raises(UnwritableError):
            cache_of(tmp_path, store).build()
    progress = []
    cache = cache_of(tmp_path, store)
    assert cache.estimate().frames_left == 9  # 12 frames were drawn, which are three episodes and one of four
    cache.build(2, progress.append)
    assert progress[-1].frames_done == 20
    assert np.array_equal(cache.open().rows(torch.arange(20)).numpy(), expected)


class Staged(PushTRendererConfig):
    """Every other episode has the same stage."""

    def stages(self, states):
        assert np.array_equal(states, STATES[ends_of(LENGTHS) - LENGTHS])  # the first state of each episode
        return np.arange(len(states)) % 2


def test_a_renderer_of_its_own_draws_each_stage_and_the_cache_is_that_of_one_renderer(tmp_path, monkeypatch, expected):
    """Also one that was begun by one renderer, in the order of the episodes."""
    store, opened = saved(tmp_path / "d.npz"), []
    chosen = Chosen(ends_of(LENGTHS), np.arange(len(LENGTHS)), store.numbers())
    source = RenderedFrames(store, "state", chosen, Staged(), SIZE)
    assert [part.episodes for part in source.parts] == [(0, 2, 4), (1, 3)]
    for part in source.parts:
        rows = np.concatenate([np.arange(20)[slice(*ends)] for ends in _spans(part.episodes)])
        for skip in range(len(rows) + 1):
            assert np.array_equal(np.concatenate([expected[:0], *source.read(part, skip)]), expected[rows[skip:]])
    cache = FrameCache(source, Fit(size=SIZE), tmp_path / "caches")
    assert cache.digest == cache_of(tmp_path, store).digest
    create = PushTRendererConfig.create
    monkeypatch.setattr(Staged, "create", lambda self, size: opened.append(size) or create(self, size), raising=False)
    cache.build(2)
    assert opened == [SIZE] * 2
    assert np.array_equal(cache.open().rows(torch.arange(20)).numpy(), expected)


def _spans(episodes):
    return [(ends_of(LENGTHS)[number] - LENGTHS[number], ends_of(LENGTHS)[number]) for number in episodes]


def test_the_states_find_the_cache_wherever_their_file_lies(tmp_path):
    digest = cache_of(tmp_path, saved(tmp_path / "d.npz")).digest
    shutil.copy(tmp_path / "d.npz", tmp_path / "copy.npz")
    os.utime(tmp_path / "copy.npz", (1, 1))
    assert cache_of(tmp_path, NpzStoreConfig(path=tmp_path / "copy.npz").create()).digest == digest
    changed = STATES.copy()
    changed[7, 3] += 1e-3
    assert cache_of(tmp_path, saved(tmp_path / "c.npz", changed)).digest != digest


def test_with_a_region_the_whole_is_drawn_so_large_that_the_region_has_the_size(tmp_path):
    store, region = saved(tmp_path / "d.npz"), [0.5, 0.25, 1, 0.75]
    record = ImageConfig(key="state", render=PushTRendererConfig(), size=SIZE, region=region)
    cache = record.cache(store, ALL_EPISODES.of(store)[0], tmp_path / "caches")
    whole = PushTRendererConfig().create((48, 64))(STATES)
    assert torch.equal(cache.open().rows(torch.arange(20)), torch.from_numpy(whole[:, 24:, 16:48]))
    assert cache.seen == "sees rows 24 to 47 and columns 16 to 47 of 48 x 64" and cache.shape == (*SIZE, 3)


@pytest.mark.parametrize("package", ["gym-pusht", "pymunk", "pygame", "opencv"])
def test_another_version_of_what_draws_makes_another_cache(tmp_path, monkeypatch, package):
    store = saved(tmp_path / "d.npz")
    digest, versions = cache_of(tmp_path, store).digest, PushTRendererConfig().versions()
    monkeypatch.setattr(PushTRendererConfig, "versions", lambda self: {**versions, package: "0"})
    assert cache_of(tmp_path, store).digest != digest


@pytest.mark.parametrize(
    "key, states, message",
    [
        ("stat", STATES, ("'stat'", "'state'")),
        ("other", STATES, ("(2,)", "'pusht'", "(5,)")),
        ("state", STATES[:19], ("d.npz[state]", "19 rows", "float32", 20)),
        ("state", np.where(np.arange(20)[:, None] == 6, np.nan, STATES), ("d.npz[state]", "row 6")),
    ],
)
def test_states_that_cannot_be_drawn_are_refused(tmp_path, key, states, message):
    with pytest.raises(DataError, match=naming(*message)):
        source_of(saved(tmp_path / "d.npz", states), key)
