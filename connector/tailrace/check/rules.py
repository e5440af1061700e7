"""Rules of `tailrace check` that turn settings and numbers of Postgres and Kafka into results. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tailrace.check.result import CheckResult, clock_difference, fail, human_bytes, is_loopback, ok, warn
from tailrace.check.versions import OLDEST_POSTGRES, known_bugs, shown
from tailrace.outbox.specs import LAYOUTS
from tailrace.positions.postgres import format_lsn
from tailrace.routing.specs import BROKER_DEFAULT, TopicSpec, in_order
from tailrace.routing.view import View
from tailrace.sources.postgres.replay_window import ReplayWindow, max_window_bytes
from tailrace.sources.postgres.resume_check import SlotState
from tailrace.sql_names import quote

NOT_VERIFIED = "certificates are not verified, so another server could pose as this one"
IN_ORDER = {20, 21, 23, 1082, 1114, 1184, 1700}
"""Types whose values usually grow with time: integers, numeric, date and timestamps."""
SMALL_WAL_BYTES = 1 << 30
"""A small service that writes 300 kB/s of WAL fills this within an hour."""


def check_version(number: int) -> CheckResult:
    """`number` is server_version_num: 160014 is 16.14."""
    version = divmod(number, 10_000)
    if version[0] < OLDEST_POSTGRES:
        return warn("postgres version", f"{shown(version)} is no longer maintained", "Upgrade to Postgres 17 or newer.")
    for bug, fixed in known_bugs("Postgres", version):
        found = f"{shown(version)} {bug.effect} ({bug.link})"
        return warn("postgres version", found, f"Upgrade to {fixed} or newer, a minor upgrade.")
    return ok("postgres version", shown(version))


def check_clock(database_ms: int, here_ms: float) -> CheckResult:
    """Compares the database's clock with this machine's, read at the same moment."""
    difference = clock_difference((database_ms - here_ms) / 1000)
    if not difference:
        return ok("clock", "the same as this machine's")
    found = (
        f"the database's clock is {difference}: records whose commit seems to be in the future, or more than an hour "
    )
    remedy = "Synchronise the clocks of database, connector and brokers (NTP)."
    return warn("clock", f"{found}ago, get the time of publishing, and lags are wrong", remedy)


def check_encryption(host: str, *, encrypted: bool, sslmode: str = "verify-full") -> CheckResult:
    """`sslmode` is libpq's; only `verify-full` verifies the identity of the server."""
    if encrypted and (sslmode == "verify-full" or is_loopback(host)):
        return ok("postgres encryption", f"TLS, sslmode={sslmode}")
    if encrypted:
        found = "the host name in the certificate is not verified" if sslmode == "verify-ca" else NOT_VERIFIED
        remedy = "Set sslmode=verify-full (and sslrootcert=…) in source.postgres."
        return warn("postgres encryption", f"TLS, but with sslmode={sslmode} {found}", remedy)
    if is_loopback(host):
        return ok("postgres encryption", "none, on this machine only")
    remedy = "Add sslmode=verify-full (and sslrootcert=…) to source.postgres; the server needs ssl = on."
    return warn("postgres encryption", f"none: rows cross the network to {host} in plain text", remedy)


def check_kept(most: int) -> CheckResult:
    """`most` is max_slot_wal_keep_size in bytes, or -1 without a bound."""
    name, keep = "wal kept for slots", "ALTER SYSTEM SET max_slot_wal_keep_size = '{}'; SELECT pg_reload_conf();"
    if most < 0:
        found = "max_slot_wal_keep_size is -1: while the connector is down, its slot can fill the server's disk"
        return warn(name, found, keep.format("50GB") + " -- less than the disk has free, more than an outage writes")
    if most < SMALL_WAL_BYTES:
        found = f"max_slot_wal_keep_size is {human_bytes(most)}: a connector that is down for a while loses its slot"
        return warn(name, found, keep.format("50GB") + " -- more than the longest outage writes")
    return ok(name, f"up to {human_bytes(most)}")


