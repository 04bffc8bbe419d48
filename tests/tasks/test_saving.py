"""A model is saved whole or not at all, and uploaded in one commit."""

import os

import pytest
import torch

from dp_prior import load_policy
from dp_prior.places.errors import RemoteError
from dp_prior.tasks.policy import DiffusionPolicy
from tests.inference.test_load import predict
from tests.messages import naming


def test_weights_that_are_not_finite_are_told_and_kept_aside(policy, tmp_path):
    policy.backbone.head.out.bias.data[0] = torch.nan
    with pytest.raises(ValueError, match=naming(tmp_path / "quarantine_policy")):
        policy.save_pretrained(tmp_path / "policy")
    assert os.listdir(tmp_path) == ["quarantine_policy"]


@pytest.mark.slow
def test_a_compiled_network_is_saved_under_the_names_of_its_weights(policy, tmp_path):
    expected = predict(policy)
    policy.backbone = torch.compile(policy.backbone)  # which compiles at its first call: never, here
    assert torch.equal(predict(load_policy(policy.save_pretrained(tmp_path / "policy"))), expected)


def test_what_is_there_is_left_alone(policy, tmp_path):
    (tmp_path / "empty").mkdir()
    policy.save_pretrained(tmp_path / "empty")
    with pytest.raises(FileExistsError, match=naming(tmp_path / "empty")):
        policy.save_pretrained(tmp_path / "empty")


def test_pushed_it_is_one_commit_with_a_card_and_comes_back(policy, hub):
    url = policy.push_to_hub("me/policy", license="mit", commit_message="First")
    repo = hub.repos["me/policy"]
    assert repo.private and [summary for _, summary in repo.log] == ["initial commit", "First"]
    assert url.endswith(repo.head)
    assert set(hub.files("me/policy")) == {
        *(".gitattributes", "README.md", "config.json", "manifest.json", "model.safetensors", "spec.json"),
    }
    for loaded in (
        DiffusionPolicy.from_pretrained("me/policy"),
        load_policy("me/policy"),
        load_policy("hf://me/policy"),
    ):
        assert torch.equal(predict(loaded), predict(policy))


def test_a_branch_holds_a_policy_beside_that_of_main(policy, hub):
    """Of a new repository and of one that exists; pushed again, the branch goes on."""
    with pytest.raises(FileNotFoundError):
        load_policy("me/policy@wide")
    policy.push_to_hub("me/policy", branch="wide")
    assert "manifest.json" not in hub.files("me/policy") and "manifest.json" in hub.files("me/policy", "wide")
    first = predict(policy)
    policy.push_to_hub("me/policy")
    with torch.no_grad():
        policy.backbone.head.out.bias.add_(1)
    policy.push_to_hub("me/policy", branch="wide")
    assert torch.equal(predict(DiffusionPolicy.from_pretrained("me/policy", revision="wide")), predict(policy))
    assert torch.equal(predict(load_policy("me/policy")), first) and not torch.equal(first, predict(policy))


def test_save_and_push_in_one_call(policy, hub, tmp_path):
    policy.save_pretrained(tmp_path / "policy", push_to_hub=True, repo_id="me/both", private=False)
    assert not hub.repos["me/both"].private
    assert torch.equal(predict(load_policy("me/both")), predict(policy))


def test_a_refusal_is_told(policy, hub):
    hub.role = "read"
    with pytest.raises(RemoteError, match=naming("(403)", "`repo`")):
        policy.push_to_hub("me/policy")
