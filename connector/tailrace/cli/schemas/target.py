"""The folder and the registry that a `tailrace schemas` command works on, as a pipeline's settings name them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import typer

from tailrace.config.load import load_pipeline
from tailrace.config.model import PipelineSettings
from tailrace.config.schemas import RegistrySettings
from tailrace.errors import ConfigError
from tailrace.schemas.compiled import CompiledSchema
from tailrace.schemas.folder import SchemaFile, read_folder
from tailrace.schemas.registry.register import RegistryEntry, compare

FILE = typer.Argument(None, metavar="[FILE]", help="Pipeline settings file. Without it, use --folder.")
FOLDER = typer.Option(None, "--folder", help="Schema folder, if there is no pipeline file. [default: schemas]")
AS_JSON = typer.Option(False, "--json", help="Print one JSON object instead of a table.")
BOTH = typer.Argument(..., metavar="FILE", help="Pipeline settings file, which names folder and registry.")


@dataclass(frozen=True, slots=True)
class Target:
    """The schema folder, and the settings of the pipeline that names it and its registry."""

    folder: Path
    settings: PipelineSettings | None

    @property
    def registry(self) -> RegistrySettings | None:
        return self.settings.schemas.registry if self.settings and self.settings.schemas else None

    def files(self) -> list[SchemaFile]:
        return read_folder(self.folder)


def find_target(file: Path | None, folder: Path | None) -> Target:
    if file is None:
        return Target(folder or Path("schemas"), None)
    settings = load_pipeline(file)
    named = settings.schemas.folder if settings.schemas else None
    if (folder or named) is None:
        raise ConfigError(
            f"{file} names no schema folder",
            remedy="Add `schemas: {folder: schemas}` to it, or name one with --folder.",
        )
    return Target(folder or named or Path(), settings)


def registry_of(target: Target) -> RegistrySettings:
    if target.registry is None:
        raise ConfigError(
            "the pipeline names no schema registry",
            remedy="Add `registry: {url: http://localhost:8081}` under schemas.",
        )
    return target.registry


def subject_of(target: Target) -> Callable[[CompiledSchema], str]:
    from tailrace.worker.registry import registered_as

    return partial(registered_as, registry_of(target).subject)


def entries(target: Target, schemas: list[CompiledSchema]) -> list[RegistryEntry]:
    """Compares the folder's schemas with those of the registry."""
    from tailrace.worker.registry import registry_client

    with registry_client(registry_of(target)) as client:
        return compare(schemas, client, subject_of(target))
