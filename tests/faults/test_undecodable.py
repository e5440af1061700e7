"""Rows that the server cannot send as text: a dead letter for each, or a transaction skipped by command."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from helpers.command import Tailrace
from helpers.recovery import apply
from helpers.shop import Shop, close_shop, open_shop
from tailrace.event import TEXT, Column, Undecodable
from tailrace.sources.postgres.encoding import ANY, CODECS, ServerText
from tailrace.testkit.stack import KafkaBroker, PostgresServer, wait_until
from tailrace.testkit.topic_reader import read_all

BAD = {"WIN1252": "chr(129)", "SQL_ASCII": "chr(255)"}
"""Bytes that the database stores and that have no equivalent in UTF-8."""
NAMES = {"WIN1252": "chr(233)", "SQL_ASCII": "chr(195) || chr(169)"}
"""The letter é, as the database keeps it."""
INSERT = "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) VALUES "


@pytest.fixture(params=["WIN1252", "SQL_ASCII"])
def encoded(
    request: pytest.FixtureRequest, postgres: PostgresServer, kafka: KafkaBroker, tmp_path: Path
) -> Iterator[Shop]:
    """A shop whose database is not in UTF-8; its payloads are text, which may contain any bytes."""
    shop = open_shop(postgres, kafka, tmp_path, encoding=request.param, start="beginning")
    shop.encoding = request.param  # type: ignore[attr-defined]
    shop.execute("ALTER TABLE outbox ALTER payload TYPE text")
    shop.configure(schemas={"unknown": "pass"})
    yield shop
    close_shop(shop)


def values(shop: Shop, number: int) -> str:
    """Inserts three rows: one valid, one with bad bytes in its key, one with bad bytes in its payload."""
    bad, good = BAD[shop.encoding], NAMES[shop.encoding]  # type: ignore[attr-defined]
    row = "('00000000-0000-0000-0000-0000000000{number}{part}', 'order', {key}, 'Free', {payload})"
    rows = [
        (f"'k'||{good}", f"'{{\"name\": \"'||{good}||'\"}}'"),
        (f"'k'||{bad}", "'{}'"),
        ("'k'", f"'{{\"n\": \"'||{bad}||'\"}}'"),
    ]
    return ", ".join(
        row.format(number=number, part=part, key=key, payload=text) for part, (key, text) in enumerate(rows)
    )


def test_undecodable_rows_are_dead_letters_and_others_are_published(encoded: Shop, tailrace: Tailrace) -> None:
    """In the snapshot and in the stream; `verify` reports no problem."""
    encoded.execute(INSERT + values(encoded, 1))
    connector = encoded.start()
    encoded.execute(INSERT + values(encoded, 2))
    wait_until(lambda: len(encoded.published()) == 2, 60, what="the sound rows")
    wait_until(lambda: len(encoded.dead_lettered()) == 4, 60, what="the letters")
    assert connector.running
    assert {(record.key(), record.value()) for record in read_all(encoded.kafka.bootstrap, [encoded.topic])} == {
        ("ké".encode(), '{"name": "é"}'.encode())
    }
    letters = read_all(encoded.kafka.bootstrap, [encoded.letters])
    assert {json.loads(letter.value())["id"][-2:] for letter in letters} == {"11", "12", "21", "22"}
    explanations = [dict(letter.headers())["tailrace.explanation"].decode() for letter in letters]
    assert all(encoded.encoding in each for each in explanations), explanations  # type: ignore[attr-defined]
    assert connector.stop() == 0
    assert tailrace("verify", encoded.file)["missing"] == 0


def test_text_is_converted_as_the_server_does(postgres: PostgresServer) -> None:
    """Compares every byte of every supported encoding."""
    with postgres.connect() as connection:
        connection.execute(
            "CREATE FUNCTION pg_temp.converted(b bytea, e name) RETURNS bytea LANGUAGE plpgsql AS $$ "
            "BEGIN RETURN convert(b, e, 'UTF8'); EXCEPTION WHEN untranslatable_character THEN RETURN NULL; END $$"
        )
        for encoding in sorted(CODECS.keys() - {ANY}):
            found = connection.execute(
                "SELECT n, pg_temp.converted(set_byte('\\x00', 0, n), %s) FROM generate_series(1, 255) n", [encoding]
            ).fetchall()
            text = ServerText(encoding)
            for number, converted in found:
                columns, (value,) = text.row((Column("c", TEXT),), (bytes([number]),))
                assert (None if isinstance(columns, Undecodable) else value) == converted, (encoding, number)


HUGE = "convert_to(repeat('a', 540000000), 'UTF8')"
"""A bytea that has more than 1 GB as text; compressed it is small."""


@pytest.mark.slow
def test_a_row_of_more_than_a_gigabyte_of_text(shop: Shop, tailrace: Tailrace) -> None:
    """A command skips its transaction, and its row becomes a dead letter with its id; `verify` counts both."""
    shop.execute("ALTER TABLE outbox ALTER payload TYPE bytea USING NULL")
    shop.configure(schemas={"unknown": "pass"})
    connector = shop.start()
    names = bad, last, after = [str(uuid.uuid4()) for _ in range(3)]
    with psycopg.connect(shop.dsn) as connection:
        for payload, name in zip((HUGE, "'{}'", "'{}'"), names, strict=True):
            statement = f"{INSERT} (%s, 'order', 'k', 'Free', {payload})"
            connection.execute(statement, [name])  # type: ignore[arg-type]
            if name != bad:
                connection.commit()
    connector.failed("UndecodableTransaction")
    apply(shop)
    shop.start()
    wait_until(lambda: [seen.id for seen in shop.published()] == [last, after], 60, what="the row behind")
    letters = [json.loads(letter.value()) for letter in read_all(shop.kafka.bootstrap, [shop.letters])]
    (row,) = [letter for letter in letters if "1,000,000,000 bytes" in letter["why"]]
    assert (json.loads(row["document"])["id"], len(letters)) == (bad, 2)
    assert tailrace("verify", shop.file)["set_aside"] == 1
