"""The check of a payload against its contract: silence, or a Rejected that says why.

Nothing a payload contains can do anything else: it may be any bytes at all. The usual path is one parse, one
scan and one validation, all in C; words are only looked for once a payload is known to be bad. The payload
itself is never changed: what is published is what was checked, byte for byte.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

from tailrace.errors import Reason, Rejected
from tailrace.event import OutboxEvent
from tailrace.schemas.contracts import Contract, SchemaSet
from tailrace.schemas.explaining import Explainer, cut
from tailrace.schemas.json_text import NotJsonError, has_nul, parse

Unknown = Literal["dead_letter", "pass"]

_version = re.compile(r"[1-9][0-9]{0,8}", re.ASCII).fullmatch


class Checker:
    """Checks events against a SchemaSet. `check` keeps nothing from one event to the next."""

    def __init__(
        self,
        schemas: SchemaSet | None,
        *,
        unknown: Unknown = "dead_letter",
        max_bytes: int,
        folder: str = "schemas",
    ) -> None:
        """`unknown` decides on events without a schema; `folder` is what remedies call the schema folder."""
        self._schemas = SchemaSet() if schemas is None else schemas
        self._pass_unknown = unknown == "pass"
        self._max_bytes = max_bytes
        self._folder = folder
        # By the version's text, as events carry it; None, an event without a version, is the latest.
        self._contracts: dict[tuple[str, str | None], tuple[Callable[[object], bool], Contract]] = {}
        self._explainers: dict[Contract, Explainer] = {}
        for contract in self._schemas:
            checked = (contract.validator.is_valid, contract)
            self._contracts[contract.type, str(contract.version)] = checked
            self._contracts[contract.type, None] = checked

    def check(self, event: OutboxEvent) -> None:
        """Raises Rejected unless the event may be published."""
        payload = event.payload
        if payload is None:
            return
        if len(payload) > self._max_bytes:
            raise Rejected(
                Reason.PERMANENT_FAILURE,
                f"the payload has {len(payload):,} bytes, more than the limit of {self._max_bytes:,}",
                remedy="Publish a reference to the data instead, or raise the limit here and in Kafka.",
            )
        found = self._contracts.get((event.type, event.version))
        if found is None:
            if self._pass_unknown:
                return
            raise self._no_contract(event.type, event.version)
        is_valid, contract = found
        try:
            value = parse(payload)
        except NotJsonError as error:
            raise Rejected(Reason.POISON_MESSAGE, f"the payload is not usable JSON: {error}") from None
        if 92 in payload and has_nul(payload):  # 92 is the backslash: without one there is nothing to look for
            raise Rejected(
                Reason.POISON_MESSAGE,
                "a string of the payload contains U+0000 (\\u0000)",
                remedy="Have the service remove it: jsonb cannot store it, and many readers stop at it.",
            )
        if not is_valid(value):
            raise Rejected(
                Reason.SCHEMA_VALIDATION_FAILED,
                f"the payload breaks version {contract.version} of {cut(contract.type)}: "
                + self._explainer(contract).explain(value, len(payload)),
                remedy=f"Correct the service, or register a new version beside {contract.file}.",
            )

    def _explainer(self, contract: Contract) -> Explainer:
        explainer = self._explainers.get(contract)
        if explainer is None:
            explainer = self._explainers[contract] = Explainer(contract)
        return explainer

    def _no_contract(self, type_name: str, version: str | None) -> Rejected:
        shown = cut(type_name)
        if version is not None and not _version(version):
            return Rejected(
                Reason.SCHEMA_VALIDATION_FAILED,
                f"the schema version {cut(version)!r} is not a whole number",
                remedy="Have the service write the number of a registered version, such as 1.",
            )
        registered = ", ".join(map(str, self._schemas.versions(type_name)[-10:]))
        known = f"registered versions: {registered}" if registered else "no version is registered"
        return Rejected(
            Reason.SCHEMA_VALIDATION_FAILED,
            f"there is no schema for version {version or 1} of {shown!r} ({known})",
            remedy=f"Add {self._folder}/{shown}/{version or 1}.json, or let events without a schema pass.",
        )
