"""Which of librdkafka's settings a user may pass through, and which of their values contradict a guarantee.

Everything may be set except what exactly-once, order and completeness stand on: those are ours to set, and
a refusal says which guarantee would be lost. The check knows no list of valid names: librdkafka itself has
it.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic_core import PydanticCustomError

from tailrace.config.secrets import Secret, setting_secret

Setting = str | int | float | bool | Secret

TRANSACTION_TIMEOUT_MS = 60_000
MESSAGE_TIMEOUT_MS = 30_000
"""What the publisher uses when a user sets only one of the two."""

RESERVED = {
    "transactional.id": "it is the pipeline's name: with another one an old instance could not be fenced off",
    "enable.idempotence": "without it a retried send can appear twice, or out of order",
    "isolation.level": "the stored position must be read committed, or an aborted one would be believed",
    "bootstrap.servers": "the address has its own setting, kafka.bootstrap",
    "metadata.broker.list": "the address has its own setting, kafka.bootstrap",
    "acks": "anything but `all` can lose events that were reported as stored",
    "request.required.acks": "anything but `all` can lose events that were reported as stored",
    "delivery.report.only.error": "Tailrace itself listens for failed deliveries",
    "on_delivery": "Tailrace itself listens for failed deliveries",
    "error_cb": "Tailrace itself listens for errors",
    "client.id": "it is made of the pipeline's name, so that brokers can tell pipelines apart",
    "group.id": "no consumer group is used: the position is stored with the events",
}

_PLACE = ("kafka", "settings")
_TRANSACTION_TIMEOUT = "transaction.timeout.ms"
_MESSAGE_TIMEOUTS = ("message.timeout.ms", "delivery.timeout.ms")


def wrong(expected: str, remedy: str, *place: str) -> PydanticCustomError:
    """A broken setting, in the words that the user reads; `place` if it is not the one being checked."""
    return PydanticCustomError("tailrace", "{expected}", {"expected": expected, "remedy": remedy, "place": place})


def setting_name(name: str) -> str:
    """Refuses what is not the user's to set."""
    reason = RESERVED.get(name.lower())
    if reason is None and name.endswith("_cb"):
        reason = "it is a function, which a file cannot hold"
    if reason:
        hint = "use kafka.bootstrap instead" if "kafka.bootstrap" in reason else "remove it"
        raise wrong(f"nothing: Tailrace sets this itself, because {reason}", f"{hint} (kafka.settings)")
    return name


def setting_value(value: object) -> Setting:
    """Single values only: librdkafka knows no lists, and an empty line in YAML is most likely a slip."""
    if not isinstance(value, str | int | float | bool | Secret):
        raise wrong("a text, a number, true or false", "give one value; join several with commas")
    return value


def checked_settings(settings: dict[str, Setting], payload_bytes: int, *, transactional: bool) -> None:
    """Refuses values that contradict each other or a guarantee."""
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
    why = "so that a message that times out still finds a transaction to abort"
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
    """The same settings with everything secret wrapped; texts that are no secret stay as they are."""
    return {
        name: setting_secret(name, value) if isinstance(value, str | Secret) else value
        for name, value in settings.items()
    }


def revealed(settings: Mapping[str, Setting]) -> dict[str, str | int | float | bool]:
    """The same settings with secrets revealed: for a client library and nothing else."""
    return {name: value.reveal() if isinstance(value, Secret) else value for name, value in settings.items()}


def _number(settings: Mapping[str, Setting], name: str) -> int | None:
    value = settings.get(name)
    if value is None:
        return None
    try:
        return int(value.reveal() if isinstance(value, Secret) else value)
    except ValueError:
        raise wrong("a whole number", f"write {name} as a number, without units", *_PLACE, name) from None
