"""Makes findings of `tailrace doctor`: results with a code of their own, and fixes of a known kind. Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from tailrace.check.codes import CODES
from tailrace.check.result import CheckResult, Fix, State


def problem(code: str, found: str, *fixes: Fix) -> CheckResult:
    return _finding(code, State.FAIL, found, fixes)


def warning(code: str, found: str, *fixes: Fix) -> CheckResult:
    return _finding(code, State.WARN, found, fixes)


def note(code: str, found: str, *fixes: Fix) -> CheckResult:
    return _finding(code, State.NOTE, found, fixes)


def _finding(code: str, state: State, found: str, fixes: tuple[Fix, ...]) -> CheckResult:
    if code not in CODES:
        raise KeyError(code)
    return CheckResult(code, state, found, fixes=fixes)


def sql(text: str) -> Fix:
    return Fix("sql", text)


def shell(text: str) -> Fix:
    return Fix("shell", text)


def mongosh(text: str) -> Fix:
    return Fix("mongosh", text)


def advice(text: str) -> Fix:
    return Fix("text", text)


def settings(file: str, values: Mapping[str, Any]) -> Fix:
    """Settings to merge into a YAML file, as block mappings."""
    return Fix("yaml", "\n".join([f"# {file}", *_block(values, "")]))


def new_file(file: str, content: Mapping[str, Any]) -> Fix:
    """A command that writes a new file with one JSON object, which is also YAML; it never replaces a file."""
    text = shlex.quote(json.dumps(content))
    folder, _, _ = file.rpartition("/")
    make = f"mkdir -p {shlex.quote(folder)} && " if folder else ""
    name = shlex.quote(file)
    return shell(f"{make}test ! -e {name} && printf '%s\\n' {text} > {name}")


def _block(values: Mapping[str, Any], indent: str) -> list[str]:
    lines: list[str] = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            lines += [f"{indent}{name}:", *_block(value, f"{indent}  ")]
        else:
            # JSON's form of strings, numbers and lists is YAML's.
            lines.append(f"{indent}{name}: {json.dumps(value, ensure_ascii=False)}")
    return lines
