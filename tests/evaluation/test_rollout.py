"""Rollouts in the toy environment: scores of known policies, the same on any number of ranks."""

import json
import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dp_prior.config import ConfigError
from dp_prior.diffusion.draw import AS_CONFIGURED
from dp_prior.diffusion.sampler import DDIM
from dp_prior.embedders.hashed import HashedConfig
from dp_prior.envs.fingerprint import is_fingerprint
from dp_prior.envs.gym import GymConfig
from dp_prior.envs.pusht import PushTConfig
from dp_prior.envs.toy import Toy, ToyConfig
from dp_prior.evaluation import rollout_evaluator
from dp_prior.evaluation.bootstrap import worst_tenth
from dp_prior.evaluation.film import Film
from dp_prior.evaluation.interval import mean_interval, share_interval, share_posterior
from dp_prior.evaluation.rollout import RolloutConfig
from dp_prior.inference.agent import VectorAgent
from dp_prior.inference.chunking import Ensemble, Guided, Naive, Prefix, Synchronous
from dp_prior.job.ranks import Ranks, make_accelerator
from dp_prior.networks.encoders.resnet import ResNetEncoderConfig
from dp_prior.tasks.policy_config import PolicyConfig
from dp_prior.tensors.batch import Spec
from dp_prior.tensors.normalizer import Normalizer, Statistics
from tests.evaluation.fakes import NOW, TinyPolicy, on_ranks
from tests.messages import naming

KEYS = {"agent_pos": (2,), "goal": (2,)}


class Way(TinyPolicy):
    """Plans around the disc, by a side drawn from its noise; a `broken` one gives NaN for goals at the left."""

    def __init__(self, side=None, broken=False):
        super().__init__(horizon=8, n_obs_steps=2, n_action_steps=4, keys=KEYS)
        self.side, self.broken, self.samplers, self.batches, self.begun_from = side, broken, [], [], []

    def draw(self, obs, random, how=AS_CONFIGURED):
        self.samplers.append(how.sampler)
        self.begun_from.append(how.previous)
        self.batches.append(len(random))
        drawn = torch.where(random.uniform(1) < 0.5, -1.0, 1.0)
        side = drawn if self.side is None else torch.full_like(drawn, self.side)
        here = obs["agent_pos"][:, -1]
        chunk = [here]
        waypoint = torch.cat([0.62 * side, torch.zeros_like(side)], dim=1)
        for _ in range(7):
            way = torch.where(here[:, 1:] < 0, waypoint, obs["goal"][:, -1]) - here
            here = here + way * (0.1 / way.norm(dim=1, keepdim=True)).clamp(max=1)
            chunk.append(here)
        chunk = torch.stack(chunk, dim=1)
        return torch.where((obs["goal"][:, -1, 0] < 0)[:, None, None], torch.nan, chunk) if self.broken else chunk


def config(**fields):
    return RolloutConfig(**{"env": ToyConfig(n_envs=8), "n_episodes": 20, "videos": 0, "model": "online", **fields})


def measure(policy=None, accelerator=None, **fields):
    return config(**fields).create().run({"online": policy or Way()}, accelerator, NOW)


def test_policy_that_keeps_its_side_solves_all_and_one_that_wavers_does_not():
    assert measure(Way(side=1.0)).metrics["rollout/score"] == 1.0
    assert measure(Way(side=1.0)).metrics["rollout/success_rate"] == 1.0
    wavering = measure(Way()).metrics
    assert wavering["rollout/score"] < 1.0 and 0 < wavering["rollout/success_rate"] < 1


def test_metrics_follow_from_the_table_of_seeds():
    result = measure(first_seed=500)
    table = result.tables["rollout/by_seed"]
    assert [row["seed"] for row in table] == list(range(500, 520))
    scores = np.array([row["score"] for row in table])
    solved = sum(row["success"] for row in table)
    expected = [scores.mean(), scores.std(ddof=1), *mean_interval(scores), solved / 20, *share_interval(solved, 20)]
    expected += [20, np.mean([row["steps"] for row in table])]
    expected += [worst_tenth(scores)]
    assert list(result.metrics.values()) == pytest.approx(expected)
    assert list(result.metrics) == config().metric_names()


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


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_result_is_the_same_bit_for_bit_on_any_number_of_ranks(ranks):
    alone = measure()

    def run(models, accelerator):
        return measure(models["online"], accelerator), models["online"].batches

    for result, _ in (results := on_ranks(ranks, run, {"online": Way()})):
        assert result.metrics == alone.metrics and result.tables == alone.tables
    assert [bool(batches) for _, batches in results] == [rank < 3 for rank in range(ranks)]  # 20 episodes, 3 blocks


