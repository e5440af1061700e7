"""Client of a Confluent-compatible schema registry, based on confluent-kafka's own client.

The library is imported when a `RegistryClient` is created: it brings an HTTP client of 24 MB, which a pipeline without
a registry does not need. Its caches are cleared after each request, because `cache.py` knows what may change and the
library does not. Every answer is checked for its types. `requests.py` bounds requests and words failures.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self, TypeVar
from urllib.parse import quote, urlsplit

import orjson

from tailrace.errors import ConfigError, RegistryRefused, SchemaError, install_remedy
from tailrace.schema_versions import Version, stated_version
from tailrace.schemas.compiled import Kind, Reference, RegistryIds, is_plain, subject_flaw
from tailrace.schemas.registry.requests import Calls, NotRegistered
from tailrace.schemas.strict_json import Json, NotJsonError, parse

T = TypeVar("T")

KINDS: Mapping[str, Kind] = {"JSON": "json", "AVRO": "avro"}
TYPES: Mapping[Kind, str] = {kind: name for name, kind in KINDS.items()}
_SETTINGS = frozenset(
    {
        "basic.auth.user.info",
        "proxy",
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.key.location",
        "ssl.key.password",
    }
)
_BEARER = "bearer.auth."
SHORTEST_SECRET = 4
"""Shorter values occur in ordinary words; hiding them would make every message unreadable."""


@dataclass(frozen=True, slots=True)
class RegistryOptions:
    """Where the registry is and how to log in. `timeout` bounds one request, including its retries."""

    url: str
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout: float = 5.0

    def __post_init__(self) -> None:
        remedy = "Write the root of the registry's API, such as https://registry.example:8081."
        try:
            parts = urlsplit(self.url)
            fit = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
        except ValueError:
            raise ConfigError("the registry's url is not a valid URL", remedy=remedy) from None
        # None of these messages shows the url, because it may contain a password.
        if "@" in self.url:
            raise ConfigError(
                "the registry's url holds credentials",
                why="The url is shown in messages and logs.",
                remedy="Set basic.auth.user.info among the registry's settings instead.",
            )
        if not fit or parts.query or parts.fragment or "," in self.url or any(c.isspace() for c in self.url):
            raise ConfigError("the registry's url is not a single http or https URL", remedy=remedy)
        for name in self.settings:
            if name not in _SETTINGS and not name.startswith(_BEARER):
                known = ", ".join([*sorted(_SETTINGS), f"{_BEARER}*"])
                raise ConfigError(f"{name[:80]!r} is not a setting of the registry", remedy=f"There are: {known}.")
        if self.timeout <= 0:
            raise ConfigError("the registry's timeout is not above zero", remedy="Write a number of seconds.")


@dataclass(frozen=True, slots=True)
class FetchedSchema:
    """A registered schema as fetched. `named` holds the documents of all it refers to, by name, the innermost first.

    `number` is the version that the registry gave it. References name such numbers, until `with_references` has found
    out which versions the schemas state.
    """

    subject: str
    number: int
    kind: Kind
    document: Json
    references: tuple[Reference, ...]
    registered: RegistryIds
    place: str
    """Its URL, for messages."""
    named: Mapping[str, Json] = field(default_factory=dict)

    @property
    def version(self) -> Version:
        """The version that it states, or else the registry's number."""
        return stated_version(self.document) or Version(self.number)


class RegisteredNumber(NamedTuple):
    """The number and ids under which a schema is registered."""

    registered: RegistryIds
    number: int


