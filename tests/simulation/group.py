"""A consumer group as a projection's reader sees it: the coordinator, and consumers with fetches in flight.

Modelled behaviour (the eager protocol of Kafka's consumer groups, and librdkafka's consumer):
- A member that joins, leaves or is silent for the session timeout starts a rebalance. Each member gives all of its
  partitions up in its own poll (`on_revoke`), joins again, and gets its new ones (`on_assign`).
- A member that does not join in time is removed; it hears of that in its next poll (`on_lost`).
- Callbacks run inside `poll` and `consume`. Such a call may still return records that were fetched before.
- `assign` drops what was fetched, and fetches from the given offsets.
- Readers of committed records get no aborted ones; an end-of-partition event has the last stable offset.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, TopicPartition

from simulation.broker import Broker, Stored
from simulation.kafka_client import Message as PlainMessage
from simulation.scheduler import Process, Simulation
from simulation.stdlib import Condition

SESSION_SECONDS = 10.0
PREFETCHED = 6


class Message(PlainMessage):
    def __len__(self) -> int:
        return len(self._record.value or b"")


class Group:
    """The coordinator of one group."""

    def __init__(self, simulation: Simulation, broker: Broker, topic: str) -> None:
        self.simulation, self.broker, self.topic = simulation, broker, topic
        self.members: dict[GroupConsumer, bool] = {}
        """Whether each member has joined the current rebalance."""
        self.rebalances = 0
        self._is_stable = True
        self.changed = Condition(simulation)
        """Wakes consumers that wait for records."""
        broker.decided = lambda _: simulation.at(simulation.delay(0.01), self.changed.wake_all)
        self._watch()

    def join(self, member: GroupConsumer) -> None:
        self.members[member] = True
        self.rebalance()

    def leave(self, member: GroupConsumer) -> None:
        if self.members.pop(member, None) is not None:
            self.rebalance()

    def rebalance(self) -> None:
        """Begins a rebalance: every member must give up its partitions and join again."""
        self.rebalances += 1
        number = self.rebalances
        self._is_stable = False
        for member in self.members:
            self.members[member] = not member.owns
            member.must_revoke = member.owns
        self.simulation.at(SESSION_SECONDS, lambda: self._expire(number))
        self.simulation.at(self.simulation.delay(0.1), lambda: self.joined(None))

    def joined(self, member: GroupConsumer | None) -> None:
        """A member has given up its partitions; when all have, they are assigned."""
        if member in self.members:
            self.members[member] = True
        if self._is_stable or not self.members or not all(self.members.values()):
            return
        self._is_stable = True
        order = list(self.members)
        self.simulation.random.shuffle(order)
        for at, each in enumerate(order):
            each.pending = [
                number for number in range(len(self.broker.topics[self.topic])) if number % len(order) == at
            ]

    def _expire(self, number: int) -> None:
        if number != self.rebalances or self._is_stable:
            return
        for member in [each for each, joined in self.members.items() if not joined]:
            del self.members[member]
            member.is_lost = True
        self.joined(None)

    def _watch(self) -> None:
        """Removes members without heartbeats: killed, or suspended for longer than the session timeout."""
        now = self.simulation.now
        for member in list(self.members):
            process = member.process
            silent = not process.alive or process.paused_until > now
            member.silent_since = (member.silent_since or now) if silent else 0.0
            if silent and now - member.silent_since > SESSION_SECONDS:
                del self.members[member]
                member.is_lost = True
                self.rebalance()
        self.simulation.at(1.0, self._watch)


class GroupConsumer:
    """A consumer of confluent-kafka that has subscribed to the topic of the group."""

    def __init__(self, group: Group, process: Process) -> None:
        self.process = process
        self.owns = self.must_revoke = self.is_lost = False
        self.pending: list[int] | None = None
        self.silent_since = 0.0
        self._group = group
        self._simulation = group.simulation
        self._next: dict[int, int] = {}
        self._at_end: dict[int, int] = {}
        self._paused: set[int] = set()
        self._fetched: list[Message] = []

    def subscribe(self, _topics: list[str], on_assign: Any, on_revoke: Any, on_lost: Any) -> None:
        self._on: dict[str, Callable[..., None]] = {"assign": on_assign, "revoke": on_revoke, "lost": on_lost}
        self._group.join(self)

    def assign(self, partitions: list[TopicPartition]) -> None:
        self._simulation.current()
        self._fetched.clear()
        self._at_end.clear()
        self._next = {each.partition: each.offset for each in partitions}

    def unassign(self) -> None:
        self.assign([])

    def pause(self, partitions: list[TopicPartition]) -> None:
        self._paused |= {each.partition for each in partitions}

    def resume(self, partitions: list[TopicPartition]) -> None:
        self._paused -= {each.partition for each in partitions}

    def commit(self, offsets: list[TopicPartition], asynchronous: bool) -> None:
        self._simulation.current()

    def close(self) -> None:
        if self.owns:
            self._call("revoke")
            self.owns = False
        self._group.leave(self)

    def poll(self, timeout: float) -> Message | None:
        deadline = self._simulation.now + timeout
        while True:
            if not self._fetched or self._simulation.random.random() < 0.5:
                self._serve()
            if not self._fetched:
                self._fetch()
            if self._fetched:
                return self._fetched.pop(0)
            if self._simulation.now >= deadline:
                return None
            self._group.changed.wait_for(
                lambda: False, (deadline - self._simulation.now) * self._simulation.random.random() + 0.001
            )

    def consume(self, limit: int, _timeout: float) -> list[Message]:
        found = [self._fetched.pop(0) for _ in range(min(limit, len(self._fetched)))]
        if self._simulation.random.random() < 0.5:
            self._serve()
            if not self.owns and self._simulation.random.random() < 0.5:
                # The call is slow: the next assignment comes before it returns.
                self._simulation.sleep(0.3)
                self._serve()
        return found

    def _serve(self) -> None:
        """Runs the callbacks that are due."""
        self._simulation.current()
        if self.is_lost:
            self.is_lost = self.must_revoke = False
            self.pending = None
            if self.owns:
                self.owns = False
                self._call("lost")
            self._group.join(self)
        elif self.must_revoke:
            self.must_revoke = self.owns = False
            self.pending = None
            self._call("revoke")
            self._group.joined(self)
        elif self.pending is not None:
            partitions, self.pending = self.pending, None
            self.owns = True
            self._call("assign", partitions)

    def _call(self, kind: str, partitions: list[int] | None = None) -> None:
        self._simulation.note(f"{kind} {partitions if partitions is not None else ''}")
        self._on[kind](self, [TopicPartition(self._group.topic, number) for number in partitions or ()])

    def _fetch(self) -> None:
        """A fetch of some records of each partition."""
        broker, topic = self._group.broker, self._group.topic
        if all(self._at_end.get(number) == broker.last_stable(topic, number) for number in self._next):
            return
        self._simulation.sleep(self._simulation.delay(0.003))
        for number, offset in self._next.items():
            if number in self._paused:
                continue
            records, end = broker.read(topic, number, offset, committed=True)
            records = records[: self._simulation.random.randint(1, PREFETCHED)]
            self._fetched += [Message(each) for each in records]
            after = records[-1].offset + 1 if records else end
            self._next[number] = max(offset, after)
            if not records and self._at_end.get(number) != after and after >= offset:
                self._at_end[number] = after
                event = Stored(topic, number, after, None, None, None, 0, None)
                self._fetched.append(Message(event, KafkaError(KafkaError._PARTITION_EOF)))
