"""What a policy gets and what it does in the toy environment, episode by episode."""

import math
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dp_prior.diffusion.draw import AS_CONFIGURED
from dp_prior.embedders.hashed import HashedConfig
from dp_prior.envs.toy import Toy, ToyConfig
from dp_prior.evaluation.film import Film
from dp_prior.evaluation.rollouts import Rollouts, _Episodes, enlarged
from dp_prior.inference.chunking import Ensemble, Naive, Synchronous
from dp_prior.inference.vector_agent import VectorAgent
from dp_prior.job.accelerator import make_accelerator
from dp_prior.job.ranks import Ranks
from dp_prior.job.stop import Abandoned
from dp_prior.tensors.observations import policy_reads
from dp_prior.tensors.pixels.resize import Fit
from dp_prior_client.onboard.obs_spec import ObsSpec
from dp_prior_worlds.pusht import PushTConfig
from tests.evaluation.fakes import NOW, TinyPolicy
from tests.evaluation.rollouts import (
    KEYS,
    SIDES,
    Filmed,
    Listening,
    Silent,
    Watching,
    Way,
    config,
    measure,
    seen,
)
from tests.messages import naming, told


@pytest.mark.parametrize(("high", "is_told"), [(0.2, False), (0.02, True)])
def test_another_unit_is_told_and_a_lost_policy_is_not(high, is_told, caplog):
    policy = Way(side=1.0)
    ends = (np.full(2, -high), np.full(2, high))  # positions of the toy lie between -1 and 1
    policy.reads = ObsSpec({key: one._replace(range=ends) for key, one in policy_reads(policy).observations.items()})
    measure(policy)
    assert told(caplog.text, "half ranges", "unit") == is_told


def test_every_episode_is_that_of_one_robot():
    """The published score and the deployed behaviour are one code path: replay seed by seed with `Agent`."""
    from dp_prior.inference.agent import Agent

    table = measure().tables["rollout/by_seed"]
    agent, env = Agent(Way(), seed=0), ToyConfig(n_envs=1).create()
    for episode, row in enumerate(table):
        agent.reset(episode)
        obs, done, steps = env.reset([row["seed"]]), [False], 0
        while not done[0]:
            obs, _, done, info = env.step(agent.act({key: value[0] for key, value in obs.items()})[None])
            steps += 1
        assert (info["score"][0], info["success"][0], steps) == (row["score"], row["success"], row["steps"])


def test_episodes_that_are_over_are_not_predicted_for():
    policy = Way(side=1.0)
    measure(policy, env=ToyConfig(n_envs=20))
    assert policy.batches[0] == 20 and policy.batches[-1] < 20


@pytest.mark.timeout(20)  # such rollouts went on for ever
def test_rollouts_in_a_world_that_ends_no_episode_are_an_error(monkeypatch):
    monkeypatch.setattr(Toy, "step", lambda self, actions, step=Toy.step: _without_end(step(self, actions)))
    with pytest.raises(ValueError, match=naming("8 of 8 episodes", "5 steps", "`done`", "max_steps")):
        measure(env=ToyConfig(n_envs=8, max_steps=5))


def _without_end(step):
    return step._replace(done=np.zeros_like(step.done))


def test_policy_that_gives_nan_has_no_score_and_does_not_stop_the_run():
    result = measure(Way(broken=True))
    assert math.isnan(result.metrics["rollout/score"]) and math.isnan(result.metrics["rollout/score_ci_low"])
    assert 0 < result.metrics["rollout/success_rate"] < 1
    scores = [row["score"] for row in result.tables["rollout/by_seed"]]
    assert 0 < sum(map(math.isnan, scores)) < 20


