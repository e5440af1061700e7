"""`tailrace import`: takes over from other connectors."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from tailrace.cli.output import emit_json, say
from tailrace.config.load import load_pipeline
from tailrace.debezium_import.connect_status import require_stopped, stop_path
from tailrace.debezium_import.connector_config import ConnectorConfig, read_config
from tailrace.debezium_import.differences import timestamp_column
from tailrace.debezium_import.offset import DebeziumOffset, read_offset, require_topic
from tailrace.debezium_import.pipeline_file import ImportedPipeline, import_config
from tailrace.errors import ConfigError, DebeziumRunning
from tailrace.manager.config_topic import write_private
from tailrace.sources.mongo.options import MongoOptions
from tailrace.worker.wiring import Wiring, wire

app = typer.Typer(
    help="Take over from other connectors.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def _import() -> None:
    """Keeps the names of subcommands: a Typer with one command would drop its name."""


@app.command("debezium")
def debezium(
    config: Path = typer.Argument(..., metavar="CONFIG", help="The connector's configuration: JSON or properties."),
    file: Path | None = typer.Option(
        None, "--file", metavar="FILE", help="The pipeline's file. Default: the connector's name with .yaml."
    ),
    name: str = typer.Option("", "--name", help="The name of the pipeline. Default: the connector's name."),
    worker: Path | None = typer.Option(
        None, "--connect-worker", metavar="FILE", help="Properties of the Connect worker: converters, brokers, topics."
    ),
    bootstrap: str = typer.Option("", "--bootstrap", help="Brokers, if they are not in the worker's properties."),
    offsets: str = typer.Option("", "--offsets", metavar="TOPIC", help="The topic of Debezium's offsets."),
    leave_out: list[str] = typer.Option([], "--leave-out", metavar="OPTION", help="Do not translate this option."),
    shadow: bool = typer.Option(False, "--shadow", help="Publish beside Debezium to shadow topics, and compare."),
    seconds: float = typer.Option(30.0, "--for", min=0, help="With --shadow: publish for this many seconds."),
    take_over: bool = typer.Option(False, "--take-over", help="Store where the stopped Debezium has ended."),
    connect: str = typer.Option("", "--connect", metavar="URL", help="Kafka Connect, to ask whether it is stopped."),
    stopped: bool = typer.Option(False, "--stopped", help="All workers of Kafka Connect have ended, or it is deleted."),
    wait: float = typer.Option(60.0, "--wait", min=0, help="Seconds to wait for the end of Debezium, or for events."),
    holes: str = typer.Option("refuse", "--holes", help="Events missing before later ones: refuse, publish or skip."),
    force: bool = typer.Option(False, "--force", help="Replace an existing pipeline's file."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Translate a Debezium outbox connector into a pipeline's file, and take over its offset.

    Without --shadow and --take-over only the file is written; options that cannot be translated are named, and the
    exit code is 1. Edit the file, try it with --shadow beside the running Debezium, then stop Debezium and --take-over.
    Both use the file if it exists.

    --take-over publishes the events that Debezium has left out within what it has published, if there are any, and
    stores the position behind its last event. Nothing is lost or published twice. The pipeline continues there. It
    needs a stopped connector: --connect asks Kafka Connect, --stopped says that it is deleted or no worker runs.

    \b
    Examples:
      tailrace import debezium orders.json --bootstrap localhost:9092
      tailrace import debezium orders.json --offsets connect-offsets --shadow
      tailrace import debezium orders.json --offsets connect-offsets --connect http://connect:8083 --take-over
    """
    logging.getLogger("librdkafka").setLevel(logging.CRITICAL)
    if shadow and take_over:
        raise ConfigError("--shadow and --take-over cannot be combined", remedy="Compare first, then take over.")
    if holes not in ("refuse", "publish", "skip"):
        raise ConfigError(f"--holes {holes} is unknown", remedy="Write refuse, publish or skip.")
    connector = read_config(config, worker=worker, leave_out=leave_out)
    path = file or Path(f"{name or connector.pipeline}.yaml")
    report: dict[str, Any] = {"connector": connector.name, "file": str(path)}
    if not path.exists() or force or not (shadow or take_over):
        made = import_config(connector, path.absolute().parent, os.environ, name=name, bootstrap=bootstrap)
        report |= _translation(made)
        if not as_json:
            _show_translation(made)
        if made.problems:
            _end(report, as_json=as_json, code=1)
        _write(path, made.text, force=force)
        if not as_json:
            say(f"wrote {path}")
    run = _Run(connector, path, report, as_json=as_json)
    if shadow:
        topic = require_topic(connector, offsets)
        run.shadow(topic, seconds, wait, _cut_over(config, path, topic, connect, connector))
    elif take_over:
        check = _stop_check(run.wiring, connector, connect, wait, stopped=stopped)
        run.take_over(require_topic(connector, offsets), check, holes)
    elif offsets or connector.offsets_topic:
        run.show_offset(require_topic(connector, offsets))
    _end(report, as_json=as_json, code=0)


