"""A server may send anything: a client takes metadata and chunks that a robot can execute, and names what is wrong."""

import contextlib
import copy
import itertools
import logging
import threading

import numpy as np
import pytest

from dp_prior.tensors.action_motion import ActionMotion
from dp_prior.tensors.batch import Spec
from dp_prior.tensors.rotations import RotationSlice
from dp_prior_client import PolicyClient, ServerError, attempts
from dp_prior_client.onboard.obs_spec import ObsSpec
from dp_prior_client.onboard.safety import SafetyMonitor
from dp_prior_client.onboard.scene import Scene, summarise
from dp_prior_client.server_check import LONGEST_TEXT, check_metadata, checked_chunk, checked_timing, printable
from dp_prior_client.wire import pack, unpack
from dp_prior_robot.serving.session import metadata
from tests.messages import naming, told
from tests.plugins.dp_prior_robot.serving.running import Fake

pytest.importorskip("websockets", reason="websockets is not installed: the policy server is NOT tested")
pytest.importorskip("msgpack", reason="msgpack is not installed: the policy server is NOT tested")

MOTION = ActionMotion(
    low=(0, -1), high=(1, 1), step=(0.5, None), answers=(("pos", 2), None), distance=(0.25, None)
)  # fmt: skip
FRAME = np.random.default_rng(0).integers(0, 256, (6, 8, 3)).astype(np.uint8)


def honest():
    """Metadata in which every key that is read stands."""
    policy = Fake(camera=(6, 8))
    facts = {
        "names": {"pos": ("a", "b", "c"), "x": ("p", "q")},
        "rotations": {"pos": (RotationSlice(slice=(0, 3), form="axis_angle"),)},
        "motion": MOTION,
        "fps": 10.0,
        "instructions": {},
    }
    policy.spec = Spec(**{**dict(policy.spec), **facts})
    found = unpack(pack(metadata(policy, "name", "client", None)))
    found["trained"]["a b/c"] = {"texts": ["go", "stop"]}
    found["trained"]["cam.front"] |= {"turn": "half", "bgr": True}
    scene = Scene.of((6, 8), "resize", [summarise(FRAME, (0.0, 0.0, 6.0, 8.0))])
    found["scenes"], found["dry"] = {"cam.front": scene.metadata()}, False
    return found


