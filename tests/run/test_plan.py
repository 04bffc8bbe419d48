"""The plan: what a run will do, what stands out in its settings, and which parts learn at a rate of their own."""

from tests.tiny import train, write


def test_the_plan_warns_of_a_clip_that_cuts_into_the_data(tmp_path):
    warning = "  warning       task.diffusion.clip keeps samples within +-1 in normalised units, but the data reach to "
    assert warning not in train(write(tmp_path), "--check").output
    assert warning in train(write(tmp_path, task__normalizer={"action": {"type": "gaussian"}}), "--check").output
