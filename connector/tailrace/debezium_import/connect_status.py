"""Asks Kafka Connect whether a connector is stopped, and its tasks have ended."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.parse
import urllib.request

from tailrace.errors import ConfigError, DebeziumRunning

TIMEOUT = 10.0
WAIT_SECONDS = 0.5
STOPPED = "STOPPED"


def require_stopped(url: str, connector: str, seconds: float = 0.0) -> None:
    """Raises DebeziumRunning unless the connector is stopped, and has no task any more.

    A paused connector keeps reading the database, and a failed task may be restarted at any time. The tasks of a
    stopped connector may still end: waits up to `seconds` for them.
    """
    deadline = time.monotonic() + seconds
    while True:
        state, tasks = connector_state(url, connector)
        if state == STOPPED and not tasks:
            return
        if state != STOPPED or time.monotonic() >= deadline:
            break
        time.sleep(WAIT_SECONDS)
    shown = "".join(f", its task {number} is {task}" for number, task in tasks.items())
    raise DebeziumRunning(
        f"the connector {connector} is {state}{shown}",
        why="Only a stopped connector without tasks publishes nothing more: a paused one still reads, and a failed "
        "one may be restarted, also by a rebalance.",
        remedy=f"curl -X PUT {stop_path(url, connector)} ; then try again. Nothing was changed.",
    )


def stop_path(url: str, connector: str) -> str:
    return f"{url.rstrip('/')}/connectors/{urllib.parse.quote(connector, safe='')}/stop"


def connector_state(url: str, connector: str) -> tuple[str, dict[int, str]]:
    """Returns the states of a connector and of its tasks; raises DebeziumRunning if they are not known."""
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"--connect {url} is not an address", remedy="Write it like http://connect:8083.")
    address = f"{stop_path(url, connector).removesuffix('/stop')}/status"
    try:
        with urllib.request.urlopen(address, timeout=TIMEOUT) as answer:  # noqa: S310 - checked above
            found = json.load(answer)
            return str(found["connector"]["state"]), {int(task["id"]): str(task["state"]) for task in found["tasks"]}
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 404:
            raise DebeziumRunning(
                f"Kafka Connect at {url} has no connector {connector}",
                why="It may be deleted, have another name, or run in another Connect cluster.",
                remedy="Check the address and the name in the configuration. If the connector is deleted, use "
                "--stopped instead of --connect. Nothing was changed.",
            ) from None
        raise _unclear(url, f"it answered {error.code}") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _unclear(url, str(error)) from None


def _unclear(url: str, why: str) -> DebeziumRunning:
    return DebeziumRunning(
        f"Kafka Connect at {url} does not say whether the connector is stopped",
        why=why,
        remedy="Try again. If all workers of this Connect cluster have ended, use --stopped instead of --connect.",
    )
