"""Real-time execution on a clock that only the test moves, with predictions that arrive when the test says so.

The robot counts: its state is the number of actions that have taken effect, and the policy says that the action for
state v is v. So every action that is skipped or repeated is a wrong number.
"""

import ast
import itertools
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path

import numpy as np
import pytest
import torch

from dp_prior.diffusion.draw import AS_CONFIGURED
from dp_prior.inference.agent import Agent
from dp_prior.inference.chunking import Naive, Prefix, next_chunk
from dp_prior.inference.vector_agent import VectorAgent
from dp_prior.tensors.randomness import Randomness
from dp_prior_client import realtime
from dp_prior_client.loop_limits import LateError, LoopLimits
from dp_prior_client.onboard.action_limits import ActionLimits, RefusedActionError
from dp_prior_client.onboard.obs_spec import ObsSpec, Reads, TrainedMotion
from dp_prior_client.onboard.tick_log import TickLog
from dp_prior_client.realtime import RealtimeAgent
from dp_prior_robot.export.example_rows import observations as example_observations
from tests.cases import every
from tests.dp_prior_client.test_client import AtOnce
from tests.inference.fake_policies import Fake, stream
from tests.messages import naming, told, told_each
from tests.plugins.dp_prior_robot.export.policies import build

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


@every(seed=range(12))
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
    assert len(agent._plan._commands) + len(agent._observed._observations["state"]) < 20  # what is too old is forgotten


@every(delay=(0, 1, 4), obs_latency=(0, 2), action_latency=(0, 1))
def test_the_prefix_is_what_is_executed_from_the_oldest_observation_until_the_chunk_begins(
    delay, obs_latency, action_latency
):
    world = World(itertools.chain([0], itertools.repeat(delay)), obs_latency, action_latency)
    agent, fresh = world.run(60, delay=delay)
    assert all(fresh) and agent.delays[-1] == delay
    for _, state, prefix, declared in world.requests[1:]:
        assert state[0] == state[1] - 1 == prefix[0] and (np.diff(prefix, axis=0) == 1).all()
        assert declared == obs_latency + action_latency + delay and len(prefix) > declared


@every(12, n_obs_steps=(1, 2, 3), delay=(0, 1, 3), s=(3, 5), merge=(Naive(), Prefix()))
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


def test_an_observation_that_is_none_is_refused_and_not_remembered():
    world = World(itertools.repeat(0))
    world.reads = ObsSpec({"state": Reads((1,), "float32")})
    agent = RealtimeAgent(world, fps=10, n_obs_steps=2, n_action_steps=4, clock=world.clock, executor=world)
    expected = [agent.act(world.observe())]
    for tick in range(1, 12):  # whether a prediction is due or not
        world.tick = tick
        with pytest.raises(ValueError, match=naming("'state'", "None", "numbers")):
            agent.act({"state": None})
        expected.append(agent.act(world.observe()))
    assert np.isfinite(expected).all()


class Ordered(World):
    """Each action tells the order that its chunk was predicted with."""

    reads = ObsSpec({"state": Reads((1,), "float32"), "order": Reads((1,), "float32", "text")})

    def infer(self, obs, prefix=None, delay=0):
        own = None if prefix is None else prefix[:, :1]
        numbers = super().infer({"state": obs["state"]}, own, delay)["chunk"]
        return {"chunk": np.concatenate([numbers, np.full_like(numbers, obs["order"][-1, 0])], axis=1)}


@every(changed=range(12, 19), delay=(0, 1, 3), obs_latency=(0, 2), n_obs_steps=(1, 2))
def test_after_dropped_actions_a_chunk_is_asked_for_at_once_and_the_robot_goes_on_meanwhile(
    changed, delay, obs_latency, n_obs_steps
):
    world = Ordered(itertools.chain([0], itertools.repeat(delay)), obs_latency)
    latency = {"state": obs_latency * PERIOD}
    agent = RealtimeAgent(world, fps=10, n_obs_steps=n_obs_steps, n_action_steps=6, delay=delay, clock=world.clock,
                          executor=world, obs_latency=latency)  # fmt: skip
    orders, under_way = [], []
    for tick in range(40):
        if tick == changed:
            agent.drop_queued_actions()
            under_way = [asked for asked, *_ in world.requests if asked + delay >= changed and asked < changed]
        action = agent.act({**world.observe(), "order": np.array([float(tick >= changed)])})
        assert world.execute(action[:1]), "no action is skipped or repeated"
        orders.append(action[1])
        world.tick += 1
    asked = under_way[0] + delay if under_way else changed
    assert orders == [0.0] * (asked + delay) + [1.0] * (40 - asked - delay)
    [(prefix, declared)] = [request[2:] for request in world.requests if request[0] == asked]
    executed = 0 if prefix is None else len(prefix)
    assert executed == n_obs_steps - 1 + declared, "of the running chunk what is executed until then"


