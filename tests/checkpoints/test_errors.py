"""An error of a checkpoint names the checkpoint, the problem and the remedy, and is handled by its class."""

import pickle
from pathlib import Path

import pytest

from dp_prior.checkpoints.errors import (
    CheckpointError,
    DamagedError,
    GoneError,
    NewerFormatError,
    UnreadableCheckpointError,
    UnusableError,
)

PATH = Path("runs/a/checkpoints/step_00000200")
MADE = [
    DamagedError(PATH, "spec.json differs"),
    UnreadableCheckpointError(PATH, "no permission"),
    NewerFormatError(PATH, "format 9"),
    GoneError(PATH),
]


@pytest.mark.parametrize("error", MADE, ids=lambda error: type(error).__name__)
def test_the_message_names_path_and_problem_and_ends_with_a_remedy(error):
    before, _, remedy = str(error).partition(error.problem)
    assert error.path == PATH and str(PATH) in before
    assert remedy.startswith(". ") and remedy.endswith(".")


def test_what_is_damaged_is_no_matter_of_reading_and_the_other_way_round():
    kinds = {type(error): error for error in MADE}
    assert all(isinstance(error, UnusableError) and isinstance(error, CheckpointError) for error in MADE)
    assert [kind for kind, error in kinds.items() if isinstance(error, UnreadableCheckpointError)] == [
        UnreadableCheckpointError,
        NewerFormatError,
    ]
    assert [kind for kind, error in kinds.items() if isinstance(error, DamagedError)] == [DamagedError]


def test_only_damage_tells_to_use_another_checkpoint():
    assert [type(error) for error in MADE if "another checkpoint" in str(error)] == [DamagedError]
    assert pickle.loads(pickle.dumps(CheckpointError("text"))).args == ("text",)
