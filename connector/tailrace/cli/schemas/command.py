"""`tailrace schemas`: lists schemas, checks their changes, registers them and generates code and documents."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import typer

from tailrace.cli.output import emit_json, say, table
from tailrace.cli.schemas.models import models
from tailrace.cli.schemas.registry import diff, register
from tailrace.cli.schemas.target import AS_JSON, FILE, FOLDER, Target, entries, find_target
from tailrace.config.load import load_pipeline
from tailrace.errors import SchemaError
from tailrace.schemas.compatibility.check import Conflict, Mode
from tailrace.schemas.compatibility.modes import Modes, read_modes
from tailrace.schemas.compatibility.review import Finding, review
from tailrace.schemas.folder import COMPATIBILITY, SchemaFile, compile_files
from tailrace.schemas.line_numbers import line_of
from tailrace.schemas.validators import path_of

app = typer.Typer(
    help="List, check and register schemas.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.command("list")
def list_schemas(file: Path | None = FILE, folder: Path | None = FOLDER, as_json: bool = AS_JSON) -> None:
    """List every schema: subject, version, kind, mode and references; with a registry, also its id.

    \b
    Examples:
      tailrace schemas list orders.yaml
      tailrace schemas list --folder schemas --json
    """
    target = find_target(file, folder)
    schemas, modes = compile_files(target.files()), read_modes(target.folder)
    found_there = entries(target, list(schemas)) if target.registry else []
    ids = {(each.schema.subject, each.schema.version): each.found for each in found_there}
    rows: list[dict[str, object]] = []
    for schema in schemas:
        found = ids.get((schema.subject, schema.version))
        row: dict[str, object] = {
            "subject": schema.subject,
            "version": str(schema.version),
            "kind": schema.kind,
            "mode": modes.of(schema.subject).value,
            "references": ", ".join(f"{ref.subject} {ref.version}" for ref in schema.references) or None,
        }
        rows.append({**row, "id": found.registered.id if found else None} if target.registry else row)
    if as_json:
        emit_json({"schemas": rows})
    else:
        table(f"Schemas in {target.folder}", rows)


@app.command()
def check(
    file: Path | None = FILE,
    folder: Path | None = FOLDER,
    allow: list[str] = typer.Option(
        [], "--allow", metavar="SUBJECT", help="Accept all changes of this subject in this run; may be repeated."
    ),
    as_json: bool = AS_JSON,
) -> int:
    """Check that every schema is valid and every change is compatible.

    Needs only the files, so it can run in CI. The folder's compatibility.yaml sets the mode of each subject. The
    default is BACKWARD: a consumer with the new version can read what was written with the previous one. A change that
    cannot be proven compatible counts as incompatible.

    Exit codes: 0 all schemas are fine, 1 a change is incompatible, 2 a schema is invalid.

    \b
    Examples:
      tailrace schemas check --folder schemas
      tailrace schemas check orders.yaml --json
      tailrace schemas check --folder schemas --allow OrderPlaced
    """
    target = find_target(file, folder)
    files = target.files()
    compile_files(files)
    findings = review(files, _modes(target, files, allow))
    bad = [finding for finding in findings if finding.conflicts]
    if as_json:
        emit_json({"ok": not bad, "schemas": len(findings), "conflicts": [_conflict_json(found) for found in bad]})
        return 1 if bad else 0
    for finding in bad:
        say(f"{finding.file.path} violates {finding.mode.value}:")
        for conflict in finding.conflicts:
            for problem in conflict.problems:
                where = finding.file.locate(path_of(problem.place))
                say(f"  {where} {problem.what} ({_direction(conflict, finding)})")
        say(
            f"  remedy: make the change compatible, or allow it in {target.folder}/compatibility.yaml or, once, with "
            f"--allow {finding.file.subject}"
        )
    say(f"{len(findings)} schemas: {len(bad) or 'none'} with an incompatible change.")
    return 1 if bad else 0


app.command("register")(register)
app.command("diff")(diff)
app.command("models")(models)


@app.command("asyncapi")
def describe_streams(
    file: Path = typer.Argument(..., metavar="FILE", help="The pipeline's settings, such as orders.yaml."),
    version: str = typer.Option("1.0.0", "--version", help="Version of your API, written to `info`."),
) -> None:
    """Print an AsyncAPI 3 document of every stream, its messages and their schemas.

    \b
    Examples:
      tailrace schemas asyncapi orders.yaml > asyncapi.json
    """
    from tailrace.worker.asyncapi import describe

    sys.stdout.write(json.dumps(describe(load_pipeline(file), version), indent=2, ensure_ascii=False) + "\n")


def _modes(target: Target, files: list[SchemaFile], allow: list[str]) -> Modes:
    """Reads the modes. Rejects one for a subject that does not exist, because the name is most likely misspelt."""
    modes, known = read_modes(target.folder), {file.subject for file in files}
    for where, names in ((f"{target.folder}/{COMPATIBILITY}", modes.subjects.keys()), ("--allow", set(allow))):
        if unknown := sorted(names - known):
            raise SchemaError(
                f"{where}: there is no subject {', '.join(unknown)}", remedy="Correct the name, or remove it."
            )
    return replace(modes, subjects={**modes.subjects, **dict.fromkeys(allow, Mode.NONE)})


def _conflict_json(finding: Finding) -> dict[str, object]:
    problems = [
        {
            "earlier": str(conflict.earlier),
            "direction": conflict.direction,
            "place": problem.place,
            "line": line_of(finding.file.text, path_of(problem.place)),
            "what": problem.what,
        }
        for conflict in finding.conflicts
        for problem in conflict.problems
    ]
    return {"file": str(finding.file.path), "mode": finding.mode.value, "problems": problems}


def _direction(conflict: Conflict, finding: Finding) -> str:
    old, new = f"version {conflict.earlier}", f"version {finding.file.version}"
    reader, writer = (new, old) if conflict.direction == "backward" else (old, new)
    return f"{reader} must read what {writer} wrote"