@pytest.mark.parametrize("merge", [Naive(), Synchronous(), Ensemble()], ids=lambda merge: merge.type)
def test_episodes_with_a_delay_are_those_of_an_agent_with_it(merge):
    table = measure(merge=merge, delay=3).tables["rollout/by_seed"]
    env = ToyConfig(n_envs=20).create()
    agent = VectorAgent(Way(), merge=merge, delay=3)
    agent.reset(range(20))
    obs, done = env.reset([row["seed"] for row in table]), np.zeros(20, dtype=bool)
    while not done.all():
        obs, _, done, info = env.step(agent.act(obs, active=~done))
    np.testing.assert_array_equal(info["score"], [row["score"] for row in table])


@pytest.mark.parametrize("warm_start", [False, True])
def test_warm_start_reaches_the_agent(warm_start):
    policy = Way()
    measure(policy, warm_start=warm_start, n_episodes=8)
    assert policy.begun_from[0] is None
    assert {previous is not None for previous in policy.begun_from[1:]} == {warm_start}


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (
            TinyPolicy(keys={"agent_pos": (2,), "target": (2,)}),
            ("'toy'", "target", "{'agent_pos': (2,), 'goal': (2,)}"),
        ),
        (TinyPolicy(keys={"agent_pos": (3,)}), ("'toy'", "{'agent_pos': (3,)}", "{'agent_pos': (2,), 'goal': (2,)}")),
        (TinyPolicy(keys=KEYS, action_dim=3), ("'toy'", "3 numbers", 2)),
    ],
)
def test_policy_of_another_world_is_refused(policy, message):
    with pytest.raises(ValueError, match=naming(*message)):
        measure(policy)


def test_an_episode_that_breaks_off_was_never_solved(monkeypatch):
    monkeypatch.setattr(Silent, "solved", range(20))
    monkeypatch.setattr(ToyConfig, "create", lambda self: Silent(**self.arguments()))
    result = measure(Way(broken=True))
    rows = result.tables["rollout/by_seed"]
    assert {row["solved_at"] for row in rows if math.isnan(row["score"])} == {None}
    assert {row["solved_at"] for row in rows if not math.isnan(row["score"])} == {1}


def test_blinding_replaces_the_named_observations_and_nothing_else(filmed):
    whole, everything = seen()
    result, got = seen(blind=["front"])
    assert result.tables == whole.tables and len(got) == len(everything)  # this policy acts without its camera
    for hidden, real in zip(got, everything, strict=True):
        assert (hidden["front"] == 128).all() and hidden["front"].dtype == torch.uint8
        assert all(torch.equal(hidden[key], real[key]) for key in KEYS)
    assert (everything[0]["front"] == 0).all() and (everything[1]["front"][:, -1] == 4).all()
    result, got = seen(blind=["goal"])
    assert (got[0]["goal"] == torch.tensor([0.5, 1.5])).all() and result.tables != whole.tables
    assert torch.equal(got[0]["agent_pos"], everything[0]["agent_pos"])
    assert torch.equal(got[0]["front"], everything[0]["front"])


def test_an_environment_is_told_which_observations_are_looked_at(filmed, monkeypatch, tmp_path):
    watched = []

    def step(self, actions):
        watched.append(self.is_watched)
        return Toy.step(self, actions)

    monkeypatch.setattr(Filmed, "step", step)
    seen()
    assert set(watched) == {True, False} and watched[:4] == [False, False, True, True]  # four actions, two observations
    watched.clear()
    config(n_episodes=2, videos=1, workers=0).create(None, tmp_path).run({"online": Watching()}, None, NOW)
    assert all(watched)  # a film of what the policy sees


def test_a_film_of_what_the_policy_sees_costs_the_pictures_of_its_episodes(filmed, monkeypatch, tmp_path):
    asked = []

    class Drawing(Filmed):
        """Draws filmed rows alone, and ends its first episode early."""

        n_filmed = 0

        def step(self, actions):
            asked.append((self.is_watched, self.n_filmed))
            step = super().step(actions)
            step.done[0] |= self.number >= 6
            return step

    monkeypatch.setattr(ToyConfig, "create", lambda self: Drawing(**self.arguments()))
    run = config(n_episodes=4, videos=1, workers=0).create(None, tmp_path).run
    run({"online": Watching()}, None, NOW)
    watched, n_filmed = zip(*asked, strict=True)
    assert watched[:8] == (False, False, True, True) * 2, "as without a film"
    assert n_filmed[:6] == (1,) * 6 and len(n_filmed) > 6 and not any(n_filmed[6:])


