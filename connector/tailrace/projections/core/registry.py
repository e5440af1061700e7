"""A schema registry as the `decode` of a projection: values in every format that the connector writes, Avro included.

    orders = Projection(app, "shop.orders", store=store, decode=RegistryDecoder("https://registry.example.org"))

A schema is asked for when a value first names it, and kept: what an id stands for never changes. Decoding happens on
the event loop, in the middle of a block; the registry is asked by a thread, and nobody waits for that beyond PATIENCE.
What takes longer is an outage like that of any other server: the worker tries again, and no event is blamed.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future, wait
from typing import Any

import orjson

from tailrace.errors import ConfigError, Reason, RegistryRefused, RegistryUnavailable, Rejected, SchemaError
from tailrace.projections.core.decoding import Read, SchemaName, decoded
from tailrace.projections.core.event import Event
from tailrace.schemas.avro import names as avro_names
from tailrace.schemas.registry.by_id import ReadersClient
from tailrace.schemas.registry.cache import FORGET_SECONDS, Remembered, with_references
from tailrace.schemas.registry.client import RegistryOptions

PATIENCE = 0.25
"""Seconds that the event loop stands still for an answer, once for each question."""


class RegistryDecoder:
    """See the module's docstring. `url`, `settings` and `timeout` are those of a pipeline's `schemas.registry`."""

    def __init__(self, url: str, *, settings: Mapping[str, str] | None = None, timeout: float = 10.0) -> None:
        self._options = RegistryOptions(url, settings or {}, timeout)
        ReadersClient(self._options).close()  # settings that do not fit are told now, not with the first event
        self._known: dict[SchemaName, Read] = {}
        self._asked: dict[SchemaName, Future[Read]] = {}
        self._refused: Remembered[SchemaName, Rejected] = Remembered(FORGET_SECONDS)
        self._answered = False

    def __call__(self, event: Event) -> Any:  # noqa: ANN401 - JSON or Avro
        return decoded(event, self._reader)

    def _reader(self, name: SchemaName) -> Read:
        known = self._known.get(name)
        if known is not None:
            return known
        refused = self._refused.get(name)
        if refused is not None:
            raise refused.with_traceback(None)
        asked = self._asked.get(name)
        if asked is None:
            asked = self._asked[name] = Future()
            threading.Thread(target=self._answer, args=(name, asked), name="registry", daemon=True).start()
            wait([asked], PATIENCE)
        if not asked.done():
            raise RegistryUnavailable(
                f"the schema registry at {self._options.url} has not answered yet",
                remedy="See that it runs and that this machine can reach it.",
            )
        del self._asked[name]
        return self._settled(name, asked)

    def _settled(self, name: SchemaName, asked: Future[Read]) -> Read:
        """What came of a question; only what is for good is remembered."""
        try:
            read = self._known[name] = asked.result()
        except Rejected as error:
            self._answered = True
            self._refused.put(name, error)
            raise
        except RegistryRefused as error:
            # No event is to blame. Before the first answer, what was declared is; after it, the registry is away.
            kind = RegistryUnavailable if self._answered else ConfigError
            raise kind(error.what, why=error.why, remedy=error.remedy) from None
        self._answered = True
        return read

    def _answer(self, name: SchemaName, asked: Future[Read]) -> None:
        try:
            # Questions are rare: no connection is kept for the next one.
            with ReadersClient(self._options) as client:
                read = _fetched(name, client)
        except BaseException as error:  # noqa: BLE001 - raised where it was asked for
            asked.set_exception(error)
        else:
            asked.set_result(read)


def _fetched(name: SchemaName, client: ReadersClient) -> Read:
    try:
        found = client.written_with(name)
        if found is None:
            raise Rejected(
                Reason.SCHEMA_VALIDATION_FAILED,
                f"the schema {name}, which the payload was written with, is not registered at {client.url}",
                remedy="Name the registry that the producers use; then `tailrace dlq redrive` puts the event back.",
            )
        if found.kind == "json":
            return orjson.loads
        # Here, because fastavro takes 5 MB that topics of JSON need not pay for.
        from tailrace.schemas.avro.reader import reader

        around = with_references(found, client.fetch).named.values()
        named = {full: definition for document in around for full, definition in avro_names.definitions(document)}
        return reader(found.document, found.place, named)
    except RegistryRefused:
        raise
    except SchemaError as error:
        raise Rejected(Reason.SCHEMA_VALIDATION_FAILED, error.what, remedy=error.remedy) from None
