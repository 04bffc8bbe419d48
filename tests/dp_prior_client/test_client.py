"""The client gives the actions of `Agent` in one process, and keeps doing so when the line drops."""

import contextlib
import functools
import itertools
import logging
import signal
import socket
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

from dp_prior.embedders.hashed import HashedConfig
from dp_prior.inference.agent import Agent
from dp_prior.inference.chunking import Prefix
from dp_prior.inference.instructions import LONGEST
from dp_prior.tensors.batch import Spec
from dp_prior.tensors.rotations import RotationSlice
from dp_prior_client import PolicyClient, ServerError, attempts, client
from dp_prior_client.onboard.action_limits import ActionLimits
from dp_prior_client.onboard.dry_run import DryRun
from dp_prior_client.realtime import RealtimeAgent
from dp_prior_client.wire import OWN_FIELDS, pack
from dp_prior_robot.serving.policy_server import ServerLimits
from dp_prior_robot.serving.session import metadata
from tests.messages import naming, told
from tests.plugins.dp_prior_robot.serving.running import Continuing, Fake, observations, running

pytest.importorskip("websockets", reason="websockets is not installed: the policy server is NOT tested")
pytest.importorskip("msgpack", reason="msgpack is not installed: the policy server is NOT tested")
CAMERA = (6, 8)
TOKEN = "k" * 16


@pytest.mark.parametrize("n_obs_steps", [1, 2, 3])
def test_actions_are_those_of_the_agent_bit_for_bit(n_obs_steps):
    policy = Fake(n_obs_steps=n_obs_steps, camera=CAMERA)
    agent = Agent(policy, seed=5)
    with running(policy, seed=5) as server, PolicyClient(port=server.port) as robot:
        for episode in (0, 1, 7):
            agent.reset(episode)
            if episode:
                robot.reset(None if episode == 1 else episode)
            for obs in observations(10, episode, camera=(12, 16)):
                action = robot.act({**obs, "not read": object()})
                np.testing.assert_array_equal(action, agent.act(obs))
                action[:] = np.nan  # it is the caller's
        assert {"round_trip_ms", "infer_ms", "decode_ms", "wait_ms"} <= set(robot.timing)


@pytest.mark.parametrize("history", ["client", "server"])
def test_previous_actions_are_filled_in_as_by_the_agent(history):
    policy = Fake(n_obs_steps=3)
    shapes, start = {**policy.spec.cond_shapes, "before": (3, 2)}, (0.25, -1.5)
    policy.spec = Spec(x_shape=policy.spec.x_shape, cond_shapes=shapes, previous_actions={"before": start})
    agent = Agent(policy)
    with running(policy, history=history) as server, PolicyClient(port=server.port) as robot:
        for episode in range(2):
            agent.reset(episode)
            robot.reset(episode)
            for obs in observations(10, episode):
                action = robot.act(obs)
                np.testing.assert_array_equal(action, agent.act(obs))
                action[:] = np.nan  # it is the caller's
        for given in ({"before": [7.0, 8.0]}, {}, {}):
            np.testing.assert_array_equal(robot.act({**obs, **given}), agent.act({**obs, **given}))
        assert robot.metadata["obs"]["before"]["start"] == list(start)
        with pytest.raises(ServerError, match=naming("'before'", "[0.25, -1.5]", "`act`")):
            robot.infer({key: np.stack([value] * 3) for key, value in obs.items()})


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"pos": [1e39, 0, 0]}, ("'pos'", "row 0", "[0]", "inf")),
        ({"pos": [0, 0, 90]}, ("'pos'", "row 0", "[0, 3]", "degrees")),
    ],
)
@pytest.mark.parametrize("step", [4, 6])
def test_an_observation_that_the_agent_refuses_is_refused_at_once_and_acting_goes_on(change, line, step):
    policy = Fake()
    turns = {"pos": (RotationSlice(slice=(0, 3), form="axis_angle"),)}
    policy.spec = Spec(**{**dict(policy.spec), "rotations": turns})
    agent = Agent(policy)
    with running(policy) as server, PolicyClient(port=server.port) as robot:
        for i, obs in enumerate(observations(12)):
            if i == step:
                for one, error in ((robot, line), (agent, ("'pos'", "row 0"))):
                    with pytest.raises(ValueError, match=naming(*error)):
                        one.act({**obs, **change})
            np.testing.assert_array_equal(robot.act(obs), agent.act(obs))


