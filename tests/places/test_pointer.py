"""A pointer is read as it was written, and a better best of the same metric stays."""

import json

from dp_prior.places.pointer import LARGEST_POINTER, Pointer, movable
from tests.cases import every
from tests.messages import told

GOOD = {
    **{"folder": "checkpoints/step_00000001", "manifest_sha256": "0" * 64, "step": 1, "samples_seen": 10},
    **{"monitor": "loss", "mode": "min", "value": 0.5},
}


def test_a_pointer_comes_back_as_it_was_written():
    assert json.loads(Pointer.parse(json.dumps(GOOD).encode()).encode()) == GOOD
    assert Pointer.parse(json.dumps({**GOOD, "of a newer version": [1]}).encode()) == Pointer(**GOOD)


@every(
    change=[
        *({"step": value} for value in (-1, 1.5, "1", True, 10**400)),
        *({"samples_seen": value} for value in (-1, 0.5)),
        *({"value": value} for value in ("0.5", [1], 10**400)),
        *({"folder": value} for value in ("../x", "/etc", "checkpoints/../x", "checkpoints/step_1", "a/step_00000001")),
        {"folder": f"checkpoints/step_{'9' * 300}"},
        {"manifest_sha256": "0" * 63},
        {"mode": "least"},
    ]
)
def test_a_pointer_with_an_impossible_value_is_none(change):
    assert Pointer.parse(json.dumps({**GOOD, **change}).encode()) is None


@every(data=[b"", b"[" * 60_000, b"\xff", b'{"value": NaN}', b" " * (LARGEST_POINTER + 1)])
def test_what_is_no_pointer_is_none(data):
    assert Pointer.parse(data) is None


def test_a_best_is_compared_with_one_of_the_same_metric_alone():
    ours, there = Pointer(**GOOD), Pointer(**{**GOOD, "value": 0.25})
    both = ("latest", "best")
    kinds, remark = movable(both, ours, lambda kind: there)
    assert kinds == ("latest",) and "loss 0.25, here 0.5; it stays" in remark
    assert movable(("latest",), ours, lambda kind: there) == (("latest",), None)
    for better, worse in ((there, ours), (ours, ours), (ours, None)):
        assert movable(both, better, lambda kind, worse=worse: worse) == (both, None)
    for change in ({"monitor": "score"}, {"mode": "max"}, {"value": None}):
        assert movable(both, ours, lambda kind, change=change: Pointer(**{**GOOD, "value": 0.25, **change})) == (
            both,
            None,
        )


def test_a_latest_that_goes_back_moves_and_is_told_and_no_other_pointer_is_read():
    ours, further = (Pointer(**{**GOOD, "step": step}) for step in (5, 24))
    read = {"latest": further}
    kinds, remark = movable(("latest",), ours, read.__getitem__)
    assert kinds == ("latest",) and told(remark, "latest", "step 24", "here 5", "replaced", further.folder[-13:])
    assert movable(("latest",), further, {"latest": ours}.__getitem__) == (("latest",), None)
