"""Settings of schemas, of the registry, and of the format of values and keys."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, ValidationInfo, model_validator

from tailrace.config.kafka_settings import revealed, wrong
from tailrace.config.section import Section
from tailrace.config.values import Folder, RegistryClientSettings, RegistryUrl, Seconds, Subject, existing_folder


class RegistrySettings(Section):
    """A schema registry with Confluent's API."""

    url: RegistryUrl = Field(description="the registry's address", examples=["https://registry.example.org"])
    """Address of the registry, without credentials."""
    subject: Subject = Field(
        default="{type}",
        description="a subject that may contain {type} and {topic}",
        examples=["{topic}-{type}"],
    )
    """Subject of a schema."""
    settings: RegistryClientSettings = Field(
        default={},
        description="settings of the registry's client by name",
        examples=["{basic.auth.user.info: '${env:REGISTRY_LOGIN}'}"],
    )
    """Settings of the registry client, such as credentials and certificates."""
    timeout: Seconds = Field(
        default=10, gt=0, le=300, description="seconds, up to 300", examples=["10"], allow_inf_nan=False
    )
    """Seconds to wait for an answer of the registry."""

    def client_settings(self) -> dict[str, str]:
        return {name: str(value) for name, value in revealed(self.settings).items()}


class SchemaSettings(Section):
    """Where schemas come from: a folder, a registry, or a folder whose ids come from a registry."""

    folder: Folder | None = Field(default=None, description="a folder of schemas", examples=["schemas"])
    """Folder of schemas, relative to this file. Default: `schemas`, if no registry is given."""
    registry: RegistrySettings | None = Field(
        default=None, description="settings such as `url: http://localhost:8081`", examples=["{url: 'http://…:8081'}"]
    )
    """A Confluent-compatible schema registry."""
    unknown: Literal["dead_letter", "pass"] = Field(
        default="dead_letter", description="dead_letter or pass", examples=["dead_letter"]
    )
    """What happens to an event whose type has no schema: dead-letter it, or publish it unvalidated."""

    @model_validator(mode="after")
    def _somewhere(self, info: ValidationInfo) -> Self:
        if self.folder is None and self.registry is None:
            self.__dict__["folder"] = existing_folder(
                Path("schemas"), (info.context or {}).get("folder"), "schemas", "folder"
            )
        return self


class FormatSettings(Section):
    """The format of values and keys."""

    value: Literal["json", "avro"] = Field(default="json", description="json or avro", examples=["json"])
    """Encoding of values. `avro` needs `schema_id`."""
    key: Literal["bytes", "json", "avro"] = Field(
        default="bytes", description="bytes, json or avro", examples=["bytes"]
    )
    """Encoding of keys: as they are, as a JSON string, or as Avro."""
    schema_id: Literal["none", "prefix", "header"] = Field(
        default="none", description="none, prefix or header", examples=["prefix"]
    )
    """Where a record names its schema: nowhere, before the value, or in a header. Needs a registry."""
    cloudevents: Literal["none", "binary", "structured"] = Field(
        default="none", description="none, binary or structured", examples=["binary"]
    )
    """CloudEvents mode: none, attributes as `ce_` headers, or one JSON object."""
    source: str = Field(
        default="",
        max_length=200,
        pattern=r"^[!-~]*$",
        description="the CloudEvents `source`, an address such as /shop/orders",
        examples=["/shop/orders"],
    )
    """CloudEvents `source` attribute."""

    def require_registry(self, *, has_registry: bool) -> None:
        """Refuses combinations that consumers could not read."""
        if "avro" in (self.value, self.key) and self.schema_id == "none":
            raise wrong(
                "prefix or header, because Avro cannot be read without its schema",
                "add `schema_id: prefix` to format",
                "format",
                "schema_id",
            )
        if self.schema_id != "none" and not has_registry:
            raise wrong(
                "none, because without a registry schemas have no ids",
                "name one under schemas.registry, such as `registry: {url: http://localhost:8081}`",
                "format",
                "schema_id",
            )
        if self.cloudevents == "structured" and (self.value, self.schema_id) != ("json", "none"):
            raise wrong(
                "binary, because a structured event is one JSON object without a schema id",
                "write `cloudevents: binary`, or remove schema_id and avro",
                "format",
                "cloudevents",
            )
        if (self.cloudevents, self.value, self.schema_id) == ("binary", "json", "prefix"):
            raise wrong(
                "header, because a CloudEvent with content-type application/json cannot begin with a schema id",
                "write `schema_id: header`, which does not change the value",
                "format",
                "schema_id",
            )
