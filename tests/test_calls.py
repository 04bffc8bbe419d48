"""How many kernels a step asks for. A GPU waits for Python where a kernel takes less time than its call.

The numbers are ceilings that may only fall: whoever adds calls finds out here, and lowers a ceiling with what it saves.
Torch's `meta` device, on which they are counted, composes some operators that a GPU has whole, such as an RMS norm.
"""

import json

import pytest
import torch

from benchmarks import image_policy
from dp_prior.run.config import TrainConfig
from dp_prior.tensors.randomness import Randomness
from dp_prior.training.ema import EMA
from dp_prior.training.optimizer import update
from tests.calls import counted, counted_in, elsewhere, like_a_gpu

SMALL = ("train.precision=fp32", "data.batch_size=4")
WIDTHS = (32, 64, 128)
DIT = {"type": "dit", "embed_dim": 64}

# forward, backward, update, average of one training step
CEILINGS = {"images": (280, 323, 19, 3), "states": (193, 248, 19, 3), "dit": (443, 816, 19, 3)}
RANDOM = {"images": 20, "states": 16, "dit": 16}
SLACK = 5
"""A ceiling higher than this above its count is to be lowered."""


def recipe(name: str) -> TrainConfig:
    if name != "dit":
        return image_policy.record(WIDTHS, SMALL, {"images": "pusht_image_paper", "states": "pusht_state_paper"}[name])
    document = image_policy.record(WIDTHS, SMALL, "pusht_state_paper").model_dump(mode="json")
    document["task"]["backbone"] = DIT
    return TrainConfig.from_json(json.dumps(document))


def parts(name: str) -> tuple[TrainConfig, torch.nn.Module, image_policy.Batch]:
    spec = image_policy.SPEC if name == "images" else image_policy.STATE_SPEC
    record = recipe(name)
    return record, image_policy.policy(record, spec).train(), image_policy.batch(4, spec=spec)


def loss_of(model, batch):
    return model(batch, Randomness.from_counts(0, "training", batch.positions), False).total


def assert_within(name: str, calls: list[int], ceilings: tuple[int, ...]) -> None:
    assert all(count <= ceiling for count, ceiling in zip(calls, ceilings, strict=True)), (name, calls, ceilings)
    assert all(ceiling - count <= SLACK for count, ceiling in zip(calls, ceilings, strict=True)), (
        f"{name}: lower the ceilings to {calls}"
    )


@pytest.mark.parametrize("name", CEILINGS)
def test_a_step_asks_for_no_more_kernels_than_it_did(name):
    record, model, batch = parts(name)
    optimizer, average = record.train.optimizer.create(model), EMA(model, record.train.ema["ema"])
    for _ in range(2):  # the first step allocates moments
        loss_of(model, batch).backward()
        with counted() as updated:
            _, finite = update(optimizer, record.train.max_grad_norm, None)
        with counted() as averaged:
            average.update(5, finite)
        optimizer.zero_grad()
    with like_a_gpu():
        model, batch = elsewhere(model), batch.to("meta")
        with counted() as forward:
            loss = loss_of(model, batch)
        with counted() as backward:
            loss.backward()
    assert_within(name, [calls.total for calls in (forward, backward, updated, averaged)], CEILINGS[name])


@pytest.mark.parametrize("name", RANDOM)
def test_the_random_numbers_of_a_step_take_at_most_twenty_kernels(name):
    _, model, batch = parts(name)
    batch = batch.to("meta")
    methods = ["from_counts", "stream", "repeated", "bits", "uniform", "integers", "normal", "__getitem__"]
    with like_a_gpu():
        model = elsewhere(model)
        with counted_in(Randomness, methods) as calls:
            loss_of(model, batch)
    assert calls.names["random numbers"] > 0
    assert_within(name, [calls.total], (RANDOM[name],))
    assert calls.total <= 20