@pytest.mark.parametrize(
    ("fields", "grey"), [({}, 5), ({"blind": ["front"]}, 128), ({"show": "camera"}, 5), ({"show": "environment"}, None)]
)
def test_films_show_what_the_policy_got(filmed, monkeypatch, tmp_path, fields, grey):
    shown = []
    monkeypatch.setattr(Film, "add", lambda self, draw, done, success: shown.append(draw([0])))
    monkeypatch.setattr(Film, "strips", [])
    chosen = config(n_episodes=2, videos=1, workers=0, **fields)
    chosen.create(None, tmp_path).run({"online": Watching()}, None, NOW)
    if grey is None:
        assert shown[5].shape == (1, 128, 128, 3)
    else:
        assert shown[5].shape == (1, 288, 288, 3) and (shown[5] == grey).all()


def test_instructions_reach_the_policy_as_embeddings_or_those_of_other_episodes(telling):
    for fields, is_right in (({}, True), ({"shuffle": ["told"]}, False), ({"blind": ["told"]}, False)):
        policy = Listening()
        result = measure(policy, **fields)
        assert (policy.heard_rightly() == is_right).all()
        texts = {row["instruction"] for row in result.tables["rollout/by_seed"]}
        assert texts == set(SIDES)  # what the environment said, not what the policy was told
    assert all((told == 7).all() for _, told in policy.heard)


def test_a_stop_leaves_an_evaluation_that_waits_for_the_model_of_its_instructions(telling, monkeypatch):
    ranks, end, waited = Ranks(make_accelerator("fp32")), threading.Event(), threading.Event()

    def silent(config):
        ranks.stop.ask("SIGINT")
        end.wait(250)
        waited.set()

    monkeypatch.setattr(HashedConfig, "create", silent)
    with pytest.raises(Abandoned):
        measure(Listening(), ranks)
    assert not waited.is_set()
    end.set()


def test_a_folder_of_embeddings_stands_in_for_the_model(telling, tmp_path):
    from dp_prior.data.embeddings.written import EmbeddingsRecord
    from dp_prior_foreign.writers.embeddings_writer import Job, write_embeddings

    model = HashedConfig(dimension=8)
    for name, texts in (("all", SIDES), ("one", SIDES[:1])):
        values = model.create().texts(texts)
        record = EmbeddingsRecord(embedder=model, source={"texts": "text"}, rows=len(texts))
        write_embeddings(
            tmp_path / name, Job(record, {"text": list(texts)}, lambda first, stop, v=values: v[first:stop])
        )
    policy = Listening()
    measure(policy, instructions=tmp_path / "all")
    assert policy.heard_rightly().all()
    with pytest.raises(ValueError, match=naming("'told'", "'go left'", "'go right'")):
        measure(Listening(), instructions=tmp_path / "one")


def test_a_policy_that_is_told_needs_an_environment_that_tells():
    with pytest.raises(ValueError, match=naming("'toy'", "told", "{'agent_pos': (2,), 'goal': (2,)}")):
        measure(Listening())


def test_a_solved_episode_tells_the_step_of_its_first_success_and_an_unsolved_one_none():
    for row in measure(Way()).tables["rollout/by_seed"]:
        assert row["solved_at"] == (row["steps"] if row["success"] else None)
    (unsolved,) = measure(Way(side=0.0)).tables["rollout/success"]
    assert unsolved["steps_to_success"] is None and unsolved["seconds_to_success"] is None


