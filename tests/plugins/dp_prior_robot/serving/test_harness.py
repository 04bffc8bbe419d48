"""Benchmarks of vla-evaluation-harness get the actions of the policy's agent, one for each observation.

With DP_PRIOR_VLA_EVAL_PYTHON naming a Python that has vla-eval, a slow test runs the harness's own client.
"""

import asyncio
import contextlib
import io
import json
import os
import subprocess
import threading
import urllib.request
import zlib
from pathlib import Path

import numpy as np
import pytest

from dp_prior.config import ConfigError
from dp_prior.inference import plans
from dp_prior.inference.agent import Agent
from dp_prior_robot.listener import bind
from dp_prior_robot.serving.harness import HarnessServer, MessageError, flat, pack, unpack
from tests.messages import naming
from tests.plugins.dp_prior_robot.serving.running import Fake, observations

pytest.importorskip("websockets", reason="NOT CHECKED: websockets is not installed: pip install dp_prior[serve]")
msgpack = pytest.importorskip("msgpack")

RENAMES = {"states": "pos", "extra/number": "a b/c", "images/wrist": "cam.front"}
CAMERA = (6, 8)


@contextlib.contextmanager
def served(policy, **options):
    """A server in a thread; gives its port."""
    listener, ready = bind("127.0.0.1", 0, is_protected=False), threading.Event()
    server = HarnessServer(policy, report=lambda line: ready.set(), **options)
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(server.run(listener, stop)))
    thread.start()
    try:
        assert ready.wait(30)
        server.port = listener.getsockname()[1]
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
        loop.close()
        listener.close()


class Client:
    """The harness's side of a connection, in its forms: arrays as maps, pictures as PNG."""

    def __init__(self, port):
        from websockets.sync.client import connect

        opened = contextlib.ExitStack()
        self.socket, self.seq = opened.enter_context(connect(f"ws://127.0.0.1:{port}", compression=None)), 0

    def send(self, kind, payload):
        self.seq += 1
        message = {"type": kind, "payload": payload, "seq": self.seq, "timestamp": 0.0}
        self.socket.send(msgpack.packb(message, default=_encoded, use_bin_type=True))

    def ask(self, kind, payload):
        self.send(kind, payload)
        answer, content, seq = unpack(self.socket.recv(timeout=60))
        assert seq == self.seq
        return answer, content

    def act(self, obs):
        answer, content = self.ask("observation", obs)
        assert answer == "action", content
        return content["actions"]


def _encoded(value):
    if isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim == 3:
        from PIL import Image

        stream = io.BytesIO()
        Image.fromarray(value).save(stream, "PNG")
        return {"__image__": True, "format": "png", "data": stream.getvalue(), "shape": list(value.shape)}
    return {"__ndarray__": True, "data": value.tobytes(), "dtype": value.dtype.str, "shape": list(value.shape)}


def as_benchmark(obs):
    """Observations in a benchmark's form."""
    named = {"states": obs["pos"], "extra": {"number": obs["a b/c"]}, "task_description": "push"}
    return {**named, "images": {"wrist": obs["cam.front"]}} if "cam.front" in obs else named


def renames_of(camera):
    return RENAMES if camera else {source: name for source, name in RENAMES.items() if name != "cam.front"}


@pytest.mark.parametrize("camera", [None, CAMERA])
def test_an_episode_gets_the_actions_of_the_agent_with_its_history(camera):
    policy, agent = Fake(camera=camera), Agent(Fake(camera=camera), seed=4)
    task = {"name": "push", "suite": "libero_goal", "episode_idx": 3}
    with served(policy, seed=4, renames=renames_of(camera)) as server:
        client = Client(server.port)
        for _ in range(2):  # the same episode again has the same noise
            client.send("episode_start", {"task": task})
            episode = zlib.crc32(json.dumps(task, sort_keys=True).encode())
            agent.reset(episode)
            for obs in observations(10, camera=camera):
                np.testing.assert_allclose(client.act(as_benchmark(obs)), agent.act(obs), rtol=1e-5)
            client.send("episode_end", {"metrics": {"success": True}})
    assert policy.calls == 6  # chunks of four actions


