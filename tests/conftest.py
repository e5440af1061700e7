"""Settings of the test run, and the list of helpers with fixtures."""

import os
import signal
from pathlib import Path

import hypothesis
import pytest

from tailrace.config import secrets

# Absolute times depend on the load of the machine. `make test-oldest` runs the thorough profile.
hypothesis.settings.register_profile("tailrace", deadline=None, max_examples=40)
hypothesis.settings.register_profile("thorough", deadline=None)
hypothesis.settings.load_profile("tailrace")

pytest.register_assert_rewrite("helpers.store_contract", "helpers.store_contract_records", "helpers.store_scenarios")

pytest_plugins = [
    "helpers.temp_folder",
    "helpers.order",
    "helpers.docker",
    "helpers.failure_logs",
    "helpers.stack",
    "helpers.command",
    "helpers.service",
    "helpers.shop",
    "helpers.users",
    "helpers.parking",
    "helpers.projection",
    "helpers.agent_apps",
    "helpers.worker",
    "helpers.connect",
    "helpers.doctor",
]

if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    # Tests start hundreds of processes. Without bytecode each would compile all modules: a fifth of its start.
    os.environ.setdefault("PYTHONPYCACHEPREFIX", str(Path(__file__).parents[1] / ".pytest_cache" / "bytecode"))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Shells start background jobs like this, and children inherit it: Ctrl-C would end none of them.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _own_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test masks only its own secrets: some of them are ordinary words."""
    monkeypatch.setattr(secrets, "_known", set[str]())
    monkeypatch.setattr(secrets, "_pattern", None)
