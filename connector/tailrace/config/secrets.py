"""Secret settings: how they are stored, shown and masked.

A `Secret` holds the text of the file, with literal passwords masked, which may be shown, and the resolved value, which
only `reveal()` returns. Known secrets are kept for the life of the process, and `mask` replaces them in any text, as a
last protection for log lines and messages of other libraries.

In a connection string only passwords are secret. In a Kafka setting every referenced value is, unless the setting is
known to hold a name or an address: masking those as well would make messages useless.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema

MASK = "***"

SHORTEST = 4
"""Shorter values are not masked: they occur in ordinary words."""

REFERENCE = re.compile(r"\$\{[^}]*\}")

# Connection strings. A reference may contain `:` and `/`, so it is matched as one piece. The password extends to the
# last `@`, so that one that should have been percent-encoded is hidden as well.
_PIECE = r"(?:\$\{[^}]*\}|[^:/?#@\s])*"
_URL_PASSWORD = re.compile(rf"(?P<before>://{_PIECE}:)(?P<value>\S*)(?=@)")
_KEY = (
    r"(?:(?:ssl|tlsCertificateKeyFile|proxy)?password|authMechanismProperties"
    r"|oauth_client_secret|scram_(?:client|server)_key)"
)
_QUERY_PASSWORD = re.compile(rf"(?P<before>[?&]{_KEY}=)(?P<value>[^&\s]*)", re.IGNORECASE)
_KEYWORD_PASSWORD = re.compile(
    rf"(?P<before>(?:^|(?<=\s)){_KEY}\s*=\s*)"
    r"(?P<value>'(?:[^'\\]|\\.)*'?|(?:\$\{[^}]*\}|\\.|[^\s\\])+)",
    re.IGNORECASE | re.DOTALL,
)

_SECRET_SETTING = re.compile(
    r"(password|passphrase|secret|token|user\.info|authorization|\.pem|\.key|jaas\.config|oauthbearer\.config)$",
    re.IGNORECASE,
)
_OPEN_SETTING = re.compile(
    r"^(sasl\.username|sasl\.mechanisms?|security\.protocol|client\.(id|rack)|.*\.(location|servers|url|ms|bytes))$",
    re.IGNORECASE,
)

_known: set[str] = set()
_pattern: re.Pattern[str] | None = None
_brief: ContextVar[set[str] | None] = ContextVar("secrets known for a moment", default=None)


class Secret:
    """A setting that may hold a secret: `text` may be shown, `reveal()` returns the value."""

    __slots__ = ("_text", "_value")

    def __init__(self, text: str, value: str) -> None:
        self._text = text
        self._value = value

    @property
    def text(self) -> str:
        """The setting as written, with unresolved references and masked passwords."""
        return self._text

    def reveal(self) -> str:
        """Returns the resolved value. Pass it to a driver, never to a log, an error or a formatted string."""
        return self._value

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"Secret({self._text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and (self._text, self._value) == (other._text, other._value)

    def __hash__(self) -> int:
        return hash((self._text, self._value))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        from pydantic_core import core_schema

        return core_schema.is_instance_schema(cls, serialization=core_schema.to_string_ser_schema(when_used="always"))


def connection_secret(given: str | Secret) -> Secret:
    """Wraps a connection string, and registers its passwords for masking."""
    text, value = (given, given) if isinstance(given, str) else (given.text, given.reveal())
    passwords = [found["value"] for found in _passwords(value)]
    remember(value if passwords else "", *passwords, *(plain for raw in passwords for plain in _decoded(raw)))
    if text != value and "=" not in value and "://" not in value:
        remember(value)  # not a connection string: any part of it may be the secret
    return Secret(hide_passwords(text), value)


def setting_secret(name: str, given: str | Secret) -> str | Secret:
    """Wraps a client setting if its name marks a secret or if it came through a reference."""
    named_secret = _SECRET_SETTING.search(name) is not None
    if isinstance(given, str):
        if not named_secret:
            # The address of a proxy or an endpoint may contain a password.
            return given if hide_passwords(given) == given else connection_secret(given)
        remember(given)
        return Secret(MASK, given)
    if named_secret or not _OPEN_SETTING.match(name):
        remember(given.reveal())
    if _passwords(given.reveal()):
        connection_secret(given)  # registers the password of an address
    only_references = not REFERENCE.sub("", given.text).strip()
    return Secret(given.text if only_references or not named_secret else MASK, given.reveal())


def hide_passwords(text: str) -> str:
    """Masks the passwords of a connection string; references stay."""
    for pattern in (_URL_PASSWORD, _QUERY_PASSWORD, _KEYWORD_PASSWORD):
        text = pattern.sub(_masked, text)
    return text


def fit_connection(value: str, before: str, after: str) -> str:
    """Escapes a referenced value as its place in a connection string needs.

    Unescaped, a password like `p@ss/1` would end early, and its rest would become the host. Percent-encoded characters
    stay as they are.
    """
    before, after = REFERENCE.sub("", before), REFERENCE.sub("", after)
    scheme, separator, rest = before.partition("://")
    if separator and "/" not in rest and "@" in after:
        return re.sub(r"%(?![0-9A-Fa-f]{2})|[^\w.~%-]", lambda found: quote(found[0], safe=""), value)
    if not separator and scheme.rstrip().endswith("=") and re.search(r"[\s'\\]", value):
        return "'" + re.sub(r"(['\\])", r"\\\1", value) + "'"
    return value


def remember(*values: str) -> None:
    """Registers values for `mask`, in the forms in which other libraries may print them."""
    global _pattern  # noqa: PLW0603  one set of secrets for the process: masking must work everywhere
    brief = _brief.get()
    known = _known if brief is None else brief
    for value in values:
        lines = [line for line in value.splitlines() if len(line) > 16 and not line.startswith("-----")]
        for whole in {value, value.strip(), *lines}:
            forms = (whole, quote(whole, safe=""), json.dumps(whole)[1:-1], repr(whole)[1:-1])
            known.update(form for form in forms if len(form) >= SHORTEST)
    if _known and brief is None:
        _pattern = _any_of(_known)


@contextmanager
def remembered_briefly() -> Iterator[None]:
    """Forgets the secrets that are registered inside when it ends.

    For configurations that are only examined: whoever may send them could otherwise have any word masked, for ever.
    """
    token = _brief.set(set())
    try:
        yield
    finally:
        _brief.reset(token)


def _any_of(secrets: set[str]) -> re.Pattern[str]:
    # The longest first, so that a secret that begins with another one is masked as a whole.
    return re.compile("|".join(map(re.escape, sorted(secrets, key=len, reverse=True))))


def mask(text: str) -> str:
    """Replaces every known secret in a text."""
    if brief := _brief.get():
        text = _any_of(brief).sub(MASK, text)
    return _pattern.sub(MASK, text) if _pattern else text


def _passwords(value: str) -> list[re.Match[str]]:
    patterns = (_URL_PASSWORD, _QUERY_PASSWORD, _KEYWORD_PASSWORD)
    return [found for pattern in patterns for found in pattern.finditer(value) if found["value"]]


def _decoded(raw: str) -> list[str]:
    """The decoded password, and the parts into which a parser splits one that is not encoded."""
    unquoted = re.sub(r"\\(.)", r"\1", raw[1:-1] if raw[:1] == raw[-1:] == "'" else raw)
    return [unquote(raw), unquoted, *re.split(r"[@/?#:]", raw)]


def _masked(found: re.Match[str]) -> str:
    value = found["value"]
    return found[0] if not REFERENCE.sub("", value).strip("'") else found["before"] + MASK