def test_actions_dropped_before_the_first_chunk_are_those_of_the_prediction_under_way():
    world, waiting = Ordered(itertools.repeat(0)), Future()
    submit, world.submit = world.submit, lambda *arguments, **named: waiting
    limits = LoopLimits(first_chunk_s=0.01)
    agent = RealtimeAgent(world, fps=10, n_obs_steps=1, n_action_steps=6, clock=world.clock, executor=world,
                          limits=limits)  # fmt: skip
    with pytest.raises(LateError):
        agent.act({"state": np.zeros(1), "order": np.zeros(1)})
    agent.drop_queued_actions()
    assert waiting.cancelled()
    world.submit = submit
    assert agent.act({"state": np.zeros(1), "order": np.ones(1)})[1] == 1.0


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
        (TimeoutError("the predictor waited"), TimeoutError, ("predictor",)),
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


class Arm:
    """A robot, its camera and its loop of 50 Hz, on a clock that only the loop moves. As in `World` the state is the
    number of actions that have taken effect, so every action that is skipped or repeated is a wrong number.

    Args:
        events: by tick: "stall" for half a second without a call; "dropped" for a frame that does not come; "nan" for a
            prediction that is not finite; "lost" for one that raises; a number for a leap of the user's clock, after
            the frame was captured.
        outages: (begin, end) in seconds: no prediction arrives meanwhile.
        latency: seconds from a command to the state that shows its effect.
    """

    PERIOD = 0.02

    def __init__(self, events=None, outages=(), latency=0.0, **settings):
        self.now, self.leap, self.events, self.outages, self.latency = 50.0, 0.0, dict(events or {}), outages, latency
        self.effects, self.ticks, self.actions, self.told, self.asked, self.requests = [], [], [], [], [], []
        self.frame, self.stamp, self.fault = np.zeros((4, 4, 3), np.uint8), 50.0, None
        clocks = {"clock": lambda: self.now + self.leap, "monotonic": lambda: self.now}
        settings = {"obs_latency": {"state": latency}, "n_obs_steps": 2, "n_action_steps": 8, **settings}
        self.action_latency = settings.get("action_latency", 0.0)
        self.agent = RealtimeAgent(self, fps=50, executor=self, **clocks, **settings)

    def submit(self, call, *arguments, **named):
        ready = self.now + 0.05
        for begin, end in self.outages:
            ready = 50.05 + end if begin <= ready - 50 <= end else ready
        self.asked.append(self.now)
        return Due(self, ready, lambda: call(*arguments, **named))

    def infer(self, obs, prefix=None, delay=0):
        fault, self.fault = self.fault, None
        if fault == "lost":
            raise ConnectionError("the server is gone")
        state = obs["state"][-1].item()
        self.requests.append((state, delay))
        start = np.nan if fault == "nan" else round(state, 6)
        return {"chunk": start + np.arange(-1, 23, dtype=np.float32)[:, None]}

    def run(self, ticks, stamped=True):
        """Call `act` once per tick and write down what each tick was."""
        for tick in range(ticks):
            event = self.events.get(tick)
            self.fault = event if event in ("nan", "lost") else self.fault
            if event == "stall":
                self.now += 25 * self.PERIOD
                self.ticks += ["stalled"] * 25
            if event != "dropped":
                self.frame, self.stamp = self.frame + np.uint8(1), self.now + self.leap
            self.leap += event if isinstance(event, float) else 0.0
            self.ticks.append(self.act({"front": self.stamp} if stamped else None))
            self.now += self.PERIOD
        agent, count = self.agent, self.ticks.count
        assert (agent.commanded, agent.held, agent.replaced) == tuple(map(count, ("new", "held", "replaced")))
        assert agent.missed == count("stalled") + count("raised") and len(self.ticks) >= ticks
        return self

    def act(self, captured):
        expected = len(self.effects)
        state = sum(effect < self.now - self.latency - 1e-6 for effect in self.effects)
        try:
            action = self.agent.act({"state": np.array([float(state)]), "front": self.frame}, captured).item()
        except (LateError, ConnectionError, ValueError) as error:
            self.told.append((len(self.ticks), str(error)))
            return "raised"
        self.actions.append(action)
        if action == -1:
            return "replaced"
        assert action in (expected, expected - 1), f"{action} after {expected} actions"
        self.effects += [self.now + self.action_latency] * (action == expected)
        return "new" if action == expected else "held"


