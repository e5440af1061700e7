"""Faults of servers and of the links to them."""

from __future__ import annotations

import socket
import time

import psycopg
from pymongo.errors import AutoReconnect, PyMongoError

from helpers.chaos.schedule import PlannedFault
from helpers.chaos.world import World
from helpers.shop import Shop
from tailrace.testkit.stack import wait_until
from tailrace.testkit.tcp_proxy import Direction, TcpProxy

CONNECT_SECONDS = 120
"""How long a link may be without connections: what uses it may be just starting."""
SLOW_BYTES = 60_000
"""Bytes a second in each direction of a slow link."""


def kill_server(world: World, fault: PlannedFault) -> str:
    """Kills a server with SIGKILL, and starts it again after a while."""
    server = world.servers[fault.target]
    server.kill()
    try:
        assert not server.running
        time.sleep(fault.hold)
    finally:
        server.start()
    return ""


def stop_server(world: World, fault: PlannedFault) -> str:
    """Shuts a server down in order, and starts it again after a while."""
    server = world.servers[fault.target]
    try:
        server.process.stop(timeout=120)
        assert not server.running
        time.sleep(fault.hold)
    finally:
        if not server.running:
            server.start()
    return ""


def hang_server(world: World, fault: PlannedFault) -> str:
    """Suspends a server: connections stay open, nothing answers."""
    server = world.servers[fault.target]
    server.pause()
    try:
        time.sleep(fault.hold)
    finally:
        server.resume()
    return ""


def end_walsender(world: World, fault: PlannedFault) -> str:
    """Ends the replication session of the connector, as an administrator does."""
    shop = world.orders.service
    assert isinstance(shop, Shop)

    def walsender() -> int:
        rows = shop.execute("SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s", shop.slot)
        return int(rows[0][0] or 0) if rows else 0

    def ended() -> bool:
        pid = walsender()
        return bool(pid) and shop.execute("SELECT pg_terminate_backend(%s)", pid) == [(True,)]

    before = wait_until(walsender, CONNECT_SECONDS, what="a walsender")
    wait_until(ended, CONNECT_SECONDS, what="the end of the walsender")
    wait_until(lambda: walsender() != before, CONNECT_SECONDS, what="the walsender to be gone")
    return ""


def step_down(world: World, fault: PlannedFault) -> str:
    """Makes the primary step down; it is elected again, since it is the only member."""
    seconds = max(1, int(fault.hold))
    with world.mongo.client() as client:
        before = client.admin.command("hello")["electionId"]
        try:
            client.admin.command("replSetStepDown", seconds, secondaryCatchUpPeriodSecs=0, force=True)
        except AutoReconnect:
            pass  # the server may close the connection instead of answering; the next election shows that it happened

        def again() -> bool:
            try:
                hello = client.admin.command("hello")
            except PyMongoError:
                return False
            return bool(hello["isWritablePrimary"]) and hello["electionId"] != before

        wait_until(again, 120, what="the next election")
    return ""


def cut(world: World, fault: PlannedFault) -> str:
    """Resets all connections of a link."""
    proxy = connected(world, fault)
    cuts = proxy.cuts
    open_before = proxy.connections
    proxy.cut()
    assert proxy.cuts == cuts + 1
    return f"{open_before} connections"


def cut_after_bytes(world: World, fault: PlannedFault) -> str:
    """Closes the connections after a number of bytes, usually in the middle of a message."""
    proxy = connected(world, fault)
    cuts = proxy.cuts
    way = Direction.TO_SERVER if fault.choice < 0.5 else Direction.TO_CLIENT
    count = int(fault.choice * 20_000) + 1
    proxy.cut_after(count, way)
    wait_until(lambda: proxy.cuts > cuts, CONNECT_SECONDS, what=f"{count} bytes {way.value} of {fault.target}")
    return f"{count} bytes {way.value}"


def refuse(world: World, fault: PlannedFault) -> str:
    """Resets all connections and refuses new ones for a while."""
    proxy = connected(world, fault)
    try:
        proxy.refuse()
        proxy.cut()
        with socket.socket() as client:
            assert client.connect_ex((proxy.host, proxy.port)) != 0, "a new connection was not refused"
        time.sleep(fault.hold)
        assert proxy.connections == 0
    finally:
        proxy.restore()
    return ""


def blackhole(world: World, fault: PlannedFault) -> str:
    """Moves no byte of a link for a while; connections stay open."""
    return _silent(connected(world, fault), fault, *Direction)


def half_open(world: World, fault: PlannedFault) -> str:
    """Moves no byte in one direction for a while."""
    way = Direction.TO_SERVER if fault.choice < 0.5 else Direction.TO_CLIENT
    return _silent(connected(world, fault), fault, way)


def _silent(proxy: TcpProxy, fault: PlannedFault, *ways: Direction) -> str:
    try:
        proxy.blackhole(*ways)
        before = [proxy.moved(way) for way in ways]
        time.sleep(fault.hold)
        assert [proxy.moved(way) for way in ways] == before, "bytes have moved"
    finally:
        proxy.restore()
    return ", ".join(way.value for way in ways)


def slow(world: World, fault: PlannedFault) -> str:
    """Limits a link to a small rate for a while."""
    proxy = connected(world, fault)
    try:
        proxy.throttle(SLOW_BYTES)
        began, before = time.monotonic(), proxy.moved(Direction.TO_SERVER)
        time.sleep(fault.hold)
        moved, seconds = proxy.moved(Direction.TO_SERVER) - before, time.monotonic() - began
        assert moved <= SLOW_BYTES * (seconds + 1) + 100_000, f"{moved} bytes in {seconds:.1f} s"
    finally:
        proxy.restore()
    return f"{moved} bytes"


def connected(world: World, fault: PlannedFault) -> TcpProxy:
    """Returns the proxy of a server once connections are open through it."""
    proxy = world.proxies[fault.target]
    wait_until(lambda: proxy.connections > 0, CONNECT_SECONDS, what=f"a connection to {fault.target}")
    return proxy


UNAVAILABLE = (psycopg.OperationalError, PyMongoError, OSError)
"""What data faults see while one of these faults is active."""