class _Run:
    """What follows the translation, with the pipeline's file."""

    def __init__(self, connector: ConnectorConfig, path: Path, report: dict[str, Any], *, as_json: bool) -> None:
        self._connector = connector
        self._path = path
        self._report = report
        self._as_json = as_json
        self.wiring: Wiring = wire(load_pipeline(path))
        if isinstance(self.wiring.database, MongoOptions) != connector.is_mongo:
            raise ConfigError(f"{path} and the connector are of different databases", remedy="Give another --file.")

    def _say(self, text: str) -> None:
        if not self._as_json:
            say(text)

    def show_offset(self, topic: str) -> DebeziumOffset:
        offset = read_offset(self.wiring.kafka, topic, self._connector)
        self._report["offset"] = str(offset)
        self._say(f"Debezium's offset on {topic}: {offset}")
        return offset

    def shadow(self, topic: str, seconds: float, patience: float, cut_over: list[str]) -> None:
        from tailrace.debezium_import.compare import DIFFERENT
        from tailrace.debezium_import.shadow import ShadowRun

        offset = self.show_offset(topic)
        run = ShadowRun(self.wiring, offset, timestamp=timestamp_column(self._connector))
        done = run.run(seconds, patience, self._say)
        found = done.comparison
        nothing = not found.same and not found.is_different
        verdict = "same" if found.is_same else "nothing to compare" if nothing else "different"
        self._report["shadow"] = {
            "verdict": verdict, "events": found.events, "same": found.same, "differences": dict(found.counts),
            "examples": found.examples, "added_headers": sorted(found.added_headers),
            "changed_headers": sorted(found.changed_headers), "topics": done.topics, "cleaned": done.cleaned,
            "truncated": done.truncated, "cut_over": cut_over if found.is_same else [],
        }  # fmt: skip
        if done.cleaned:
            self._say(f"deleted topics that a killed run had left: {', '.join(done.cleaned)}")
        on = ", ".join(done.topics) or "no topic"
        self._say(f"compared {found.events:,} events on {on}: {found.same:,} are the same")
        for kind, count in sorted(found.counts.items()):
            mark = "DIFFERENT" if kind in DIFFERENT else "note"
            self._say(f"  {mark}: {kind}: {count:,} ({', '.join(found.examples[kind])})")
        if found.changed_headers:
            self._say(f"  headers that differ: {', '.join(sorted(found.changed_headers))}")
        if found.added_headers:
            self._say(f"  headers that Tailrace adds: {', '.join(sorted(found.added_headers))}")
        self._say(f"verdict: {verdict}")
        if not found.is_same:
            _end(self._report, as_json=self._as_json, code=1)
        self._say("To cut over:")
        for line in cut_over:
            self._say(f"  {line}")

    def take_over(self, topic: str, require_stopped: Callable[[], None], holes: str) -> None:
        from tailrace.debezium_import.takeover import TakeoverPlanner, take_over

        require_stopped()
        offset = self.show_offset(topic)
        planner = TakeoverPlanner(self.wiring, offset, timestamp=timestamp_column(self._connector))
        done = take_over(planner, self.wiring, require_stopped, holes=holes)  # type: ignore[arg-type]
        self._report["takeover"] = {
            "position": str(done.position), "published_beyond_offset": done.ahead, "completed": len(done.missing),
            "skipped": done.skipped, "pending": done.pending,
        }  # fmt: skip
        self._say(f"taken over at {done.position}")
        self._say(f"  {done.ahead:,} events behind the offset were published by Debezium already: not published again")
        if done.missing or done.skipped:
            self._say(f"  {len(done.missing):,} events before that were missing on their topics: published now")
        if done.skipped:
            self._say(f"  {done.skipped:,} missing events were left out (--holes skip)")
        self._say(f"  {done.pending:,} events wait in the log")
        self._say(f"Start the pipeline: tailrace run {self._path}")
        self._say("Delete the connector, so that nobody starts it again.")


