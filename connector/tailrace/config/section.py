"""The base class of all sections of a pipeline's file.

Sections are frozen and refuse unknown fields. A setting with a reference is printed and dumped as it was written; the
attribute holds the resolved value.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, PrivateAttr, SerializerFunctionWrapHandler, model_serializer


class Section(BaseModel):
    """A section of the file. `_written` maps fields with references to the text of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)
    _written: dict[str, Any] = PrivateAttr(default_factory=dict)

    def remember_written(self, field: str, written: object) -> None:
        """Makes the field show `written` instead of its resolved value."""
        self._written[field] = written

    def __repr_args__(self) -> list[tuple[str | None, object]]:
        return [(name, self._written.get(name or "", value)) for name, value in super().__repr_args__()]

    @model_serializer(mode="wrap")
    def _shown(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {**handler(self), **self._written}
