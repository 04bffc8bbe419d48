"""A model in parts, by `shard` "model": the same run as with whole models, on any ranks, with a part of the memory."""

import json
import os
import signal
from pathlib import Path

import pytest
import torch

from dp_prior.job.stop import REQUEST
from dp_prior.training.trainer import PolicyTrainer
from tests.golden.record import DIT
from tests.test_elastic import BF16, EXACT, LIMIT, POLICY, SMALL_GRADIENTS, WHOLE, WITHOUT_EFFECT, prior
from tests.tiny import experiment, rows, state, tiny
from tests.tiny_camera import camera_run

AVERAGES = {
    "ema": {"type": "power"},
    "slow": {"type": "constant", "decay": 0.9},
    "narrow": {"type": "power_function", "relative_width": 0.05},
}
SETTINGS = WHOLE | {"train__ema": AVERAGES}
PARTS = {"backbone.down": {"lr_scale": 0.5, "weight_decay": 0.1}}
MUON = {"train__optimizer": {"type": "muon", "parts": PARTS}}
ADAMW = {"train__optimizer": {"type": "adamw", "parts": PARTS}}
UNEQUAL_GRADIENTS = 1e-2
"""Of sums in bfloat16, which one rank takes over other samples than two."""

KINDS = {  # configuration, most difference of losses and evaluations, most difference of weights and averages
    "unet, muon, parts, micro-batches": (tiny, POLICY | SETTINGS | LIMIT | MUON, EXACT, SMALL_GRADIENTS),
    "unet, adamw, parts": (tiny, POLICY | SETTINGS | ADAMW, EXACT, SMALL_GRADIENTS),
    "unet, bf16": (tiny, POLICY | SETTINGS | LIMIT | BF16, UNEQUAL_GRADIENTS, UNEQUAL_GRADIENTS),
    "dit, micro-batches": (tiny, POLICY | SETTINGS | LIMIT | {"task__backbone": DIT}, EXACT, SMALL_GRADIENTS),
    "images, micro-batches": (camera_run, SETTINGS | LIMIT, EXACT, SMALL_GRADIENTS),
    "prior, micro-batches": (prior, SETTINGS | LIMIT, EXACT, EXACT),
}
DEFAULT = "unet, muon, parts, micro-batches"
NOT_FINITE = (2, 3)
"""Steps that one rank gives a gradient which is not finite."""

STARTS = (  # step at which a start is stopped or, negative, killed; its ranks; what they divide
    *((5, 2, "model"), (-8, 2, "model"), (9, 1, "model"), (12, 2, False)),
    *((14, 2, "model"), (16, 2, "optimizer"), (None, 2, "model")),
)
FEW_STARTS = ((-8, 2, "model"), (13, 1, "model"), (None, 2, "model"))


def part(text: str, until: int | None) -> None:
    """One rank of a start, which stops at a step or, if it is negative, is killed there."""
    step = PolicyTrainer.step

    def watched(self, batches):
        if self.progress.global_step in NOT_FINITE and self.ranks.is_main_process:
            batches[0].x.fill_(float("nan"))
        step(self, batches)
        if self.progress.global_step == until:
            self.stop.ask(REQUEST)
        if until is not None and self.progress.global_step == -until and not self.ranks.is_main_process:
            os.kill(os.getpid(), signal.SIGKILL)

    PolicyTrainer.step = watched
    try:
        experiment(json.loads(text)).run()
    finally:
        PolicyTrainer.step = step


def start(document: dict, run_ranks, until: int | None, n_ranks: int, shard: str | bool) -> None:
    """Start a run, or go on with it; no setting but `shard` changes."""
    text = json.dumps({**document, "train": {**document["train"], "shard": shard}})
    if n_ranks == 1:
        part(text, until)
        return
    source = "import json, sys; from tests.training.test_model_shards import part; part(*json.loads(sys.argv[1]))"
    if until is None or until > 0:
        run_ranks(source, n_ranks, json.dumps([text, until]))
        return
    with pytest.raises(pytest.fail.Exception, match="exited"):
        run_ranks(source, n_ranks, json.dumps([text, until]))


def assert_same(run: Path, reference: Path, of_metrics: float, of_weights: float) -> None:
    """The same rows of metrics and last checkpoint, but for the rounding of sums."""
    stored, expected = state(run), state(reference)
    assert stored.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert stored[name].dtype == value.dtype and stored[name].shape == value.shape, name
        if name.startswith(("model", "training.safetensors:online.")) and not name.endswith(WITHOUT_EFFECT):
            torch.testing.assert_close(stored[name], value, rtol=0, atol=of_weights, msg=name)
    assert [row["step"] for row in rows(run)] == [row["step"] for row in rows(reference)]
    for row, other in zip(rows(run), rows(reference), strict=True):
        assert row.keys() == other.keys() and row.get("train/skipped_steps") == other.get("train/skipped_steps")
        for name, value in other.items():
            if not isinstance(value, float):  # such as the loss of a step that is not finite
                assert row[name] == value
            elif "loss" in name or not name.startswith("train/"):
                assert row[name] == pytest.approx(value, rel=of_metrics, abs=of_metrics), (name, row["step"])


@pytest.mark.promise("B2", "B3", "D6")
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind == DEFAULT else [pytest.mark.slow]) for kind in KINDS]
)
def test_a_model_in_parts_is_the_same_run_on_any_ranks(kind, run_ranks, tmp_path):
    """Starts that take turns with whole models and one rank, of which one is killed; two steps are skipped."""
    make, change, *bounds = KINDS[kind]
    document = make(tmp_path, **change)
    if "data__batch_size" not in change:
        del document["data"]["batch_size"]
    straight = {**document, "tracker": {**document["tracker"], "data_path": str(tmp_path / "straight")}}
    start(straight, run_ranks, None, 2, False)
    for until, n_ranks, shard in FEW_STARTS if kind == DEFAULT else STARTS:
        start(document, run_ranks, until, n_ranks, shard)
    assert_same(tmp_path / "run", tmp_path / "straight", *bounds)
    assert rows(tmp_path / "run")[-1]["train/skipped_steps"] == len(NOT_FINITE)
