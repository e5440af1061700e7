"""Every format through a real Kafka and registry into a projection without custom code; and an unavailable registry."""

from __future__ import annotations

import json
import re
import sys
import threading
import types
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from confluent_kafka import Producer

from helpers.store_scenarios import in_loop
from tailrace.cli import main
from tailrace.codegen.models.source_text import models_source
from tailrace.errors import ConfigError, Reason, RegistryUnavailable
from tailrace.event import OutboxEvent, Route
from tailrace.projections import Event, PostgresStore, Projection, ProjectionTester, projection_app
from tailrace.projections.core.event import read_event
from tailrace.projections.core.registry_decoder import RegistryDecoder
from tailrace.projections.core.store import Partition
from tailrace.records.formats import RecordFormat, record_maker
from tailrace.schemas.compiled import CompiledSchema
from tailrace.schemas.folder import load_folder
from tailrace.schemas.registry.client import RegistryClient, RegistryOptions
from tailrace.schemas.registry.register import compare, identified, register
from tailrace.schemas.validation import PayloadValidator
from tailrace.testkit.stack import KafkaBroker, RegistryServer, wait_until
from tailrace.testkit.tcp_proxy import TcpProxy
from tailrace.testkit.topic_reader import read_all

ROOT = Path(__file__).parents[2]
ORDER = {"number": 5, "note": "žluť", "total": {"cents": 1250, "price": "12.50"}, "placed": "2026-01-02T03:04:05Z"}
MONEY = {
    "type": "record",
    "name": "Money",
    "namespace": "shop",
    "fields": [
        {"name": "cents", "type": "long"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
    ],
}
AVRO = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "number", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "total", "type": "Money"},
        {"name": "placed", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
JSON = {"type": "object", "required": ["number"], "properties": {"number": {"type": "integer"}}}
FORMATS = [
    RecordFormat(),
    RecordFormat(schema_id="prefix"),
    RecordFormat(schema_id="header"),
    RecordFormat(cloudevents="binary", source="/s"),
    RecordFormat(cloudevents="structured", source="/s"),
    RecordFormat(value="avro", schema_id="prefix"),
    RecordFormat(value="avro", schema_id="header"),
    RecordFormat(value="avro", schema_id="header", cloudevents="binary", source="/s"),
]


class Shop:
    """Event types registered from a folder; `events` are in the formats of the connector."""

    def __init__(self, registry: RegistryServer, folder: Path) -> None:
        self.mark = uuid.uuid4().hex[:8]
        money = {**MONEY, "namespace": f"shop{self.mark}"}
        order = {**AVRO, "namespace": f"shop{self.mark}"}
        for name, document in ((f"Plain{self.mark}/1.json", JSON), (f"Order{self.mark}/1.avsc", order), (f"Money{self.mark}/1.avsc", money)):  # fmt: skip  # noqa: E501
            (folder / name).parent.mkdir(parents=True)
            (folder / name).write_text(json.dumps(document))
        loaded = load_folder(folder)
        with RegistryClient(RegistryOptions(registry.url, timeout=30)) as client:
            list(register(compare(loaded.schemas, client, _subject), client))
            self.schemas = identified(loaded, client, _subject)
        self.validator = PayloadValidator(self.schemas, max_bytes=1_000_000)
        models = sys.modules[f"models_{self.mark}"] = types.ModuleType(f"models_{self.mark}")
        exec(models_source(list(self.schemas)), models.__dict__)
        self.order = getattr(models, f"Order{self.mark}")

    def record(self, form: RecordFormat, number: int) -> Any:
        kind = ("Order" if form.value == "avro" else "Plain") + self.mark
        payload = json.dumps(ORDER).encode()
        row = OutboxEvent(f"e-{number}", kind, "order", b"o-1", payload, None, "0/1:3", 1767323045678, [])
        route = Route(f"orders-{self.mark}")
        return record_maker(form, key_schema=None)(row, route, self.validator.validate(row, route.topic))

    def event(self, form: RecordFormat, number: int) -> Event:
        """Returns an event as if it had been read from the topic."""
        topic, value, key, headers, timestamp = self.record(form, number)
        said = [(name, each.encode() if isinstance(each, str) else each) for name, each in headers]
        return read_event(Partition(topic, 0), number, key, value, said, timestamp)


def _subject(schema: CompiledSchema) -> str:
    return schema.subject


@pytest.fixture(scope="module")
def shop(registry: RegistryServer, tmp_path_factory: pytest.TempPathFactory) -> Shop:
    return Shop(registry, tmp_path_factory.mktemp("shop"))


def projection(shop: Shop, database: str, url: str, handled: list[Any], **settings: Any) -> Projection:
    """A projection that records the data of its handlers."""
    app = projection_app(f"formats-{shop.mark}")
    made = Projection(
        app, f"orders-{shop.mark}", store=PostgresStore(database), decode=RegistryDecoder(url, timeout=20), **settings
    )

    @made.on(f"Order{shop.mark}", model=shop.order)
    async def typed(event: Event, effects: Any) -> None:
        handled.append(event.data)

    @made.on()
    async def plain(event: Event, effects: Any) -> None:
        handled.append(event.data)

    return made


@in_loop
async def test_every_format_reaches_the_handler_as_data(
    shop: Shop, kafka: KafkaBroker, registry: RegistryServer, database: str
) -> None:
    topic = f"orders-{shop.mark}"
    kafka.create_topic(topic)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for number, form in enumerate(FORMATS):
        record = shop.record(form, number)
        producer.produce(topic, record.value, record.key, headers=list(record.headers), timestamp=record.timestamp)
    assert producer.flush(60) == 0
    messages = read_all(kafka.bootstrap, [topic])
    handled: list[Any] = []
    async with ProjectionTester(projection(shop, database, registry.url, handled)) as tester:
        for message in messages:
            partition = Partition(topic, 0)
            offset, (_, stamp) = message.offset(), message.timestamp()
            assert offset is not None
            await tester.apply_batch(
                read_event(partition, offset, message.key(), message.value(), message.headers() or [], stamp)
            )  # type: ignore[arg-type]
    assert tester.dead_letters == []
    avro = sum(form.value == "avro" for form in FORMATS)
    assert handled[:-avro] == [ORDER] * (len(FORMATS) - avro)
    assert [(each.number, each.note, each.total.price) for each in handled[-avro:]] == [
        (5, "žluť", Decimal("12.50"))
    ] * avro
    assert {each.placed.isoformat() for each in handled[-avro:]} == {"2026-01-02T03:04:05+00:00"}


@contextmanager
def proxied(registry: RegistryServer) -> Iterator[tuple[TcpProxy, str]]:
    parts = urlsplit(registry.url)
    assert parts.hostname
    with TcpProxy((parts.hostname, parts.port or 80)) as proxy:
        yield proxy, f"http://{proxy.address}{parts.path}"


@in_loop
async def test_the_worker_waits_for_the_registry_only_for_unknown_schemas(
    shop: Shop, registry: RegistryServer, database: str
) -> None:
    form, handled = RecordFormat(value="avro", schema_id="prefix"), list[Any]()
    with proxied(registry) as (proxy, url):
        proxy.refuse()
        orders = projection(shop, database, url, handled)
        waits: list[BaseException] = []

        class Watched(ProjectionTester):
            def blocked(self, worker: Any, error: BaseException | None) -> None:
                if error is not None:
                    waits.append(error)
                    if len(waits) == 3:
                        proxy.accept()

        async with Watched(orders) as tester:
            await tester.apply_batch(shop.event(form, 0))
            assert len(handled) == 1
            assert len(waits) >= 3
            assert {type(each) for each in waits} == {RegistryUnavailable}
            proxy.refuse()
            proxy.cut()
            waits.clear()
            await tester.apply_batch(shop.event(form, 1))
        assert (len(handled), waits, tester.dead_letters) == (2, [], [])


@in_loop
async def test_a_registry_that_hangs_blocks_only_its_partition(
    shop: Shop, registry: RegistryServer, database: str
) -> None:
    """The event loop keeps running: another worker reads events that need no schema."""
    with proxied(registry) as (proxy, url):
        proxy.blackhole()
        decoder = RegistryDecoder(url, timeout=60)
        stuck = shop.event(RecordFormat(value="avro", schema_id="prefix"), 0)
        for _ in range(3):
            with pytest.raises(RegistryUnavailable, match="has not answered yet"):
                decoder(stuck)
        assert decoder(shop.event(RecordFormat(), 1)) == ORDER
        assert sum(each.name == "registry" for each in threading.enumerate()) == 1
        proxy.restore()
        wait_until(lambda: _answered(decoder, stuck), 90, what="the answer")


def _answered(decoder: RegistryDecoder, event: Event) -> bool:
    try:
        return bool(decoder(event)["number"] == 5)
    except RegistryUnavailable:
        return False


@in_loop
async def test_undecodable_events_are_dead_lettered_but_not_for_wrong_credentials(
    shop: Shop, registry: RegistryServer, database: str
) -> None:
    handled: list[Any] = []
    orders = projection(shop, database, registry.url, handled)
    form = RecordFormat(value="avro", schema_id="prefix")
    unknown, cut, good = (shop.event(form, number) for number in range(3))
    unknown.value = b"\0" + (2**31 - 1).to_bytes(4, "big") + (unknown.value or b"")[5:]
    cut.value = (cut.value or b"")[:-1]
    async with ProjectionTester(orders) as tester:
        await tester.apply_batch(unknown, cut, good)
        assert [letter.failure.reason for letter in tester.dead_letters] == [
            Reason.SCHEMA_VALIDATION_FAILED,
            Reason.POISON_MESSAGE,
        ]
        assert len(handled) == 1
    nowhere = projection_app(f"nowhere-{shop.mark}")
    other = Projection(
        nowhere, orders.topics[0], store=PostgresStore(database), decode=RegistryDecoder(f"{registry.url}/nothing")
    )

    @other.on()
    async def nothing(event: Event, effects: Any) -> None:
        handled.append(event.data)

    async with ProjectionTester(other) as tester:
        with pytest.raises(ConfigError, match="no schema registry"):
            await tester.apply_batch(shop.event(form, 3))
        assert tester.dead_letters == []


@in_loop
async def test_the_code_of_the_docs_page_works(
    registry: RegistryServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs the code block of docs/projections.md with the models of the example."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/projections.md").read_text(), re.DOTALL)
    [source] = [block for block in blocks if "decode=RegistryDecoder(" in block]
    for shown, ours in (
        ("postgresql://localhost/shop", database),
        ("https://registry.example.org", registry.url),
    ):
        assert source.count(shown) == 1
        source = source.replace(shown, ours)
    monkeypatch.syspath_prepend(ROOT / "examples/order_summary")
    page: dict[str, Any] = {}
    exec(source, page)
    async with ProjectionTester(page["orders"]) as tester:
        await tester.send("OrderPlaced", {"order": "o-1", "revision": 1, "amount": 12.5, "currency": "EUR"})
        async with tester.effects() as effects:
            assert await effects.fetch_one("SELECT id, amount FROM totals") == {"id": "o-1", "amount": Decimal("12.5")}
        await tester.send("OrderPlaced", {"order": "o-1", "revision": 1, "currency": "EUR"})
        assert [letter.failure.reason for letter in tester.dead_letters] == [Reason.SCHEMA_VALIDATION_FAILED]


def test_models_of_a_registry(
    shop: Shop, registry: RegistryServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "orders.yaml"
    file.write_text(
        f"{{pipeline: o, source: {{postgres: 'host=x', table: t}}, kafka: {{bootstrap: 'x:1'}}, "
        f"schemas: {{registry: {{url: '{registry.url}'}}}}}}"
    )
    with pytest.raises(SystemExit) as ended:
        main(["schemas", "models", str(file), "--type", f"Order{shop.mark}"])
    printed = capsys.readouterr()
    assert ended.value.code == 0, printed.err
    assert f"class Order{shop.mark}(BaseModel):" in printed.out
    assert f"    total: Money{shop.mark}\n" in printed.out
    assert "Plain" not in printed.out
