"""Several processes that read topics at once, for one comparison. This one reads the outbox meanwhile.

They are processes of their own, started anew and not forked: Kafka's client has threads, and a fork would copy their
locks, but not them. Each is told what to do through a socket, and hands back what it found; records stay in its spool,
whose file all others can look into, too. One that dies, or tells of an error, ends the comparison with an error: a
verdict is only given on what all of them have read. None outlives this process, whatever ends that (`crew_member.py`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import Pipe
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from tailrace.errors import SourceError, TailraceError
from tailrace.verify.compare import AbsenceContext, Findings
from tailrace.verify.spill import BUCKETS, SpillIndex, temporary_file
from tailrace.verify.topic_reader import BucketShare, ScanSettings, TopicReader, compare_share
from tailrace.verify.topic_scan import PartitionScan, ScanResult

ENDING_SECONDS = 10.0


class WorkerPool:
    """`readers` processes beside this one; with none of them, topics are read here, when their end is waited for."""

    def __init__(self, readers: int) -> None:
        self._closing = ExitStack()
        self.outbox, *self._files = [self._closing.enter_context(temporary_file()) for _ in range(1 + max(readers, 1))]
        """A file for what the outbox holds; the readers see it, too."""
        self._members: list[_Worker] = []
        self._here: TopicReader | None = None
        self._parts: list[PartitionScan] = []
        self._shares: dict[int, int] = {}
        """Which reader has a place, for good: it knows what came before."""
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

    def begin(self, errand: ScanSettings) -> None:
        if not self._members:
            self._here = TopicReader(errand, self._files[0])
        for member in self._members:
            member.tell(errand)

    def start(self, parts: Sequence[PartitionScan]) -> None:
        """Has them read. One reading at a time."""
        self._parts = list(parts)
        given: list[list[PartitionScan]] = [[] for _ in self._files]
        # The large ones first, so that the small ones make up the difference.
        for part in sorted(parts, key=_weight, reverse=True):
            reader = self._reader_of(part)
            self._weights[reader] += _weight(part)
            given[reader].append(part)
        for member, share in zip(self._members, given, strict=False):
            member.ask("read", share)

    def finish(self) -> ScanResult:
        """Waits until all has been read."""
        if self._here is not None:
            return self._here.read(self._parts)
        found: list[ScanResult] = [member.answer() for member in self._members]
        firsts = {place: at_ms for told in found for place, at_ms in told.firsts.items()}
        keys = {place: some for told in found for place, some in told.keys.items()}
        return ScanResult(sum(told.foreign for told in found), firsts, keys)

    def compare(self, outbox: SpillIndex, ground: AbsenceContext) -> Findings:
        """All events: each process takes a part of the buckets, and this one, too."""
        hands = len(self._members) + 1
        if self._here is not None:
            return compare_share(BucketShare(range(BUCKETS), outbox, [self._here.pieces()], ground))
        readers: list[SpillIndex] = self._all("pieces")
        for number, member in enumerate(self._members, start=1):
            member.ask("compare", BucketShare(range(number, BUCKETS, hands), outbox, readers, ground))
        found = compare_share(BucketShare(range(0, BUCKETS, hands), outbox, readers, ground))
        for member in self._members:
            found.include(member.answer())
        return found

    def check_order(self) -> Findings:
        """The order of each key, and whether its records lie in its partition."""
        if self._here is not None:
            return self._here.check_order(self._here.firsts())
        firsts = {partition: first for some in self._all("firsts") for partition, first in some.items()}
        found = Findings()
        for each in self._all("check_order", firsts):
            found.include(each)
        return found

    def close(self) -> None:
        """Ends them all, whatever they do: they have nothing that anybody would miss."""
        for member in self._members:
            member.kill()
        for member in self._members:
            member.end()
        self._closing.close()

    def _all(self, question: str, *given: Any) -> list[Any]:  # noqa: ANN401 - whatever the method takes
        for member in self._members:
            member.ask(question, *given)
        return [member.answer() for member in self._members]

    def _reader_of(self, part: PartitionScan) -> int:
        """The one that has least to do, for a place that is new."""
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
            [sys.executable, "-P", "-m", "tailrace.verify.worker_main", str(theirs.fileno()), str(own.fileno())],
            stdin=subprocess.PIPE,  # never written to: its end tells that this process has ended
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno(), *shared],
            process_group=0,  # Ctrl-C is for this process, which ends the others
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)},
        )
        theirs.close()

    def ask(self, what: str, *given: Any) -> None:  # noqa: ANN401 - whatever the method takes
        self.tell((what, given))

    def tell(self, given: object) -> None:
        try:
            self._link.send(given)
        except OSError:
            raise self._lost() from None

    def answer(self) -> Any:  # noqa: ANN401 - whatever the method gives
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
        # One that the kernel holds on to ends when it lets go; an error that brought us here is not to be lost over it.
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(ENDING_SECONDS)
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._link.close()

    def _lost(self) -> SourceError:
        try:
            code = self._process.wait(ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            how = "answers no more"
        else:
            how = f"has ended by signal {-code}" if code < 0 else f"has ended with code {code}"
        return SourceError(
            f"a process that read topics {how}",
            why="Perhaps there was too little memory for it; what it had read is lost, and nothing can be said.",
            remedy="Run it again; with --jobs 1 there is only one process, which is slower and takes less memory.",
        )