def test_several_connections_share_batches_and_mix_nothing():
    policy = Fake()
    with served(policy, renames=renames_of(None), connections=8) as server:
        clients = [Client(server.port) for _ in range(6)]
        faults = []

        def play(number):
            agent = Agent(Fake())
            task = {"name": f"task {number}"}
            clients[number].send("episode_start", {"task": task})
            agent.reset(zlib.crc32(json.dumps(task).encode()))
            for obs in observations(9, seed=number):
                action, expected = clients[number].act(as_benchmark(obs)), agent.act(obs)
                if not np.allclose(action, expected, rtol=1e-5):
                    faults.append(number)

        threads = [threading.Thread(target=play, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not faults and server.policy.largest > 1


def test_hello_asks_the_benchmark_for_what_the_policy_reads():
    cases = {
        (): {},
        ("images/wrist", "states"): {"send_wrist_image": True, "send_state": True, "quat_no_antipodal": True},
        ("states",): {"send_state": True, "quat_no_antipodal": True},
        ("images/wrist",): {"send_wrist_image": True},
    }
    for sources, params in cases.items():
        renames = dict(zip(sources, ["pos", "a b/c"], strict=False))
        with served(Fake(), name="mine", renames=renames) as server:
            answer, content = Client(server.port).ask("hello", {"harness_version": "0.8.0", "protocol_version": 1})
        assert answer == "hello" and content["observation_params"] == params
        assert content["protocol_version"] == 1 and content["model_server"] == "mine"


def test_what_is_refused_is_answered_and_the_connection_goes_on():
    with served(Fake(), renames=renames_of(None)) as server:
        client = Client(server.port)
        obs = observations(1)[0]
        answer, content = client.ask("observation", {"states": obs["pos"]})
        assert answer == "error" and "a b/c" in content["error"]
        answer, content = client.ask("dance", {})
        assert answer == "error" and "'dance'" in content["error"]
        for data in (b"\xff", b"\x80", "text"):
            client.socket.send(data)
            assert unpack(client.socket.recv(timeout=60))[0] == "error"
        assert client.act(as_benchmark(obs)).shape == (2,)


def test_a_harness_that_asks_whether_the_server_is_ready_is_told():
    with served(Fake()) as server, urllib.request.urlopen(f"http://127.0.0.1:{server.port}/health") as answer:
        assert json.load(answer) == {"status": "ok"}


def test_a_policy_gets_its_runtime_before_the_server_is_ready(monkeypatch):
    monkeypatch.setattr(plans, "listeners", lambda event: [given.append])
    policy, given = Fake(), []
    policy.is_loaded = True
    HarnessServer(policy)
    assert given == [policy]


def test_renames_that_do_not_fit_are_refused_before_the_server_starts():
    with pytest.raises(ConfigError, match=naming("'image'", "'pos'")):
        HarnessServer(Fake(), renames={"images/agentview": "image"})


def picture(width, height):
    from PIL import Image

    stream = io.BytesIO()
    Image.new("L", (width, height)).save(stream, "PNG")
    return stream.getvalue()


@pytest.mark.parametrize(
    ("value", "parts"),
    [
        ({"__ndarray__": True, "data": b"12345678", "dtype": "|O", "shape": [1]}, ("'|O'", "[1]", "numbers")),
        ({"__ndarray__": True, "data": b"12345678", "dtype": "<f8", "shape": [2]}, ("[2]", "1 numbers")),
        ({"__ndarray__": True, "data": b"1234567", "dtype": "<f8", "shape": [1]}, ("<f8", "[1]", "7 bytes")),
        ({"__ndarray__": True, "data": b"", "dtype": "<f8", "shape": [2**62, 2**62, 0, -1]}, ("numbers",)),
        ({"__ndarray__": True, "data": b"", "dtype": "<f8", "shape": [2**62, 2**62, 0]}, ("too large",)),
        ({"__image__": True, "format": "png", "data": b"no picture"}, ("a picture", "b'no picture'", "PNG")),
        ({"__image__": True, "format": "png", "data": picture(4097, 2)}, ("a picture", "(4097, 2)", "4096")),
        ({"__image__": True, "format": "png", "data": 3}, ("a picture", "no data")),
    ],
)
def test_arrays_that_lie_are_refused(value, parts):
    message = {"type": "observation", "payload": {"states": value}, "seq": 1, "timestamp": 0.0}
    with pytest.raises(MessageError, match=naming(*parts)):
        unpack(msgpack.packb(message))


def test_messages_without_a_form_are_refused():
    for message in ({}, [1], {"type": "hello", "payload": [], "seq": 0}, {"type": 1, "payload": {}, "seq": 0}):
        with pytest.raises(MessageError, match=naming("type, payload, seq")):
            unpack(msgpack.packb(message))


def test_arrays_arrive_as_they_were_sent_and_names_are_paths():
    arrays = {"f": np.arange(3.0), "b": np.array([True, False]), "i": np.ones((2, 0), np.int64)}
    _, payload, seq = unpack(pack("action", arrays, 7))
    assert seq == 7
    for name, array in arrays.items():
        np.testing.assert_array_equal(payload[name], array)
        assert payload[name].dtype == array.dtype
    assert flat({"images": {"top": 1, "deep": {"x": 2}}, "state": 3}) == {
        "images/top": 1,
        "images/deep/x": 2,
        "state": 3,
    }


PYTHON = os.environ.get("DP_PRIOR_VLA_EVAL_PYTHON")

CLIENT = """
import asyncio, json, sys
import numpy as np
from vla_eval.connection import Connection

async def main(port):
    observed = np.load(sys.argv[2])
    actions = []
    async with Connection(f"ws://127.0.0.1:{port}") as connection:
        info = connection.server_info
        for episode in range(2):
            await connection.start_episode({"task": {"name": "push", "episode_idx": episode}})
            for pos, number, frame in zip(observed["pos"], observed["number"], observed["frame"]):
                obs = {"states": pos, "extra": {"number": number}, "images": {"wrist": frame}}
                actions.append((await connection.act(obs))["actions"].tolist())
            await connection.end_episode({"metrics": {"success": False}})
        try:
            await connection.act({"states": np.zeros(3)})
        except RuntimeError as error:
            refusal = str(error)
    print(json.dumps({"actions": actions, "info": info, "refusal": refusal}))

asyncio.run(main(int(sys.argv[1])))
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not PYTHON or not Path(PYTHON).is_file(),
    reason="NOT CHECKED: DP_PRIOR_VLA_EVAL_PYTHON names no Python with vla-eval",
)
def test_the_harnesss_own_client_gets_the_same_actions(tmp_path):
    rows = observations(10, camera=CAMERA)
    stacked = {key: np.stack([obs[source] for obs in rows]) for key, source in
               {"pos": "pos", "number": "a b/c", "frame": "cam.front"}.items()}  # fmt: skip
    np.savez(tmp_path / "observed.npz", **stacked)
    with served(Fake(camera=CAMERA), renames=RENAMES) as server:
        command = [PYTHON, "-c", CLIENT, str(server.port), str(tmp_path / "observed.npz")]
        done = subprocess.run(command, capture_output=True, text=True, env={"PATH": os.environ["PATH"]})
    assert done.returncode == 0, done.stderr
    told_by_client = json.loads(done.stdout)
    agent, expected = Agent(Fake(camera=CAMERA)), []
    for episode in range(2):
        task = {"name": "push", "episode_idx": episode}
        agent.reset(zlib.crc32(json.dumps(task, sort_keys=True).encode()))
        expected += [agent.act(obs) for obs in rows]
    np.testing.assert_allclose(told_by_client["actions"], expected, rtol=1e-5)
    params = {"send_wrist_image": True, "send_state": True, "quat_no_antipodal": True}
    assert told_by_client["info"]["observation_params"] == params
    assert "a b/c" in told_by_client["refusal"]