def test_motion_is_that_of_executed_actions_and_of_observations():
    """The toy moves to its target, so agent and action travel as far, but for the last step and the first."""
    action, agent, goal = measure(Way(side=1.0)).tables["rollout/motion"]
    assert [row["signal"] for row in (action, agent, goal)] == ["action", "agent_pos", "goal"]
    assert goal["distance"] == 0 and goal["sparc"] is None
    assert 1.5 < agent["distance"] < 3 and action["distance"] == pytest.approx(agent["distance"], abs=0.25)
    assert action["sparc"] < 0 and action["mean_squared_jerk"] > 0


def test_motion_is_measured_at_every_step_also_where_no_prediction_looks(gym_pusht):
    class ToTheCorner(TinyPolicy):
        def draw(self, obs, random, how=AS_CONFIGURED):
            return torch.zeros(len(random), 8, 2)

    policy = ToTheCorner(n_obs_steps=1, keys={"agent_pos": (2,)})
    one, eight = (
        config(env=PushTConfig(n_envs=2, max_steps=20), n_episodes=2, n_action_steps=n)
        .create()
        .run({"online": policy}, None, NOW)
        .tables["rollout/motion"]
        for n in (1, 8)
    )
    assert one == eight and [row["signal"] for row in one] == ["action", "agent_pos"]


def test_an_episode_breaks_at_its_first_action_that_is_not_finite_unless_it_is_over():
    block = _Episodes.begin(4)
    block.done = np.array([False, False, True, False])
    actions = np.array([[0.5, 0.1], [np.nan, 0.3], [np.nan, np.inf], [np.inf, np.nan]])
    np.testing.assert_array_equal(block.executed(actions), [[0.5, 0.1], [0, 0.3], [0, 0], [0, 0]])
    assert block.broken.tolist() == [False, True, False, True]
    assert block.active.tolist() == [True, False, False, False]
    block.steps = np.array([3.0, 2.0, 4.0, 1.0])
    assert block.progress(12) == (3 / 12 + 3) / 4
    assert block.executed(np.zeros((4, 2))).tolist() == [[0, 0]] * 4 and block.broken.tolist() == [
        False,
        True,
        False,
        True,
    ]


def test_a_broken_episode_has_no_score_and_is_not_solved_where_success_is_known():
    block = _Episodes.begin(3)
    block.scores, block.successes = np.array([0.5, 0.7, 0.9]), np.array([1.0, 1.0, np.nan])
    block.solved_at, block.broken = np.array([4.0, 5.0, np.nan]), np.array([False, True, True])
    rows = block.rows(
        np.dtype(
            [(name, float) for name in ("score", "success", "steps", "solved_at")] + [("stage", "U9"), ("broken", bool)]
        )
    )
    np.testing.assert_array_equal(rows["score"], [0.5, np.nan, np.nan])
    np.testing.assert_array_equal(rows["success"], [1, 0, np.nan])
    np.testing.assert_array_equal(rows["solved_at"], [4, np.nan, np.nan])
    assert rows["broken"].tolist() == [False, True, True]


@pytest.mark.parametrize("fps", [None, 25.0])
def test_the_rate_is_that_of_the_data_before_that_of_the_environment(fps):
    policy, env = Way(), ToyConfig(n_envs=1).create()
    policy.spec = policy.spec.model_copy(update={"fps": fps})
    assert env.fps != 25 and Rollouts(config(), env, policy).rate == (fps or env.fps)


@pytest.mark.parametrize(
    ("region", "size", "is_told"),
    [
        (None, (64, 64), False),
        (None, (128, 64), True),
        ((0.0, 0.0, 0.5, 0.5), (48, 64), True),
        ((0.0, 0.0, 0.5, 1.0), (40, 80), False),
    ],
)
def test_a_camera_is_enlarged_where_its_region_has_fewer_pixels_than_the_policy_takes(region, size, is_told):
    env, spec = (
        SimpleNamespace(obs_shapes={"front": (80, 80, 3)}),
        SimpleNamespace(fits={"front": Fit(size=size, region=region)}),
    )
    lines = [*enlarged(env, spec)]
    assert len(lines) == is_told and all(told(line, "'front'", "80 x 80", f"{size[0]} x {size[1]}") for line in lines)
