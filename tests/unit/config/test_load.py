"""A file and the environment become PipelineSettings, or one error with every problem and no secret."""
# ruff: noqa: E501  the table of broken settings reads best with one case a line

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tailrace.config.load import load_pipeline
from tailrace.config.model import PipelineSettings
from tailrace.config.secrets import mask
from tailrace.errors import ConfigError

GOOD = """\
pipeline: orders
source:
  postgres: postgresql://tailrace:${env:PW}@localhost:5432/shop
  table: public.outbox
topics:
  folder: topics
kafka:
  bootstrap: localhost:9092
"""
PW = {"PW": "hunter2-s3cret"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "topics").mkdir()
    (tmp_path / "schemas").mkdir()
    return tmp_path


def load(folder: Path, text: str = GOOD, environ: dict[str, str] | None = None) -> PipelineSettings:
    file = folder / "orders.yaml"
    file.write_text(text, encoding="utf-8")
    return load_pipeline(file, PW if environ is None else environ)


def failure(folder: Path, text: str, environ: dict[str, str] | None = None) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(folder, text, environ)
    error = caught.value
    # Neither the error nor its printed form may contain a secret or pydantic's text.
    assert error.__cause__ is None
    assert error.__suppress_context__
    for shown in (str(error), repr(error), error.what, error.why, error.remedy):
        assert "s3cret" not in shown
        assert "pydantic" not in shown
    return error


def test_loads(folder: Path) -> None:
    pipeline = load(folder)
    assert pipeline.source.postgres.reveal() == "postgresql://tailrace:hunter2-s3cret@localhost:5432/shop"
    assert str(pipeline.source.postgres) == "postgresql://tailrace:${env:PW}@localhost:5432/shop"
    assert pipeline.topics.folder == folder / "topics"
    assert pipeline.schemas is None


def test_folders_are_relative_to_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    (folder / "orders.yaml").write_text(GOOD)
    assert load_pipeline(f"{folder.name}/orders.yaml", PW).topics.folder == folder / "topics"


def test_uses_the_process_environment_by_default(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "orders.yaml").write_text(GOOD)
    monkeypatch.setenv("PW", "from-process-s3cret")
    assert "from-process-s3cret" in load_pipeline(folder / "orders.yaml").source.postgres.reveal()


def test_an_empty_section_has_its_defaults(folder: Path) -> None:
    pipeline = load(folder, GOOD + "schemas:\nlimits:\n")
    assert pipeline.schemas is not None
    assert pipeline.schemas.folder == folder / "schemas"
    assert pipeline.limits.batch_records == 6000


def test_an_empty_section_still_needs_its_folder(folder: Path) -> None:
    (folder / "schemas").rmdir()
    error = failure(folder, GOOD + "schemas:\n")
    assert "orders.yaml:9: schemas.folder " in error.what
    assert "Create the folder" in error.remedy


def test_references_anywhere_are_shown_as_written(folder: Path) -> None:
    text = GOOD.replace("localhost:9092", "${env:BROKERS}").replace("pipeline: orders", "pipeline: ${env:NAME}")
    text += "limits: {batch_records: '${env:N}'}\noutbox: {columns: {id: '${env:ID}'}}\n"
    environ = {**PW, "BROKERS": "kafka-1.example:9092", "NAME": "billing", "N": "77", "ID": "event_id"}
    pipeline = load(folder, text, environ)
    assert (pipeline.kafka.bootstrap, pipeline.limits.batch_records) == ("kafka-1.example:9092", 77)
    assert (pipeline.name, pipeline.source.slot) == ("billing", "tailrace_billing")
    for shown in (repr(pipeline), str(pipeline), pipeline.model_dump_json(), repr(pipeline.kafka)):
        assert "kafka-1.example" not in shown
        assert "${env:BROKERS}" in shown
    assert "${env:ID}" in repr(pipeline)


def test_passwords_may_contain_any_character(folder: Path) -> None:
    pipeline = load(folder, environ={"PW": "a@b/c:d%?#"})
    assert pipeline.source.postgres.reveal() == "postgresql://tailrace:a%40b%2Fc%3Ad%25%3F%23@localhost:5432/shop"


def test_secrets_from_files(folder: Path) -> None:
    (folder / "kafka.properties").write_text("user=svc\npassword=file-s3cret\n")
    settings = "  settings:\n    sasl.password: ${file:kafka.properties:password}\n    linger.ms: 5\n"
    pipeline = load(folder, GOOD + settings)
    assert pipeline.kafka.client_settings() == {"sasl.password": "file-s3cret", "linger.ms": 5}
    assert "file-s3cret" not in repr(pipeline) + pipeline.model_dump_json()
    assert "${file:kafka.properties:password}" in pipeline.model_dump_json()


