"""A bell between threads that a `poll` can hear beside a socket."""

from __future__ import annotations

import os


class Wakeup:
    """Set from any thread or signal handler; stays set until cleared."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        return self._fd

    def set(self) -> None:
        os.eventfd_write(self._fd, 1)

    def clear(self) -> None:
        try:
            os.eventfd_read(self._fd)
        except BlockingIOError:
            pass  # it was not set

    def close(self) -> None:
        os.close(self._fd)
