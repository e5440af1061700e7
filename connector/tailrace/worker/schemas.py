"""The schemas and the record format of a pipeline, from its settings.

A folder is compiled before anything runs. A registry is asked when the pipeline starts, and waited for like the other
servers. Schemas are kept across attempts, so that the pipeline can go on without the registry.
"""

from __future__ import annotations

from collections.abc import Callable

from tailrace.config.model import PipelineSettings
from tailrace.config.schemas import RegistrySettings
from tailrace.errors import ConfigError, Reason, Rejected, SchemaError
from tailrace.outbox.specs import LAYOUTS
from tailrace.records.formats import RecordFormat, RecordMaker, record_maker
from tailrace.schemas.compiled import CompiledSchema, SchemaLookup
from tailrace.schemas.folder import load_folder
from tailrace.schemas.validation import PayloadValidator

DEFAULT_SUBJECT = "{type}"
KEY_SUFFIX = "-key"
"""The subject of a topic's key schema is `<topic>-key`, as with Confluent's clients."""


class PipelineSchemas:
    """Created once per process. `validator` and `records` need `ready` first."""

    def __init__(self, settings: PipelineSettings, *, warn: Callable[[str], None]) -> None:
        self._settings = settings
        self._warn = warn
        schemas = settings.schemas
        self._registry = schemas.registry if schemas else None
        if schemas and schemas.folder and self._registry and "{topic}" in self._registry.subject:
            raise ConfigError(
                "schemas.registry.subject names the topic, but the schemas come from a folder",
                why="A folder has one schema per event type, independent of the topic.",
                remedy="Remove {topic} from the subject, or remove schemas.folder.",
            )
        self._folder = load_folder(schemas.folder) if schemas and schemas.folder else None
        self._schemas: SchemaLookup | None = None if self._registry else self._folder
        self._format = wire_format(settings)

    def ready(self) -> None:
        """Asks the registry at the first call. Raises RegistryUnavailable if it does not answer."""
        if self._registry is None or self._schemas is not None:
            return
        from tailrace.worker import registry

        self._schemas = registry.ask(self._registry, self._folder, self._warn)

    def validator(self) -> PayloadValidator:
        settings, schemas = self._settings, self._settings.schemas
        registry = self._registry
        return PayloadValidator(
            self._schemas,
            unknown=schemas.unknown if schemas else "pass",
            max_bytes=settings.limits.payload_bytes,
            subject=_subject_namer(registry) if registry and self._folder is None else None,
            where=registry.url if registry and self._folder is None else "schemas",
        )

    @property
    def lookup(self) -> SchemaLookup | None:
        """The schemas that payloads are validated with; None without validation. Needs `ready` first."""
        return self._schemas

    def subject(self, type_name: str, topic: str) -> str:
        """Returns the subject of an event's schema."""
        namer = _subject_namer(self._registry) if self._registry and self._folder is None else None
        return type_name if namer is None else namer(type_name, topic)

    def records(self) -> RecordMaker:
        keys = self._key_schema if self._registry else None
        return record_maker(self._format, key_schema=keys, pipeline=self._settings.pipeline)

    def _key_schema(self, topic: str) -> CompiledSchema:
        """Finds the schema of a topic's keys; raises Rejected without one, because the event may choose the topic."""
        subject = topic + KEY_SUFFIX
        try:
            found = self._schemas.find(subject, None) if self._schemas else None
        except SchemaError as error:
            raise Rejected(Reason.SCHEMA_VALIDATION_FAILED, error.what, remedy=error.remedy) from None
        if found is None:
            raise Rejected(
                Reason.SCHEMA_VALIDATION_FAILED,
                f"there is no schema {subject} for the keys of {topic}, which format.key: {self._format.key} needs",
                remedy=f'Register one under {subject}, such as {{"type": "string"}}, or set format.key: bytes.',
            )
        return found


def wire_format(settings: PipelineSettings) -> RecordFormat:
    chosen = settings.format
    return RecordFormat(
        value=chosen.value,
        schema_id=chosen.schema_id,
        cloudevents=chosen.cloudevents,
        key=chosen.key,
        has_metadata=LAYOUTS[settings.outbox.layout].has_metadata,
        source="" if chosen.cloudevents == "none" else chosen.source or f"/tailrace/{settings.pipeline}",
    )


def _subject_namer(registry: RegistrySettings) -> Callable[[str, str], str] | None:
    if registry.subject == DEFAULT_SUBJECT:
        return None
    template = registry.subject
    return lambda type_name, topic: template.format(type=type_name, topic=topic)
