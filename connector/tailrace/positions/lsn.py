"""Log sequence numbers: places in the Postgres write-ahead log.

Everywhere in the code an LSN is a plain int (a byte offset of 64 bits), so that comparing and storing cost
nothing. The text form of Postgres, two hexadecimal halves such as ``16/B374D848``, exists only at the edges:
SQL, settings, log lines. It must never be compared as text: ``9/0`` sorts after ``10/0`` there.
"""

import re
from typing import Final

MAX_LSN: Final = 0xFFFF_FFFF_FFFF_FFFF

# What the server's own pg_lsn input accepts: leading zeros are fine; signs, spaces and underscores, which
# int(..., 16) would let through, are not.
_TEXT: Final = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


def parse_lsn(text: str) -> int:
    """Read the text form of Postgres; ValueError on anything else."""
    match = _TEXT.fullmatch(text)
    if match is None:
        raise ValueError(f"not an LSN: {text!r} (expected two hexadecimal halves such as 16/B374D848)")
    high, low = match.groups()
    return int(high, 16) << 32 | int(low, 16)


def format_lsn(lsn: int) -> str:
    """Write the text form of Postgres; ValueError when the number does not fit 64 bits unsigned."""
    if not 0 <= lsn <= MAX_LSN:
        raise ValueError(f"not an LSN: {lsn} (expected 0 to 2**64 - 1)")
    return f"{lsn >> 32:X}/{lsn & 0xFFFF_FFFF:X}"
