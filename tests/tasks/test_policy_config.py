"""The record of a policy refuses what contradicts itself or the data, all faults in one report."""

import pytest

from dp_prior.config import ConfigError
from dp_prior.tasks.policy_config import PolicyConfig
from dp_prior.tensors.batch import Spec
from tests.messages import naming

MLP = {"type": "mlp", "hidden_dim": 16, "n_blocks": 1, "step_embed_dim": 8}
SPEC = Spec(x_shape=(4, 2), cond_shapes={"agent_pos": (2, 2), "angle": (2, 1)})


def record(**change) -> PolicyConfig:
    return PolicyConfig(**{"horizon": 4, "n_obs_steps": 2, "n_action_steps": 2, "backbone": MLP, **change})


def test_actions_and_delays_fit_exactly_if_the_chunk_has_room_for_them():
    for horizon in range(1, 6):
        for n_obs_steps in range(1, 6):
            for count in range(1, 6):
                room = horizon - n_obs_steps + 1
                lengths = {"horizon": horizon, "n_obs_steps": n_obs_steps}
                for change, fits in (
                    ({"n_action_steps": count}, count <= room),
                    ({"n_action_steps": 1, "prefix": {"max_delay": count}}, room >= 1 and count < room),
                ):
                    try:
                        record(**lengths, **change)
                        accepted = True
                    except ConfigError as error:
                        accepted = False
                        assert f"room for {max(room, 0)} actions" in str(error)
                    assert accepted == fits, (lengths, change)


def test_data_of_other_lengths_and_keys_that_they_do_not_have_are_all_in_one_report():
    other = Spec(x_shape=(5, 2), cond_shapes={"agent_pos": (3, 2), "angle": (2, 1)})
    change = {
        "encoders": {"angel": {"type": "state"}},
        "normalizer": {"x": {"type": "limits"}},
        "cond_dropout": {"agent": 0.1},
        "relative_to": "angle",
    }
    with pytest.raises(ConfigError) as caught:
        record(**change).create(other)
    said = "\n".join(caught.value.problems)
    for word in ("horizon is 4", "{'agent_pos': 3}", "['angel']", "['x']", "['agent']", "relative_to is 'angle'"):
        assert word in said
    assert len(caught.value.problems) == 6


@pytest.mark.parametrize(
    ("key", "kind", "encoder"), [("agent_pos", "image", "state"), ("agent_pos", "vector", "resnet")]
)
def test_an_encoder_of_another_kind_is_refused_by_its_key(key, kind, encoder):
    shape = (2, 8, 8, 3) if kind == "image" else (2, 2)
    spec = Spec(x_shape=(4, 2), cond_shapes={key: shape}, kinds={key: kind})
    with pytest.raises(ConfigError) as caught:
        record(encoders={key: {"type": encoder}}).create(spec)
    assert all(word in str(caught.value) for word in (repr(key), repr(kind), encoder))


def test_a_guided_policy_needs_dropout_of_every_observation():
    guided = {"diffusion": {"guidance": {"scale": 2.0}}}
    with pytest.raises(ConfigError, match=naming("['angle']", "task.cond_dropout")):
        record(**guided, cond_dropout={"agent_pos": 0.1}).create(SPEC)
    record(**guided, cond_dropout={"agent_pos": 0.1, "angle": 0.1}).create(SPEC)
