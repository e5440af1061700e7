"""The pytest plugin for services: the fixture `outbox`, its messages, and that it costs others nothing."""

from __future__ import annotations

import json

import pytest

pytest_plugins = ["pytester"]

SCHEMA = {"type": "object", "required": ["order"], "properties": {"order": {"type": "string"}}}


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """A service with a folder of schemas and a setting that names it."""
    folder = pytester.mkdir("contracts")
    for name in ("OrderPlaced", "OrderPaid"):
        (folder / f"{name}.json").write_text(json.dumps(SCHEMA))
    pytester.makeini("[pytest]\ntailrace_schemas = contracts\n")
    pytester.makepyfile(
        service="""
        def place(outbox, connection=None, *, order="o-1", type="OrderPlaced"):
            return outbox.add(connection, type, {"order": order, "total": 3}, aggregate=("order", "o-1"))
        """
    )
    return pytester


def test_events_are_recorded_as_consumers_read_them(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import asyncio, datetime
        from service import place
        from tailrace.outbox import NewEvent, Outbox

        def test_nothing_is_left_of_other_tests(outbox):
            assert isinstance(outbox, Outbox)
            assert outbox.events == []
            place(outbox)

        def test_one_event(outbox):
            receipt = place(outbox)
            event = outbox.only("OrderPlaced")
            assert event == ("OrderPlaced", {"order": "o-1", "total": 3})
            assert (event.id, event.aggregate, event.version) == (receipt.id, ("order", "o-1"), "1")
            assert receipt.wait(timeout=1) is receipt
            assert outbox.exists(None, event.id)
            assert not outbox.exists(None, "other")

        def test_several_events(outbox):
            outbox.add_many(None, [
                NewEvent("OrderPlaced", {"order": "o-1", "on": datetime.date(2030, 1, 2)}, ("order", "o-1")),
                NewEvent("OrderPaid", {"order": "o-1"}, ("order", "o-1")),
            ])
            assert outbox.events == [
                ("OrderPlaced", {"order": "o-1", "on": "2030-01-02"}),
                ("OrderPaid", {"order": "o-1"}),
            ]
            assert outbox.of("OrderPaid") == [("OrderPaid", {"order": "o-1"})]
            outbox.clear()
            assert outbox.events == []

        def test_a_service_with_asyncio(outbox):
            async def act():
                receipt = await place(outbox)
                await receipt
                await outbox.add_many(None, [NewEvent("OrderPaid", {"order": "o-1"}, ("order", "o-1"))])
            asyncio.run(act())
            assert [event.type for event in outbox.events] == ["OrderPlaced", "OrderPaid"]
        """
    )
    project.runpytest("-p", "no:cacheprovider").assert_outcomes(passed=4)


def test_events_that_would_be_refused_in_production_fail_the_test(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import pytest
        from service import place
        from tailrace.errors import EventExists, EventInvalid

        def test_no_schema(outbox):
            place(outbox, type="OrderLost")

        def test_invalid(outbox):
            place(outbox, order=1)

        def test_refusals_can_be_expected(outbox):
            with pytest.raises(EventInvalid, match="OrderLost"):
                place(outbox, type="OrderLost")
            assert outbox.events == []

        def test_an_id_is_used_twice(outbox):
            receipt = place(outbox)
            with pytest.raises(EventExists):
                outbox.add(None, "OrderPaid", {"order": "o-1"}, aggregate=("order", "o-1"), id=receipt.id)
            assert outbox.only("OrderPlaced")
        """
    )
    result = project.runpytest()
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(["*EventInvalid: there is no schema for*'OrderLost'*", "*EventInvalid: *$.order*"])


def test_differences_are_explained(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        from unittest.mock import ANY
        from service import place

        def test_payload(outbox):
            place(outbox)
            place(outbox, type="OrderPaid")
            assert outbox.events == [("OrderPlaced", {"order": ANY, "total": 4, "note": "x"}), ("OrderPaid", ANY)]

        def test_missing(outbox):
            place(outbox)
            assert outbox.events == [("OrderPaid", {"order": "o-1", "total": 3}), ("OrderShipped", {})]

        def test_too_many(outbox):
            place(outbox)
            assert outbox.events == []

        def test_single(outbox):
            place(outbox)
            assert ("OrderPlaced", {"order": "o-2", "total": 3}) == outbox.only("OrderPlaced")

        def test_only(outbox):
            place(outbox)
            outbox.only("OrderPaid")
        """
    )
    result = project.runpytest()
    result.assert_outcomes(failed=5)
    result.stdout.fnmatch_lines(
        [
            "E*the outbox has 2 events, expected 2",
            "E*1. OrderPlaced:",
            "E*$.total is 3, expected 4",
            'E*$.note is missing, expected "x"',
            "E*2. OrderPaid: as expected",
            "E*1. OrderPlaced, expected OrderPaid",
            "E*2. missing: OrderShipped {}",
            'E*1. not expected: OrderPlaced {"order":"o-1","total":3}',
            'E*$.order is "o-1", expected "o-2"',
            "E*expected one event, OrderPaid; the outbox has*",
            'E*1. OrderPlaced {"order":"o-1","total":3}',
        ]
    )


def test_the_layout_is_a_setting(project: pytest.Pytester) -> None:
    """In the layout `streams`, events have no aggregate."""
    project.makeini("[pytest]\ntailrace_schemas = contracts\ntailrace_layout = streams\n")
    project.makepyfile(
        """
        def test_it(outbox):
            outbox.add(None, "OrderPlaced", {"order": "o-1"}, topic="orders")
            assert outbox.only("OrderPlaced").topic == "orders"
        """
    )
    project.runpytest().assert_outcomes(passed=1)


def test_a_missing_folder_is_reported_with_its_setting(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(outbox): pass")
    result = pytester.runpytest()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*schema folder*schemas cannot be read*", "*setting: tailrace_schemas = schemas*"])


def test_runs_without_the_fixture_import_nothing_else(pytester: pytest.Pytester) -> None:
    """And a fixture of the service with the same name counts."""
    pytester.makepyfile(
        """
        import sys
        import pytest

        @pytest.fixture
        def outbox():
            return "own"

        def test_it(outbox):
            assert outbox == "own"
            loaded = {name for name in sys.modules if name.partition(".")[0] in ("tailrace", "orjson", "jsonschema_rs")}
            assert loaded == {"tailrace", "tailrace.testkit", "tailrace.testkit.pytest"}
        """
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider", "--strict-config").assert_outcomes(passed=1)