def test_the_environment_overrides_the_file(folder: Path) -> None:
    environ = {
        **PW,
        "TAILRACE_PIPELINE": "billing",
        "TAILRACE_KAFKA__BOOTSTRAP": "other:9093",
        "TAILRACE_LIMITS__BATCH_RECORDS": "5",
        "TAILRACE_SOURCE__CREATE": "false",
        "TAILRACE_SOURCE__ORDER_BY": "[at, id]",
        "TAILRACE_OUTBOX__COLUMNS__KEY": "key_of",
        "TAILRACE_SCHEMAS__UNKNOWN": "pass",
        "TAILRACE_KAFKA__SETTINGS__SASL_PASSWORD": "variable-s3cret",
        "TAILRACE_SOURCE__POSTGRES": "host=h password=${env:PW}",
    }
    pipeline = load(folder, environ=environ)
    assert (pipeline.name, pipeline.kafka.bootstrap) == ("billing", "other:9093")
    assert (pipeline.limits.batch_records, pipeline.source.create) == (5, False)
    assert (pipeline.source.order_by, pipeline.outbox.columns.key) == (("at", "id"), "key_of")
    assert pipeline.schemas is not None
    assert pipeline.schemas.unknown == "pass"
    assert pipeline.kafka.client_settings() == {"sasl.password": "variable-s3cret"}
    assert pipeline.source.postgres.reveal() == "host=h password=hunter2-s3cret"
    assert "s3cret" not in repr(pipeline) + pipeline.model_dump_json()


def test_other_variables_are_not_settings(folder: Path) -> None:
    others = [
        "KILL",
        "STACK_POSTGRES",
        "LOG",
        "LOG_FORMAT",
        "KAFKA_PORT",
        "KAFKA",
        "UNKNOWN__THING",
        "PIPELINE__X",
    ]
    assert load(folder, environ={**PW, **{f"TAILRACE_{name}": "x" for name in others}}) == load(folder)


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        (
            "TAILRACE_KAFKA__BOOTSTAP",
            "s3cret",
            ["kafka.bootstap is not a setting", "Did you mean `bootstrap`?"],
        ),
        (
            "TAILRACE_LIMITS__BATCH_RECORDS",
            "many",
            ["limits.batch_records is 'many'", "batch_records: 6000"],
        ),
        ("TAILRACE_SOURCE__ORDER_BY", "[s3cret", ["source.order_by is not valid YAML", "[a, b]"]),
        ("TAILRACE_KAFKA__SETTINGS__ACKS", "1", ["kafka.settings.acks", "lose acknowledged events", "Remove it"]),
    ],
)
def test_invalid_variables_are_named(folder: Path, variable: str, value: str, expected: list[str]) -> None:
    error = failure(folder, GOOD, {**PW, variable: value})
    for part in [f"orders.yaml (from {variable})", *expected]:
        assert part in str(error)


def changed(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new)


class Broken(NamedTuple):
    name: str
    text: str
    line: int | None
    field: str
    says: str
    remedy: str


