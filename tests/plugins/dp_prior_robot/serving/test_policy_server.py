"""The server on a socket of loopback: what clients rely on, and what the rest of the world may send."""

import asyncio
import contextlib
import hmac
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import numpy as np
import pytest

from dp_prior.config import ConfigError
from dp_prior.diffusion.draw import AS_CONFIGURED
from dp_prior.embedders.hashed import HashedConfig
from dp_prior.inference.agent import Agent
from dp_prior.inference.chunking import Prefix
from dp_prior.tensors.batch import Spec
from dp_prior.tensors.rotations import RotationSlice
from dp_prior_client import PolicyClient
from dp_prior_client.onboard.tick_log import TickLog
from dp_prior_client.wire import OWN_FIELDS, pack, unpack
from dp_prior_robot.listener import bind
from dp_prior_robot.serving import policy_server as module
from dp_prior_robot.serving.inbox import Inbox
from dp_prior_robot.serving.policy_server import PolicyServer, ServerLimits, most_bytes
from tests.messages import naming, told
from tests.plugins.dp_prior_robot.serving.running import Fake, observations, running

websockets = pytest.importorskip("websockets", reason="websockets is not installed: the policy server is NOT tested")
pytest.importorskip("msgpack", reason="msgpack is not installed: the policy server is NOT tested")
from websockets.exceptions import ConnectionClosed, InvalidStatus  # noqa: E402
from websockets.sync.client import connect  # noqa: E402

GOOD = observations(1)[0]
TOKEN = "0123456789abcdef"
TURN = RotationSlice(slice=(0, 3), form="axis_angle")


def joined(server, **options):
    """A connection without the metadata."""
    url = f"ws://127.0.0.1:{server.port}"
    connection = connect(url, compression=None, max_size=None, close_timeout=1, **options).__enter__()
    connection.recv(timeout=30)
    return connection


def asked(connection, message=None):
    connection.send(pack(GOOD) if message is None else message)
    answer = connection.recv(timeout=30)
    return answer if isinstance(answer, str) else unpack(answer)


