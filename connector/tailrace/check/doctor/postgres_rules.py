"""Rules over the settings and slots of a Postgres server. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.check.findings import advice, note, problem, settings, shell, sql, warning
from tailrace.check.result import CheckResult, human_bytes, human_seconds
from tailrace.outbox.marks.sql import literal

SHORT_TIMEOUT_MS = 15_000
"""The connector answers keepalives at once, but commits, a busy machine or a network fault may take seconds."""
LONG_TIMEOUT_MS = 600_000
USUAL_TIMEOUT = "60s"
HEADROOM = 2
"""A standby and a rebuild, or one connector that reconnects before its old session has ended."""
MUCH_WAL = 1 << 30
SOME_WAL = 64 << 20
"""Four WAL files: an idle slot holds about this much without any trouble."""


@dataclass(frozen=True, slots=True)
class OtherSlot:
    """A slot of another reader. `retained_bytes` is the WAL that only it may hold."""

    name: str
    active: bool
    retained_bytes: int
    physical: bool = False
    temporary: bool = False
    lost: bool = False


@dataclass(frozen=True, slots=True)
class PostgresFacts:
    """The settings of a server and its slots. Bytes and milliseconds; -1 and 0 mean what they mean to Postgres.

    `standbys` are the names of connected physical standbys. `failover` is None before version 17 and without a slot.
    """

    version: int
    slot: str
    wal_sender_timeout_ms: int
    max_slots: int
    used_slots: int
    max_senders: int
    used_senders: int
    keep_bytes: int
    own_bytes: int | None = None
    others: tuple[OtherSlot, ...] = ()
    standbys: tuple[str, ...] = ()
    failover: bool | None = None
    wants_failover: bool = False
    synchronized_slots: str = ""
    in_recovery: bool = False
    sync_slots: bool | None = None
    enable_failover: str = ""
    """The command that makes the slot a failover slot."""


def set_system(setting: str, value: str) -> str:
    return f"ALTER SYSTEM SET {setting} = {literal(value)}; SELECT pg_reload_conf();"


def check_postgres(facts: PostgresFacts, file: str) -> list[CheckResult]:
    """All findings; `file` is the pipeline's settings file."""
    found = [
        check_sender_timeout(facts.wal_sender_timeout_ms),
        _headroom("slot-headroom", "max_replication_slots", facts.used_slots, facts.max_slots),
        _headroom("wal-sender-headroom", "max_wal_senders", facts.used_senders, facts.max_senders),
        _retained(facts),
        *_failover(facts, file),
    ]
    return [each for each in found if each is not None] + [
        finding for slot in facts.others if (finding := check_other_slot(slot)) is not None
    ]


def check_sender_timeout(milliseconds: int) -> CheckResult | None:
    fix = sql(set_system("wal_sender_timeout", USUAL_TIMEOUT))
    shown = human_seconds(milliseconds / 1000)
    if milliseconds == 0:
        return warning("wal-sender-timeout-off", "wal_sender_timeout is 0: dead connections are never ended", fix)
    if milliseconds < SHORT_TIMEOUT_MS:
        return warning("wal-sender-timeout-short", f"wal_sender_timeout is {shown}", fix)
    if milliseconds > LONG_TIMEOUT_MS:
        return warning("wal-sender-timeout-long", f"wal_sender_timeout is {shown}", fix)
    return None


def _headroom(code: str, setting: str, used: int, most: int) -> CheckResult | None:
    """None are left: the check of free ones reports that."""
    left = most - used
    if left <= 0 or left > HEADROOM:
        return None
    fix = sql(f"ALTER SYSTEM SET {setting} = {max(2 * most, 10)}; -- then restart Postgres")
    return warning(code, f"{left} of {most} left ({setting})", fix)


def _retained(facts: PostgresFacts) -> CheckResult | None:
    if facts.own_bytes is None:
        return None
    limited = facts.keep_bytes > 0 and facts.own_bytes > facts.keep_bytes // 2
    if facts.own_bytes < MUCH_WAL and not limited:
        return None
    of = f", of at most {human_bytes(facts.keep_bytes)} (max_slot_wal_keep_size)" if facts.keep_bytes >= 0 else ""
    return warning(
        "slot-retains-wal",
        f"{facts.slot} holds {human_bytes(facts.own_bytes)} of WAL{of}",
        advice(
            "If the pipeline is stopped, start it. If it runs and `tailrace status` shows a lag, wait until it has "
            "caught up. A replay window (source.replay_window) holds WAL on purpose."
        ),
    )


def check_other_slot(slot: OtherSlot) -> CheckResult | None:
    """A slot that nobody reads; None if it is read, or holds nothing."""
    if slot.active or slot.temporary or slot.lost:
        return None
    found = f"{slot.name} is read by nobody and holds {human_bytes(slot.retained_bytes)} of WAL"
    drop = sql(f"SELECT pg_drop_replication_slot({literal(slot.name)}); -- if its reader does not come back")
    if slot.retained_bytes > SOME_WAL:
        return warning("foreign-slot", found, drop)
    return note("foreign-slot", found, drop)


def _failover(facts: PostgresFacts, file: str) -> list[CheckResult | None]:
    if facts.failover is None or facts.version < 170000:
        return []
    if facts.in_recovery:
        fix = sql(set_system("sync_replication_slots", "on"))
        unsynced = facts.failover and facts.sync_slots is False
        found = "sync_replication_slots is off on this standby"
        return [problem("slot-not-synced", found, fix) if unsynced else None]
    if not facts.failover:
        return [_not_failover(facts, file) if facts.standbys else None]
    # The server would wait for an inactive one, and the connector with it.
    physical = [slot.name for slot in facts.others if slot.physical and slot.active and not slot.temporary]
    if not physical or facts.synchronized_slots:
        return []
    names, listed = ", ".join(physical), ", ".join(map(literal, physical))
    return [
        warning(
            "slot-ahead-of-standby",
            f"synchronized_standby_slots is empty: the connector may be ahead of the standbys with the slots {names}",
            sql(f"ALTER SYSTEM SET synchronized_standby_slots = {listed}; SELECT pg_reload_conf();"),
        )
    ]


def _not_failover(facts: PostgresFacts, file: str) -> CheckResult:
    fixes = [] if facts.wants_failover else [settings(file, {"source": {"failover": True}})]
    if facts.enable_failover:
        fixes.append(shell(f"{facts.enable_failover}  # while the pipeline is stopped"))
    found = f"{facts.slot} is not a failover slot, and there are standbys: {', '.join(facts.standbys)}"
    return warning("slot-without-failover", found, *fixes)
