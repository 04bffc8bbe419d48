"""Real-time execution on a clock that only the test moves, with predictions that arrive when the test says so.

The robot counts: its state is the number of actions that have taken effect, and the policy says that the action for
state v is v. So every action that is skipped or repeated is a wrong number.
"""

import ast
import itertools
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from dp_prior.client import realtime
from dp_prior.client.realtime import RealtimeAgent, interpolated
from dp_prior.diffusion.draw import AS_CONFIGURED
from dp_prior.inference.agent import Agent, VectorAgent
from dp_prior.inference.chunking import Naive, Prefix, next_chunk
from dp_prior.tensors.randomness import Randomness
from tests.cases import every
from tests.inference.test_agent import Fake, stream
from tests.messages import naming

PERIOD = 0.1


class World:
    """Clock, executor and robot. `tick` of the clock is one control period; a prediction arrives after its delay."""

    def __init__(self, delays, obs_latency=0, action_latency=0, horizon=16):
        self.tick, self.delays = 0, iter(delays)
        self.obs_latency, self.action_latency, self.horizon = obs_latency, action_latency, horizon
        self.effects, self.requests = [], []  # ticks at which actions take effect

    def clock(self):
        return 1000 + self.tick * PERIOD

    def submit(self, call, *arguments, **named):
        return Later(self, self.tick + next(self.delays), call(*arguments, **named))

    def shutdown(self):
        pass

    def state(self, tick):
        return sum(effect < tick for effect in self.effects)

    def infer(self, obs, prefix=None, delay=0):
        state = obs["state"].round(6)
        self.requests.append((self.tick, state, prefix, delay))
        past = len(state) - 1
        if prefix is not None:  # else `next_chunk` refuses the request, as it does on a server
            assert past + delay <= len(prefix) <= self.horizon and 0 <= delay < self.horizon - past
        return {"chunk": state[-1] + np.arange(-past, self.horizon - past, dtype=np.float32)[:, None]}

    def observe(self):
        return {"state": np.array([self.state(self.tick - self.obs_latency)], dtype=np.float64)}

    def execute(self, action):
        """Whether the action was a new one."""
        expected = len(self.effects)
        assert action.shape == (1,) and action[0] in (expected, expected - 1), f"{action} after {expected} actions"
        if action[0] == expected:
            self.effects.append(self.tick + self.action_latency)
        return action[0] == expected

    def run(self, steps, stalls=(), **settings):
        """Act at ticks 0, 1, 2 ...; in a step of `stalls` the sensors block for 12 ticks; the robot catches up."""
        settings = {"n_obs_steps": 2, "n_action_steps": 4, **settings}
        agent = RealtimeAgent(
            self,
            fps=1 / PERIOD,
            clock=self.clock,
            executor=self,
            obs_latency={"state": self.obs_latency * PERIOD},
            action_latency=self.action_latency * PERIOD,
            **settings,
        )
        fresh, lag = [], 0
        for step in range(steps):
            blocked = 12 * (step in stalls)
            self.tick += blocked
            fresh.append(self.execute(agent.act(self.observe())))
            lag = max(lag + blocked - 1, 0)  # ticks behind its schedule
            self.tick += not lag
        assert agent.held == fresh.count(False) and len(self.effects) == fresh.count(True)
        return agent, fresh


class Later(Future):
    """A result that is there from a tick on; who waits for it moves the clock."""

    def __init__(self, world, ready, value):
        super().__init__()
        self.world, self.ready = world, ready
        self.set_result(value)

    def done(self):
        return self.world.tick >= self.ready

    def result(self, timeout=None):
        self.world.tick = max(self.world.tick, self.ready)
        return super().result(timeout)


@every(seed=range(30))
def test_no_action_is_skipped_or_repeated_whatever_the_delays_and_latencies(seed):
    random = np.random.default_rng(seed)
    worst = int(random.integers(0, 20))
    world = World(random.integers(0, worst + 1, 500), *random.integers(0, 4, 2))
    agent, fresh = world.run(300, n_obs_steps=int(random.integers(1, 4)), n_action_steps=int(random.integers(1, 9)))
    if worst <= 2:  # 16 actions are enough for latencies of 6 steps and these delays
        assert all(fresh) and agent.late == 0
    assert sum(fresh) >= 40  # it never gets stuck


