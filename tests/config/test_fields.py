"""A record is frozen, and all contradictions between its fields come in one report."""

import pytest

from dp_prior.config import Config, ConfigError
from tests.config.records import MINIMAL, Linear, read
from tests.messages import naming, told


def test_records_are_frozen():
    record = read(MINIMAL)
    with pytest.raises(ConfigError, match=naming("use_ema", "TrainConfig.from_json(config.to_json(), ")):
        record.use_ema = False
    assert record.use_ema and type(record).from_json(record.to_json(), ["use_ema=false"]).use_ema is False


def test_arguments_are_the_fields_without_the_discriminator():
    assert Linear().arguments() == {"steps": 50, "beta": 0.5}


class Span(Config):
    """A record with rules between its fields."""

    low: int = 0
    high: int = 1
    step: int = 1

    def faults(self):
        if self.low > self.high:
            yield f"low {self.low} is above high {self.high}"
        if self.step > self.high - self.low:
            yield f"step {self.step} is longer than the span"


class Spans(Config):
    """Two of them."""

    one: Span = Span()
    other: Span = Span()
    unknown: int = 0


def test_all_faults_between_fields_of_all_records_are_in_one_report():
    with pytest.raises(ConfigError) as caught:
        Spans.from_json('{"one": {"low": 5}, "other": {"step": 9}, "unknown": "x"}')
    *faults, unknown = caught.value.problems
    assert faults == [
        "one: low 5 is above high 1",
        "one: step 1 is longer than the span",
        "other: step 9 is longer than the span",
    ]
    assert told(unknown, "unknown", "integer", "'x'")
    with pytest.raises(ConfigError) as caught:
        Span(low=5)
    heading, *problems = str(caught.value).split("\n  ")
    assert heading == "Span: 2 problems" and problems == caught.value.problems and len(problems) == 2
