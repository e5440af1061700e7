"""Reads a text at a path inside a JSON column, such as the key at `payload#/team_id`."""

from __future__ import annotations

from typing import NamedTuple

import orjson

from tailrace.errors import Reason, Rejected


class JsonPath(NamedTuple):
    """The names of the fields that lead to a value."""

    names: tuple[str, ...]

    def text(self, raw: bytes | None, place: str, setting: str) -> bytes:
        """Returns the string or whole number at the path in a JSON text; raises Rejected if there is none.

        `place` and `setting` are for error texts: the column with its path, and the setting that names it.
        """
        try:
            found = None if raw is None else orjson.loads(raw)
        except ValueError:
            raise Rejected(
                Reason.POISON_MESSAGE,
                f"the column of {place!r} is not JSON",
                remedy=f"Have the service write JSON there, or change {setting}.",
            ) from None
        for name in self.names:
            found = found.get(name) if isinstance(found, dict) else None
        if isinstance(found, str):
            return found.encode()
        if isinstance(found, int) and not isinstance(found, bool):
            return b"%d" % found
        kind = "missing" if found is None else "neither a string nor a whole number"
        raise Rejected(
            Reason.PERMANENT_FAILURE,
            f"the value at {place!r} is {kind}",
            remedy=f"Have the service write it, or change {setting}.",
        )


def path_to(text: str) -> JsonPath:
    """Parses the part behind `#/`: names separated by `/`."""
    return JsonPath(tuple(text.split("/")))
