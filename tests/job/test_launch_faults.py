"""Why a process cannot join the ranks of a launcher: what was found, and what to do."""

import pytest

from dp_prior.config import ConfigError
from dp_prior.job.accelerator import make_accelerator
from dp_prior.job.launch_faults import apart
from dp_prior.job.stop import RankLostError
from tests.messages import naming, told


def test_variables_of_a_launcher_that_do_not_fit_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(ConfigError, match=naming("WORLD_SIZE='two'", "RANK=''", "MASTER_PORT")):
        make_accelerator("fp32")


@pytest.mark.parametrize("is_launched", [False, True])
def test_an_error_that_is_not_of_the_launcher_says_nothing_of_its_variables(monkeypatch, is_launched):
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "1") if is_launched else monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("dp_prior.job.accelerator.Accelerator", lambda **options: int("bf16"))
    with pytest.raises(ValueError, match=naming("bf16")) as caught:
        make_accelerator("bf16")
    assert not told(str(caught.value), "WORLD_SIZE")


@pytest.mark.parametrize("way", ["FSDP", "DEEPSPEED", "MEGATRON_LM", "PARALLELISM_CONFIG"])
def test_a_launcher_that_divides_models_among_ranks_is_refused(way, monkeypatch):
    monkeypatch.setenv(f"ACCELERATE_USE_{way}", "false")
    make_accelerator("fp32")
    monkeypatch.setenv(f"ACCELERATE_USE_{way}", "true")
    with pytest.raises(ConfigError, match=naming(f"ACCELERATE_USE_{way}", "true", "--multi_gpu", "--config_file")):
        make_accelerator("fp32")


def test_ranks_that_do_not_meet_are_told_from_a_taken_port():
    variables = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "first", "MASTER_PORT": "29500"}
    taken, lost = (apart(message, variables) for message in ("bind: EADDRINUSE", "Connection refused"))
    assert isinstance(taken, ConfigError) and told(str(taken), "MASTER_PORT", "29500")
    assert isinstance(lost, RankLostError) and told(str(lost), "rank 1 of 2", "first:29500", "Connection refused")