def places(value, path=()):
    """The path of every value below."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in items:
        yield (*path, key)
        yield from places(below, (*path, key))


def changed(document, path, value):
    found = copy.deepcopy(document)
    parent = found
    for key in path[:-1]:
        parent = parent[key]
    if value is KeyError:
        del parent[path[-1]]
    else:
        parent[path[-1]] = value
    return found


HOSTILE = [
    None,
    True,
    -1,
    0,
    10**9,
    10**400,
    float("nan"),
    "",
    "\x1b[31m",
    [],
    {},
    [None],
    [[]],
    [10**9],
    {"a": 1},
    KeyError,
]


@pytest.mark.slow
def test_metadata_of_every_kind_are_taken_or_refused_by_name():
    """Whatever stands in whatever place: a refusal that names the place, or observations that can be checked."""
    document = honest()
    check_metadata(document)
    refused = 0
    for path, value in itertools.product(places(document), [*HOSTILE, KeyError]):
        try:
            check_metadata(wrong := changed(document, path, value))
        except ServerError as error:
            refused += 1
            assert str(error).isprintable()
            continue
        reads = ObsSpec.from_metadata(wrong)
        assert 1 <= wrong["n_obs_steps"] <= 10_000 and 1 <= wrong["action_dim"] <= 10_000
        with contextlib.suppress(ValueError):  # that of an observation, as of any policy
            reads.check({key: np.zeros((1, 3), np.float32) for key in reads.observations}, rows=1)
        assert reads.metadata()["obs"].keys() == wrong["obs"].keys()
        monitor = SafetyMonitor(reads)
        monitor.check_texts({"a b/c": "go on"})
        with contextlib.suppress(ValueError):
            monitor.frames.check({key: np.full((6, 8, 3), 9, np.uint8) for key in monitor.frames.keys})
    assert refused > 300


@pytest.mark.parametrize(
    ("path", "value", "line"),
    [
        (("n_obs_steps",), 10**9, ("n_obs_steps", 10**9)),
        (("n_action_steps",), 0, ("n_action_steps", 0)),
        (("obs",), {}, ("obs",)),
        (("obs", "pos", "shape"), [3, 2**40], ("obs.pos.shape",)),
        (("action", "answers"), [["pos", 3], None], ("action.answers",)),
        (("rotations", "pos"), [[0, 2, "axis_angle"]], ("rotations.pos",)),
        (("scenes", "cam.front", "size"), [0, 8], ("scenes.cam.front.size",)),
        (("scenes", "cam.front", "picture"), None, ("scenes.cam.front.picture",)),
        (("dry",), "no", ("dry",)),
    ],
)
def test_metadata_beyond_any_policy_are_refused(path, value, line):
    with pytest.raises(ServerError, match=naming(*line)):
        check_metadata(changed(honest(), path, value))


WRONG_CHUNKS = [
    np.full((4, 2), np.nan, np.float32),
    np.array([[0, 0], [0, np.inf]], np.float32),
    np.full((4, 2), 1e300),  # infinite in float32
    np.zeros((4, 7), np.float32),
    np.zeros(2, np.float32),
    np.zeros((4, 2, 1), np.float32),
    np.zeros((0, 2), np.float32),
    np.zeros((1, 2), np.float32),
    np.zeros((4, 2), np.int8),
    np.float32(1),
    "go",
    [[0.0, 0.0], [0.0, 0.0]],
    None,
]


@pytest.mark.parametrize("chunk", WRONG_CHUNKS)
def test_what_is_no_chunk_of_finite_actions_is_refused(chunk):
    with pytest.raises(ServerError, match=naming("chunk", "at least 2")):
        checked_chunk({"chunk": chunk}, 2, 2)


@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8"])
def test_a_chunk_of_any_floats_is_taken_as_float32(dtype):
    chunk = np.arange(8, dtype=dtype).reshape(4, 2)
    found = checked_chunk({"chunk": chunk}, 4, 2)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, chunk)


def test_times_that_are_none_are_left_out():
    for timing in (None, 3, [], {"infer_ms": "x", "a": None, "b": float("nan")}):
        assert checked_timing({"server_timing": timing}) == {}
    assert checked_timing({"server_timing": {"infer_ms": 3, "x": []}}) == {"infer_ms": 3.0}


def test_a_text_is_one_line_that_a_terminal_shows():
    assert printable("weiß 水 a-b") == "weiß 水 a-b"
    assert printable("a\x1b[31m\n\u202eb\udcff") == "a\\x1b[31m\\n\\u202eb\\udcff"
    assert told(printable("x" * (LONGEST_TEXT + 7)), 7)


@contextlib.contextmanager
def answering(answers, first=None):
    """The port of a server that greets with metadata and answers each request with the next of some messages."""
    from websockets.sync.server import serve

    queue = iter(answers)

    def talk(connection):
        connection.send(pack(honest() if first is None else first))
        for _ in connection:
            connection.send(next(queue))

    with serve(talk, "127.0.0.1", 0, compression=None) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.socket.getsockname()[1]
        server.shutdown()
        thread.join()


OBS = {"pos": np.zeros(3), "a b/c": np.zeros(1), "cam.front": FRAME}


def test_a_robot_is_given_no_wrong_answer_and_acts_on_the_next_right_one(caplog):
    good = np.arange(16, dtype=np.float32).reshape(8, 2) / 100
    wrong = [pack({"chunk": chunk, "actions": good}) for chunk in WRONG_CHUNKS]
    wrong += [pack({"actions": good}), b"\xc1", b"", pack({}), "a \x1b[31m line\nand one"]
    warned = pack({"chunk": good, "warning": "one\ntwo\x07\none", "server_timing": 3})
    with answering([*wrong, warned, warned]) as port, PolicyClient(port=port) as robot:
        for _ in wrong:
            with pytest.raises(ServerError) as refused:
                robot.act(OBS)
            assert str(refused.value).isprintable()
        np.testing.assert_array_equal([robot.act(OBS) for _ in range(8)], np.tile(good[1:5], (2, 1)))
        records = [record for record in caplog.records if record.name != attempts.__name__]  # a busy machine is silent
        lines = [record.message for record in records if record.levelno == logging.WARNING]
        assert [line.partition(": ")[2] for line in lines] == ["one", "two\\x07"]
        assert robot.timing.keys() == {"round_trip_ms"}


def test_a_server_with_wrong_metadata_is_refused_when_connecting():
    wrong = changed(honest(), ("n_obs_steps",), 10**9)
    with answering([], wrong) as port, pytest.raises(ServerError, match=naming("n_obs_steps", 10**9)):
        PolicyClient(port=port)
