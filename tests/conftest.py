"""A list of plugins: each fixture file holds one kind of help."""

import os
import signal
from pathlib import Path

import hypothesis
import pytest

# Absolute times mean nothing on a busy machine.
hypothesis.settings.register_profile("tailrace", deadline=None)
hypothesis.settings.load_profile("tailrace")

pytest.register_assert_rewrite("helpers.store_contract", "helpers.store_contract_records", "helpers.store_scenarios")

pytest_plugins = [
    "helpers.positions",
    "helpers.order",
    "helpers.stack",
    "helpers.command",
    "helpers.service",
    "helpers.shop",
    "helpers.users",
    "helpers.parking",
    "helpers.projection",
]

if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    # Tests start hundreds of processes, and each would compile everything anew: a fifth of its start.
    os.environ.setdefault("PYTHONPYCACHEPREFIX", str(Path(__file__).parents[1] / ".pytest_cache" / "bytecode"))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # So a shell starts a job in the background, and all its children inherit it: none would end by Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