def test_number_of_environments_changes_the_batches_only():
    assert measure(env=ToyConfig(n_envs=3)).tables == measure(env=ToyConfig(n_envs=20)).tables


def test_episodes_that_are_over_are_not_predicted_for():
    policy = Way(side=1.0)
    measure(policy, env=ToyConfig(n_envs=20))
    assert policy.batches[0] == 20 and policy.batches[-1] < 20


def test_policy_that_gives_nan_has_no_score_and_does_not_stop_the_run():
    result = measure(Way(broken=True))
    assert math.isnan(result.metrics["rollout/score"]) and math.isnan(result.metrics["rollout/score_ci_low"])
    assert 0 < result.metrics["rollout/success_rate"] < 1
    scores = [row["score"] for row in result.tables["rollout/by_seed"]]
    assert 0 < sum(map(math.isnan, scores)) < 20


def test_failure_on_one_rank_reaches_all(monkeypatch):
    class Failing(Way):
        def draw(self, obs, random, how=AS_CONFIGURED):
            raise OSError("the simulator is gone")

    def run(models, accelerator):
        return measure(models["online"] if accelerator.process_index == 0 else Failing(), accelerator)

    first, second = on_ranks(2, run, {"online": Way()})
    assert isinstance(second, OSError)
    assert second.__notes__ == ["in evaluator 'rollout', in an episode of the seeds 100008 to 100015"]
    assert isinstance(first, RuntimeError) and re.search(naming("'rollout'", "rank 1"), str(first))


def test_named_model_acts_and_goes_back_to_its_mode():
    good, bad = Way(side=1.0).train(), Way(side=0.0)
    models = {"ema": good, "online": bad}
    assert config(model="ema").create().run(models, None, NOW).metrics["rollout/score"] == 1.0
    assert config(model="online").create().run(models, None, NOW).metrics["rollout/score"] < 1.0
    assert good.training and config(model="ema").measured_models() == ("ema",)
    with pytest.raises(ValueError, match=naming("'rollout'", "'fast'")):
        config(model="fast").create().run(models, None, NOW)


def test_every_knob_changes_the_measurement():
    changes = [
        {"name": "other"},
        {"env": ToyConfig(n_envs=8, max_steps=10)},
        {"n_episodes": 10},
        {"first_seed": 7},
        {"noise_seed": 1},
        {"n_action_steps": 7},
        {"merge": Ensemble()},
        {"merge": Naive(), "delay": 2},
        {"merge": Synchronous(), "delay": 2},
    ]
    plain = measure().metrics
    assert [change for change in changes if measure(**change).metrics == plain] == []


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


@pytest.mark.parametrize(
    ("fields", "task", "message"),
    [
        ({"delay": 2}, {}, "delay is 2, but nothing says how a late chunk is merged; set merge"),
        ({"delay": 9, "merge": Guided()}, {}, "with delay 9 n_action_steps must lie from 9 to 6, and is 8"),
        ({"delay": 2, "merge": Prefix()}, {"prefix": {"max_delay": 1}}, "but task.prefix trains delays up to 1; raise"),
        ({"delay": 2, "merge": Prefix()}, {}, "but task.prefix trains delays up to 0; raise it"),
        ({"delay": 2, "merge": Prefix()}, {"prefix": {"max_delay": 2}}, None),
        ({"merge": Prefix()}, {}, None),
        ({"delay": 50, "merge": Synchronous()}, {}, None),
    ],
)
def test_a_delay_that_the_policy_cannot_act_with_is_refused_before_training(fields, task, message):
    found = list(config(**fields).task_faults(PolicyConfig.model_validate(task)))
    assert len(found) == (message is not None) and (message or "") in "".join(found)


