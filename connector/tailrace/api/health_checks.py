"""The health checks of one pipeline, in three groups, each with cause and remedy. Pure.

Publisher: does it run, do its servers answer. Performance: lag, retries, share of delivered events. Data: events that
wait, the log of the source, dead letters.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tailrace.check.result import human_bytes, human_seconds
from tailrace.config.secrets import mask
from tailrace.manager.managed import ManagedPipeline
from tailrace.manager.report import FAILED, PAUSED, RESTARTING, RETRYING, RUNNING, STARTING, STOPPED, WAITING

OK, WARN, FAIL, UNKNOWN = "ok", "warn", "fail", "unknown"
_RANK = {OK: 0, UNKNOWN: 1, WARN: 2, FAIL: 3}
LAG_WARN_SECONDS, LAG_FAIL_SECONDS = 60.0, 600.0
RATE_WARN, RATE_FAIL = 0.99, 0.5
FEW_EVENTS = 10
"""The share of delivered events means nothing for fewer of them."""
LOST_WARN_SECONDS, LOST_FAIL_SECONDS = 86_400.0, 3600.0
SAFE_WARN, SAFE_FAIL = 0.4, 0.2
"""Shares of the server's limit for its log that are left."""
PARKED_WARN_SECONDS = 3600.0
STALE_SECONDS = 60.0
"""Older facts say nothing about now."""
CERTIFICATE_WARN_SECONDS = 14 * 86_400.0
SERVERS = {"database": "source", "kafka": "kafka"}


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check; `why` and `remedy` are given unless it is ok."""

    status: str
    what: str
    why: str = ""
    remedy: str = ""

    def to_json(self) -> dict[str, str]:
        shown = {"status": self.status, "what": self.what, "why": self.why, "remedy": self.remedy}
        return {name: mask(text) for name, text in shown.items() if text}


Groups = dict[str, dict[str, Check]]


def groups(pipeline: ManagedPipeline, now: float) -> Groups:
    """Returns the checks of a pipeline by group and name; `now` is a Unix time."""
    running = _running(pipeline)
    if pipeline.state in (PAUSED, STOPPED):
        return {"publisher": {"running": running}}
    facts: dict[str, Any] = pipeline.report.facts if pipeline.report is not None else {}
    if pipeline.pid is None or now - facts.get("at_ms", 0) / 1000 > STALE_SECONDS:
        facts = {}
    return {
        "publisher": {"running": running, **_servers(facts, now)},
        "performance": {
            "lag": _lag(facts),
            "retries": _retries(pipeline, facts),
            "success_rate": _success_rate(facts),
        },
        "data": {"orphans": _orphans(facts, now), "log": _log(facts), "dead_letters": _dead_letters(facts)},
    }


def worst(checks: Iterable[Check]) -> str:
    """Returns the worst status of some checks."""
    return max((check.status for check in checks), key=_RANK.__getitem__, default=OK)


def first_failed(found: Groups) -> Check | None:
    """Returns the first check that failed."""
    return next((check for group in found.values() for check in group.values() if check.status == FAIL), None)


def _running(pipeline: ManagedPipeline) -> Check:
    state, error = pipeline.state, pipeline.error or (pipeline.report.error if pipeline.report is not None else None)
    if state in (RUNNING, WAITING):
        return Check(OK, "the pipeline runs" if state == RUNNING else "another instance runs the pipeline")
    if state in (PAUSED, STOPPED):
        return Check(OK, f"the pipeline is {state}, as it should be")
    if state == STARTING:
        return Check(UNKNOWN, "the pipeline is starting")
    if error is not None:
        shown = {RETRYING: "waits before it tries again", RESTARTING: "is restarted soon", FAILED: "has failed"}
        what = f"the pipeline {shown.get(state, state)}: {error.code}: {error.what}"
        return Check(FAIL, what, error.why, error.remedy)
    return Check(FAIL, f"the pipeline is {state}", "Its process has ended.", "See the log of the worker.")


def _servers(facts: dict[str, Any], now: float) -> dict[str, Check]:
    servers = facts.get("servers") or {}
    found = {}
    for name, key in SERVERS.items():
        error = servers.get(key)
        if key not in servers:
            found[name] = _unknown("it was not asked within the last minute")
        elif error is None:
            found[name] = _certified(facts, key, now)
        else:
            what = f"{'Kafka' if name == 'kafka' else 'the database'} does not answer: {error['what']}"
            remedy = f"Check that it runs, and its address in the settings. {error.get('remedy') or ''}".strip()
            found[name] = Check(FAIL, what, error.get("why") or "It is down or not reachable.", remedy)
    if servers.get("registry") is not None:
        found["registry"] = Check(
            WARN,
            "the schema registry does not answer",
            "It is down or not reachable. Schemas that are known already are used.",
            "Check the registry and schemas.registry.url.",
        )
    return found


def _certified(facts: dict[str, Any], key: str, now: float) -> Check:
    expires = (facts.get("certificates") or {}).get(key)
    if expires is None or expires - now > CERTIFICATE_WARN_SECONDS:
        return Check(OK, "it answers")
    left = expires - now
    what = (
        f"it answers; its certificate expires in {human_seconds(left)}" if left > 0 else "its certificate has expired"
    )
    return Check(WARN, what, "Clients refuse an expired certificate.", "Renew the certificate of the server.")


def _lag(facts: dict[str, Any]) -> Check:
    seconds = (facts.get("lag") or {}).get("seconds")
    if seconds is None:
        return _unknown("the lag is not known")
    if facts.get("reading_existing"):
        return Check(OK, "reading the rows from before the first start")
    pending = facts["lag"].get("events")
    what = f"{human_seconds(seconds)} behind" + (f", about {pending} events" if pending else "")
    if seconds < LAG_WARN_SECONDS:
        return Check(OK, what)
    return Check(
        WARN if seconds < LAG_FAIL_SECONDS else FAIL,
        what,
        "More is written than is published, or a server is slow or away.",
        "Look at outbox_stage_duration_seconds: the slowest of source, processing and publish needs attention.",
    )


def _retries(pipeline: ManagedPipeline, facts: dict[str, Any]) -> Check:
    waiting = facts.get("retrying_records")
    if pipeline.state in (RETRYING, RESTARTING):
        error = pipeline.error or (pipeline.report.error if pipeline.report is not None else None)
        cause = f"{error.code}: {error.what}" if error is not None else ""
        return Check(WARN, "the pipeline waits before it tries again", cause, error.remedy if error is not None else "")
    if waiting:
        return Check(
            WARN,
            f"{waiting} events wait to be sent again",
            "Their topics refused them.",
            "See the log lines `refused`, and the limits of the topics.",
        )
    return Check(OK, "nothing waits to be sent again")


def _success_rate(facts: dict[str, Any]) -> Check:
    recent = facts.get("recent")
    if recent is None:
        return _unknown("nothing is known about recent events")
    total = recent["delivered"] + recent["failed"]
    share = recent["delivered"] / total if total else 1.0
    what = f"{share:.1%} of {total} events were delivered in the last {human_seconds(recent['seconds'])}"
    if total < FEW_EVENTS or share >= RATE_WARN:
        return Check(OK, what)
    return Check(
        WARN if share >= RATE_FAIL else FAIL,
        what,
        "The others were dead-lettered, or their topics refuse them.",
        "See `tailrace dlq list FILE`; after a fix, `tailrace dlq redrive FILE`.",
    )


def _orphans(facts: dict[str, Any], now: float) -> Check:
    parked = facts.get("parked")
    if parked is None:
        return _unknown("parked keys were not counted yet")
    if not parked["keys"]:
        return Check(OK, "no event waits behind a dead letter")
    age = now - (parked["since_ms"] or 0) / 1000
    what = f"events of {parked['keys']} parked keys wait, the oldest for {human_seconds(age)}"
    if age < PARKED_WARN_SECONDS:
        return Check(OK, what)
    return Check(
        WARN,
        what,
        "The first event of each key is a dead letter that nobody has resolved.",
        "Redrive or discard it (`tailrace dlq list FILE`). `tailrace verify FILE` compares outbox and topics.",
    )


def _log(facts: dict[str, Any]) -> Check:
    found = facts.get("log")
    if found is None:
        return _unknown("the log of the source is not known")
    if found["lost"]:
        return Check(
            FAIL,
            found["lost"],
            "The server no longer has the log after the stored position, or not for this pipeline.",
            "`tailrace recover plan FILE` finds the missed events in the outbox.",
        )
    left, safe, limit = found["lost_in_seconds"], found["safe_bytes"], found["limit_bytes"]
    share = safe / limit if safe is not None and limit else None
    kept = found["retained_bytes"]
    what = f"{human_bytes(kept)} of log are kept" if kept is not None else "the log is complete"
    what += f", lost in {human_seconds(left)} at the current rate" if left is not None else ""
    what += f", {share:.0%} of the limit is left" if share is not None else ""
    in_danger = (left is not None and left < LOST_FAIL_SECONDS) or (share is not None and share < SAFE_FAIL)
    is_close = (left is not None and left < LOST_WARN_SECONDS) or (share is not None and share < SAFE_WARN)
    if not in_danger and not is_close:
        return Check(OK, what)
    return Check(
        FAIL if in_danger else WARN,
        what,
        "The server limits its log, and removes what the pipeline has not read when the limit is reached.",
        "Let the pipeline catch up, or raise the limit: max_slot_wal_keep_size, or the size of the oplog.",
    )


def _dead_letters(facts: dict[str, Any]) -> Check:
    found, recent = facts.get("dead_letters"), facts.get("recent") or {}
    if found is None:
        return _unknown("dead letters were not counted yet")
    new = recent.get("dead_letters", 0)
    shown = f"{'more than ' if found['more'] else ''}{found['open']} dead letters are open"
    what = f"{shown}, {new} in the last {human_seconds(recent.get('seconds', 0))}"
    if not new:
        return Check(OK, what)
    reasons = ", ".join(f"{reason}: {count}" for reason, count in found["by_reason"].items())
    return Check(WARN, what, f"Open by reason: {reasons or 'none'}.", "See `tailrace dlq list FILE`.")


def _unknown(what: str) -> Check:
    return Check(UNKNOWN, what, "The pipeline has just started, or a server does not answer.", "Ask again in a minute.")
