"""Structured log lines: an event name with fields such as names, counts and positions; no payloads, no secrets (I12).

Plain lines for people and JSON lines with `--log-json`, both to stderr and both masked.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from tailrace.config.secrets import mask

SENTENCES = ("what", "why", "remedy")
"""Fields of an error that get a line each."""

_logger = logging.getLogger("tailrace")


class StructuredLogger:
    """Logs events; the bound fields are added to each of them."""

    def __init__(self, **bound: object) -> None:
        self._bound = bound

    def debug(self, event: str, **fields: object) -> None:
        self._write(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: object) -> None:
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        self._write(logging.WARNING, event, fields)

    def error(self, event: str, **fields: object) -> None:
        self._write(logging.ERROR, event, fields)

    def _write(self, level: int, event: str, fields: dict[str, object]) -> None:
        given = {name: value for name, value in fields.items() if value != ""}
        _logger.log(level, event, extra={"fields": {**self._bound, **given}})


class _Lines(logging.Formatter):
    """`12:00:01.123 info    running  pipeline=orders position=0/19602D8`; errors with a line for each of SENTENCES."""

    def format(self, record: logging.LogRecord) -> str:
        fields = _fields(record)
        sentences = {name: fields[name] for name in SENTENCES if name in fields and record.levelno >= logging.ERROR}
        shown = " ".join(f"{name}={_plain(value)}" for name, value in fields.items() if name not in sentences)
        lines = "".join(f"\n  {name + ':':<7} {value}" for name, value in sentences.items())
        return mask(
            f"{_time(record):%H:%M:%S.%f}"[:12] + f" {record.levelname.lower():7} {record.getMessage()}  {shown}{lines}"
        )


class _Json(logging.Formatter):
    """One JSON object per line. Values are masked before encoding, because escaping could hide a secret."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": _time(record).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **_fields(record),
        }
        return json.dumps({name: mask(value) if isinstance(value, str) else value for name, value in line.items()})


def configure(*, as_json: bool) -> None:
    """Sets up logging for the process. librdkafka's own log is off: its errors arrive as exceptions."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if as_json else _Lines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    _logger.setLevel(logging.INFO)
    logging.getLogger("librdkafka").setLevel(logging.CRITICAL + 1)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return getattr(record, "fields", {})


def _time(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _plain(value: object) -> str:
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if not text or " " in text or "\n" in text else text
