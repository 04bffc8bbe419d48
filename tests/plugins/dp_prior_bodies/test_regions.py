"""torch.compile of a network for many bodies: a region for each body, whatever the division of the batches."""

import pytest
import torch

from dp_prior.tensors.randomness import derive_seed
from dp_prior_bodies.union import BODY
from tests.plugins.dp_prior_bodies.test_network import BACKBONES, built, random_of
from tests.plugins.dp_prior_bodies.two_bodies import JOINTS

DIVISIONS = (4, 2, 6, 3, 5, 7, 8, 0, 1, 4)
"""Samples of the first body among the 8 of each batch."""


@pytest.mark.slow
def test_each_body_is_compiled_once_however_batches_are_divided(tmp_path):
    from torch._dynamo.testing import CompileCounterWithBackend

    model, data = built(tmp_path, task__backbone=BACKBONES["mlp"])
    model.train()
    torch.compiler.reset()
    torch.compiler.assume_constant_result(derive_seed)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model.forward, backend=counter, dynamic=False)
    numbers = data.train.fetch(torch.arange(len(data.train))).cond[BODY][:, 0]
    places = [torch.where(numbers == number)[0] for number in range(2)]
    counts = []
    for step, count in enumerate((*DIVISIONS, *reversed(DIVISIONS))):
        batch = data.train.fetch(torch.cat([places[0][step : step + count], places[1][step : step + 8 - count]]))
        losses = [function(batch, random_of(batch), True) for function in (compiled, model)]
        torch.testing.assert_close(losses[0].per_sample, losses[1].per_sample)
        gradients = []
        for loss in losses:
            model.zero_grad()
            loss.total.backward()
            gradients.append([value.grad.clone() for value in model.parameters()])
        torch.testing.assert_close(*gradients)
        counts.append(counter.frame_count)
    torch.compiler.reset()
    assert counts[: DIVISIONS.index(7)] == [len(JOINTS)] * DIVISIONS.index(7)  # the second batch compiles nothing
    assert counts[-1] <= 3 * len(JOINTS)  # a single sample is a region of its own, and so are few and many on a CPU
    assert counts[len(DIVISIONS) - 1] == counts[-1]
