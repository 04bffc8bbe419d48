"""All evaluators on two real ranks; the tests of each evaluator use threads instead."""

import json

import pytest

from dp_prior.envs.toy import ToyConfig
from dp_prior.evaluation.action_error import ActionErrorConfig
from dp_prior.evaluation.loss import LossConfig
from dp_prior.evaluation.rollout import RolloutConfig
from dp_prior.evaluation.similarity import SimilarityConfig
from tests.evaluation.fakes import NOW, TinyPolicy, data
from tests.evaluation.test_similarity import data as pairs
from tests.evaluation.test_similarity import prior

KEYS = {"agent_pos": (2,), "goal": (2,)}


def measure(accelerator=None):
    """Metrics of all evaluators, as they come."""
    evaluators = [
        (LossConfig(models=("ema",), batch_size=8), TinyPolicy()),
        (ActionErrorConfig(eval_timesteps=(4,), batch_size=8), TinyPolicy()),
        (RolloutConfig(env=ToyConfig(n_envs=4), n_episodes=10, videos=0), TinyPolicy(keys=KEYS)),
    ]
    metrics = {}
    for config, policy in evaluators:
        evaluator = config.create(None if config.type == "rollout" else data(37))
        metrics |= evaluator.run({"ema": policy}, accelerator, NOW).metrics
    similarity = SimilarityConfig(models=("ema",), eval_timesteps=(3,), batch_size=8).create(pairs(37))
    return metrics | similarity.run({"ema": prior()}, accelerator, NOW).metrics


def test_two_gloo_ranks_measure_what_one_does(run_ranks):
    source = "import json; from tests.evaluation.test_ranks import measure; print(json.dumps(measure(accelerator)))"
    alone = measure()
    for output in run_ranks(source, 2):
        found = json.loads(output.splitlines()[-1])
        assert found == pytest.approx(alone, rel=1e-5)
        rollout = {name: value for name, value in alone.items() if name.startswith("rollout/")}
        assert {name: found[name] for name in rollout} == rollout  # bit for bit
