"""Parses JSON strictly: a value is returned only if it is exactly what the bytes say.

orjson rejects most invalid input (NaN, lone surrogates, invalid UTF-8, a BOM, numbers beyond a double). Three things
that it accepts are rejected here: integers beyond 64 bits, which it rounds; nesting so deep that it exhausts the stack
of a recursive validator (1,024 levels end a process on a thread with a 256 KB stack, without an exception); and
repeated keys, of which it keeps the last while another reader may keep the first and see a value that was never
validated. Fast scans in C find suspicious payloads; only those are examined exactly.
"""

from __future__ import annotations

import json
import re
from typing import Any

import orjson

Json = Any
"""A JSON value of any type."""
MAX_DEPTH = 254
"""Levels of nesting that orjson can write. Real payloads have fewer than twenty."""
_DEEP_BYTES = 2 * (MAX_DEPTH + 1)
"""A shorter text cannot be nested more deeply, because each level takes an opening and a closing bracket."""

_DIGITS_TO_ZERO = bytes(48 if 48 <= byte <= 57 else 32 for byte in range(256))
_LONG_RUN = b"0" * 19
"""Every integer beyond 64 bits has at least 19 digits,"""
_SAMPLED_RUN = b"0" * 4
"""so at least four remain when only every fourth character is scanned. That is a quarter of the work in most cases."""

# Strings are matched whole, so that digits inside them are not taken for numbers. On valid JSON each match succeeds
# without backtracking. No possessive quantifiers: they are broken in Python 3.11.0 to 3.11.4.
_STRING_OR_NUMBER = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|-?[0-9]+([.eE][-+.eE0-9]+)?', re.DOTALL)
# An escaped NUL: the backslash of \u0000 must not be escaped itself.
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
_ESCAPED_COLON = re.compile(rb"\\u003[aA]")
_SHOWN = 80
"""Characters of a repeated key that are shown."""


class NotJsonError(ValueError):
    """The bytes are not JSON, or a value cannot be represented exactly. The message quotes nothing but a repeated
    key."""


def parse(text: bytes, *, keys_unique: bool = False) -> Json:
    """Parses a JSON text; raises NotJsonError. `keys_unique` means that the writer of the text has removed repeated
    keys."""
    try:
        value = orjson.loads(text)
    except ValueError as error:
        raise NotJsonError(str(error)) from None
    if keys_unique:
        size = len(text)
        # A value is not nested more deeply than it has opening brackets. To remove a byte is faster than to count it.
        if size >= _DEEP_BYTES and 2 * size - len(text.replace(b"{", b"")) - len(text.replace(b"[", b"")) > MAX_DEPTH:
            _written(value)
    else:
        written = _written(value)
        # If writing the value yields the same text, nothing was rounded or dropped. The same holds if only whitespace
        # differs, because a rounded or dropped value changes other characters as well.
        if written == text or text.translate(None, b" ") == written.replace(b" ", b""):
            return value
        if _may_repeat_keys(text, written):
            json.loads(text.decode(), object_pairs_hook=_refuse_repeated_key)
    if text[::4].translate(_DIGITS_TO_ZERO).find(_SAMPLED_RUN) >= 0 and (digits := _huge_integer(text)):
        raise NotJsonError(f"an integer of {digits} digits is beyond 64 bits and cannot be represented exactly")
    return value


def _written(value: Json) -> bytes:
    """Writes the value as text. This also detects nesting that is too deep."""
    try:
        return orjson.dumps(value)
    except TypeError:
        raise NotJsonError(f"it is nested more than {MAX_DEPTH} levels deep") from None


def has_nul(text: bytes) -> bool:
    """Whether a string of this JSON text contains U+0000, which jsonb cannot store and C programs truncate at."""
    return b"\\u0000" in text and _NUL.search(text) is not None


def _huge_integer(text: bytes) -> int:
    """Returns the number of digits of the first integer beyond 64 bits; 0 if there is none."""
    if _LONG_RUN not in text.translate(_DIGITS_TO_ZERO):
        return 0
    for match in _STRING_OR_NUMBER.finditer(text):
        token = match.group()
        if token.startswith(b'"') or match.group(1):
            continue
        digits = len(token.lstrip(b"-"))
        # Check the length first: Python refuses to parse integers of thousands of digits.
        if digits > 20 or not -(2**63) <= int(token) < 2**64:
            return digits
    return 0


def _may_repeat_keys(text: bytes, written: bytes) -> bool:
    """Whether something may be missing in `written`, the value of `text` written out again.

    A repeated key is dropped together with its colon, so equal counts of colons mean that nothing was dropped. The
    exception is a colon that was escaped in a string before and no longer is. (92 is the backslash: searching for a
    single byte is much cheaper than for several.)
    """
    if text.count(b":") != written.count(b":"):
        return True
    return 92 in text and b"\\u003" in text and _ESCAPED_COLON.search(text) is not None


def _refuse_repeated_key(pairs: list[tuple[str, object]]) -> None:
    """Called for every object, innermost first. Returns nothing, because only the keys matter."""
    if len(dict(pairs)) == len(pairs):
        return
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            shown = key if len(key) <= _SHOWN else key[: _SHOWN - 1] + "…"
            raise NotJsonError(f"an object has the key {shown!r} more than once")
        seen.add(key)
