"""Which records of recorded data are refused, and which commits of data sets a stored record pins."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_prior.config import ConfigError
from dp_prior.data.recorded.records import good_key, pinned_commits
from dp_prior.data.recorded.selection import ACTION
from tests.data.recorded.trajectories import configure
from tests.messages import naming


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"obs": {}}, ("obs, embeddings, images, depth", "empty", "observations")),
        ({"obs": {"x": {"key": "state"}}}, ("name 'x'",)),
        ({"obs": {"observation.state": {"key": "state"}}}, ("name 'observation.state'",)),
        ({"action": {"key": "action", "slice": [2, 2]}}, ("[2, 2]", "empty", "expected 0 <=")),
        ({"action": {"key": "action", "slice": [-1, 2]}}, ("[-1, 2]", "negative")),
        ({"episodes": {"type": "hdf5", "path": "a"}}, ("'hdf5'", "'zarr', 'lerobot', 'robomimic', 'hdf5_groups'")),
        ({"batch_size": 0}, ("batch_size",)),
        ({"previous_action": "agent"}, ("previous_action", "'agent'", "another observation")),
        ({"previous_action": "action"}, ("previous_action", "'action'", "name of")),
        ({"previous_action": "a b"}, ("name 'a b'",)),
    ],
)
def test_a_wrong_configuration_is_refused_with_its_path(path, change, message):
    with pytest.raises(ConfigError, match=naming(*message)):
        configure(path, **change)


def test_a_name_is_letters_digits_and_dashes_and_not_that_of_the_action():
    assert [good_key(name) for name in ("a", "a-b_3", "é")] == ["a", "a-b_3", "é"]
    for name in (ACTION, "", "a b", "a.b", "a/b", "a\n"):
        with pytest.raises(ValueError, match=naming(repr(name), "letters", '"key"')):
            good_key(name)


def test_commits_are_pinned_by_repository_in_one_set_or_several():
    pinned, local, open_end = (
        {"type": "lerobot", "repo": "me/a", "revision": "c0ffee"},
        {"type": "npz", "path": "a.npz"},
        {"type": "lerobot", "repo": "me/b", "revision": None},
    )
    other = {"type": "lerobot", "repo": "me/c", "revision": "beef"}
    assert pinned_commits({"episodes": pinned}) == {"me/a": "c0ffee"}
    sets = {name: {"episodes": record} for name, record in enumerate((pinned, local, open_end, other))}
    assert pinned_commits({"sets": sets}) == {"me/a": "c0ffee", "me/c": "beef"}


json_values = st.recursive(
    st.none() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["episodes", "sets", "repo", "revision"]), inner),
)


@given(json_values)
def test_any_stored_document_is_read_for_commits(document):
    """A configuration of another version, or of another kind of data, pins nothing and is no error."""
    assert all(pinned_commits(document).items())