@every(obs_latency=(0, 2), action_latency=(0, 1, 2), n_obs_steps=(1, 3))
def test_a_loop_that_catches_up_after_a_stall_repeats_and_skips_nothing(obs_latency, action_latency, n_obs_steps):
    """Up to 12 actions are commanded at one moment, more than a robot on schedule ever has in flight."""
    world = World(itertools.chain([0], itertools.repeat(1)), obs_latency, action_latency)
    agent, fresh = world.run(90, stalls=(20, 47), n_obs_steps=n_obs_steps)
    assert all(fresh[:20]) and all(fresh[75:]) and fresh.count(False) <= 2 * 12
    assert len(agent._commands) + len(agent._observations["state"]) < 20  # what is too old is forgotten


@every(delay=(0, 1, 4), obs_latency=(0, 2), action_latency=(0, 1))
def test_the_prefix_is_what_is_executed_from_the_oldest_observation_until_the_chunk_begins(
    delay, obs_latency, action_latency
):
    world = World(itertools.chain([0], itertools.repeat(delay)), obs_latency, action_latency)
    agent, fresh = world.run(60, delay=delay)
    assert all(fresh) and agent.delays[-1] == delay
    for _, state, prefix, told in world.requests[1:]:
        assert state[0] == state[1] - 1 == prefix[0] and (np.diff(prefix, axis=0) == 1).all()
        assert told == obs_latency + action_latency + delay and len(prefix) > told


@every(n_obs_steps=(1, 2, 3), delay=(0, 1, 3), s=(3, 5), merge=(Naive(), Prefix()))
def test_it_executes_what_the_agent_of_the_rollouts_executes_with_the_same_delay(n_obs_steps, delay, s, merge):
    class Plain(Fake):
        def draw(self, obs, random, how=AS_CONFIGURED):
            chunk = super().draw(obs, Randomness(torch.zeros(1, dtype=torch.int64)))
            if how.prefix is not None:
                chunk[:, : how.prefix.shape[1]] = how.prefix
                chunk += how.prefix.mean()
            return chunk

    policy, seen = Plain(12, n_obs_steps), stream(1, 40)
    lockstep = VectorAgent(policy, n_action_steps=s, merge=merge, delay=delay)
    lockstep.reset([0])

    class Remote:
        def infer(self, obs, prefix=None, delay=0):
            obs = {key: torch.tensor(value, dtype=torch.float32)[None] for key, value in obs.items()}
            prefix = None if prefix is None else torch.tensor(prefix)[None]
            random = Randomness(torch.zeros(1, dtype=torch.int64))
            chunk = next_chunk(policy, obs, random, merge=merge, unfinished=prefix, delay=delay)
            return {"chunk": chunk[0].numpy()}

    world = World(itertools.chain([0], itertools.repeat(delay)))
    settings = {"n_obs_steps": n_obs_steps, "n_action_steps": s, "delay": delay}
    agent = RealtimeAgent(Remote(), fps=1, clock=lambda: world.tick, executor=world, **settings)
    for obs in seen:
        expected = lockstep.act(obs)[0]
        np.testing.assert_array_equal(agent.act({key: value[0] for key, value in obs.items()}), expected)
        world.tick += 1
    assert agent.held == 0


def test_a_delay_in_which_nothing_was_consumed_drops_nothing():
    """LeRobot #3125 dropped as many actions as the prediction took, though the robot had stood still: 210 of 300."""
    world = World(itertools.chain([7], itertools.repeat(0)))
    world.run(20)  # `World.execute` asserts that the first action is number 0
    assert world.requests[0][0] == 0
    late = World(itertools.chain([0, 40], itertools.repeat(0)))
    agent, fresh = late.run(80)
    assert fresh[:15] == [True] * 15 and not any(fresh[15:44]) and all(fresh[44:])
    assert (agent.held, agent.late) == (29, 1)


