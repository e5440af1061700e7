"""Who moved a position back, also for a user without a name."""

from __future__ import annotations

import getpass
import os

import pytest

from tailrace.replay.reset import _user


@pytest.mark.parametrize("error", [KeyError("uid not found"), OSError("no username")])
def test_a_user_without_a_name_is_named_by_its_number(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def unknown() -> str:
        raise error

    monkeypatch.setattr(getpass, "getuser", unknown)
    assert _user() == str(os.getuid())
