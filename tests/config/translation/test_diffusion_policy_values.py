"""Values of Diffusion Policy that follow from several of its settings."""

from dp_prior.config.translation.diffusion_policy_values import skeleton


def test_a_task_without_conditions_is_inpainting():
    for key in ("obs_as_global_cond", "obs_as_cond"):
        assert skeleton({key: True})["task.type"] == "policy"
        assert skeleton({key: False})["task.type"] == "inpainting_policy"
    assert skeleton({"obs_as_global_cond": False, "obs_as_local_cond": True})["task.type"] == "policy"
