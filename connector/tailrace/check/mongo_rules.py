"""What is good enough of a MongoDB: judgements over what it says of itself, for `tailrace check`. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tailrace.check.result import CheckResult, fail, human_seconds, is_loopback, ok, warn
from tailrace.check.rules import NOT_VERIFIED
from tailrace.sources.mongo.options import can_split

OLDEST = (6, 0)
SHORT_WINDOW_SECONDS = 24 * 3600
"""An outage that begins on a Friday evening is seen on Saturday at best."""
ALMIGHTY = {"root", "__system"}
READABLE = {1, 2}
"""PRIMARY and SECONDARY, the states of a member that has the data and takes part."""
Document = Mapping[str, Any]


def is_encrypted(uri: str) -> bool:
    """Whether the address asks for TLS: mongodb+srv does unless it says otherwise."""
    said = re.findall(r"[?&](?:tls|ssl)=(\w+)", uri, flags=re.IGNORECASE)
    return said[-1].lower() == "true" if said else uri.startswith("mongodb+srv:")


def is_unverified(uri: str) -> bool:
    """Whether the address says that certificates, or the names in them, are not to be verified."""
    options = r"[?&](?:tlsInsecure|tlsAllowInvalidCertificates|tlsAllowInvalidHostnames)=true"
    return re.search(options, uri, flags=re.IGNORECASE) is not None


def check_mongo_encryption(hosts: Sequence[str], *, encrypted: bool, unverified: bool = False) -> CheckResult:
    name, remote = "mongo encryption", [host for host in hosts if not is_loopback(host)]
    if encrypted and unverified and remote:
        mend = "Remove tlsInsecure and tlsAllowInvalid… from source.mongo, and name the authority in tlsCAFile."
        return warn(name, f"TLS, but {NOT_VERIFIED}", mend)
    if encrypted:
        return ok(name, "TLS")
    if not remote:
        return ok(name, "none, on this machine only")
    mend = "Add tls=true (and tlsCAFile=…) to source.mongo; the servers need net.tls.mode: requireTLS."
    return warn(name, f"none: documents cross the network to {remote[0]} readable", mend)


def check_mongo_version(version: tuple[int, ...]) -> CheckResult:
    name, shown = "mongo version", ".".join(map(str, version))
    if version[:2] < OLDEST:
        found = f"{shown} does not give the snapshots that reading a collection needs"
        return fail(name, found, "Upgrade to MongoDB 6.0 or newer.")
    if not can_split(version):
        found = f"{shown} cannot send a change of more than 16 MB: a document near that size stops the pipeline"
        return warn(name, found, "Upgrade to 6.0.9, 7.0 or newer.")
    return ok(name, shown)


def check_user(users: Sequence[Document], roles: Sequence[Document], hosts: Sequence[str]) -> CheckResult:
    """As `connectionStatus` tells them."""
    if not users:
        if all(is_loopback(host) for host in hosts):
            return ok("user", "none: the server asks for none, on this machine only")
        mend = "Set security.authorization: enabled on the servers; `tailrace init --mongo` writes a user's commands."
        return warn("user", "none: whoever reaches the server may read and write everything", mend)
    who = str(users[0]["user"])
    if mighty := sorted({str(role["role"]) for role in roles} & ALMIGHTY):
        mend = "Use a user that has find and changeStream on the outbox; `tailrace init --mongo` writes the commands."
        return warn("user", f"{who} has the role {mighty[0]}: more than reading a stream needs", mend)
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
    # An empty name stands for all of them, but for those of the system.
    return resource.get("db") in ("", database) and resource.get("collection") in ("", collection)


def check_fit(total: int, misfits: Sequence[str], mapped: str) -> CheckResult:
    """`misfits` says of each document that does not fit, why."""
    if not total:
        return ok("fields", f"{mapped}; there is no document to judge by")
    if not misfits:
        return ok("fields", f"{mapped}; the newest {total} documents fit")
    reasons = ", ".join(f"{why} ({number} of {total})" for why, number in Counter(misfits).most_common(3))
    mend = "Name the right fields in outbox.columns, or choose outbox.layout; such a document becomes a dead letter."
    return warn("fields", f"newest documents that are no events: {reasons}", mend)


def check_members(status: Document, config: Document) -> CheckResult:
    """As replSetGetStatus and replSetGetConfig tell: a change is sent when a majority of voters has it."""
    voters = {
        member["_id"] for member in config["members"] if member.get("votes", 1) and not member.get("arbiterOnly", False)
    }
    up = {
        member["_id"]
        for member in status["members"]
        if member["_id"] in voters and member.get("health") == 1 and member.get("state") in READABLE
    }
    needed = int(status.get("writeMajorityCount", len(voters) // 2 + 1))
    found = f"{len(up)} of {len(voters)} that vote and have the data are up, {needed} are needed"
    if len(up) < needed:
        return fail("members", f"{found}: nothing is sent", "Start the others: rs.status() names them.")
    if len(up) < len(voters):
        return warn("members", found, "Start the others: rs.status() names them.")
    return ok("members", found)


def check_write_concern(default: Document | None) -> CheckResult:
    """As getDefaultRWConcern tells; None where nothing is set, which since MongoDB 5.0 means the majority."""
    w = (default or {}).get("w", "majority")
    if w in (0, 1):
        found = f"w: {w} by default: a failover may take back what a service was told is written, and that is never "
        mend = 'db.adminCommand({ setDefaultRWConcern: 1, defaultWriteConcern: { w: "majority" } })'
        return warn("write concern", f"{found}published", f"{mend}, or have the services ask for w: majority.")
    return ok("write concern", f"w: {w}")


def check_window(seconds: int, *, full: bool) -> CheckResult:
    """Of the oplog: how long a connector may be down. One that is not full yet still grows."""
    shown = human_seconds(seconds)
    if not full:
        return ok("oplog", f"reaches back {shown}, and is not full yet")
    if seconds < SHORT_WINDOW_SECONDS:
        found = f"reaches back only {shown}: a connector that is down for longer loses its place"
        return warn("oplog", found, "db.adminCommand({ replSetResizeOplog: 1, minRetentionHours: 48 })")
    return ok("oplog", f"reaches back {shown}")
