"""Conditions by index: in turn from a file or a data set, with labels given or drawn."""

import errno
import os

import numpy as np
import pytest
import torch

from dp_prior.config import ConfigError
from dp_prior.data.errors import UnreadableError
from dp_prior.tensors.batch import LABEL, Spec
from dp_prior_lab import conditions
from dp_prior_lab.conditions import Conditions, ConditionsFile, Labelled
from tests.messages import naming

SPEC = Spec(
    x_shape=(3,), cond_shapes={"state": (2,), LABEL: ()}, kinds={LABEL: "label"}, classes={LABEL: ("cat", "dog")}
)
ROWS = {"state": np.arange(6.0).reshape(3, 2), LABEL: np.array([0, 1, 1])}


def written(tmp_path, **changes):
    np.savez(tmp_path / "given.npz", **{**ROWS, **changes})
    return tmp_path / "given.npz"


def test_rows_of_a_file_repeat_in_turn_with_the_types_of_the_model(tmp_path):
    given, ids = ConditionsFile(written(tmp_path), SPEC), torch.tensor([0, 5, 301])
    found = given.rows(ids)
    np.testing.assert_array_equal(found["state"], ROWS["state"][ids.numpy() % 3])
    assert found["state"].dtype == torch.float32 and found[LABEL].dtype == torch.int64
    assert torch.equal(given.labels(ids), found[LABEL])
    assert given.identity == ConditionsFile(written(tmp_path), SPEC).identity
    assert given.identity != ConditionsFile(written(tmp_path, state=ROWS["state"] + 1), SPEC).identity


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"state": np.zeros((3, 4))}, "(3, 4)"),
        ({"state": np.zeros((2, 2))}, "one m"),
        ({"state": np.zeros((0, 2)), LABEL: np.zeros(0)}, "above 0"),
        ({"goal": np.zeros((3, 2))}, "goal"),
        ({"state": np.full((3, 2), "a")}, "<U1"),
        ({LABEL: np.array([0, 1, 2])}, "0 to 1"),
    ],
)
def test_a_file_that_holds_other_conditions_is_refused_by_its_name_with_what_is_expected(changes, word, tmp_path):
    with pytest.raises(ConfigError) as caught:
        ConditionsFile(written(tmp_path, **changes), SPEC)
    assert "given.npz" in str(caught.value) and word in str(caught.value)


@pytest.mark.parametrize("dtype", [">f4", np.longdouble, np.float16, np.uint16, ">i8", np.int8])
def test_numbers_of_any_type_are_read(dtype, tmp_path):
    given = ConditionsFile(written(tmp_path, state=ROWS["state"].astype(dtype), label=ROWS[LABEL].astype(dtype)), SPEC)
    assert given.rows(torch.arange(3))["state"].tolist() == ROWS["state"].tolist()
    assert given.labels(torch.arange(3)).tolist() == ROWS[LABEL].tolist()


@pytest.mark.parametrize(
    ("kind", "value", "named"),
    [
        ("vector", np.nan, ("nan", "finite")),
        ("vector", 1e300, ("1e+300", "finite")),
        ("image", 0.5, (0.5, "0 to 255")),
        ("image", 256, (256, "0 to 255")),
        ("image", -1, (-1, "0 to 255")),
        ("image", np.nan, ("nan", "0 to 255")),
        ("tokens", 0.5, (0.5, "whole")),
    ],
)
def test_numbers_that_the_type_of_a_condition_does_not_hold_are_refused(kind, value, named, tmp_path):
    spec, shape = Spec(x_shape=(3,), cond_shapes={"state": (2, 2, 3)}, kinds={"state": kind}), (4, 2, 2, 3)
    given = np.zeros(shape, np.result_type(type(value)))
    np.savez(tmp_path / "given.npz", state=given)
    assert not ConditionsFile(tmp_path / "given.npz", spec).rows(torch.arange(4))["state"].any()
    given[2, 1, 1, 0] = value
    np.savez(tmp_path / "given.npz", state=given)
    with pytest.raises(ConfigError, match=naming("--conditions", "state", "row 2", *named)):
        ConditionsFile(tmp_path / "given.npz", spec)


