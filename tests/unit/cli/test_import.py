"""`tailrace import debezium`: what cannot be translated is named, and no file is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers.debezium import postgres_config, write_config
from tailrace.cli import main

DSN = "host=db port=5433 user=u password=dbz-s3cret dbname=shop"
UNTRANSLATABLE = {
    "transforms": "outbox,mask",
    "transforms.mask.type": "org.acme.Mask",
    "value.converter": "io.confluent.connect.protobuf.ProtobufConverter",
    "header.converter": "org.apache.kafka.connect.json.JsonConverter",
    "table.include.list": "public.outbox,public.debezium_heartbeat",
}


def imported(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as caught:
        main(["import", "debezium", *map(str, arguments)])
    printed = capsys.readouterr()
    assert "dbz-s3cret" not in f"{printed.out}{printed.err}"
    return caught.value.code, printed.out, printed.err


@pytest.mark.parametrize(
    "command", [(), ("--shadow", "--offsets", "o"), ("--take-over", "--stopped", "--offsets", "o")]
)
def test_what_cannot_be_translated_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    config = postgres_config(DSN, "shop", "shop") | UNTRANSLATABLE
    file = write_config(tmp_path / "connector.json", "shop", config)
    pipeline = tmp_path / "shop.yaml"
    given = (file, "--file", pipeline, "--bootstrap", "localhost:9092", *command)
    code, out, _ = imported(capsys, *given, "--json")
    named = {each["option"]: each for each in json.loads(out)["problems"]}
    assert code == 1
    # Without one table of the outbox, that setting is missing, too.
    assert named.keys() == UNTRANSLATABLE.keys() - {"transforms"} | {"source.table"}
    assert all(each["what"] and each["remedy"] for each in named.values())
    code, out, _ = imported(capsys, *given)
    assert code == 1
    assert all(f"cannot be translated: {option} " in out for option in named)
    assert out.count("remedy: ") == len(named)
    assert not pipeline.exists()


def test_an_option_that_is_left_out_is_no_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = {name: UNTRANSLATABLE[name] for name in ("transforms", "transforms.mask.type")}
    file = write_config(tmp_path / "connector.json", "shop", postgres_config(DSN, "shop", "shop") | more)
    given = (file, "--file", tmp_path / "shop.yaml", "--bootstrap", "localhost:9092")
    assert imported(capsys, *given)[0] == 1
    code, out, _ = imported(capsys, *given, "--leave-out", "transforms.mask.type")
    assert code in (0, None)
    assert "the file contains literal secrets (database.password)" in out
