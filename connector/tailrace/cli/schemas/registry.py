"""`tailrace schemas register` and `diff`: compare the folder with the registry."""

from __future__ import annotations

import difflib
import json
import sys
from pathlib import Path

import typer

from tailrace.cli.output import emit_json, say, table
from tailrace.cli.schemas.target import AS_JSON, BOTH, find_target, registry_of, subject_of
from tailrace.schemas.folder import compile_files
from tailrace.schemas.registry.register import RegistryEntry, compare, number_in, stated
from tailrace.schemas.registry.register import register as register_all


def register(
    file: Path = BOTH,
    yes: bool = typer.Option(False, "--yes", help="Register; without it, only show what would be registered."),
    as_json: bool = AS_JSON,
) -> int:
    """Register the folder's schemas with the registry. Without --yes, only show what is missing.

    Schemas are registered in the order of versions and references. Running it twice changes nothing. A version that
    the registry has with different content is never changed.

    Exit codes: 0 everything is registered, 1 something is missing, 2 a schema is invalid.

    \b
    Examples:
      tailrace schemas register orders.yaml
      tailrace schemas register orders.yaml --yes
    """
    target = find_target(file, None)
    schemas = list(compile_files(target.files()))
    from tailrace.worker.registry import registry_client

    with registry_client(registry_of(target)) as client:
        entries = compare(schemas, client, subject_of(target))
        changed = [entry for entry in entries if entry.changed]
        missing = [entry for entry in entries if entry.found is None and not entry.changed]
        registered: list[RegistryEntry] = []
        if yes and not changed:
            for entry in register_all(entries, client):
                registered.append(entry)
                if not as_json:
                    say(f"registered {entry.schema.file} as {_known_as(entry)}")
    if as_json:
        states = {"changed": changed, "missing": [] if registered else missing, "registered": registered}
        emit_json({name: [_entry_json(entry) for entry in listed] for name, listed in states.items()})
    else:
        _print_plan(entries, changed, [] if registered else missing, len(registered))
    return 1 if changed or (missing and not registered) else 0


def diff(
    file: Path = BOTH,
    as_json: bool = AS_JSON,
) -> int:
    """Show how the folder differs from the registry: schemas that only one of them has, and different contents.

    Exit codes: 0 no differences, 1 differences.

    \b
    Examples:
      tailrace schemas diff orders.yaml
    """
    target = find_target(file, None)
    schemas = list(compile_files(target.files()))
    from tailrace.worker.registry import registry_client

    differences: list[dict[str, object]] = []
    with registry_client(registry_of(target)) as client:
        entries = compare(schemas, client, subject_of(target))
        for entry in entries:
            if entry.found is None:
                row: dict[str, object] = {
                    "subject": entry.subject,
                    "version": str(entry.schema.version),
                    "is": "only in the folder",
                }
                if entry.changed:
                    there = client.fetch(entry.subject, number_in(client, entry))
                    row["is"] = "different"
                    row["diff"] = _text_diff(there.document if there else None, stated(entry.schema))
                differences.append(row)
        for subject in sorted({entry.subject for entry in entries}):
            own = [entry for entry in entries if entry.subject == subject]
            ours = {entry.found.number if entry.found else number_in(client, entry) for entry in own}
            only = [number for number in client.numbers(subject) if number not in ours]
            versions = [str(client.version(subject, number)) for number in only]
            differences += [{"subject": subject, "version": each, "is": "only in the registry"} for each in versions]
    if as_json:
        emit_json({"differences": differences})
    else:
        shown = [{name: value for name, value in row.items() if name != "diff"} for row in differences]
        table(f"{target.folder} compared with {registry_of(target).url}", shown)
        for row in differences:
            if row.get("diff"):
                say(f"\n{row['subject']} {row['version']}, registry (-) and folder (+):\n{row['diff']}")
    return 1 if differences else 0


def _print_plan(
    entries: list[RegistryEntry], changed: list[RegistryEntry], missing: list[RegistryEntry], registered: int
) -> None:
    for entry in changed:
        say(f"{entry.schema.file}: the registry has a different version {entry.schema.version} of {entry.subject}")
        say(f"  remedy: restore the file, and add the change as {entry.subject}/{entry.schema.version.next()}")
    for entry in missing:
        say(f"to register: {entry.schema.file} under {entry.subject}")
    before = sum(entry.found is not None for entry in entries)
    parts = [f"{before} already registered", f"{registered} now", f"{len(missing)} missing", f"{len(changed)} changed"]
    say(f"{len(entries)} schemas: {', '.join(parts)}.")
    if missing and not changed:
        say("Register them with --yes.")
    sys.stdout.flush()


def _known_as(entry: RegistryEntry) -> str:
    return f"version {entry.found.number} of {entry.subject}, id {entry.found.registered.id}" if entry.found else "?"


def _entry_json(entry: RegistryEntry) -> dict[str, object]:
    described: dict[str, object] = {"subject": entry.subject, "file": entry.schema.file}
    return {**described, "id": entry.found.registered.id, "version": entry.found.number} if entry.found else described


def _text_diff(there: object, here: object) -> str:
    old, new = (json.dumps(each, indent=2, sort_keys=True, ensure_ascii=False).splitlines() for each in (there, here))
    return "\n".join(list(difflib.unified_diff(old, new, lineterm="", n=2))[2:])