def test_a_chunk_is_requested_long_before_the_queue_is_empty_and_whatever_the_robot_sees():
    """LeRobot's server ignored observations like the last one unless the queue was empty, so the robot stopped."""
    world = World(itertools.chain([0], itertools.repeat(3)))
    world.observe = lambda: {"state": np.zeros(1)}
    world.execute = lambda action: True
    agent = RealtimeAgent(world, fps=10, n_obs_steps=2, n_action_steps=4, clock=world.clock, executor=world)
    for _ in range(40):
        agent.act(world.observe())
        world.tick += 1
    assert [tick for tick, *_ in world.requests] == list(range(0, 40, 4)) and agent.held == 0


def test_a_chunk_that_would_run_out_is_replaced_early():
    world = World(itertools.chain([0], itertools.repeat(3)))
    agent, fresh = world.run(80, n_action_steps=100, delay=3)
    assert all(fresh) and [tick for tick, *_ in world.requests[:3]] == [0, 12, 24]  # 15 actions, the last 3 in flight


def test_the_delay_is_the_largest_of_the_last_ten_and_bounded_by_what_the_policy_knows():
    world = World([0, 3, *[1] * 30])
    agent, _ = world.run(120, delay=0)
    assert [told for *_, told in world.requests[1:4]] == [0, 3, 3]
    assert list(agent.delays) == [1] * 10 and world.requests[-1][-1] == 1
    bounded = World([0, 3, *[1] * 30])
    bounded.run(60, delay=2, max_delay=1)
    assert {told for *_, told in bounded.requests[1:]} == {1}


def test_observations_of_different_age_are_brought_to_one_time():
    seen = []

    class Remote:
        def infer(self, obs, prefix=None, delay=0):
            seen.append(obs)
            return {"chunk": np.zeros((8, 1))}

    world = World(itertools.repeat(0))
    agent = RealtimeAgent(
        Remote(),
        fps=1 / PERIOD,
        n_obs_steps=3,
        n_action_steps=1,
        obs_latency={"camera": 0.13, "arm": 0.02},
        clock=world.clock,
        executor=world,
    )
    for step in range(12):
        now = step * PERIOD
        camera, arm = np.full((2, 2, 3), step, np.uint8), np.array([now - 0.02, 1.0])
        agent.act({"camera": camera, "arm": arm, "force": [2 * now]})
        world.tick += 1
    base = 11 * PERIOD - 0.13  # when the newest camera frame was taken
    wanted = base - PERIOD * np.array([2, 1, 0])
    np.testing.assert_allclose(seen[-1]["arm"][:, 0], wanted, atol=1e-9)
    np.testing.assert_allclose(seen[-1]["force"][:, 0], 2 * wanted, atol=1e-9)
    assert seen[-1]["camera"].dtype == np.uint8 and seen[-1]["camera"][:, 0, 0, 0].tolist() == [9, 10, 11]


