"""What JSON Schema says of a string -> a regular expression of strings that surely obey. Pure.

Only strings without a backslash are known: a string's text is then its value. Of a pattern, what every dialect of
regular expressions means the same by is understood, in ASCII; of a format, the usual forms.
"""

from __future__ import annotations

import re

from tailrace.schemas.glance.spelling import Unknown

ANY = '[^"]'
"""A character of a string: whoever looks at a text with a backslash or a control character in it looks no further."""
_DAY = (
    r"[0-9]{4}-(?>(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])"
    r"|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
)
_CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9}+)?+(?>Z|[+-](?:0[0-9]|1[0-9]|2[0-3]):[0-5][0-9])"
_WORD = r"[A-Za-z0-9_+-]{1,20}+"
_LABEL = "[a-z0-9]{1,25}+(?:-[a-z0-9]{1,25}+)?+"
_HOST = rf"{_LABEL}(?:\.{_LABEL}){{0,2}}+"
_BYTE = "(?>25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
FORMATS = {
    "date": _DAY,
    "date-time": f"{_DAY}T{_CLOCK}",
    "time": _CLOCK,
    "uuid": "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "email": rf"{_WORD}(?:\.{_WORD}){{0,2}}+@{_LABEL}(?:\.[a-z][a-z0-9]{{1,20}}+){{1,3}}+",
    "hostname": _HOST,
    "ipv4": rf"{_BYTE}\.{_BYTE}\.{_BYTE}\.{_BYTE}",
    "uri": rf"https?+://{_HOST}(?::[1-9][0-9]{{0,3}}+)?+(?:/[A-Za-z0-9._~-]*+)*+",
}
_CLASSES = {
    "d": frozenset("0123456789"),
    "w": frozenset("0123456789_abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"),
}
_PRINTED = frozenset(map(chr, range(32, 127)))
_SPECIAL = frozenset(r"\^$.|?*+()[]{}")
_REPEATED = re.compile(r"\{([0-9]{1,3})(?:(,)([0-9]{1,3})?)?\}", re.ASCII)
_DEEPEST = 10


def string(
    *, pattern: str | None = None, format: str | None = None, shortest: int = 0, longest: int | None = None
) -> str:
    """The strings that obey, without their quotes."""
    if pattern is not None and format is not None:
        raise Unknown
    if longest is not None and longest < shortest:
        raise Unknown
    sized = f"{ANY}{{{shortest},{'' if longest is None else longest}}}+" if shortest or longest is not None else ""
    if format is not None and format not in FORMATS:
        raise Unknown
    if pattern is None and format is None:
        return sized or f"{ANY}*+"
    spelled = FORMATS[format] if format is not None else _Pattern(pattern or "").spelled()
    return f'(?={sized}"){spelled}' if sized else spelled


class _Pattern:
    """Reads a pattern of a schema from left to right, and spells it in our own dialect, without backtracking.

    That may refuse what the pattern allows (`a*a`), but allows nothing that it refuses.
    """

    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0

    def spelled(self) -> str:
        if not self._take("^"):
            raise Unknown  # it may match anywhere in a string
        found = self._sequence(0)
        if self._take("$"):
            if self._at < len(self._text):
                raise Unknown
            return found
        if self._at < len(self._text):
            raise Unknown
        return f"{found}{ANY}*+"

    def _take(self, sign: str) -> bool:
        if self._text.startswith(sign, self._at):
            self._at += len(sign)
            return True
        return False

    def _next(self) -> str:
        if self._at >= len(self._text):
            raise Unknown
        self._at += 1
        return self._text[self._at - 1]

    def _sequence(self, depth: int) -> str:
        found = ""
        while self._at < len(self._text) and self._text[self._at] not in "$)|":
            found += self._term(depth) + self._repeated()
        return found

    def _term(self, depth: int) -> str:
        if self._take("("):
            return self._group(depth)
        if self._take("["):
            return _spelled(self._class())
        sign = self._next()
        if sign == "\\":
            return _spelled(self._escaped())
        if sign in _SPECIAL:
            raise Unknown
        return _spelled(frozenset(sign))

    def _group(self, depth: int) -> str:
        if not self._take("?:") and self._text.startswith("?", self._at):
            raise Unknown
        if depth > _DEEPEST:
            raise Unknown
        options = [self._sequence(depth + 1)]
        while self._take("|"):
            options.append(self._sequence(depth + 1))
        if not self._take(")"):
            raise Unknown
        return f"(?>{'|'.join(options)})"

    def _class(self) -> frozenset[str]:
        if self._text.startswith("^", self._at):
            raise Unknown
        found: frozenset[str] = frozenset()
        while not self._take("]"):
            first = self._member()
            if self._text.startswith("-", self._at) and not self._text.startswith("-]", self._at):
                self._at += 1
                last = self._member()
                if len(first) != 1 or len(last) != 1:
                    raise Unknown
                first = frozenset(map(chr, range(ord(*first), ord(*last) + 1)))
            found |= first
        return found

    def _member(self) -> frozenset[str]:
        sign = self._next()
        # Some dialects have sets within sets, and operations on them.
        if sign in "[]^&~" or (sign == "-" and self._text.startswith("-", self._at)):
            raise Unknown
        return self._escaped() if sign == "\\" else frozenset(sign)

    def _escaped(self) -> frozenset[str]:
        sign = self._next()
        if sign in _CLASSES:
            return _CLASSES[sign]
        if sign.isalnum() or sign not in _PRINTED:
            raise Unknown
        return frozenset(sign)

    def _repeated(self) -> str:
        found = ""
        if self._text[self._at : self._at + 1] in ("*", "+", "?") and self._at < len(self._text):
            found = self._next()
        elif match := _REPEATED.match(self._text, self._at):
            self._at = match.end()
            found = match[0]
        if not found:
            return ""
        if self._text[self._at : self._at + 1] in ("*", "+", "?", "{") and self._at < len(self._text):
            raise Unknown  # lazy, possessive, or repeated once more
        return f"{found}+"


def _spelled(allowed: frozenset[str]) -> str:
    """One of these characters, as far as it stands for itself in a string."""
    known = allowed & _PRINTED - {'"', "\\"}
    if not known:
        raise Unknown
    if len(known) == 1:
        return re.escape(*known)
    return "[" + "".join(rf"\x{ord(sign):02x}" for sign in sorted(known)) + "]"
