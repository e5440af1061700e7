"""Positions as offsets of Kafka Connect, in Debezium's shapes. Pure.

Postgres: partition `{"server": "<pipeline>"}`, offset `{"lsn": 24023128, "lsn_commit": …, "ts_usec": …}`.
MongoDB: partition `{"server_id": "<pipeline>"}`, offset `{"resume_token": "8267…", "sec": …, "ord": …}`.
Instead of these, `position` may name any point that `tailrace position reset --to` takes, such as `24h` or `oldest`.
"""

from __future__ import annotations

from typing import Any

from tailrace.api.connect.answers import ConnectError
from tailrace.positions.base import Position
from tailrace.positions.mongo import TokenPosition
from tailrace.positions.postgres import MAX_LSN, LsnPosition, format_lsn, parse_lsn

OLDEST = "oldest"
_FORMS = {
    "postgres": 'the offset as {"lsn": 24023128} or {"lsn": "0/16E9058"}',
    "mongo": 'the offset as {"resume_token": "8267…"} or {"sec": 1773403200, "ord": 7}',
}


def offsets_json(pipeline: str, position: Position | None) -> dict[str, Any]:
    """Returns Connect's ConnectorOffsets: one partition, or none if there is no stored position."""
    if position is None:
        return {"offsets": []}
    if isinstance(position, LsnPosition):
        return {"offsets": [{"partition": {"server": pipeline}, "offset": _lsn_json(position)}]}
    if isinstance(position, TokenPosition):
        return {"offsets": [{"partition": {"server_id": pipeline}, "offset": _token_json(position)}]}
    return {"offsets": []}


def _lsn_json(position: LsnPosition) -> dict[str, Any]:
    found: dict[str, Any] = {
        "lsn": position.lsn,
        "lsn_proc": position.cut.commit_lsn if position.cut else position.lsn,
        "lsn_commit": position.lsn,
        "ts_usec": position.at_ms * 1000,
        "position": str(position),
    }
    if position.cut:
        found["rows"] = position.cut.rows
    if position.table_read or position.creating:
        found["snapshot"] = "INITIAL"
    return found


def _token_json(position: TokenPosition) -> dict[str, Any]:
    found: dict[str, Any] = {
        "resume_token": str(position.token["_data"]),
        "sec": position.time.seconds,
        "ord": position.time.increment,
        "position": str(position),
    }
    if position.collection_read:
        found["snapshot"] = "INITIAL"
    return found


def wanted_point(pipeline: str, kind: str, body: dict[str, Any]) -> str:
    """Returns the point that a PATCH asks for, as `tailrace position reset --to` takes it; raises ConnectError."""
    offsets = body.get("offsets")
    if not isinstance(offsets, list) or not offsets:
        raise ConnectError(400, "Partitions / offsets need to be provided for an alter offsets request")
    if len(offsets) > 1:
        raise ConnectError(400, f"a pipeline has one partition, and {len(offsets)} were given. Give one.")
    entry = offsets[0]
    if not isinstance(entry, dict) or "partition" not in entry or "offset" not in entry:
        raise ConnectError(400, "an entry of `offsets` needs `partition` and `offset`")
    key = {"postgres": "server", "mongo": "server_id"}[kind]
    partition = entry["partition"]
    if not isinstance(partition, dict) or partition.get(key) != pipeline:
        raise ConnectError(400, f'the partition of this pipeline is {{"{key}": "{pipeline}"}}. Write exactly that.')
    offset = entry["offset"]
    if offset is None:
        return OLDEST
    point = _point(kind, offset) if isinstance(offset, dict) else None
    if point is None:
        raise ConnectError(
            400, f'the offset is not a position of this pipeline. Write {_FORMS[kind]}, or {{"position": "24h"}}.'
        )
    return point


def _point(kind: str, offset: dict[str, Any]) -> str | None:
    if kind == "postgres" and "lsn" in offset:
        lsn = offset["lsn"]
        if isinstance(lsn, str) and "/" in lsn:
            try:
                return format_lsn(parse_lsn(lsn))
            except ValueError:
                return None
        number = int(lsn) if isinstance(lsn, str) and lsn.isascii() and lsn.isdigit() and len(lsn) < 21 else lsn
        is_lsn = isinstance(number, int) and not isinstance(number, bool) and 0 <= number <= MAX_LSN
        return format_lsn(number) if is_lsn else None
    if kind == "mongo" and offset.get("resume_token") is not None:
        token = offset["resume_token"]
        token = token.get("_data") if isinstance(token, dict) else token
        return token if isinstance(token, str) and token else None
    if kind == "mongo" and "sec" in offset:
        numbers = (offset["sec"], offset.get("ord", 1))
        valid = all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 1 << 32 for n in numbers)
        return f"{numbers[0]}.{numbers[1]}" if valid else None
    point = offset.get("position")
    return point if isinstance(point, str) and 0 < len(point) <= 500 else None