BROKEN = [
    ("no name", changed("pipeline: orders\n", ""), None, "pipeline", "is missing", "Add `pipeline: orders`"),
    ("bad name", changed("pipeline: orders", "pipeline: Orders!"), 1, "pipeline", "'Orders!'", "`pipeline: orders`"),
    ("long name", changed("orders\n", "o" * 49 + "\n"), 1, "pipeline", "at most 48", "`pipeline: orders`"),
    ("yes", changed("pipeline: orders", "pipeline: yes"), 1, "pipeline", "'True'", "`pipeline: orders`"),
    ("no source", GOOD[: GOOD.index("source")] + GOOD[GOOD.index("topics") :], None, "source", "is missing", "Add `source:"),
    ("source text", "pipeline: o\nsource: u:s3cret@h\nkafka: {bootstrap: b}\n", 2, "source", "at least `postgres`", "`source:"),
    ("no table", changed("  table: public.outbox\n", ""), 2, "source.table", "is missing", "under `source:`"),
    ("bad table", changed("public.outbox", "a.b.c"), 4, "source.table", "'a.b.c'", "`table: public.outbox`"),
    ("bad postgres", changed("postgresql://", "mysql://"), 3, "source.postgres", "Postgres connection", "${env:DB_PASSWORD}"),
    ("postgres list", changed("postgresql://tailrace:${env:PW}@localhost:5432/shop", "[s3cret]"), 3, "source.postgres", "Postgres connection", "postgres: postgresql://"),
    ("missing variable", changed("${env:PW}", "${env:ABSENT}"), 3, "source.postgres", "ABSENT is not set", "Set ABSENT"),
    ("missing file", changed("${env:PW}", "${file:absent}"), 3, "source.postgres", "absent cannot be read", "Create absent"),
    ("bad reference", changed("${env:PW}", "${PW}"), 3, "source.postgres", "not a known reference", "$${"),
    ("bad slot", changed("source:\n", "source:\n  slot: My-Slot\n"), 3, "source.slot", "'My-Slot'", "tailrace_orders"),
    ("empty slot", changed("source:\n", "source:\n  slot:\n"), 3, "source.slot", "without a value", "tailrace_orders"),
    ("bad start", changed("source:\n", "source:\n  start: later\n"), 3, "source.start", "now or beginning", "`start: now`"),
    ("bad bool", changed("source:\n", "source:\n  create: maybe\n"), 3, "source.create", "'maybe'", "`create: true`"),
    ("bad timeout", changed("source:\n", "source:\n  link_timeout: 0\n"), 3, "source.link_timeout", "1 to 3600", "`link_timeout: 30`"),
    ("bad order", changed("source:\n", "source:\n  order_by: id\n"), 3, "source.order_by", "a list", "[created_at, id]"),
    ("bad order item", changed("source:\n", "source:\n  order_by: [1]\n"), 3, "source.order_by.0", "", ""),
    ("bad layout", GOOD + "outbox: {layout: other}\n", 9, "outbox.layout", "debezium", "`layout: debezium`"),
    ("bad column", GOOD + "outbox: {columns: {payloads: x}}\n", 9, "outbox.columns.payloads", "not a setting", "`payload`"),
    ("column path", GOOD + "outbox: {columns: {type: 'payload#/type'}}\n", 9, "outbox.columns.type", "without a path inside", "outbox.columns.version"),
    ("key path", GOOD + "outbox: {columns: {key: 'payload#/a//b'}}\n", 9, "outbox.columns.key", "names separated by /", "payload#/team_id"),
    ("no folder", GOOD + "schemas: {folder: absent}\n", 9, "schemas.folder", "exists", "Create the folder"),
    ("bad unknown", GOOD + "schemas: {unknown: x}\n", 9, "schemas.unknown", "dead_letter or pass", "dead_letter"),
    ("bad template", changed("folder: topics", "template: 'a.{b}'"), 6, "topics.template", "{aggregate}", "outbox.event"),
    ("bad partitions", changed("topics:\n", "topics:\n  partitions: 0\n"), 6, "topics.partitions", "'0'", "partitions: 3"),
    ("yes partitions", changed("topics:\n", "topics:\n  partitions: yes\n"), 6, "topics.partitions", "a number", "number"),
    ("bad replication", changed("topics:\n", "topics:\n  replication: 0\n"), 6, "topics.replication", "-1", "Write 3"),
    ("no bootstrap", changed("  bootstrap: localhost:9092\n", "  delivery: exactly_once\n"), 7, "kafka.bootstrap", "is missing", "localhost:9092"),
    ("bad bootstrap", changed("localhost:9092", "localhost:99999"), 8, "kafka.bootstrap", "host:port", "localhost:9092"),
    ("bad delivery", GOOD + "  delivery: twice\n", 9, "kafka.delivery", "'twice'", "exactly_once"),
    ("bad topic", GOOD + "  offsets_topic: a b\n", 9, "kafka.offsets_topic", "topic name", "Rename"),
    ("same topic", GOOD + "  dead_letter_topic: tailrace-offsets\n", 9, "kafka.dead_letter_topic", "another topic", "Rename"),
    ("reserved", GOOD + "  settings: {acks: 1}\n", 9, "kafka.settings.acks", "lose acknowledged events", "Remove it"),
    ("timeouts", GOOD + "  settings:\n    message.timeout.ms: 90000\n", 10, "kafka.settings.message.timeout.ms", "transaction.timeout.ms", "Lower message.timeout.ms"),
    ("setting list", GOOD + "  settings: {sasl.password: [s3cret]}\n", 9, "kafka.settings.sasl.password", "a text", "Write one value"),
    ("settings text", GOOD + "  settings: sasl.password=s3cret\n", 9, "kafka.settings", "by name", "compression.type"),
    (
        "parked for longer than its dead letter is kept",
        GOOD + "dead_letters: {park_hours: 100, retention_days: 4}\n",
        9,
        "dead_letters.park_hours",
        "at most retention_days, 96 hours",
        "retention_days",
    ),
    ("bad reason", GOOD + "dead_letters: {reasons: {bad_luck: halt}}\n", 9, "dead_letters.reasons.bad_luck", "poison_message", "Correct the name"),
    ("bad policy", GOOD + "on_invalid: skip\n", 9, "on_invalid", "dead_letter, park or halt", "dead_letter"),
    ("bad limit", GOOD + "limits: {batch_bytes: 8MB}\n", 9, "limits.batch_bytes", "'8MB'", "8388608"),
    ("typo", changed("bootstrap", "boostrap"), 8, "kafka.boostrap", "not a setting", "Did you mean `bootstrap`?"),
    ("typo section", GOOD + "limit: {}\n", 9, "limit", "not a setting", "Did you mean `limits`?"),
    ("wrong section", GOOD + "bootstrap: x\n", 9, "bootstrap", "not a setting", "Did you mean `kafka.bootstrap`?"),
    ("unknown secret", GOOD + "  password: s3cret\n", 9, "kafka.password", "not a setting", "Remove it"),
    ("number key", GOOD + "1: s3cret\n", 9, "1", "", ""),
]  # fmt: skip


