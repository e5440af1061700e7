"""Known-bad versions of servers and libraries, each with the reason and where the fix is described. Pure.

Only bugs that can lose, double or reveal events are listed. A version that is not in the table is not called good.
"""

from __future__ import annotations

from typing import NamedTuple

Version = tuple[int, ...]
OLDEST_POSTGRES = 14


class KnownBug(NamedTuple):
    """`fixed` has the first release without the bug for each release series; older series are not judged.

    A series is the beginning of a version: (16,) for Postgres 16, (8, 0) for MongoDB 8.0, () for all versions.
    """

    product: str
    code: str
    fixed: tuple[tuple[Version, Version], ...]
    effect: str
    link: str

    def fix_for(self, version: Version) -> Version | None:
        """Returns the release to upgrade to; None if the version does not have the bug."""
        for series, fixed in self.fixed:
            if version[: len(series)] == series:
                return fixed if version < fixed else None
        return None


BUGS = (
    KnownBug(
        "Postgres",
        "postgres-version",
        (((14,), (14, 19)), ((15,), (15, 14)), ((16,), (16, 10)), ((17,), (17, 6))),
        "can lose changes around ALTER PUBLICATION and in partly decoded transactions",
        "https://github.com/postgres/postgres/commit/4909b38af03",
    ),
    KnownBug(
        "MongoDB",
        "mongo-known-bug",
        (((8, 2), (8, 2, 3)), ((8, 0), (8, 0, 17)), ((7, 0), (7, 0, 28)), ((6, 0), (6, 0, 27))),
        "reveals memory of the server, with documents and passwords, to everyone who can connect (CVE-2025-14847)",
        "https://nvd.nist.gov/vuln/detail/CVE-2025-14847",
    ),
    KnownBug(
        "MongoDB",
        "mongo-known-bug",
        (((6, 0), (6, 0, 12)),),
        "may not resume a change stream from a resume token in the format of an older version",
        "https://jira.mongodb.org/browse/SERVER-81295",
    ),
    KnownBug(
        "librdkafka",
        "librdkafka-known-bug",
        (((), (2, 5, 0)),),
        "has bugs in its transactional producer that lose messages or end it without need",
        "https://github.com/confluentinc/librdkafka/blob/master/CHANGELOG.md",
    ),
    KnownBug(
        "Kafka",
        "kafka-known-bug",
        (((2,), (4, 0)), ((3,), (4, 0))),
        "may leave a transaction open after a network fault, which stops all readers of a partition (KIP-890)",
        "https://cwiki.apache.org/confluence/display/KAFKA/KIP-890:+Transactions+Server-Side+Defense",
    ),
)


def known_bugs(product: str, version: Version) -> list[tuple[KnownBug, str]]:
    """Returns the bugs of a version, each with the release that fixes it."""
    found = [(bug, bug.fix_for(version)) for bug in BUGS if bug.product == product]
    return [(bug, shown(fixed)) for bug, fixed in found if fixed is not None]


def shown(version: Version) -> str:
    return ".".join(map(str, version))


def parsed(text: str) -> Version:
    """Returns the numbers at the beginning of a version such as 3.9-IV0 or 2.16.0."""
    numbers: list[int] = []
    for part in text.partition("-")[0].split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)
