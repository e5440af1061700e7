"""Rows 54 and 55 of the fault matrix: the real schema registry is unavailable, slow or disconnected."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator

import pytest

from helpers.registry import ORDER, SLACK, ProxiedRegistry, compile_fetched, event, fails_within, proxied_registry
from tailrace.errors import Reason, Rejected
from tailrace.schema_versions import Version
from tailrace.schemas.registry.cache import RegistrySchemas
from tailrace.schemas.registry.client import RegistryClient, RegistryOptions
from tailrace.schemas.validation import PayloadValidator
from tailrace.testkit.stack import RegistryServer, wait_until
from tailrace.testkit.tcp_proxy import Direction


@pytest.fixture
def proxied(registry: RegistryServer) -> Iterator[ProxiedRegistry]:
    with proxied_registry(registry) as proxied:
        yield proxied


@pytest.fixture
def subject(registry: RegistryServer) -> str:
    """A subject with one registered schema."""
    name = f"Order-{uuid.uuid4().hex[:12]}"
    with RegistryClient(RegistryOptions(registry.url, timeout=20)) as client:
        client.register(name, ORDER, "json")
    return name


class TestUnavailable:
    """Row 54: the registry is unavailable."""

    def test_only_new_schemas_wait_during_an_outage(self, proxied: ProxiedRegistry, subject: str) -> None:
        warnings: list[str] = []
        new = f"{subject}-new"
        with proxied.client() as client:
            client.register(new, ORDER, "json")
            with RegistrySchemas(client, compile_fetched, warn=warnings.append, refresh_seconds=0.05) as schemas:
                validator = PayloadValidator(schemas, max_bytes=1000)
                assert validator.validate(event(subject), "orders")[1] is not None
                proxied.disconnect()
                wait_until(lambda: warnings, what="the warning")
                failed_once = client.fetches
                wait_until(lambda: client.fetches > failed_once + 2, what="more refreshes that fail")

                assert validator.validate(event(subject), "orders")[1] is not None  # cached
                assert validator.validate(event(subject, "1"), "orders")[1] is not None
                failure = fails_within(SLACK, lambda: validator.validate(event(new), "orders"))  # not cached
                assert "refused" in failure.why
                assert len(warnings) == 1
                assert "stay in use" in warnings[0]

                proxied.proxy.accept()
                assert validator.validate(event(new), "orders")[1] is not None
                client.register(subject, {**ORDER, "title": "newer"}, "json")
                wait_until(lambda: schemas.known[subject, None].version == Version(2), what="the new latest version")
                assert len(warnings) == 1
                proxied.disconnect()
                wait_until(lambda: len(warnings) == 2, what="the warning of the second outage")

    def test_a_cold_start_waits_for_the_registry(self, proxied: ProxiedRegistry, subject: str) -> None:
        proxied.proxy.refuse()
        with proxied.client() as client, RegistrySchemas(client, compile_fetched, warn=print) as schemas:
            assert "refused" in fails_within(SLACK, lambda: schemas.find(subject, None)).why
            fails_within(SLACK, lambda: schemas.versions(subject))
            proxied.proxy.accept()
            assert schemas.find(subject, None) is not None
            assert schemas.versions(subject) == [Version(1)]

    def test_a_deleted_subject_keeps_its_cached_schema(self, proxied: ProxiedRegistry, subject: str) -> None:
        warnings: list[str] = []
        with proxied.client() as client:
            with RegistrySchemas(client, compile_fetched, warn=warnings.append, refresh_seconds=0.05) as schemas:
                schema = schemas.find(subject, None)
                client._client.delete_subject(subject)
                wait_until(lambda: warnings, what="the warning")
                before = client.fetches
                wait_until(lambda: client.fetches > before + 3, what="more refreshes")
                assert schemas.known[subject, None] is schema
            assert warnings == [f"{subject} is no longer registered; version 1 stays in use"]


class TestConnection:
    """Row 55: the connection to the real registry fails."""

    def test_a_refused_connection_is_reported(self, proxied: ProxiedRegistry) -> None:
        with proxied.client() as client:
            proxied.proxy.refuse()
            assert fails_within(SLACK, client.subjects).why == "Connection refused."

    def test_a_truncated_response_is_requested_again(self, proxied: ProxiedRegistry, subject: str) -> None:
        with proxied.client() as client:
            proxied.proxy.cut_after(100, Direction.TO_CLIENT)
            fetched = client.fetch(subject)
            assert fetched is not None
            assert fetched.document == ORDER
            assert proxied.proxy.cuts == 1

    def test_a_connection_that_closed_while_idle_is_replaced(self, proxied: ProxiedRegistry, subject: str) -> None:
        with proxied.client() as client:
            assert client.fetch(subject) is not None
            proxied.proxy.cut()
            assert client.fetch(subject) is not None

    def test_a_request_without_response_ends_with_the_timeout(self, proxied: ProxiedRegistry, subject: str) -> None:
        with proxied.client(timeout=0.5) as client:
            proxied.proxy.blackhole()
            assert "within 0.5 s" in fails_within(0.5 + SLACK, lambda: client.fetch(subject)).why
            proxied.proxy.cut()
            proxied.proxy.restore()
        with proxied.client() as client:
            assert client.fetch(subject) is not None

    @pytest.mark.parametrize("bytes_per_second", [5, 400])
    def test_a_slow_response_ends_with_the_timeout(
        self, proxied: ProxiedRegistry, subject: str, bytes_per_second: int
    ) -> None:
        """No single read takes long, so only the deadline of the whole request ends it."""
        with proxied.client() as client:
            client.fetch(subject)  # connected
        with proxied.client(timeout=1.0) as client:
            proxied.proxy.throttle(bytes_per_second)
            assert "within 1 s" in fails_within(1 + SLACK, lambda: client.fetch(subject)).why

    def test_failed_requests_leave_no_thread(self, proxied: ProxiedRegistry, subject: str) -> None:
        before = threading.active_count()
        with proxied.client(timeout=0.2) as client:
            proxied.proxy.throttle(20)
            for _ in range(3):
                fails_within(0.2 + SLACK, lambda: client.fetch(subject))
        wait_until(lambda: threading.active_count() <= before, what="the end of the timers")


INVALID_TYPES = [
    ".", "..", "", "/", "//", "a/b", "a/../b", "../subjects", "..\\..", "%2e%2e", "a%2fb", "a;b=c", "a?b", "a#b", " ",
    "a b", "\0", "\n", "a\r\nb", "\x7f", "\x85", "\u2028", "é", "\U0001f600", ":.other:Order", "latest", "__GLOBAL",
    "x" * 300, "x" * 5000, "é" * 200, "x" * 200_000,
]  # fmt: skip


def test_an_event_with_an_invalid_type_does_not_stop_the_next_one(proxied: ProxiedRegistry, subject: str) -> None:
    """The service chooses the type: events of invalid types are dead-lettered, and the next event passes."""
    with proxied.client() as client, RegistrySchemas(client, compile_fetched, warn=print) as schemas:
        validator = PayloadValidator(schemas, max_bytes=1000)
        for name in INVALID_TYPES:
            with pytest.raises(Rejected) as rejected:
                validator.validate(event(name), "orders")
            assert rejected.value.reason is Reason.SCHEMA_VALIDATION_FAILED, name
            assert len(rejected.value.explanation) < 1000, name
            assert PayloadValidator(schemas, unknown="pass", max_bytes=1000).validate(event(name), "orders") == (
                None,
                None,
            ), name
        for name in (".", "..", "", "a\nb", "x" * 200_000):
            with pytest.raises(Rejected, match="cannot be the name of a schema"):
                validator.validate(event(name), "orders")
        assert validator.validate(event(subject), "orders")[1] is not None


def test_an_unusable_schema_dead_letters_only_events_of_its_type(proxied: ProxiedRegistry, subject: str) -> None:
    broken = f"{subject}-broken"
    with proxied.client() as client, RegistrySchemas(client, compile_fetched, warn=print) as schemas:
        client.register(broken, {**ORDER, "properties": {"id": {"pattern": "(?=x)"}}}, "json")
        validator = PayloadValidator(schemas, max_bytes=1000)
        for _ in range(2):
            with pytest.raises(Rejected, match="the pattern cannot be used") as rejected:
                validator.validate(event(broken), "orders")
            assert rejected.value.reason is Reason.SCHEMA_VALIDATION_FAILED
        assert client.fetches == 1
        assert validator.validate(event(subject), "orders")[1] is not None
