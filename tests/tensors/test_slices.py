"""Slices of a vector against the elements that they name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from dp_prior.tensors.slices import Slice, covering, slice_faults
from tests.messages import naming

SLICES = st.tuples(st.integers(0, 12), st.integers(1, 5)).map(lambda pair: (pair[0], sum(pair)))


@given(st.lists(SLICES, max_size=4, unique=True), st.none() | st.integers(1, 20))
def test_faults_are_found_exactly_where_an_element_is_named_twice_or_is_not_there(slices, width):
    named = [element for start, stop in slices for element in range(start, stop)]
    is_wrong = len(set(named)) < len(named) or (width is not None and any(element >= width for element in named))
    faults = list(slice_faults(slices, width))
    assert bool(faults) == is_wrong
    assert all(any(str(list(one)) in fault for one in slices) for fault in faults)


@given(st.lists(SLICES, max_size=4, unique=True), st.integers(0, 5))
def test_the_parts_cover_every_element_once_with_the_value_of_its_slice(slices, more):
    kept = []
    for one in sorted(slices):
        if not list(slice_faults([*kept, one])):
            kept.append(one)
    width = max([stop for _, stop in kept], default=0) + more
    parts = covering({one: f"slice {one}" for one in kept}, width, "other")
    found = [value for start, stop, value in parts for _ in range(start, stop)]
    inside = {element: f"slice {one}" for one in kept for element in range(*one)}
    assert found == [inside.get(element, "other") for element in range(width)]
    assert all(start < stop for start, stop, _ in parts)


@pytest.mark.parametrize("value", [(0, 0), (3, 2), (-1, 2), (-3, -1)])
def test_an_empty_or_negative_slice_is_refused_with_its_ends(value):
    with pytest.raises(ValidationError, match=naming(f"[{value[0]}, {value[1]}]", 1, "_in_order()")):
        TypeAdapter(Slice).validate_python(value)
    assert TypeAdapter(Slice).validate_python((0, 1)) == (0, 1)
