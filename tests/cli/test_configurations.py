"""Configurations on the command line: those of the package, and their schema."""

import json
import subprocess
import sys
from pathlib import Path

from dp_prior.config.schema import json_schema
from dp_prior.run.config import TrainConfig
from dp_prior.run.configurations import find_configuration
from tests.cli.invoked import command


def test_each_configuration_that_is_listed_is_one_that_train_takes_by_its_name():
    lines = command("configs").output.splitlines()
    found = {name: Path(place) for name, place in (line.split(maxsplit=1) for line in lines)}
    assert found and all(path.is_file() and find_configuration(Path(name)) == path for name, path in found.items())


def test_listing_configurations_waits_for_no_torch():
    program = """
import sys
from dp_prior.cli.configurations import configs
configs([], standalone_mode=False)
assert "torch" not in sys.modules
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert said.returncode == 0 and "pusht_state" in said.stdout, said.stderr


def test_the_schema_is_printed_whole():
    schema = json_schema(TrainConfig)
    for line in (("configs", "--schema"), ("schema",)):
        assert json.loads(command(*line).output) == schema
