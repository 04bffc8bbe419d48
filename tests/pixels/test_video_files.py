"""Video files."""

import os
import sys

import numpy as np
import pytest

from dp_prior.files.regular_files import UnfitError
from dp_prior.pixels.video_files import import_av, opened_video

av = pytest.importorskip("av")


def written(path, n_streams=1):
    with av.open(str(path), "w") as container:
        streams = [container.add_stream("mpeg4", rate=5) for _ in range(n_streams)]
        for stream in streams:
            stream.width, stream.height, stream.pix_fmt = 32, 24, "yuv420p"
        for stream in streams:
            for number in range(3):
                frame = av.VideoFrame.from_ndarray(np.full((24, 32, 3), 80 * number, np.uint8), format="rgb24")
                container.mux(stream.encode(frame))
            container.mux(stream.encode())
    return path


def test_its_one_stream_is_decoded(tmp_path):
    with opened_video(written(tmp_path / "a.mp4")) as (container, stream):
        means = [frame.to_ndarray(format="rgb24").mean() for frame in container.decode(stream)]
        assert [round(mean / 80) for mean in means] == [0, 1, 2]


def test_another_number_of_streams_and_what_is_no_file_is_refused(tmp_path):
    with (
        pytest.raises(UnfitError, match="holds 2 video streams; expected 1"),
        opened_video(written(tmp_path / "two.mkv", 2)),
    ):
        pass
    os.mkfifo(tmp_path / "pipe.mp4")
    for path, problem in ((tmp_path / "pipe.mp4", "a named pipe"), (tmp_path, "a folder")):
        with pytest.raises(UnfitError, match=problem), opened_video(path):
            pass
    (tmp_path / "text.mp4").write_text("no video")
    for name, error in (("text.mp4", av.FFmpegError), ("missing.mp4", FileNotFoundError)):
        with pytest.raises(error), opened_video(tmp_path / name):
            pass


def test_without_pyav_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ImportError, match=r'videos need PyAV .*pip install "dp_prior\[video\]"; or not$'):
        import_av("; or not")
