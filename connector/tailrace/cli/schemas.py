"""`tailrace schemas`: the registered schemas, whether their changes are allowed, and the registry beside the folder."""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import typer

from tailrace.cli.output import emit_json, say, table
from tailrace.config.contracts import Registry
from tailrace.config.load import load_pipeline
from tailrace.config.model import Pipeline
from tailrace.errors import ConfigError, SchemaError
from tailrace.schemas.compatibility.conflicts import Conflict
from tailrace.schemas.compatibility.modes import Modes, read_modes
from tailrace.schemas.compatibility.review import Finding, review
from tailrace.schemas.contracts import Contract
from tailrace.schemas.folder import COMPATIBILITY, SchemaFile, compile_files, read_folder
from tailrace.schemas.lines import line_of
from tailrace.schemas.registry.registering import Entry, compare, stated
from tailrace.schemas.registry.registering import register as register_all
from tailrace.schemas.validators import path_of

app = typer.Typer(
    help="List, check and register schemas.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
)

FILE = typer.Argument(None, metavar="[FILE]", help="The pipeline's settings; without them, --folder.")
FOLDER = typer.Option(None, "--folder", help="The schema folder, where there is no pipeline file. [default: schemas]")
AS_JSON = typer.Option(False, "--json", help="Print one JSON object instead of a table.")


@dataclass(frozen=True, slots=True)
class Target:
    """What a command speaks of: a folder, and perhaps the pipeline that names it and its registry."""

    folder: Path
    settings: Pipeline | None

    @property
    def registry(self) -> Registry | None:
        return self.settings.schemas.registry if self.settings and self.settings.schemas else None

    def files(self) -> list[SchemaFile]:
        return read_folder(self.folder)


@app.command("list")
def list_schemas(file: Path | None = FILE, folder: Path | None = FOLDER, as_json: bool = AS_JSON) -> None:
    """Show every schema: subject, version, kind, mode and references; with a registry, the id it has there.

    \b
    Examples:
      tailrace schemas list orders.yaml
      tailrace schemas list --folder schemas --json
    """
    target = _target(file, folder)
    contracts, modes = compile_files(target.files()), read_modes(target.folder)
    entries = _entries(target, list(contracts)) if target.registry else []
    ids = {(each.contract.subject, each.contract.version): each.found for each in entries}
    rows: list[dict[str, object]] = []
    for contract in contracts:
        found = ids.get((contract.subject, contract.version))
        row: dict[str, object] = {
            "subject": contract.subject,
            "version": contract.version,
            "kind": contract.kind,
            "mode": modes.of(contract.subject).value,
            "references": ", ".join(f"{ref.subject} {ref.version}" for ref in contract.references) or None,
        }
        rows.append({**row, "id": found.registered.id if found else None} if target.registry else row)
    if as_json:
        emit_json({"schemas": rows})
    else:
        table(f"Schemas in {target.folder}", rows)


@app.command()
def check(file: Path | None = FILE, folder: Path | None = FOLDER, as_json: bool = AS_JSON) -> int:
    """Check that every schema is usable, and that every change is allowed by its subject's mode.

    Needs the files alone: made for continuous integration. Modes stand in compatibility.yaml of the folder; without
    it, BACKWARD holds: a consumer with the new version reads what was written with the one before.

    Exit codes: 0 all is well, 1 a change is not allowed, 2 a schema is not usable.

    \b
    Examples:
      tailrace schemas check --folder schemas
      tailrace schemas check orders.yaml --json
    """
    target = _target(file, folder)
    files = target.files()
    compile_files(files)
    findings = review(files, _modes(target, files))
    bad = [finding for finding in findings if finding.conflicts]
    if as_json:
        emit_json({"ok": not bad, "schemas": len(findings), "conflicts": [_conflict_json(found) for found in bad]})
        return 1 if bad else 0
    for finding in bad:
        say(f"{finding.file.path} breaks {finding.mode.value}:")
        for conflict in finding.conflicts:
            for problem in conflict.problems:
                where = finding.file.locate(path_of(problem.place))
                say(f"  {where} {problem.what} ({_direction(conflict, finding)})")
        say(f"  remedy: make the change compatible, or allow it in {target.folder}/compatibility.yaml")
    say(f"{len(findings)} schemas: {len(bad) or 'none'} with a change that is not allowed.")
    return 1 if bad else 0


@app.command()
def register(
    file: Path = typer.Argument(..., metavar="FILE", help="The pipeline's settings, which name folder and registry."),
    yes: bool = typer.Option(False, "--yes", help="Register; without it, only show what would be registered."),
    as_json: bool = AS_JSON,
) -> int:
    """Register the folder's schemas with the registry: only shows what is missing, unless --yes is given.

    Schemas are registered in the order of versions and references. Doing it twice changes nothing. A version that the
    registry has with other content is never touched: a registered version must not change.

    Exit codes: 0 nothing is left to do, 1 something is, 2 a schema is not usable.

    \b
    Examples:
      tailrace schemas register orders.yaml
      tailrace schemas register orders.yaml --yes
    """
    target = _target(file, None)
    contracts = list(compile_files(target.files()))
    from tailrace.worker.registry import registry_client

    with registry_client(_registry(target)) as client:
        entries = compare(contracts, client, _subject_of(target))
        changed = [entry for entry in entries if entry.changed]
        missing = [entry for entry in entries if entry.found is None and not entry.changed]
        registered: list[Entry] = []
        if yes and not changed:
            for entry in register_all(entries, client):
                registered.append(entry)
                if not as_json:
                    say(f"registered {entry.contract.file} as {_known_as(entry)}")
    if as_json:
        states = {"changed": changed, "missing": [] if registered else missing, "registered": registered}
        emit_json({name: [_entry_json(entry) for entry in listed] for name, listed in states.items()})
    else:
        _print_plan(entries, changed, [] if registered else missing, len(registered))
    return 1 if changed or (missing and not registered) else 0