def test_sampler_and_cadence_are_kept():
    policy = Way()
    measure(policy, sampler=DDIM(steps=3))
    assert set(policy.samplers) == {DDIM(steps=3)}
    evaluator = RolloutConfig.from_json('{"env": {"type": "toy"}, "every": {"steps": 9}}').create()
    assert evaluator.every.steps == 9


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


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            Spec(x_shape=(8, 2), cond_shapes={"agent_pos": (2, 2), "target": (2, 2)}),
            ("target", "'goal': (2,)"),
        ),
        (Spec(x_shape=(8, 3), cond_shapes={"agent_pos": (2, 2)}), ("3 numbers", "'toy' 2")),
    ],
)
def test_environment_that_does_not_fit_the_data_is_refused_before_training(spec, message):
    with pytest.raises(ConfigError, match=naming("'rollout'", "'toy'", *message)):
        config().create(SimpleNamespace(spec=spec))


class Silent(Toy):
    """A world that speaks of success only where `solved` says so, and does not draw itself."""

    solved = ()

    def step(self, actions):
        step = super().step(actions)
        success = np.where(np.isin(np.arange(len(actions)), self.solved), 1.0, np.nan)
        return step._replace(info={**step.info, "success": success})

    def render(self, rows):
        raise ValueError("the environment renders None")


@pytest.mark.parametrize(("solved", "rate"), [((), math.nan), ((0, 5), 0.2)])
def test_success_that_nobody_speaks_of_is_unknown_and_not_zero(monkeypatch, tmp_path, solved, rate):
    monkeypatch.setattr(ToyConfig, "create", lambda self: Silent(**self.arguments()))
    monkeypatch.setattr(Silent, "solved", solved)
    result = config(env=ToyConfig(n_envs=10)).create(None, tmp_path).run({"online": Way()}, None, NOW)
    names = [f"rollout/{kind}" for kind in ("success_rate", "success_ci_low", "success_ci_high")]
    expected = [rate, *share_interval(20 * rate, 20)]
    assert [result.metrics[name] for name in names] == pytest.approx(expected, nan_ok=True)
    assert math.isfinite(result.metrics["rollout/score"])
    broken = config(env=ToyConfig(n_envs=10)).create().run({"online": Way(broken=True)}, None, NOW).metrics
    assert math.isnan(broken["rollout/success_rate"]) == (not solved)
    told = [row["success"] for row in result.tables["rollout/by_seed"]]
    assert told == ([row % 10 in solved for row in range(20)] if solved else [None] * 20)
    json.loads((tmp_path / "rollout_00000100.json").read_text())


@pytest.mark.parametrize("is_obedient", [True, False])
def test_environment_that_ignores_its_seed_is_pointed_out(monkeypatch, caplog, is_obedient):
    original, resets = Toy.reset, iter(range(9))

    def reset(self, seeds):
        return original(self, seeds if is_obedient else [next(resets) for _ in seeds])

    monkeypatch.setattr(Toy, "reset", reset)
    config().create()
    assert ("reset with seed 100000, so scores will not repeat" in caplog.text) == (not is_obedient)


def test_environment_that_cannot_be_filmed_is_refused_before_training(monkeypatch, tmp_path):
    pytest.importorskip("av")
    monkeypatch.setattr(ToyConfig, "create", lambda self: Silent(**self.arguments()))
    with pytest.raises(ConfigError, match=naming("'rollout'", "None")):
        config(videos=2).create(None, tmp_path)
    config(videos=2).create(None, None)


def test_config_refuses_what_cannot_be_filmed_or_measured():
    with pytest.raises(ConfigError, match=naming("videos", 4, 2, "env.n_envs")):
        RolloutConfig.from_json('{"env": {"type": "toy", "n_envs": 2}}')
    with pytest.raises(ConfigError, match=naming("n_episodes", 2, 1)):
        RolloutConfig.from_json('{"env": {"type": "toy"}, "n_episodes": 1, "videos": 0}')


def test_report_reproduces_the_setting(tmp_path):
    chosen = config()
    result = chosen.create(None, tmp_path / "media").run({"online": Way(broken=True)}, None, NOW)
    report = json.loads((tmp_path / "media" / "rollout_00000100.json").read_text())
    assert is_fingerprint(report["environment"])
    assert RolloutConfig.from_json(json.dumps(report["settings"])) == chosen
    assert report["metrics"]["rollout/score"] is None  # JSON has no NaN
    assert [row["seed"] for row in report["tables"]["rollout/by_seed"]] == [
        row["seed"] for row in result.tables["rollout/by_seed"]
    ]
    assert [path.name for path in (tmp_path / "media").iterdir()] == ["rollout_00000100.json"]


