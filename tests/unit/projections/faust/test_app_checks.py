"""App settings that are refused before anything is read. `test_projection_app.py` shows that the check is called."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import faust
import pytest
from faust.serializers import codecs

from helpers.memory_store import MemoryStore
from tailrace.errors import ConfigError
from tailrace.projections.faust.app import ProjectionApp, projection_app
from tailrace.projections.faust.app_checks import check_app, problems
from tailrace.projections.postgres.store import PostgresStore
from tailrace.projections.projection import Projection


def made(**settings: Any) -> ProjectionApp:
    return projection_app("shop", **settings)


async def nothing(stream: Any) -> None:
    pass


def test_the_defaults_are_fine() -> None:
    app = made()
    app.agent(app.topic("orders"))(nothing)
    assert list(problems(app)) == []
    check_app(app)


def test_the_defaults() -> None:
    conf = made(broker="kafka://one:1;kafka://two:2").conf
    assert [(url.host, url.port) for url in conf.broker_consumer] == [("one", 1), ("two", 2)]
    assert conf.broker_session_timeout < conf.broker_request_timeout
    assert (conf.key_serializer, conf.value_serializer) == ("raw", "raw")
    assert conf.topic_disable_leader
    assert not conf.topic_allow_declare
    assert not conf.stream_wait_empty
    assert not conf.web_enabled


def test_settings_of_faust_are_passed_on() -> None:
    assert made(consumer_group_instance_id="one").conf.consumer_group_instance_id == "one"
    assert made(broker_session_timeout=20).conf.broker_session_timeout == 20


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"processing_guarantee": "exactly_once"}, "exactly_once"),
        ({"web_enabled": True}, "would listen on 0.0.0.0"),
        ({"web_enabled": True, "web_bind": "10.0.0.1"}, "would listen on 10.0.0.1"),
        ({"web_enabled": True, "web_bind": "example.org"}, "would listen on example.org"),
        ({"broker": "confluent://localhost"}, "kafka://"),
        ({"key_serializer": "pickle"}, "key_serializer is pickle"),
        ({"value_serializer": "json|pickle"}, "value_serializer is pickle"),
        ({"value_serializer": "pickle_restricted"}, "value_serializer is pickle"),
        ({"value_serializer": codecs.pickle()}, "value_serializer is pickle"),
    ],
)
def test_a_setting_is_refused(settings: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_app(_unwarned(lambda: made(**settings)))
    assert expected in caught.value.what
    assert caught.value.why
    assert caught.value.remedy


def test_the_environment_is_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROCESSING_GUARANTEE", "exactly_once")
    with pytest.raises(ConfigError, match="exactly_once"):
        check_app(made())


@pytest.mark.parametrize("bind", ["127.0.0.1", "::1", "localhost"])
def test_the_web_server_may_listen_on_loopback(bind: str) -> None:
    app = made(web_enabled=True, web_bind=bind)
    assert list(problems(app)) == []
    assert app.boot_strategy._should_enable_web()


def test_the_web_server_may_listen_on_a_unix_socket() -> None:
    assert list(problems(made(web_enabled=True, web_transport="unix:///tmp/shop.sock"))) == []


@pytest.mark.parametrize("options", [{"concurrency": 2}, {"isolated_partitions": True}])
def test_ordinary_agents_may_read_topics_of_projections(options: dict[str, Any]) -> None:
    app = made()
    Projection(app, "orders", store=MemoryStore())
    app.agent(app.topic("orders"), name="beside", **options)(nothing)
    assert list(problems(app)) == []


def test_a_channel_of_events_needs_one_agent() -> None:
    app = made()
    channel = app.events("orders", store=MemoryStore())
    assert [problem.what for problem in problems(app)] == ["shop: app.events(orders) has no agent"]
    app.agent(channel, name="first", concurrency=3)(nothing)
    assert list(problems(app)) == []
    app.agent(channel, name="second")(nothing)
    assert [problem.what for problem in problems(app)] == [
        "shop: the agents first and second have the same app.events(shop)"
    ]


def test_isolated_partitions_are_refused_for_agents_of_events() -> None:
    app = made()
    app.agent(app.events("orders", store=MemoryStore()), name="one", isolated_partitions=True)(nothing)
    assert [problem.what for problem in problems(app)] == ["shop: the agent one has isolated_partitions"]


def test_pickle_is_refused_on_every_topic() -> None:
    app = made()
    _unwarned(lambda: app.agent(app.topic("others", value_serializer="pickle"), name="others")(nothing))
    assert [problem.what for problem in problems(app)] == ["shop: the value serializer of others is pickle"]


def test_a_table_needs_its_changelog_topic() -> None:
    app = made(topic_allow_declare=False)
    app.Table("counts", default=int)
    (problem,) = problems(app)
    assert problem.what == "shop: the app has the Faust table counts, and topic_allow_declare is off"


def test_a_server_given_to_faust_is_refused() -> None:
    app = made()
    app.web_server(faust.Service)
    with pytest.raises(ConfigError, match="web server"):
        check_app(app)


def _unwarned(act: Callable[[], Any]) -> Any:
    """Faust itself warns of pickle."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return act()


@pytest.mark.parametrize(("given", "remedy"), [("broker_sesion_timeout", "broker_session_timeout"), ("zz", "Remove")])
def test_an_argument_that_faust_would_ignore_is_refused(given: str, remedy: str) -> None:
    with pytest.raises(ConfigError, match=f"{given} is not a setting") as caught:
        made(**{given: 1})
    assert remedy in caught.value.remedy


def test_a_password_in_the_address_of_a_broker_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    address = "kafka://service:planted-s3cret@localhost:9092"
    for app in (made(broker=address), made(broker_consumer=address)):
        with pytest.raises(ConfigError, match="contains a user or a password") as caught:
            _ = app.conf  # `faust worker` prints settings from here
        assert "s3cret" not in str(caught.value)
        assert "broker_credentials" in caught.value.remedy
    monkeypatch.setenv("BROKER_URL", address)
    with pytest.raises(ConfigError, match="contains a user or a password"):
        _ = made().conf


def test_an_agent_that_reads_by_a_pattern_is_refused() -> None:
    app = made()
    app.agent(app.topic(pattern="orders.*"), name="all")(nothing)
    app.agent(app.topic("one", "two"), name="several")(nothing)
    assert [problem.what for problem in problems(app)] == ["shop: the agent all reads topics by a pattern"]


def test_projections_that_are_declared_with_one_store_each_use_their_own() -> None:
    app = made()
    store = PostgresStore("postgresql://localhost/shop", schema="shop", tables="SELECT 1")
    first = Projection(app, "orders", store=store)
    second = app.events("orders", store=store, name="second").projection
    assert first.store is store
    assert isinstance(second.store, PostgresStore)
    assert second.store is not store
    assert second.store.address == store.address


def test_a_store_that_cannot_be_shared_is_refused() -> None:
    app = made()
    store = MemoryStore()
    Projection(app, "orders", store=store)
    with pytest.raises(ConfigError, match="the same store object"):
        Projection(app, "orders", store=store, name="second")