@app.command()
def diff(
    file: Path = typer.Argument(..., metavar="FILE", help="The pipeline's settings, which name folder and registry."),
    as_json: bool = AS_JSON,
) -> int:
    """Show how the folder differs from the registry: what only one of them has, and what they have differently.

    Exit codes: 0 no difference, 1 some.

    \b
    Examples:
      tailrace schemas diff orders.yaml
    """
    target = _target(file, None)
    contracts = list(compile_files(target.files()))
    from tailrace.worker.registry import registry_client

    differences: list[dict[str, object]] = []
    with registry_client(_registry(target)) as client:
        entries = compare(contracts, client, _subject_of(target))
        for entry in entries:
            if entry.found is None:
                row = {"subject": entry.subject, "version": entry.contract.version, "is": "only in the folder"}
                if entry.changed:
                    there = client.fetch(entry.subject, entry.contract.version)
                    row["is"] = "different"
                    row["diff"] = _text_diff(there.document if there else None, stated(entry.contract))
                differences.append(row)
        for subject in sorted({entry.subject for entry in entries}):
            ours = {entry.found.version for entry in entries if entry.subject == subject and entry.found}
            ours |= {entry.contract.version for entry in entries if entry.subject == subject}
            only = [version for version in client.versions(subject) if version not in ours]
            differences += [{"subject": subject, "version": each, "is": "only in the registry"} for each in only]
    if as_json:
        emit_json({"differences": differences})
    else:
        shown = [{name: value for name, value in row.items() if name != "diff"} for row in differences]
        table(f"{target.folder} beside {_registry(target).url}", shown)
        for row in differences:
            if row.get("diff"):
                say(f"\n{row['subject']} {row['version']}, registry (-) and folder (+):\n{row['diff']}")
    return 1 if differences else 0


@app.command("asyncapi")
def describe_streams(
    file: Path = typer.Argument(..., metavar="FILE", help="The pipeline's settings, such as orders.yaml."),
    version: str = typer.Option("1.0.0", "--version", help="The version of your API, for its `info`."),
) -> None:
    """Print an AsyncAPI 3 document of every stream, its messages and their schemas.

    \b
    Examples:
      tailrace schemas asyncapi orders.yaml > asyncapi.json
    """
    from tailrace.worker.description import describe

    sys.stdout.write(json.dumps(describe(load_pipeline(file), version), indent=2, ensure_ascii=False) + "\n")


def _modes(target: Target, files: list[SchemaFile]) -> Modes:
    """A mode for a subject that does not exist is most likely for one that is spelt otherwise."""
    modes = read_modes(target.folder)
    unknown = sorted(modes.subjects.keys() - {file.subject for file in files})
    if unknown:
        raise SchemaError(
            f"{target.folder}/{COMPATIBILITY}: there is no subject {', '.join(unknown)}",
            remedy="Correct the name, or remove it.",
        )
    return modes


def _target(file: Path | None, folder: Path | None) -> Target:
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


def _registry(target: Target) -> Registry:
    if target.registry is None:
        raise ConfigError(
            "the pipeline names no schema registry",
            remedy="Add `registry: {url: http://localhost:8081}` under schemas.",
        )
    return target.registry


def _subject_of(target: Target) -> Callable[[Contract], str]:
    from tailrace.worker.registry import registered_as

    return partial(registered_as, _registry(target).subject)


def _entries(target: Target, contracts: list[Contract]) -> list[Entry]:
    from tailrace.worker.registry import registry_client

    with registry_client(_registry(target)) as client:
        return compare(contracts, client, _subject_of(target))


def _print_plan(entries: list[Entry], changed: list[Entry], missing: list[Entry], registered: int) -> None:
    for entry in changed:
        say(f"{entry.contract.file}: the registry has version {entry.contract.version} of {entry.subject} differently")
        say(f"  remedy: leave the file as it was, and add the change as {entry.subject}/{entry.contract.version + 1}")
    for entry in missing:
        say(f"to register: {entry.contract.file} under {entry.subject}")
    before = sum(entry.found is not None for entry in entries)
    parts = [f"{before} registered before", f"{registered} now", f"{len(missing)} missing", f"{len(changed)} changed"]
    say(f"{len(entries)} schemas: {', '.join(parts)}.")
    if missing and not changed:
        say("Register them with --yes.")
    sys.stdout.flush()


def _known_as(entry: Entry) -> str:
    return f"version {entry.found.version} of {entry.subject}, id {entry.found.registered.id}" if entry.found else "?"


def _entry_json(entry: Entry) -> dict[str, object]:
    told: dict[str, object] = {"subject": entry.subject, "file": entry.contract.file}
    return {**told, "id": entry.found.registered.id, "version": entry.found.version} if entry.found else told


def _conflict_json(finding: Finding) -> dict[str, object]:
    problems = [
        {
            "earlier": conflict.earlier,
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


def _text_diff(there: object, here: object) -> str:
    old, new = (json.dumps(each, indent=2, sort_keys=True, ensure_ascii=False).splitlines() for each in (there, here))
    return "\n".join(list(difflib.unified_diff(old, new, lineterm="", n=2))[2:])