def test_a_text_that_only_the_server_can_refuse_does_not_stop_the_robot_for_ever():
    policy = Fake()
    shapes, texts = {"pos": (2, 3), "a b/c": (2, 8)}, {"a b/c": HashedConfig(dimension=8)}
    policy.spec = Spec(x_shape=(8, 2), cond_shapes=shapes, kinds={"a b/c": "text"}, embedders=texts)
    seen = [{"pos": obs["pos"], "a b/c": "go"} for obs in observations(5)]
    with running(policy) as server, PolicyClient(port=server.port) as robot:
        for obs in [*seen[:3], {**seen[3], "a b/c": "?"}]:
            robot.act(obs)
        with pytest.raises(ServerError, match=naming("'?'")):
            robot.act(seen[4])
        twice = {"pos": np.stack([seen[4]["pos"]] * 2), "a b/c": "go"}
        np.testing.assert_array_equal(robot.act(seen[4]), Agent(policy).infer(twice, step=4)["chunk"][1])


@pytest.mark.parametrize("length", [10, LONGEST])
def test_an_instruction_of_any_length_may_change_within_an_episode(length):
    policy = Fake()
    shapes, texts = {"pos": (2, 3), "a b/c": (2, 8)}, {"a b/c": HashedConfig(dimension=8)}
    policy.spec = Spec(x_shape=(8, 2), cond_shapes=shapes, kinds={"a b/c": "text"}, embedders=texts)
    agent = Agent(policy)
    with running(policy) as server, PolicyClient(port=server.port) as robot:
        for step, obs in enumerate(observations(9)):
            obs["a b/c"] = ("a " if step < 4 else "b ") * (length // 2)
            np.testing.assert_array_equal(robot.act(obs), agent.act(obs))


def test_several_robots_share_a_server():
    with running(Fake()) as server:
        robots, agents = [PolicyClient(port=server.port) for _ in range(4)], [Agent(Fake()) for _ in range(4)]
        for obs in observations(9):
            for i, (robot, agent) in enumerate(zip(robots, agents, strict=True)):
                mine = {key: value + i for key, value in obs.items()}
                np.testing.assert_array_equal(robot.act(mine), agent.act(mine))


def test_a_server_that_keeps_history_serves_this_client_too():
    agent = Agent(Fake())
    with running(Fake(), history="server") as server, PolicyClient(port=server.port) as robot:
        for obs in observations(9):
            np.testing.assert_array_equal(robot.act(obs), agent.act(obs))


def test_a_restart_of_the_server_changes_no_action():
    agent, seen = Agent(Fake()), observations(20)
    with running(Fake()) as server:
        robot = PolicyClient(port=server.port, patience_s=60)
        for obs in seen[:6]:
            np.testing.assert_array_equal(robot.act(obs), agent.act(obs))
    back = threading.Event()

    def again():
        with running(Fake(), port=server.port):
            back.wait(60)

    thread = threading.Thread(target=again)
    thread.start()  # the next chunk is due while it starts
    for obs in seen[6:]:
        np.testing.assert_array_equal(robot.act(obs), agent.act(obs))
    robot.close()
    np.testing.assert_array_equal(robot.act(seen[0]), agent.act(seen[0]))  # opens the connection again
    back.set()
    thread.join()


def test_a_server_that_comes_back_with_other_chunks_is_another_policy():
    obs = observations(1)[0]
    with running(Fake()) as server:
        robot = PolicyClient(port=server.port, patience_s=60)
        robot.act(obs)
    robot.reset()
    with (
        running(Fake(n_action_steps=2), port=server.port),
        pytest.raises(ServerError, match=naming("n_action_steps", robot.url)),
    ):
        robot.act(obs)


STILL = DryRun(still={"0": 1.0, "1": 2.0}, show=lambda text: None)


def test_the_robot_of_a_server_that_runs_dry_knows_that_it_stays_until_the_client_is_made_anew():
    obs, clips = observations(1)[0], ActionLimits("clip", low=-9.0, high=9.0)
    settings = {"fps": 10, "n_obs_steps": 2, "n_action_steps": 4}
    with running(Fake(), dry=STILL) as server:
        with pytest.raises(ValueError, match=naming("'clip'", "'refuse'")):
            PolicyClient(port=server.port, actions=clips)
        robot = PolicyClient(port=server.port, patience_s=60)
        assert robot.is_dry and not robot.rehearses
        np.testing.assert_array_equal(robot.act(obs), [1.0, 2.0])
        with pytest.raises(ValueError, match=naming("'clip'", "'refuse'")):
            RealtimeAgent(robot, **settings, actions=clips)
    robot.reset()
    with running(Fake(), port=server.port), pytest.raises(ServerError, match=naming("dry run", robot.url)):
        robot.act(obs)
    with running(Fake()) as server, PolicyClient(port=server.port, actions=clips) as robot:
        assert not robot.is_dry


def test_the_answer_of_an_interrupted_request_is_not_taken_for_that_of_the_next():
    policy, agent, go = Fake(n_action_steps=1), Agent(Fake(n_action_steps=1)), threading.Event()
    first, *others = observations(4)
    with running(policy) as server, PolicyClient(port=server.port) as robot:
        policy.before = lambda: (signal.pthread_kill(threading.main_thread().ident, signal.SIGINT), go.wait(30))
        with pytest.raises(KeyboardInterrupt):
            robot.act(first)
        policy.before = lambda: None
        go.set()
        for obs in others:
            np.testing.assert_array_equal(robot.act(obs), agent.act(obs))


def test_a_chunk_can_be_asked_for_without_history_and_queue():
    with running(Fake()) as server, PolicyClient(port=server.port) as robot:
        history = {key: np.stack([value, value]) for key, value in observations(1)[0].items()}
        found = robot.infer(history, step=3)
        np.testing.assert_array_equal(found["chunk"], Agent(Fake()).infer(history, step=3)["chunk"])
        np.testing.assert_array_equal(found["actions"], found["chunk"][1:5])
        assert found["round_trip_ms"] > found["server_timing"]["infer_ms"] > 0
        with pytest.raises(ServerError, match=naming("'dp_prior'", -1, "delay", "2**53")):
            robot.infer(history, prefix=np.zeros((2, 2)), delay=-1)
        agent = Agent(Fake())
        for step in (0, 4, 8):  # the noise of each call is another one
            np.testing.assert_array_equal(robot.infer(history)["chunk"], agent.infer(history, step=step)["chunk"])


def test_a_chunk_can_be_asked_for_by_the_newest_observation_alone():
    """As stock clients do; the server supplies the rest. Checks and logs see this observation, not its last number."""
    newest, ticks = observations(1, camera=CAMERA)[0], []
    with running(Fake(camera=CAMERA)) as server, PolicyClient(port=server.port) as robot:
        robot.recorder = SimpleNamespace(note=ticks.append, end=lambda: None)
        robot.infer(newest)
        robot.infer({key: np.stack([value, value]) for key, value in newest.items()})
    for tick in ticks:
        for key, value in newest.items():
            np.testing.assert_array_equal(tick.obs[key], value.astype(tick.obs[key].dtype))
    assert len(ticks) == 2


class AtOnce:
    """An executor whose results are there when they are asked for."""

    def submit(self, call, *arguments, **named):
        future = Future()
        future.set_result(call(*arguments, **named))
        return future


def test_an_episode_repeats_its_noise_whatever_request_was_under_way_when_it_began():
    policy, obs = Fake(), {"pos": np.zeros((2, 3)), "a b/c": np.zeros((2, 1))}
    began, may_end = threading.Event(), threading.Event()
    with running(policy) as server, PolicyClient(port=server.port) as robot, ThreadPoolExecutor(1) as executor:
        robot.reset(7)
        expected = [robot.infer(obs)["chunk"] for _ in range(2)]
        policy.before = lambda: (began.set(), may_end.wait(60))
        old = executor.submit(robot.infer, obs)
        assert began.wait(60)
        robot.reset(7)
        may_end.set()
        old.result()
        np.testing.assert_array_equal([robot.infer(obs)["chunk"] for _ in range(2)], expected)


def test_the_real_time_agent_runs_over_the_client_as_over_an_agent():
    def actions(predictor):
        settings = {"fps": 10, "n_obs_steps": 2, "n_action_steps": 4, "max_delay": 1}
        robot = RealtimeAgent(predictor, **settings, clock=itertools.count(0, 0.05).__next__, executor=AtOnce())
        return np.stack([robot.act(obs) for obs in observations(20)])

    with running(Continuing(), merge=Prefix()) as server, PolicyClient(port=server.port) as robot:
        assert robot.metadata["merge"] == "prefix"
        np.testing.assert_array_equal(actions(robot), actions(Agent(Continuing(), merge=Prefix())))


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"pos": np.zeros(4)}, ("'pos'", "(4,)", "(3,)")),
        ({"pos": np.array([0, np.nan, 0])}, ("'pos'", "row 0", "[1]", "nan")),
        ({"pos": None}, ("'pos'", "object")),
        ({"cam.front": np.zeros((4, 4), np.uint8)}, ("'cam.front'", "(4, 4)", "greyscale")),
        ({"cam.front": np.zeros((4, 4, 3))}, ("'cam.front'", "float64", "uint8")),
    ],
)
def test_a_bad_observation_is_told_at_once_and_spoils_nothing(change, line):
    policy = Fake(camera=CAMERA)
    agent = Agent(policy)
    with running(policy) as server, PolicyClient(port=server.port) as robot:
        for obs in observations(9, camera=CAMERA):
            with pytest.raises(ValueError, match=naming(*line)):
                robot.act({**obs, **change})
            with pytest.raises(ValueError, match=naming("'pos'", "pos (3,)", "a b/c (1,)")):
                robot.act({"a b/c": 0})
            np.testing.assert_array_equal(robot.act(obs), agent.act(obs))
        with pytest.raises(ValueError, match=naming("'cam.front'", "(9, 9, 3)", "(6, 8, 3)")):
            robot.act({**obs, "cam.front": np.zeros((9, 9, 3), np.uint8)})  # within an episode