def check_window(window: ReplayWindow, most: int, disk: int | None = None) -> CheckResult | None:
    """Whether the server can keep a replay window: `most` bounds the WAL of slots, `disk` is what is free, if known.

    Returns None without a window.
    """
    name = "replay window"
    if not window:
        return None
    age = [] if window.seconds is None else [f"{window.seconds / 3600:g} h"]
    size = [] if window.size is None else [human_bytes(window.size)]
    wanted = ", ".join([*age, *size])
    if disk is not None and (window.size or 0) > disk:
        found = f"{wanted}, but it is limited to the free space on the server's disk, {human_bytes(disk)}"
        return warn(name, found, "Free disk space, or lower source.replay_window.")
    if window.size is None and most < 0 and disk is not None:
        return ok(name, f"{wanted}, at most the free space on the server's disk, {human_bytes(disk)} now")
    if window.size is None and most < 0:
        found = f"{wanted}, without a bound on its size: a busy day could fill the server's disk"
        return warn(name, found, f"Add a size, such as source.replay_window: {wanted}, 10 GiB.")
    if most >= 0 and max_window_bytes(most) == 0:
        found = f"{wanted}, but max_slot_wal_keep_size is {human_bytes(most)}, which leaves no space for it"
        return warn(name, found, "Raise max_slot_wal_keep_size, or remove source.replay_window.")
    if most >= 0 and (window.size or 0) > max_window_bytes(most):
        found = f"{wanted}, but it is held to {human_bytes(max_window_bytes(most))} of max_slot_wal_keep_size"
        return warn(name, found, "Raise max_slot_wal_keep_size, or lower source.replay_window.")
    return ok(name, wanted)


def check_free(what: str, used: int, most: int, *, needed: bool) -> CheckResult:
    """`what` is `slots` or `wal senders`; `needed`: whether the next start needs one more."""
    setting = "max_replication_slots" if what == "slots" else "max_wal_senders"
    if used >= most and needed:
        remedy = f"ALTER SYSTEM SET {setting} = {max(2 * most, 10)}; -- then restart Postgres; or free an unused one"
        return fail(f"free {what}", f"none: {used} of {most} are in use ({setting})", remedy)
    return ok(f"free {what}", f"{most - used} of {most}")


def check_partitions(spec: TopicSpec, live: int) -> CheckResult | None:
    """Whether a topic has the declared number of partitions; None if so, or if none is declared."""
    if spec.partitions in (BROKER_DEFAULT, live):
        return None
    found = f"has {live} partition{'s' * (live != 1)}, but its spec declares {spec.partitions}"
    place = f" ({spec.line_of('partitions')})" if spec.line_of("partitions") else ""
    remedy = f"Write partitions: {live} in its spec{place}"
    if spec.partitions < live:
        return warn(
            f"topic {spec.topic}",
            f"{found}: if partitions were added, events of one key may be on two partitions, without a common order",
            f"{remedy}; Kafka cannot remove partitions.",
        )
    grow = "or run `tailrace topics apply --grow`, which moves existing keys to other partitions"
    return warn(f"topic {spec.topic}", found, f"{remedy}, {grow}.")


def check_copies(name: str, topic: str, copies: int, leaderless: int, brokers: int) -> CheckResult | None:
    """Whether the topic survives the loss of a disk; None if so, or if there is only one broker."""
    if leaderless:
        found = f"{leaderless} partitions of {topic} have no leader: brokers with replicas are down or lost disks"
        remedy = "Start them. If a disk is lost, `tailrace recover plan` finds the events that were only there."
        return fail(name, found, remedy)
    if copies > 1 or brokers < 2:
        return None
    found = f"{topic} has one replica, although there are {brokers} brokers: it is lost with that broker's disk"
    remedy = f"Add replicas with kafka-reassign-partitions, and declare {min(brokers, 3)} in the settings."
    return warn(name, found, remedy)


def check_standby(*, in_recovery: bool, has_slot: bool) -> CheckResult | None:
    """Whether the server is a standby; None for a primary."""
    if not in_recovery:
        return None
    remedy = "Use the primary in source.postgres; with several hosts, target_session_attrs=read-write selects it."
    if has_slot:
        return warn("primary", "the server is a standby that has the slot: keep or promote it", remedy)
    return fail("primary", "the server is a standby: publication and slot cannot be created there", remedy)


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
        f"synchronous_standby_names = {setting} includes the connector: commits of the service wait until their "
        "events are in Kafka, and hang while the connector is down"
    )
    remedy = "Name the standbys: ALTER SYSTEM SET synchronous_standby_names = 'FIRST 1 (…)'; SELECT pg_reload_conf();"
    return warn(name, found, remedy)


