"""The base of the records of tasks."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, Self

from torch import nn

from dp_prior.config import Config
from dp_prior.tensors.batch import Spec

if TYPE_CHECKING:
    from dp_prior.data.data_record import DataRecord
    from dp_prior.data.split_data import SplitData


class TaskRecord(Config):
    """A task. A member of the family has a `type`, a `kind`, its `data_types` and `create`.

    Attributes:
        kind: decides which evaluators can measure its model, and that `load_<kind>` loads it.
        data_types: types of data that the model can be trained on.
    """

    kind: ClassVar[str]

    data_types: ClassVar[tuple[str, ...]]

    def open(self, data: DataRecord) -> SplitData:
        """Open the training samples of the data that a record of `data_types` describes."""
        return data.create()

    def resolve(self) -> Self:
        """The record for checkpoints, with all that it reads from elsewhere; by default the record itself."""
        return self

    @abstractmethod
    def create(self, spec: Spec) -> nn.Module:
        """An untrained model for data of this shape.

        Raises:
            ConfigError: the record does not fit the data.
        """