def test_reasons_of_a_refusal_are_told_without_trying_again():
    with running(Fake(), token="k" * 16, limits=ServerLimits(message_bytes=1000)) as server:
        with pytest.raises(ConnectionError, match=naming("127.0.0.1", "`Authorization: Api-Key KEY`")):
            PolicyClient(port=server.port)
        robot = PolicyClient(f"ws://127.0.0.1:{server.port}", token="k" * 16 + "\n")  # as a file has it
        with pytest.raises(ConnectionError, match=naming("127.0.0.1", 1009, 1000)):
            robot.infer({"pos": np.zeros((2, 3)), "a b/c": np.zeros((2, 1)), "more": np.zeros(1000)})
        assert robot.act(observations(1)[0]).shape == (2,)


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1:1", 8000), ("[::1]:1", 8000), ("ws://127.0.0.1:1", 8000)])
def test_a_host_may_name_its_port(host, port):
    with pytest.raises(ConnectionError, match=naming(f"ws://{host.removeprefix('ws://')}", "[Errno 111]")):
        PolicyClient(host, port, patience_s=0)


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_an_address_of_ipv6_is_one_without_brackets_too(host):
    with pytest.raises(ConnectionError, match=naming("ws://[::1]:1", "[Errno 111]")):
        PolicyClient(host, 1, patience_s=0)