@pytest.mark.parametrize("case", [Broken(*case) for case in BROKEN], ids=lambda case: case.name)
def test_invalid_settings_are_reported(folder: Path, case: Broken) -> None:
    error = failure(folder, case.text)
    line, field, says, remedy = case[2:]
    file = f"{folder / 'orders.yaml'}{f':{line}' if line else ''}"
    assert f"{file}: {field} " in str(error)
    assert says in str(error)
    assert remedy in error.remedy + error.why
    assert error.remedy
    assert error.exit_code == 2


def test_all_problems_are_reported_at_once(folder: Path) -> None:
    text = changed("localhost:9092", "'?'").replace("${env:PW}", "${env:ABSENT}") + "limits: {batch_bytes: s}\nx: 1\n"
    error = failure(folder, text)
    assert "has 4 problems" in error.what
    for field in (
        "source.postgres cannot be resolved",
        "kafka.bootstrap is '?'",
        "limits.batch_bytes",
        "x is not",
    ):
        assert field in error.why
    assert error.why.count("remedy:") == 4
    assert error.why.count("source.postgres") == 1


def test_a_plain_password_in_a_broken_file_is_not_shown(folder: Path) -> None:
    text = GOOD.replace("${env:PW}", "s3cret").replace("localhost:9092", "u:s3cret@h:1") + "x: s3cret\n"
    error = failure(folder, text + "on_invalid: postgresql://u:s3cret@h\n")
    assert "has 3 problems" in error.what


def test_an_address_in_the_wrong_place_hides_its_password(folder: Path) -> None:
    error = failure(folder, GOOD + "on_invalid: postgresql://u:never-s3cret-before@h\n")
    assert "on_invalid is 'postgresql://u:***@h'" in error.what


def test_a_failed_reference_is_reported_once_and_shown(folder: Path) -> None:
    text = GOOD.replace("${env:PW}", "${env:NO_1}") + "  settings: {sasl.password: '${env:NO_2}'}\n"
    error = failure(folder, text + "limits: {batch_records: '${env:NO_3}'}\n")
    assert "has 3 problems" in error.what
    for name in ("NO_1", "NO_2", "NO_3"):
        assert mask(f"${{env:{name}}}") == f"${{env:{name}}}"
        assert f"{name} is not set" in error.why


def test_light_modules_do_not_import_the_model() -> None:
    code = "import sys, tailrace.config.secrets; sys.exit('pydantic' in sys.modules or 'yaml' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_addresses_with_tokens_are_not_shown(folder: Path) -> None:
    hook = "https://hooks.example.org/T0/planted-hook-s3cret"
    pipeline = load(folder, GOOD + f"dead_letters: {{webhook: {{url: '{hook}'}}}}\n")
    assert pipeline.dead_letters.webhook is not None
    assert pipeline.dead_letters.webhook.url.reveal() == hook
    for shown in (repr(pipeline), pipeline.model_dump_json()):
        assert "https://hooks.example.org/***" in shown
        assert "s3cret" not in shown
    assert "s3cret" not in mask(f"POST {hook} failed")

    referenced = load(folder, GOOD + "dead_letters: {webhook: {url: '${env:HOOK}'}}\n", {**PW, "HOOK": hook})
    assert "${env:HOOK}" in repr(referenced)
    assert "s3cret" not in repr(referenced) + referenced.model_dump_json()

    failure(folder, GOOD + "dead_letters: {webhook: {url: 'https://user:s3cret@hooks.example.org/s3cret'}}\n")
    failure(folder, GOOD + "archive: {url: 's3://cold/outbox?X-Amz-Signature=s3cret'}\n")
    failure(folder, GOOD + "archive: {url: '${env:AT}'}\n", {**PW, "AT": "s3://u:s3cret@cold/outbox"})
    archive = load(folder, GOOD + "archive: {url: '${env:AT}'}\n", {**PW, "AT": "s3://cold/outbox"}).archive
    assert archive is not None
    assert archive.url == "s3://cold/outbox"
    assert "${env:AT}" in repr(archive)
