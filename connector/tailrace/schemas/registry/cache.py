"""Schemas of a registry: fetched when an event first needs one, cached, and used on during outages of the registry.

A version never changes, so it is cached forever. The latest version may change, so a background thread fetches it again
every `refresh_seconds`. If that fails, the cached version stays in use and one warning is logged per outage. A running
pipeline therefore needs the registry only for new schemas; those raise RegistryUnavailable until it is back. It has
answered at the start of the pipeline, so an unexpected answer (a maintenance page, a refused login) counts as an
outage, too. Missing schemas are cached for a while: many events of an unknown type cause one request, not one each.

A registry numbers versions itself. The schema of version N is the one that states N or N.0.0 in its `x-version`, or
number N if that states no version. Other versions, such as 1.4.0, are found by what the schemas state.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, Self, TypeVar

from tailrace.errors import RegistryRefused, RegistryUnavailable, SchemaError
from tailrace.schema_versions import Version, parse_version
from tailrace.schemas.compiled import CompiledSchema, Reference, subject_flaw
from tailrace.schemas.registry.client import FetchedSchema, RegistryClient
from tailrace.schemas.strict_json import Json

T = TypeVar("T")

REFRESH_SECONDS = 60.0
FORGET_SECONDS = 30.0
"""Seconds for which a missing schema is not requested again."""
MAX_REMEMBERED = 1000
MAX_DEPTH = 16
MAX_REFERENCES = 100
"""References of one schema, transitive ones included. Real schemas have far fewer; hostile ones are stopped here."""


class RegistrySchemas:
    """Implements `SchemaLookup` with a registry. `compile` compiles a fetched schema; `warn` is called once per
    outage. `close` stops the thread, not the client."""

    def __init__(
        self,
        client: RegistryClient,
        compile: Callable[[FetchedSchema], CompiledSchema],
        *,
        warn: Callable[[str], None],
        refresh_seconds: float = REFRESH_SECONDS,
        forget_seconds: float = FORGET_SECONDS,
    ) -> None:
        self.known: dict[tuple[str, str | None], CompiledSchema] = {}
        self._client = client
        self._compile = compile
        self._warn = warn
        self._refresh_seconds = refresh_seconds
        self._missing: Remembered[tuple[str, str | None], SchemaError | bool] = Remembered(forget_seconds)
        self._versions: Remembered[str, list[Version]] = Remembered(forget_seconds)
        self._stated: dict[tuple[str, int], Version] = {}
        self._lock = threading.Lock()
        self._away = False
        self._warned: dict[str, str] = {}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._refresh_for_ever, name="registry-refresh", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Returns when the thread has ended: at the latest after its current request."""
        self._ending.set()
        self._thread.join()

    def find(self, subject: str, version: str | None) -> CompiledSchema | None:
        key = (subject, version)
        with self._lock:
            found = self.known.get(key)
            if found is not None or subject_flaw(subject):
                return found
            missing = self._missing.get(key)
            if missing is None:
                try:
                    fetched = _answered(lambda: self._fetch(subject, version))
                    if fetched is not None:
                        return _answered(lambda: self._keep(fetched, latest=version is None))
                    missing = True
                except SchemaError as error:
                    missing = error
                self._missing.put(key, missing)
            if isinstance(missing, SchemaError):
                raise missing.with_traceback(None)
            return None

    def versions(self, subject: str) -> list[Version]:
        with self._lock:
            versions = self._versions.get(subject)
            if versions is None:
                versions = sorted(_answered(lambda: self._registered(subject)).keys())
                self._versions.put(subject, versions)
            return versions

    def _fetch(self, subject: str, version: str | None) -> FetchedSchema | None:
        wanted = None if version is None else parse_version(version)
        if version is not None and wanted is None:
            return None
        if wanted is None or wanted.whole:
            fetched = self._client.fetch(subject, None if wanted is None else wanted.major)
            if fetched is not None and wanted in (None, fetched.version):
                return fetched
        number = self._registered(subject).get(wanted) if wanted is not None else None
        return None if number is None else self._client.fetch(subject, number)

    def _registered(self, subject: str) -> dict[Version, int]:
        """Returns the number of each version; the latest one if several schemas state the same version."""
        found: dict[Version, int] = {}
        for number in self._client.numbers(subject):
            place = (subject, number)
            if place not in self._stated:
                self._stated[place] = self._client.version(subject, number)
            found[self._stated[place]] = number
        return found

    def _keep(self, fetched: FetchedSchema, *, latest: bool) -> CompiledSchema:
        compiled = self.known.get((fetched.subject, str(fetched.version)))
        if compiled is None:
            compiled = self._compile(with_references(fetched, self._client.fetch))
            for text in fetched.version.spellings:
                self.known[fetched.subject, text] = compiled
        if latest:
            self.known[fetched.subject, None] = compiled
        return compiled

    def _refresh_for_ever(self) -> None:
        while not self._ending.wait(self._refresh_seconds):
            self._refresh()

    def _refresh(self) -> None:
        for subject, compiled in [(key[0], kept) for key, kept in list(self.known.items()) if key[1] is None]:
            if self._ending.is_set():
                return
            try:
                fetched = self._client.fetch(subject, None)
                if fetched is not None and fetched.version != compiled.version:
                    self._keep(fetched, latest=True)
            except (RegistryUnavailable, RegistryRefused) as error:
                if not self._away:
                    self._away = True
                    self._warn(f"{error.what}; the schemas that are known stay in use. {error.why}".strip())
                return  # the other subjects would fail as well
            except SchemaError as error:
                self._warn_of(subject, f"{error.what}; version {compiled.version} of {subject} stays in use")
            except Exception as error:  # noqa: BLE001 - a bug must not end the thread unnoticed
                self._warn_of(subject, f"the latest schema of {subject} was not refreshed: {type(error).__name__}")
            else:
                self._away = False
                if fetched is None:
                    # The schema was deleted, or the registry lost its data. That is no reason to reject valid events.
                    self._warn_of(
                        subject, f"{subject} is no longer registered; version {compiled.version} stays in use"
                    )
                else:
                    self._warned.pop(subject, None)

    def _warn_of(self, subject: str, message: str) -> None:
        """Warns once for each problem of a subject, not at every refresh."""
        self._away = False
        if self._warned.get(subject) != message:
            self._warned[subject] = message
            self._warn(message)


