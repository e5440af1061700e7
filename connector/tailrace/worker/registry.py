"""The schema registry of a pipeline: its client, and compiled schemas from its content.

Imported only for pipelines with a registry: its libraries need 10 MB.
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
    """Returns the schemas of the registry, or of a folder with the registry's ids; may raise RegistryUnavailable."""
    client = registry_client(registry)
    if folder is not None:
        with client:
            return identified(folder, client, partial(registered_as, registry.subject))
    client.subjects()
    return RegistrySchemas(client, compile_fetched, warn=warn)


def registry_client(registry: RegistrySettings) -> RegistryClient:
    return RegistryClient(RegistryOptions(registry.url, registry.client_settings(), registry.timeout))


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


def registered_as(template: str, schema: CompiledSchema) -> str:
    # The template applies to event types, not to the schemas of keys.
    return schema.subject if schema.subject.endswith(KEY_SUFFIX) else template.format(type=schema.subject, topic="")