def check_order(order_by: Sequence[str], kinds: Mapping[str, int]) -> CheckResult | None:
    """Whether the first column shows when a row was written; `kinds` maps columns to type OIDs."""
    first = order_by[0]
    if kinds.get(first) in IN_ORDER:
        return None
    by = ", ".join(order_by)
    by = f"the transactions that wrote them (xmin), then of {by}" if len(order_by) == 1 else by
    found = (
        f"existing rows (`start: beginning`, a recovery, a replay) are read in the order of {by}: {first} does not "
        "show when a row was written, so events of a key may not be in commit order"
    )
    remedy = "Set outbox.columns.timestamp to the column with a row's time, or source.order_by to an increasing column."
    return warn("order of rows", found, remedy)


def check_delivery_columns(layout: str, kinds: Mapping[str, int], table: str) -> CheckResult | None:
    """Whether the table has the columns of its layout that only delivery marks use; `kinds` maps columns to types."""
    wanted = [column for column in LAYOUTS[layout].table if column.about_delivery]
    missing = [column for column in wanted if column.name not in kinds]
    if not wanted:
        return None
    if not missing:
        return ok("delivery columns", f"{len(wanted)}, none of them is sent")
    added = ", ".join(f"ADD COLUMN {quote(column.name)} {' '.join(column.definition.split())}" for column in missing)
    found = f"{table} has no column {', '.join(column.name for column in missing)} of the layout {layout}"
    return warn("delivery columns", f"{found}: it cannot be marked", f"ALTER TABLE {table} {added};")


def check_tables_beside(table: str, wanted: Sequence[str], missing: Sequence[str]) -> CheckResult:
    """Whether the tables exist that services write with each event of a storage outbox, and marks to dead letters."""
    if not missing:
        return ok("tables beside", ", ".join(wanted))
    found = f"there is no {', '.join(missing)}: services need them to publish events"
    return warn("tables beside", found, f"Run what `tailrace outbox ddl --layout storage --table {table}` prints.")


def check_rules(specs: Sequence[TopicSpec], view: View, columns: frozenset[str]) -> list[CheckResult]:
    """Whether the outbox has the columns that routing rules use; no result if the columns are unknown."""
    for spec, rule in in_order(list(specs)) if columns else []:
        if not view.sees(rule):
            continue
        looked_at = [(condition.place, view.column(view.variable(condition))) for condition in rule.conditions]
        looked_at.append((("key",), view.key_column(rule)))
        for place, column in looked_at:
            if column is not None and column not in columns:
                found = f"{spec.origin.at(*place)}: {'.'.join(place)} uses {column}, which no row has"
                return [warn("rules", found, f"Correct the name: the outbox has {', '.join(sorted(columns))}.")]
    return []


def check_slot(slot: SlotState | None, name: str, database: str) -> CheckResult:
    if slot is None:
        return ok("slot", f"{name}: will be created on the first start")
    if slot.plugin != "pgoutput" or slot.database != database:
        found = f"{name} uses plugin {slot.plugin} in database {slot.database}"
        return fail("slot", found, "Choose another name in source.slot.")
    drop = (
        f"SELECT pg_drop_replication_slot('{name}'); SELECT pg_create_logical_replication_slot('{name}', 'pgoutput');"
    )
    if slot.wal_status == "lost" or slot.invalidation:
        found = f"{name} is invalidated ({slot.invalidation or 'wal_removed'}): the server removed its WAL"
        remedy = (
            "`tailrace recover plan FILE` finds the missed events in the table, `recover apply` publishes them and "
            f"creates the slot. To continue without ever publishing them: {drop} then start once with --adopt."
        )
        return fail("slot", found, remedy)
    state = f"read by server process {slot.active_pid}" if slot.active_pid else "not in use"
    found = (
        f"{name}, {state}, confirmed {format_lsn(slot.confirmed_lsn)}, keeps {human_bytes(slot.retained_bytes)} of WAL"
    )
    if slot.wal_status == "unreserved":
        return warn(
            "slot",
            f"{found}, and will soon be invalidated",
            "Start the connector now, or raise max_slot_wal_keep_size.",
        )
    if slot.safe_bytes is not None:
        found += f", invalidated after {human_bytes(slot.safe_bytes)} more"
    return ok("slot", found)
