"""A process that reads topics for another one's comparison: `python -m tailrace.verify.worker_main LINK SPOOL`.

LINK and SPOOL are the numbers of files that it inherits. It does what it is asked, one thing after the other, and ends
when there is nobody left to ask, whatever it is doing then: the other's end is that of standard input.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from tailrace import failpoints
from tailrace.errors import TailraceError
from tailrace.verify.topic_reader import ScanSettings, TopicReader, compare_share, seldom_collected


def main(link: Connection, spool: int) -> None:
    threading.Thread(target=_end_with_the_other, daemon=True).start()
    logging.getLogger("librdkafka").setLevel(logging.CRITICAL)
    with seldom_collected(), suppress(EOFError, OSError):
        errand: ScanSettings = link.recv()
        reader = TopicReader(errand, os.fdopen(spool, "wb"))
        while True:
            _serve(link, reader)


def _serve(link: Connection, reader: TopicReader) -> None:
    what, given = link.recv()
    try:
        answer: Any = compare_share(*given) if what == "compare" else getattr(reader, what)(*given)
    except TailraceError as error:
        link.send((False, error))
    except Exception:  # noqa: BLE001 - a bug is told where it can be seen
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
