"""The rows of a result: one measured value each, and the table that is printed of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Row:
    """A value that was measured of a contender."""

    database: str
    case: str
    contender: str
    measure: str
    value: float


def rows(database: str, case: str, contender: str, **values: float) -> list[Row]:
    return [Row(database, case, contender, measure, round(value, 2)) for measure, value in values.items()]


def grouped(found: Iterable[Row]) -> dict[Key, dict[str, float]]:
    """Returns the values by database, case and contender, in the order of the rows."""
    values: dict[Key, dict[str, float]] = {}
    for row in found:
        values.setdefault((row.database, row.case, row.contender), {})[row.measure] = row.value
    return values


def table(found: Iterable[Row]) -> str:
    """Returns the rows as lines of text, one for each database, case and contender."""
    return "\n".join(
        f"{database:10}{case:30}{contender:24}" + "  ".join(f"{name} {value:,.1f}" for name, value in values.items())
        for (database, case, contender), values in grouped(found).items()
    )
