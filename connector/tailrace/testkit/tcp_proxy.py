"""`TcpProxy`: a TCP proxy that can cut, hold, slow down and black-hole connections.

It listens on one fixed port and forwards to a target. One thread owns all sockets and all state; a method runs in that
thread and returns when it has taken effect.

Faults, some of them per direction: `cut` (resets open connections), `refuse` (stops listening), `blackhole`
(connections stay open and nothing moves, not even a close, as behind a dropped route), `hold` (takes bytes and keeps
them), `cut_after` (forwards a number of bytes, then closes), `throttle`.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Self

from tailrace.testkit.proxied_connection import Direction, Flow, ProxiedConnection
from tailrace.testkit.stack.ports import HOST, can_bind, free_port
from tailrace.testkit.stack.waiting import StackError

CALL_TIMEOUT = 30.0
BACKLOG = 128


class TcpProxy:
    """Forwards `port` on the loopback address to `target`; started on entering."""

    def __init__(self, target: tuple[str, int] | None = None, *, port: int | None = None) -> None:
        self.port = port or free_port()
        self.host = HOST
        self._target = target
        self._listener: socket.socket | None = None
        self._pairs: set[ProxiedConnection] = set()
        self._modes = dict.fromkeys(Direction, Flow.FORWARD)
        self._moved = dict.fromkeys(Direction, 0)
        self._cut_at: dict[Direction, int] = {}
        self._rate: float | None = None
        self._spent_until = dict.fromkeys(Direction, 0.0)
        self._cuts = 0
        self._calls: deque[tuple[Callable[[], None], threading.Event]] = deque()
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._thread = threading.Thread(target=self._run, name=f"proxy-{self.port}", daemon=True)
        self._ended = False

    def __enter__(self) -> Self:
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread.start()
        self.accept()
        return self

    def __exit__(self, *exc: object) -> None:
        self._call(self._end)
        self._thread.join(CALL_TIMEOUT)
        self._selector.close()
        self._woken.close()
        self._waker.close()

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def connections(self) -> int:
        """How many connections are open through the proxy."""
        return len(self._pairs)

    @property
    def cuts(self) -> int:
        """How many times connections were cut, by `cut` or when `cut_after` came due."""
        return self._cuts

    def moved(self, direction: Direction) -> int:
        """How many bytes were forwarded in this direction (one, not BOTH) since the start."""
        return self._moved[direction]

    def point_at(self, host: str, port: int) -> None:
        """Forwards new connections to another target; open ones stay where they are."""
        self._call(lambda: setattr(self, "_target", (host, port)))

    def cut(self) -> None:
        """Resets every open connection; new ones are accepted."""
        self._call(self._cut)

    def refuse(self) -> None:
        """Stops listening: new connections are refused, open ones go on."""
        self._call(self._close_listener)

    def accept(self) -> None:
        """Listens (again) on the same port."""
        self._call(self._listen)
        if self._listener is None:
            raise StackError(
                f"the proxy cannot listen on port {self.port}",
                why="another process does" if not can_bind(self.port) else "",
            )

    def blackhole(self, *directions: Direction) -> None:
        """Stops moving bytes in these directions (both by default), without an error to anybody."""
        self._call(lambda: self._set(directions, Flow.SILENT))

    def hold(self, *directions: Direction) -> None:
        """Keeps the bytes of these directions (both by default) until `release`."""
        self._call(lambda: self._set(directions, Flow.HOLD))

    def release(self) -> None:
        """Forwards what `hold` kept, in order, and what follows."""
        held = tuple(way for way, mode in self._modes.items() if mode is Flow.HOLD)
        if held:
            self._call(lambda: self._set(held, Flow.FORWARD))

    def cut_after(self, n_bytes: int, direction: Direction) -> None:
        """Forwards exactly `n_bytes` more in this direction, then closes all connections, once."""

        def arm() -> None:
            self._cut_at[direction] = self._moved[direction] + n_bytes

        self._call(arm)

    def throttle(self, bytes_per_second: float | None) -> None:
        """Limits the rate of each direction; None removes the limit."""
        self._call(lambda: setattr(self, "_rate", bytes_per_second))

    def restore(self) -> None:
        """Removes all faults: forwards, listens, without a limit."""

        def reset() -> None:
            self._set((), Flow.FORWARD)
            self._cut_at.clear()
            self._rate = None

        self._call(reset)
        self.accept()

    # Everything below runs in the proxy's thread, except `_call`.

    def _call(self, action: Callable[[], None]) -> None:
        done = threading.Event()
        self._calls.append((action, done))
        self._waker.send(b"!")
        if not done.wait(CALL_TIMEOUT):
            raise StackError("the proxy does not respond", remedy="enter the proxy (`with`) before using it")

    def _run(self) -> None:
        while not self._ended:
            self._forward_ends()
            pause = self._update_interest()
            for key, events in self._selector.select(pause):
                if key.fileobj is self._woken:
                    self._run_calls()
                elif key.fileobj is self._listener:
                    self._accept_client()
                else:
                    pair: ProxiedConnection = key.data
                    if pair in self._pairs:
                        self._serve(pair, key.fileobj, events)  # type: ignore[arg-type]

    def _run_calls(self) -> None:
        self._woken.recv(4096)
        while self._calls:
            action, done = self._calls.popleft()
            action()
            done.set()

    def _accept_client(self) -> None:
        try:
            client, _ = self._listener.accept() if self._listener else (None, None)
        except OSError:
            return  # the client has gone already
        if client is None:
            return
        if self._target is None:
            client.close()
            return
        self._pairs.add(ProxiedConnection(client, self._target))

    def _update_interest(self) -> float | None:
        """Registers the events of all sockets; returns how long the selector may wait at most."""
        now = time.monotonic()
        wake_at = None
        for pair in self._pairs:
            rested = {way: self._rate is None or self._spent_until[way] <= now for way in Direction}
            for sock, wanted in pair.interest(self._modes, rested).items():
                self._register(sock, wanted, pair)
            waiting = [self._spent_until[way] for way in Direction if not rested[way] and pair.pending(way)]
            wake_at = min(waiting + ([wake_at] if wake_at is not None else []), default=None)
        return None if wake_at is None else max(0.0, wake_at - now)

    def _register(self, sock: socket.socket, wanted: int, pair: ProxiedConnection | None) -> None:
        known = self._selector.get_map().get(sock)
        if known is None:
            if wanted:
                self._selector.register(sock, wanted, pair)
        elif not wanted:
            self._selector.unregister(sock)
        elif known.events != wanted:
            self._selector.modify(sock, wanted, pair)

    def _serve(self, pair: ProxiedConnection, sock: socket.socket, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                self._write(pair, sock)
            if events & selectors.EVENT_READ and pair in self._pairs:
                pair.read(sock)
        except OSError:
            self._drop(pair, reset=True)

    def _forward_ends(self) -> None:
        """Runs each round, not only after a read: a direction released from a hold may have ended long ago."""
        for pair in tuple(self._pairs):
            try:
                if pair.finished(self._modes):
                    self._drop(pair)
            except OSError:
                self._drop(pair, reset=True)

    def _write(self, pair: ProxiedConnection, sock: socket.socket) -> None:
        if pair.connecting:
            pair.connected()
            return
        way = pair.way_to(sock)
        if self._modes[way] is not Flow.FORWARD:
            return  # changed since the socket was polled
        limit = self._cut_at[way] - self._moved[way] if way in self._cut_at else None
        if self._rate is not None:
            # Small portions make a steady trickle instead of rare bursts.
            portion = max(1, int(self._rate / 20))
            limit = portion if limit is None else min(limit, portion)
        sent = pair.write(way, limit)
        self._moved[way] += sent
        if self._rate is not None:
            self._spent_until[way] = max(self._spent_until[way], time.monotonic()) + sent / self._rate
        if way in self._cut_at and self._moved[way] >= self._cut_at[way]:
            del self._cut_at[way]
            # A plain close: a reset could make the receiver lose bytes that have arrived.
            self._cut(reset=False)

    def _set(self, directions: tuple[Direction, ...], mode: Flow) -> None:
        for way in directions or tuple(Direction):
            self._modes[way] = mode

    def _cut(self, reset: bool = True) -> None:
        self._cuts += 1
        for pair in tuple(self._pairs):
            self._drop(pair, reset)

    def _drop(self, pair: ProxiedConnection, reset: bool = False) -> None:
        for sock in (pair.client, pair.server):
            self._register(sock, 0, None)
        pair.close(reset)
        self._pairs.discard(pair)

    def _listen(self) -> None:
        if self._listener is not None:
            return
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setblocking(False)
        try:
            listener.bind((HOST, self.port))
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            return
        self._listener = listener
        self._selector.register(listener, selectors.EVENT_READ)

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None

    def _end(self) -> None:
        self._close_listener()
        for pair in tuple(self._pairs):
            self._drop(pair, reset=True)
        self._ended = True
