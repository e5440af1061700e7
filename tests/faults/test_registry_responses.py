"""Row 55 of the fault matrix: responses that the real schema registry cannot be made to give."""

from __future__ import annotations

import threading
import uuid
from http.server import BaseHTTPRequestHandler

import pytest

from helpers.registry import (
    ORDER,
    SECRET,
    SLACK,
    Respond,
    compile_fetched,
    endless_header,
    event,
    fails_within,
    fake_registry,
    first_of,
    respond,
)
from tailrace.errors import ConfigError, RegistryRefused, RegistryUnavailable, Rejected, TailraceError
from tailrace.projections.core.registry_decoder import RegistryDecoder
from tailrace.schemas.registry.cache import RegistrySchemas
from tailrace.schemas.registry.requests import ATTEMPTS, MAX_BYTES
from tailrace.schemas.validation import PayloadValidator
from tailrace.testkit.stack import wait_until


class TestResponses:
    @pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
    def test_server_errors_are_retried_a_few_times(self, status: int) -> None:
        with fake_registry(respond(status, b"<html>trouble</html>")) as server, server.client() as client:
            failure = fails_within(SLACK, client.subjects)
            assert f"HTTP {status}" in failure.what
            assert "trouble" not in str(failure)
            assert len(server.requests) == ATTEMPTS

    def test_temporary_server_errors_are_not_reported(self) -> None:
        answers = [respond(503), respond(500), respond(200, b'["Order"]')]

        def recovering(to: BaseHTTPRequestHandler) -> None:
            answers.pop(0)(to)

        with fake_registry(recovering) as server, server.client() as client:
            assert client.subjects() == ["Order"]

    @pytest.mark.parametrize("status", [401, 403])
    def test_rejected_credentials_are_not_retried_and_not_shown(self, status: int) -> None:
        body = b'{"error_code": %d, "message": "no: me:%s"}' % (status, SECRET.encode())
        settings = {"basic.auth.user.info": f"me:{SECRET}"}
        with fake_registry(respond(status, body)) as server, server.client(settings) as client:
            with pytest.raises(RegistryRefused, match=f"HTTP {status}") as refused:
                client.subjects()
            assert len(server.requests) == 1
            assert server.requests[0][1]["Authorization"].startswith("Basic ")
        assert SECRET not in str(refused.value)
        assert refused.value.why == "no: ***"
        assert "basic.auth.user.info" in refused.value.remedy

    @pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
    def test_redirects_are_not_followed(self, status: int) -> None:
        with fake_registry(respond(200)) as elsewhere:
            location = {"Location": f"{elsewhere.url}/subjects"}
            settings = {"basic.auth.user.info": f"me:{SECRET}"}
            with fake_registry(respond(status, b"", location)) as server, server.client(settings) as client:
                with pytest.raises(RegistryRefused, match="redirects the request"):
                    client.subjects()
                with pytest.raises(RegistryRefused, match="redirects the request"):
                    client.register("Order", ORDER, "json")
                assert len(server.requests) == 2
            assert elsewhere.requests == []

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"<!DOCTYPE html><html>hello</html>",
            b"{",
            b"null",
            b"{}",
            b"[1]",
            b'"text"',
            b"\xff\xfe\xfd",
            b"[" * 100_000,
            b"1" * 10_000,
        ],
        ids=lambda body: repr(body[:30]),
    )
    def test_a_response_that_is_no_registrys_is_refused(self, body: bytes) -> None:
        with fake_registry(respond(200, body)) as server, server.client() as client:
            for request in (
                client.subjects,
                lambda: client.fetch("Order"),
                lambda: client.lookup("Order", {}, "json"),
            ):
                with pytest.raises(RegistryRefused) as refused:
                    request()
                assert "hello" not in str(refused.value)

    @pytest.mark.parametrize(
        "body",
        [
            b'{"schema": 1, "id": 1, "version": 1}',
            b'{"schema": "{}", "id": "1", "version": 1}',
            b'{"schema": "{}", "id": true, "version": 1}',
            b'{"schema": "{}", "id": 1, "version": 1, "references": [{"name": 1}]}',
            b'{"schema": "{}", "id": 1, "version": 1, "references": 7}',
            b'{"schema": "{}", "id": 1}',
        ],
    )
    def test_a_schema_of_the_wrong_shape_is_refused(self, body: bytes) -> None:
        with fake_registry(respond(200, body)) as server, server.client() as client, pytest.raises(RegistryRefused):
            client.fetch("Order")

    def test_a_404_without_error_code_is_refused(self) -> None:
        with fake_registry(respond(404, b"<html>hello</html>")) as server, server.client() as client:
            for request in (client.subjects, lambda: client.fetch("Order"), client.compatibility):
                with pytest.raises(RegistryRefused, match="no schema registry") as refused:
                    request()
                assert "before /subjects" in refused.value.remedy

    def test_an_endless_response_is_refused(self) -> None:
        sent = 0

        def endless(to: BaseHTTPRequestHandler) -> None:
            nonlocal sent
            to.send_response(200)
            to.end_headers()
            while True:
                to.wfile.write(b'"x",' * 16384)
                sent += 65536

        with fake_registry(endless) as server, server.client() as client:
            with pytest.raises(RegistryRefused) as refused:
                client.subjects()
            assert f"{MAX_BYTES:,}" in refused.value.why
            assert len(server.requests) == 1
            assert sent < 2 * MAX_BYTES

    def test_a_compressed_response_is_refused(self) -> None:
        with (
            fake_registry(respond(200, b"\x1f\x8b", {"Content-Encoding": "gzip"})) as server,
            server.client() as client,
        ):
            with pytest.raises(RegistryRefused, match="no schema registry") as refused:
                client.subjects()
            assert "compressed" in refused.value.why
            assert server.requests[0][1]["Accept-Encoding"] == "identity"

    def test_an_endless_header_runs_into_the_timeout(self) -> None:
        over = threading.Event()
        with fake_registry(endless_header(over)) as server, server.client(timeout=0.5) as client:
            assert "within 0.5 s" in fails_within(0.5 + SLACK, client.subjects).why
            over.set()

    def test_a_token_with_a_newline_is_refused_and_not_shown(self) -> None:
        settings = {
            "bearer.auth.credentials.source": "STATIC_TOKEN",
            "bearer.auth.token": f"{SECRET}\n",
            "bearer.auth.logical.cluster": "lsrc-1",
            "bearer.auth.identity.pool.id": "pool-1",
        }
        with fake_registry(respond(200)) as server, server.client(settings) as client:
            with pytest.raises(RegistryRefused, match="cannot be asked") as refused:
                client.subjects()
            assert SECRET not in str(refused.value)
            assert server.requests == []