class RegistryClient:
    """Requests to one registry. Threads may share it. It connects with the first request."""

    def __init__(self, options: RegistryOptions) -> None:
        self.url = options.url.rstrip("/")
        self._client = _client(options)
        rest = self._client._rest_client
        # If the library fetches tokens, it uses a separate session for them.
        sessions = [rest.session, getattr(rest.bearer_field_provider, "client", None)]
        self._calls = Calls([one for one in sessions if one], self.url, options.timeout, _hidden(options.settings))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()

    def subjects(self) -> list[str]:
        """Returns all registered subjects."""
        try:
            return self._ask(lambda: _all_of(str, self._client.get_subjects()))
        except NotRegistered:
            # Every registry has this list, even if it is empty.
            raise self._odd("it has no list of subjects") from None

    def numbers(self, subject: str) -> list[int]:
        """Returns the numbers of the registered versions, oldest first; empty if there are none."""
        try:
            return sorted(self._ask_about(subject, lambda: _all_of(int, self._client.get_versions(subject))))
        except NotRegistered:
            return []

    def fetch(self, subject: str, number: int | None = None) -> FetchedSchema | None:
        """Fetches a version by its number, or the latest; None if it is not registered. Schemas that it refers to are
        not fetched."""
        try:
            answer = self._ask_about(
                subject, lambda: _Answer.of(self._client.get_version(subject, "latest" if number is None else number))
            )
        except NotRegistered:
            return None
        if answer.version is None:
            raise self._odd("a schema came without its version")
        place = f"{self.url}/subjects/{quote(subject, safe='')}/versions/{answer.version}"
        if answer.type not in KINDS:
            raise SchemaError(
                f"version {answer.version} of {subject} is a schema of type {answer.type[:40]}, which is not supported",
                why="Payloads are checked against JSON Schema or Avro.",
                remedy=f"Register a JSON Schema or an Avro schema under {subject}.",
            )
        document = _parsed(answer.text, place, remedy="Register a new version.")
        return FetchedSchema(
            subject, answer.version, KINDS[answer.type], document, answer.references, answer.registered, place
        )

    def version(self, subject: str, number: int) -> Version:
        """Returns the version that the schema of a number states; the number itself if it states none."""
        try:
            fetched = self.fetch(subject, number)
        except RegistryRefused:
            raise
        except SchemaError:  # of a kind that is not supported
            return Version(number)
        return Version(number) if fetched is None else fetched.version

    def fetch_by_id(self, id: int | str) -> FetchedSchema | None:
        """Fetches the schema of an id or a GUID, as consumers do; None if the registry has none.

        Schemas that it refers to are not fetched. The schema of an id never changes.
        """
        numeric = isinstance(id, int)
        place = f"{self.url}/schemas/{'ids' if numeric else 'guids'}/{id}"
        get: Any = self._client.get_schema if numeric else self._client.get_schema_by_guid
        try:
            kind, text, references = self._ask(lambda: _schema_parts(get(id)))
        except NotRegistered:
            return None
        except RegistryRefused:
            if numeric:
                raise
            # Not every registry supports GUIDs. If it responds to another request, it has no schema of this GUID.
            self.subjects()
            return None
        if kind not in KINDS:
            raise SchemaError(
                f"{place} is a schema of type {kind[:40]}, which is not supported",
                why="Values are read by JSON Schema or Avro.",
                remedy="Give the projection its own `decode`.",
            )
        document = _parsed(text, place, remedy="Register the schema again.")
        registered = RegistryIds(id) if isinstance(id, int) else RegistryIds(0, id)
        return FetchedSchema(f"schema {id}", 1, KINDS[kind], document, references, registered, place)

    def lookup(
        self, subject: str, document: Json, kind: Kind, references: Sequence[Reference] = ()
    ) -> RegisteredNumber | None:
        """Returns where exactly this schema is registered; None if it is not. Whitespace makes no difference."""
        schema = _schema(document, kind, references)
        try:
            answer = self._ask_about(subject, lambda: _Answer.of(self._client.lookup_schema(subject, schema)))
        except NotRegistered:
            return None
        if answer.version is None:
            raise self._odd("a schema came without its version")
        return RegisteredNumber(answer.registered, answer.version)

    def register(
        self, subject: str, document: Json, kind: Kind, references: Sequence[Reference] = ()
    ) -> RegisteredNumber:
        """Registers a schema, or finds it registered. Raises SchemaError if the registry rejects it."""
        schema = _schema(document, kind, references)
        try:
            self._ask(lambda: self._client.register_schema(subject, schema))
        except NotRegistered as missing:
            raise SchemaError(
                f"the schema for {subject} refers to one that is not registered",
                why=str(missing),
                remedy="Register the schemas that it refers to first.",
            ) from None
        # Some registries answer a registration with the id alone.
        found = self.lookup(subject, document, kind, references)
        if found is None:
            raise self._odd("it does not find what it has just registered")
        return found

    def compatibility(self, subject: str | None = None) -> str:
        """Returns the compatibility level of a subject (its own or the global one), or the global one."""
        try:
            return self._ask(lambda: _a(str, self._client.get_compatibility(subject)))
        except NotRegistered:
            if subject is None:
                raise self._odd("it has no compatibility level") from None
            return self.compatibility()

    def set_compatibility(self, level: str, subject: str | None = None) -> None:
        try:
            self._ask(lambda: self._client.set_compatibility(subject, level))
        except NotRegistered as missing:
            raise SchemaError(
                f"there is no subject {subject} to set a compatibility level for",
                why=str(missing),
                remedy="Register its first schema, then set the level.",
            ) from None

    def _ask(self, question: Callable[[], T]) -> T:
        try:
            return self._calls.ask(question)
        finally:
            self._client.clear_caches()

    def _ask_about(self, subject: str, question: Callable[[], T]) -> T:
        """Runs a request about one subject. Raises NotRegistered if the registry only rejects the name.

        A server or proxy may reject unusual characters in a URL without a registry's error code. Another request shows
        whether the name is the reason.
        """
        if flaw := subject_flaw(subject):
            raise NotRegistered(flaw)
        try:
            return self._ask(question)
        except RegistryRefused:
            if is_plain(subject):
                raise
            self.subjects()
            raise NotRegistered("the registry does not take this name") from None

    def _odd(self, why: str) -> RegistryRefused:
        return RegistryRefused(
            f"the schema registry at {self.url} gives an unexpected answer: {why}",
            remedy="Check that the url is the root of a Confluent-compatible API.",
        )


