"""The Dockerfile and the files of configs/clusters start the training that they promise.

Each is run here with stand-ins for its tool (`srun`, `torchrun`, ...) that print their arguments, which torch's parser
and our records then read. The tools' own parsers judge the files too: that of `hf jobs` always, those of SkyPilot and
dstack where DP_PRIOR_SKYPILOT and DP_PRIOR_DSTACK name a Python that has them.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml
from torch.distributed.run import get_args_parser

from dp_prior.run.config import TrainConfig
from dp_prior.run.exit_file import BAD_CONFIG, LOST, STOPPED
from tests.messages import told
from tests.tiny import write

ROOT = Path(__file__).parent.parent
CLUSTERS = ROOT / "configs/clusters"
RESOURCES = ("job-name", "nodes", "ntasks-per-node", "gpus-per-node", "cpus-per-task", "time", "output", "open-mode")
PARSERS = {
    "skypilot": "import sys, sky; sky.Task.from_yaml(sys.argv[1])",
    "dstack": (
        "import sys, yaml; from dstack._internal.core.models.configurations import parse_apply_configuration as parse\n"
        "parse(yaml.safe_load(open(sys.argv[1])))"
    ),
}


@pytest.fixture
def stand_in(tmp_path):
    """Puts a program that prints its name and arguments, a line each, before all others; returns the environment."""

    def make(*names: str, body: str = 'printf \'%s\\n\' "${0##*/}" "$@"', **variables: str) -> dict[str, str]:
        (folder := tmp_path / "bin").mkdir(exist_ok=True)
        for name in names:
            (folder / name).write_text(f"#!/bin/bash\n{body}\n")
            (folder / name).chmod(0o755)
        return {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(tmp_path), **variables}

    return make


def bash(*words: object, environment: dict[str, str], folder: Path) -> subprocess.CompletedProcess:
    return subprocess.run(["bash", *map(str, words)], env=environment, cwd=folder, capture_output=True, text=True)


def trained(words: list[str], config: Path) -> TrainConfig:
    """The configuration that the arguments of `dp-prior train` make."""
    assert words[:2] == ["train", str(config)]
    overrides = [words[place + 1] for place, word in enumerate(words) if word == "--set"]
    assert len(overrides) * 2 == len(words) - 2
    return TrainConfig.from_json_path(config, overrides)


def launched(words: list[str], config: Path) -> tuple[object, TrainConfig]:
    """(settings of torchrun, configuration) of a command line."""
    assert words[0] == "torchrun"
    settings = get_args_parser().parse_args(words[1:])
    assert settings.module and settings.training_script == "dp_prior"
    return settings, trained(settings.training_script_args, config)


def resumes_from_the_hub(config: TrainConfig) -> bool:
    [saver] = config.tracker.save
    return saver.repo == "me/mine" and saver.save_latest and config.tracker.load.reference == "hf://me/mine"


@pytest.mark.parametrize("path", [*CLUSTERS.glob("*.sbatch"), *CLUSTERS.glob("*.sh")], ids=lambda path: path.name)
def test_scripts_are_bash(path):
    done = bash("-n", path, environment=dict(os.environ), folder=ROOT)
    assert done.returncode == 0, done.stderr


def test_slurm_starts_an_agent_on_each_machine_that_requeues(tmp_path, stand_in):
    config = write(tmp_path)
    slurm = {"SLURM_JOB_NODELIST": "a[1-2]", "SLURM_NNODES": "2", "SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "32"}
    environment = stand_in("srun", **slurm)
    stand_in("scontrol", body="printf 'a1\\na2\\n'")
    script = CLUSTERS / "slurm.sbatch"
    done = bash(script, config, "--set", "train.max_runtime=1h", environment=environment, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    program, processors, *words = done.stdout.splitlines()
    settings, changed = launched(words, config)
    assert program == "srun" and processors == "--cpus-per-task=32"
    assert (settings.nnodes, settings.nproc_per_node, settings.rdzv_endpoint) == ("2", "gpu", "a1:29500")
    assert settings.rdzv_backend == "c10d" and settings.rdzv_id == "7"
    assert changed.train.requeue and changed.train.max_runtime
    missing = bash(script, environment=environment, folder=tmp_path)
    assert missing.returncode and told(missing.stderr, "CONFIG.json")


def test_slurm_asks_for_what_a_run_needs():
    lines = (CLUSTERS / "slurm.sbatch").read_text().splitlines()
    asked = [line.removeprefix("#SBATCH --") for line in lines if line.startswith("#SBATCH")]
    settings = dict(line.partition("=")[::2] for line in asked)
    assert settings.keys() == {*RESOURCES, "requeue"}
    assert settings["ntasks-per-node"] == "1", "one torchrun on each machine"
    assert settings["open-mode"] == "append", "a requeued job keeps its log"
    assert not any(line.startswith("#SBATCH") for line in lines[lines.index("set -euo pipefail") :]), "read by no one"


def test_skypilot_recovers_a_run_by_the_code_of_its_exit_file(tmp_path, stand_in):
    task = yaml.safe_load((CLUSTERS / "skypilot.yaml").read_text())
    assert task.keys() == {"name", "resources", "workdir", "envs", "secrets", "run"}
    resources = task["resources"]
    assert resources["use_spot"] and resources["image_id"].startswith("docker:")
    assert set(resources["job_recovery"]["recover_on_exit_codes"]) == {STOPPED, LOST}
    config = write(tmp_path)
    environment = stand_in("torchrun", SKYPILOT_NUM_GPUS_PER_NODE="4", **task["envs"] | {"CONFIG": str(config)})
    done = bash("-c", task["run"], environment=environment, folder=tmp_path)
    settings, changed = launched(done.stdout.splitlines(), config)
    assert done.returncode == 0 and settings.nproc_per_node == "4"
    assert resumes_from_the_hub(changed) and changed.tracker.data_path == task["envs"]["RUN"]


@pytest.mark.parametrize(
    ("before", "written", "code"),
    [
        pytest.param(None, None, 1, id="no configuration"),
        pytest.param(0, None, 1, id="a finished run refuses a start"),
        pytest.param(STOPPED, None, 1, id="a stopped run whose next start cannot begin"),
        pytest.param(None, STOPPED, STOPPED, id="stopped"),
        pytest.param(STOPPED, STOPPED, STOPPED, id="stopped again"),
        pytest.param(STOPPED, LOST, LOST, id="lost a rank"),
        pytest.param(STOPPED, BAD_CONFIG, BAD_CONFIG, id="refused after a stop"),
        pytest.param(None, "null", 1, id="killed"),
        pytest.param(None, 0, 0, id="finished, and torchrun fails at its end"),
    ],
)
def test_skypilot_takes_the_code_of_this_start_alone(before, written, code, tmp_path, stand_in):
    """The code decides whether the run is recovered: one of an earlier start would recover it without end."""
    task = yaml.safe_load((CLUSTERS / "skypilot.yaml").read_text())
    run = tmp_path / "runs/mine"
    if before is not None:
        run.mkdir(parents=True)
        (run / "exit.json").write_text(json.dumps({"code": before, "started": "yesterday"}))
    body = "exit 1" if written is None else f"mkdir -p {run}; echo '{{\"code\": {written}}}' > {run}/exit.json; exit 1"
    environment = stand_in("torchrun", body=body, SKYPILOT_NUM_GPUS_PER_NODE="4", **task["envs"])
    environment["PATH"] = f"{environment['PATH']}:{Path(sys.executable).parent}"
    done = bash("-c", task["run"], environment=environment, folder=tmp_path)
    assert done.returncode == code and not done.stderr


def test_dstack_goes_on_after_an_interruption(tmp_path, stand_in):
    task = yaml.safe_load((CLUSTERS / "dstack.yaml").read_text())
    assert task["type"] == "task" and re.fullmatch(r"[a-z][a-z0-9-]{1,40}", task["name"])
    assert "interruption" in task["retry"]["on_events"] and task["stop_duration"]
    variables = dict(variable.split("=") for variable in task["env"] if "=" in variable)
    config = write(tmp_path)
    environment = stand_in("torchrun", DSTACK_GPUS_PER_NODE="2", **variables | {"CONFIG": str(config)})
    [command] = task["commands"]
    settings, changed = launched(
        bash("-c", command, environment=environment, folder=tmp_path).stdout.splitlines(), config
    )
    assert settings.nproc_per_node == "2" and resumes_from_the_hub(changed)
    assert "HF_TOKEN" in task["env"], "a name alone is taken from the user's environment, never written into a file"


def shell_of(name):
    """The shell part of a file that starts a training, the program that it starts, and its variables."""
    if name == "slurm.sbatch":
        slurm = {"SLURM_JOB_NODELIST": "a1", "SLURM_NNODES": "1", "SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "4"}
        return (CLUSTERS / name).read_text(), "srun", slurm
    if name == "dstack.yaml":
        [command] = yaml.safe_load((CLUSTERS / name).read_text())["commands"]
        return (
            command,
            "torchrun",
            {"DSTACK_GPUS_PER_NODE": "1", "CONFIG": "mine.json", "RUN": "run", "REPO": "me/mine"},
        )
    inside = (CLUSTERS / name).read_text().partition("bash -c '")[2].rstrip().removesuffix("'")
    return inside, "dp-prior", {"CONFIG": "{}", "REPO": "me/mine"}


@pytest.mark.parametrize("name", ["slurm.sbatch", "dstack.yaml", "hf_jobs.sh"])
@pytest.mark.parametrize("code", [0, 1, BAD_CONFIG, STOPPED, LOST])
def test_the_other_files_end_with_the_code_of_what_they_start(name, code, tmp_path, stand_in):
    text, program, variables = shell_of(name)
    environment = stand_in(program, body=f"exit {code}", **variables)
    stand_in("scontrol", body="echo a1")
    inside = text.replace("/tmp/config.json", str(tmp_path / "config.json"))
    done = bash("-c", inside, "bash", "mine.json", environment=environment, folder=tmp_path)
    assert done.returncode == code and not done.stderr


def test_a_job_of_hugging_face_is_taken_by_its_own_parser_and_trains(tmp_path, stand_in):
    hf = Path(sys.executable).with_name("hf")
    if "--dry-run" not in subprocess.run([hf, "jobs", "run", "--help"], capture_output=True, text=True).stdout:
        pytest.skip("NOT CHECKED: huggingface_hub without `hf jobs run --dry-run`")
    config = write(tmp_path)
    variables = {"IMAGE": "me/dp-prior:cuda", "REPO": "me/mine", "HF_HUB_OFFLINE": "1"}
    script = CLUSTERS / "hf_jobs.sh"
    environment = stand_in("hf", body=f'exec {shlex.quote(str(hf))} "$@"', **variables)
    done = bash(script, "me/cups", config, "--dry-run", environment=environment, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert told(done.stdout, "me/dp-prior:cuda", "l4x1", "hf://datasets/me/cups:/data", "HF_TOKEN")

    words = bash(script, "me/cups", config, environment=stand_in("hf", **variables), folder=tmp_path).stdout
    command = words.partition("\nbash\n-c\n")[2]
    (tmp_path / "job").mkdir()
    inside = command.replace("/tmp/config.json", str(tmp_path / "job/config.json"))
    environment = stand_in("dp-prior", CONFIG=config.read_text(), REPO="me/mine")
    started = bash("-c", inside, environment=environment, folder=tmp_path).stdout.splitlines()
    assert started[0] == "dp-prior"
    changed = trained(started[1:], tmp_path / "job/config.json")
    assert resumes_from_the_hub(changed) and str(changed.data.episodes.path) == "/data"
    missing = bash(script, "me/cups", environment=environment, folder=tmp_path)
    assert missing.returncode and told(missing.stderr, "CONFIG.json")


@pytest.mark.parametrize("tool", PARSERS)
def test_tools_take_their_files(tool, tmp_path):
    python = os.environ.get(f"DP_PRIOR_{tool.upper()}")
    if python is None:
        pytest.skip(f"NOT CHECKED by {tool} itself: DP_PRIOR_{tool.upper()} names no Python that has it")
    environment = {**os.environ, "HOME": str(tmp_path)}
    environment.pop("PYTHONPATH", None)
    command = [python, "-c", PARSERS[tool], str(CLUSTERS / f"{tool}.yaml")]
    done = subprocess.run(command, env=environment, cwd=CLUSTERS, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def instructions() -> list[tuple[str, str]]:
    """(keyword, arguments) of the Dockerfile, continued lines joined."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(keyword, arguments) for keyword, _, arguments in (line.partition(" ") for line in lines)]