@pytest.mark.parametrize(
    ("host", "port"),
    [
        ("gpu-box:", 8000),
        ("http://gpu-box", 8000),
        ("", 8000),
        ("127.0.0.1", 99999),
        ("ws://127.0.0.1:99999", 1),
        ("a:b:c", 1),
    ],
)
def test_an_address_that_is_none_is_told_with_what_is_expected(host, port):
    with pytest.raises(ValueError, match=naming(repr(host), port, "ws://gpu-box:8000")):
        PolicyClient(host, port, patience_s=0)


def test_a_server_that_is_not_there_or_says_nothing_is_told_in_time():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(ConnectionError, match=naming(f"ws://127.0.0.1:{port}", "timed out")):
            PolicyClient(port=port, timeout_s=0.1, patience_s=0)
    with pytest.raises(ConnectionError, match=naming(f"ws://127.0.0.1:{port}", "[Errno 111]")):
        PolicyClient(port=port, patience_s=0.2)


def test_a_server_that_is_gone_is_told_before_it_is_back_and_so_is_its_return(caplog):
    agent, (first, *seen) = Agent(Fake()), observations(5)
    with running(Fake()) as server:
        robot = PolicyClient(port=server.port, patience_s=60)
        np.testing.assert_array_equal(robot.act(first), agent.act(first))
        assert robot.trouble is None and not caplog.messages
    starts = threading.Event()

    class Told(logging.Handler):
        def emit(self, record):
            starts.set()

    def again():
        assert starts.wait(60), "the client says nothing"
        assert told(robot.trouble, f"ws://127.0.0.1:{server.port}")
        with running(Fake(), port=server.port):
            is_done.wait(60)

    is_done, thread, handler = threading.Event(), threading.Thread(target=again), Told()
    attempts.log.addHandler(handler)
    thread.start()
    try:
        robot.reset(0)
        agent.reset(0)
        for obs in seen:
            np.testing.assert_array_equal(robot.act(obs), agent.act(obs))
    finally:
        attempts.log.removeHandler(handler)
        is_done.set()
        thread.join()
    before, *_, after = (line for line in caplog.messages if str(server.port) in line)
    assert told(before, f"ws://127.0.0.1:{server.port}", "0.0 s") and told(after, "again") and robot.trouble is None


