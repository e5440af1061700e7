"""Converts text of databases whose encoding is not UTF-8 here instead of in the server.

The server ends the whole stream at the first value that it cannot convert (`chr(129)` in WIN1252, any byte in
SQL_ASCII). So Tailrace asks it not to convert (client encoding SQL_ASCII), and an invalid value becomes one dead letter
instead. Only single-byte encodings are converted here: Python's codecs for them match the server's exactly. Multi-byte
encodings such as EUC_JP differ in some characters and are left to the server.
"""

from __future__ import annotations

from tailrace.event import Columns, Undecodable

Values = tuple[bytes | None, ...]

ANY = "SQL_ASCII"
"""A database without a known encoding: its text is read as UTF-8."""
_LATIN = (1, 2, 3, 4, 9, 10, 13, 14, 15, 16)
CODECS = {
    ANY: "utf-8",
    **{f"LATIN{number}": f"iso8859-{part}" for number, part in zip(range(1, 11), _LATIN, strict=True)},
    **{f"ISO_8859_{part}": f"iso8859-{part}" for part in range(5, 9)},
    **{f"WIN{page}": f"cp{page}" for page in (866, 874, *range(1250, 1259))},
    "KOI8R": "koi8-r",
    "KOI8U": "koi8-u",
}


class ServerText:
    """Converts values of a database with this encoding to UTF-8."""

    def __init__(self, encoding: str) -> None:
        self.encoding = encoding
        self.codec = CODECS[encoding]

    def name(self, escaped: str) -> str:
        """Converts a name that was decoded as UTF-8 with surrogateescape."""
        return escaped.encode("utf-8", "surrogateescape").decode(self.codec, "surrogateescape")

    def row(self, columns: Columns, values: Values) -> tuple[Columns, Values]:
        """Returns the values in UTF-8; the columns become Undecodable if a value has bytes without a character.

        Such bytes are kept as they are.
        """
        converted: list[bytes | None] = []
        bad: list[str] = []
        for column, value in zip(columns, values, strict=True):
            if value is None or value.isascii():
                converted.append(value)
                continue
            text = value.decode(self.codec, "surrogateescape")
            try:
                converted.append(text.encode())
            except UnicodeEncodeError:
                converted.append(text.encode("utf-8", "surrogateescape"))
                bad.append(column.name)
        return Undecodable(columns, bad, self.encoding) if bad else columns, tuple(converted)


def server_text(encoding: str) -> ServerText | None:
    """Returns the converter; None if the server converts to UTF-8 or no conversion is needed."""
    return ServerText(encoding) if encoding in CODECS else None
