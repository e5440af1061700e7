"""How every JSON Schema validator is built, and how places in documents are written."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jsonschema_rs


def options() -> dict[str, Any]:
    """How every validator is built: formats count, patterns run in linear time, nothing is fetched."""
    return {"validate_formats": True, "pattern_options": jsonschema_rs.RegexOptions(), "offline": True}


def pointer(path: Iterable[str | int]) -> str:
    """A place in a document as a JSON pointer, `#/properties/a~1b`."""
    return "#" + "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)
