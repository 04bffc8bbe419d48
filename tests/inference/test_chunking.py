"""Ways of merging chunks, against brute-force readings of their definitions."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from dp_prior.diffusion.draw import AS_CONFIGURED, Draw
from dp_prior.inference.agent import Agent
from dp_prior.inference.chunking import Ensemble, Guided, Naive, Prefix, Synchronous, next_chunk, soft_weights
from dp_prior.inference.vector_agent import VectorAgent
from dp_prior.tensors.batch import Spec
from dp_prior.tensors.randomness import Randomness
from dp_prior.tensors.rotations import RotationSlice
from dp_prior.tensors.six_d import matrix_of, to_6d
from tests.cases import every
from tests.inference.fake_policies import Fake, stream
from tests.messages import naming
from tests.tasks.test_prefix import X0, batch, build, rows

HORIZON = 12
EULER = RotationSlice(slice=(0, 3), form="euler_xyz")
ALL = [Naive(), Synchronous(), Guided(), Prefix(), Ensemble()]


class Recording(Fake):
    """Remembers the conditions of every prediction; has a weight, as guidance needs."""

    def __init__(self, n_obs_steps=2):
        super().__init__(horizon=HORIZON, n_obs_steps=n_obs_steps)
        self.weight = nn.Parameter(torch.zeros(1))
        self.chunks, self.asked = [], []

    def draw(self, obs, random, how=AS_CONFIGURED):
        self.asked.append(how)
        self.chunks.append(super().draw(obs, random, how))
        return self.chunks[-1]


def episode(merge, delay, n_action_steps, n_obs_steps=2, steps=30):
    """(steps, n, action_dim) executed actions, and the policy with what it was asked."""
    policy = Recording(n_obs_steps)
    agent = VectorAgent(policy, n_action_steps=n_action_steps, merge=merge, delay=delay)
    agent.reset(range(2))
    return np.stack([agent.act(obs) for obs in stream(2, steps)]), policy


CASES = [(d, s, n) for n in (1, 2, 4) for d in (0, 1, 3) for s in (1, 3, 5) if d <= s <= HORIZON - n + 1 - d]


@every(len(CASES), merge=[Naive(), Guided(), Prefix()], case=CASES)
def test_a_chunk_replaces_the_last_one_when_it_arrives(merge, case):
    delay, s, n_obs_steps = case
    """The chunk of step t runs from t + delay on, that of step 0 at once; its present is index n_obs_steps - 1."""
    actions, policy = episode(merge, delay, s, n_obs_steps)
    assert len(policy.chunks) == math.ceil(30 / s)
    for step in range(30):
        newest = max(i for i in range(30) if i * s + (delay if i else 0) <= step)
        expected = policy.chunks[newest][:, n_obs_steps - 1 + step - newest * s]
        np.testing.assert_array_equal(actions[step], expected)


@every(case=CASES)
def test_a_synchronous_robot_holds_its_last_action_during_each_prediction(case):
    delay, s, n_obs_steps = case
    actions, policy = episode(Synchronous(), delay, s, n_obs_steps)
    expected = []
    for chunk in policy.chunks:
        expected += expected[-1:] * delay
        expected += chunk[:, n_obs_steps - 1 : n_obs_steps - 1 + s].unbind(1)
    expected = (expected + expected[-1:] * delay)[:30]
    np.testing.assert_array_equal(actions, torch.stack(expected).numpy())


@every(len(CASES), case=CASES, decay=[0.01, -0.5])
def test_an_ensemble_is_the_weighted_mean_of_all_chunks_that_hold_an_action(case, decay):
    delay, s, n_obs_steps = case
    actions, policy = episode(Ensemble(decay=decay), delay, s, n_obs_steps)
    for step in range(30):
        held = []
        for i, chunk in enumerate(policy.chunks):
            index = n_obs_steps - 1 + step - i * s
            if i * s + (delay if i else 0) <= step and index < HORIZON:
                held.append(chunk[:, index].double().numpy())
        weights = np.exp(-decay * np.arange(len(held)))
        expected = sum(weight * action for weight, action in zip(weights, held, strict=True)) / weights.sum()
        np.testing.assert_allclose(actions[step], expected, rtol=1e-5)


@every(len(CASES), merge=[Guided(), Prefix()], case=CASES)
def test_what_the_policy_continues_is_what_the_robot_executes(merge, case):
    """From n_obs_steps - 1 steps before the observation to the last step before the chunk begins."""
    delay, s, n_obs_steps = case
    actions, policy = episode(merge, delay, s, n_obs_steps)
    past = n_obs_steps - 1
    for i, how in enumerate(policy.asked[: 30 // s]):
        if i == 0 or i * s < past:
            assert how == AS_CONFIGURED
            continue
        executed = actions[i * s - past : i * s + delay].transpose(1, 0, 2)
        if merge.type == "prefix":
            assert (how.prefix is not None) == bool(delay)
            given = (how.prefix if delay else torch.tensor(executed)).numpy()
        else:
            target = how.target
            given = target.values[:, : past + delay].numpy()
            full = target.weights[: past + delay]  # 1 but for the rounding of an exponential
            assert ((full - 1).abs() < 1e-6).all() and target.max_weight == 5.0
            left = HORIZON - s
            np.testing.assert_array_equal(target.values[:, past:left], policy.chunks[i - 1][:, past + s :])
            assert (target.weights[past + delay : left] > 0).all() and (target.weights[left:] == 0).all()
        np.testing.assert_array_equal(given, executed)


@pytest.mark.parametrize("merge", ALL, ids=lambda merge: merge.type)
def test_without_delay_and_overlap_all_ways_but_ensembles_and_guidance_are_naive(merge):
    plain, _ = episode(None, 0, 5)
    actions, _ = episode(merge, 0, 5)
    assert np.array_equal(actions, plain) == (merge.type != "ensemble")  # the fake is not guided by its conditions


def test_soft_weights_are_those_of_the_paper():
    """Equation 5 of arXiv:2506.07339, with indices from the present on; actions before it count fully."""
    for present, horizon, s, d in [(0, 10, 4, 2), (1, 16, 8, 6), (2, 9, 3, 0), (1, 16, 1, 1)]:
        h = horizon - present
        expected = [1.0] * present
        for i in range(h):
            c = (h - s - i) / (h - s - d + 1)
            expected.append(1.0 if i < d else c * (math.exp(c) - 1) / (math.e - 1) if i < h - s else 0.0)
        torch.testing.assert_close(soft_weights(horizon, present, d, horizon - s)[:, 0], torch.tensor(expected))


class Smooth(nn.Module):
    """The exact denoiser of chunks that wander: normal, with correlation exp(-|i - j| / 3) between places."""

    def __init__(self, table):
        super().__init__()
        places = torch.arange(8.0)
        levels = torch.tensor(table.levels[:-1], dtype=torch.float32)[..., None, None]
        covariance = torch.exp(-(places[:, None] - places).abs() / 3)
        of_x_t = levels[:, 0] ** 2 * covariance + levels[:, 1] ** 2 * torch.eye(8)
        self.gains = nn.Parameter(levels[:, 0] * covariance @ torch.linalg.inv(of_x_t))

    def forward(self, x_t, t, cond):
        return self.gains[t] @ x_t


def test_guided_chunks_come_nearer_the_unfinished_one_the_more_they_are_guided():
    policy, obs = build(diffusion=X0, max_delay=None), batch(200).cond
    policy.backbone = Smooth(policy.process.table)
    sampler = policy.sampler.model_copy(update={"steps": 10})
    unfinished = policy.predict(obs, rows(200), sampler)[:, 2:]
    random = Randomness.from_counts(1, "other", torch.arange(200))

    def seams(merge):
        """Mean distance at the actions under way, and from the last of them to the first new one."""
        chunk = next_chunk(policy, obs, random, Draw(sampler), merge=merge, unfinished=unfinished, delay=3)
        return [(chunk[:, a] - unfinished[:, b]).abs().mean().item() for a, b in ((slice(4), slice(4)), (4, 3))]

    naive, none, some, full = (seams(merge) for merge in (Naive(), *(Guided(max_weight=w) for w in (0.0, 1.0, 5.0))))
    assert naive == none
    for distance in range(2):
        assert none[distance] > some[distance] > full[distance]
    assert full[0] < 0.2 * naive[0] and full[1] < 0.7 * naive[1]


def test_one_robot_may_keep_history_and_queue_itself():
    policy, obs = build(), {key: value[0].numpy() for key, value in batch(2).cond.items()}
    agent = Agent(policy, seed=3, merge=Prefix())
    first = agent.infer(obs)["chunk"]
    second = agent.infer(obs, prefix=first[2:7], delay=3)["chunk"]
    assert first.shape == second.shape == (8, 2) and first.dtype == np.float32
    np.testing.assert_array_equal(second[:4], first[2:6])
    again = agent.infer(obs)["chunk"]
    assert not np.array_equal(again, first)  # other noise
    agent.reset(0)
    np.testing.assert_array_equal(agent.infer(obs)["chunk"], first)
    with pytest.raises(ValueError, match=naming("'goal'", "agent_pos (2,)", "goal (1,)")):
        agent.infer({"agent_pos": obs["agent_pos"]})
    with pytest.raises(ValueError, match=naming("'goal'", "(3, 1)", "(2, 1)")):
        agent.infer({**obs, "goal": np.zeros((3, 1))})


@pytest.mark.parametrize(
    ("unfinished", "delay", "message"),
    [
        (np.zeros((6, 3)), 2, ("unfinished chunk", "(6, 3)", "(n, 2)", 3, "n_obs_steps", "8 (horizon)")),
        (np.zeros((9, 2)), 2, ("unfinished chunk", "(n, 2)", 3, "n_obs_steps", "8 (horizon)")),
        (np.zeros((2, 2)), 2, ("unfinished chunk", "(n, 2)", 3, "n_obs_steps", "8 (horizon)")),
        (np.zeros(6), 2, ("unfinished chunk", "(n, 2)", 3, "n_obs_steps", "8 (horizon)")),
        (np.zeros((1, 6, 2)), 2, ("unfinished chunk", "(n, 2)", 3, "n_obs_steps", "8 (horizon)")),
        (np.full((6, 2), np.nan), 2, ("unfinished chunk", "not finite")),
        (np.zeros((8, 2)), 7, ("delay", 7, "7 actions", "0 to 6")),
        (np.zeros((8, 2)), -1, ("delay", -1, "7 actions", "0 to 6")),
    ],
)
@pytest.mark.parametrize("merge", [Naive(), Guided(), Prefix()], ids=lambda merge: merge.type)
def test_an_unfinished_chunk_that_cannot_be_one_is_refused(merge, unfinished, delay, message):
    obs = {key: value[0].numpy() for key, value in batch(2).cond.items()}
    with pytest.raises(ValueError, match=naming(*message)):
        Agent(build(), merge=merge).infer(obs, unfinished, delay)


def test_a_prefix_longer_than_trained_is_refused():
    with pytest.raises(ValueError, match=naming("5 actions", "4 steps", "1 to 3", "task.prefix.max_delay")):
        next_chunk(build(max_delay=3), batch(6).cond, rows(6), merge=Prefix(), unfinished=torch.zeros(6, 6, 2), delay=4)


def test_a_robot_whose_prediction_was_slow_continues_as_much_as_the_policy_can():
    policy, obs = build(max_delay=3), {key: value[0].numpy() for key, value in batch(2).cond.items()}
    agent, unfinished = Agent(policy, merge=Prefix()), np.random.default_rng(0).uniform(-1, 1, (8, 2))
    chunk = agent.infer(obs, unfinished, delay=6, step=0)["chunk"]
    np.testing.assert_array_equal(chunk, agent.infer(obs, unfinished, delay=3, step=0)["chunk"])
    np.testing.assert_array_equal(chunk[:4], unfinished[:4].astype(np.float32))
    with pytest.raises(ValueError, match=naming("task.prefix", "'guided'")):
        Agent(build(max_delay=None), merge=Prefix()).infer(obs, unfinished, delay=1)


def test_a_warm_start_begins_from_the_unfinished_chunk_also_for_a_caller_that_keeps_the_queue():
    """Its last action is held to the horizon."""
    policy, obs = Fake(horizon=8), {key: np.repeat(value, 2, 0) for key, value in stream(1, 1)[0].items()}
    for prefix in (None, np.arange(10.0).reshape(5, 2)):
        for is_warm in (False, True):
            Agent(policy, warm_start=is_warm).infer(obs, prefix)
            if prefix is None or not is_warm:
                assert policy.previous is None
            else:
                np.testing.assert_array_equal(policy.previous[0], prefix[[0, 1, 2, 3, 4, 4, 4, 4]])


class Turning(Recording):
    """Its actions are Euler angles, near gimbal lock, where other angles are the same rotation."""

    def __init__(self):
        super().__init__()
        self.spec = Spec(x_shape=(HORIZON, 3), cond_shapes=self.spec.cond_shapes, rotations={"x": (EULER,)})

    def draw(self, obs, random, how=AS_CONFIGURED):
        turn = random.stream("start").normal(HORIZON, 3).clamp(-1, 1) + torch.tensor([0.0, torch.pi / 2 - 1, 0.0])
        self.chunks.append(turn.clamp(max=torch.pi / 2))
        return self.chunks[-1]


@pytest.mark.parametrize("merge", ALL, ids=lambda merge: merge.type)
def test_actions_are_those_of_the_chunk_to_the_last_bit_where_nothing_is_averaged(merge):
    policy = Turning()
    agent = VectorAgent(policy, n_action_steps=4, merge=merge)
    agent.reset([0])
    for step, obs in enumerate(stream(1, 20)):
        action, planned = agent.act(obs)[0], policy.chunks[-1][0, 1 + step % 4].numpy()
        assert np.array_equal(action, planned) or merge.averages
        if merge.averages and step < 4:  # a mean of one chunk is the same rotation
            both = [matrix_of(to_6d(torch.tensor(one), EULER.form)) for one in (action, planned)]
            torch.testing.assert_close(*both, rtol=0, atol=2e-6)


def test_guidance_needs_gradients():
    agent = VectorAgent(Fake(horizon=12), merge=Guided(), delay=1)  # like an exported policy it has no parameters
    agent.reset([0])
    with pytest.raises(ValueError, match=naming("'guided'", "policy", "checkpoint", "'naive'")) as refused:
        for obs in stream(1, 6):
            agent.act(obs)
    assert "'prefix'" not in str(refused.value)  # it takes none
    with (
        torch.inference_mode(),
        pytest.raises(ValueError, match=naming("torch.inference_mode", "'guided'", "torch.no_grad")),
    ):
        next_chunk(build(), batch(6).cond, rows(6), merge=Guided(), unfinished=torch.zeros(6, 6, 2), delay=1)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"delay": 2}, ("delay", 2, "merge", "'naive'")),
        ({"delay": -1, "merge": Naive()}, ("delay", -1, 0)),
        ({"delay": 5, "merge": Naive()}, ("delay 5", "n_action_steps", "5 to 6", 4, "11 actions")),
        (
            {"delay": 4, "merge": Prefix(), "n_action_steps": 8},
            ("delay 4", "n_action_steps", "4 to 7", 8, "11 actions"),
        ),
    ],
)
def test_a_delay_that_does_not_fit_is_refused(how, message):
    with pytest.raises(ValueError, match=naming(*message)):
        VectorAgent(Fake(horizon=12), **how)
    VectorAgent(Fake(horizon=12), merge=Synchronous(), delay=50)


@pytest.mark.parametrize("merge", ALL, ids=lambda merge: merge.type)
def test_rows_depend_on_themselves_alone_and_inactive_ones_do_not_matter(merge):
    seen = stream(3, 20)
    agents = [VectorAgent(Recording(), merge=merge, delay=2) for _ in range(2)]
    for agent in agents:
        agent.reset(range(3))
    for step, obs in enumerate(seen):
        active = np.array([True, step < 7, True])
        full, part = agents[0].act(obs), agents[1].act(obs, active)
        np.testing.assert_array_equal(full[active], part[active])
        assert np.isfinite(part).all()
