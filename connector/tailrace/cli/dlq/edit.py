"""Edits a payload in an editor: JSON is indented for reading, and made compact again afterwards.

Only white space between JSON tokens changes. The spelling of numbers and the order of names stay: a payload is
published byte for byte, and 1.10 must not become 1.1 because a name was corrected.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import tempfile
from pathlib import Path

from tailrace.errors import ConfigError

_words = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+').findall


def edited(payload: bytes, name: str) -> bytes | None:
    """The payload after editing; None if it was not changed."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        raise ConfigError(
            "the payload is not text, so it cannot be edited", remedy="Save a corrected one and give --payload FILE."
        ) from None
    shown = indented(text)
    with tempfile.TemporaryDirectory(prefix="tailrace-") as folder:
        file = Path(folder) / f"{name}.json"
        file.write_bytes((shown + "\n").encode())
        _open(file)
        after = file.read_bytes().decode(errors="surrogateescape").removesuffix("\n")
    if after == shown:
        return None
    # A payload on one line stays on one line.
    return (after if "\n" in text else compact(after)).encode(errors="surrogateescape")


def indented(text: str) -> str:
    """JSON with one field per line; other text stays as it is."""
    if not _is_json(text):
        return text
    out: list[str] = []
    depth = 0
    words = _words(text)
    for word, after in zip(words, [*words[1:], ""], strict=True):
        if word in ("{", "["):
            depth += 1
            out.append(word if after in ("}", "]") else word + _line(depth))
        elif word in ("}", "]"):
            depth -= 1
            out.append(word if out and out[-1] in ("{", "[") else _line(depth) + word)
        else:
            out.append({",": "," + _line(depth), ":": ": "}.get(word, word))
    return "".join(out)


def compact(text: str) -> str:
    """JSON on one line, as `json.dumps` writes it; other text stays as it is."""
    if not _is_json(text):
        return text
    return "".join({",": ", ", ":": ": "}.get(word, word) for word in _words(text))


def _line(depth: int) -> str:
    return "\n" + "  " * depth


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _open(file: Path) -> None:
    editor = os.environ.get("EDITOR") or os.environ.get("VISUAL")
    if not editor:
        raise ConfigError(
            "there is no editor: neither EDITOR nor VISUAL is set",
            remedy="Set one, such as `EDITOR=nano`, or give the payload with --payload FILE.",
        )
    try:
        code = subprocess.run([*shlex.split(editor), str(file)], check=False).returncode
    except (OSError, ValueError) as error:
        raise ConfigError(f"the editor {editor!r} does not start: {error}", remedy="Correct EDITOR.") from None
    if code != 0:
        raise ConfigError(f"the editor ended with {code}", why="That cancels the command.", remedy="Nothing was done.")
