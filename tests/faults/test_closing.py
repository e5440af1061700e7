"""A publisher that is closed while it waits for Kafka stores nothing afterwards, and keeps the ownership of others."""

from __future__ import annotations

import gc
import threading
import uuid
import weakref
from collections.abc import Callable, Iterator

import pytest

from tailrace import failpoints
from tailrace.errors import OutcomeUnknown
from tailrace.event import Record
from tailrace.kafka import publisher as publishing
from tailrace.kafka.client import KafkaOptions
from tailrace.kafka.publisher import Publisher
from tailrace.kafka.topic_limits import TopicLimits
from tailrace.kafka.topic_manager import PartitionWatch, TopicManager
from tailrace.pipeline.batch import Batch
from tailrace.positions.postgres import LogIdentity, LsnPosition
from tailrace.routing.specs import TopicSpec
from tailrace.state import offsets
from tailrace.state.owner_watch import OwnerWatch
from tailrace.state.ownership import Ownership
from tailrace.state.stored_state import StoredState
from tailrace.testkit.stack import KafkaBroker, ServerChoice, wait_until
from tailrace.testkit.topic_reader import read_all
from tailrace.wakeup import Wakeup

LOG = LogIdentity("1", 1, "db", "slot", "public.outbox", "p")


@pytest.fixture(scope="module")
def own_kafka() -> Iterator[KafkaBroker]:
    """A broker that the test may pause."""
    with KafkaBroker(choice=ServerChoice.LOCAL) as broker:
        yield broker


@pytest.fixture
def options(own_kafka: KafkaBroker) -> Iterator[KafkaOptions]:
    options = KafkaOptions(own_kafka.bootstrap, f"p-{uuid.uuid4().hex[:8]}", exactly_once=False)
    offsets.ensure(options, offsets.admin_client(options))
    yield options
    own_kafka.resume()


@pytest.fixture
def opened(options: KafkaOptions) -> Callable[[], Publisher]:
    def opened() -> Publisher:
        topic = TopicSpec(options.pipeline, 1, 1)
        watch = PartitionWatch(options.pipeline)
        topic_manager = TopicManager(offsets.admin_client(options), {}, topic, watch, TopicLimits(), create=True)
        topic_manager.require([options.pipeline])
        publisher = Publisher(options, topic_manager, StoredState(options), wakeup=Wakeup())
        publisher.open()
        return publisher

    return opened


def batch(options: KafkaOptions, lsn: int) -> Batch:
    made = Batch(LsnPosition(LOG, lsn, lsn))
    made.add(Record(options.pipeline, b"v", b"k", [], 0))
    return made


def ended(publisher: Publisher) -> None:
    publisher._thread.join(60)
    assert not publisher._thread.is_alive()
    with pytest.raises(OutcomeUnknown):
        publisher.check()


def test_a_closed_publisher_is_no_cycle(opened: Callable[[], Publisher]) -> None:
    """Or the garbage collector would destroy its client, perhaps in a thread of the client itself."""
    gc.collect()
    gc.disable()
    try:
        publisher = opened()
        gone = weakref.ref(publisher)
        publisher.close()
        del publisher
        assert gone() is None
    finally:
        gc.enable()


def test_the_position_of_purged_records_is_not_stored(
    own_kafka: KafkaBroker, options: KafkaOptions, opened: Callable[[], Publisher], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing purges the queue, so a flush that waits for it returns as if everything was delivered."""
    monkeypatch.setattr(publishing, "STEP_TIMEOUT", -1.0)
    publisher = opened()
    own_kafka.pause()
    publisher.submit(batch(options, 10))
    publisher.wait(0.3)
    publisher.close()
    ended(publisher)
    own_kafka.resume()
    publisher._producer.flush(30)
    assert offsets.read(options) is None
    assert not read_all(own_kafka.bootstrap, [options.pipeline])


def test_a_thread_that_outlives_its_close_stores_nothing(
    own_kafka: KafkaBroker, options: KafkaOptions, opened: Callable[[], Publisher], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By then another publisher may have stored a later position, and this one would move it back."""
    monkeypatch.setattr(publishing, "STEP_TIMEOUT", -1.0)
    sent, go_on = threading.Event(), threading.Event()

    def reached(point: str) -> None:
        if point == failpoints.AFTER_PRODUCE and not sent.is_set():
            sent.set()
            assert go_on.wait(60)

    monkeypatch.setattr(failpoints, "reached", reached)
    older = opened()
    older.submit(batch(options, 10))
    assert sent.wait(60), "its events are sent"
    older.close()
    newer = opened()
    newer.store(LsnPosition(LOG, 20, 20))
    go_on.set()
    ended(older)
    newer.close()
    assert offsets.read(options) == LsnPosition(LOG, 20, 20)


def test_a_release_does_not_erase_the_ownership_of_another_instance(
    options: KafkaOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other instance takes ownership after the first has checked it and before it releases it."""
    first, second = Ownership(options, "first"), Ownership(options, "second")
    first.take()

    def lost() -> bool:
        second.take()
        return False

    with monkeypatch.context() as patch:
        patch.setattr(first, "lost", lost)
        first.release()
    if not second.taken:
        second.take()
    assert first.lost()
    assert not second.lost()
    second.release()
    assert not Ownership(options, "third").lost()


def test_heartbeats_of_a_replaced_instance_do_not_count_for_the_owner(options: KafkaOptions) -> None:
    """It does not know that it was replaced and sends heartbeats after the owner has left: the pipeline is free."""
    replaced, owner, watch = Ownership(options, "replaced"), Ownership(options, "owner"), OwnerWatch(options)
    replaced.take()
    owner.take()
    owner.release()
    watch.look()
    end = watch._follower._next

    def received() -> bool:
        watch.look()
        return watch._follower._next > end

    wait_until(received, 60, what="a heartbeat of the replaced instance")
    assert watch.is_released
    assert not replaced.lost()
    assert not replaced.is_last, "it must take ownership before others can see that it runs the pipeline"
    replaced.withdraw()
    replaced.take()
    assert not replaced.lost()
    assert replaced.is_last
    assert Ownership(options, "third").lost()
    replaced.release()
    watch.close()
