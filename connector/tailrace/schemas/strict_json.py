"""Bytes -> JSON value, strictly: a value is returned only if it is exactly what the bytes say.

orjson refuses most of what is not JSON (NaN, lone surrogates, invalid UTF-8, a BOM, numbers beyond a double).
Three things it lets through are caught here: integers beyond 64 bits, which it rounds; nesting that is
harmless to parse but deep enough to exhaust the stack of a validator that recurses (seen: 1,024 levels on a
thread with a 256 KB stack end the process, without an exception); and a key that an object has twice, of which
it keeps the last while the next reader may keep the first, and so see a value that was never checked. All are
found by scans that run in C; the exact look happens only when a scan raises suspicion.
"""

from __future__ import annotations

import json
import re
from typing import Any

import orjson

Json = Any
"""A JSON value of any shape."""
MAX_DEPTH = 254
"""Levels of nesting: orjson writes no more. Real payloads have under twenty."""
_DEEP_BYTES = 2 * (MAX_DEPTH + 1)
"""A shorter text cannot be nested more deeply: each level takes a bracket at both ends."""

_DIGITS_TO_ZERO = bytes(48 if 48 <= byte <= 57 else 32 for byte in range(256))
_LONG_RUN = b"0" * 19
"""Every integer beyond 64 bits has at least 19 digits,"""
_SAMPLED_RUN = b"0" * 4
"""of which at least four remain when every fourth character is looked at: a quarter of the work, nearly always."""

# Strings are consumed whole, so that digits inside them are not taken for numbers. Of valid JSON, each match succeeds
# without backtracking. No possessive quantifiers: some versions of Python 3.11 match wrongly with them.
_STRING_OR_NUMBER = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|-?[0-9]+([.eE][-+.eE0-9]+)?', re.DOTALL)
# An escaped NUL: the backslash of \u0000 must not itself be escaped.
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
_ESCAPED_COLON = re.compile(rb"\\u003[aA]")
_SHOWN = 80
"""Characters of a key that is named."""


class NotJsonError(ValueError):
    """The bytes are not JSON, or say something that cannot be held exactly. Quotes nothing but a repeated key."""


def parse(text: bytes, *, keys_unique: bool = False) -> Json:
    """The value of a JSON text; NotJsonError otherwise. `keys_unique`: whoever wrote it had no key twice."""
    try:
        value = orjson.loads(text)
    except ValueError as error:
        raise NotJsonError(str(error)) from None
    if keys_unique:
        if len(text) >= _DEEP_BYTES:
            _written(value)
    else:
        written = _written(value)
        # What is written back as it was read was read as it is: nothing was rounded or dropped. Nor was it if only
        # spaces differ: whatever is rounded or dropped has other characters, too.
        if written == text or text.translate(None, b" ") == written.replace(b" ", b""):
            return value
        if _may_repeat_keys(text, written):
            json.loads(text.decode(), object_pairs_hook=_refuse_repeated_key)
    if text[::4].translate(_DIGITS_TO_ZERO).find(_SAMPLED_RUN) >= 0 and (digits := _huge_integer(text)):
        raise NotJsonError(f"an integer of {digits} digits is beyond 64 bits and cannot be held exactly")
    return value


def _written(value: Json) -> bytes:
    """The value as a text again, which also tells whether it is nested too deeply."""
    try:
        return orjson.dumps(value)
    except TypeError:
        raise NotJsonError(f"it is nested more than {MAX_DEPTH} levels deep") from None


def has_nul(text: bytes) -> bool:
    """Whether a string of this JSON text contains U+0000, which jsonb cannot store and C programs cut at."""
    return b"\\u0000" in text and _NUL.search(text) is not None


def _huge_integer(text: bytes) -> int:
    """How many digits the first integer beyond 64 bits has; 0 if there is none."""
    if _LONG_RUN not in text.translate(_DIGITS_TO_ZERO):
        return 0
    for match in _STRING_OR_NUMBER.finditer(text):
        token = match.group()
        if token.startswith(b'"') or match.group(1):
            continue
        digits = len(token.lstrip(b"-"))
        # The length first: Python itself refuses to read integers of thousands of digits.
        if digits > 20 or not -(2**63) <= int(token) < 2**64:
            return digits
    return 0


def _may_repeat_keys(text: bytes, written: bytes) -> bool:
    """Whether something may be missing in `written`, the value of `text` written out again.

    A repeated key is dropped together with its colon: equal counts of colons mean that nothing was dropped. Unless a
    colon in a string made up for it that was escaped before and no longer is. (92 is the backslash: looking for one
    byte is much cheaper than looking for several.)
    """
    if text.count(b":") != written.count(b":"):
        return True
    return 92 in text and b"\\u003" in text and _ESCAPED_COLON.search(text) is not None


def _refuse_repeated_key(pairs: list[tuple[str, object]]) -> None:
    """Called for every object, innermost first; returns nothing, as only the keys matter."""
    if len(dict(pairs)) == len(pairs):
        return
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            shown = key if len(key) <= _SHOWN else key[: _SHOWN - 1] + "…"
            raise NotJsonError(f"an object has the key {shown!r} more than once")
        seen.add(key)
