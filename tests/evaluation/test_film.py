"""A film shows the first episodes side by side, and stills from first frame to last."""

import errno

import numpy as np
import pytest

from dp_prior.envs.toy import ToyConfig, expert_action
from dp_prior.evaluation.film import Film
from tests.evaluation.fakes import read_video
from tests.limits import file_sizes_up_to
from tests.messages import naming


def run_film(path, episodes, n=5, steps=24):
    env = ToyConfig(n_envs=n, max_steps=steps, render_size=32).create()
    obs, done, success = env.reset(range(n)), np.zeros(n, dtype=bool), np.zeros(n, dtype=bool)
    side = np.where(np.arange(n) % 2, 1.0, 0.0)  # even rows run into the disc
    with Film(path, episodes, env.fps) as film:
        film.add(env.render, done, success)
        while not done.all():
            obs, _, done, info = env.step(expert_action(obs["agent_pos"], obs["goal"], side))
            success = info["success"]
            film.add(env.render, done, success)
    return film


def test_film_tiles_the_first_episodes_and_frames_their_outcome(tmp_path):
    run_film(tmp_path / "f.mp4", 3)
    movie = np.stack(list(read_video(tmp_path / "f.mp4")))
    assert movie.shape[1:] == (68, 68, 3)  # 2 x 2 tiles of 32 with a gap of 4, one empty
    assert len(movie) == 1 + 24 + 10  # start, steps, and a second to look at the end
    last = movie[-1].astype(int)
    corner = {row: last[top + 1, left + 1] for row, (top, left) in enumerate([(0, 0), (0, 36), (36, 0)])}
    assert corner[1][1] > corner[1][0] + 40  # green: solved
    assert corner[0][0] > corner[0][1] + 40 and corner[2][0] > corner[2][1] + 40  # red
    assert (movie[0, :32, :32, 0] > 200).mean() > 0.5 and (last[40:, 40:] > 245).all()


def test_stills_are_few_evenly_spread_and_end_with_the_episode(tmp_path):
    film = run_film(tmp_path / "f.mp4", 2, steps=200)
    steps = [[step for step, _ in strip] for strip in film.strips]
    assert steps[0][0] == 0 and steps[0][-1] == 200 and len(steps[0]) == 8
    assert np.diff(steps[0]).max() <= 2 * np.diff(steps[0]).min()
    assert steps[1][0] == 0 and 20 <= steps[1][-1] <= 24
    assert max(map(len, film._stills)) <= 48
    assert (film.strips[0][0][1] != film.strips[0][-1][1]).any()


@pytest.mark.promise("F2")
@pytest.mark.parametrize("most", [0, 4096])
def test_a_full_disk_costs_the_video_alone(tmp_path, most):
    with file_sizes_up_to(most):
        film = run_film(tmp_path / "f.mp4", 2, steps=200)
    with pytest.raises(OSError) as caught:
        film.written()
    assert caught.value.errno == errno.EFBIG
    assert list(tmp_path.iterdir()) == []
    assert [strip[-1][0] for strip in film.strips] == [
        strip[-1][0] for strip in run_film(tmp_path / "g.mp4", 2, steps=200).strips
    ]


def test_another_error_ends_the_film_and_is_told(tmp_path):
    with pytest.raises(RuntimeError, match=naming("simulator")), Film(tmp_path / "f.mp4", 1, 10) as film:
        film.add(lambda rows: np.zeros((len(rows), 32, 32, 3), np.uint8), np.zeros(1, bool), np.zeros(1))
        raise RuntimeError("of the simulator")
    assert list(tmp_path.iterdir()) == []
