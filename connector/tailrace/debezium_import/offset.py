"""Debezium's offsets, as Kafka Connect stores them: parsed, and read from the offsets topic.

Connect writes a record per connector and source partition, with the key `["connector", {"server": "prefix"}]`. It
commits an offset after the events up to it: with exactly-once support in their transaction, otherwise later. So an
offset never lies ahead of what is published, and may lie behind it.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from tailrace.debezium_import.connector_config import ConnectorConfig
from tailrace.errors import ConfigError, DebeziumOffsetUnfit
from tailrace.kafka.client import KafkaOptions
from tailrace.kafka.reader import RangeReader
from tailrace.positions.base import MALFORMED
from tailrace.positions.mongo import ClusterTime
from tailrace.positions.postgres import MAX_LSN, format_lsn


@dataclass(frozen=True, slots=True)
class PostgresOffset:
    """Everything up to `commit_lsn`, the end of a transaction, is published; 0 if no transaction was complete.

    Of the transaction `xid`, which ended later, the changes up to `lsn` are published. Debezium learns that it was
    complete only from what follows, so of an idle outbox the last transaction always looks incomplete.
    """

    lsn: int
    commit_lsn: int
    xid: int = 0

    def __str__(self) -> str:
        inside = f", and changes up to {format_lsn(self.lsn)}" if self.lsn > self.commit_lsn else ""
        return f"{format_lsn(self.commit_lsn)}{inside}"

    def covers(self, commit_lsn: int, xid: int, change_lsn: int, *, is_first: bool) -> bool:
        """Whether a row is published: by its transaction, which has its commit record at `commit_lsn`, and its LSN.

        Transactions overlap in the log, so the LSN of a change says nothing about changes of other transactions.
        Rows of one COPY share an LSN: of those at `lsn`, only the first is certain to be published.
        """
        if commit_lsn < self.commit_lsn:
            return True
        return xid == self.xid != 0 and (change_lsn < self.lsn or (change_lsn == self.lsn and is_first))


@dataclass(frozen=True, slots=True)
class MongoOffset:
    """The resume token of the last published change, and its cluster time."""

    token: str
    time: ClusterTime

    def __str__(self) -> str:
        return str(self.time)

    def covers(self, token: str) -> bool:
        """Whether a change is published; tokens sort in log order."""
        return token <= self.token


DebeziumOffset = PostgresOffset | MongoOffset


def parse_offset(stored: dict[str, Any], *, is_mongo: bool) -> DebeziumOffset:
    """Returns the offset; raises DebeziumOffsetUnfit for one from which nothing can be continued."""
    try:
        _require_snapshot_complete(stored)
        return _mongo(stored) if is_mongo else _postgres(stored)
    except MALFORMED:
        raise DebeziumOffsetUnfit(
            f"Debezium's offset cannot be used: its fields are {', '.join(sorted(stored)) or 'none'}",
            why="It needs `lsn` (Postgres), or `resume_token`, `sec` and `ord` (MongoDB).",
            remedy="Check that --offsets names the offsets topic of this connector (offset.storage.topic of the "
            "worker, or offsets.storage.topic of the connector).",
        ) from None


def _postgres(stored: dict[str, Any]) -> PostgresOffset:
    lsn = int(stored.get("lsn_proc") or stored["lsn"])
    commit = int(stored.get("lsn_commit") or 0)
    if not 0 < lsn <= MAX_LSN or not 0 <= commit <= MAX_LSN:
        raise ValueError(lsn)
    return PostgresOffset(lsn, commit, int(stored.get("txId") or 0))


def _mongo(stored: dict[str, Any]) -> MongoOffset:
    time = ClusterTime(int(stored["sec"]), int(stored["ord"]))
    data = _token_data(stored["resume_token"])
    # A token of another form would sort anywhere, and events could count as published that are not.
    if not _is_token(data) or (int(data[2:10], 16), int(data[10:18], 16)) != time.pair:
        raise ValueError(data)
    return MongoOffset(data, time)


def _token_data(token: str) -> str:
    """Returns the text in a token: Debezium stores it as BSON in base64; as JSON or the text alone is clear, too."""
    if token.startswith("{"):
        return str(json.loads(token)["_data"])
    if _is_token(token):
        return token
    import bson  # a part of the driver, which is optional

    try:
        return str(bson.decode(base64.b64decode(token, validate=True))["_data"])
    except bson.errors.BSONError:
        raise ValueError(token) from None


_is_token = re.compile("82[0-9A-F]{16,}").fullmatch
"""The form of tokens since MongoDB 4.2: they begin with the cluster time, and sort in log order."""


def _require_snapshot_complete(stored: dict[str, Any]) -> None:
    """Raises while Debezium reads existing rows: its offset says nothing about them, and it would begin again."""
    running = stored.get("snapshot") not in (None, False, "false") or stored.get("initsync") in (True, "true")
    is_last = stored.get("last_snapshot_record") in (True, "true") or stored.get("snapshot_completed") in (True, "true")
    if running and not is_last:
        raise DebeziumOffsetUnfit(
            "Debezium has not completed its snapshot of existing rows",
            why="Its offset does not say which of them are published; Debezium itself would begin again.",
            remedy="Resume the connector until its snapshot is complete, then try again. Nothing was changed.",
        )


def choose_offset(
    records: Sequence[tuple[bytes | None, bytes | None]], config: ConnectorConfig, topic: str
) -> DebeziumOffset:
    """Returns the last offset of the connector among the records of an offsets topic, in their order. Pure."""
    found: dict[str, dict[str, Any]] = {}
    names: set[str] = set()
    for key, value in records:
        try:
            name, partition = json.loads(key or b"")
        except MALFORMED:
            continue
        names.add(str(name))
        if name != config.name or not isinstance(partition, dict):
            continue
        if config.prefix and config.prefix not in (partition.get("server"), partition.get("server_id")):
            continue
        place = json.dumps(partition, sort_keys=True)
        if value is None:
            found.pop(place, None)
        else:
            found[place] = json.loads(value)
    if len(found) == 1:
        return parse_offset(next(iter(found.values())), is_mongo=config.is_mongo)
    if found:
        raise DebeziumOffsetUnfit(
            f"{topic} has {len(found)} offsets of the connector {config.name}",
            why="A connector for MongoDB in the mode `sharded` has one for each shard; a pipeline has one position.",
            remedy="Set mongodb.connection.mode=replica_set for a while, so that Debezium stores one offset.",
        )
    others = f" It has offsets of: {', '.join(sorted(names)[:10])}." if names else " It has no offsets at all."
    raise DebeziumOffsetUnfit(
        f"{topic} has no offset of the connector {config.name} with the prefix {config.prefix!r}",
        why=f"The connector never committed one, its offsets were deleted, or this is another topic.{others}",
        remedy="Check --offsets, and the name in the configuration. If it never published anything, start the pipeline "
        "without taking over.",
    )


def read_offset(options: KafkaOptions, topic: str, config: ConnectorConfig) -> DebeziumOffset:
    """Reads the connector's offset, committed records only, after all open transactions have ended."""
    with RangeReader(options, "debezium") as reader:
        ranges = reader.ranges(topic, include_open=True, must_exist=True)
        with closing(reader.records(topic, ranges)) as messages:
            # All records of a key are in one partition, so their order is known.
            records = [(message.key(), message.value()) for message in messages]
    return choose_offset(records, config, topic)


def require_topic(config: ConnectorConfig, given: str) -> str:
    """Returns the offsets topic: the given one, or the connector's own."""
    topic = given or config.keys.get("offsets.storage.topic", "") or config.offsets_topic
    if not topic:
        raise ConfigError(
            "the topic of Debezium's offsets is not known",
            why="The connector has no `offsets.storage.topic`, so it uses its worker's topic.",
            remedy="Add --offsets with the `offset.storage.topic` of the worker, such as --offsets connect-offsets; or "
            "--connect-worker with the worker's properties file.",
        )
    return topic
