"""Bounds -> a regular expression of the numbers within them. Pure.

Whole numbers have at most 18 digits, so that each fits 64 bits. A fraction beside a bound has at most 15 digits in all:
so many a double tells apart, so none is rounded onto a bound that it lies within, or out of it.
"""

from __future__ import annotations

from collections.abc import Iterator

MOST = 10**18 - 1
_WHOLE_PART = 10**9
"""Beside a fraction the whole part is less."""
_FRACTION = r"\.[0-9]{1,6}+"
_ABOVE_ZERO = rf"(?=\.0*+[1-9]){_FRACTION}"
ANY_WHOLE = "-?+(?>0|[1-9][0-9]{0,17}+)"
ANY_NUMBER = rf"{ANY_WHOLE}(?:\.[0-9]{{1,17}}+)?+"


def whole(low: int | None, high: int | None) -> str:
    """The integers from `low` to `high`, as JSON writes them; without a bound, as far as 18 digits go."""
    return _either([*_whole(-MOST if low is None else low, MOST if high is None else high)])


def number(low: int | None, high: int | None, *, above: bool = False, below: bool = False) -> str:
    """The numbers from `low` to `high`, or `above` and `below` them, with or without a fraction."""
    if low is None and high is None:
        return ANY_NUMBER
    first, last = (-MOST if low is None else low + above), (MOST if high is None else high - below)
    return _either([*_positive(low, high, above=above), *_negative(low, high, below=below), *_whole(first, last)])


def _positive(low: int | None, high: int | None, *, above: bool) -> Iterator[str]:
    """Fractions whose whole part and the next one are within the bounds, from 0 on."""
    first = 0 if low is None else max(low, 0)
    last = min(_WHOLE_PART if high is None else high, _WHOLE_PART) - 1
    if above and first == low and first <= last:
        yield f"{first}{_ABOVE_ZERO}"
        first += 1
    if first <= last:
        yield between(first, last) + _FRACTION


def _negative(low: int | None, high: int | None, *, below: bool) -> Iterator[str]:
    """The same below 0, where the fraction leads away from the upper bound; without one it may be the bound itself."""
    first = 0 if high is None else max(-high, 0)
    last = min(_WHOLE_PART if low is None else -low, _WHOLE_PART) - 1
    if below and first == -(high or 0):
        first += 1
    if first <= last:
        yield f"-{between(first, last)}{_FRACTION}"


def _whole(low: int, high: int) -> Iterator[str]:
    if high >= 0 and (start := max(low, 0)) <= high:
        yield between(start, min(high, MOST))
    if low < 0 and (start := max(-high, 1)) <= -low:
        yield f"-{between(start, min(-low, MOST))}"


def between(low: int, high: int) -> str:
    """The whole numbers from `low` to `high`, neither below 0; the longest first, as a shorter one may begin them."""
    found: list[str] = []
    size = len(str(low))
    while size <= len(str(high)):
        lowest, highest = max(low, 10 ** (size - 1) if size > 1 else 0), min(high, 10**size - 1)
        longest = size
        if size > 1 and lowest == 10 ** (size - 1):
            while longest < len(str(high)) and 10 ** (longest + 1) - 1 <= high:
                longest += 1
        if longest > size and highest == 10**size - 1:
            found.append(f"[1-9][0-9]{{{size - 1},{longest - 1}}}+")
            size = longest
        else:
            found.append(_same_size(str(lowest), str(highest)))
        size += 1
    return _either(found[::-1])


def _same_size(low: str, high: str) -> str:
    """The numbers between two of as many digits."""
    if not low:
        return ""
    rest = len(low) - 1
    if low[0] == high[0]:
        return low[0] + _same_size(low[1:], high[1:])
    first, last = int(low[0]), int(high[0])
    found = []
    if low[1:] != "0" * rest:
        found.append(low[0] + _same_size(low[1:], "9" * rest))
        first += 1
    if high[1:] != "9" * rest:
        found.append(high[0] + _same_size("0" * rest, high[1:]))
        last -= 1
    if first <= last:
        digits = str(first) if first == last else f"[{first}-{last}]"
        found.append(digits + (f"[0-9]{{{rest}}}" if rest else ""))
    return _either(found)


def _either(options: list[str]) -> str:
    if not options:
        return "(?!)"
    return options[0] if len(options) == 1 else f"(?>{'|'.join(options)})"
