"""The descriptions of the trainer's metrics share no name."""

import itertools

from dp_prior.tracking.metric_names import find_metric
from dp_prior.training.measured import METRICS

CHOICES = {"quarter": range(4), "average": ["ema", "slow"]}


def test_every_name_that_the_trainer_logs_has_one_description():
    names = [name for metric in METRICS for name in metric.names(CHOICES)]
    assert len(set(names)) == len(names)
    assert all(sum(metric.matches(name) for metric in METRICS) == 1 for name in names)


def test_each_quarter_of_a_loss_is_described_as_the_loss_is():
    known = {metric.name: metric for metric in METRICS}
    quarters = [name for name in known if name.endswith("_q<quarter>")]
    assert len(quarters) == 3
    for name in quarters:
        whole = known[name.removesuffix("_q<quarter>")]
        assert (known[name].unit, known[name].better) == (whole.unit, whole.better)
        assert find_metric(name.replace("<quarter>", "4"), METRICS) is None


def test_a_metric_with_a_direction_says_which_is_better_by_its_unit():
    rates = [metric for metric in METRICS if metric.unit.endswith("/s")]
    assert [metric.better for metric in rates] == ["higher"] * len(rates)
    assert all(
        one.meaning != other.meaning or "same" in one.meaning for one, other in itertools.combinations(METRICS, 2)
    )