@contextlib.contextmanager
def greeting(**policy):
    """The port of a server that greets as a policy's does, and from then on neither reads nor answers."""
    from websockets.server import ServerProtocol

    is_done = threading.Event()

    def greet(listener):
        line, _ = listener.accept()
        protocol = ServerProtocol()
        while not (events := protocol.events_received()):
            protocol.receive_data(line.recv(65536))
        protocol.send_response(protocol.accept(events[0]))
        protocol.send_binary(pack(metadata(Fake(**policy), "policy", "client", None)))
        line.sendall(b"".join(protocol.data_to_send()))
        is_done.wait(60)
        line.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=greet, args=(listener,))
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            is_done.set()
            thread.join()


def test_a_server_that_does_not_read_ends_no_robot_in_a_send_without_end(caplog, monkeypatch):
    """A frame of a camera does not fit into the buffers of the line; websockets itself would wait for hours."""
    monkeypatch.setattr(attempts, "TELL_S", 0.05)
    with greeting(camera=CAMERA) as port, PolicyClient(port=port, timeout_s=0.2, patience_s=0) as robot:
        with pytest.raises(ConnectionError, match=naming("127.0.0.1")):
            robot.act(observations(1, camera=(2000, 3000))[0])
        assert told(caplog.messages[0], "127.0.0.1", "0.05 s")


