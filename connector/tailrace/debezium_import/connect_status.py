"""Asks Kafka Connect whether a connector is stopped."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request

from tailrace.errors import ConfigError, DebeziumRunning

TIMEOUT = 10.0
STOPPED = "STOPPED"


def require_stopped(url: str, connector: str) -> None:
    """Raises DebeziumRunning unless the connector is stopped or deleted.

    A paused connector keeps reading the database, and a failed task may be restarted at any time.
    """
    state = connector_state(url, connector)
    if state not in (None, STOPPED):
        raise DebeziumRunning(
            f"the connector {connector} is {state}",
            why="Only a stopped or deleted connector publishes nothing more: a paused one still reads, and a failed "
            "one may be restarted, also by a rebalance.",
            remedy=f"curl -X PUT {stop_path(url, connector)} ; then try again. Nothing was changed.",
        )


def stop_path(url: str, connector: str) -> str:
    return f"{url.rstrip('/')}/connectors/{urllib.parse.quote(connector, safe='')}/stop"


def connector_state(url: str, connector: str) -> str | None:
    """Returns the state of a connector; None if there is none of this name."""
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"--connect {url} is not an address", remedy="Write it like http://connect:8083.")
    address = f"{stop_path(url, connector).removesuffix('/stop')}/status"
    try:
        with urllib.request.urlopen(address, timeout=TIMEOUT) as answer:  # noqa: S310 - checked above
            return str(json.load(answer)["connector"]["state"])
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise _unclear(url, f"it answered {error.code}") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _unclear(url, str(error)) from None


def _unclear(url: str, why: str) -> DebeziumRunning:
    return DebeziumRunning(
        f"Kafka Connect at {url} does not say whether the connector is stopped",
        why=why,
        remedy="Try again. If all workers of this Connect cluster have ended, use --stopped instead of --connect.",
    )
