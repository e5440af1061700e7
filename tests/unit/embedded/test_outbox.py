"""The embedded outbox against a model: writes, replacements, acceptances in flight, reads, and restarts."""

from __future__ import annotations

import re
import shutil
import signal
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tailrace import rocksdb_folder
from tailrace.embedded import EmbeddedOutbox, strict
from tailrace.embedded.records import Entry
from tailrace.errors import StoreFailed
from tailrace.testkit.stack import wait_until

# A key that begins with another one, and keys that are not UTF-8.
KEYS = st.sampled_from([b"", b"a", b"a\0\0\0\0\0\0\0\1", b"\xff"])
RAW = st.binary(max_size=20)


class Known(NamedTuple):
    key: bytes
    raw: bytes
    in_flight: bool


class OutboxMachine(RuleBasedStateMachine):
    """`model` has what the outbox must hold, by sequence number."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="outbox-"))
        self.outbox = EmbeddedOutbox(self.folder / "outbox")
        self.identity = self.outbox.identity
        self.model: dict[int, Known] = {}
        self.last = 0

    def teardown(self) -> None:
        self.outbox.close()
        shutil.rmtree(self.folder)

    def _ready(self, key: bytes) -> list[int]:
        return [number for number, known in self.model.items() if known.key == key and not known.in_flight]

    def _flying(self) -> list[int]:
        return [number for number, known in self.model.items() if known.in_flight]

    @rule(key=KEYS, raw=RAW)
    def write(self, key: bytes, raw: bytes) -> None:
        for number in self._ready(key):
            del self.model[number]
        number = self.outbox.write(key, raw)
        self.model[number] = Known(key, raw, in_flight=False)

    @rule(key=KEYS, raw=RAW)
    def begin(self, key: bytes, raw: bytes) -> None:
        self.model[self.outbox.begin(key, raw)] = Known(key, raw, in_flight=True)

    @precondition(lambda self: self._flying())
    @rule(data=st.data(), accepted=st.booleans())
    def end(self, data: st.DataObject, accepted: bool) -> None:
        number = data.draw(st.sampled_from(self._flying()))
        known = self.model.pop(number)
        if accepted:
            self.outbox.accepted(known.key, number)
            self.model[number] = known._replace(in_flight=False)
            for older in sorted(self._ready(known.key))[:-1]:
                del self.model[older]
        else:
            self.outbox.rejected(known.key, number)

    @rule(key=KEYS)
    def delete(self, key: bytes) -> None:
        ready = self._ready(key)
        assert self.outbox.delete(key) == bool(ready)
        for number in ready:
            del self.model[number]

    @rule(limit=st.integers(1, 5))
    def drain(self, limit: int) -> None:
        drained = self.outbox.read(limit)
        self.outbox.remove(drained)
        for entry in drained:
            del self.model[entry.sequence]

    @rule(through=st.integers(0, 30))
    def remove_through(self, through: int) -> None:
        first = min(self._flying(), default=10_000)
        gone = [number for number in self.model if number <= through and number < first]
        assert self.outbox.remove_through(through) == len(gone)
        for number in gone:
            del self.model[number]

    @rule()
    def open_again(self) -> None:
        """What was in flight counts as captured."""
        self.outbox.close()
        self.outbox = EmbeddedOutbox(self.folder / "outbox")
        self.model = {number: known._replace(in_flight=False) for number, known in self.model.items()}

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        found = [(each.sequence, each.key, each.raw) for each in self.outbox.read(10_000)]
        ready = sorted((n, known.key, known.raw) for n, known in self.model.items() if not known.in_flight)
        assert found == ready
        first = min(self._flying(), default=10_000)
        ordered = [each.sequence for each in self.outbox.read(10_000, ordered=True)]
        assert ordered == [number for number, _, _ in ready if number < first]
        assert [each.sequence for each in self.outbox.read(2, after=3)] == [n for n, _, _ in ready if n > 3][:2]
        assert (self.outbox.count, self.outbox.in_flight) == (len(self.model), len(self._flying()))
        assert self.outbox.identity == self.identity
        assert self.outbox.last_sequence >= max([self.last, *self.model])
        self.last = self.outbox.last_sequence


OutboxMachine.TestCase.settings = settings(max_examples=20, stateful_step_count=25, deadline=None)
TestOutbox = OutboxMachine.TestCase


@pytest.fixture
def outbox(tmp_path: Path) -> EmbeddedOutbox:
    return EmbeddedOutbox(tmp_path / "outbox")


def keys(entries: list[Entry]) -> list[str]:
    return [entry.text_key for entry in entries]


def test_raw_bytes_come_back_unchanged(outbox: EmbeddedOutbox) -> None:
    raw = bytes(range(256)) * 5000
    outbox.write("0xä", raw)
    (entry,) = outbox.read()
    assert (entry.raw, entry.text_key) == (raw, "0xä")


def test_a_read_is_bounded_by_bytes(outbox: EmbeddedOutbox) -> None:
    for number in range(5):
        outbox.write(str(number), bytes(100))
    assert keys(outbox.read(limit_bytes=150)) == ["0", "1"]
    assert keys(outbox.read(limit_bytes=1)) == ["0"]


def test_writers_share_batches_and_lose_nothing(outbox: EmbeddedOutbox) -> None:
    def write(writer: int) -> None:
        for number in range(50):
            with strict(outbox, f"{writer}-{number}", b"x"):
                pass

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(8)]
    for thread in threads:
        thread.start()
    seen: list[Entry] = []
    while any(thread.is_alive() for thread in threads) or outbox.count:
        # In the order of the numbers, a reader that never looks back misses nothing.
        found = outbox.read(20, after=seen[-1].sequence if seen else 0, ordered=True)
        seen += found
        outbox.remove(found)
    for thread in threads:
        thread.join()
    assert [entry.sequence for entry in seen] == list(range(1, 401))
    for writer in range(8):
        assert [key for key in keys(seen) if key.startswith(f"{writer}-")] == [f"{writer}-{n}" for n in range(50)]


def test_every_write_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = rocksdb_folder._options()
    counted.enable_statistics()
    monkeypatch.setattr(rocksdb_folder, "_options", lambda: counted)

    def synced() -> int:
        found = re.search(r"rocksdb.wal.synced COUNT : (\d+)", counted.get_statistics() or "")
        assert found
        return int(found[1])

    with EmbeddedOutbox(tmp_path / "outbox") as outbox:
        before = synced()
        outbox.write("a", b"1")
        with strict(outbox, "b", b"2"):
            assert synced() - before == 2, "on disk before the acceptance"
        with pytest.raises(KeyError), strict(outbox, "c", b"3"):
            raise KeyError
        assert synced() - before == 4, "a rejection is on disk, too"
        outbox.remove(outbox.read())
        assert synced() - before == 4


def test_nothing_is_opened_if_it_is_not_enabled(tmp_path: Path) -> None:
    outbox = EmbeddedOutbox(tmp_path / "outbox", enabled=False)
    with strict(outbox, "a", b"x"):
        pass
    outbox.close()
    assert (outbox.count, list(tmp_path.iterdir())) == (0, [])


def test_an_interrupted_thread_fails_the_writes_of_others_that_it_had_taken(outbox: EmbeddedOutbox) -> None:
    """Main is interrupted while it writes the batch of all: nobody may take that for a success."""
    database = outbox._opened
    results: list[object] = []

    def write(key: str) -> None:
        try:
            results.append((key, outbox.write(key, b"x")))
        except StoreFailed as error:
            results.append(error.what)

    def interrupt(frame: FrameType, event: str, _: object) -> None:
        """Interrupts `_write` after RocksDB has written the batch."""
        caller = frame.f_back
        if event == "return" and frame.f_code.co_name == "_run" and caller and caller.f_code.co_name == "_write":
            sys.setprofile(None)
            signal.raise_signal(signal.SIGINT)

    outbox.write("before", b"x")
    for written in (False, True):
        threads = [threading.Thread(target=write, args=(f"{number}",)) for number in range(2)]
        with database.reading:
            for thread in threads:
                thread.start()
            wait_until(lambda: len(database._waiting) == 2, 10)
            if written:
                sys.setprofile(interrupt)
            with pytest.raises(KeyboardInterrupt):
                database.change(lambda _: None if written else signal.raise_signal(signal.SIGINT))  # noqa: B023
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive()
    assert len(results) == 4
    assert all("was interrupted" in str(each) for each in results)
    assert keys(outbox.read()) == ["before", "0", "1"], "the second batch was on disk"
    assert outbox.write("after", b"x") == 4
    assert (outbox.count, keys(outbox.read())) == (4, ["before", "0", "1", "after"])


def test_a_value_that_is_no_bytes_fails_only_its_own_write(outbox: EmbeddedOutbox) -> None:
    failed: list[BaseException] = []

    def write(key: str, raw: Any) -> None:
        try:
            outbox.write(key, raw)
        except TypeError as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(key, raw)) for key, raw in (("good", b"x"), ("bad", "text"))]
    with outbox._opened.reading:
        for thread in threads:
            thread.start()
        wait_until(lambda: failed or len(outbox._opened._waiting) == 2, 10)
    for thread in threads:
        thread.join(10)
    assert (len(failed), keys(outbox.read())) == (1, ["good"])
    for given in (5, [1, 2], None):
        with pytest.raises(TypeError):
            outbox.write("a", given)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            outbox.begin(given, b"x")  # type: ignore[arg-type]
    key: Any = bytearray(b"key")
    outbox.write(key, memoryview(b"raw"))  # type: ignore[arg-type]
    assert outbox.read()[-1][1:3] == (b"key", b"raw")


class EndsWhenFound(dict[int, bool]):
    """Entries in flight. When a thread finds one, another thread ends its acceptance before the first goes on."""

    def __init__(self, outbox: EmbeddedOutbox) -> None:
        self.ending = threading.Thread(target=lambda: outbox.accepted("a", next(iter(self))))

    def __contains__(self, sequence: object) -> bool:
        found = super().__contains__(sequence)
        if found and not self.ending.is_alive():
            self.ending.start()
            self.ending.join(0.2)  # it may have to wait
        return found


def test_an_acceptance_that_ends_during_a_write_of_its_key_is_not_in_flight_again(outbox: EmbeddedOutbox) -> None:
    in_flight = outbox._in_flight = EndsWhenFound(outbox)
    outbox.begin("a", b"accepted")
    outbox.write("a", b"written")
    in_flight.ending.join(10)
    assert (outbox.in_flight, outbox.count) == (0, 1)
    assert [entry.raw for entry in outbox.read(ordered=True)] == [b"written"]
