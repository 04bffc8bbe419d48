"""Mirror images of episodes: exact, of the training part alone, and those of the task they are meant for."""

import json
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.study.design import MIRRORED
from dp_prior.config import ConfigError
from dp_prior.data.columns.mirrored import Flip, flipped, flipped_region
from dp_prior.data.errors import DataError
from dp_prior.data.recorded.mirror import MirrorConfig
from dp_prior.data.recorded.mixture import MixtureConfig
from dp_prior.data.recorded.trajectories import TrajectoriesConfig
from dp_prior.run.config import TrainConfig
from dp_prior.tensors.action_motion import ActionMotion
from dp_prior.tensors.pixels.resize import Fit
from dp_prior.tensors.six_d import from_6d
from tests.examples import examples
from tests.messages import naming, told

SPLIT = {"train": 0.6, "val": 0.2, "test": 0.2}
MIRROR = {
    "arms": {"order": [2, 3, 0, 1], "sign": [1, -1, 1, -1], "offset": [0.5, 8, -0.5, 8]},
    "load": {},
    "action": {"order": [1, 0], "sign": -1},
}
KEYS = {"obs": {"arms": {"key": "arms"}, "load": {"key": "load"}}, "action": {"key": "action"}, "split": SPLIT}


def recorded(lengths=(9, 4, 12, 7, 15, 6)) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    shapes = {"arms": 4, "load": 1, "action": 2}
    arrays = {key: random.integers(-9, 9, (sum(lengths), n)).astype(np.float32) for key, n in shapes.items()}
    return {**arrays, "episode_ends": np.cumsum(lengths)}


def config(path, arrays=None, **change) -> TrajectoriesConfig:
    np.savez(path, **(arrays or recorded()))
    return TrajectoriesConfig.from_json(json.dumps({"episodes": {"type": "npz", "path": str(path)}, **KEYS, **change}))


def samples(part) -> list[bytes]:
    """Every window of a part, as bytes."""
    batch = part.fetch(torch.arange(len(part)))
    tensors = [batch.x.masked_fill(~batch.mask[..., None], 0), *(batch.cond[key] for key in sorted(batch.cond))]
    rows = torch.cat([tensor.flatten(1) for tensor in tensors], 1).numpy() + 0.0  # no negative zero
    return [row.tobytes() for row in rows]


def in_the_mirror(arrays):
    """By hand."""
    a, b, c, d = arrays["arms"].T
    left, right = arrays["action"].T
    arms, action = np.stack([c + 0.5, 8 - d, a - 0.5, 8 - b], 1), -np.stack([right, left], 1)
    return {**arrays, "arms": arms.astype(np.float32), "action": action.astype(np.float32)}


def test_training_windows_are_those_of_the_episodes_and_then_of_their_images(tmp_path):
    how = (5, 2, 3)
    plain = config(tmp_path / "a.npz").create(*how)
    image = config(tmp_path / "b.npz", in_the_mirror(recorded())).create(*how)
    both = config(tmp_path / "c.npz", mirror=MIRROR).create(*how)
    assert samples(both.train) == samples(plain.train) + samples(image.train)
    for part in ("val", "test"):
        assert samples(getattr(both, part)) == samples(getattr(plain, part)) != samples(getattr(image, part))
    assert both.split_ids == plain.split_ids and both.fingerprint not in (plain.fingerprint, image.fingerprint)
    found, expected = both.report(), plain.report()
    assert [found[key] for key in ("episodes", "steps", "episode_lengths")] == [
        expected[key] for key in ("episodes", "steps", "episode_lengths")
    ]
    assert found["parts"]["train"]["windows"] == 2 * expected["parts"]["train"]["windows"]
    assert found["parts"]["val"] == expected["parts"]["val"]
    assert told(both.summary(), "half of", "mirror") and not told(plain.summary(), "mirror")


def test_the_images_of_images_are_the_episodes(tmp_path):
    plain = config(tmp_path / "a.npz", mirror=MIRROR).create(5, 2, 3)
    image = config(tmp_path / "b.npz", in_the_mirror(recorded()), mirror=MIRROR).create(5, 2, 3)
    assert sorted(samples(plain.train)) == sorted(samples(image.train))
    for key, found in plain.statistics().items():
        np.testing.assert_allclose(found.mean, image.statistics()[key].mean, atol=1e-5)
    np.testing.assert_allclose(plain.statistics()["x"].mean.sum(), 0, atol=1e-6)  # as its rule says