class Due(Future):
    """A prediction that is made when it is due; who waits for it moves the clock, at most by the timeout."""

    def __init__(self, arm, ready, call):
        super().__init__()
        self.arm, self.ready, self.call = arm, ready, call

    def done(self):
        return self.arm.now >= self.ready - 1e-9

    def result(self, timeout=None):
        if not self.done():
            self.arm.now = min(self.ready, self.arm.now + (timeout or np.inf))
        if not self.done():
            raise FutureTimeoutError
        return self.call()


def runs(ticks):
    """Consecutive equal ticks, as (what, how many)."""
    return [(what, len(list(group))) for what, group in itertools.groupby(ticks)]


EVENTS = {40: "stall", 90: "dropped", 91: "dropped", 300: "nan", 360: "lost", 410: 3600.0, 460: -3700.0}


def test_a_loop_of_50_hz_accounts_for_every_tick_of_stalls_outages_lost_and_broken_answers_and_dropped_frames():
    arm = Arm(EVENTS, outages=[(3.0, 4.0)]).run(600)
    # an outage of a second outlasts a chunk of 23 actions; a NaN and a lost answer cost one tick each
    assert [what for what, _ in runs(arm.ticks)] == ["new", "stalled", "new", "held", "new", *["raised", "new"] * 2]
    assert (arm.agent.late, arm.agent.clock_jumps, arm.agent.state) == (1, 2, "acting")
    assert ["server" in text for _, text in arm.told] == [False, True] and "predictor" in arm.told[0][1]


def test_a_clock_that_jumps_changes_no_action_whether_frames_have_times_or_not(caplog):
    """An action jumped by 0.33 where steps are 0.01, before the jumps were left out."""
    jumps = {60: 3600.0, 61: -3700.0, 150: -0.3, 200: 7.0}
    for stamped in (True, False):
        steady, jumping = (Arm(events, latency=0.04, action_latency=0.02).run(300, stamped) for events in ({}, jumps))
        assert steady.actions == jumping.actions == list(map(float, range(300)))
        np.testing.assert_allclose(steady.requests, jumping.requests, atol=1e-6)
        assert (steady.agent.clock_jumps, jumping.agent.clock_jumps) == (0, 4)
    assert caplog.text.count("+3600.000 s") == 2 and "-3700" not in caplog.text


def test_after_the_longest_hold_the_last_action_stays_an_error_stops_or_the_users_function_acts(caplog):
    late, outages = [], [(1.0, 3.0)]
    holding, stopping, replacing = (
        Arm(outages=outages, limits=LoopLimits(hold_s=0.2, then=then)).run(250)
        for then in ("hold", "stop", lambda lateness: late.append(lateness) or [-1.0])
    )
    (_, before), (_, held), (_, after) = runs(holding.ticks)
    assert runs(stopping.ticks)[:3] == [("new", before), ("held", 10), ("raised", held - 10 + 3)]  # and a new chunk
    assert runs(replacing.ticks)[:3] == [("new", before), ("held", 10), ("replaced", held - 10 + 3)]
    assert runs(stopping.ticks)[3:] == runs(replacing.ticks)[3:] == [("new", after - 3)]
    holds = [(f"{seconds} s", "held", "(limits.then)") for seconds in ("0.2", "1")]
    calls = [(f"{seconds} s", "function", "(limits.then)") for seconds in ("0.2", "1")]
    ends = [("again", f"{ticks * Arm.PERIOD:.3g} s") for ticks in (held, held + 3)]
    assert told_each(caplog.messages, *holds, ends[0], *calls, ends[1])
    tick, text = stopping.told[0]
    assert tick == before + 10 and told(text, f"action {before}", "limits.hold_s", 0.2, "stopped")
    assert late[0].action == before - 1 and late[0].obs["front"].shape == (4, 4, 3) and late[-1].held_s > late[0].held_s