def test_interpolation_is_that_of_numpy_and_exact_where_something_was_recorded():
    random = np.random.default_rng(0)
    times = np.cumsum(random.uniform(0.1, 1, 9))
    values = random.normal(size=(9, 2)).astype(np.float32)
    past = list(zip(times, values))  # noqa: B905
    wanted = np.concatenate([[times[0] - 1, times[-1] + 1], random.uniform(times[0], times[-1], 50)])
    found = interpolated(past, wanted)
    for column in range(2):
        np.testing.assert_allclose(found[:, column], np.interp(wanted, times, values[:, column]), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(interpolated(past, times), values)
    nearest = interpolated([(time, np.int64(i)) for i, time in enumerate(times)], wanted)
    np.testing.assert_array_equal(nearest, np.abs(wanted[:, None] - times).argmin(1))
    np.testing.assert_array_equal(interpolated(past[:1], wanted), values[:1].repeat(52, 0))
    assert np.isfinite(interpolated([(1.0, values[0]), (1.0, values[1])], np.array([0.0, 1.0, 2.0]))).all()


def test_rotations_are_taken_from_the_nearest_time():
    """Half way between a quaternion and its negative, the same rotation, lies 0."""
    turn, asked = np.array([0.0, 0, 0, 1]), []

    class Inline:
        def submit(self, call, *arguments, **named):
            (done := Future()).set_result(call(*arguments, **named))
            return done

        def shutdown(self):
            pass

    class Asked:
        def infer(self, obs, prefix=None, delay=0):
            asked.append(obs)
            return {"chunk": np.zeros((4, 1))}

    now = itertools.count()
    settings = {"fps": 1, "n_obs_steps": 2, "n_action_steps": 1, "obs_latency": {"other": 0.5}, "executor": Inline()}
    for nearest in ((), ["turn"]):
        with RealtimeAgent(Asked(), **settings, nearest=nearest, clock=lambda: float(next(now))) as agent:
            for sign in (1, -1, 1):
                agent.act({"turn": sign * turn, "other": np.zeros(1)})
        lengths = np.linalg.norm(asked[-1]["turn"], axis=-1)
        assert (lengths == 1).all() if nearest else lengths.min() < 1


def test_a_reset_forgets_the_episode_and_the_prediction_under_way():
    world = World(itertools.repeat(3))
    agent, _ = world.run(18)
    agent.reset()
    world.effects.clear()
    assert agent.act({"state": np.zeros(1)}) == 0.0 and agent.held == 0
    assert world.requests[-1][2] is None


def test_an_observation_that_is_no_longer_given_is_refused_instead_of_acting_on_the_past():
    world = World(itertools.repeat(0))
    settings = {"fps": 1 / PERIOD, "n_obs_steps": 2, "n_action_steps": 4}
    agent = RealtimeAgent(world, clock=world.clock, executor=world, **settings)
    agent.act({**world.observe(), "camera": np.zeros(1)})
    with pytest.raises(ValueError, match=naming("episode", "['camera']", "['state']")):
        agent.act(world.observe())
    agent.reset()
    agent.act(world.observe())


def test_actions_belong_to_the_caller():
    world = World(itertools.repeat(0))
    agent = RealtimeAgent(world, fps=10, n_obs_steps=1, n_action_steps=4, clock=world.clock, executor=world)
    obs = {"state": np.zeros(1)}
    for step in range(3):
        action = agent.act(obs)
        assert action == step
        action += 100
        obs["state"] += 50


class Broken:
    def __init__(self, answer):
        self.answer = answer

    def infer(self, obs, prefix=None, delay=0):
        if isinstance(self.answer, Exception):
            raise self.answer
        return {"chunk": self.answer}


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (ConnectionError("the server is gone"), ConnectionError, ("gone",)),
        (np.zeros((2, 1)), ValueError, ("(2, 1)", "True", "(horizon, action_dim)", 2)),
        (np.zeros(8), ValueError, ("(8,)", "True", "(horizon, action_dim)", 2)),
        (np.full((8, 1), np.nan), ValueError, ("(8, 1)", "False")),
    ],
)
def test_what_goes_wrong_in_a_prediction_is_raised_where_the_robot_acts(answer, error, message):
    agent = RealtimeAgent(Broken(answer), fps=10, n_obs_steps=3, n_action_steps=1)
    with agent, pytest.raises(error, match=naming(*message)):
        agent.act({"state": np.zeros(1)})


def test_settings_without_meaning_are_refused():
    for wrong, found in (
        ({"fps": 0}, ("fps", 0)),
        ({"n_obs_steps": 0}, ("n_obs_steps 0",)),
        ({"n_action_steps": 0}, ("n_action_steps 0",)),
        ({"delay": -1}, ("delay -1",)),
        ({"obs_latency": {"a": -0.1}}, ("latencies", "[-0.1, 0.0]")),
    ):
        with pytest.raises(ValueError, match=naming(*found)):
            RealtimeAgent(Broken(None), **{"fps": 10, "n_obs_steps": 1, "n_action_steps": 1, **wrong})
    agent = RealtimeAgent(Broken(None), fps=10, n_obs_steps=1, n_action_steps=1, obs_latency={"camera": 0.1})
    with pytest.raises(ValueError, match=naming("obs_latency", "['camera']", "['state']")):
        agent.act({"state": np.zeros(1)})
    with pytest.raises(ValueError, match=naming("nearest", "'turn'", "['turn']")):
        RealtimeAgent(Broken(None), fps=10, n_obs_steps=1, n_action_steps=1, nearest="turn")
    agent = RealtimeAgent(Broken(None), fps=10, n_obs_steps=1, n_action_steps=1, nearest=["trun"])
    with pytest.raises(ValueError, match=naming("nearest", "['trun']", "['turn']")):
        agent.act({"turn": np.zeros(4)})


