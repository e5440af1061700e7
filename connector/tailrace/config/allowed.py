"""What a configuration that was sent over REST may use of the worker's machine: files, variables, modules.

The sender chooses the servers to which the values of references are sent, so it could otherwise read any secret that
the worker can read. The worker's operator lists what is allowed (`allow` in the file of `--http-settings`). Settings
that make a client library send credentials of the machine itself are refused as well.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tailrace.config.machine_credentials import key_files, machine_credentials, uses_environment
from tailrace.config.problems import SettingProblem
from tailrace.config.references import SecretReference, found_references


@dataclass(frozen=True, slots=True)
class Allowed:
    """What is allowed; by default nothing. `variables` may end with `*`."""

    files: tuple[Path, ...] = ()
    variables: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    logins: tuple[str, ...] = ()
    """Variables with which libpq would log in, which the worker has: a configuration needs its own password."""

    def problems(self, tree: Mapping[str, Any], folder: Path) -> Iterator[SettingProblem]:
        """Yields what nested settings may not use. Paths are relative to `folder`."""
        for place, text in _texts(tree, ()):
            for reference in found_references(text):
                if not self._permits(reference, folder):
                    yield _not_allowed(place, reference)
        yield from self._rule_problems(tree.get("rules"))
        yield from machine_credentials(tree)
        logins = [each for each in self.logins if not any(fnmatchcase(each, own) for own in self.variables)]
        if logins and uses_environment(tree):
            yield SettingProblem(
                ("source", "postgres"),
                f"has no password, and libpq would send that of the worker's {logins[0]} to the server",
                f"add a password, such as a reference; or the worker's operator unsets {logins[0]}",
            )
        for place, name in key_files(tree):
            # A relative path would be one of the process's own folder.
            if not Path(name).is_absolute() or not self._permits(SecretReference("file", name), folder):
                yield _not_allowed(place, SecretReference("file", name))

    def _permits(self, reference: SecretReference, folder: Path) -> bool:
        if reference.kind == "env":
            return any(fnmatchcase(reference.name, each) for each in self.variables)
        try:
            real = Path(os.path.realpath(folder / reference.name))
        except ValueError:  # NUL
            return False
        return any(real.is_relative_to(os.path.realpath(each)) for each in self.files)

    def _rule_problems(self, rules: object) -> Iterator[SettingProblem]:
        checks = rules.get("checks") if isinstance(rules, dict) else None
        for kind, names in checks.items() if isinstance(checks, dict) else ():
            for name in names if isinstance(names, list | tuple) else (names,):
                module, colon, _ = str(name).partition(":")
                if colon and not any(module == each or module.startswith(f"{each}.") for each in self.rules):
                    yield SettingProblem(
                        ("rules", "checks", str(kind)),
                        f"names the module {module[:60]}, whose code would be run on the worker's machine",
                        "the worker's operator can allow it: `allow: {rules: [" + module[:60] + "]}` in the file of "
                        "--http-settings",
                    )


NOTHING = Allowed()


def _not_allowed(place: tuple[str, ...], reference: SecretReference) -> SettingProblem:
    section = "variables" if reference.kind == "env" else "files"
    shown = reference.name[:100] if reference.kind == "env" else str(Path(reference.name[:200]).parent)
    return SettingProblem(
        place,
        f"refers to {'the variable' if reference.kind == 'env' else 'the file'} {reference.name[:200]}, which "
        "configurations that are sent over REST may not use",
        f"the worker's operator can allow it: `allow: {{{section}: [{shown}]}}` in the file of --http-settings. Or "
        "configure this pipeline with a file in the worker's folder",
    )


def _texts(value: object, place: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _texts(inner, (*place, str(name)))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner, place)
    elif isinstance(value, str):
        yield place, value
