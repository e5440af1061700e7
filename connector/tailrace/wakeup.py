"""A thread-safe wakeup that can be polled together with sockets (eventfd)."""

from __future__ import annotations

import os
import weakref


class Wakeup:
    """A flag that any thread or signal handler may set; it stays set until cleared."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._close = weakref.finalize(self, os.close, self._fd)
        self._close.atexit = False  # threads may still set it while the process exits

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
        """Closes the file descriptor, which also happens when the object is no longer referenced."""
        self._close()
