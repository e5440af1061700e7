"""Rules of `tailrace check` that turn the state of a MongoDB into results. Pure functions."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tailrace.check.result import CheckResult, fail, human_seconds, is_loopback, ok, warn
from tailrace.check.rules import NOT_VERIFIED
from tailrace.outbox.mongosh import USERS
from tailrace.sources.mongo.options import can_split

OLDEST = (6, 0)
SHORT_WINDOW_SECONDS = 24 * 3600
"""An outage that begins on a Friday evening may be noticed a day later."""
SUPERUSER_ROLES = {"root", "__system"}
READABLE = {1, 2}
"""PRIMARY and SECONDARY: the states of a member that has the data."""
Document = Mapping[str, Any]


def create_index(database: str, collection: str, order: Mapping[str, int]) -> str:
    """Returns the command of mongosh that creates an index."""
    where = f"db.getSiblingDB({json.dumps(database)}).getCollection({json.dumps(collection)})"
    return f"{where}.createIndex({json.dumps(order)})"


def is_encrypted(uri: str) -> bool:
    """Whether the address uses TLS; mongodb+srv does by default."""
    values = re.findall(r"[?&](?:tls|ssl)=(\w+)", uri, flags=re.IGNORECASE)
    return values[-1].lower() == "true" if values else uri.startswith("mongodb+srv:")


def is_unverified(uri: str) -> bool:
    """Whether the address turns off the verification of certificates or of the host names in them."""
    options = r"[?&](?:tlsInsecure|tlsAllowInvalidCertificates|tlsAllowInvalidHostnames)=true"
    return re.search(options, uri, flags=re.IGNORECASE) is not None


def check_mongo_encryption(hosts: Sequence[str], *, encrypted: bool, unverified: bool = False) -> CheckResult:
    name, remote = "mongo encryption", [host for host in hosts if not is_loopback(host)]
    if encrypted and unverified and remote:
        remedy = "Remove tlsInsecure and tlsAllowInvalid… from source.mongo, and set tlsCAFile to the CA."
        return warn(name, f"TLS, but {NOT_VERIFIED}", remedy)
    if encrypted:
        return ok(name, "TLS")
    if not remote:
        return ok(name, "none, on this machine only")
    remedy = "Add tls=true (and tlsCAFile=…) to source.mongo; the servers need net.tls.mode: requireTLS."
    return warn(name, f"none: documents cross the network to {remote[0]} in plain text", remedy)


def check_mongo_version(version: tuple[int, ...]) -> CheckResult:
    name, shown = "mongo version", ".".join(map(str, version))
    if version[:2] < OLDEST:
        found = f"{shown} has no snapshot reads, which are needed to read a collection"
        return fail(name, found, "Upgrade to MongoDB 6.0 or newer.")
    if not can_split(version):
        found = f"{shown} cannot send changes over 16 MB: a document near that size stops the pipeline"
        return warn(name, found, "Upgrade to 6.0.9, 7.0 or newer.")
    return ok(name, shown)


def check_user(users: Sequence[Document], roles: Sequence[Document], hosts: Sequence[str]) -> CheckResult:
    """Takes users and roles from `connectionStatus`."""
    if not users:
        if all(is_loopback(host) for host in hosts):
            return ok("user", "none: the server has no access control, on this machine only")
        remedy = "Set security.authorization: enabled on the servers; `tailrace init --mongo` writes the commands."
        return warn("user", "none: everyone who can connect may read and write everything", remedy)
    who = str(users[0]["user"])
    if mighty := sorted({str(role["role"]) for role in roles} & SUPERUSER_ROLES):
        remedy = "Use a user with find and changeStream on the outbox; `tailrace init --mongo` writes the commands."
        return warn("user", f"{who} has the role {mighty[0]}: reading a change stream needs fewer rights", remedy)
    return ok("user", f"{who}, with {', '.join(str(role['role']) for role in roles) or 'no role'}")


def allows(privileges: Sequence[Document], action: str, database: str, collection: str) -> bool:
    """Whether one of `authenticatedUserPrivileges` has the action on the collection."""
    return any(
        action in privilege["actions"] and _covers(privilege["resource"], database, collection)
        for privilege in privileges
    )


def _covers(resource: Document, database: str, collection: str) -> bool:
    if resource.get("anyResource"):
        return True
    # An empty name means all except system collections.
    return resource.get("db") in ("", database) and resource.get("collection") in ("", collection)


def check_mongo_marks(database: str, lacking: Mapping[str, Sequence[str]], role: str) -> CheckResult:
    """`lacking` has the missing actions by collection; `role` is one that the user has."""
    if not lacking:
        return ok("marks", "rows; the user may write them")
    named = "; ".join(f"{', '.join(actions)} on {database}.{name}" for name, actions in lacking.items())
    privileges = [
        {"resource": {"db": database, "collection": name}, "actions": list(actions)}
        for name, actions in lacking.items()
    ]
    call = f"grantPrivilegesToRole({json.dumps(role)}, {json.dumps(privileges)})"
    return warn(
        "marks",
        f"the user lacks {named}: documents are published, but not marked",
        f"db.getSiblingDB({json.dumps(USERS)}).{call} // a role of the user that is not built in",
    )


def check_fit(total: int, misfits: Sequence[str], mapped: str) -> CheckResult:
    """`misfits` has the reason for each document that is not a valid event."""
    if not total:
        return ok("fields", f"{mapped}; there is no document to check")
    if not misfits:
        return ok("fields", f"{mapped}; the newest {total} documents are valid")
    reasons = ", ".join(f"{why} ({number} of {total})" for why, number in Counter(misfits).most_common(3))
    remedy = "Set outbox.columns or outbox.layout to match the documents. Such documents become dead letters."
    return warn("fields", f"newest documents that are not valid events: {reasons}", remedy)


def check_members(status: Document, config: Document) -> CheckResult:
    """Takes replSetGetStatus and replSetGetConfig. A change is sent when a majority of voting members has it."""
    voters = {
        member["_id"] for member in config["members"] if member.get("votes", 1) and not member.get("arbiterOnly", False)
    }
    up = {
        member["_id"]
        for member in status["members"]
        if member["_id"] in voters and member.get("health") == 1 and member.get("state") in READABLE
    }
    needed = int(status.get("writeMajorityCount", len(voters) // 2 + 1))
    found = f"{len(up)} of {len(voters)} voting members with data are up, {needed} are needed"
    if len(up) < needed:
        return fail("members", f"{found}: no changes are sent", "Start the others: rs.status() lists them.")
    if len(up) < len(voters):
        return warn("members", found, "Start the others: rs.status() lists them.")
    return ok("members", found)


def check_write_concern(default: Document | None) -> CheckResult:
    """Takes the default of getDefaultRWConcern; None means majority, the default since MongoDB 5.0."""
    w = (default or {}).get("w", "majority")
    if w in (0, 1):
        found = f"w: {w} by default: a failover may roll back writes that were acknowledged, and these are never "
        remedy = 'db.adminCommand({ setDefaultRWConcern: 1, defaultWriteConcern: { w: "majority" } })'
        return warn("write concern", f"{found}published", f"{remedy} // or let the services use w: majority")
    return ok("write concern", f"w: {w}")


def check_window(seconds: int, *, full: bool) -> CheckResult:
    """Whether the oplog covers a longer downtime of the connector. It grows until it is full."""
    shown = human_seconds(seconds)
    if not full:
        return ok("oplog", f"reaches back {shown}, and is not full yet")
    if seconds < SHORT_WINDOW_SECONDS:
        found = f"reaches back only {shown}: a connector that is down for longer loses its position"
        return warn("oplog", found, "db.adminCommand({ replSetResizeOplog: 1, minRetentionHours: 48 })")
    return ok("oplog", f"reaches back {shown}")
