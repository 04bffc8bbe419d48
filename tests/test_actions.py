"""Relative actions: encode and decode are inverse, and what they say does not depend on where the robot stands."""

import torch

from dp_prior.actions import RelativeActions


def chunk_and_position():
    generator = torch.Generator().manual_seed(0)
    actions = torch.randn(3, 8, 2, generator=generator) * 100
    return actions, {"agent_pos": torch.randn(3, 2, 2, generator=generator) * 100, "other": torch.zeros(3, 2, 5)}


def test_decode_is_the_inverse_of_encode():
    actions, obs = chunk_and_position()
    relative = RelativeActions("agent_pos")
    torch.testing.assert_close(relative.decode(relative.encode(actions, obs), obs), actions)


def test_offsets_are_from_the_newest_observation():
    actions, obs = chunk_and_position()
    offsets = RelativeActions("agent_pos").encode(actions, obs)
    for row in range(3):
        for step in range(8):
            assert torch.equal(offsets[row, step], actions[row, step] - obs["agent_pos"][row, 1])


def test_moving_robot_and_actions_together_changes_nothing():
    actions, obs = chunk_and_position()
    relative = RelativeActions("agent_pos")
    shift = torch.tensor([32.0, -64.0])
    moved = {**obs, "agent_pos": obs["agent_pos"] + shift}
    torch.testing.assert_close(relative.encode(actions + shift, moved), relative.encode(actions, obs))
