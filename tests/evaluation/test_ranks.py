"""All evaluators on two real ranks; the tests of each evaluator use threads instead."""

import json

import pytest

from dp_prior.envs.toy import ToyConfig
from dp_prior.evaluation.action_error import ActionErrorConfig
from dp_prior.evaluation.likelihood import LikelihoodConfig
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
    metrics |= similarity.run({"ema": prior()}, accelerator, NOW).metrics
    uneven = [(LossConfig, {}), (LikelihoodConfig, {}), (ActionErrorConfig, {"eval_timesteps": (2,)})]
    for kind, fields in uneven:  # 1 sample leaves ranks without any, 5 are ragged, padding has no elements
        for n, poisoned in ((1, False), (5, False), (5, True)):
            config = kind(name=f"{n}{poisoned}{kind.__name__}", models=("ema",), batch_size=2, **fields)
            split = data(n)
            if poisoned:
                split.val.x[split.val.mask.any(1).nonzero()[0, 0]] = float("nan")
            metrics |= config.create(split).run({"ema": TinyPolicy()}, accelerator, NOW).metrics
    return metrics


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_gloo_ranks_measure_what_one_does(run_ranks, size):
    source = "import json; from tests.evaluation.test_ranks import measure; print(json.dumps(measure(accelerator)))"
    alone = measure()
    assert sum(value != value for value in alone.values()) > 3  # NaN is measured, and nowhere else
    for output in run_ranks(source, size):
        found = json.loads(output.splitlines()[-1])
        assert found == pytest.approx(alone, rel=1e-5, nan_ok=True)
        rollout = {name: value for name, value in alone.items() if name.startswith("rollout/")}
        assert {name: found[name] for name in rollout} == rollout  # bit for bit
