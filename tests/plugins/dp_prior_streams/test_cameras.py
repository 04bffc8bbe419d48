import pytest

from dp_prior.config import ConfigError
from dp_prior_streams.cameras import StreamedCameras, check_cameras
from tests.extras import needs
from tests.messages import naming
from tests.plugins.dp_prior_streams.recorded_sets import FRONT, add_videos, data_config, streamed, write_v3

needs("av", "video")
needs("pyarrow", "lerobot")


def test_cameras_of_a_streamed_set_decode_nothing_at_the_start(tmp_path):
    folder = add_videos(write_v3(tmp_path / "set", files=2, episodes_per_file=4), episodes_per_file=3)
    for file in folder.rglob("*.mp4"):
        file.write_bytes(bytes(file.stat().st_size))
    data = streamed(folder, tmp_path / "cache", **FRONT)
    (cameras,) = [extra for extra in data._extras if isinstance(extra, StreamedCameras)]
    assert data.images == {} and data.spec.cond_shapes["front"] == (2, 24, 32, 3) and data.spec.kind("front") == "image"
    data.build_caches(lambda line: None)
    assert data.spec.scenes == {} and cameras.shown(None) == {} and not [*cameras.summary(1, None)]
    assert data.fingerprint and not list(cameras.mixture_warnings())


def test_frames_outside_of_the_data_set_are_refused():
    episodes = {"type": "lerobot_stream", "url": "s3://b/x", "disk_gb": 1}
    config = data_config(episodes, images={"front": {"folder": "films", "size": [24, 32]}})
    with pytest.raises(ConfigError, match=naming("front")):
        check_cameras(config.cameras)
    check_cameras(data_config(episodes, **FRONT).cameras)