def get(server, path, **headers):
    """Status and text of an HTTP GET."""
    try:
        request = urllib.request.Request(f"http://127.0.0.1:{server.port}{path}", headers=headers)
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def raw(server, data):
    """What comes back for bytes on a bare socket, until the server closes it."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as line:
        line.sendall(data)
        found = b""
        while part := line.recv(4096):
            found += part
        return found.decode()


def frame(head, payload=b"", length=None):
    """A masked websocket frame whose header may promise another length."""
    return (
        bytes([head, 0x80 | 127]) + struct.pack(">Q", len(payload) if length is None else length) + bytes(4) + payload
    )


def test_every_connection_has_its_own_agent():
    with running(Fake(), seed=4, history="server") as server:
        ends = [joined(server) for _ in range(3)]
        agents = [Agent(Fake(), seed=4) for _ in ends]
        for obs in observations(6):
            for i, (end, agent) in enumerate(zip(ends, agents, strict=True)):
                mine = {key: value + i for key, value in obs.items()}
                np.testing.assert_array_equal(asked(end, pack(mine))["actions"][0], agent.act(mine))


def test_metadata_says_what_the_policy_reads_and_how_it_is_served():
    spec = Fake(camera=(6, 8)).spec
    policy = Fake(camera=(6, 8))
    more = {"previous_actions": {"before": (1, 2)}, "rotations": {"pos": (TURN,)}}
    policy.spec = Spec(**{**dict(spec), "cond_shapes": {**spec.cond_shapes, "before": (2, 2)}, **more})
    url = "ws://127.0.0.1:{}"
    with running(policy, name="mine", history="server") as server, connect(url.format(server.port)) as end:
        assert unpack(end.recv(timeout=30)) == {
            "protocol": "dp_prior/1",
            "policy": "mine",
            "obs": {
                "pos": {"shape": [3], "dtype": "float32", "kind": "vector"},
                "a b/c": {"shape": [1], "dtype": "float32", "kind": "vector"},
                "cam.front": {"shape": [None, None, 3], "dtype": "uint8", "kind": "image"},
                "before": {"shape": [2], "dtype": "float32", "kind": "vector", "start": [1.0, 2.0]},
            },
            "rotations": {"pos": [[0, 3, "axis_angle"]], "a b/c": [], "cam.front": [], "before": []},
            "trained": {"cam.front": {"size": [6, 8]}}, "action": {},
            "n_obs_steps": 2, "horizon": 8, "n_action_steps": 4, "action_dim": 2,
            "history": "server", "merge": "naive", "fields": ["episode", "step", "prefix", "delay"],
        }  # fmt: skip


def test_a_bad_request_is_answered_with_one_line_and_the_connection_lives():
    with running(Fake()) as server, joined(server) as end:
        for message, parts in [
            ("hello", ("text frame", "binary frame", "msgpack map")),
            (b"\xc1", ("msgpack", "(FormatError)")),
            (pack({"pos": np.zeros(3)}), ("'a b/c'", "missing", "pos (3,), a b/c (1,)")),
            (pack({**GOOD, "pos": np.full(3, np.nan)}), ("'pos', row 0, element [0, 0]", "nan")),
        ]:
            answer = asked(end, message)
            assert told(answer, *parts) and "\n" not in answer
        assert asked(end)["actions"].shape == (4, 2)
        assert 'dp_prior_requests_total{result="refused"} 4' in get(server, "/metrics")[1]


def test_a_failure_of_the_policy_stays_on_the_machine(caplog):
    policy = Fake()
    with running(policy) as server, joined(server) as end:
        policy.before = lambda: (_ for _ in ()).throw(KeyError("secret path"))
        assert told(asked(end), "failed", "KeyError", "log")
        policy.before = lambda: None
        assert asked(end)["actions"].shape == (4, 2)
    assert "secret path" in caplog.text


def test_probes_and_metrics():
    policy, warm, go = Fake(), threading.Event(), threading.Event()
    policy.before = lambda: (warm.set(), go.wait(30))

    class Early:
        """The server before it is ready."""

        def __init__(self):
            self.listener = bind("127.0.0.1", 0, is_protected=False)
            self.port = self.listener.getsockname()[1]

        async def run(self):
            stop = asyncio.Event()
            running = asyncio.create_task(PolicyServer(policy).run(self.listener, stop))
            await asyncio.to_thread(warm.wait, 30)
            self.before = await asyncio.to_thread(lambda: (get(self, "/healthz"), get(self, "/readyz")))
            go.set()
            while (found := await asyncio.to_thread(get, self, "/readyz"))[0] != 200:
                pass
            self.after = found
            self.metrics = await asyncio.to_thread(get, self, "/metrics")
            stop.set()
            await running

    early = Early()
    with early.listener:
        asyncio.run(early.run())
    assert early.before == ((200, "OK\n"), (503, "warming up\n"))
    assert early.after == (200, "ready\n")
    status, page = early.metrics
    assert status == 200 and "dp_prior_ready 1\n" in page
    assert 'dp_prior_stage_seconds_bucket{stage="predict",le="+Inf"} 0\n' in page


def test_ready_means_that_the_model_of_the_instructions_is_loaded_or_that_texts_are_refused(monkeypatch):
    loaded, create = [], HashedConfig.create
    monkeypatch.setattr(HashedConfig, "create", lambda record: loaded.append(record) or create(record))
    reads = {"kinds": {"a b/c": "text"}, "cond_shapes": {"pos": (2, 3), "a b/c": (2, 8)}, "x_shape": (8, 2)}
    policy = Fake()
    policy.spec = Spec(**reads, embedders={"a b/c": HashedConfig(dimension=8)})
    with running(policy) as server:
        assert loaded == [HashedConfig(dimension=8)]
        assert "actions" in asked(joined(server), pack({"pos": np.zeros(3), "a b/c": "go left"}))
        assert len(loaded) == len(server.lines) == 1
    policy.spec = Spec(**reads)
    with running(policy) as server:
        assert told(server.lines[0], "embeddings", "'a b/c'")
        assert "actions" in asked(joined(server), pack({"pos": np.zeros(3), "a b/c": np.zeros(8)}))


def test_a_prediction_that_hangs_is_told_by_the_probe_and_to_the_client_in_time(monkeypatch):
    monkeypatch.setattr(module, "HANGS_S", 0.1)
    policy, started, go = Fake(), threading.Event(), threading.Event()
    with running(policy) as server, PolicyClient(port=server.port, timeout_s=0.2, patience_s=0.0) as robot:
        assert get(server, "/readyz") == (200, "ready\n")
        policy.before = lambda: (started.set(), go.wait(30))
        with pytest.raises(ConnectionError, match=naming("no answer", robot.url, "timed out")):
            robot.act(GOOD)
        assert started.is_set() and get(server, "/healthz")[0] == 200
        status, line = get(server, "/readyz")
        assert status == 503 and told(line, "prediction", "0 s")
        assert "dp_prior_ready 0\n" in get(server, "/metrics")[1]
        go.set()
        while get(server, "/readyz")[0] != 200:
            pass
        assert robot.act(GOOD).shape == (2,)  # the next request is answered by its own answer


def test_metrics_count_every_stage():
    with running(Fake()) as server, joined(server) as end:
        for _ in range(3):
            timing = asked(end)["server_timing"]
        assert set(timing) == {"infer_ms", "decode_ms", "wait_ms", "prev_total_ms"} and min(timing.values()) > 0
        page = get(server, "/metrics")[1]
        for stage in ("wait", "decode", "predict", "encode", "send"):
            assert f'dp_prior_stage_seconds_count{{stage="{stage}"}} 3\n' in page
        assert 'dp_prior_requests_total{result="answered"} 3\n' in page and "dp_prior_connections 1\n" in page


def test_the_newest_request_wins_and_pings_are_answered_meanwhile():
    policy, started, go = Fake(), threading.Event(), threading.Event()
    with running(policy) as server, joined(server) as end:
        policy.before = lambda: (started.set(), go.wait(30))
        messages = [pack({**GOOD, "pos": np.full(3, float(i)), OWN_FIELDS: {"step": i}}) for i in range(4)]
        end.send(messages[0])
        assert started.wait(30)
        for message in messages[1:]:
            end.send(message)
        assert end.ping().wait(30)  # while the first is being predicted
        go.set()
        answers = [end.recv(timeout=30) for _ in messages]
        assert unpack(answers[0])["actions"].shape == (4, 2)
        assert all(told(answer, "superseded", "newer") for answer in answers[1:3])
        newest = {key: np.stack([value, value]) for key, value in {**GOOD, "pos": np.full(3, 3.0)}.items()}
        np.testing.assert_array_equal(unpack(answers[3])["chunk"], Agent(Fake()).infer(newest, step=3)["chunk"])
        assert policy.calls == 3  # with the warm-up: two requests were never predicted


def test_a_stop_answers_what_has_arrived_and_closes_with_1001():
    policy, started, go = Fake(), threading.Event(), threading.Event()
    with running(policy) as server:
        idle, end, late = joined(server), joined(server), joined(server)
        policy.before = lambda: (started.set(), go.wait(30))
        end.send(pack(GOOD))
        assert started.wait(30)
        for connection in (end, late):
            connection.send(pack(GOOD))
            assert connection.ping().wait(30)
        server.stop()
        while get(server, "/readyz") != (503, "shutting down\n"):
            pass
        with pytest.raises(InvalidStatus) as refused:
            joined(server)
        assert told(refused.value.response.body.decode(), "shutting down")
        end.send(pack(GOOD))
        assert end.ping().wait(30)  # the server has this one too, but it came after the stop
        go.set()
        for connection in (end, end, late):
            assert unpack(connection.recv(timeout=30))["actions"].shape == (4, 2)
        for connection in (idle, end, late):
            with pytest.raises(ConnectionClosed) as closed:
                connection.recv(timeout=30)
            assert closed.value.rcvd.code == 1001 and told(closed.value.rcvd.reason, "shutting down")
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", server.port), timeout=5)


def test_a_request_is_not_predicted_when_its_client_has_hung_up(monkeypatch):
    policy, started, go, noticed = Fake(), threading.Event(), threading.Event(), threading.Event()
    close = Inbox.close
    monkeypatch.setattr(Inbox, "close", lambda inbox: (close(inbox), noticed.set()))
    with running(policy) as server, joined(server) as end, joined(server) as gone:
        policy.before = lambda: (started.set(), go.wait(30))
        end.send(pack(GOOD))
        assert started.wait(30)
        gone.send(pack(GOOD))
        assert gone.ping().wait(30)
        gone.close()
        assert noticed.wait(30)
        go.set()
        assert unpack(end.recv(timeout=30))["actions"].shape == (4, 2)
        while "dp_prior_connections 2" in get(server, "/metrics")[1]:
            pass
    assert policy.calls == 2  # with the warm-up


def test_a_stop_that_takes_too_long_drops_what_is_not_being_predicted_yet(monkeypatch):
    monkeypatch.setattr(module, "DRAIN_S", 0.05)
    policy, started, go = Fake(), threading.Event(), threading.Event()
    with running(policy) as server:
        ends = [joined(server) for _ in range(3)]
        policy.before = lambda: (started.set(), go.wait(30))
        for end in ends:
            end.send(pack(GOOD))
            assert started.wait(30) and end.ping().wait(30)
        server.stop()
        for end in ends:
            with pytest.raises(ConnectionClosed) as closed:
                end.recv(timeout=30)
            assert closed.value.rcvd.code == 1001
        go.set()
    assert policy.calls == 2  # the warm-up, and the one that was under way


@pytest.mark.parametrize(
    ("headers", "is_welcome"),
    [
        ({}, False),
        ({"Authorization": f"Api-Key {TOKEN}x"}, False),
        ({"Authorization": f"Bearer {TOKEN}"}, False),
        ({"Authorization": "Api-Key \xff"}, False),
        ({"Authorization": f"Api-Key {TOKEN}"}, True),
    ],
)
def test_a_token_is_asked_for_except_by_the_probes(headers, is_welcome, monkeypatch):
    compared, compare = [], hmac.compare_digest  # in constant time
    monkeypatch.setattr(hmac, "compare_digest", lambda given, own: compared.append(given) or compare(given, own))
    with running(Fake(), token=TOKEN) as server:
        assert get(server, "/healthz")[0] == get(server, "/readyz")[0] == 200
        expected = (200, "# TYPE") if is_welcome else (401, "`Authorization: Api-Key KEY`")
        status, text = get(server, "/metrics", **headers)
        assert status == expected[0] and told(text, expected[1])
        assert len(compared) == len(headers)
        if is_welcome:
            with joined(server, additional_headers=headers) as end:
                assert asked(end)["actions"].shape == (4, 2)
        elif "\xff" not in str(headers):
            with pytest.raises(InvalidStatus, match=naming("HTTP 401")):
                joined(server, additional_headers=headers)


def test_browsers_are_refused():
    with running(Fake()) as server, pytest.raises(InvalidStatus, match=naming("HTTP 403")):
        joined(server, origin="http://evil.example")


def test_connections_are_limited():
    with running(Fake(), limits=ServerLimits(connections=2)) as server:
        first, second = joined(server), joined(server)
        with pytest.raises(InvalidStatus) as refused:
            joined(server)
        assert refused.value.response.status_code == 503
        assert told(refused.value.response.body.decode(), "2 clients", "--max-connections")
        first.close()
        while "dp_prior_connections 2" in get(server, "/metrics")[1]:
            pass
        assert asked(joined(server))["actions"].shape == asked(second)["actions"].shape == (4, 2)


def test_a_connection_without_requests_is_closed():
    with running(Fake(), limits=ServerLimits(idle_s=0.05)) as server, joined(server) as end:
        with pytest.raises(ConnectionClosed) as closed:
            end.recv(timeout=30)
        assert closed.value.rcvd.code == 1000 and told(closed.value.rcvd.reason, "request", "0.05 s")


def test_large_messages_are_refused_before_they_are_received():
    with running(Fake()) as server:
        for message in (
            frame(0x82, length=1 << 30),  # a gigabyte, of which only the header comes
            frame(0x02, bytes(600_000)) + frame(0x80, bytes(600_000)),  # in parts
        ):
            with joined(server) as end:
                with contextlib.suppress(OSError):  # the server may have closed before all of it was sent
                    end.socket.sendall(message)
                with pytest.raises(ConnectionClosed) as closed:
                    end.recv(timeout=30)
                assert closed.value.rcvd.code == 1009
        with joined(server) as end:
            assert asked(end)["actions"].shape == (4, 2)


def test_the_limit_of_messages_leaves_room_for_what_the_policy_reads():
    assert 1 << 20 <= most_bytes(Fake().spec) < (1 << 20) + 200
    full_hd = observations(2, camera=(1080, 1920))
    policy = Fake(camera=(6, 8))
    message = pack({key: np.stack([one[key] for one in full_hd]) for key in full_hd[0]})
    assert len(message) < most_bytes(policy.spec)
    with running(policy) as server, joined(server) as end:
        assert asked(end, message)["actions"].shape == (4, 2)


def test_a_whole_cloud_of_a_depth_camera_is_thinned_by_the_server():
    policy = Fake()
    policy.spec = Spec(x_shape=(8, 2), cond_shapes={"cloud": (2, 16, 3)}, kinds={"cloud": "points"})
    cloud = np.random.default_rng(0).normal(size=(2, 640 * 480, 3)).astype(np.float32)
    thin = cloud[:, np.arange(16) * (640 * 480) // 16]
    with running(policy) as server, joined(server) as end:
        found = [asked(end, pack({"cloud": one, OWN_FIELDS: {"step": 0}}))["chunk"] for one in (cloud, thin)]
    np.testing.assert_array_equal(*found)


def test_compression_is_neither_offered_nor_accepted():
    with running(Fake()) as server, joined(server) as end:
        assert not end.protocol.extensions
        end.socket.sendall(frame(0xC2, b"\0" * 100))  # a frame that claims to be compressed
        with pytest.raises(ConnectionClosed) as closed:
            end.recv(timeout=30)
        assert closed.value.rcvd.code == 1002


@pytest.mark.parametrize(
    ("request_", "status", "line"),
    [
        (
            b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc",
            "405",
            ("websocket", "GET /healthz"),
        ),
        (b"\x16\x03\x01\x02\x00", "405", ("websocket", "GET /healthz")),  # TLS
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "426", ("WebSocket client",)),
    ],
)
def test_other_protocols_are_told_what_is_spoken_here(request_, status, line):
    with running(Fake()) as server:
        answer = raw(server, request_)
        assert answer.startswith(f"HTTP/1.1 {status}") and told(answer, *line) and "Traceback" not in answer


def test_a_silent_connection_and_one_that_breaks_off_disturb_nobody():
    with running(Fake()) as server, joined(server) as end:
        silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(20)]
        for line in silent[:10]:
            line.sendall(b"GET / HTTP/1.1\r\nHost")
        broken = joined(server)
        broken.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        broken.send(pack(GOOD))
        broken.socket.shutdown(socket.SHUT_RDWR)
        assert asked(end)["actions"].shape == (4, 2)
        for line in silent:
            line.close()


def test_a_client_that_never_reads_is_disconnected_and_delays_nobody(monkeypatch):
    policy = Fake(horizon=1_000_000)  # a reply of 8 MB, more than the buffers of loopback hold
    with running(policy) as server, joined(server) as end, joined(server, max_queue=1) as greedy:
        greedy.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)  # some systems let it grow to 32 MB
        with monkeypatch.context() as patch:
            patch.setattr(module, "SEND_S", 0.2)
            for _ in range(5):
                greedy.send(pack(GOOD))
            while "dp_prior_connections 2" in get(server, "/metrics")[1]:
                pass
        assert asked(end)["actions"].shape == (4, 2)


def test_pings_whose_answers_are_not_read_cannot_fill_the_memory(monkeypatch):
    monkeypatch.setattr(module, "MOST_UNREAD", 1 << 20)
    with running(Fake()) as server, joined(server) as end:
        with socket.create_connection(("127.0.0.1", server.port)) as line:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            line.sendall(
                b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
            )
            pings = bytes([0x89, 0x80 | 125, 0, 0, 0, 0]) + bytes(125)
            with pytest.raises(OSError):  # reset by the server
                for _ in range(2000):
                    line.sendall(pings * 1000)
        assert asked(end)["actions"].shape == (4, 2)


def test_text_that_is_no_utf_8_closes_the_connection():
    with running(Fake()) as server, joined(server) as end:
        end.socket.sendall(frame(0x81, b"\xff\xfe"))
        with pytest.raises(ConnectionClosed) as closed:
            end.recv(timeout=30)
        assert closed.value.rcvd.code == 1007


def test_eight_robots_at_once_lose_nothing():
    def drive(number):
        agent = Agent(Fake(n_action_steps=1), seed=2)
        with PolicyClient(port=server.port) as robot:
            for obs in observations(40, number):
                results.append(np.array_equal(robot.act(obs), agent.act(obs)))

    results = []
    with running(Fake(n_action_steps=1), seed=2) as server:
        robots = [threading.Thread(target=drive, args=(number,)) for number in range(8)]
        for robot in robots:
            robot.start()
        for robot in robots:
            robot.join()
        assert 'dp_prior_requests_total{result="answered"} 320\n' in get(server, "/metrics")[1]
    assert results == [True] * 320


@pytest.mark.parametrize("history", ["client", "server"])
def test_requests_are_logged_by_connection_and_episode_whatever_the_client_sends(history, tmp_path):
    with TickLog(tmp_path) as log, running(Fake(), history=history, log=log) as server:
        for robot in range(2):
            with joined(server) as end:
                for episode in range(2):
                    for obs in observations(3, 2 * robot + episode):
                        answer = asked(end, pack({**obs, OWN_FIELDS: {"episode": episode}}))
                        assert "actions" in answer
                assert isinstance(asked(end, pack({"pos": 1})), str), "a refused request is no tick"
    files = [np.load(path) for path in sorted(tmp_path.glob("*.npz"))]
    assert sorted(arrays["episode"].tolist() for arrays in files) == [[0] * 3, [0] * 3, [1] * 3, [1] * 3]
    expected = {float(obs["a b/c"][0]): obs for seed in range(4) for obs in observations(3, seed)}
    for arrays in files:
        for position, other in zip(arrays["obs.pos"], arrays["obs.a b/c"][:, 0], strict=True):
            close = min(expected, key=lambda value, other=other: abs(value - other))
            np.testing.assert_array_equal(position, expected[close]["pos"].astype(np.float32))
        assert len(arrays["chunk_row"]) == (1 if history == "server" else 3)


def test_mutated_messages_get_one_answer_each():
    from tests.dp_prior_client.mutated import mutants

    with running(Fake()) as server, joined(server) as end:
        for message in mutants([pack(GOOD), pack({**GOOD, OWN_FIELDS: {"episode": 1, "step": 2}})], 200):
            answer = asked(end, message)
            assert not isinstance(answer, str) or (
                "\n" not in answer and "Traceback" not in answer and len(answer) <= 1000
            )
        assert asked(end)["actions"].shape == (4, 2)


def test_a_policy_may_not_use_a_name_of_the_protocol():
    policy = Fake()
    policy.spec = policy.spec.model_copy(update={"cond_shapes": {"dp_prior": (2, 3)}})
    with pytest.raises(ConfigError, match=naming("observation", "'dp_prior'")):
        PolicyServer(policy)


SERVE = "from dp_prior.cli import main; main()"


def start(*arguments, program=SERVE):
    command = [sys.executable, "-c", program, "serve", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ.copy())


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_command_serves_a_run_until_it_is_told_to_stop(trained_policy, number):
    from dp_prior.inference.load import load_policy

    with start(trained_policy, "--port", 0, "--actions-factor", 1e6) as process:
        line = process.stdout.readline()
        assert line.startswith("ready: ws://127.0.0.1:"), process.communicate(timeout=250)
        process.port = int(line.rpartition(":")[2])
        obs = {"agent_pos": np.zeros(2), "goal": np.zeros(2)}  # within the range of training, or the log tells
        with joined(process) as end:
            answer = asked(end, pack(obs))
            np.testing.assert_array_equal(answer["actions"][0], Agent(load_policy(trained_policy)).act(obs))
            process.send_signal(number)
            with pytest.raises(ConnectionClosed) as closed:
                end.recv(timeout=30)
            assert closed.value.rcvd.code == 1001
        _, errors = process.communicate(timeout=250)
        assert (process.returncode, errors) == (0, "")


@pytest.mark.slow
def test_the_command_serves_a_dry_run_and_logs_it(trained_policy, tmp_path):
    from dp_prior.inference.load import load_policy

    obs = {"agent_pos": np.float32([-0.3, 0.1]), "goal": np.zeros(2)}
    with start(trained_policy, "--port", 0, "--dry", "--log", tmp_path / "ticks") as process:
        line = process.stdout.readline()
        assert line.startswith("ready: ws://127.0.0.1:"), process.communicate(timeout=250)
        process.port = int(line.rpartition(":")[2])
        with joined(process) as end:
            answers = [asked(end, pack(obs))["actions"] for _ in range(3)]
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=250)
    assert process.returncode == 0 and all((actions == obs["agent_pos"]).all() for actions in answers)
    assert told(errors, "at -0.3", 0) and told(errors, "at 0.1", 1)
    arrays = np.load(tmp_path / "ticks" / "episode_000000.npz")
    twice = {key: np.stack([value] * 2) for key, value in obs.items()}
    would = Agent(load_policy(trained_policy)).infer(twice)["chunk"]
    np.testing.assert_array_equal(arrays["action"][0], would[1])
    assert arrays["is_dry"].tolist() == [True] * 3


@pytest.mark.slow
def test_a_stop_ends_a_server_whose_prediction_hangs_and_shows_where(trained_policy):
    program = f"""
