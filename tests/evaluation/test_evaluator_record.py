"""The names of an evaluator's metrics follow from their descriptions and its settings."""

from typing import ClassVar

from dp_prior.config import members
from dp_prior.evaluation import EvaluatorConfig
from dp_prior.evaluation.evaluator_record import EvaluatorRecord
from dp_prior.tracking.metric_names import Metric


class Weather(EvaluatorRecord):
    """Measures nothing of any task."""

    metrics: ClassVar = (Metric("<name>/<part>/rain", "mm", None, "Rain."), Metric("<name>/wind", "m/s", None, "Wind."))

    name: str = "weather"
    """First part of the names."""

    def placeholders(self):
        return {**super().placeholders(), "part": ("north", "south")}


def test_each_metric_has_a_name_for_each_value_of_its_placeholders():
    assert Weather(name="w").metric_names() == ["w/north/rain", "w/south/rain", "w/wind"]
    assert Weather().tasks is None and Weather().reports and not [*Weather().task_faults(None)]


def test_every_evaluator_of_this_package_is_such_a_record():
    assert all(issubclass(record, EvaluatorRecord) for record in members(EvaluatorConfig).values())
