"""Compiled schemas from the content of a registry, for services and the connector alike."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from urllib.parse import quote, urljoin

from tailrace.schemas.avro import names as avro_names
from tailrace.schemas.avro.compiled import CompiledAvroSchema
from tailrace.schemas.compiled import CompiledSchema
from tailrace.schemas.json_schema import CompiledJsonSchema
from tailrace.schemas.registry.cache import RegistrySchemas
from tailrace.schemas.registry.client import FetchedSchema, RegistryClient, RegistryOptions
from tailrace.schemas.validators import BASE, ReferencedSchemas

_log = logging.getLogger("tailrace.schemas")


class ServiceSchemas(RegistrySchemas):
    """The schemas of a registry, with their own client, which `close` closes."""

    def __init__(self, client: RegistryClient, warn: Callable[[str], None]) -> None:
        self._own_client = client
        super().__init__(client, compile_fetched, warn=warn)

    def close(self) -> None:
        super().close()
        self._own_client.close()


def registry_schemas(
    url: str,
    settings: Mapping[str, str] | None = None,
    *,
    timeout: float = 5.0,
    warn: Callable[[str], None] = _log.warning,
) -> ServiceSchemas:
    """Returns the schemas of a registry, for `Outbox(schemas=…)`. Raises RegistryUnavailable if it does not answer.

    `settings` are those of `schemas.registry` in a pipeline file, such as basic.auth.user.info. The first event of a
    type requests its schema; later ones do not. The latest versions are fetched again in the background.
    """
    client = RegistryClient(RegistryOptions(url, settings or {}, timeout))
    try:
        client.subjects()
    except BaseException:
        client.close()
        raise
    return ServiceSchemas(client, warn)


def compile_fetched(fetched: FetchedSchema) -> CompiledSchema:
    """Compiles a schema of a registry."""
    address = f"{BASE}{quote(fetched.subject)}/{fetched.number}.json"
    if fetched.kind == "avro":
        named = {name: definition for doc in fetched.named.values() for name, definition in avro_names.definitions(doc)}
        return CompiledAvroSchema.compile(
            fetched.subject,
            fetched.version,
            fetched.document,
            fetched.place,
            named=named,
            references=fetched.references,
            registered=fetched.registered,
        )
    around = ReferencedSchemas.of({urljoin(address, name): document for name, document in fetched.named.items()})
    return CompiledJsonSchema.compile(
        fetched.subject,
        fetched.version,
        fetched.document,
        fetched.place,
        surroundings=around.at(address),
        references=fetched.references,
        registered=fetched.registered,
    )
