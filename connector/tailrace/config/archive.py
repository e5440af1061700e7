"""Settings of the archive of old outbox rows."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator

from tailrace.config.kafka_settings import Setting, revealed, setting_value, wrong
from tailrace.config.secrets import Secret, setting_secret
from tailrace.config.section import Section
from tailrace.config.values import revealed_text

SCHEMES = ("file", "s3", "s3a", "gs", "az", "abfs", "abfss")


def archive_url(text: str) -> str:
    if not re.fullmatch(rf"file:///\S.*|(?:{'|'.join(SCHEMES[1:])})://[^\s/?#:@]+(?:/[^\s?#]*)?", text):
        raise wrong(
            "the archive's address: file:///…, s3://bucket/prefix, gs://… or az://…, without credentials",
            "write it like `url: s3://cold/outbox`, credentials in the environment or under `options`",
        )
    return text.rstrip("/")


def hidden_options(options: dict[str, Setting]) -> dict[str, Setting]:
    """Wraps the options whose names look like secrets: each kind of store has its own names."""
    return {
        name: setting_secret("secret" if _is_secret(name) else name, value)
        if isinstance(value, str | Secret)
        else value
        for name, value in options.items()
    }


_is_secret = re.compile(r"key|secret|token|sas|password|credential", re.IGNORECASE).search


ArchiveUrl = Annotated[str, BeforeValidator(revealed_text), AfterValidator(archive_url)]
Options = Annotated[dict[str, Annotated[Setting, PlainValidator(setting_value)]], AfterValidator(hidden_options)]


class ArchiveSettings(Section):
    """The archive. `options` go to the store's client, which otherwise reads its environment."""

    url: ArchiveUrl = Field(
        description="an address: file:///…, s3://…, gs://… or az://…", examples=["s3://cold/outbox"]
    )
    """Where the archive is. A folder or a bucket, without credentials."""
    options: Options = Field(
        default={}, description="options of the store by name", examples=["{region: eu-central-1}"]
    )
    """Options of the object store client, such as region and credentials."""

    def option_values(self) -> dict[str, str]:
        """Returns the options with secrets revealed, only for the store."""
        return {name: str(value) for name, value in revealed(self.options).items()}
