"""Values of Diffusion Policy that follow from several of its settings."""

from dp_prior.config.translation.diffusion_policy_values import skeleton


def test_a_task_without_conditions_is_inpainting():
    for key in ("obs_as_global_cond", "obs_as_cond"):
        assert skeleton({key: True})["task.type"] == "policy"
        assert skeleton({key: False})["task.type"] == "inpainting_policy"
    assert skeleton({"obs_as_global_cond": False, "obs_as_local_cond": True})["task.type"] == "policy"


def test_a_data_set_that_is_not_known_is_to_be_filled_in():
    found = skeleton({"task.dataset._target_": "mine.Dataset"})
    assert found["data.episodes.path"].startswith("FILL_IN") and found["data.obs.obs"] == {"key": "FILL_IN"}


def test_two_arms_have_two_rotations_and_two_grippers():
    target = "diffusion_policy.dataset.robomimic_replay_lowdim_dataset.RobomimicReplayLowdimDataset"
    found = skeleton({"task.dataset._target_": target, "task.dataset.abs_action": True, "task.action_dim": 20})
    assert [one["slice"] for one in found["data.action.rotations"]] == [[3, 6], [10, 13]]
    assert [one["slice"] for one in found["task.normalizer.action"]["slices"]] == [[6, 7], [13, 14]]
