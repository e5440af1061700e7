"""Chooses names of classes and fields that are valid in Python and not yet taken."""

from __future__ import annotations

import keyword
import re
import unicodedata
from collections.abc import Iterable

from pydantic import BaseModel, RootModel

IMPORTED = frozenset(
    {
        *("Annotated", "Any", "AwareDatetime", "BaseModel", "ConfigDict", "Decimal", "Field", "Literal", "RootModel"),
        *("UUID", "Binary", "Date", "TimeMillis", "TimeMicros", "TimestampMillis", "TimestampMicros"),
        *("LocalTimestampMillis", "LocalTimestampMicros", "None", "True", "False", "Exception", "Warning"),
    }
)
"""Names that no class may have."""
_TYPES = frozenset({"bool", "bytes", "dict", "dt", "float", "int", "list", "str"})
"""Names that a field must not have, because it would hide the type in the annotations beside it."""
_OF_PYDANTIC = frozenset(dir(BaseModel)) | frozenset(dir(RootModel)) | {"model_post_init"}
_CONFUSING = frozenset({"l", "O", "I"})
_words = re.compile(r"[A-Za-z0-9]+").findall
_illegal = re.compile(r"[^A-Za-z0-9_]").sub


class Taken:
    """The class names that are taken."""

    def __init__(self) -> None:
        self._names: set[str] = set(IMPORTED)

    def free(self, wanted: str) -> str:
        """Returns the name, with a number appended if it is taken."""
        name, number = wanted, 1
        while name in self._names:
            number += 1
            name = f"{wanted}{number}"
        self._names.add(name)
        return name


def class_name(*parts: str) -> str:
    """Returns OrderPlaced for `OrderPlaced`, `order.placed` and `order-placed`."""
    name = capitalized(*parts) or "Model"
    return f"Model{name}" if name[0].isdigit() else name


def capitalized(*parts: str) -> str:
    """Returns the words of the parts as one word, each with a capital letter; empty if they have none."""
    words = [word for part in parts for word in _words(_ascii(part))]
    return "".join(word[:1].upper() + word[1:] for word in words)


def field_names(properties: Iterable[str], classes: frozenset[str]) -> dict[str, str]:
    """Returns the field name of each property; `classes` are the class names of the module."""
    names: dict[str, str] = {}
    taken: set[str] = set()
    # Properties that can keep their name come first, so that no other gets it.
    for each in sorted(properties, key=lambda one: (_field_name(one, classes) != one, one)):
        wanted = name = _field_name(each, classes)
        number = 1
        while name in taken:
            number += 1
            name = f"{wanted}_{number}"
        taken.add(name)
        names[each] = name
    return names


def _field_name(text: str, classes: frozenset[str]) -> str:
    name = _illegal("_", _ascii(text)).lstrip("_")
    if not name or name[0].isdigit():
        name = f"field_{name}"
    taken = keyword.iskeyword(name) or name in _TYPES | _OF_PYDANTIC | _CONFUSING | IMPORTED | classes
    return f"{name}_" if taken else name


def _ascii(text: str) -> str:
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
