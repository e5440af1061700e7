"""Field types of generated models: they accept what an Avro reader returns and what a JSON payload contains.

A payload that was validated against an Avro schema may be published as plain JSON: then bytes are base64 text, and a
date or time is text or the number that Avro stores. Pydantic parses the text, but would take numbers for seconds.
"""

from __future__ import annotations

import datetime as dt
from base64 import b64decode
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import AwareDatetime, BeforeValidator

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MILLISECOND, _MICROSECOND = dt.timedelta(milliseconds=1), dt.timedelta(microseconds=1)


def _counted(step: dt.timedelta, convert: Callable[[dt.datetime], Any] = lambda moment: moment) -> BeforeValidator:
    """Converts a number of steps since the epoch, and leaves everything else to pydantic."""

    def count(value: Any) -> Any:  # noqa: ANN401 - of a payload
        if type(value) is not int:
            return value
        try:
            return convert(_EPOCH + value * step)
        except OverflowError:
            raise ValueError("beyond the years that Python counts") from None

    return BeforeValidator(count)


def _bytes(value: Any) -> Any:  # noqa: ANN401 - of a payload
    return b64decode(value, validate=True) if isinstance(value, str) else value


def _local(moment: dt.datetime) -> dt.datetime:
    return moment.replace(tzinfo=None)


Binary = Annotated[bytes, BeforeValidator(_bytes)]
Date = Annotated[dt.date, _counted(dt.timedelta(days=1), dt.datetime.date)]
TimeMillis = Annotated[dt.time, _counted(_MILLISECOND, dt.datetime.time)]
TimeMicros = Annotated[dt.time, _counted(_MICROSECOND, dt.datetime.time)]
TimestampMillis = Annotated[AwareDatetime, _counted(_MILLISECOND)]
TimestampMicros = Annotated[AwareDatetime, _counted(_MICROSECOND)]
LocalTimestampMillis = Annotated[dt.datetime, _counted(_MILLISECOND, _local)]
LocalTimestampMicros = Annotated[dt.datetime, _counted(_MICROSECOND, _local)]
