import pytest

from dp_prior.inference.export.write import write_export
from tests.inference.export.policies import TASK, build


@pytest.fixture(scope="session")
def policy():
    """A policy of relative actions, for tests that only read it."""
    return build(**TASK)


@pytest.fixture(scope="session")
def exported(policy, tmp_path_factory):
    """Its export, likewise."""
    directory = tmp_path_factory.mktemp("export") / "onnx"
    write_export(policy, directory, "onnx", source="a test")
    return directory
