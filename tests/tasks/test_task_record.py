"""What every task has by default: data opened without arguments, and nothing read from elsewhere."""

from types import SimpleNamespace
from typing import ClassVar, Literal, get_args

import pytest

from dp_prior.config import members
from dp_prior.tasks import TaskConfig
from dp_prior.tasks.task_record import TaskRecord
from tests.messages import naming


class Own(TaskRecord):
    type: Literal["own"] = "own"
    kind: ClassVar = "own"
    data_types: ClassVar = ("numbers",)

    def create(self, spec):
        return spec


def test_a_task_of_a_few_lines_opens_data_without_arguments_and_keeps_its_record():
    opened = []
    data = SimpleNamespace(create=lambda *given, **named: opened.append((given, named)) or "data")
    assert Own().open(data) == "data" and opened == [((), {})]
    own = Own()
    assert own.resolve() is own and own.create("spec") == "spec"


def test_a_task_without_a_model_cannot_be_made():
    class Without(TaskRecord):
        type: Literal["without"] = "without"

    with pytest.raises(TypeError, match=naming("Without", "create")):
        Without()


def test_every_task_of_ours_is_one_and_says_its_kind_and_its_data():
    for name, record in members(TaskConfig).items():
        assert issubclass(record, TaskRecord) and get_args(record.model_fields["type"].annotation) == (name,)
        assert isinstance(record.kind, str) and record.data_types
