"""A small parent process of one server that ends the server and removes its files when the owner process dies.

Run as a script, not imported: `python -I -S reaper.py OWNER_PID RUN_DIR`. It starts the server as its child and is the
*subreaper* of all its descendants: Postgres puts each backend into its own session, so no process group contains
them, but when the postmaster dies they become the reaper's children and are killed. It watches the owner through a
pidfd. When the owner has died, it ends the server and removes the run directory. The server dies with the reaper
(PDEATHSIG).

Commands are JSON lines on stdin: `run` (one program at a time), `close`, and `detach` (run on without an owner until
SIGTERM, which shuts the server down). Replies on stdout: `pid`, `exit`, `detached`. It imports only light modules of
the standard library.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
QUIT_GRACE = 3.0  # for the server to remove its shared memory after its owner died; then SIGKILL
STOP_GRACE = 30.0  # for a shutdown: Postgres writes a checkpoint first
EXEC_FAILED = 127

libc = ctypes.CDLL(None, use_errno=True)


class Reaper:
    def __init__(self, owner: int, run_dir: str) -> None:
        self.owner = owner
        self.run_dir = run_dir
        self.child = 0
        self.stop_signal = self.quit_signal = signal.SIGKILL
        self.commands = b""
        self.asked_to_stop = False
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.woken, waker = os.pipe()
        os.set_blocking(self.woken, False)
        os.set_blocking(waker, False)
        signal.set_wakeup_fd(waker)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self.on_term)

    def on_term(self, *_: object) -> None:
        self.asked_to_stop = True

    def watch(self) -> None:
        """Handles commands, the ends of children and the end of the owner."""
        owner_fd = self.open_owner()
        listening = True
        while not self.asked_to_stop:
            watched = [self.woken]
            if listening:
                watched.append(0)
            if self.owner and owner_fd is not None:
                watched.append(owner_fd)
            # Without a pidfd (an old kernel) the parent's pid is read twice a second.
            timeout = 0.5 if self.owner and owner_fd is None else None
            ready, _, _ = select.select(watched, [], [], timeout)
            if self.woken in ready:
                os.read(self.woken, 4096)
                self.reap()
            # Commands before the owner's end: the last one may be `detach`.
            if 0 in ready:
                listening = self.read_commands()
            if self.owner and (not listening or owner_fd in ready or os.getppid() != self.owner):
                self.finish(self.quit_signal, QUIT_GRACE)
        self.finish(self.stop_signal, STOP_GRACE)

    def open_owner(self) -> int | None:
        try:
            return os.pidfd_open(self.owner)
        except OSError:
            return None

    def read_commands(self) -> bool:
        """Carries out the received commands; returns False at the end of stdin."""
        data = os.read(0, 65536)
        self.commands += data
        *lines, self.commands = self.commands.split(b"\n")
        for line in lines:
            command = json.loads(line)
            if command["op"] == "close":
                self.finish(self.quit_signal, QUIT_GRACE)
            elif command["op"] == "detach":
                self.owner = 0
                self.answer({"detached": True})
            else:
                self.run(command)
        return bool(data)

    def run(self, command: dict) -> None:  # type: ignore[type-arg]
        self.stop_signal = command["stop_signal"]
        self.quit_signal = command["quit_signal"]
        reaper = os.getpid()
        log = os.open(command["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.child = os.fork()
        if self.child == 0:
            try:
                become(command, log, reaper)
            finally:
                os._exit(EXEC_FAILED)
        os.close(log)
        self.answer({"pid": self.child})

    def reap(self) -> None:
        """Waits for ended children; if the server is among them, kills its descendants and reports its exit."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.child:
                self.sweep()
                self.child = 0
                self.answer({"exit": os.waitstatus_to_exitcode(status)})

    def sweep(self) -> None:
        """Kills all children until there are none: the children of a killed process become ours."""
        while True:
            for pid in children():
                kill(pid, signal.SIGKILL)
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                return

    def finish(self, first_signal: int, grace: float) -> None:
        """Ends the server, with `first_signal` and then SIGKILL, removes the run directory and exits."""
        if self.child:
            kill(self.child, first_signal)
            kill(self.child, signal.SIGCONT)  # a paused server would not get the signal
            deadline = time.monotonic() + grace
            while self.child and (left := deadline - time.monotonic()) > 0:
                if select.select([self.woken], [], [], left)[0]:
                    os.read(self.woken, 4096)
                    self.reap()
        self.sweep()
        import shutil

        shutil.rmtree(self.run_dir, ignore_errors=True)
        os._exit(0)

    def answer(self, message: dict) -> None:  # type: ignore[type-arg]
        try:
            os.write(1, json.dumps(message).encode() + b"\n")
        except OSError:
            pass  # nobody reads the replies of a detached reaper


def become(command: dict, log: int, reaper: int) -> None:  # type: ignore[type-arg]
    """Executes the server in the forked child."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.umask(0o077)
    if command["uid"] is not None:
        os.setgroups([])
        os.setgid(command["gid"])
        os.setuid(command["uid"])
    # After setuid, which clears it. The reaper may have died before this took effect, so check once.
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != reaper:
        return
    try:
        os.chdir(command["cwd"])
        os.execve(command["argv"][0], command["argv"], command["env"])  # noqa: S606
    except OSError as exc:
        os.write(2, f"cannot run {command['argv'][0]}: {exc.strerror}\n".encode())


def children() -> list[int]:
    """Returns the pids of our children, ended or not, from /proc: there is no system call for it."""
    me = os.getpid()
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                    after_name = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            if int(after_name[1]) == me:
                found.append(int(name))
    return found


def kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


if __name__ == "__main__":
    Reaper(int(sys.argv[1]), sys.argv[2]).watch()
