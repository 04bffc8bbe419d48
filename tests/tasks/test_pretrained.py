"""Models as others know them: what is saved comes back the same, by the names that others use."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dp_prior import load_policy
from dp_prior.tasks.policy import DiffusionPolicy
from tests.inference.test_load import predict


def test_saved_and_loaded_it_acts_the_same(policy, tmp_path):
    directory = policy.save_pretrained(tmp_path / "a" / "policy")
    assert sorted(os.listdir(directory)) == ["config.json", "manifest.json", "model.safetensors", "spec.json"]
    again = DiffusionPolicy.from_pretrained(directory)
    assert torch.equal(predict(again), predict(policy)) and again.record == policy.record
    assert torch.equal(predict(load_policy(directory)), predict(policy))
    assert not again.training
    once_more = again.save_pretrained(tmp_path / "b")
    assert (once_more / "model.safetensors").read_bytes() == (directory / "model.safetensors").read_bytes()


def test_the_words_are_those_of_the_hubs_own_mixin():
    from huggingface_hub import ModelHubMixin

    for method in ("from_pretrained", "save_pretrained", "push_to_hub"):
        theirs = inspect.signature(getattr(ModelHubMixin, method)).parameters
        ours = inspect.signature(getattr(DiffusionPolicy, method)).parameters
        positional = [name for name, one in ours.items() if one.kind is one.POSITIONAL_OR_KEYWORD]
        assert positional == [name for name in theirs if name in positional]
    shared = {"force_download", "token", "cache_dir", "local_files_only", "revision"}
    assert shared <= set(inspect.signature(DiffusionPolicy.from_pretrained).parameters)
    assert {"commit_message", "private", "token", "branch"} <= set(
        inspect.signature(DiffusionPolicy.push_to_hub).parameters
    )


@pytest.mark.slow
def test_a_robot_needs_no_client_of_the_hub(policy, tmp_path):
    source = (
        "import sys\n"
        "for name in ('huggingface_hub', 'fsspec', 'accelerate', 'click', 'rich', 'wandb', 'httpx', 'httpx2'):\n"
        "    sys.modules[name] = None\n"  # as if it were not installed
        "import dp_prior\n"
        "from dp_prior.tasks.policy import DiffusionPolicy\n"
        "dp_prior.load_policy(sys.argv[1]); DiffusionPolicy.from_pretrained(sys.argv[1])\n"
        "assert 'dp_prior.tracking' not in sys.modules\n"
    )
    path = policy.save_pretrained(tmp_path / "policy")
    done = subprocess.run(
        [sys.executable, "-c", source, str(path)], capture_output=True, text=True, cwd=Path(__file__).parents[2]
    )
    assert done.returncode == 0, done.stderr