def test_a_loop_without_new_actions_says_so_within_a_second_however_long_it_may_hold_and_why(caplog):
    arm = Arm(outages=[(1.0, 9.0)], limits=LoopLimits(hold_s=60.0))
    arm.trouble = "no answer from ws://gpu-box"
    arm.run(500)
    lines = [(f"{seconds} s", "held", "ws://gpu-box") for seconds in (1, 2, 4)]
    assert told_each(caplog.messages, *lines, ("again",)) and arm.agent.state == "acting"


def test_every_tick_is_logged_with_its_lateness_and_the_chunk_that_begins(tmp_path):
    with TickLog(tmp_path) as log:
        arm = Arm(outages=[(1.0, 3.0)], log=log).run(250)
        arm.agent.reset()
        arm.act(None)
    first, second = (np.load(path) for path in sorted(tmp_path.glob("*.npz")))
    assert first["step"].tolist() == list(range(250)) and second["episode"].tolist() == [1]
    np.testing.assert_array_equal(first["action"][:, 0], arm.actions[:250])
    np.testing.assert_array_equal(first["late_s"] > 0, [what == "held" for what in arm.ticks])
    assert first["late_s"].max() == pytest.approx(arm.ticks.count("held") * Arm.PERIOD)
    rows, starts = first["chunk_row"], first["chunk_start"]
    np.testing.assert_array_equal(first["chunk"][np.arange(len(rows)), starts], first["action"][rows])


def test_a_late_dry_run_holds_and_never_calls_the_users_function():
    class Dry(Arm):
        is_dry = True

    arm = Dry(outages=[(1.0, 3.0)], limits=LoopLimits(hold_s=0.2, then=lambda lateness: [-1.0])).run(250)
    assert arm.agent.replaced == 0 and arm.agent.held > 50


def test_chunks_shorter_than_the_way_to_the_robot_are_told_as_such():
    world = World(itertools.repeat(0), action_latency=6, horizon=4)
    with pytest.raises(LateError, match=naming("action 3", "chunk ended", "limits.hold_s")):
        world.run(40, limits=LoopLimits(hold_s=0.0, then="stop"))


def test_a_chunk_that_was_asked_for_before_the_users_function_acted_is_not_executed():
    """The function moves the robot away, and what was predicted before knows nothing of that."""
    moved = []
    limits = LoopLimits(hold_s=0.0, then=lambda lateness: moved.append(arm.now) or np.array([-1.0]))
    arm = Arm(outages=[(1.0, 3.0)], limits=limits)
    arm.run(160)
    assert [what for what, _ in runs(arm.ticks)] == ["new", "replaced", "new"] and arm.agent.late == 1
    assert [moved[0] < asked <= moved[-1] for asked in arm.asked].count(True) == 1  # whose chunk ends the lateness
    assert moved[-1] - max(asked for asked in arm.asked if asked <= moved[-1]) < 0.05


def test_a_first_chunk_that_does_not_come_is_an_error_and_one_that_comes_later_is_executed():
    arm = Arm(outages=[(0.0, 4.0)], limits=LoopLimits(first_chunk_s=1.5))
    arm.run(4)
    assert arm.ticks == ["raised", "raised", "new", "new"] and arm.agent.state == "acting"
    assert all(told(text, "1.5 s", "(limits.first_chunk_s)") for _, text in arm.told)


def test_a_first_chunk_that_arrives_as_the_wait_for_it_ends_is_executed():
    class Arriving(Future):
        def result(self, timeout=None):
            if timeout is not None:
                raise FutureTimeoutError
            return super().result()

    class JustInTime:
        def submit(self, call, *arguments, **named):
            future = Arriving()
            future.set_result(call(*arguments, **named))
            return future

    agent = looped(Told([NEAR]), JustInTime())
    np.testing.assert_array_equal(agent.act({"state": [5.0]}), np.float32(NEAR[0]))