CAMERAS = {
    "left": {"key": "left", "size": [6, 8], "mirror": {"flip": "left_right", "camera": "right"}},
    "right": {"key": "right", "size": [6, 8], "mirror": {"flip": "left_right", "camera": "left"}},
    "side": {"key": "side", "size": [6, 8], "mirror": {"flip": "up_down"}},
    "top": {"key": "top", "size": [8, 8], "mirror": {"flip": "antidiagonal"}},
    "floor": {"key": "floor", "size": [8, 8], "mirror": {"flip": "diagonal"}},
}


def filmed() -> dict[str, np.ndarray]:
    random, arrays = np.random.default_rng(1), recorded()
    count = len(arrays["action"])
    shapes = {name: (count, *camera["size"], 3) for name, camera in CAMERAS.items()}
    return arrays | {name: random.integers(0, 256, shape, dtype=np.uint8) for name, shape in shapes.items()}


def filmed_in_the_mirror(arrays):
    """By hand, a pixel at a time."""
    found = in_the_mirror(arrays) | {name: np.empty_like(arrays[name]) for name in CAMERAS}
    for row, column in np.ndindex(6, 8):
        found["left"][:, row, column] = arrays["right"][:, row, 7 - column]
        found["right"][:, row, column] = arrays["left"][:, row, 7 - column]
        found["side"][:, row, column] = arrays["side"][:, 5 - row, column]
    for row, column in np.ndindex(8, 8):
        found["top"][:, row, column] = arrays["top"][:, 7 - column, 7 - row]
        found["floor"][:, row, column] = arrays["floor"][:, column, row]
    return found


def test_frames_are_turned_over_and_those_of_two_arms_change_places(tmp_path):
    how, arrays = (5, 2, 3), filmed()
    unmirrored = {name: {**camera, "mirror": None} for name, camera in CAMERAS.items()}
    plain = config(tmp_path / "a.npz", arrays, images=unmirrored).create(*how)
    image = config(tmp_path / "b.npz", filmed_in_the_mirror(arrays), images=unmirrored).create(*how)
    both = config(tmp_path / "c.npz", arrays, images=CAMERAS, mirror=MIRROR).create(*how)
    assert samples(both.train) == samples(plain.train) + samples(image.train)
    for part in ("val", "test"):
        assert samples(getattr(both, part)) == samples(getattr(plain, part)) != samples(getattr(image, part))
    motion = ActionMotion.joined([plain.spec.motion, image.spec.motion])
    assert both.spec == plain.spec.model_copy(update={"motion": motion})
    assert len(both.cache_directories()) == len(CAMERAS)


@pytest.mark.parametrize("flip", get_args(Flip))
def test_the_region_of_a_flipped_picture_shows_what_the_region_of_the_picture_shows(flip):
    frames = torch.arange(10 * 20).view(1, 10, 20, 1)
    region = (0.1, 0.05, 0.7, 0.4)

    def cut(frames, region):
        rows, columns = Fit(size=(1, 1), region=region).box(*frames.shape[1:3])
        return frames[:, rows, columns]

    assert torch.equal(flipped(cut(frames, region), flip), cut(flipped(frames, flip), flipped_region(region, flip)))
    assert flipped_region(flipped_region(region, flip), flip) == [*region]


def test_another_rule_for_frames_is_another_data_set(tmp_path):
    other = {**CAMERAS, "top": {**CAMERAS["top"], "mirror": {"flip": "diagonal"}}}
    images = (CAMERAS, other, CAMERAS)
    prints = [config(tmp_path / "a.npz", filmed(), images=one, mirror=MIRROR).create(5, 2, 3) for one in images]
    first, changed, again = (one.fingerprint for one in prints)
    assert first == again != changed


@examples(60)
@given(data=st.data(), width=st.integers(1, 7))
def test_every_rule_that_is_accepted_is_its_own_inverse(data, width):
    numbers = st.lists(st.integers(-2, 2), min_size=width, max_size=width)
    order = data.draw(st.one_of(st.none(), st.permutations(range(width))))
    sign = data.draw(
        st.one_of(st.sampled_from([-1, 1]), st.lists(st.sampled_from([-1, 1]), min_size=width, max_size=width))
    )
    offset = data.draw(st.one_of(st.integers(-2, 2), numbers))
    values = np.random.default_rng(0).integers(-99, 99, (3, width)).astype(np.float32)
    try:
        rule = MirrorConfig.from_json(json.dumps({"order": order, "sign": sign, "offset": offset}))
    except ConfigError:
        rule = MirrorConfig.model_construct(order=order and tuple(order), sign=sign, offset=offset)
        assert (rule.image(rule.image(values)) != values).any()
    else:
        if rule.fault(width) is None:
            np.testing.assert_array_equal(rule.image(rule.image(values)), values)
        else:
            assert (rule.image(rule.image(values)) != values).any()


