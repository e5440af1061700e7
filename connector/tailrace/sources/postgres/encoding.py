"""Text of databases whose encoding is not UTF-8, converted here instead of by the server. Pure.

The server ends the whole stream at the first value that it cannot convert (`chr(129)` in WIN1252, any byte in
SQL_ASCII). So it is asked not to convert (client encoding SQL_ASCII), and a value that is no text makes one dead letter
instead. Only single-byte encodings are in the table: Python's converters for them are the server's own, byte for byte.
Those of several bytes (EUC_JP and the like) differ in some characters, and stay with the server.
"""

from __future__ import annotations

from tailrace.event import Columns, Undecodable

Values = tuple[bytes | None, ...]

ANY = "SQL_ASCII"
"""The server does not know what its text means: read as UTF-8."""
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
    """Converts what a database of `encoding` sends unconverted."""

    def __init__(self, encoding: str) -> None:
        self.encoding = encoding
        self.codec = CODECS[encoding]

    def name(self, escaped: str) -> str:
        """A name that was read as UTF-8, with bytes that are none escaped."""
        return escaped.encode("utf-8", "surrogateescape").decode(self.codec, "surrogateescape")

    def row(self, columns: Columns, values: Values) -> tuple[Columns, Values]:
        """The same values in UTF-8; the columns are marked if one of them has bytes that stand for no character.

        Such bytes are kept as they are, between those that could be converted.
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
    """None if the server's own conversion to UTF-8 is used, or none is needed."""
    return ServerText(encoding) if encoding in CODECS else None