def test_a_local_agent_runs_in_its_own_thread():
    local = Agent(Fake(), seed=1)
    with RealtimeAgent(local, fps=100, n_obs_steps=2, n_action_steps=2) as agent:
        actions = [agent.act({key: value[0] for key, value in obs.items()}) for obs in stream(1, 30)]
    assert np.isfinite(actions).all() and np.shape(actions) == (30, 2)


def test_one_slow_prediction_does_not_stop_a_policy_that_continues_a_prefix():
    """Such a policy was trained for delays up to 2; beyond them it continues the first 2 actions."""
    told = []

    class Continuing(Fake):
        max_delay = 2

        def draw(self, obs, random, how=AS_CONFIGURED):
            chunk = super().draw(obs, random)
            if how.prefix is not None:
                told.append(how.prefix.shape[1] - 1)
                chunk[:, : how.prefix.shape[1]] = how.prefix
            return chunk

    world = World(itertools.chain([0, 5], itertools.repeat(1)))
    settings = {"n_obs_steps": 2, "n_action_steps": 4, "clock": world.clock, "executor": world}
    agent = RealtimeAgent(Agent(Continuing(12), merge=Prefix()), fps=1 / PERIOD, **settings)
    for obs in stream(1, 60):
        agent.act({key: value[0] for key, value in obs.items()})
        world.tick += 1
    assert set(told) == {1, 2} and list(agent.delays) == [1] * 10


def test_an_episode_repeats_its_noise_whatever_was_under_way_when_it_began():
    """A prediction of the last episode ended after the reset, and moved the count of the new one."""
    began, may_end, policy = threading.Event(), threading.Event(), Fake()
    obs = {key: np.repeat(value, 2, 0) for key, value in stream(1, 1)[0].items()}
    local, draw = Agent(policy), policy.draw
    local.reset(episode=7)
    expected = [local.infer(obs)["chunk"] for _ in range(2)]
    policy.draw = lambda *args: (began.set(), may_end.wait(60), draw(*args))[-1]
    with ThreadPoolExecutor(1) as executor:
        old = executor.submit(local.infer, obs)
        assert began.wait(60)
        local.reset(episode=7)
        may_end.set()
        old.result()
    np.testing.assert_array_equal([local.infer(obs)["chunk"] for _ in range(2)], expected)


def test_a_reset_cancels_a_prediction_that_waits_for_its_thread():
    """It would take the first noise of the next episode."""
    may_begin, asked = threading.Event(), []

    class Counting:
        def infer(self, obs, prefix=None, delay=0):
            asked.append(obs["state"][-1].item())
            return {"chunk": np.zeros((8, 1))}

    executor = ThreadPoolExecutor(1)
    with RealtimeAgent(Counting(), fps=10, n_obs_steps=1, n_action_steps=1, executor=executor) as agent:
        agent.act({"state": np.zeros(1)})
        executor.submit(may_begin.wait, 60)
        agent.act({"state": np.ones(1)})  # queued behind
        agent.reset()
        may_begin.set()
        agent.act({"state": np.full(1, 2.0)})
    assert asked == [0.0, 2.0]


def test_the_file_runs_on_an_old_python_with_numpy_alone():
    source = Path(realtime.__file__).read_text(encoding="utf-8")
    tree = ast.parse(source, feature_version=(3, 8))
    found = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    found |= {node.module.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert found - set(sys.stdlib_module_names) == {"numpy"}
