"""The codes of LeRobot's depth videos are metres, as LeRobot itself reads them."""

import numpy as np
import pytest

from dp_prior.data.errors import DataError
from dp_prior.data.formats.lerobot.dataset import LeRobotStoreConfig
from dp_prior.data.formats.lerobot.depth_codes import CodedDepths
from dp_prior.data.frames.depths import Depths
from tests.data.frames.recordings import KEY, write_lerobot
from tests.messages import naming

CODES = np.array([0, 1, 1000, 2048, 4095], np.uint16)
BY_LEROBOT = {  # `dequantize_depth` of lerobot 0.6.1, whose code 0 is the nearest distance
    CodedDepths(): [0.009999999776482582, 0.011154413223266602, 1.3772029876708984, 3.3848085403442383, 10.0],
    CodedDepths(None, 0.2, 3.0, 3.5, False): [0.2, 0.20068375766277313, 0.8837606906890869, 1.6003419160842896, 3.0],
}
FRAMES = np.random.default_rng(0).integers(0, 4096, (9, 24, 32)).astype(np.uint16)
MARKED = {"shape": [24, 32, 1], "info": {"is_depth_map": True}}


def store_of(path, frames=FRAMES, info=MARKED, kind="video", **how):
    for package in ("pyarrow", "av", "PIL"):
        pytest.importorskip(package)
    how = {"codec": "ffv1", "pix_fmt": "gray12le", "options": {}, **how} if kind == "video" else {}
    return LeRobotStoreConfig(path=write_lerobot(path / "d", frames, [4, 5], "v3.0", kind, info=info, **how)).create()


def read(store, contents):
    source = store.frames(KEY, store.episode_ends, contents)
    return np.concatenate([block for part in source.parts for block in source.read(part, 0)])


@pytest.mark.parametrize("codes", BY_LEROBOT)
def test_each_code_is_the_distance_that_lerobot_reads_but_the_lowest_is_not_measured(codes):
    found = codes.metres(CODES)
    np.testing.assert_allclose(found[1:], BY_LEROBOT[codes][1:], rtol=1e-5, atol=1e-6)  # theirs is in float32
    assert found[0] == 0 and found.dtype == np.float32


def test_a_marked_video_is_its_codes_in_metres_and_no_camera(tmp_path):
    store = store_of(tmp_path)
    np.testing.assert_array_equal(read(store, Depths())[..., 0], CodedDepths().metres(FRAMES))
    assert store.depths() == {KEY: (24, 32, 1)} and store.cameras() == {}
    other = store_of(tmp_path / "other", info={**MARKED, "info": {**MARKED["info"], "video.depth_max": 4.0}})
    np.testing.assert_array_equal(read(other, Depths())[..., 0], CodedDepths(None, depth_max=4.0).metres(FRAMES))
    assert store.frames(KEY, store.episode_ends, Depths()).describe()["depth"]["depth_max"] == 10.0


def test_marked_pictures_are_their_numbers(tmp_path):
    store = store_of(tmp_path, kind="image")
    np.testing.assert_array_equal(read(store, Depths())[..., 0], FRAMES.astype(np.float32) * np.float32(0.001))


@pytest.mark.parametrize(
    ("info", "contents", "named"),
    [
        ({}, Depths(0.001), ("'image'", "video.depth_max", "unit")),
        ({"video.depth_min": 12}, Depths(), ("'image'", "info.json", 12)),
        ({"video.shift": -1}, Depths(), ("'image'", "info.json", -1)),
        ({"video.depth_max": "far"}, Depths(), ("'image'", "info.json", "'far'")),
    ],
)
def test_codes_that_mean_no_distance_are_refused(info, contents, named, tmp_path):
    store = store_of(tmp_path, info={**MARKED, "info": {**MARKED["info"], **info}})
    with pytest.raises(DataError, match=naming(*named)):
        read(store, contents)
