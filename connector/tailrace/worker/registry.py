"""A pipeline's schema registry: its client, and contracts made of what it has.

Imported when a pipeline has a registry, and not before: with the libraries behind it that is 10 MB.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from urllib.parse import quote, urljoin

from tailrace.config.schemas import RegistrySettings
from tailrace.schemas.avro import names as avro_names
from tailrace.schemas.avro.compiled import CompiledAvroSchema
from tailrace.schemas.compiled import CompiledSchema, SchemaLookup, SchemaSet
from tailrace.schemas.json_schema import CompiledJsonSchema
from tailrace.schemas.registry.cache import RegistrySchemas
from tailrace.schemas.registry.client import FetchedSchema, RegistryClient, RegistryOptions
from tailrace.schemas.registry.register import identified
from tailrace.schemas.validators import BASE, ReferencedSchemas
from tailrace.worker.schemas import KEY_SUFFIX


def ask(registry: RegistrySettings, folder: SchemaSet | None, warn: Callable[[str], None]) -> SchemaLookup:
    """The registry's own contracts, or those of a folder with the ids it gave them; RegistryUnavailable if away."""
    client = registry_client(registry)
    if folder is not None:
        with client:
            return identified(folder, client, partial(registered_as, registry.subject))
    client.subjects()
    return RegistrySchemas(client, compile_fetched, warn=warn)


def registry_client(registry: RegistrySettings) -> RegistryClient:
    return RegistryClient(RegistryOptions(registry.url, registry.client_settings(), registry.timeout))


def compile_fetched(fetched: FetchedSchema) -> CompiledSchema:
    """A contract of what a registry has."""
    address = f"{BASE}{quote(fetched.subject)}/{fetched.version}.json"
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


def registered_as(template: str, schema: CompiledSchema) -> str:
    # The schema of a topic's keys has a name of its own, whatever those of events are called.
    return schema.subject if schema.subject.endswith(KEY_SUFFIX) else template.format(type=schema.subject, topic="")