def test_a_rate_that_is_not_that_of_training_is_told_or_refused(caplog):
    class Trained(Broken):
        reads = ObsSpec({}, fps=10)

    settings = {"n_obs_steps": 1, "n_action_steps": 1}
    for fps, known in ((10.2, Trained), (50, Broken)):
        RealtimeAgent(known(None), fps=fps, **settings).close()
    assert not caplog.records
    RealtimeAgent(Trained(None), fps=50, **settings).close()
    assert told(caplog.text, 50, 10, "5 times")
    with pytest.raises(ValueError, match=naming(50, "act 10 times", "limits.rate")):
        RealtimeAgent(Trained(None), fps=50, limits=LoopLimits(rate="refuse"), **settings)


def test_what_the_users_function_gives_is_checked():
    for wrong in ([np.nan], [[-1.0]], [1.0, 2.0]):
        limits = LoopLimits(hold_s=0.0, then=lambda lateness, wrong=wrong: wrong)
        arm = Arm(outages=[(0.3, 9.0)], limits=limits).run(60)
        assert told(arm.told[0][1], "limits.then", "shape (1,)")


def test_the_file_runs_on_an_old_python_with_numpy_alone():
    source = Path(realtime.__file__).read_text(encoding="utf-8")
    tree = ast.parse(source, feature_version=(3, 8))  # of what it imports, `test_wire` says the same
    found = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    found |= {node.module.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert found - set(sys.stdlib_module_names) == {"numpy", "dp_prior_client"}


POSITION = Reads((2,), "float32", names=("arm.pos", "base.vel"), range=(np.float32([0, -1]), np.float32([10, 1])))
MOVING = TrainedMotion(np.array([0.5, 1.0]), np.array([1.0, np.inf]), [("state", 0), None])


class Told:
    """Predicts chunks of a list, one after another, and says what its actions are if it has reads."""

    def __init__(self, chunks, **reads):
        self.chunks = iter(chunks)
        self.__dict__ |= reads

    def infer(self, obs, prefix=None, delay=0):
        return {"chunk": np.asarray(next(self.chunks), np.float32)}


class NeverAgain(AtOnce):
    """The first prediction is there at once, no other one ever."""

    def submit(self, call, *arguments, **named):
        self.submit = lambda *_, **__: Future()
        return super().submit(call, *arguments, **named)


def looped(predictor, executor=None, **settings):
    clock = itertools.count()
    return RealtimeAgent(
        predictor, fps=10, n_obs_steps=1, n_action_steps=2, executor=executor or AtOnce(),
        clock=lambda: next(clock) / 20, monotonic=lambda: 0.0, limits=LoopLimits(clock_jump_s=np.inf), **settings,
    )  # fmt: skip


READS = ObsSpec({"state": Reads((1,), "float32")}, POSITION._replace(motion=MOVING))
NEAR = np.tile([[5.0, 0.1]], (8, 1))


def test_a_chunk_of_another_width_reaches_no_robot():
    agent = looped(Told([NEAR, np.zeros((8, 3)), NEAR + 0.1]))
    assert agent.act({"state": [5.0]}).shape == (2,)
    with pytest.raises(ValueError, match=naming("(8, 3)", "(horizon, 2)")):
        for _ in range(3):
            agent.act({"state": [5.0]})
    for _ in range(3):
        assert agent.act({"state": [5.0]}).shape == (2,)
    with pytest.raises(ValueError, match=naming("(8, 3)", "(horizon, 2)")):
        looped(Told([np.zeros((8, 3))], reads=READS)).act({"state": [5.0]})


def test_a_command_far_from_the_robot_is_told_refused_or_clipped(caplog):
    huge = [NEAR, np.full((8, 2), 1e6), *[NEAR] * 8]
    agent = looped(Told(huge, reads=READS))
    commands = np.stack([agent.act({"state": [5.0]}) for _ in range(8)])
    assert commands.max() == 1e6
    assert len({record.message for record in caplog.records}) == len(caplog.records) == 5  # range and step of both
    agent, refused, commands = looped(Told(huge, reads=READS), actions=ActionLimits("refuse")), 0, []
    for _ in range(8):
        try:
            commands.append(agent.act({"state": [5.0]}))
        except RefusedActionError as error:
            refused += 1
            assert told(str(error), "'arm.pos'", "1e+06")
    assert refused == agent.missed == 1
    np.testing.assert_array_equal(commands, np.tile(np.float32(NEAR[:1]), (7, 1)))
    agent = looped(Told(huge, reads=READS), actions=ActionLimits("clip", 1.0))
    commands = np.stack([agent.act({"state": [5.0]}) for _ in range(8)])
    assert (np.abs(np.diff(commands, axis=0)) <= [0.5, 1]).all() and commands[:, 0].max() == 6


def test_a_robot_whose_first_action_is_refused_waits_for_the_next_chunk():
    agent = looped(Told([NEAR + 50, NEAR], reads=READS), actions=ActionLimits("refuse"))
    with pytest.raises(RefusedActionError, match=naming("'state'", 5, "(limit 2)")):
        agent.act({"state": [5.0]})
    assert agent.state == "waiting"
    np.testing.assert_array_equal(agent.act({"state": [5.0]}), np.float32(NEAR[0]))


def test_a_predictor_that_says_nothing_is_judged_by_limits_in_data_units():
    agent = looped(Told([NEAR, np.full((8, 2), 1e6)]), actions=ActionLimits("refuse", high=[10, 1]))
    with pytest.raises(RefusedActionError, match=naming("dimension 0", "dimension 1", "1e+06")):
        for _ in range(5):
            agent.act({"state": [5.0]})


def test_the_limits_of_an_agent_are_those_of_its_loop():
    policy = build()
    obs = {key: value[0, -1].numpy() for key, value in example_observations(policy, 0, 1).items()}
    agent = Agent(policy, actions=ActionLimits("refuse", low=1e5, high=1e6))
    with pytest.raises(RefusedActionError, match=naming("1e+05")):
        RealtimeAgent(agent, fps=10, n_obs_steps=2, n_action_steps=2, executor=AtOnce()).act(obs)


class Outage(AtOnce):
    """Predictions are there at once but while `is_away`."""

    is_away = False

    def submit(self, call, *arguments, **named):
        self.pending = Future() if self.is_away else super().submit(call, *arguments, **named)
        return self.pending


def test_the_step_after_the_users_function_is_counted_from_what_the_function_commanded():
    """It leads the arm from 5 to 9 while no chunk comes; the next chunk begins there."""
    there = np.tile([[9.1, 0.1]], (8, 1))
    executor = Outage()
    limits = ActionLimits("refuse", distance=50.0)
    agent = looped(Told([NEAR[:2], *[there] * 20], reads=READS), executor, actions=limits)
    agent.limits = LoopLimits(hold_s=0.1, then=lambda late: np.float32([9.0, 0.1]), clock_jump_s=np.inf)
    commands = [agent.act({"state": [5.0]})[0].item()]
    executor.is_away = True
    commands += [agent.act({"state": [5.0]})[0].item() for _ in range(8)]
    assert commands[0] == 5.0 and commands[-1] == 9.0
    executor.is_away = False
    executor.pending.set_result({"chunk": np.float32(there)})  # outdated: the function acted since
    commands = [agent.act({"state": [9.0]})[0].item() for _ in range(6)]
    assert commands[-1] == np.float32(9.1)


@pytest.mark.parametrize("then", ["hold", "stop"])
def test_a_velocity_is_held_no_longer_than_the_limit(then):
    """The position beside it is held as before."""
    agent = looped(Told([NEAR], reads=READS), NeverAgain())
    agent.limits = LoopLimits(hold_s=0.35, then=then, clock_jump_s=np.inf)
    commands = []
    for _ in range(24):
        try:
            commands.append(agent.act({"state": [5.0]}).tolist())
        except LateError:
            commands.append(None)
    held = [[5.0, np.float32(0.1).item()]] * (len(commands) - commands.count(commands[-1]))
    assert commands[: len(held)] == held and 8 < len(held) < 18
    assert commands[-1] == ([5.0, 0.0] if then == "hold" else None)
