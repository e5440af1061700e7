"""`--worker URL`: runs a command on a worker and prints its output, with the same exit code.

Arguments are parsed here, so mistakes are reported as for a local command. Files that the command reads are sent, and
the file that it writes is written here.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import SplitResult, quote, urlsplit

from tailrace import errors
from tailrace.api.v1.operation import Operation
from tailrace.errors import CertificateInvalid, ConfigError, TailraceError, WorkerUnavailable
from tailrace.outbox.writer.worker_connection import AUTHORITY, TOKEN, TOKEN_FILE, authorization, open_connection

OPTION, VARIABLE = "--worker", "TAILRACE_WORKER"
PORT = 8083
DOCTOR = "doctor"
"""The command that checks all pipelines of the worker if none is named."""
CONNECT_SECONDS = 10.0
READ_SECONDS = 60.0
"""A worker sends something at least every 10 s."""
MAX_FILE_BYTES = 700_000
"""Largest file that is sent; a worker takes requests of 1 MB."""
_is_name = re.compile(r"[A-Za-z0-9_-]+").fullmatch


class WorkerCommand(NamedTuple):
    """The command line without `--worker`, and the address of the worker; None to run the command here."""

    url: str | None
    words: list[str]


def find_target(words: list[str]) -> WorkerCommand:
    """Takes `--worker URL` out of a command line, or takes the address from the environment."""
    rest: list[str] = []
    url: str | None = None
    given = iter(words)
    for word in given:
        if word == "--":
            rest += [word, *given]
        elif word == OPTION:
            url = next(given, "")
            if not url:
                raise ConfigError(f"{OPTION} has no value", remedy=f"Write {OPTION} http://127.0.0.1:{PORT}.")
        elif word.startswith(f"{OPTION}="):
            url = word.partition("=")[2]
        else:
            rest.append(word)
    if url is None and (default := os.environ.get(VARIABLE)) and operation_name(rest) and "--help" not in rest:
        url = default
    return WorkerCommand(url, rest)


def operation_name(words: list[str]) -> str | None:
    """Returns the operation that a command line calls; None if a worker does not run it."""
    from tailrace.cli.operations import COMMANDS

    return next((each.name for each in COMMANDS if words[: len(each.name.split())] == each.name.split()), None)


def run_remote(url: str, words: list[str]) -> int:
    """Runs a command on a worker; returns its exit code."""
    name = operation_name(words)
    if name is None:
        from tailrace.cli.operations import COMMANDS

        shown = " ".join(word for word in words[:2] if not word.startswith("-"))
        raise ConfigError(
            f"`tailrace {shown}` cannot be run on a worker",
            remedy=f"Leave out {OPTION}. A worker runs: {', '.join(each.name for each in COMMANDS)}.",
        )
    from tailrace.cli.operations import operation

    call = _call(operation(name), name, words[len(name.split()) :])
    code: int | None = None
    for line in _answer(url, call):
        if "exit_code" in line:
            code = int(line["exit_code"])
        elif "file" in line:
            _write(call.output or Path(str(line["file"])), str(line["content"]))
        else:
            for stream, out in (("stdout", sys.stdout), ("stderr", sys.stderr)):
                if stream in line:
                    out.write(str(line[stream]))
                    out.flush()
    if code is None:
        raise WorkerUnavailable(
            f"the connection to {url} ended before the command did",
            why="The worker was stopped, or the network was interrupted.",
            remedy="Run it again: a command that was stopped continues, and nothing is published twice.",
        )
    return code


class _Call(NamedTuple):
    pipeline: str
    body: dict[str, Any]
    output: Path | None


def _call(operation: Operation, name: str, words: list[str]) -> _Call:
    from tailrace.cli.operations import WITHHELD, find_command

    command = find_command(name)
    context = command.make_context(f"tailrace {name}", words)
    body: dict[str, Any] = {"command": name, "parameters": {}, "contents": {}}
    pipeline, output = "", None
    for each in command.params:
        value = context.params.get(each.name)
        key = each.opts[0].lstrip("-").replace("-", "_") if each.opts[0].startswith("-") else each.name
        if each.name == "as_json":
            body["json"] = value
        elif each.name == "yes":
            body["yes"] = value
        elif each.name == "output":
            output = value
        elif each.name in ("file", "files") and not operation.settings_option:
            pipeline = "" if name == DOCTOR and not value else _pipeline(value)
        elif each.name in WITHHELD:
            if context.get_parameter_source(each.name).name == "COMMANDLINE":
                raise ConfigError(
                    f"{each.opts[0]} cannot be used with {OPTION}", why=WITHHELD[each.name], remedy="Leave it out."
                )
        elif operation.settings_option and each.name == "file":
            content = _content(value)
            pipeline = _pipeline_of(content, value)
            body["contents"]["plan"] = {"name": value.name, "base64": base64.b64encode(content).decode()}
        elif operation.parameter(key).kind == "content":
            if value is not None:
                body["contents"][key] = {"name": value.name, "base64": base64.b64encode(_content(value)).decode()}
        elif value is not None:
            body["parameters"][key] = list(value) if isinstance(value, list | tuple) else value
    if output is not None and operation.writes and not output.is_dir():
        body["output"] = output.name
    return _Call(pipeline, body, None if output is None or output.is_dir() else output)


def _pipeline(value: object) -> str:
    names = value if isinstance(value, list | tuple) else [value]
    if len(names) != 1 or names[0] is None:
        several = len(names) > 1
        raise ConfigError(
            "several pipelines are named" if several else "no pipeline is named",
            remedy=f"With {OPTION}, give the name of one pipeline instead of a file; see /api/v1/pipelines.",
        )
    name = str(names[0])
    if not _is_name(name):
        raise ConfigError(
            f"{name} is not the name of a pipeline",
            why="A worker knows its pipelines by their names, not by files.",
            remedy=f"With {OPTION}, give the name: the setting `pipeline` in the file.",
        )
    return name


def _pipeline_of(plan: bytes, file: Path) -> str:
    try:
        return str(json.loads(plan)["pipeline"])
    except (ValueError, KeyError, TypeError):
        raise ConfigError(
            f"{file} is not a replay plan", remedy="Make one: `tailrace replay plan`. Nothing was changed."
        ) from None


def _content(file: Path) -> bytes:
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}", remedy="Name a file.") from None
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(
            f"{file} has {len(content):,} bytes, more than the {MAX_FILE_BYTES:,} that can be sent to a worker",
            remedy=f"Run the command without {OPTION}, on a machine with the settings file.",
        )
    return content


def _answer(url: str, call: _Call) -> Iterator[dict[str, Any]]:
    """Sends the command; yields the lines of the answer."""
    address, port, base = _address(url)
    place = f"/pipelines/{quote(call.pipeline, safe='')}" if call.pipeline else ""
    path = f"{base}/api/v1{place}/command"
    headers = {"content-type": "application/json", "accept": "application/x-ndjson", **authorization(address)}
    connection = open_connection(address, port, CONNECT_SECONDS)
    try:
        connection.connect()
        connection.sock.settimeout(READ_SECONDS)
        connection.request("POST", path, json.dumps(call.body).encode(), headers)
        response = connection.getresponse()
        if response.status != http.HTTPStatus.OK:
            raise _refusal(url, response.status, response.read(1_000_000))
        while line := response.readline():
            if line.strip():
                yield json.loads(line)
    except ssl.SSLCertVerificationError as error:
        raise CertificateInvalid(
            f"the certificate of the worker at {url} is not accepted",
            why=f"{error.verify_message}.",
            remedy=f"Name its authority in {AUTHORITY}, and use the host name that its certificate has.",
        ) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise WorkerUnavailable(
            f"the worker at {url} does not answer",
            why=str(error) or type(error).__name__,
            remedy=f"Check that `tailrace worker` runs there, and the address: {OPTION} http://127.0.0.1:{PORT}.",
        ) from None
    finally:
        connection.close()


def _address(url: str) -> tuple[SplitResult, int, str]:
    """Returns the address, its port, and the path before all others."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host, port = parts.hostname, parts.port
    except ValueError:
        parts, host, port = urlsplit(""), None, None
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigError(f"{url!r} is not the address of a worker", remedy=f"Write http://127.0.0.1:{PORT}.")
    if "@" in parts.netloc:
        raise ConfigError(
            "the address of a worker contains a user or password",
            why="Everybody on this machine can read the arguments of a command.",
            remedy=f"Write the address without it, and set {TOKEN_FILE} or {TOKEN}.",
        )
    return parts, port or (443 if parts.scheme == "https" else PORT), parts.path.rstrip("/")


def _refusal(url: str, status: int, body: bytes) -> TailraceError:
    """Returns the error that a worker answered with."""
    try:
        found = json.loads(body)
        code, what, why, remedy = (str(found[name]) for name in ("code", "what", "why", "remedy"))
    except (ValueError, KeyError, TypeError):
        return WorkerUnavailable(
            f"{url} answered with HTTP status {status}, and is not a worker of this version",
            remedy="Check the address, and use the same version of Tailrace on both sides.",
        )
    kind = getattr(errors, code, None)
    if not (isinstance(kind, type) and issubclass(kind, TailraceError)):
        kind = WorkerUnavailable
    try:
        return kind(what, why=why, remedy=remedy)
    except TypeError:
        return WorkerUnavailable(what, why=why, remedy=remedy)


def _write(file: Path, content: str) -> None:
    """Creates the file that the command wrote, readable by its owner only."""
    try:
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            out.write(content)
    except FileExistsError:
        raise ConfigError(f"{file} exists already", remedy="Give another file with --output.") from None
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be written: {error.strerror}", remedy="Give another file with --output."
        ) from None
