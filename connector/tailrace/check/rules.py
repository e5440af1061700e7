"""What is good enough for a pipeline: judgements over a server's numbers, for `tailrace check`. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tailrace.check.result import CheckResult, clock_difference, fail, human_bytes, is_loopback, ok, warn
from tailrace.positions.postgres import format_lsn
from tailrace.routing.specs import BROKER_DEFAULT, TopicSpec, in_order
from tailrace.routing.view import View
from tailrace.sources.postgres.replay_window import ReplayWindow, max_window_bytes
from tailrace.sources.postgres.resume_check import SlotState

FIXED_MINORS = {14: 19, 15: 14, 16: 10, 17: 6}
"""The first release of each that no longer loses decoded changes around ALTER PUBLICATION and partial transactions."""
NOT_VERIFIED = "no certificate is verified: whoever answers in its place is believed"
IN_ORDER = {20, 21, 23, 1082, 1114, 1184, 1700}
"""Types whose values grow with time, usually: integers, numeric, date and timestamps."""
SMALL_WAL_BYTES = 1 << 30
"""Less room than this is gone within an hour of an outage at 300 kB/s of WAL, which is a small service."""


def check_version(number: int) -> CheckResult:
    """As Postgres counts: 160014 is 16.14."""
    major, minor = divmod(number, 10_000)
    shown = f"{major}.{minor}"
    if major < min(FIXED_MINORS):
        mend = f"Upgrade to Postgres {max(FIXED_MINORS)} or newer."
        return warn("postgres version", f"{shown} is no longer maintained", mend)
    fixed = FIXED_MINORS.get(major, 0)
    if minor < fixed:
        found = f"{shown} can lose changes around ALTER PUBLICATION and in partly decoded transactions"
        return warn("postgres version", found, f"Upgrade to {major}.{fixed} or newer, which keeps the data as it is.")
    return ok("postgres version", shown)


def check_clock(database_ms: int, here_ms: float) -> CheckResult:
    """The database's clock against this machine's, read at the same moment."""
    difference = clock_difference((database_ms - here_ms) / 1000)
    if not difference:
        return ok("clock", "as this machine's")
    found = (
        f"the database's clock is {difference}: records whose commit seems to be in the future, or more than an hour "
    )
    mend = "Synchronise the clocks of database, connector and brokers (NTP)."
    return warn("clock", f"{found}ago, bear the time of their publishing, and lags are wrong", mend)


def check_encryption(host: str, *, encrypted: bool, sslmode: str = "verify-full") -> CheckResult:
    """`sslmode` as libpq takes it: only `verify-full` makes sure who the server is."""
    if encrypted and (sslmode == "verify-full" or is_loopback(host)):
        return ok("postgres encryption", f"TLS, sslmode={sslmode}")
    if encrypted:
        found = "the certificate is not compared with the host's name" if sslmode == "verify-ca" else NOT_VERIFIED
        mend = "Set sslmode=verify-full (and sslrootcert=…) in source.postgres."
        return warn("postgres encryption", f"TLS, but with sslmode={sslmode} {found}", mend)
    if is_loopback(host):
        return ok("postgres encryption", "none, on this machine only")
    mend = "Add sslmode=verify-full (and sslrootcert=…) to source.postgres; the server needs ssl = on."
    return warn("postgres encryption", f"none: rows cross the network to {host} readable", mend)


def check_kept(most: int) -> CheckResult:
    """`most` is max_slot_wal_keep_size in bytes, -1 without a bound."""
    name, keep = "wal kept for slots", "ALTER SYSTEM SET max_slot_wal_keep_size = '{}'; SELECT pg_reload_conf();"
    if most < 0:
        found = "max_slot_wal_keep_size is -1: while the connector is down, its slot can fill the server's disk"
        return warn(name, found, keep.format("50GB") + " -- less than the disk has free, more than an outage writes")
    if most < SMALL_WAL_BYTES:
        found = f"max_slot_wal_keep_size is {human_bytes(most)}: a connector that is down soon loses its slot"
        return warn(name, found, keep.format("50GB") + " -- more than the longest outage writes")
    return ok(name, f"up to {human_bytes(most)}")


def check_window(window: ReplayWindow, most: int, disk: int | None = None) -> CheckResult | None:
    """What a replay window asks of the server, whose bound for slots is `most` bytes, or -1, and on whose disk so many
    are free, if that is known; None without a window.
    """
    name = "replay window"
    if not window:
        return None
    age = [] if window.seconds is None else [f"{window.seconds / 3600:g} h"]
    size = [] if window.size is None else [human_bytes(window.size)]
    told = ", ".join([*age, *size])
    if disk is not None and (window.size or 0) > disk:
        found = f"{told}, but it is held to what is free on the server's disk, {human_bytes(disk)}"
        return warn(name, found, "Make room there, or lower source.replay_window.")
    if window.size is None and most < 0 and disk is not None:
        return ok(name, f"{told}, and never more than is free on the server's disk, {human_bytes(disk)} now")
    if window.size is None and most < 0:
        found = f"{told}, with no bound on its size: a busy day could fill the server's disk"
        return warn(name, found, f"Write a size beside it, such as source.replay_window: {told}, 10 GiB.")
    if most >= 0 and max_window_bytes(most) == 0:
        found = f"{told}, but max_slot_wal_keep_size is {human_bytes(most)}, which leaves no room for it"
        return warn(name, found, "Raise max_slot_wal_keep_size, or leave source.replay_window out.")
    if most >= 0 and (window.size or 0) > max_window_bytes(most):
        found = f"{told}, but it is held to {human_bytes(max_window_bytes(most))} of max_slot_wal_keep_size"
        return warn(name, found, "Raise max_slot_wal_keep_size, or lower source.replay_window.")
    return ok(name, told)


def check_free(what: str, used: int, most: int, *, needed: bool) -> CheckResult:
    """`what` as in `max_wal_senders`, with a space; `needed` whether the next start takes one more."""
    setting = "max_replication_slots" if what == "slots" else "max_wal_senders"
    if used >= most and needed:
        mend = (
            f"ALTER SYSTEM SET {setting} = {max(2 * most, 10)}; and restart Postgres, or free one that is not needed."
        )
        return fail(f"free {what}", f"none: {used} of {most} are in use ({setting})", mend)
    return ok(f"free {what}", f"{most - used} of {most}")


def check_partitions(spec: TopicSpec, live: int) -> CheckResult | None:
    """Whether a topic has the partitions that its spec declares; None if so, or if it declares none."""
    if spec.partitions in (BROKER_DEFAULT, live):
        return None
    found = f"has {live} partition{'s' * (live != 1)}, its spec says {spec.partitions}"
    place = f" ({spec.line_of('partitions')})" if spec.line_of("partitions") else ""
    mend = f"Write partitions: {live} in its spec{place}"
    if spec.partitions < live:
        return warn(
            f"topic {spec.topic}",
            f"{found}: if it was grown, events of one key stand on two partitions and their order is not kept",
            f"{mend}; partitions cannot be taken away.",
        )
    grow = "or run `tailrace topics apply --grow`, which moves existing keys to other partitions"
    return warn(f"topic {spec.topic}", found, f"{mend}, {grow}.")


def check_copies(name: str, topic: str, copies: int, leaderless: int, brokers: int) -> CheckResult | None:
    """Whether the topic survives the loss of a disk; None if so, or if there is only one broker anyway."""
    if leaderless:
        found = f"{leaderless} partitions of {topic} have no leader: brokers with copies are away, or lost their disks"
        mend = "Start them. What a lost disk had is lost: `tailrace recover plan` compares the outbox with the rest."
        return fail(name, found, mend)
    if copies > 1 or brokers < 2:
        return None
    found = f"{topic} has one copy, though there are {brokers} brokers: with that broker's disk it is lost"
    mend = f"Give it {min(brokers, 3)} copies with kafka-reassign-partitions, and declare as many in the settings."
    return warn(name, found, mend)


def check_standby(*, in_recovery: bool, has_slot: bool) -> CheckResult | None:
    """Of the server itself; None for a primary."""
    if not in_recovery:
        return None
    mend = "Name the primary in source.postgres; with several hosts, target_session_attrs=read-write finds it."
    if has_slot:
        return warn("primary", "the server is a standby, which has the slot: it must stay, or be promoted", mend)
    return fail("primary", "the server is a standby: neither publication nor slot can be created there", mend)


def check_synchronous(setting: str, application: str) -> CheckResult | None:
    """`setting` is synchronous_standby_names; None if it is empty."""
    if not setting.strip():
        return None
    name = "synchronous standbys"
    # FIRST 1 (a, "b c"), ANY 2 (*), or a plain list: names are compared without regard to case.
    names = [quoted or plain for quoted, plain in re.findall(r'"([^"]*)"|([^\s,()"]+)', setting)]
    if "*" not in names and application.lower() not in (each.lower() for each in names):
        return ok(name, f"synchronous_standby_names = {setting}: the connector is not among them")
    found = (
        f"synchronous_standby_names = {setting} makes the connector one: commits of the service wait until their "
        "events are in Kafka, and do not end while it is down"
    )
    mend = "Name the standbys: ALTER SYSTEM SET synchronous_standby_names = 'FIRST 1 (…)'; SELECT pg_reload_conf();"
    return warn(name, found, mend)


def check_order(order_by: Sequence[str], kinds: Mapping[str, int]) -> CheckResult | None:
    """Whether the first of the columns says when a row was written; `kinds` are their types by number."""
    first = order_by[0]
    if kinds.get(first) in IN_ORDER:
        return None
    by = ", ".join(order_by)
    by = f"the transactions that wrote them (xmin), then of {by}" if len(order_by) == 1 else by
    found = (
        f"rows of the table (`start: beginning`, a recovery, a replay) come in the order of {by}: {first} does not say "
        "when a row was written, so events of a key may not come in the order of commits"
    )
    mend = "Name the column with a row's time in outbox.columns.timestamp, or one that counts up in source.order_by."
    return warn("order of rows", found, mend)


def check_rules(specs: Sequence[TopicSpec], view: View, columns: frozenset[str]) -> list[CheckResult]:
    """Whether the columns that rules look at are there; nothing to say if the columns are not known."""
    for spec, rule in in_order(list(specs)) if columns else []:
        if not view.sees(rule):
            continue
        looked_at = [(condition.place, view.column(view.variable(condition))) for condition in rule.conditions]
        looked_at.append((("key",), view.key_column(rule)))
        for place, column in looked_at:
            if column is not None and column not in columns:
                found = f"{spec.origin.at(*place)}: {'.'.join(place)} looks at {column}, which no row has"
                return [warn("rules", found, f"Correct the name: the outbox has {', '.join(sorted(columns))}.")]
    return []


def check_slot(slot: SlotState | None, name: str, database: str) -> CheckResult:
    if slot is None:
        return ok("slot", f"{name}: not there yet, is created on the first start")
    if slot.plugin != "pgoutput" or slot.database != database:
        found = f"{name} is of plugin {slot.plugin} in database {slot.database}"
        return fail("slot", found, "Choose another name in source.slot.")
    drop = (
        f"SELECT pg_drop_replication_slot('{name}'); SELECT pg_create_logical_replication_slot('{name}', 'pgoutput');"
    )
    if slot.wal_status == "lost" or slot.invalidation:
        found = f"{name} is invalidated ({slot.invalidation or 'wal_removed'}): the server removed WAL that it needed"
        mend = (
            "`tailrace recover plan FILE` finds in the table what was missed, `recover apply` publishes it and creates "
            f"the slot. To go on without it, so that it is never published: {drop} then start once with --adopt."
        )
        return fail("slot", found, mend)
    state = f"read by server process {slot.active_pid}" if slot.active_pid else "not in use"
    found = (
        f"{name}, {state}, confirmed {format_lsn(slot.confirmed_lsn)}, keeps {human_bytes(slot.retained_bytes)} of WAL"
    )
    if slot.wal_status == "unreserved":
        return warn(
            "slot", f"{found}, and is about to be lost", "Start the connector now, or raise max_slot_wal_keep_size."
        )
    if slot.safe_bytes is not None:
        found += f", lost after {human_bytes(slot.safe_bytes)} more"
    return ok("slot", found)
