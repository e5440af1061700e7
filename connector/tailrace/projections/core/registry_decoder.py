"""Decodes payloads with schemas from a registry: every format that the connector writes, Avro included.

    orders = Projection(app, "shop.orders", store=store, decode=RegistryDecoder("https://registry.example.org"))

A schema is fetched when a value first names its id, and kept: an id never changes its meaning. Decoding happens on the
event loop, within a batch. A thread asks the registry, and the event loop waits for it at most WAIT_SECONDS. A registry
that takes longer counts as unavailable: the partition worker retries, and no event fails because of it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future, wait
from typing import Any

import orjson

from tailrace.errors import ConfigError, Reason, RegistryRefused, RegistryUnavailable, Rejected, SchemaError
from tailrace.projections.core.decoding import PayloadReader, SchemaId, decode_with_schema
from tailrace.projections.core.event import Event
from tailrace.schemas.avro import names as avro_names
from tailrace.schemas.registry.cache import FORGET_SECONDS, Remembered, with_references
from tailrace.schemas.registry.client import RegistryClient, RegistryOptions

WAIT_SECONDS = 0.25
"""How long the event loop stands still for an answer, once for each schema."""


class RegistryDecoder:
    """See the module's docstring. `url`, `settings` and `timeout` are those of a pipeline's `schemas.registry`."""

    def __init__(self, url: str, *, settings: Mapping[str, str] | None = None, timeout: float = 10.0) -> None:
        self._options = RegistryOptions(url, settings or {}, timeout)
        RegistryClient(self._options).close()  # reports invalid settings now, not with the first event
        self._readers: dict[SchemaId, PayloadReader] = {}
        self._requests: dict[SchemaId, Future[PayloadReader]] = {}
        self._rejected: Remembered[SchemaId, Rejected] = Remembered(FORGET_SECONDS)
        self._has_answered = False

    def __call__(self, event: Event) -> Any:  # noqa: ANN401 - JSON or Avro
        return decode_with_schema(event, self._reader)

    def _reader(self, schema: SchemaId) -> PayloadReader:
        known = self._readers.get(schema)
        if known is not None:
            return known
        rejected = self._rejected.get(schema)
        if rejected is not None:
            raise rejected.with_traceback(None)
        request = self._requests.get(schema)
        if request is None:
            request = self._requests[schema] = Future()
            threading.Thread(target=self._request, args=(schema, request), name="registry", daemon=True).start()
            wait([request], WAIT_SECONDS)
        if not request.done():
            raise RegistryUnavailable(
                f"the schema registry at {self._options.url} has not answered yet",
                remedy="Check that it runs and that this machine can reach it.",
            )
        del self._requests[schema]
        return self._result(schema, request)

    def _result(self, schema: SchemaId, request: Future[PayloadReader]) -> PayloadReader:
        """Returns or raises the answer to a request; only final answers are remembered."""
        try:
            reader = self._readers[schema] = request.result()
        except Rejected as error:
            self._has_answered = True
            self._rejected.put(schema, error)
            raise
        except RegistryRefused as error:
            # Not an event's fault. Before the first answer the settings are wrong; after it the registry is ill.
            kind = RegistryUnavailable if self._has_answered else ConfigError
            raise kind(error.what, why=error.why, remedy=error.remedy) from None
        self._has_answered = True
        return reader

    def _request(self, schema: SchemaId, request: Future[PayloadReader]) -> None:
        try:
            # Requests are rare: no connection is kept for the next one.
            with RegistryClient(self._options) as client:
                reader = _fetch(schema, client)
        except BaseException as error:  # noqa: BLE001 - raised by `_result`
            request.set_exception(error)
        else:
            request.set_result(reader)


def _fetch(schema: SchemaId, client: RegistryClient) -> PayloadReader:
    try:
        found = client.fetch_by_id(schema)
        if found is None:
            raise Rejected(
                Reason.SCHEMA_VALIDATION_FAILED,
                f"the schema {schema}, which the payload was written with, is not registered at {client.url}",
                remedy="Use the producers' registry; then publish the event again with `tailrace dlq redrive`.",
            )
        if found.kind == "json":
            return orjson.loads
        # Imported here: fastavro takes 5 MB, which JSON topics do not need.
        from tailrace.schemas.avro.reader import reader

        documents = with_references(found, client.fetch).named.values()
        named = {full: definition for document in documents for full, definition in avro_names.definitions(document)}
        return reader(found.document, found.place, named)
    except RegistryRefused:
        raise
    except SchemaError as error:
        raise Rejected(Reason.SCHEMA_VALIDATION_FAILED, error.what, remedy=error.remedy) from None
