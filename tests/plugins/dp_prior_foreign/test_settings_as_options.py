"""Settings written as options, as LeRobot, argparse and the agents of W&B write them."""

import json

import click
import pytest
import yaml

from dp_prior.config import ConfigError
from dp_prior.files.entry_points import ask
from dp_prior.run.config import TrainConfig
from dp_prior.run.configurations import configurations
from dp_prior_foreign.settings_as_options import as_overrides
from tests.cases import every
from tests.cli.invoked import all_commands, command
from tests.forks import ROOT
from tests.messages import naming, told
from tests.tiny import rows, write

OPTIONS = {"--set", "--config_file", "--check", "--resume", "--import", "--help"}


def overrides(*words):
    return [word.removeprefix("--set=") for word in as_overrides(words, OPTIONS)]


@every(
    case=[
        (["--train.lr.peak=3e-4"], ["train.lr.peak=3e-4"]),
        (["--train.lr.peak", "3e-4"], ["train.lr.peak=3e-4"]),
        (["--train.lr.peak", "-1"], ["train.lr.peak=-1"]),
        (["--test.0.env.n_envs=4"], ["test.0.env.n_envs=4"]),
        (["--seed=3"], ["seed=3"]),
        (["--seed", "3"], ["seed=3"]),  # a field, near --set in spelling
        (["--test", "[]"], ["test=[]"]),
        (["--description=a=b c"], ["description=a=b c"]),
        (["--train.requeue=True"], ["train.requeue=true"]),
        (["--train.epochs", "None"], ["train.epochs=null"]),
        (["--a.b=['x', \"y\"]"], ['a.b=["x", "y"]']),
        (["--a.b={'type': 'cosine', 'peak': None}"], ['a.b={"type": "cosine", "peak": null}']),
        (["--a.b=[not a list"], ["a.b=[not a list"]),
        (["--a.b=nan"], ["a.b=nan"]),
        (["--a.b="], ["a.b="]),
    ]
)
def test_a_setting_as_an_option_is_an_override_with_a_value_in_json(case):
    words, expected = case
    assert as_overrides(words, OPTIONS) == [f"--set={override}" for override in expected]
    assert overrides("mine.json", *words, "--check") == ["mine.json", *expected, "--check"]


@every(
    words=[
        ["--set", "train.lr.peak=1", "--check"],
        ["--set=train.lr.peak=1"],
        ["--config_file", "a.b.json"],
        ["--config=mine.json"],  # an option that is cut off
        ["--chekc=1"],  # or misspelt
        ["--config-file=mine.json"],
        ["--speed", "3"],  # may be an option without a value, and an argument
        ["-x.y=3"],
        ["--", "--train.lr.peak=3"],
        ["runs/a.b=c"],
    ]
)
def test_options_misspelt_options_and_arguments_stay(words):
    assert as_overrides(words, OPTIONS) == words


@every(words=[["--a.b"], ["--a.b", "--check"], ["--a.b", "--", "x"]])
def test_a_setting_without_a_value_is_refused(words):
    with pytest.raises(ConfigError, match=naming("--a.b", "--a.b=VALUE")):
        as_overrides(words, OPTIONS)
    refused = command("train", "pusht_state", *words)
    assert refused.exit_code == 64 and told(refused.output, "--a.b=VALUE")


def test_every_command_with_settings_takes_them_as_options(monkeypatch):
    parsed = []
    monkeypatch.setattr(click.Command, "parse_args", lambda command, context, words: parsed.append(words))
    commands = {name: any_command for name, any_command in all_commands().items() if has_settings(any_command)}
    assert {"train", "sweep", "evaluate", "cache", "embed", "sample", "improve", "inspect", "try"} <= commands.keys()
    for name, any_command in commands.items():
        any_command.parse_args(click.Context(any_command), ["a", "--data.episodes.path=x", "--data.batch_size", "4"])
        assert parsed.pop() == ["a", "--set=data.episodes.path=x", "--set=data.batch_size=4"], name


def has_settings(any_command):
    return any("--set" in parameter.opts for parameter in any_command.params)


@every(line=["lr=3e-4", "train.lr.pek=3", "seed=x", "train.lr.peak=", "nothing.at.all=1", "data.seed=3"])
def test_an_option_that_is_no_setting_gets_the_error_of_set(line):
    refused = command("train", "pusht_state", f"--{line}", "--check")
    by_set = command("train", "pusht_state", "--set", line, "--check")
    assert refused.exit_code == by_set.exit_code == 64
    assert refused.output == by_set.output and told(refused.output, "error")


@pytest.mark.slow
def test_an_agent_of_wandb_trains_each_trial_in_a_directory_of_its_own(tmp_path, monkeypatch):
    config = write(tmp_path)
    monkeypatch.chdir(tmp_path)
    sweep = yaml.safe_load((ROOT / "configs/wandb_sweep.yaml").read_text())
    sweep["command"] = [str(config) if word == "pusht_state" else word for word in sweep["command"]]
    sweep["command"] = [word for word in sweep["command"] if not word.startswith("--tracker.log")]
    for trial, peak in (("one", 0.01), ("two", 0.02), ("two", 0.02)):
        words, environment = line_of_agent(sweep, trial, {"train.lr.peak": peak, "train.requeue": False}, monkeypatch)
        assert words[:3] == ["/usr/bin/env", "dp-prior", "train"]
        for name in ("WANDB_SWEEP_ID", "WANDB_RUN_ID"):
            monkeypatch.setenv(name, environment[name])
        done = command(*words[2:])
        assert done.exit_code == 0, done.output
        run = tmp_path / f"run_{trial}"
        stored = TrainConfig.from_json_path(run / "config.json")
        assert stored.train.lr.peak == peak and rows(run)
    assert told(done.output, "already complete") and not (tmp_path / "run").exists()
    named = ask("overrides_of_trial", stored, ("tracker.data_path=here",), {"WANDB_RUN_ID": "three"})
    assert not named, "a directory that the user names stays"


def line_of_agent(sweep, trial, values, monkeypatch):
    """The words and the environment of the process that the agent of W&B starts for a trial."""
    from wandb import wandb_agent

    started = []
    monkeypatch.setattr(wandb_agent, "AgentProcess", lambda **process: started.append(process) or process_of_agent())
    monkeypatch.setenv("WANDB_SWEEP_ID", "s1")
    monkeypatch.setenv("WANDB_RUN_ID", "none")
    agent = wandb_agent.Agent(None, None, "s1")
    agent._sweep_command = list(sweep["command"])
    arguments = {name: {"value": value} for name, value in values.items()}
    agent._command_run({"run_id": trial, "program": sweep["program"], "args": arguments})
    return started[0]["command"], started[0]["env"]


class process_of_agent:
    """A started process, of which the agent notes the time of its signals."""


def test_the_sweep_that_comes_with_the_package_varies_settings_of_a_configuration_that_comes_too():
    sweep = yaml.safe_load((ROOT / "configs/wandb_sweep.yaml").read_text())
    (name,) = {*sweep["command"]} & configurations().keys()
    settings = [word[2:] for word in sweep["command"] if word.startswith("--")]
    varied = [f"{key}={json.dumps(value)}" for key, of in sweep["parameters"].items() for value in of["values"]]
    for override in varied:
        config = TrainConfig.from_json_path(configurations()[name], [*settings, override])
        assert "wandb" in [logger.type for logger in config.tracker.log]
    assert sweep["metric"]["name"] == config.train.monitor.metric
