"""`source:` names one database with its settings; its address is not shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.config.load import load_pipeline
from tailrace.config.model import PipelineSettings
from tailrace.config.secrets import mask
from tailrace.errors import ConfigError

ADDRESS = "mongodb://tailrace:written-s3cret@h1:27017,h2/?replicaSet=rs0"
MONGO = f"mongo: {ADDRESS}"
POSTGRES = "postgres: host=db dbname=shop"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "orders.yaml"


def load(file: Path, *source: str, **environ: str) -> PipelineSettings:
    lines = "".join(f"  {line}\n" for line in source)
    text = f"pipeline: orders\nsource:\n{lines}kafka:\n  bootstrap: localhost:9092\n"
    file.write_text(text, encoding="utf-8")
    return load_pipeline(file, environ)


def failure(file: Path, *source: str, **environ: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(file, *source, **environ)
    error = caught.value
    for text in (str(error), repr(error), error.what, error.why, error.remedy):
        assert "s3cret" not in text
    return error


def test_one_collection(file: Path) -> None:
    source = load(file, MONGO, "collection: shop.outbox").source
    assert source.mongo is not None
    assert source.mongo.reveal() == ADDRESS
    assert source.collection == ("shop.outbox",)
    assert (source.start, source.create, source.link_timeout) == ("now", True, 30)
    assert source.order_by == ("_id",)
    assert (source.postgres, source.table, source.slot, source.publication) == (None, None, "", "")


@pytest.mark.parametrize(
    ("layout", "order", "template"),
    [
        ("debezium", ("id",), "outbox.event.{aggregate}"),
        ("document", ("created_at", "event_id"), "outbox.event.{aggregate}"),
        ("streams", ("created_at", "id"), "{stream}"),
        ("storage", ("created_at", "outbox_id"), "{stream}"),
    ],
)
def test_defaults_follow_the_layout(file: Path, layout: str, order: tuple[str, ...], template: str) -> None:
    given = {"TAILRACE_OUTBOX__LAYOUT": layout}
    settings = load(file, POSTGRES, "table: public.outbox", **given)
    assert (settings.source.order_by, settings.topics.template) == (order, template)
    other = load(file, POSTGRES, "table: public.outbox", **given, TAILRACE_TOPICS__TEMPLATE="all")
    assert other.topics.template == "all"


@pytest.mark.parametrize("layout", ["streams", "storage"])
def test_layouts_for_postgres_only(file: Path, layout: str) -> None:
    error = failure(file, MONGO, "collection: shop.outbox", TAILRACE_OUTBOX__LAYOUT=layout)
    assert "outbox.layout" in str(error)
    assert "debezium or document" in str(error)


def test_several_collections_of_one_database(file: Path) -> None:
    source = load(file, MONGO, "collection: [shop.outbox, shop.billing.outbox]", "order_by: [created_at, _id]").source
    assert source.collection == ("shop.outbox", "shop.billing.outbox")
    assert source.order_by == ("created_at", "_id")


@pytest.mark.parametrize("address", ["mongodb://h", "mongodb+srv://u:pw@cluster.example.org/?authSource=admin"])
def test_addresses(file: Path, address: str) -> None:
    source = load(file, f"mongo: {address}", "collection: shop.outbox").source
    assert source.mongo is not None
    assert source.mongo.reveal() == address


@pytest.mark.parametrize(
    "address",
    [
        "h:27017",
        "mongodb://",
        "mongodb//u:s3cret@h",
        "http://u:s3cret@h",
        "postgresql://u:s3cret@h/shop",
        "'mongodb://u:s3cret@h/ shop'",
        '"mongodb://u:s3cret@h\\n"',
        "[mongodb://u:s3cret@h]",
        "5",
    ],
)
def test_an_invalid_address_is_refused_and_not_shown(file: Path, address: str) -> None:
    error = failure(file, f"mongo: {address}", "collection: shop.outbox")
    assert "orders.yaml:3: source.mongo is wrong: expected a MongoDB address" in error.what
    assert "mongodb://tailrace:${env:DB_PASSWORD}@" in error.remedy


@pytest.mark.parametrize(
    "given",
    [
        "outbox",
        "shop.",
        ".outbox",
        "sh op.outbox",
        "sh$op.outbox",
        "shop.out$box",
        f"{'d' * 64}.outbox",
        "[]",
        "",
        "5",
        "[5]",
        "[shop.outbox, 5]",
        "{shop: outbox}",
        "[shop.outbox, bank.outbox]",
        "[shop.outbox, shop.outbox]",
        "[shop.outbox, '']",
    ],
)
def test_invalid_collections_are_refused(file: Path, given: str) -> None:
    error = failure(file, MONGO, f"collection: {given}")
    assert "source.collection" in error.what
    assert "database.collection" in error.what
    assert error.remedy


@pytest.mark.parametrize(
    ("source", "place", "says", "remedy"),
    [
        ([MONGO, POSTGRES, "table: t"], "source", "expected one database", "source.postgres or source.mongo"),
        ([MONGO, POSTGRES, "collection: a.b"], "source", "expected one database", "source.postgres or source.mongo"),
        (["start: now"], "source.postgres", "is missing: expected an address", "postgres: postgresql://"),
        (["table: public.outbox"], "source.postgres", "is missing: expected an address", "postgres: postgresql://"),
        (["collection: a.b"], "source.mongo", "is missing: expected an address", "mongo: mongodb://"),
        (["mongo:", "collection: a.b"], "source.mongo", "is given without a value", "mongo: mongodb://"),
        (["postgres:", "table: t"], "source.postgres", "is given without a value", "postgres: postgresql://"),
        ([MONGO], "source.collection", "is missing: expected the outbox collection", "collection: shop.outbox"),
        ([POSTGRES], "source.table", "is missing: expected the outbox table", "table: public.outbox"),
        ([POSTGRES, "table:"], "source.table", "is given without a value", "table: public.outbox"),
    ],
)
def test_one_database_and_its_outbox(file: Path, source: list[str], place: str, says: str, remedy: str) -> None:
    error = failure(file, *source)
    assert f": {place} " in error.what
    assert says in error.what
    assert remedy in error.remedy


@pytest.mark.parametrize(
    ("source", "foreign"),
    [
        ([MONGO, "collection: a.b"], "table: public.outbox"),
        ([MONGO, "collection: a.b"], "slot: tailrace_orders"),
        ([MONGO, "collection: a.b"], "publication: tailrace_orders"),
        ([MONGO, "collection: a.b"], "failover: true"),
        ([MONGO, "collection: a.b"], "on_change: halt"),
        ([POSTGRES, "table: public.outbox"], "collection: a.b"),
    ],
)
def test_settings_of_the_other_database_are_refused(file: Path, source: list[str], foreign: str) -> None:
    """They are not ignored: a user who writes `on_change: halt` expects it to take effect."""
    error = failure(file, *source, foreign)
    name = foreign.partition(":")[0]
    assert f"orders.yaml:5: source.{name} is " in error.what
    assert f"not a setting of source.{source[0].partition(':')[0]}" in error.what


class TestVariables:
    def test_variables_override_the_file(self, file: Path) -> None:
        over = {"TAILRACE_SOURCE__MONGO": "mongodb://other", "TAILRACE_SOURCE__COLLECTION": "shop.other"}
        source = load(file, MONGO, "collection: shop.outbox", **over).source
        assert source.mongo is not None
        assert (source.mongo.reveal(), source.collection) == ("mongodb://other", ("shop.other",))

    @pytest.mark.parametrize("written", ["[shop.a, shop.b]", "[shop.a,shop.b]"])
    def test_several_collections_as_a_line_of_yaml(self, file: Path, written: str) -> None:
        source = load(file, MONGO, TAILRACE_SOURCE__COLLECTION=written).source
        assert source.collection == ("shop.a", "shop.b")

    def test_an_invalid_variable_is_named_and_not_shown(self, file: Path) -> None:
        error = failure(file, "collection: a.b", TAILRACE_SOURCE__MONGO="mongo//u:s3cret@h")
        assert "(from TAILRACE_SOURCE__MONGO): source.mongo is wrong" in error.what


class TestSecrets:
    @pytest.mark.parametrize(
        ("address", "shown"),
        [
            (ADDRESS, "mongodb://tailrace:***@h1:27017,h2/?replicaSet=rs0"),
            ("mongodb+srv://u:srv-s3cret@h", "mongodb+srv://u:***@h"),
            ("mongodb://u:a@b:c/d-s3cret@h/?w=1", "mongodb://u:***@h/?w=1"),
            (
                "mongodb://h/?tlsCertificateKeyFilePassword=key-s3cret&tls=true",
                "mongodb://h/?tlsCertificateKeyFilePassword=***&tls=true",
            ),
            ("mongodb://u:${env:PW}@h", "mongodb://u:${env:PW}@h"),
        ],
    )
    def test_a_password_is_never_shown(self, file: Path, address: str, shown: str) -> None:
        pipeline = load(file, f"mongo: {address}", "collection: a.b", PW="env-s3cret")
        assert str(pipeline.source.mongo) == shown
        for text in (repr(pipeline), str(pipeline), pipeline.model_dump_json(), str(pipeline.model_dump())):
            assert "s3cret" not in text
            assert shown in text

    def test_logs_and_messages_of_the_driver_are_masked(self, file: Path) -> None:
        load(file, "mongo: mongodb://u:${env:PW}@h", "collection: a.b", PW="driver-s3cret")
        load(file, "mongo: mongodb://u:percent%2Ds3cret@h", "collection: a.b")
        assert mask("auth of u with driver-s3cret failed") == "auth of u with *** failed"
        assert mask("auth of u with percent-s3cret failed") == "auth of u with *** failed"

    def test_another_error_in_the_file_does_not_show_it(self, file: Path) -> None:
        assert "table" in failure(file, MONGO, "collection: a.b", "table: t").what

    def test_a_referenced_password_is_escaped_in_the_address(self, file: Path) -> None:
        """Unescaped, `p@ss/1` would end the password early, and the rest would be the host."""
        source = load(file, "mongo: mongodb://u:${env:PW}@h", "collection: a.b", PW="p@ss/1").source
        assert source.mongo is not None
        assert source.mongo.reveal() == "mongodb://u:p%40ss%2F1@h"


def test_messages_instead_of_a_table(file: Path) -> None:
    source = load(file, POSTGRES, "messages: {prefix: orders}").source
    assert source.messages is not None
    assert (source.messages.prefix, source.table, source.slot) == ("orders", None, "tailrace_orders")


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ("table: public.outbox", "source.table"),
        ("start: beginning", "source.start"),
        ("on_log_loss: recover", "source.on_log_loss"),
        ("order_by: [id]", "source.order_by"),
    ],
)
def test_settings_that_need_a_table_are_refused_with_messages(file: Path, line: str, place: str) -> None:
    error = failure(file, POSTGRES, "messages: {prefix: orders}", line)
    assert place in str(error)
    assert "messages" in str(error)


@pytest.mark.parametrize(
    ("name", "value", "place"),
    [("TAILRACE_OUTBOX__LAYOUT", "storage", "outbox.layout"), ("TAILRACE_MARKS", "watermark", "marks")],
)
def test_layouts_and_marks_that_need_a_table_are_refused_with_messages(
    file: Path, name: str, value: str, place: str
) -> None:
    assert place in str(failure(file, POSTGRES, "messages: {prefix: orders}", **{name: value}))


@pytest.mark.parametrize("text", ["{}", "{prefix: ''}", "{prefix: 3}", "orders"])
def test_bad_prefixes_are_refused(file: Path, text: str) -> None:
    assert "source.messages" in str(failure(file, POSTGRES, f"messages: {text}"))


def test_messages_are_of_postgres(file: Path) -> None:
    assert "source.messages" in str(failure(file, MONGO, "collection: shop.outbox", "messages: {prefix: orders}"))


def test_a_condition_for_the_first_read(file: Path) -> None:
    given = ("start: beginning", "start_where: ' processed IS NOT TRUE '")
    assert load(file, POSTGRES, "table: outbox", *given).source.start_where == "processed IS NOT TRUE"
    same = '{"status": {"$ne": "published"}}'
    for written in ("{status: {$ne: published}}", f"'{same}'"):
        source = load(file, MONGO, "collection: shop.outbox", "start: beginning", f"start_where: {written}").source
        assert source.start_where == same
    by_environ = load(
        file, MONGO, "collection: shop.outbox", "start: beginning", TAILRACE_SOURCE__START_WHERE='{"status": "x"}'
    )
    assert by_environ.source.start_where == '{"status": "x"}'


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ((POSTGRES, "table: outbox", "start_where: processed = false"), "source.start is `now`"),
        ((POSTGRES, "table: outbox", "start: beginning", "start_where: 'true; SELECT 1'"), "a semicolon"),
        ((POSTGRES, "table: outbox", "start: beginning", "start_where: {processed: false}"), "an SQL condition"),
        ((MONGO, "collection: shop.outbox", "start: beginning", "start_where: processed = false"), "not a document"),
        ((MONGO, "collection: shop.outbox", "start: beginning", "start_where: {$where: '1'}"), "$where"),
    ],
)
def test_a_condition_that_cannot_be_used_is_refused(file: Path, source: tuple[str, ...], why: str) -> None:
    error = failure(file, *source)
    assert "source.start_where is" in error.what
    assert why in str(error)


def test_an_embedded_outbox_is_a_source_of_its_own(file: Path) -> None:
    settings = load(file, "rocksdb: data/outbox")
    assert settings.source.rocksdb == file.parent / "data" / "outbox"
    for line in ("start: beginning", "table: public.outbox", POSTGRES, "link_timeout: 10"):
        name = line.partition(":")[0]
        assert f"source.{name}" in str(failure(file, "rocksdb: data/outbox", line))
    for variable, value in {"OUTBOX__LAYOUT": "document", "MARKS": "rows", "RETENTION__AFTER": "30d"}.items():
        assert "there are no rows" in str(failure(file, "rocksdb: data/outbox", **{f"TAILRACE_{variable}": value}))