UNEXPECTED = {
    "html": respond(200, b"<html>We are back soon</html>"),
    "not found, without a code": respond(404, b"<html>hello</html>"),
    "an empty object": respond(200, b"{}"),
    "null": respond(200, b"null"),
    "unauthorized": respond(401, b'{"error_code": 401, "message": "Unauthorized"}'),
    "forbidden": respond(403, b""),
    "a redirect": respond(302, b"", {"Location": "https://login.example.org"}),
}


@pytest.mark.parametrize("answer", UNEXPECTED.values(), ids=UNEXPECTED)
def test_an_unexpected_response_after_a_success_is_an_outage(
    answer: Respond,
) -> None:
    good = respond(200, b'{"subject": "Order", "schema": "{}", "schemaType": "JSON", "id": 1, "version": 1}')
    now = [good]
    with (
        fake_registry(first_of(now)) as server,
        server.client() as client,
        RegistrySchemas(client, compile_fetched, warn=print) as schemas,
    ):
        validator = PayloadValidator(schemas, max_bytes=1000)
        assert validator.validate(event("Order"), "orders")[1] is not None
        now[0] = answer
        assert validator.validate(event("Order"), "orders")[1] is not None
        failure = fails_within(SLACK, lambda: validator.validate(event("Other"), "orders"))
        assert f"schema registry at {server.url}" in failure.what
        assert failure.remedy
        now[0] = good
        assert validator.validate(event("Other"), "orders")[1] is not None


def outcome(decode: RegistryDecoder, name: int | str) -> Exception | None:
    """Returns the error of loading this schema once the registry has responded, or None."""

    def settled() -> list[Exception | None]:
        try:
            decode._reader(name)
        except TailraceError as error:
            return [] if "not answered yet" in error.what else [error]
        return [None]

    return wait_until(settled, what="a response")[0]


@pytest.mark.parametrize("answer", UNEXPECTED.values(), ids=UNEXPECTED)
def test_for_a_projection_an_unexpected_response_after_a_success_is_an_outage(
    answer: Respond,
) -> None:
    now = [answer]
    with fake_registry(first_of(now)) as server:
        assert isinstance(outcome(RegistryDecoder(server.url), 1), ConfigError)
        decode = RegistryDecoder(server.url)
        now[0] = respond(200, b'{"schema": "{}", "schemaType": "JSON"}')
        assert outcome(decode, 1) is None
        now[0] = answer
        assert outcome(decode, 1) is None
        assert isinstance(outcome(decode, 2), RegistryUnavailable)
        now[0] = respond(200, b'{"schema": "{}", "schemaType": "JSON"}')
        assert outcome(decode, 2) is None


def test_a_registry_without_guids_rejects_only_the_event() -> None:
    def answer(to: BaseHTTPRequestHandler) -> None:
        respond(200, b'["Order"]')(to) if to.path.startswith("/subjects") else respond(404, b"<html>hello</html>")(to)

    with fake_registry(answer) as server:
        found = outcome(RegistryDecoder(server.url), str(uuid.uuid4()))
    assert isinstance(found, Rejected)
    assert "is not registered" in found.explanation
