"""Validates a payload against its schema; raises Rejected, with an explanation, if it is not valid.

A payload may be any bytes. It is parsed, scanned and validated once, in C; an explanation is only built for an invalid
payload. JSON is published as the payload itself, byte for byte. A payload that is published as Avro is usually read
into the schema's types instead (`CompiledSchema.encode_text`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from tailrace.errors import Reason, Rejected, SchemaError
from tailrace.event import OutboxEvent
from tailrace.schema_versions import FORM, parse_version
from tailrace.schemas.compiled import CompiledSchema, SchemaLookup, SchemaSet, subject_flaw
from tailrace.schemas.messages import cut
from tailrace.schemas.strict_json import Json, NotJsonError, has_nul, parse

Unknown = Literal["dead_letter", "pass"]


ValidatedPayload = tuple[Json, CompiledSchema | None]
"""A payload's content (its value, or its binary form) and its schema; (None, None) if it is published unvalidated."""
_UNREAD: ValidatedPayload = (None, None)


class PayloadValidator:
    """Validates events against their schemas. `validate` keeps no state from one event to the next."""

    def __init__(
        self,
        schemas: SchemaLookup | None,
        *,
        unknown: Unknown = "dead_letter",
        max_bytes: int,
        subject: Callable[[str, str], str] | None = None,
        where: str = "schemas",
    ) -> None:
        """`unknown` says what happens to events without a schema; `where` names the location of schemas in remedies.

        `subject` returns the subject for an event type and a topic; without it, the subject is the type.
        """
        self._schemas = SchemaSet.of() if schemas is None else schemas
        self._known = self._schemas.known
        self._pass_unknown = unknown == "pass"
        self._max_bytes = max_bytes
        self._subject = subject
        self._where = where

    def validate(self, event: OutboxEvent, topic: str) -> ValidatedPayload:
        """Returns the event's content and its schema. Raises Rejected if the event must not be published."""
        _, type_name, _, _, payload, version, _, _, _, keys_unique = event
        if payload is None:
            return _UNREAD
        if len(payload) > self._max_bytes:
            raise Rejected(
                Reason.PERMANENT_FAILURE,
                f"the payload has {len(payload):,} bytes, more than the limit of {self._max_bytes:,}",
                remedy="Publish a reference to the data instead, or raise the limit here and in Kafka.",
            )
        subject = type_name if self._subject is None else self._subject(type_name, topic)
        schema = self._known.get((subject, version)) or self._look_for(subject, version)
        if schema is None:
            return _UNREAD
        encode_text = schema.encode_text
        if encode_text is not None and (content := encode_text(payload, keys_unique)) is not None:
            return content, schema
        nul = 92 in payload and has_nul(payload)  # 92 is the backslash: without one there can be no escape
        try:
            value = parse(payload, keys_unique=keys_unique)
        except NotJsonError as error:
            raise Rejected(Reason.POISON_MESSAGE, f"the payload is not usable JSON: {error}") from None
        if nul:
            raise Rejected(
                Reason.POISON_MESSAGE,
                "a string of the payload contains U+0000 (\\u0000)",
                remedy="Have the service remove it: jsonb cannot store it, and many readers stop at it.",
            )
        if not schema.is_valid(value):
            raise Rejected(
                Reason.SCHEMA_VALIDATION_FAILED,
                f"the payload violates version {schema.version} of {cut(schema.subject)}: "
                + schema.explain(value, len(payload)),
                remedy=f"Correct the service, or register a new version beside {schema.file}.",
            )
        return value, schema

    def _look_for(self, subject: str, version: str | None) -> CompiledSchema | None:
        """Looks up a schema that is not known yet. Returns None if the event may pass unvalidated."""
        try:
            found = self._schemas.find(subject, version) if version is None or parse_version(version) else None
        except SchemaError as error:
            # The service chooses the type, and with it the schema, so an unusable schema affects only events of that
            # type.
            raise Rejected(
                Reason.SCHEMA_VALIDATION_FAILED, f"{error.what}. {error.why}".rstrip(), remedy=error.remedy
            ) from None
        if found is None and not self._pass_unknown:
            raise self._no_schema(subject, version)
        return found

    def _no_schema(self, type_name: str, version: str | None) -> Rejected:
        shown = cut(type_name)
        if version is not None and parse_version(version) is None:
            return Rejected(
                Reason.SCHEMA_VALIDATION_FAILED,
                f"{cut(version)!r} is not a schema version. {FORM}",
                remedy="Have the service write a registered version, such as 1 or 1.0.0.",
            )
        if flaw := subject_flaw(type_name):
            return Rejected(
                Reason.SCHEMA_VALIDATION_FAILED,
                f"{shown!r} cannot be the name of a schema: {flaw}",
                remedy="Have the service write another type, or let events without a schema pass "
                "(schemas.unknown, in the writer without_schema).",
            )
        registered = ", ".join(map(str, self._schemas.versions(type_name)[-10:]))
        known = f"registered versions: {registered}" if registered else "no version is registered"
        return Rejected(
            Reason.SCHEMA_VALIDATION_FAILED,
            f"there is no schema for version {version or 1} of {shown!r} ({known})",
            remedy=f"Add {self._where}/{shown}/{version or 1}.json, or let events without a schema pass "
            "(schemas.unknown, in the writer without_schema).",
        )
