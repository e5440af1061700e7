"""Writes the list of codes at the end of docs/doctor.md, and the table of known bugs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path

from tailrace.check.codes import AREAS, CODES
from tailrace.check.versions import BUGS, shown

PAGE = Path(__file__).parents[1] / "docs" / "doctor.md"
MARK = "<!-- Written by `make docs` from connector/tailrace/check/codes.py. Do not edit below. -->\n"
FIRST_OF_DOCTOR = "wal-sender-timeout-off"
"""The codes before it are those of `tailrace check`."""
WIDTH = 120


def codes() -> Iterator[str]:
    names = list(CODES)
    of_check = set(names[: names.index(FIRST_OF_DOCTOR)])
    for area, title in AREAS.items():
        yield f"\n### {title}\n\n"
        for name in names:
            if CODES[name].area == area:
                star = "*" if name in of_check else ""
                yield from wrapped(f"- `{name}`{star}: {CODES[name].what} *{CODES[name].why}*")


def bugs() -> Iterator[str]:
    yield "\n## Known bugs\n\n"
    for bug in BUGS:
        releases = ", ".join(dict.fromkeys(shown(fixed) for _, fixed in bug.fixed))
        yield from wrapped(f"- {bug.product} before {releases} {bug.effect} ([source]({bug.link})).")


def wrapped(text: str) -> Iterator[str]:
    lines = textwrap.wrap(text, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    yield from (f"{line}\n" for line in lines)


def page() -> str:
    prose = PAGE.read_text(encoding="utf-8").partition(MARK)[0]
    return "".join([prose, MARK, *codes(), *bugs()])