def test_the_previous_action_is_that_of_the_image(tmp_path):
    data = config(tmp_path / "a.npz", mirror=MIRROR, previous_action="before").create(5, 2, 3)
    batch = data.train.fetch(torch.arange(len(data.train)))
    is_inside = batch.mask[:, 0]  # the first step of an episode has none
    assert is_inside.sum() > 20
    torch.testing.assert_close(batch.cond["before"][is_inside, 1], batch.x[is_inside, 0], rtol=0, atol=0)


TURNED = {"turn": {"key": "turn", "rotations": [{"slice": [0, 9], "form": "matrix"}]}}


def test_mirrored_rotations_are_rotations(tmp_path):
    """A mirror at the plane x = 0 changes the sign of what is odd in x; of one row alone, the image is no rotation."""
    turns = from_6d(torch.randn(53, 6, generator=torch.Generator().manual_seed(0)), "matrix").numpy()
    arrays = {"turn": turns, "action": turns[:, :2], "episode_ends": np.array([30, 53])}
    signs = {True: [1, -1, -1, -1, 1, 1, -1, 1, 1], False: [-1, -1, -1, 1, 1, 1, 1, 1, 1]}
    for is_right, sign in signs.items():
        mirror = {"turn": {"sign": sign}, "action": {}}
        given = config(tmp_path / "a.npz", arrays, obs=TURNED, mirror=mirror)
        if is_right:
            given.create(5, 1, 3)
            continue
        with pytest.raises(DataError, match=naming("turn", "[0, 9]", "'matrix'", "axes")):
            given.create(5, 1, 3)


def test_sets_of_a_mixture_mirror_their_cameras(tmp_path):
    one = {key: value for key, value in KEYS.items() if key != "split"} | {"images": CAMERAS, "mirror": MIRROR}
    alone = [config(tmp_path / f"{name}.npz", filmed(), images=CAMERAS, mirror=MIRROR).create(5, 2, 3) for name in "ab"]
    sets = {name: {**one, "episodes": {"type": "npz", "path": str(tmp_path / f"{name}.npz")}} for name in "ab"}
    both = MixtureConfig.from_json(json.dumps({"type": "mixture", "sets": sets, "split": SPLIT})).create(5, 2, 3)
    assert samples(both.train) == [row for each in alone for row in samples(each.train)]


