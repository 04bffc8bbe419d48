import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dp_prior.tensors.normalizer import Statistics
from dp_prior_streams.statistics_pass import KeyStatistics, PassResult
from tests.examples import examples


@examples(60)
@given(
    count=st.integers(1, 700),
    width=st.integers(1, 3),
    cuts=st.lists(st.integers(0, 700), max_size=5),
    seed=st.integers(0, 99),
    offset=st.sampled_from([0.0, 1e4]),
)
def test_statistics_of_pieces_are_those_of_the_whole(count, width, cuts, seed, offset):
    values = (np.random.default_rng(seed).standard_normal((count, width)) + offset).astype("f4")
    statistics = KeyStatistics(count, (width,))
    for piece in np.split(values, sorted(min(cut, count) for cut in cuts)):
        statistics.add(piece)
    result, expected = statistics.result(), Statistics.of(values)
    assert result.count == count
    for field in ("min", "max", "q01", "q99"):
        assert np.array_equal(getattr(result, field), getattr(expected, field)), field
    assert np.allclose(result.mean, expected.mean, rtol=1e-13) and np.allclose(result.std, expected.std, rtol=1e-9)
    document = PassResult({"x": result}, {"x": "0"}, ["a warning"])
    assert b"a warning" in document.encoded()


def test_the_tails_hold_a_hundredth_of_the_values():
    statistics = KeyStatistics(10_000, (1,))
    for piece in np.split(np.arange(10_000.0)[:, None], 100):
        statistics.add(piece)
    assert len(statistics._low) == len(statistics._high) == 102
