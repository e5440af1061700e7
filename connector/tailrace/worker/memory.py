"""Memory settings of a process that runs a pipeline."""

from __future__ import annotations

import ctypes
import gc

M_ARENA_MAX = -8


def use_one_heap() -> None:
    """Makes all threads share one heap: records are allocated by one thread and freed by another.

    With glibc's heap per thread, freed memory would not be available to the other threads.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc only
    if set_option is not None:
        set_option(M_ARENA_MAX, 1)


def reduce_garbage_collection() -> None:
    """Runs the cyclic collector rarely.

    Events are freed by reference counts; the collector would only traverse each batch again and again. What exists now
    stays for the life of the process, so it is excluded.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 20, 100)
