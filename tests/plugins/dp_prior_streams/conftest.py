from types import SimpleNamespace

import pytest


@pytest.fixture(autouse=True)
def arrivals_end_with_the_test(monkeypatch):
    """Parts arrive ahead until the process ends: of a test's data sets, until the test does."""
    from dp_prior_streams import arrivals

    threads = []
    monkeypatch.setattr(arrivals, "atexit", SimpleNamespace(register=lambda *ending: threads.append(ending)))
    yield
    for end, thread in threads:
        end(thread)
        assert not thread.is_alive()


@pytest.fixture(scope="session")
def numbers_set(tmp_path_factory):
    """A data set of 64 tables, which no test changes."""
    from tests.plugins.dp_prior_streams.recorded_sets import write_v3

    return write_v3(tmp_path_factory.mktemp("streams") / "set", files=64)


@pytest.fixture(scope="session")
def small_set(tmp_path_factory):
    """A data set of 12 tables, which no test changes."""
    from tests.plugins.dp_prior_streams.recorded_sets import write_v3

    return write_v3(tmp_path_factory.mktemp("streams") / "small", files=12, episodes_per_file=2)


@pytest.fixture
def in_groups(monkeypatch):
    """Mapped numbers are read in groups of few rows."""
    from dp_prior_streams import mapped_numbers

    monkeypatch.setattr(mapped_numbers, "memory_bytes", lambda: mapped_numbers.GROUP_PARTS * 30_000)
