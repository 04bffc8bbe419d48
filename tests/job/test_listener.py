"""Where a server listens, and what is refused."""

import pytest

from dp_prior.config import ConfigError
from dp_prior.job.listener import bind


def test_addresses():
    with pytest.raises(ConfigError, match=r"other machines could reach '0\.0\.0\.0'; stay at home"):
        bind("0.0.0.0", 0, is_protected=False, remedy="stay at home")
    bind("0.0.0.0", 0, is_protected=True).close()
    with (
        bind("localhost", 0, is_protected=False) as taken,
        pytest.raises(ConfigError, match="is in use by another pro"),
    ):
        bind("localhost", taken.getsockname()[1], is_protected=False)
    with pytest.raises(ConfigError, match="'no such host' is no address"):
        bind("no such host", 0, is_protected=False)
    with pytest.raises(ConfigError, match=r"'192\.168\.\.1' is no address"):
        bind("192.168..1", 0, is_protected=True)
    with pytest.raises(ConfigError, match="cannot be used: Cannot assign requested address"):
        bind("192.0.2.1", 0, is_protected=True)