@pytest.mark.slow
def test_workers_change_no_number(tmp_path):
    """Three blocks, the last of which has fewer episodes, and a film of the first."""
    found, expected = (
        config(workers=n, videos=2).create(None, tmp_path / str(n)).run({"online": Way()}, None, NOW) for n in (2, 0)
    )
    assert found.metrics == expected.metrics and found.tables == expected.tables
    for name, path in expected.media.items():
        assert found.media[name].read_bytes() == path.read_bytes()


FRONT = {**KEYS, "front": (8, 8, 3)}


class Filmed(Toy):
    """A world with a camera, whose frames are the number of the step."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.obs_shapes = FRONT

    def reset(self, seeds):
        self.number = 0
        return super().reset(seeds)

    def step(self, actions):
        self.number += 1
        return super().step(actions)

    def _observations(self):
        obs = super()._observations()
        return {**obs, "front": np.full((len(obs["goal"]), 8, 8, 3), self.number, np.uint8)}


class Watching(Way):
    """Has a camera, remembers what it gets, and acts by the rest."""

    def __init__(self):
        super().__init__(side=1.0)
        self.spec = Spec(
            x_shape=(8, 2), cond_shapes={key: (2, *shape) for key, shape in FRONT.items()}, kinds={"front": "image"}
        )
        self.normalizer = Normalizer(KEYS, {})
        self.normalizer.fit({key: Statistics.of(np.array([[0.0, 0.5], [0.5, 1.0], [1.0, 3.0]])) for key in KEYS})
        self.got = []

    def draw(self, obs, random, how=AS_CONFIGURED):
        self.got.append(obs)
        return super().draw(obs, random, how)


@pytest.fixture
def filmed(monkeypatch):
    monkeypatch.setattr(ToyConfig, "create", lambda self: Filmed(**self.arguments()))


def seen(**fields):
    policy = Watching()
    return measure(policy, workers=0, **fields), policy.got


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


def test_blinding_of_what_the_policy_does_not_see_is_refused(filmed):
    with pytest.raises(ConfigError, match=naming("blind", "['wrist']")):
        config(blind=["wrist"]).create(SimpleNamespace(spec=Watching().spec))
    with pytest.raises(ValueError, match=naming("blind", "['wrist']", "['agent_pos', 'front', 'goal']")):
        seen(blind=["wrist"])
    spec = Watching().spec.model_copy(update={"kinds": {"front": "image", "goal": "label"}})
    with pytest.raises(ConfigError, match=naming("blind", "'goal'", "'label'")):
        config(blind=["goal"]).create(SimpleNamespace(spec=spec))
    task = PolicyConfig(relative_to="agent_pos")
    assert list(config(blind=["agent_pos"]).task_faults(task)) == [
        "blind names 'agent_pos', which actions are relative to (task.relative_to); remove it"
    ]


def test_an_environment_is_told_which_observations_are_looked_at(filmed, monkeypatch, tmp_path):
    watched = []

    def step(self, actions):
        watched.append(self.is_watched)
        return Toy.step(self, actions)

    monkeypatch.setattr(Filmed, "step", step)
    seen()
    assert set(watched) == {True, False} and watched[:4] == [False, False, True, True]  # four actions, two observations
    watched.clear()
    monkeypatch.setattr(rollout_evaluator, "draw_rollouts", lambda *_: None)
    config(n_episodes=2, videos=1, workers=0).create(None, tmp_path).run({"online": Watching()}, None, NOW)
    assert all(watched)  # a film of what the policy sees


@pytest.mark.parametrize(
    ("fields", "grey"), [({}, 5), ({"blind": ["front"]}, 128), ({"show": "camera"}, 5), ({"show": "environment"}, None)]
)
def test_films_show_what_the_policy_got(filmed, monkeypatch, tmp_path, fields, grey):
    shown = []
    monkeypatch.setattr(Film, "add", lambda self, draw, done, success: shown.append(draw([0])))
    monkeypatch.setattr(Film, "strips", [])
    monkeypatch.setattr(rollout_evaluator, "draw_rollouts", lambda *_: None)
    chosen = config(n_episodes=2, videos=1, workers=0, **fields)
    chosen.create(None, tmp_path).run({"online": Watching()}, None, NOW)
    if grey is None:
        assert shown[5].shape == (1, 128, 128, 3)
    else:
        assert shown[5].shape == (1, 288, 288, 3) and (shown[5] == grey).all()


def test_films_are_asked_for_what_there_is():
    spec = Spec(x_shape=(8, 2), cond_shapes={key: (2, *shape) for key, shape in KEYS.items()})
    for show in ("camera", "keypoints"):
        with pytest.raises(ConfigError, match=naming("show", f"'{show}'")):
            config(show=show).create(SimpleNamespace(spec=spec))
    blurred = PolicyConfig(encoders={"front": ResNetEncoderConfig(pool="mean")})
    assert "no encoder is a resnet" in "".join(config(show="keypoints").task_faults(blurred))
    assert not [*config(show="keypoints").task_faults(PolicyConfig()), *config(show="camera").task_faults(blurred)]


SIDES = ("go right", "go left")


class Telling(Toy):
    """Says on which side the goal lies."""

    def __init__(self, **fields):
        super().__init__(**fields)
        self.obs_shapes = {**self.obs_shapes, "told": ()}

    def reset(self, seeds):
        return self._told(super().reset(seeds))

    def step(self, actions):
        step = super().step(actions)
        return step._replace(obs=self._told(step.obs))

    def _told(self, obs):
        return {**obs, "told": np.array([SIDES[int(x < 0)] for x in obs["goal"][:, 0]])}


class Listening(Way):
    """Remembers what it was told, as embeddings."""

    def __init__(self, **fields):
        super().__init__(**fields)
        shapes = {**self.spec.cond_shapes, "told": (2, 8)}
        more = {"kinds": {"told": "text"}, "embedders": {"told": HashedConfig(dimension=8)}}
        self.spec = Spec(x_shape=(8, 2), cond_shapes=shapes, **more)
        self.heard = []
        self.normalizer = SimpleNamespace(get_buffer=lambda name: torch.full((8,), 7.0))  # the mean in training

    def draw(self, obs, random, how=AS_CONFIGURED):
        self.heard.append((obs["goal"][:, -1, 0] < 0, obs["told"][:, -1]))
        return super().draw(obs, random, how)

    def heard_rightly(self):
        """For every prediction and row whether it was told its own side."""
        own = torch.from_numpy(HashedConfig(dimension=8).create().texts(SIDES))
        return torch.cat([(told == own[left.long()]).all(-1) for left, told in self.heard])


@pytest.fixture
def telling(monkeypatch):
    monkeypatch.setattr(ToyConfig, "create", lambda self: Telling(**self.arguments()))


def test_instructions_reach_the_policy_as_embeddings_or_those_of_other_episodes(telling):
    for fields, is_right in (({}, True), ({"shuffle": ["told"]}, False), ({"blind": ["told"]}, False)):
        policy = Listening()
        result = measure(policy, **fields)
        assert (policy.heard_rightly() == is_right).all()
        texts = {row["instruction"] for row in result.tables["rollout/by_seed"]}
        assert texts == set(SIDES)  # what the environment said, not what the policy was told
    assert all((told == 7).all() for _, told in policy.heard)


def test_scores_by_instruction_follow_from_the_table_of_seeds_on_any_number_of_ranks(telling):
    result = measure(Listening())
    table = {row["instruction"]: row for row in result.tables["rollout/by_instruction"]}
    for side in SIDES:
        own = [row for row in result.tables["rollout/by_seed"] if row["instruction"] == side]
        scores, low, high = (
            np.array([row["score"] for row in own]),
            table[side]["score_ci_low"],
            table[side]["score_ci_high"],
        )
        assert table[side]["score"] == pytest.approx(scores.mean()) and (low, high) == mean_interval(
            scores, limits=(0.0, 1.0)
        )
        assert table[side]["success_rate"] == pytest.approx(np.mean([row["success"] for row in own]))
        assert table[side]["episodes"] == len(own)
    for other in on_ranks(3, lambda models, ranks: measure(models["online"], ranks), {"online": Listening()}):
        assert other.tables == result.tables
    assert "rollout/by_instruction" in measure(Way()).tables  # a policy that reads none is measured by them too


def test_a_folder_of_embeddings_stands_in_for_the_model(telling, tmp_path):
    from dp_prior.data.embeddings.written import EmbeddingsRecord, Job, write_embeddings

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


def test_what_cannot_be_shuffled_is_refused_before_training(telling):
    data = SimpleNamespace(spec=Listening().spec)
    config(shuffle=["told"]).create(data)
    with pytest.raises(ConfigError, match=naming("shuffle", "['goal']", "['told']")):
        config(shuffle=["goal"]).create(data)
    with pytest.raises(ValueError, match=naming("shuffle", 17, "env.n_envs 8", "n_episodes")):
        config(shuffle=["told"], n_episodes=17)
    assert config(shuffle=["told"]).trial().shuffle == []


def test_a_policy_that_is_told_needs_an_environment_that_tells():
    with pytest.raises(ValueError, match=naming("'toy'", "told", "{'agent_pos': (2,), 'goal': (2,)}")):
        measure(Listening())


def test_rollouts_say_how_many_episodes_are_done_with_the_unfinished_by_their_steps():
    ranks, told = Ranks(make_accelerator("fp32")), []
    ranks.work.show = told.append
    found = measure(Way(), ranks)
    assert found.metrics == measure(Way()).metrics
    assert {(done.name, done.items) for done in told} == {("rollout", 20)}
    shares = [done.share for done in told]
    assert shares == sorted(shares) and shares[0] == 0 and 0.8 < shares[-1] < 1
    assert {str(done) for done in told} >= {"rollout 0/20", "rollout 8/20", "rollout 16/20"}


def test_intervals_are_clipped_to_the_scores_that_the_environment_can_give():
    low, high = (measure(n_episodes=2, noise_seed=1).metrics[f"rollout/score_ci_{end}"] for end in ("low", "high"))
    assert (low, high) == (0.0, 1.0)  # by t alone from -4.0 to 5.3
    success, rewards = (GymConfig(id="any", score=rule).score_range for rule in ("success", "sum"))
    assert success == (0.0, 1.0) and rewards == (-math.inf, math.inf)


def test_a_solved_episode_tells_the_step_of_its_first_success_and_an_unsolved_one_none():
    for row in measure(Way()).tables["rollout/by_seed"]:
        assert row["solved_at"] == (row["steps"] if row["success"] else None)
    (unsolved,) = measure(Way(side=0.0)).tables["rollout/success"]
    assert unsolved["steps_to_success"] is None and unsolved["seconds_to_success"] is None


def test_seconds_to_success_are_those_of_the_rate_of_the_data_and_else_of_the_environment():
    policy, result = Way(side=1.0), measure(Way(side=1.0))
    (found,), table = result.tables["rollout/success"], result.tables["rollout/by_seed"]
    assert found["steps_to_success"] == pytest.approx(np.mean([row["solved_at"] for row in table]))
    assert found["seconds_to_success"] == found["steps_to_success"] / 10
    policy.spec = policy.spec.model_copy(update={"fps": 50.0})
    assert measure(policy).tables["rollout/success"][0]["seconds_to_success"] == found["steps_to_success"] / 50


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


def test_the_posterior_of_the_success_rate_is_in_the_report():
    result = measure(Way())
    solved = sum(row["success"] for row in result.tables["rollout/by_seed"])
    (found,) = result.tables["rollout/success"]
    assert tuple(found[f"posterior_{key}"] for key in ("mean", "low", "high")) == share_posterior(solved, 20)


def test_failures_are_counted_by_the_stage_that_the_environment_names(monkeypatch):
    step = Toy.step

    def staged(self, actions):
        found = step(self, actions)
        names = np.where(found.obs["agent_pos"][:, 1] < 0, "before the disc", "behind the disc")
        return found._replace(info={**found.info, "stage": names})

    assert "rollout/by_stage" not in measure(Way()).tables
    monkeypatch.setattr(Toy, "step", staged)
    result = measure(Way())
    stages, table = result.tables["rollout/by_stage"], result.tables["rollout/by_seed"]
    assert sum(row["episodes"] for row in stages) == 20
    for row in stages:
        own = [line for line in table if line["stage"] == row["stage"]]
        assert (len(own), sum(not line["success"] for line in own)) == (row["episodes"], row["failed"])
    assert {line["stage"] for line in table if line["success"]} == {"behind the disc"}