@dataclass(frozen=True, slots=True)
class _Answer:
    """Converts the library's answer and checks each part's type; raises TypeError otherwise."""

    registered: RegistryIds
    version: int | None
    type: str
    text: str
    references: tuple[Reference, ...]

    @classmethod
    def of(cls, answer: Any) -> Self:  # noqa: ANN401 - RegisteredSchema
        guid = answer.guid
        return cls(
            RegistryIds(_a(int, answer.schema_id), None if guid is None else _a(str, guid)),
            None if answer.version is None else _a(int, answer.version),
            *_schema_parts(answer.schema),
        )


def _schema_parts(schema: Any) -> tuple[str, str, tuple[Reference, ...]]:  # noqa: ANN401 - the library's Schema
    """Returns a schema's type, text and references, each with its type checked."""
    references = [
        Reference(_a(str, each.name), _a(str, each.subject), Version(_a(int, each.version)))
        for each in schema.references or ()
    ]
    return _a(str, schema.schema_type or "AVRO"), _a(str, schema.schema_str), tuple(references)


def _parsed(text: str, place: str, *, remedy: str) -> Json:
    try:
        return parse(text.encode("utf-8", "surrogatepass"))
    except NotJsonError as error:
        raise SchemaError(f"{place} is not JSON: {error}", remedy=remedy) from None


def _hidden(settings: Mapping[str, str]) -> list[str]:
    """Values that no message may show, the longest first: user:password, its encoded form, and the password."""
    values = [value for name, value in settings.items() if not name.endswith((".location", ".url"))]
    user_info = settings.get("basic.auth.user.info", "")
    values += [user_info.partition(":")[2], base64.b64encode(user_info.encode()).decode()]
    return sorted((value for value in values if len(value) >= SHORTEST_SECRET), key=len, reverse=True)


def _a(kind: type[T], value: object) -> T:
    # Exactly this type: True is an int to isinstance.
    if type(value) is not kind:
        raise TypeError(f"{type(value).__name__} instead of {kind.__name__}")
    return value


def _all_of(kind: type[T], values: object) -> list[T]:
    return [_a(kind, value) for value in _a(list, values)]


def _schema(document: Json, kind: Kind, references: Sequence[Reference]) -> Any:  # noqa: ANN401
    from confluent_kafka.schema_registry import Schema, SchemaReference

    named = [SchemaReference(each.name, each.subject, each.version.major) for each in references]
    return Schema(orjson.dumps(document).decode(), TYPES[kind], named)


def _client(options: RegistryOptions) -> Any:  # noqa: ANN401
    try:
        from confluent_kafka.schema_registry import SchemaRegistryClient
    except ImportError as error:
        raise ConfigError(
            f"a schema registry is configured, but the module {error.name} is missing",
            remedy=install_remedy("registry"),
        ) from None
    # The library tries once; `Calls` decides about retries.
    config = {**options.settings, "url": options.url, "timeout": options.timeout, "max.retries": 0}
    try:
        return SchemaRegistryClient(config)
    except OSError as error:  # ssl.SSLError is an OSError
        raise ConfigError(
            f"a certificate or key of the registry's settings cannot be used: {error.strerror or type(error).__name__}",
            remedy="Check ssl.ca.location, ssl.certificate.location, ssl.key.location and ssl.key.password.",
        ) from None
    except (ValueError, TypeError):
        # The library's message may contain a value of the settings.
        raise ConfigError(
            "the registry's settings do not fit together",
            remedy="basic.auth.user.info is user:password; a key needs ssl.certificate.location; bearer.auth.* needs "
            "bearer.auth.credentials.source and the settings of that source.",
        ) from None
