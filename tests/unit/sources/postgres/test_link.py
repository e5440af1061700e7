"""What never reaches a server: a connection string that libpq itself refuses."""

from __future__ import annotations

import pytest

from tailrace.errors import ConfigError
from tailrace.sources.postgres.link import Link


def test_a_connection_string_that_cannot_be_read_is_a_wrong_setting() -> None:
    """It would not heal by trying again."""
    with pytest.raises(ConfigError, match="no_such_option"):
        Link("host=127.0.0.1 no_such_option=1", replication=False, timeout=1)
