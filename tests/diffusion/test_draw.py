"""Every field of a `Draw` reaches the sampler, from the call that a user writes and from the one that agents make."""

import pytest
import torch

from dp_prior.diffusion.draw import AS_CONFIGURED, Draw
from dp_prior.diffusion.sampler import DDIM
from dp_prior.diffusion.target import Target
from tests.tasks.test_prefix import batch, build, rows

VALUES = torch.linspace(-1, 1, 6 * 8 * 2).view(6, 8, 2)
FIRST = torch.arange(8)[None, :, None] < 3
FIELDS = {
    "sampler": DDIM(steps=2),
    "previous": VALUES,
    "known": (VALUES, FIRST),
    "prefix": VALUES[:, :3],
    "target": Target(VALUES, torch.ones(8, 1), 5.0),
    "guidance_scale": 3.0,
}
BELOW_THE_TASK = {"shown": FIRST, "noise": VALUES}
"""Fields of models and processes: a policy makes `shown` of its prefix."""


@pytest.fixture(scope="module")
def policy():
    found = build(cond_dropout={"agent_pos": 0.5, "goal": 0.5})
    with torch.no_grad():  # the tokens of dropped observations begin at 0
        for index, weight in enumerate(found.parameters()):
            weight.add_(0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(index)))
    return found


def test_these_are_all_fields():
    assert {*FIELDS, *BELOW_THE_TASK} == {*Draw._fields} and set(AS_CONFIGURED) == {None}


@pytest.mark.parametrize("name", FIELDS)
def test_predict_and_draw_are_the_same_and_the_field_changes_the_sample(policy, name):
    obs, given = batch(6).cond, {name: FIELDS[name]}
    found = policy.draw(obs, rows(6), Draw(**given))
    assert torch.equal(policy.predict(obs, rows(6), **given), found)
    assert not torch.equal(found, policy.draw(obs, rows(6)))


def test_a_prefix_is_what_is_known_and_shown(policy):
    obs = batch(6).cond
    known = Draw(known=(VALUES, FIRST))
    found = policy.draw(obs, rows(6), Draw(prefix=VALUES[:, :3]))
    assert torch.equal(found, policy.sample(obs, rows(6), known._replace(shown=FIRST)))
    assert not torch.equal(found, policy.sample(obs, rows(6), known))
