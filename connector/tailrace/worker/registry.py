"""The schema registry of a pipeline: its client, and the schemas that it validates with.

Imported only for pipelines with a registry: its libraries need 10 MB.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tailrace.config.schemas import RegistrySettings
from tailrace.schemas.compiled import CompiledSchema, SchemaLookup, SchemaSet
from tailrace.schemas.registry.cache import RegistrySchemas
from tailrace.schemas.registry.client import RegistryClient, RegistryOptions
from tailrace.schemas.registry.lookup import compile_fetched
from tailrace.schemas.registry.register import identified
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


def registered_as(template: str, schema: CompiledSchema) -> str:
    # The template applies to event types, not to the schemas of keys.
    return schema.subject if schema.subject.endswith(KEY_SUFFIX) else template.format(type=schema.subject, topic="")
