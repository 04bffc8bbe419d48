"""Films, videos, GIFs and pictures of rollouts: what they show, and that they appear whole or not at all."""

import builtins
import contextlib
import os
import sys

import numpy as np
import pytest

from dp_prior.diffusion.draw import AS_CONFIGURED
from dp_prior.envs.toy import ToyConfig
from dp_prior.evaluation.rollout import RolloutConfig
from dp_prior.tensors.pixels import video_writer as video
from dp_prior.tensors.pixels.video_writer import Compression, VideoWriter, write_gif
from tests.evaluation.fakes import NOW, TinyPolicy, on_ranks, read_video
from tests.extras import needs
from tests.messages import naming, told

needs("av", "video")
POLICY = TinyPolicy(keys={"agent_pos": (2,), "goal": (2,)})


def frames(n, height=34, width=48):
    """A bright square that moves to the right."""
    movie = np.full((n, height, width, 3), 40, dtype=np.uint8)
    for i in range(n):
        movie[i, 8:24, i : i + 16] = 220
    return movie


def test_video_holds_every_frame_in_order(tmp_path):
    with VideoWriter(tmp_path / "new" / "v.mp4", fps=12.5) as writer:
        for frame in frames(30):
            writer.write(frame)
    found = np.stack(list(read_video(tmp_path / "new" / "v.mp4")))
    assert found.shape == (30, 34, 48, 3)
    assert np.abs(found.astype(int) - frames(30)).mean() < 4  # h264 is not exact
    centre = (found[..., 0] > 130).any(axis=1).argmax(axis=1)
    assert np.abs(centre - np.arange(30)).max() <= 1


def test_odd_sides_are_cut_to_even_ones(tmp_path):
    with VideoWriter(tmp_path / "v.mp4", fps=10) as writer:
        writer.write(frames(1, 35, 49)[0])
    assert next(read_video(tmp_path / "v.mp4")).shape == (34, 48, 3)


@pytest.mark.slow
def test_same_frames_give_the_same_bytes_whatever_lay_in_memory(tmp_path):
    """With x264's defaults, about one in seven of these videos has other bytes."""
    rng = np.random.default_rng(0)
    rows, columns = np.mgrid[:128, :260]
    movie = np.full((36, 128, 260, 3), 255, np.uint8)
    for i, k in np.ndindex(36, 5):  # discs of changing colours that move to the right
        distance = np.hypot(columns - 40 - 3 * i - 17 * k, rows - 60 - 20 * np.sin(i / 5 + k))
        movie[i][distance < 9] = rng.integers(0, 255, 3)
    litter, found = [], set()
    for _ in range(30):
        litter += [rng.bytes(size) for size in rng.integers(100, 3_000_000, 10)]
        rng.shuffle(litter)
        del litter[: len(litter) // 2]
        with VideoWriter(tmp_path / "v.mp4", fps=10) as writer:
            for frame in movie:
                writer.write(frame)
        found.add((tmp_path / "v.mp4").read_bytes())
    assert len(found) == 1


def test_frame_rate_and_codec(tmp_path):
    import av

    with VideoWriter(tmp_path / "v.mp4", fps=10) as writer:
        for frame in frames(20):
            writer.write(frame)
    with av.open(str(tmp_path / "v.mp4")) as container:
        stream = container.streams.video[0]
        assert stream.codec_context.name == "h264" and stream.codec_context.pix_fmt == "yuv420p"
        assert float(stream.average_rate) == 10 and float(stream.duration * stream.time_base) == 2.0


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="only root on Linux may make such threads")
def test_no_thread_of_an_encoder_runs_before_all_other_processes(tmp_path):
    """SVT-AV1 asks for that, for itself and for its caller."""
    before = os.sched_getscheduler(0)
    with VideoWriter(tmp_path / "v.mp4", 10, Compression("libsvtav1", {"preset": "12"})) as writer:
        writer.write(frames(1, 64, 64)[0])
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(ProcessLookupError):  # a thread of an earlier test has ended
                assert os.sched_getscheduler(int(thread)) == before
    assert os.sched_getscheduler(0) == before


def test_video_of_a_failed_run_does_not_appear(tmp_path):
    with pytest.raises(KeyError), VideoWriter(tmp_path / "v.mp4", fps=10) as writer:
        writer.write(frames(1)[0])
        raise KeyError("simulator")
    assert not list(tmp_path.iterdir())
    with VideoWriter(tmp_path / "v.mp4", fps=10):
        pass  # nothing was written
    assert not list(tmp_path.iterdir())


