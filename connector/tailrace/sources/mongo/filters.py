"""Examines a MongoDB filter before a server sees it. Pure, and free of the driver.

Only operators that compare fields of the document with constants are accepted: their result depends on the document
alone. A first read that is resumed after a crash evaluates the filter again. So there is no `$where` or `$function`
(code), no `$expr` (which has `$rand` and the current time), and no `$text` or `$near` (which need an index of their own
and cannot be combined with the reading order).
"""

from __future__ import annotations

import json
from typing import Any

LONGEST = 2000
"""Most characters; the text is part of every stored position."""
LOGICAL = frozenset({"$and", "$or", "$nor"})
OPERATORS = frozenset(
    {
        "$eq", "$ne", "$gt", "$gte", "$lt", "$lte", "$in", "$nin", "$not", "$exists", "$type", "$mod", "$regex",
        "$options", "$all", "$elemMatch", "$size", "$bitsAllSet", "$bitsAnySet", "$bitsAllClear", "$bitsAnyClear",
    }
)  # fmt: skip
VALUES = frozenset(
    {
        "$oid", "$date", "$uuid", "$numberInt", "$numberLong", "$numberDouble", "$numberDecimal", "$binary",
        "$timestamp", "$regularExpression", "$minKey", "$maxKey",
    }
)  # fmt: skip
"""Extended JSON: values that JSON does not have."""


def filter_text(given: object) -> str:
    """Returns the filter as JSON with sorted keys; raises ValueError with the reason if it cannot be accepted."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            raise ValueError("it is not a document") from None
    if not isinstance(given, dict):
        raise ValueError("it is not a document")  # noqa: TRY004 - a wrong setting, as all others here
    _require_known(given, top=True)
    try:
        text = json.dumps(given, sort_keys=True, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError):
        raise ValueError(
            'it has a value that JSON does not have; write a date as {$date: "2026-01-01T00:00:00Z"}'
        ) from None
    if len(text) > LONGEST:
        raise ValueError(f"it has more than {LONGEST} characters")
    return text


def _require_known(found: Any, *, top: bool) -> None:  # noqa: ANN401 - any part of a document
    if isinstance(found, list):
        for each in found:
            _require_known(each, top=top)
        return
    if not isinstance(found, dict):
        return
    for name, value in found.items():
        if not isinstance(name, str):
            raise ValueError(f"the field name {name!r} is not a text")  # noqa: TRY004
        if name in VALUES:
            continue
        if name.startswith("$") and name not in (LOGICAL if top else OPERATORS | LOGICAL):
            raise ValueError(f"{name} is not accepted: only comparisons of fields with constants are")
        _require_known(value, top=name in LOGICAL)