def test_what_stands_for_no_point_of_a_cloud_may_be_given(tmp_path):
    spec = Spec(x_shape=(3,), cond_shapes={"state": (2, 2, 3)}, kinds={"state": "points"})
    np.savez(tmp_path / "given.npz", state=np.full((4, 2, 2, 3), np.nan))
    assert ConditionsFile(tmp_path / "given.npz", spec).rows(torch.arange(4))["state"].isnan().all()


def test_a_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "text.npz").write_text("no arrays")
    with pytest.raises(ConfigError, match=naming("--conditions", "text.npz", ".npz")):
        ConditionsFile(tmp_path / "text.npz", SPEC)


def test_the_labels_of_many_samples_need_no_memory_for_their_other_conditions(tmp_path, monkeypatch):
    given, ids = ConditionsFile(written(tmp_path), SPEC), torch.arange(7)
    expected = given.rows(ids)[LABEL]
    monkeypatch.setitem(given._arrays, "state", None)  # which has no rows
    assert torch.equal(given.labels(ids), expected)


def test_an_array_without_a_name_is_refused_with_the_names_to_save_it_by(tmp_path):
    np.save(tmp_path / "given.npy", ROWS["state"])
    with pytest.raises(
        ConfigError, match=naming("--conditions", "given.npy", ".npy", "numpy.savez", "['state', 'label']")
    ):
        ConditionsFile(tmp_path / "given.npy", SPEC)


def test_a_damaged_file_is_refused_whichever_byte_it_is(tmp_path):
    path = tmp_path / "given.npz"
    np.savez_compressed(path, **ROWS)
    content, refused = path.read_bytes(), 0
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :])
        try:
            ConditionsFile(path, SPEC)
        except ConfigError as error:
            assert str(path) in str(error)
            refused += 1
    assert refused > len(content) / 3


def test_a_file_for_which_there_is_no_memory_is_told_as_such(tmp_path, monkeypatch):
    def refused(*arguments):
        raise MemoryError

    path = written(tmp_path)
    monkeypatch.setattr(conditions, "load_npz", refused)
    with pytest.raises(UnreadableError, match=naming(path, os.strerror(errno.ENOMEM))):
        ConditionsFile(path, SPEC)


def test_the_identity_is_that_of_the_rows_though_the_file_is_replaced_meanwhile(tmp_path, monkeypatch):
    path = written(tmp_path)
    expected = ConditionsFile(path, SPEC)
    load = conditions.load_npz

    def replaced(source):
        written(tmp_path, state=ROWS["state"] + 1)
        return load(source)

    monkeypatch.setattr(conditions, "load_npz", replaced)
    given, ids = ConditionsFile(path, SPEC), torch.arange(3)
    assert given.identity == expected.identity
    assert torch.equal(given.rows(ids)["state"], expected.rows(ids)["state"])


def test_labels_by_name_and_number_are_given_in_turn_beside_the_other_conditions(tmp_path):
    ids = torch.arange(5)
    labelled = Labelled(ConditionsFile(written(tmp_path), SPEC), ("cat", "dog"), ("dog", "0", "1"), seed=0)
    assert labelled.labels(ids).tolist() == [1, 0, 1, 1, 0] == labelled.rows(ids)[LABEL].tolist()
    np.testing.assert_array_equal(labelled.rows(ids)["state"], ROWS["state"][ids.numpy() % 3])
    assert labelled.identity["labels"] == [1, 0, 1] and "conditions" in labelled.identity
    with pytest.raises(ConfigError, match=naming("--labels", "'cow'", "0 to 1", "['cat', 'dog']")):
        Labelled(Conditions(), ("cat", "dog"), ("cow",), seed=0)


def test_a_drawn_label_is_a_function_of_seed_and_index_and_all_classes_are_as_frequent():
    drawn = Labelled(Conditions(), ("a", "b", "c"), (), seed=1)
    whole = drawn.labels(torch.arange(3000))
    assert torch.equal(drawn.labels(torch.arange(100, 200)), whole[100:200])
    assert not torch.equal(Labelled(Conditions(), ("a", "b", "c"), (), seed=2).labels(torch.arange(3000)), whole)
    assert (whole.bincount() - 1000).abs().max() < 150  # five standard deviations
    assert Conditions().rows(torch.arange(2)) == {} and Conditions().labels(torch.arange(2)) is None