def _answered(question: Callable[[], T]) -> T:
    """Runs a request to a registry that has answered before, so that a refusal is treated as an outage."""
    try:
        return question()
    except RegistryRefused as error:
        raise RegistryUnavailable(error.what, why=error.why, remedy=error.remedy) from None


K = TypeVar("K")


class Remembered(Generic[K, T]):
    """Caches answers for some seconds and evicts the oldest beyond MAX_REMEMBERED."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._kept: OrderedDict[K, tuple[float, T]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: K) -> T | None:
        until, value = self._kept.get(key, (0.0, None))
        return value if self._clock() < until else None

    def put(self, key: K, value: T) -> None:
        self._kept.pop(key, None)
        self._kept[key] = (self._clock() + self._seconds, value)
        if len(self._kept) > MAX_REMEMBERED:
            self._kept.popitem(last=False)


def with_references(schema: FetchedSchema, fetch: Callable[[str, int], FetchedSchema | None]) -> FetchedSchema:
    """Returns the schema with the documents of all its transitive references in `named`, the innermost first.

    Its references then name the versions that the schemas state.
    """
    named: dict[str, Json] = {}
    fetched: dict[tuple[str, int], FetchedSchema] = {}
    done: set[tuple[str, int]] = set()

    def visit(referring: FetchedSchema, path: tuple[tuple[str, int], ...]) -> None:
        for name, subject, version in referring.references:
            place = (subject, version.major)
            shown = f"version {place[1]} of {place[0]}"
            if place in path:
                raise _bad_references(schema, f"{shown} refers to itself")
            if len(path) > MAX_DEPTH:
                raise _bad_references(schema, f"they are nested more than {MAX_DEPTH} deep")
            if place not in fetched:
                if len(fetched) == MAX_REFERENCES:
                    raise _bad_references(schema, f"there are more than {MAX_REFERENCES}")
                found = fetch(*place)
                if found is None:
                    raise _bad_references(schema, f"{shown} is not registered")
                fetched[place] = found
            if place not in done:
                visit(fetched[place], (*path, place))
                done.add(place)
            document = fetched[place].document
            if named.setdefault(name, document) != document:
                raise _bad_references(schema, f"{name} names two different schemas")

    visit(schema, ((schema.subject, schema.number),))
    references = tuple(
        Reference(name, subject, fetched[subject, version.major].version)
        for name, subject, version in schema.references
    )
    return dataclasses.replace(schema, named=named, references=references)


def _bad_references(schema: FetchedSchema, why: str) -> SchemaError:
    return SchemaError(
        f"the references of version {schema.version} of {schema.subject} cannot be used: {why}",
        remedy=f"Register a new version of {schema.subject} with other references.",
    )
