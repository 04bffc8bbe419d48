"""Configurations on the command line: those of the package, their schema, and translated ones."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

from dp_prior.config.schema import json_schema
from dp_prior.run_directory.config import TrainConfig
from dp_prior.run_directory.configurations import find_configuration
from tests.cli.invoked import command
from tests.messages import told


def test_each_configuration_that_is_listed_is_one_that_train_takes_by_its_name():
    lines = command("configs").output.splitlines()
    found = {name: Path(place) for name, place in (line.split(maxsplit=1) for line in lines)}
    assert found and all(path.is_file() and find_configuration(Path(name)) == path for name, path in found.items())


def test_listing_configurations_waits_for_no_torch():
    program = "import sys; from dp_prior.cli import configs; configs([], standalone_mode=False); assert 'torch' not in "
    said = subprocess.run([sys.executable, "-c", f"{program} sys.modules"], capture_output=True, text=True)
    assert said.returncode == 0 and "pusht_state" in said.stdout, said.stderr


def test_the_schema_is_printed_whole():
    assert json.loads(command("schema").output) == json_schema(TrainConfig)


def test_a_translation_names_its_file_as_a_shell_reads_it_and_makes_its_folder(tmp_path):
    out = tmp_path / "new/a b.json"
    (tmp_path / "theirs.json").write_text(json.dumps({"policy": {"type": "diffusion"}}))
    done = command("translate", tmp_path / "theirs.json", "--from", "lerobot", "--out", out)
    assert done.exit_code == 0 and f"--config_file {shlex.quote(str(out))} --check" in done.output, done.output
    assert json.loads(out.read_text())
    assert told(
        command("translate", tmp_path / "theirs.json", "--from", "lerobot", "--out", out).output, "a b.json exists"
    )
