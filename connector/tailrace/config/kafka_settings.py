"""Validates the librdkafka settings of a user.

Users may set everything except the settings that exactly-once, order and completeness depend on; the error names the
guarantee that would be lost. Whether a name is valid is left to librdkafka.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic_core import PydanticCustomError

from tailrace.config.secrets import Secret, setting_secret

Setting = str | int | float | bool | Secret

TRANSACTION_TIMEOUT_MS = 60_000
MESSAGE_TIMEOUT_MS = 30_000
"""The defaults of the publisher."""

RESERVED = {
    "transactional.id": "it is the pipeline's name: with another value an old instance could not be fenced",
    "enable.idempotence": "without it a retried send can be duplicated or reordered",
    "isolation.level": "the stored position must be read with read_committed, or an aborted one would be used",
    "bootstrap.servers": "the address has its own setting, kafka.bootstrap",
    "metadata.broker.list": "the address has its own setting, kafka.bootstrap",
    "acks": "values other than `all` can lose acknowledged events",
    "request.required.acks": "values other than `all` can lose acknowledged events",
    "delivery.report.only.error": "Tailrace handles failed deliveries itself",
    "on_delivery": "Tailrace handles failed deliveries itself",
    "error_cb": "Tailrace handles errors itself",
    "client.id": "it contains the pipeline's name, so that brokers can distinguish pipelines",
    "group.id": "there is no consumer group: the position is stored with the events",
}

_PLACE = ("kafka", "settings")
_TRANSACTION_TIMEOUT = "transaction.timeout.ms"
_MESSAGE_TIMEOUTS = ("message.timeout.ms", "delivery.timeout.ms")


def wrong(expected: str, remedy: str, *place: str) -> PydanticCustomError:
    """Creates the error for an invalid setting; `place` if it is not the one being validated."""
    return PydanticCustomError("tailrace", "{expected}", {"expected": expected, "remedy": remedy, "place": place})


def setting_name(name: str) -> str:
    """Refuses reserved settings."""
    reason = RESERVED.get(name.lower())
    if reason is None and name.endswith("_cb"):
        reason = "it is a function, which cannot be written in a file"
    if reason:
        hint = "use kafka.bootstrap instead" if "kafka.bootstrap" in reason else "remove it"
        raise wrong(f"nothing: Tailrace sets this itself, because {reason}", f"{hint} (kafka.settings)")
    return name


def setting_value(value: object) -> Setting:
    """Refuses lists, which librdkafka does not have, and empty values, which are most likely mistakes."""
    if not isinstance(value, str | int | float | bool | Secret):
        raise wrong("a text, a number, true or false", "write one value; join several with commas")
    return value


def checked_settings(settings: dict[str, Setting], payload_bytes: int, *, transactional: bool) -> None:
    """Refuses values that contradict each other or break a guarantee."""
    if str(settings.get("partitioner", "")).lower() == "random":
        raise wrong(
            "a partitioner that respects the key",
            "remove it: `random` would break the order per key",
            *_PLACE,
            "partitioner",
        )
    room = _number(settings, "message.max.bytes")
    if room is not None and room < payload_bytes:
        raise wrong(
            f"at least limits.payload_bytes ({payload_bytes})",
            "raise message.max.bytes, or lower limits.payload_bytes",
            *_PLACE,
            "message.max.bytes",
        )
    if transactional:
        _check_timeouts(settings)


def _check_timeouts(settings: dict[str, Setting]) -> None:
    transaction = _number(settings, _TRANSACTION_TIMEOUT)
    limit = TRANSACTION_TIMEOUT_MS if transaction is None else transaction
    why = "so that a message times out before its transaction"
    numbers = {name: _number(settings, name) for name in _MESSAGE_TIMEOUTS}
    for name, number in numbers.items():
        if number is not None and (number == 0 or number >= limit):  # 0 means for ever
            raise wrong(
                f"less than {_TRANSACTION_TIMEOUT} ({settings.get(_TRANSACTION_TIMEOUT, limit)}), {why}",
                f"lower {name}, or raise {_TRANSACTION_TIMEOUT}",
                *_PLACE,
                name,
            )
    if not any(numbers.values()) and limit <= MESSAGE_TIMEOUT_MS:
        raise wrong(
            f"more than message.timeout.ms ({MESSAGE_TIMEOUT_MS} unless set), {why}",
            f"raise {_TRANSACTION_TIMEOUT}, or set message.timeout.ms below it",
            *_PLACE,
            _TRANSACTION_TIMEOUT,
        )


def hidden_settings(settings: Mapping[str, Setting]) -> dict[str, Setting]:
    """Wraps the secret settings."""
    return {
        name: setting_secret(name, value) if isinstance(value, str | Secret) else value
        for name, value in settings.items()
    }


def revealed(settings: Mapping[str, Setting]) -> dict[str, str | int | float | bool]:
    """Returns the settings with secrets revealed, only for a client library."""
    return {name: value.reveal() if isinstance(value, Secret) else value for name, value in settings.items()}


def _number(settings: Mapping[str, Setting], name: str) -> int | None:
    value = settings.get(name)
    if value is None:
        return None
    try:
        return int(value.reveal() if isinstance(value, Secret) else value)
    except ValueError:
        raise wrong("a whole number", f"write {name} as a number, without units", *_PLACE, name) from None
