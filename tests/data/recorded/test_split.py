import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp_prior.config import ConfigError
from dp_prior.data.recorded.split import SplitConfig


@settings(max_examples=200, deadline=None)
@given(
    n=st.integers(1, 300),
    shares=st.tuples(st.integers(1, 10), st.integers(0, 10), st.integers(0, 10)),
    seed=st.integers(0, 2**40),
    most=st.none() | st.integers(1, 50),
)
def test_parts_are_disjoint_cover_everything_and_train_is_never_empty(n, shares, seed, most):
    train, val, test = (share / sum(shares) for share in shares)
    split = SplitConfig(train=train, val=val, test=test, seed=seed, max_train_episodes=most).assign(n)
    everything = [*split.train, *split.val, *split.test, *split.dropped]
    assert sorted(everything) == list(range(n))
    assert 1 <= len(split.train) <= (most or n)
    assert all(part == sorted(part) for part in split.ids().values())
    if n > 20:
        assert abs(len(split.val) - val * n) <= 2 and abs(len(split.test) - test * n) <= 2
    assert bool(split.val) == (val > 0 and n > 1)
    if n > 2:
        assert bool(split.test) == (test > 0)


def test_dropped_train_episodes_go_nowhere_and_leave_val_and_test_alone():
    full = SplitConfig(train=0.8, val=0.1, test=0.1).assign(50)
    few = SplitConfig(train=0.8, val=0.1, test=0.1, max_train_episodes=7).assign(50)
    assert (few.val, few.test) == (full.val, full.test)
    assert len(few.train) == 7 and set(few.train) <= set(full.train)
    assert set(few.dropped) == set(full.train) - set(few.train)


def test_the_split_never_changes_between_versions():
    split = SplitConfig(train=0.6, val=0.2, test=0.2, seed=7).assign(10)
    assert split.ids() == {"train": [0, 2, 5, 6, 7, 9], "val": [3, 8], "test": [1, 4], "dropped": []}


@pytest.mark.parametrize(
    "change", [{"seed": 1}, {"train": 0.8, "val": 0.2}, {"val": 0.0, "test": 0.1}, {"max_train_episodes": 3}]
)
def test_every_knob_changes_the_split(change):
    assert SplitConfig(**change).assign(30) != SplitConfig().assign(30)


def test_fractions_that_do_not_sum_to_one_are_refused_with_the_sum():
    with pytest.raises(ConfigError, match=r"train 0.9 \+ val 0.2 \+ test 0 = 1.1; the fractions must sum to 1"):
        SplitConfig.from_json('{"train": 0.9, "val": 0.2}')


def test_a_sum_within_a_millionth_of_one_is_accepted():
    SplitConfig(train=0.9000004, val=0.1, test=0.0)


def test_no_episodes_cannot_be_split():
    with pytest.raises(ValueError, match="cannot split 0 episodes"):
        SplitConfig().assign(0)