def test_each_set_of_a_mixture_has_its_own(tmp_path):
    paths = {name: tmp_path / f"{name}.npz" for name in "ab"}
    one = {key: value for key, value in KEYS.items() if key != "split"}
    sets = {name: {**one, "episodes": {"type": "npz", "path": str(path)}} for name, path in paths.items()}
    for path in paths.values():
        config(path)
    sizes = []
    for mirrored in ("", "a", "ab"):
        given = {name: {**each, "mirror": MIRROR if name in mirrored else {}} for name, each in sets.items()}
        data = MixtureConfig.from_json(json.dumps({"type": "mixture", "sets": given, "split": SPLIT})).create(5, 2, 3)
        sizes.append(len(data.train))
    assert sizes == [sizes[0], sizes[0] * 3 // 2, sizes[0] * 2]


@pytest.mark.parametrize(
    ("rule", "line"),
    [
        ({"order": [0, 0]}, ("mirror.action", "[0, 0]", "0 to 1")),
        ({"order": [1, 2]}, ("mirror.action", "[1, 2]", "0 to 1")),
        (
            {"order": [1, 2, 0]},
            ("element 0", "element 1", "order 1", "order 2"),
        ),
        ({"sign": [1, -1], "order": [1, 0]}, ("element 0", "element 1", "sign 1", "sign -1")),
        ({"offset": 512}, ("element 0", "offset 512")),
        ({"sign": -1, "order": [1, 0], "offset": [3, 4]}, ("element 0", "offset 3", "offset 4")),
        ({"order": [1, 0], "sign": [-1, -1, -1]}, ("mirror.action", "sign", 3, 2)),
        ({"sign": 2}, ("mirror.action.sign", 2)),
    ],
)
def test_rules_that_are_no_mirror_are_refused(tmp_path, rule, line):
    with pytest.raises(ConfigError, match=naming(*line)):
        config(tmp_path / "a.npz", mirror={**MIRROR, "action": rule})


def test_rules_that_do_not_fit_the_data_are_refused_by_name(tmp_path):
    wrong = {"arms": {"order": [1, 0]}, "load": {"sign": [1, 1]}, "action": {"sign": -1}}
    with pytest.raises(DataError) as caught:
        config(tmp_path / "a.npz", mirror=wrong).create(5, 2, 3)
    assert caught.value.problems == ["arms: order has 2 elements; expected 4", "load: sign has 2 elements; expected 1"]
    arrays = recorded() | {"arms": np.zeros((53, 4, 2), np.float32)}
    with pytest.raises(DataError, match=naming("arms", "(4, 2)")):
        config(tmp_path / "a.npz", arrays, mirror=MIRROR).create(5, 2, 3)


def test_the_configuration_of_the_human_demonstrations_has_the_mirror_that_is_tested_here():
    given = TrainConfig.from_json_path(Path(__file__).parents[3] / "configs/policy/pusht_human.json").data.mirror
    assert given == {key: MirrorConfig.model_validate(rule) for key, rule in MIRRORED["data.mirror"].items()}


@pytest.mark.slow
def test_push_t_is_the_same_task_in_its_mirror():
    """The environment itself: from mirrored states mirrored actions lead to mirrored states, with the same reward."""
    pytest.importorskip("gym_pusht", reason="gym-pusht is not installed: the mirror of Push-T is NOT tested")
    from dp_prior_worlds.pusht import repeatable_env

    rules = {key: MirrorConfig.model_validate(rule) for key, rule in MIRRORED["data.mirror"].items()}
    env, twin = (repeatable_env()(obs_type="state") for _ in range(2))
    random, off, moved = np.random.default_rng(0), [], []
    for episode in range(6):
        state, _ = env.reset(seed=episode)
        twin.reset(seed=episode)
        for _ in range(25):
            image = rules["state"].image(state[None])[0].astype(float)
            twin.agent.position, twin.block.angle = image[:2].tolist(), image[4]
            twin.agent.velocity, twin.block.position = (
                (-env.agent.velocity[1], -env.agent.velocity[0]),
                tuple(image[2:4]),
            )
            action = state[2:4] + random.normal(scale=40, size=2)  # into the block
            before, (state, reward, *_) = state, env.step(action)
            found, same, *_ = twin.step(rules["action"].image(action[None])[0].astype(float))
            if np.abs(state[:4] - 256).max() < 180:  # the walls lie half a pixel off the mirror
                difference = found - rules["state"].image(state[None])[0]
                difference[4] = 60 * np.sin(difference[4])
                off.append(max(np.abs(difference).max(), 100 * abs(same - reward)))
                moved.append(np.abs(state[2:4] - before[2:4]).max())
    off, moved = np.array(off), np.array(moved)
    assert (moved > 3).sum() > 20  # the block was pushed
    assert np.quantile(off[moved > 3], 0.9) < 0.5 and np.median(off) < 1e-3  # of contacts the order of solving counts


def test_the_camera_of_push_t_sees_the_mirror_image():
    """The renderer draws mirrored states as it draws states, turned over at the diagonal of the goal."""
    pytest.importorskip("gym_pusht", reason="gym-pusht is not installed: the mirror of Push-T is NOT tested")
    from dp_prior_worlds.renderers.pusht import PushTRendererConfig

    rule = MirrorConfig.model_validate(MIRRORED["data.mirror"]["state"])
    states = np.random.default_rng(0).uniform([60, 60, 120, 120, 0], [450, 450, 390, 390, 6.28], (20, 5))
    draw = PushTRendererConfig().create((96, 96))
    found, expected = torch.from_numpy(draw(states)), draw(rule.image(states.astype(np.float32))).astype(int)
    off = {flip: np.abs(flipped(found, flip).numpy() - expected).max(-1) for flip in get_args(Flip)}
    assert (off["antidiagonal"] > 32).mean() < 0.01 and off["antidiagonal"].mean() < 1  # edges are half a pixel off
    assert min(off[flip].mean() for flip in off if flip != "antidiagonal") > 8