def test_a_line_that_goes_down_between_requests_shows_no_traceback(caplog, monkeypatch):
    import websockets.sync.client as module

    monkeypatch.setattr(module, "connect", functools.partial(module.connect, ping_interval=0.01, ping_timeout=0.01))
    with greeting() as port, PolicyClient(port=port, timeout_s=0.2, patience_s=0) as robot:
        robot._socket.keepalive_thread.join(30)  # until it has seen that nobody answers
        with pytest.raises(ConnectionError, match=naming("127.0.0.1")):
            robot.act(observations(1)[0])
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize(
    ("first", "line"),
    [
        (pack({"protocol": "dp_prior/2"}), ("dp_prior/2", "dp_prior/1")),
        (pack({"model": "pi0"}), ("no protocol", "dp_prior/1", "openpi-client")),
        (b"\xc1", ("no protocol", "dp_prior/1", "openpi-client")),
        ("hello", ("no protocol", "dp_prior/1", "openpi-client")),
    ],
)
def test_other_versions_and_other_servers_are_told_apart(first, line):
    from websockets.sync.server import serve

    def greet(connection):
        connection.send(first)
        for _ in connection:  # until the client closes
            pass

    with serve(greet, "127.0.0.1", 0) as other:
        thread = threading.Thread(target=other.serve_forever)
        thread.start()
        with pytest.raises(ServerError, match=naming(*line)):
            PolicyClient(port=other.socket.getsockname()[1])
        other.shutdown()
        thread.join()


def test_another_policy_after_a_reconnect_is_refused():
    with running(Fake()) as server:
        robot = PolicyClient(port=server.port)
    with (
        running(Fake(n_obs_steps=3), port=server.port),
        pytest.raises(ServerError, match=naming(f"ws://127.0.0.1:{server.port}", "n_obs_steps", "client")),
    ):
        robot.act(observations(1)[0])


def test_the_same_shapes_with_the_numbers_in_another_order_are_another_policy():
    first, other = Fake(), Fake()
    first.spec = first.spec.model_copy(update={"names": {"pos": ("x", "y", "z")}})
    other.spec = other.spec.model_copy(update={"names": {"pos": ("z", "y", "x")}})
    with running(first) as server:
        robot = PolicyClient(port=server.port)
    with (
        running(other, port=server.port),
        pytest.raises(ServerError, match=naming(f"ws://127.0.0.1:{server.port}", "order", "client")),
    ):
        robot.act(observations(1)[0])


@pytest.mark.parametrize(
    ("host", "in_clear"),
    [
        ("gpu-box", "gpu-box"),
        ("192.168.1.5:9000", "192.168.1.5"),
        ("ws://[fe80::1%25eth0]:8000", "fe80::1%25eth0"),
        ("ws://localhost.example.org", "localhost.example.org"),
        ("localhost", None),
        ("127.0.0.2", None),
        ("[::1]:8000", None),
        ("wss://gpu-box", None),
    ],
)
@pytest.mark.parametrize("token", [TOKEN, None])
def test_a_key_that_crosses_the_network_in_clear_is_told_before_it_is_sent(host, in_clear, token, monkeypatch, caplog):
    told_before = []

    def refuse(self):
        told_before.append(len(caplog.records))
        raise ConnectionRefusedError("refused")

    monkeypatch.setattr(PolicyClient, "_connect", refuse)
    with pytest.raises(ConnectionError, match=naming("refused")):
        PolicyClient(host, token=token, patience_s=0)
    hosts = [record.args[0] for record in caplog.records]
    assert hosts == ([in_clear] if token and in_clear else []) and told_before == [len(hosts)]
    assert TOKEN not in caplog.text


def test_a_missing_package_names_the_extra(monkeypatch):
    import builtins

    def refuse(name, *args, original=builtins.__import__, **kwargs):
        if name.split(".")[0] == missing:
            raise ImportError(f"No module named {name!r}")
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    missing = "websockets"
    with pytest.raises(ImportError, match=naming("websockets", 'pip install "dp_prior[serve]"')):
        PolicyClient()
    missing = "msgpack"
    with pytest.raises(ImportError, match=naming("msgpack", 'pip install "dp_prior[serve]"')):
        pack({OWN_FIELDS: {}})
    assert client.PROTOCOL == "dp_prior/1"
