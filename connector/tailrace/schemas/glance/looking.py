"""Glance: one regular expression that knows a payload at a glance, made while payloads are read.

It only ever says yes. A payload that it does not know is parsed and checked as if there were no glance, and if it
obeys, the order of its keys is learned. So most payloads of a service take one look, a third of the time of parsing and
checking; and where a service writes its keys as they come, glances end soon.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import count

from tailrace.schemas.glance.spelling import NEVER, STYLES, Part, Style
from tailrace.schemas.json_text import Json

Look = Callable[[bytes, bool], bytes | None]
"""The content to publish if a payload is known to obey, else None. Told as well is whether the text was written anew by
somebody who had parsed it, as a database does with jsonb: then it is JSON, and no object in it has a key twice."""

CONTROLS = bytes(range(32))
MOST_EXPRESSIONS = 20
"""Each takes milliseconds to compile; a service that needs more of them has no order."""
MOST_SIZE = 50_000
"""Characters of an expression."""
PATIENCE = 20
"""How often nothing may be learned from a payload that was not known, while fewer than PAYS are known in between:
glances then cost more than they give."""
PAYS = 4


def blind(payload: bytes, rewritten: bool) -> None:
    """Knows nothing."""


class Glance:
    """`look` at a payload; `learn` from one that obeys and was not known. This one never learns."""

    def __init__(self, look: Look = blind) -> None:
        self.look = look

    def learn(self, payload: bytes, value: Json, *, rewritten: bool) -> None:
        """`value` obeys, and is what the payload says."""


class LearningGlance(Glance):
    """Knows the order of keys that it has seen. What is known is published as it is."""

    def __init__(self, part: Part) -> None:
        super().__init__()
        self._part: Part | None = part
        self._style = STYLES[0]
        self._expressions = 0
        self._stale = True
        """Something was learned that `look` does not know yet."""
        self._patience = PATIENCE
        self._known = count()
        self._known_before = 0

    def learn(self, payload: bytes, value: Json, *, rewritten: bool) -> None:
        part = self._part
        if part is None:
            return
        self._stale = part.learn(value) or self._stale
        # With a backslash (92) it would not be looked at: the next one without will do.
        if self._stale and self._expressions < MOST_EXPRESSIONS and 92 not in payload:
            try:
                if self._make(part, payload, rewritten=rewritten):
                    return
            except (re.error, RecursionError, OverflowError):
                self._part, self.look = None, blind  # what is only there for speed must not stop a pipeline
        self._wonder()

    def _make(self, part: Part, payload: bytes, *, rewritten: bool) -> bool:
        """Looks for the style in which `payload` is known; whether there is one."""
        for style in STYLES if self.look is blind else (self._style,):
            self._expressions += 1
            look = matching(part, style, self._known.__next__)
            if look(payload, rewritten) is not None:
                self._style, self.look, self._stale = style, look, False
                return True
        return False

    def _wonder(self) -> None:
        """Nothing could be learned: if that happens again and again, looking is given up."""
        now = next(self._known)
        seen, self._known_before = now - self._known_before, now
        self._patience = self._patience - 1 if seen < PAYS else min(self._patience + 1, PATIENCE)
        if self._patience <= 0:
            self._part, self.look = None, blind


def matching(part: Part, style: Style, known: Callable[[], object]) -> Look:
    """Knows payloads whose text matches. `known` is told of each."""
    expression = part.spell(style)
    match = re.compile(expression if len(expression) <= MOST_SIZE else NEVER).fullmatch

    def look(payload: bytes, rewritten: bool) -> bytes | None:
        # A character stands for itself in a string, but for a backslash (92) and what may not be there at all.
        if 92 in payload or not (rewritten or len(payload.translate(None, CONTROLS)) == len(payload)):
            return None
        try:
            if match(payload.decode()):
                known()
                return payload
        except UnicodeDecodeError:
            pass
        return None

    return look
