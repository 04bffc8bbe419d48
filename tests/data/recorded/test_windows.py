import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dp_prior.data.columns.joined import join
from dp_prior.data.columns.memory import MemoryColumn
from dp_prior.data.recorded.windows import WindowRows, make_windows, thinned
from dp_prior.data.samples.over_columns import Samples
from tests.examples import examples
from tests.messages import naming


def brute_force(lengths, horizon, pad_before, pad_after):
    """Per window: the step of the data set at each position, and which are real."""
    found, start = [], 0
    for length in lengths:
        offsets = range(-pad_before, length - horizon + pad_after + 1)
        for offset in offsets or [-pad_before]:
            steps = range(offset, offset + horizon)
            rows = [start + min(max(step, 0), length - 1) for step in steps]
            found.append((rows, [0 <= step < length for step in steps]))
        start += length
    return found


@st.composite
def window_problems(draw):
    horizon = draw(st.integers(1, 8))
    pads = st.integers(0, horizon - 1)
    return draw(st.lists(st.integers(1, 20), max_size=6)), horizon, draw(pads), draw(pads)


@examples(300)
@given(window_problems())
def test_windows_equal_the_brute_force_version(problem):
    lengths, horizon, *_ = problem
    windows, expected = make_windows(np.array(lengths, dtype=np.int64), *problem[1:]), brute_force(*problem)
    assert len(windows) == len(expected)
    for first, (rows, is_real) in zip(windows.first, expected, strict=True):
        assert windows.source[first : first + horizon].tolist() == rows
        assert windows.is_real[first : first + horizon].tolist() == is_real
    assert windows.valid_counts.tolist() == [sum(is_real) for _, is_real in expected]
    assert (windows.valid_counts >= 1).all()


@examples(200)
@given(window_problems())
def test_windows_equal_the_published_sampler_where_it_keeps_the_episode(problem):
    """Diffusion Policy's index table has four columns: buffer start and stop, sample start and stop."""
    lengths, horizon, pad_before, pad_after = problem
    expected, start = [], 0
    for length in lengths:
        for offset in range(-pad_before, length - horizon + pad_after + 1):
            begin, end = max(offset, 0), min(offset + horizon, length)
            expected.append((start + begin, start + end, begin - offset, horizon - (offset + horizon - end)))
        start += length
    windows = make_windows(np.array(lengths, dtype=np.int64), horizon, pad_before, pad_after)
    found, ends = [], np.cumsum(lengths)
    for first in windows.first:
        (inside,) = np.nonzero(windows.is_real[first : first + horizon])
        begin, last = windows.source[first + inside[[0, -1]]].tolist()
        if lengths[np.searchsorted(ends, begin, side="right")] + pad_before + pad_after >= horizon:
            found.append((begin, last + 1, int(inside[0]), int(inside[-1]) + 1))
    assert found == expected


def test_every_step_lies_among_the_padded_rows_exactly_once_as_real():
    windows = make_windows(np.array([1, 5, 30]), horizon=16, pad_before=1, pad_after=7)
    assert windows.source[windows.is_real].tolist() == list(range(36))


def test_window_before_first_frame_repeats_it_and_is_masked():
    windows = make_windows(np.array([4]), horizon=4, pad_before=1, pad_after=0)
    assert windows.source[windows.first[0] :][:4].tolist() == [0, 0, 1, 2]
    assert windows.is_real[windows.first[0] :][:4].tolist() == [False, True, True, True]


def test_an_episode_shorter_than_any_window_gets_one_padded_window():
    windows = make_windows(np.array([2]), horizon=8, pad_before=1, pad_after=1)
    assert len(windows) == 1
    assert windows.source.tolist() == [0, 0, 1, 1, 1, 1, 1, 1]
    assert windows.valid_counts.tolist() == [2]


@pytest.mark.parametrize(("horizon", "before", "after"), [(0, 0, 0), (4, 4, 0), (4, 0, 4), (4, -1, 0)])
def test_impossible_padding_is_refused(horizon, before, after):
    with pytest.raises(ValueError, match=naming(f"{horizon} steps", before, after)):
        make_windows(np.array([3]), horizon, before, after)


@examples(60)
@given(st.lists(st.integers(1, 13), min_size=1, max_size=5), st.integers(1, 5))
def test_thinned_episodes_are_those_of_a_slice_with_a_step(lengths, stride):
    ends = np.cumsum(lengths)
    rows, found = thinned(ends - lengths, np.array(lengths), stride)
    expected = [
        np.arange(end - length, end)[phase::stride]
        for end, length in zip(ends, lengths, strict=True)
        for phase in range(stride)
    ]
    expected = [one for one in expected if len(one)]
    assert found.tolist() == [len(one) for one in expected]
    assert rows.tolist() == np.concatenate(expected).tolist() and sorted(rows) == list(range(ends[-1]))


def samples_of(lengths, seed):
    windows = make_windows(np.array(lengths), 6, 1, 3)
    values = torch.from_numpy(np.random.default_rng(seed).normal(size=(sum(lengths), 2)))[windows.source]
    return Samples({"x": MemoryColumn(values), "seen": MemoryColumn(-values)}, WindowRows.of(windows, 2))


def test_the_windows_of_two_sets_are_those_of_each_one_after_another():
    parts = [samples_of((4, 9, 2), 0), samples_of((7, 3), 1)]
    columns = {key: join([part.columns[key] for part in parts]) for key in ("x", "seen")}
    joined = Samples(columns, WindowRows.joined([part.rows for part in parts]))
    assert len(joined) == len(parts[0]) + len(parts[1])
    found = joined.fetch(torch.arange(len(joined)))
    each = [part.fetch(torch.arange(len(part))) for part in parts]
    assert torch.equal(found.x, torch.cat([one.x for one in each]))
    assert torch.equal(found.cond["seen"], -found.x[:, :2])
    assert torch.equal(found.mask, torch.cat([one.mask for one in each]))
    assert joined.count_valid(torch.arange(len(joined))) == int(found.mask.sum())


def test_the_mask_is_true_everywhere_where_padding_is_trained_on():
    windows = make_windows(np.array([4, 9]), 6, 1, 3)
    rows = WindowRows.of(windows, 2, mask_padding=False)
    ids = torch.arange(len(rows))
    assert rows.mask(rows.begins).all() and rows.count_valid(ids) == 6 * len(rows)
    assert not WindowRows.of(windows, 2).mask(rows.begins).all()
