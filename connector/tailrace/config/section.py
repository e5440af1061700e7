"""Section: what every part of a pipeline's file has in common.

Frozen, without unknown fields. A setting that came through a reference is shown as it was written, whether printed or
dumped; the attribute holds the resolved value.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, PrivateAttr, SerializerFunctionWrapHandler, model_serializer


class Section(BaseModel):
    """A part of the file. `_written` holds, by field, what was written where a reference was used."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)
    _written: dict[str, Any] = PrivateAttr(default_factory=dict)

    def remember_written(self, field: str, written: object) -> None:
        """Shows `written` instead of the field's resolved value from now on."""
        self._written[field] = written

    def __repr_args__(self) -> list[tuple[str | None, object]]:
        return [(name, self._written.get(name or "", value)) for name, value in super().__repr_args__()]

    @model_serializer(mode="wrap")
    def _shown(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {**handler(self), **self._written}
