"""What parts of a schema are called in Python: classes and fields, by names that are legal and not yet taken."""

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
"""No class may have such a name."""
_TYPES = frozenset({"bool", "bytes", "dict", "dt", "float", "int", "list", "str"})
"""A field of such a name would stand for the type in the annotations beside it."""
_OF_PYDANTIC = frozenset(dir(BaseModel)) | frozenset(dir(RootModel)) | {"model_post_init"}
_CONFUSING = frozenset({"l", "O", "I"})
_words = re.compile(r"[A-Za-z0-9]+").findall
_illegal = re.compile(r"[^A-Za-z0-9_]").sub


class Taken:
    """Names of classes that are taken."""

    def __init__(self) -> None:
        self._names: set[str] = set(IMPORTED)

    def free(self, wanted: str) -> str:
        """The name, with a number behind it if somebody has it."""
        name, number = wanted, 1
        while name in self._names:
            number += 1
            name = f"{wanted}{number}"
        self._names.add(name)
        return name


def class_name(*parts: str) -> str:
    """OrderPlaced for `OrderPlaced`, `order.placed` and `order-placed`."""
    words = [word for part in parts for word in _words(_ascii(part))]
    name = "".join(word[:1].upper() + word[1:] for word in words) or "Model"
    return f"Model{name}" if name[0].isdigit() else name


def field_names(properties: Iterable[str], classes: frozenset[str]) -> dict[str, str]:
    """The name of each property as a field; `classes` are the names that stand for classes in the module."""
    names: dict[str, str] = {}
    taken: set[str] = set()
    # Those that can keep their name come first: nobody else gets it.
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
