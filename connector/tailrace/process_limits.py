"""Limits of this process that make a server look as if it were away."""

from __future__ import annotations

import errno
import os

NO_FILES = "This process may open no more files, so it connects to nothing: raise its limit (ulimit -n, LimitNOFILE=)."


def out_of_files() -> str:
    """The reason why nothing can be connected to, if this process may open no more files; else empty."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return NO_FILES if error.errno in (errno.EMFILE, errno.ENFILE) else ""
    return ""
