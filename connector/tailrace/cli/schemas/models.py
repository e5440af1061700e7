"""`tailrace schemas models`: writes pydantic models of the registered events, for consumers in Python."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from tailrace.cli.output import say
from tailrace.cli.schemas.target import FILE, FOLDER, find_target
from tailrace.codegen.models.source_text import models_source
from tailrace.config.load import load_pipeline
from tailrace.errors import ConfigError
from tailrace.schemas.compiled import CompiledSchema
from tailrace.schemas.folder import compile_files
from tailrace.worker.schemas import KEY_SUFFIX


def models(
    file: Path | None = FILE,
    folder: Path | None = FOLDER,
    types: list[str] | None = typer.Option(
        None, "--type", help="Only events of this type, and what they refer to; may be given several times."
    ),
    output: Path | None = typer.Option(None, "--output", "-o", help="The Python file to write. [default: printed]"),
    check: bool = typer.Option(False, "--check", help="Write nothing: only see whether the file is up to date."),
) -> int:
    """Write a Python module with a pydantic model for every schema, for editors and type checkers.

    The latest version is named after the event type, earlier ones have their version appended (OrderPlacedV1,
    OrderPlacedV1_4_0). A model
    accepts every payload that its schema accepts. The output is deterministic. If the pipeline names a registry and no
    folder, the schemas come from the registry.

    Exit codes: 0 success, 1 with --check: the file is out of date, 2 a schema is invalid.

    \b
    Examples:
      tailrace schemas models --folder schemas --output events.py
      tailrace schemas models orders.yaml --type OrderPlaced --output events.py --check
    """
    compiled_schemas = _schemas(file, folder, types)
    missing = sorted(set(types or ()) - {compiled.subject for compiled in compiled_schemas})
    if missing:
        raise ConfigError(
            f"there is no schema for {', '.join(missing)}", remedy="See `tailrace schemas list`, and correct the type."
        )
    text = models_source([each for each in compiled_schemas if not each.subject.endswith(KEY_SUFFIX)], types or ())
    if output is None:
        if check:
            raise ConfigError("--check needs a file to compare", remedy="Name it with --output.")
        sys.stdout.write(text)
        return 0
    if check:
        if output.is_file() and output.read_text(encoding="utf-8") == text:
            return 0
        say(f"{output} is out of date. Run the command again without --check.")
        return 1
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{output} cannot be written: {error.strerror}",
            remedy="Name a writable file in an existing folder with --output.",
        ) from None
    say(f"wrote {output}")
    return 0


def _schemas(file: Path | None, folder: Path | None, types: list[str] | None) -> list[CompiledSchema]:
    """Compiles all schemas of a folder, or the wanted ones of a registry, where others may be unrelated or unusable."""
    schemas = load_pipeline(file).schemas if file and folder is None else None
    if schemas is None or schemas.folder is not None or schemas.registry is None:
        return list(compile_files(find_target(file, folder).files()))
    from tailrace.schemas.registry.cache import with_references
    from tailrace.schemas.registry.lookup import compile_fetched
    from tailrace.worker.registry import registry_client

    found: dict[tuple[str, int], CompiledSchema] = {}
    with registry_client(schemas.registry) as client:
        todo = [(name, number) for name in types or client.subjects() for number in client.numbers(name)]
        while todo:
            key = todo.pop()
            fetched = None if key in found else client.fetch(*key)
            if fetched is not None:
                found[key] = compile_fetched(with_references(fetched, client.fetch))
                todo += [(each.subject, each.version.major) for each in fetched.references]
    return list(found.values())
