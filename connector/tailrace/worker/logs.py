"""Structured log lines: an event name with fields such as names, counts and positions; no payloads, no secrets (I12).

Lines for people on a terminal, one JSON object per line elsewhere, both to stderr and both masked. Levels can be
changed while the process runs; they have the names that Kafka Connect's REST API uses.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
from datetime import UTC, datetime
from typing import Any

from tailrace.config.secrets import mask
from tailrace.errors import ConfigError

SENTENCES = ("what", "why", "remedy")
"""Fields of an error that get a line each."""
FORMAT_VARIABLE = "TAILRACE_LOG"
FORMATS = ("auto", "text", "json")

ROOT = "root"
OWN, LIBRDKAFKA = "tailrace", "librdkafka"
AUDIT = "tailrace.audit"
"""The audit log of the HTTP port. Its level is fixed: whoever makes changes could otherwise hide them."""
LOGGERS = (
    OWN,
    "tailrace.alerts",
    "tailrace.embedded",
    "tailrace.http",
    "tailrace.kafka",
    "tailrace.marks",
    "tailrace.probe",
    "tailrace.projections",
    "tailrace.recovery",
    "tailrace.schemas",
    "tailrace.source",
    "tailrace.worker",
    LIBRDKAFKA,
)
"""The loggers that are always listed."""
LEVELS = {
    "TRACE": 5,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
    "OFF": logging.CRITICAL + 1,
}
MAX_LOGGERS = 200
REPEAT_SECONDS = 60.0
_NAME = re.compile(r"[A-Za-z_][\w.$-]{0,199}")

_bound: dict[str, object] = {}
_changed: dict[str, int] = {}


class StructuredLogger:
    """Logs events; the bound fields are added to each of them."""

    def __init__(self, logger: str = OWN, /, **bound: object) -> None:
        self._logger = logging.getLogger(logger)
        self._bound = bound

    def of(self, logger: str) -> StructuredLogger:
        """Returns the same log under another logger, such as `tailrace.kafka`."""
        return StructuredLogger(logger, **self._bound)

    @property
    def is_debug(self) -> bool:
        """Whether lines of level DEBUG are written; for those that cost something."""
        return self._logger.isEnabledFor(logging.DEBUG)

    def debug(self, event: str, **fields: object) -> None:
        self._write(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: object) -> None:
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        self._write(logging.WARNING, event, fields)

    def error(self, event: str, **fields: object) -> None:
        self._write(logging.ERROR, event, fields)

    def _write(self, level: int, event: str, fields: dict[str, object]) -> None:
        if self._logger.isEnabledFor(level):
            given = {name: value for name, value in fields.items() if value != ""}
            self._logger.log(level, event, extra={"fields": {**self._bound, **given}})


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
            "logger": record.name,
            "event": record.getMessage(),
            **_fields(record),
        }
        return json.dumps(
            {name: mask(value) if isinstance(value, str) else value for name, value in line.items()},
            default=lambda value: mask(str(value)),
        )


class _Repetitions(logging.Filter):
    """Drops what OpenTelemetry repeats with each export while its collector is away, except once a minute."""

    def __init__(self) -> None:
        super().__init__()
        self._logged_at: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.name.startswith("opentelemetry."):
            return True
        before = self._logged_at.get(record.name, -REPEAT_SECONDS)
        if record.created - before < REPEAT_SECONDS:
            return False
        self._logged_at[record.name] = record.created
        return True


def configure(*, as_json: bool | None = None, **fields: object) -> None:
    """Sets up logging for the process; `fields` are added to every line, also to those of libraries.

    Without `as_json`, the environment variable TAILRACE_LOG decides (`text`, `json`), and otherwise whether stderr is a
    terminal. librdkafka's own log is off: its errors arrive as exceptions.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if is_json(as_json) else _Lines())
    handler.addFilter(_Repetitions())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    _bound.clear()
    _bound.update(fields)
    _changed.clear()
    for name in LOGGERS:
        logging.getLogger(name).setLevel(logging.NOTSET)
    logging.getLogger(OWN).setLevel(logging.INFO)
    logging.getLogger(AUDIT).setLevel(logging.INFO)
    logging.getLogger(LIBRDKAFKA).setLevel(LEVELS["OFF"])


def is_json(as_json: bool | None) -> bool:
    """Whether log lines are JSON; see `configure`."""
    if as_json is not None:
        return as_json
    chosen = os.environ.get(FORMAT_VARIABLE) or "auto"
    if chosen not in FORMATS:
        raise ConfigError(
            f"{FORMAT_VARIABLE}={chosen!r} is not a format of log lines", remedy=f"Give one of: {', '.join(FORMATS)}."
        )
    return chosen == "json" or (chosen == "auto" and not sys.stderr.isatty())


def levels() -> dict[str, tuple[str, int | None]]:
    """Returns the level of each logger, and when it was changed (Unix milliseconds; None if never)."""
    names = [ROOT, *sorted({*LOGGERS, *_changed} - {ROOT})]
    return {name: (_level_name(_logger(name).getEffectiveLevel()), _changed.get(name)) for name in names}


def set_level(logger: str, level: str) -> list[str]:
    """Changes the level of a logger and of all known loggers below it; returns their names. `root` means all.

    Other libraries log at INFO at most: at DEBUG, some of them print what they send, which may be payloads.
    """
    number = LEVELS.get(level.upper())
    if number is None:
        raise ConfigError(f"{level[:20]!r} is not a log level", remedy=f"Give one of: {', '.join(LEVELS)}.")
    known = {ROOT, *LOGGERS, *_changed}
    if logger not in known and (not _NAME.fullmatch(logger) or len(known) >= MAX_LOGGERS):
        raise ConfigError(
            f"{logger[:40]!r} is not the name of a logger", remedy=f"Give one of: {', '.join((ROOT, *LOGGERS))}."
        )
    if logger == AUDIT or logger.startswith(f"{AUDIT}."):
        raise ConfigError(
            f"the level of {AUDIT} cannot be changed",
            why="It logs who changes what.",
            remedy="Filter its lines by `logger` where logs are collected.",
        )
    names = known if logger == ROOT else {logger, *(each for each in known if each.startswith(f"{logger}."))}
    for name in names:
        is_own = name in (LIBRDKAFKA, OWN) or name.startswith(f"{OWN}.")
        _logger(name).setLevel(number if is_own else max(number, logging.INFO))
        _changed[name] = time.time_ns() // 1_000_000
    return sorted(names)


def _logger(name: str) -> logging.Logger:
    return logging.getLogger(None if name == ROOT else name)


def _level_name(number: int) -> str:
    return next((name for name, least in LEVELS.items() if number <= least), "OFF")


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """The fields of a line. Of an exception only the type: its text may quote a payload."""
    kind = record.exc_info[0] if record.exc_info else None
    error = {} if kind is None else {"error": kind.__name__}
    return {**_bound, **error, **getattr(record, "fields", {})}


def _time(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _plain(value: object) -> str:
    text = str(value)
    if not text.isprintable():
        return json.dumps(text)
    return json.dumps(text, ensure_ascii=False) if not text or " " in text else text