def copied() -> list[str]:
    return [source for keyword, words in instructions() if keyword == "COPY" for source in words.split()[:-1]]


def test_the_image_is_built_of_what_is_there_for_cpus_and_gpus(tmp_path):
    known = {"ARG", "FROM", "ENV", "WORKDIR", "COPY", "RUN", "CMD"}
    given = instructions()
    assert {keyword for keyword, _ in given} <= known
    assert [keyword for keyword, _ in given][:2] == ["ARG", "FROM"]
    defaults = dict(words.split("=") for keyword, words in given if keyword == "ARG")
    assert defaults.keys() == {"PYTHON", "DEVICE", "EXTRAS"}
    extras = re.findall(r'^    "(\w+)": \[', (ROOT / "setup.py").read_text(), re.MULTILINE)
    assert set(defaults["EXTRAS"].split(",")) <= {*extras}
    assert all((ROOT / source).exists() for source in copied())
    assert json.loads(given[-1][1]) == ["dp-prior", "--help"]
    torch = next(words for keyword, words in given if keyword == "RUN")
    for device, index in (("cpu", "whl/cpu"), ("cuda", None)):
        environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "DEVICE": device}
        (tmp_path / "pip").write_text('#!/bin/sh\necho "$@"\n')
        (tmp_path / "pip").chmod(0o755)
        done = subprocess.run(["sh", "-c", torch], env=environment, capture_output=True, text=True)
        assert done.stdout.split()[-1] == "torch" and ("whl/cpu" in done.stdout) == (index is not None)
    wrong = subprocess.run(["sh", "-c", torch], env={**environment, "DEVICE": "tpu"}, capture_output=True, text=True)
    assert wrong.returncode == 64 and told(wrong.stderr, "'tpu'", "cpu", "cuda")


def test_the_build_context_is_what_the_image_copies():
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*", "all else stays out: environments, runs, data, secrets"
    assert {line[1:] for line in lines if line.startswith("!")} == set(copied())
    later = [line for line in lines[1:] if not line.startswith("!")]
    assert not [source for source in copied() for pattern in later if fnmatch(source, pattern)]


@pytest.mark.slow
def test_what_the_image_copies_installs_the_command(tmp_path):
    """Without the environment's own packages, which pip would fetch: the package alone, as a wheel."""
    (context := tmp_path / "context").mkdir()
    for source in copied():
        path = ROOT / source
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
        shutil.copytree(path, context / source, ignore=ignored) if path.is_dir() else shutil.copy(path, context)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir"]
    subprocess.run([*pip, str(tmp_path), "."], cwd=context, check=True)
    [wheel] = tmp_path.glob("dp_prior-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {"dp_prior/configs/clusters/slurm.sbatch", "dp_prior/configs/policy/pusht_state.json"} <= {*names}
