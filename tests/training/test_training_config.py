"""The budget of a run in any unit, and the settings that contradict each other."""

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dp_prior.checkpoints.clock import Progress
from dp_prior.config import ConfigError
from dp_prior.tracking.metric_names import find_metric
from dp_prior.training.training_config import METRICS, TrainingConfig
from tests.cases import every
from tests.messages import naming

CHOICES = {"quarter": range(4), "average": ["ema", "slow"]}
BUDGETS = st.one_of(
    st.fixed_dictionaries({"samples": st.integers(1, 200)}),
    st.fixed_dictionaries({"epochs": st.floats(0.01, 5)}),
    st.fixed_dictionaries({"steps": st.integers(1, 50)}),
)


@given(BUDGETS, st.integers(1, 40), st.integers(1, 64))
def test_a_budget_is_spent_with_the_step_that_reaches_its_samples_and_not_before(budget, length, batch):
    config = TrainingConfig(**budget)
    assert config.unit in budget
    total = config.total_samples(length, batch)
    steps = 0
    while steps * batch < total:
        spent, of = config.spent(length, batch, Progress(steps * batch, steps))
        assert spent == steps < of
        steps += 1
    assert config.spent(length, batch, Progress(steps * batch, steps)) == (steps, steps)


@example(1, 1, 64)
@example(50, 64, 1)
@given(st.integers(1, 50), st.integers(1, 64), st.integers(1, 64))
def test_a_budget_in_steps_counts_the_steps_to_come_at_the_batch_size_of_now(steps, before, now):
    done = steps // 2
    total = TrainingConfig(steps=steps).total_samples(100, now, Progress(done * before, done))
    assert total == done * before + (steps - done) * now


@pytest.mark.parametrize(("given", "named"), [({}, "none"), ({"steps": 1, "epochs": 2.0}, "epochs, steps")])
def test_a_budget_is_given_in_exactly_one_unit(given, named):
    with pytest.raises(ConfigError, match=naming("samples, epochs, steps", f"found {named}")):
        TrainingConfig(**given)


@every(name=["online", "", "a b", "1st", "a.b"])
def test_an_average_has_the_name_of_no_other_weights_and_of_no_path(name):
    with pytest.raises(ConfigError, match=naming("ema", repr(name))):
        TrainingConfig(steps=1, ema={name: {"type": "power"}})


@pytest.mark.parametrize("name", ["größe", "a" * 101])
def test_an_average_with_a_file_of_its_name_has_a_plain_one(name):
    TrainingConfig(steps=1, ema={name: {"type": "constant"}, "a" * 100: {"type": "constant"}})
    with pytest.raises(ConfigError, match=naming("ema", f"'{name}'", "at most 100")):
        TrainingConfig(steps=1, ema={"ema": {"type": "constant"}, name: {"type": "constant"}})


@pytest.mark.parametrize(
    ("settings", "shard"),
    [
        ({}, False),
        ({"shard_optimizer": False}, False),
        ({"shard_optimizer": True}, "optimizer"),
        ({"shard": "optimizer"}, "optimizer"),
        ({"shard": "optimizer", "shard_optimizer": True}, "optimizer"),
        ({"shard": "model"}, "model"),
        ({"shard": "model", "shard_optimizer": False}, "model"),
    ],
)
def test_shard_and_its_earlier_name_agree_in_stored_files(settings, shard):
    config = TrainingConfig(steps=1, **settings)
    assert (config.shard, config.shard_optimizer) == (shard, shard == "optimizer")
    assert TrainingConfig.from_json(config.to_json()) == config


@pytest.mark.parametrize("shard", ["model", "optimizer", False])
def test_shard_and_its_earlier_name_may_not_disagree(shard):
    earlier = shard != "optimizer"
    with pytest.raises(ConfigError, match=naming(repr(shard), "shard_optimizer", earlier)):
        TrainingConfig(steps=1, shard=shard, shard_optimizer=earlier)


@pytest.mark.parametrize(
    ("settings", "remedy"),
    [
        ({"compile": "reduce-overhead", "accumulation": 2}, {"accumulation": 1}),
        ({"compile": "max-autotune", "accumulation": 2}, {"compile": "default"}),
        ({"divergence": "roll back"}, {"rollback": 1}),
    ],
)
def test_a_contradiction_names_its_settings_and_its_remedy_settles_it(settings, remedy):
    with pytest.raises(ConfigError) as caught:
        TrainingConfig(steps=1, **settings)
    assert all(str(value) in str(caught.value) for value in settings.values())
    assert all(key in str(caught.value) for key in remedy)
    TrainingConfig(**{"steps": 1, **settings, **remedy})


def test_every_name_that_the_trainer_logs_has_one_description():
    names = [name for metric in METRICS for name in metric.names(CHOICES)]
    assert len(set(names)) == len(names)
    assert all(sum(metric.matches(name) for metric in METRICS) == 1 for name in names)


def test_each_quarter_of_a_loss_is_described_as_the_loss_is():
    metrics = {metric.name: metric for metric in METRICS}
    quarters = [name for name in metrics if name.endswith("_q<quarter>")]
    assert len(quarters) == 3
    for name in quarters:
        whole = metrics[name.removesuffix("_q<quarter>")]
        assert (metrics[name].unit, metrics[name].better) == (whole.unit, whole.better)
        assert find_metric(name.replace("<quarter>", "4"), METRICS) is None


def test_a_metric_with_a_direction_says_which_is_better_by_its_unit():
    rates = [metric for metric in METRICS if metric.unit.endswith("/s")]
    assert [metric.better for metric in rates] == ["higher"] * len(rates)
    assert all(
        first.meaning != second.meaning or "same" in first.meaning
        for first, second in itertools.combinations(METRICS, 2)
    )
