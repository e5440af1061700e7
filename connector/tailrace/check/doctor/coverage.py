"""Which sampled events would be published today: their schemas, routes and topics. Runs the pipeline's own steps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from tailrace.check.findings import advice, new_file, note, problem, shell, warning
from tailrace.check.result import CheckResult, Fix
from tailrace.errors import LayoutMismatch, Rejected, SchemaError
from tailrace.event import OutboxEvent, Route, Row
from tailrace.outbox.layouts import Layout
from tailrace.schema_versions import FORM, parse_version
from tailrace.schemas.compiled import SchemaLookup, is_plain

K = TypeVar("K")
Validate = Callable[[OutboxEvent, str], object]
NAMED = 20
"""How many kinds of events are reported one by one."""


@dataclass(slots=True)
class Coverage:
    """The sampled events that would not be published, with the number of similar rows in the sample.

    Keys are type and version; type, aggregate and reason; topic; type and reason.
    """

    events: int = 0
    without_schema: dict[tuple[str, str], int] = field(default_factory=dict)
    without_route: dict[tuple[str, str, str], int] = field(default_factory=dict)
    topics: dict[str, int] = field(default_factory=dict)
    invalid: dict[tuple[str, str], int] = field(default_factory=dict)
    unreadable: dict[str, int] = field(default_factory=dict)
    subjects: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class PipelineSteps:
    """The steps of the pipeline that decide what happens to an event."""

    layout: Layout
    route: Callable[[OutboxEvent], Route]
    validate: Validate
    schemas: SchemaLookup | None
    subject: Callable[[str, str], str]


def cover(rows: Iterable[tuple[Row, int]], steps: PipelineSteps) -> Coverage:
    """Runs the steps on sampled rows. Reasons contain no values of payloads."""
    found = Coverage()
    for row, number in rows:
        found.events += 1
        try:
            event = steps.layout.read(row)
        except Rejected as rejected:
            _add(found.unreadable, rejected.reason.value, number)
            continue
        except LayoutMismatch:
            return found  # the check of the columns reports it
        try:
            topic = steps.route(event).topic
        except Rejected as rejected:
            _add(found.without_route, (event.type, event.aggregate, rejected.reason.value), number)
            topic = ""
        else:
            _add(found.topics, topic, number)
        _validate(found, steps, event, topic, number)
    return found


def _validate(found: Coverage, steps: PipelineSteps, event: OutboxEvent, topic: str, number: int) -> None:
    found.subjects.add(steps.subject(event.type, topic))
    missing = not _has_schema(steps, event, topic)
    if missing and event.payload is not None:
        _add(found.without_schema, (event.type, event.version or ""), number)
        return
    try:
        steps.validate(event, topic)
    except Rejected as rejected:
        # The explanation may quote the payload.
        _add(found.invalid, (event.type, rejected.reason.value), number)


def _has_schema(steps: PipelineSteps, event: OutboxEvent, topic: str) -> bool:
    """Whether there is a schema, also one that cannot be used; True without validation."""
    if steps.schemas is None:
        return True
    subject, version = steps.subject(event.type, topic), event.version
    if (subject, version) in steps.schemas.known:
        return True
    if version is not None and parse_version(version) is None:
        return False
    try:
        return steps.schemas.find(subject, version) is not None
    except SchemaError:
        return True


def _add(counts: dict[K, int], key: K, number: int) -> None:
    counts[key] = max(counts.get(key, 0), number)


@dataclass(frozen=True, slots=True)
class CoverageContext:
    """What the findings are compared with, and the names for their fixes."""

    file: str
    schemas_folder: str | None
    topics_folder: str | None
    passes_unknown: bool
    existing_topics: Collection[str] | None
    creates_topics: bool
    create_topic: Callable[[str], str]
    """Returns the command that creates a topic."""


def check_coverage(found: Coverage, context: CoverageContext, sampled: str) -> list[CheckResult]:
    results: list[CheckResult] = []
    for (kind, version), number in _first(found.without_schema):
        named = f"{kind!r} {f'version {version}' if version else ''}".strip()
        what = f"there is no schema for type {named}: {_rows(number)} in the sample ({sampled})"
        if context.passes_unknown:
            what += "; they are published without validation"
        report = note if context.passes_unknown else warning
        results.append(report("type-without-schema", what, *_schema_fixes(context, kind, version)))
    for (kind, aggregate, _), number in _first(found.without_route):
        what = f"no rule matches type {kind!r}, aggregate {aggregate!r}: {_rows(number)} in the sample ({sampled})"
        results.append(warning("type-without-route", what, *_route_fixes(context, kind, aggregate)))
    if context.existing_topics is not None and not context.creates_topics:
        for topic, number in _first(found.topics):
            if topic not in context.existing_topics:
                what = f"there is no topic {topic}, and topics.create is false: {_rows(number)} in the sample"
                results.append(problem("type-topic-missing", what, shell(context.create_topic(topic))))
    for (kind, reason), number in _first(found.invalid):
        what = f"rows of type {kind!r} would be rejected: {reason}: {_rows(number)} of its kind in the sample"
        fix = advice(f"See why: `tailrace trace ID {context.file}` for one of them, or `tailrace dlq list`.")
        results.append(note("event-invalid", what, fix))
    for reason, number in _first(found.unreadable):
        what = f"rows cannot be read as events: {reason}: {_rows(number)} in the sample ({sampled})"
        results.append(warning("row-unreadable", what, advice("Set outbox.columns or outbox.layout to fit the rows.")))
    return results


def _first(counts: dict[K, int]) -> list[tuple[K, int]]:
    return sorted(counts.items(), key=lambda each: -each[1])[:NAMED]


def _rows(number: int) -> str:
    return f"{number:,} row{'s' * (number != 1)}"


def _schema_fixes(context: CoverageContext, kind: str, version: str) -> list[Fix]:
    if context.schemas_folder is None:
        return [advice(f"Register a schema for {kind} in the registry, or set schemas.unknown: pass.")]
    if version and parse_version(version) is None:
        return [advice(f"No schema can have this version: let the service write another one. {FORM}")]
    if not _is_file_name(kind):
        return [advice("The type cannot be the name of a file: let the service write another one.")]
    # Accepts every object: a person knows what belongs into the payload.
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object"}
    return [new_file(f"{context.schemas_folder}/{kind}/{version or 1}.json", schema)]


def _route_fixes(context: CoverageContext, kind: str, aggregate: str) -> list[Fix]:
    if context.topics_folder is None:
        return [advice("Set topics.template, or topics.folder with a rule for this type.")]
    if not _is_file_name(kind) or not is_plain(aggregate or "x"):
        return [advice(f"Add a rule to {context.topics_folder} that matches this type.")]
    match = {"type": kind, **({"aggregate": aggregate} if aggregate else {})}
    rule = {"topic": f"{aggregate}.events" if aggregate else kind, "match": match}
    return [new_file(f"{context.topics_folder}/{kind}.yaml", rule)]


def _is_file_name(kind: str) -> bool:
    """Names that begin with a dot are not read."""
    return is_plain(kind) and not kind.startswith(".")