def _stop_check(
    wiring: Wiring, connector: ConnectorConfig, connect: str, wait: float, *, stopped: bool
) -> Callable[[], None]:
    """Returns a function that raises if Debezium may still publish. The first call waits for its end."""
    left = [wait]

    def check() -> None:
        if connect and not stopped:
            require_stopped(connect, connector.name, left[0])
        elif not stopped:
            raise DebeziumRunning(
                "it is not known whether the connector is stopped",
                why="The database does not show it: a failed connector reads nothing, and may be restarted.",
                remedy="Add --connect with the address of Kafka Connect; or --stopped if all its workers have ended or "
                "the connector is deleted.",
            )
        if not isinstance(wiring.database, MongoOptions):
            from tailrace.debezium_import.postgres_log import require_released

            require_released(wiring.database, left[0])
        left[0] = 0.0

    return check


def _cut_over(config: Path, path: Path, offsets: str, connect: str, connector: ConnectorConfig) -> list[str]:
    """Returns the commands of a cut-over."""
    url = connect or "http://CONNECT:8083"
    return [
        f"curl -X PUT {stop_path(url, connector.name)}",
        f"tailrace import debezium {config} --file {path} --offsets {offsets} --connect {url} --take-over",
        f"tailrace run {path}",
    ]


def _translation(made: ImportedPipeline) -> dict[str, Any]:
    return {
        "pipeline": made.name,
        "problems": [{"option": p.key, "what": p.what, "remedy": p.remedy_sentence} for p in made.problems],
        "without_effect": made.notes,
        "differences": made.differences,
        "statements": made.statements,
        "literal_secrets": made.secrets,
    }


def _show_translation(made: ImportedPipeline) -> None:
    for problem in made.problems:
        say(f"cannot be translated: {problem.key} {problem.what}")
        say(f"  remedy: {problem.remedy_sentence}")
    for key in sorted(made.notes):
        say(f"without effect: {key}: {made.notes[key]}")
    for sentence in made.differences:
        say(f"different: {sentence}")
    if made.statements:
        say("run before the takeover, while Debezium runs:")
        for statement in made.statements:
            say(f"  {statement}")
    if made.secrets:
        named = ", ".join(made.secrets)
        say(f"the file contains literal secrets ({named}): better use references such as ${{env:NAME}}")


def _write(path: Path, text: str, *, force: bool) -> None:
    if path.exists() and not force and path.read_text(encoding="utf-8") != text:
        raise ConfigError(
            f"{path} exists already, with other settings",
            why="It may have been edited.",
            remedy="Give another --file, or --force to replace it. --shadow and --take-over use it as it is.",
        )
    write_private(path, text)


def _end(report: dict[str, Any], *, as_json: bool, code: int) -> None:
    if as_json:
        emit_json(report)
    if code or as_json:
        raise typer.Exit(code)