def test_gif_shows_the_video(tmp_path, monkeypatch):
    from PIL import Image

    with VideoWriter(tmp_path / "v.mp4", fps=10) as writer:
        for frame in frames(30):
            writer.write(frame)
    write_gif(tmp_path / "v.mp4", tmp_path / "new" / "v.gif")
    with Image.open(tmp_path / "new" / "v.gif") as gif:
        assert gif.n_frames == 15 and gif.size == (320, 227) and gif.info["loop"] == 0 and gif.info["duration"] == 200
        gif.seek(5)
        picture = np.asarray(gif.convert("RGB").resize((48, 34))).astype(int)
    assert np.abs(picture[16, :, 0] - frames(30)[10][16, :, 0]).mean() < 25
    monkeypatch.setattr(video, "GIF_FRAMES", 12)
    monkeypatch.setattr(video, "GIF_WIDTH", 24)
    write_gif(tmp_path / "v.mp4", tmp_path / "short.gif")
    with Image.open(tmp_path / "short.gif") as gif:
        assert gif.n_frames == 12 and gif.size == (24, 17)


@pytest.mark.slow
def test_rollout_leaves_a_video_a_picture_and_a_report(tmp_path, drawn):
    config = RolloutConfig(env=ToyConfig(n_envs=4, render_size=32), n_episodes=6, videos=3, model="online")
    result = config.create(None, tmp_path).run({"online": POLICY}, None, NOW)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"rollout_00000100.{e}" for e in ("json", "mp4", "png")]
    assert result.media == {
        "rollout/video": tmp_path / "rollout_00000100.mp4",
        "rollout/picture": tmp_path / "rollout_00000100.png",
    }
    from PIL import Image

    with Image.open(result.media["rollout/picture"]) as picture:
        assert picture.format == "PNG" and min(picture.size) > 300
    unfilmed = config.model_copy(update={"videos": 0}).create(None, tmp_path).run({"online": POLICY}, None, NOW)
    assert unfilmed.metrics == result.metrics and not unfilmed.media


def test_failed_rollout_leaves_no_video_behind(tmp_path):
    class Failing(TinyPolicy):
        def draw(self, obs, random, how=AS_CONFIGURED):
            if hasattr(self, "asked"):  # the second time
                raise OSError("gone")
            self.asked = True
            return super().draw(obs, random, how)

    config = RolloutConfig(env=ToyConfig(n_envs=2, render_size=32), n_episodes=2, videos=2, model="online")
    with pytest.raises(OSError, match=naming("gone", "'rollout'")):
        config.create(None, tmp_path).run({"online": Failing(keys={"agent_pos": (2,), "goal": (2,)})}, None, NOW)
    assert not list(tmp_path.iterdir())


def test_only_the_first_rank_films(tmp_path):
    config = RolloutConfig(env=ToyConfig(n_envs=2, render_size=32), n_episodes=6, videos=2, model="online")

    def run(models, accelerator):
        directory = tmp_path / str(accelerator.process_index)
        return config.create(None, directory).run(models, accelerator, NOW)

    first, second = on_ranks(2, run, {"online": POLICY})
    assert first.metrics == second.metrics and first.media and not second.media
    assert [path.name for path in tmp_path.iterdir()] == ["0"]


@pytest.mark.parametrize(
    ("package", "message"),
    [
        ("av", ("PyAV", 'pip install "dp_prior[video]"')),
        ("matplotlib", ("matplotlib", 'pip install "dp_prior[plots]"')),
    ],
)
def test_missing_packages_are_named_when_the_evaluator_is_made(monkeypatch, tmp_path, package, message, caplog):
    def refuse(name, *args, original=builtins.__import__, **kwargs):
        if name.split(".")[0] == package:
            raise ImportError(f"No module named {package!r}")
        return original(name, *args, **kwargs)

    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", refuse)
    config = RolloutConfig(env=ToyConfig())
    assert config.create(None, tmp_path).config.filmed == 0
    assert told(caplog.text, "'rollout'", "videos 0", *message)
    caplog.clear()
    config.model_copy(update={"videos": 0}).create(None, tmp_path)
    assert not caplog.text
