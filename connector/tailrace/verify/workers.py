"""Worker processes that read topics in parallel, while the parent process reads the outbox.

They are started as new processes and not forked, because the threads of the Kafka client do not survive a fork. A
worker receives commands over a pipe and returns results. Records stay in its spill file, which all others can read. If
a worker dies or reports an error, the comparison fails, so that a result always covers everything. A worker exits when
its standard input ends, so it never outlives the parent.

A worker is started with `python -m tailrace.verify.workers PIPE SPILL`, where both are inherited file descriptors.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from tailrace import failpoints
from tailrace.errors import SourceError, TailraceError
from tailrace.verify.backend import AbsenceContext
from tailrace.verify.findings import Findings
from tailrace.verify.spill import BUCKETS, SpillIndex, temporary_file
from tailrace.verify.topic_reader import BucketShare, ScanSettings, TopicReader, compare_share, seldom_collected
from tailrace.verify.topic_scan import PartitionScan, ScanResult

ENDING_SECONDS = 10.0


class WorkerPool:
    """`readers` worker processes. With none, topics are read in this process during `finish`."""

    def __init__(self, readers: int) -> None:
        self._closing = ExitStack()
        self.outbox, *self._files = [self._closing.enter_context(temporary_file()) for _ in range(1 + max(readers, 1))]
        """The spill file of the outbox, which the workers can read."""
        self._members: list[_Worker] = []
        self._here: TopicReader | None = None
        self._parts: list[PartitionScan] = []
        self._shares: dict[int, int] = {}
        """The reader of each place, which never changes because the reader keeps its order."""
        self._weights = [0] * len(self._files)
        try:
            for number in range(readers):
                self._members.append(_Worker(self._files[number], [self.outbox, *self._files]))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def begin(self, settings: ScanSettings) -> None:
        if not self._members:
            self._here = TopicReader(settings, self._files[0])
        for member in self._members:
            member.send(settings)

    def start(self, parts: Sequence[PartitionScan]) -> None:
        """Starts reading. Only one reading at a time."""
        self._parts = list(parts)
        given: list[list[PartitionScan]] = [[] for _ in self._files]
        # Large parts first, so that small ones level out the difference.
        for part in sorted(parts, key=_weight, reverse=True):
            reader = self._reader_of(part)
            self._weights[reader] += _weight(part)
            given[reader].append(part)
        for member, share in zip(self._members, given, strict=False):
            member.ask("read", share)

    def finish(self) -> ScanResult:
        """Waits until everything has been read."""
        if self._here is not None:
            return self._here.read(self._parts)
        found: list[ScanResult] = [member.answer() for member in self._members]
        firsts = {place: at_ms for result in found for place, at_ms in result.firsts.items()}
        keys = {place: some for result in found for place, some in result.keys.items()}
        return ScanResult(sum(result.foreign for result in found), firsts, keys)

    def compare(self, outbox: SpillIndex, context: AbsenceContext) -> Findings:
        """Compares all events; each process takes a share of the buckets, including this one."""
        hands = len(self._members) + 1
        if self._here is not None:
            return compare_share(BucketShare(range(BUCKETS), outbox, [self._here.pieces()], context))
        readers: list[SpillIndex] = self._all("pieces")
        for number, member in enumerate(self._members, start=1):
            member.ask("compare", BucketShare(range(number, BUCKETS, hands), outbox, readers, context))
        found = compare_share(BucketShare(range(0, BUCKETS, hands), outbox, readers, context))
        for member in self._members:
            found.include(member.answer())
        return found

    def check_order(self) -> Findings:
        """Checks the order of each key, and whether its records lie in its partition."""
        if self._here is not None:
            return self._here.check_order(self._here.firsts())
        firsts = {partition: first for some in self._all("firsts") for partition, first in some.items()}
        found = Findings()
        for each in self._all("check_order", firsts):
            found.include(each)
        return found

    def close(self) -> None:
        """Ends the workers at once; they hold nothing that is needed."""
        for member in self._members:
            member.kill()
        for member in self._members:
            member.end()
        self._closing.close()

    def _all(self, question: str, *given: Any) -> list[Any]:  # noqa: ANN401 - the arguments of any method
        for member in self._members:
            member.ask(question, *given)
        return [member.answer() for member in self._members]

    def _reader_of(self, part: PartitionScan) -> int:
        """Returns the reader of a place; a new place goes to the one with the least work."""
        if part.place not in self._shares:
            self._shares[part.place] = min(range(len(self._weights)), key=self._weights.__getitem__)
        return self._shares[part.place]


def _weight(part: PartitionScan) -> int:
    return part.span.end - part.span.start


class _Worker:
    def __init__(self, own: IO[bytes], files: Sequence[IO[bytes]]) -> None:
        self._link, theirs = Pipe()
        shared = [file.fileno() for file in files]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tailrace.verify.workers", str(theirs.fileno()), str(own.fileno())],
            stdin=subprocess.PIPE,  # never written to: when it is closed, the worker knows that this process has ended
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno(), *shared],
            process_group=0,  # Ctrl-C is handled by this process, which ends the workers
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)},
        )
        theirs.close()

    def ask(self, what: str, *given: Any) -> None:  # noqa: ANN401 - the arguments of any method
        self.send((what, given))

    def send(self, given: object) -> None:
        try:
            self._link.send(given)
        except OSError:
            raise self._lost() from None

    def answer(self) -> Any:  # noqa: ANN401 - the result of any method
        try:
            done, found = self._link.recv()
        except (EOFError, OSError):
            raise self._lost() from None
        if done:
            return found
        if isinstance(found, TailraceError):
            raise found
        raise RuntimeError(found)

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> None:
        # A process that hangs in the kernel ends later; it must not hide the error that is being raised.
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(ENDING_SECONDS)
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._link.close()

    def _lost(self) -> SourceError:
        try:
            code = self._process.wait(ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            how = "does not respond"
        else:
            how = f"has ended by signal {-code}" if code < 0 else f"has ended with code {code}"
        return SourceError(
            f"a process that read topics {how}",
            why="It may have run out of memory. What it had read is lost, so there is no result.",
            remedy="Run it again. With --jobs 1 there is only one process, which is slower and needs less memory.",
        )


def main(link: Connection, spill: int) -> None:
    threading.Thread(target=_end_with_the_other, daemon=True).start()
    logging.getLogger("librdkafka").setLevel(logging.CRITICAL)
    with seldom_collected(), suppress(EOFError, OSError):
        settings: ScanSettings = link.recv()
        reader = TopicReader(settings, os.fdopen(spill, "wb"))
        while True:
            _serve(link, reader)


def _serve(link: Connection, reader: TopicReader) -> None:
    what, given = link.recv()
    try:
        answer: Any = compare_share(*given) if what == "compare" else getattr(reader, what)(*given)
    except TailraceError as error:
        link.send((False, error))
    except Exception:  # noqa: BLE001 - a bug is reported by the main process
        link.send((False, traceback.format_exc()))
    else:
        failpoints.reached(f"verify-{what}")
        link.send((True, answer))


def _end_with_the_other() -> None:
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    main(Connection(int(sys.argv[1])), int(sys.argv[2]))