import threading
from dp_prior_robot.serving import policy_server
policy_server.DRAIN_S = policy_server.HANGS_S = 0.2
policy_server.PolicyServer._answer = lambda *request: print("predicting", flush=True) or threading.Event().wait()
{SERVE}"""
    with start(trained_policy, "--port", 0, program=program) as process:
        process.port = int(process.stdout.readline().rpartition(":")[2])
        with joined(process) as end:
            end.send(pack(GOOD))
            assert process.stdout.readline() == "predicting\n"
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=250)
    assert process.returncode == 1 and "hangs" in errors.splitlines()[0] and "in _worker" in errors


def test_the_command_refuses_in_one_line(trained_policy, tmp_path):
    from click.testing import CliRunner

    from dp_prior.cli import main
    from dp_prior.tasks.image import ImageTaskConfig

    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o644)
    export = tmp_path / "export"
    export.mkdir()
    (export / "policy.json").write_text("{}")
    image = ImageTaskConfig.from_json('{"backbone": {"type": "dit2d", "embed_dim": 16, "n_layers": 1, "n_heads": 2}}')
    image.create(Spec(x_shape=(4, 4, 3), cond_shapes={})).save_pretrained(tmp_path / "image")
    with bind("127.0.0.1", 0, is_protected=False) as taken:
        for arguments, line in [
            (["--port", taken.getsockname()[1]], ("another process", "free port", "--port")),
            (["--host", "0.0.0.0"], ("other machines", "'0.0.0.0'", "--token-file")),
            (["--host", "0.0.0.0", "--token-file", token], ("other users", "mode 644", "chmod 600")),
            (["--token-file", tmp_path / "none"], (tmp_path / "none", "no token")),
            (["--port", 0, "--device", "fpga:x"], ("'fpga:x'", "Invalid device")),
            (["--port", 0, "--texts", tmp_path], ("--texts", "instructions", tmp_path)),
            (["--port", 0, "--dry", "--still", "x"], ("--still", "'x'", "NAME=VALUE")),
            (["--port", 0, "--dry", "--still", "0=y"], ("--dry, --still", "0=y", "NAME=VALUE")),
            (["--port", 0, "--dry", "--still", "9=1"], ("--dry, --still", "'9'", "['0', '1']")),
        ]:
            done = CliRunner().invoke(main, ["serve", str(trained_policy), *map(str, arguments)])
            assert done.exit_code == 64 and told(done.output, *line), done.output
            assert len(done.output.splitlines()) <= 2
    for source, line in [(export, ("policy.json",)), (tmp_path / "image", ("image", "policy"))]:
        done = CliRunner().invoke(main, ["serve", str(source), "--port", "0"])
        assert done.exit_code == 64 and told(done.output, *line) and len(done.output.splitlines()) == 2, done.output
    for arguments, line in [
        ([export, "--device", "cuda"], ("--guidance-scale", "--device", "checkpoints")),
        ([trained_policy, "--idle", "0"], (0.0, "x>0")),
        ([trained_policy, "--still", "0=1"], ("--still", "--dry")),
    ]:
        done = CliRunner().invoke(main, ["serve", *map(str, arguments), "--port", "0"])
        assert done.exit_code == 2 and told(done.output, *line), done.output


def test_a_way_of_merging_that_the_policy_cannot_take_is_refused_before_it_serves():
    class Untrained(Fake):
        def draw(self, obs, random, how=AS_CONFIGURED):
            raise ValueError("the policy was trained without task.prefix")

    with (
        bind("127.0.0.1", 0, is_protected=False) as listener,
        pytest.raises(ConfigError, match=naming("policy", "task.prefix")),
    ):
        asyncio.run(PolicyServer(Untrained(), merge=Prefix()).run(listener, asyncio.Event()))


def test_an_answer_takes_its_least_time_and_nothing_says_how_long_the_policy_took():
    with running(Fake(), least_s=0.2) as server, joined(server) as end:
        start = time.perf_counter()
        answers = [asked(end) for _ in range(2)]
        assert time.perf_counter() - start >= 0.4
        assert not any("server_timing" in answer for answer in answers)
        status, page = get(server, "/metrics")
        assert status != 200 and "seconds" not in page


def test_a_server_that_refuses_begins_anew_with_other_noise():
    policy = Fake()
    with running(policy) as server, joined(server) as end:
        before = asked(end)["actions"]
        server.server.refuse("no trial is under way")
        calls = policy.calls
        assert told(asked(end), "no trial") and policy.calls == calls
        server.server.begin(seed=0)
        np.testing.assert_array_equal(asked(end)["actions"], before)  # of step 0 again
        server.server.begin(seed=1)
        assert not np.array_equal(asked(end)["actions"], before)


def test_a_client_without_a_farewell_is_told():
    lost = threading.Event()
    with running(Fake()) as server:
        server.server.on_lost = lost.set
        with joined(server) as end:
            asked(end)
        joined(server).socket.shutdown(socket.SHUT_RDWR)
        assert lost.wait(30)
        lost.clear()
        with joined(server) as end:
            asked(end)
    assert not lost.is_set()
