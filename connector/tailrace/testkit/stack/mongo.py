"""`MongoServer`: a real MongoDB for the demo, the tests and the benchmarks, as a replica set of one.

Only a replica set has transactions and change streams. A local server can be killed, stopped, restarted and paused. It
is ready when it is a primary and a write has reached the majority.

A client with `replicaSet` asks the server for its members and connects to the addresses in the reply. So with a proxy
in front, the server must advertise the proxy's port (`advertise`). `direct_uri` bypasses any proxy, because it requests
no members. Docker uses it too: there the server cannot know its outside address.
"""

from __future__ import annotations

import secrets
import signal
import socket
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote_plus

from tailrace.errors import install_remedy
from tailrace.testkit.stack import containers, mongo_local
from tailrace.testkit.stack.paths import Progress, new_folder, new_run_dir, private_file, quiet
from tailrace.testkit.stack.ports import HOST, free_port
from tailrace.testkit.stack.process import LocalProcess
from tailrace.testkit.stack.server import ServerChoice, StackServer, choose
from tailrace.testkit.stack.waiting import StackError

if TYPE_CHECKING:
    from pymongo import MongoClient

VARIABLE = "TAILRACE_STACK_MONGO"
REQUEST_TIMEOUT_MS = 2000
CLIENT_TIMEOUT_MS = 10_000
MAJORITY = {"w": "majority", "wtimeout": REQUEST_TIMEOUT_MS}
ALREADY_INITIALIZED = 23
ADMIN = "tailrace"

Document = dict[str, Any]
Role = str | Mapping[str, str]


def answers(uri: str, timeout: float) -> bool:
    """Returns whether there is a primary; without the driver, whether something listens."""
    if find_spec("pymongo") is None:
        return _listens(uri, timeout)
    from pymongo import MongoClient
    from pymongo.errors import PyMongoError

    try:
        with MongoClient[Document](uri, serverSelectionTimeoutMS=int(timeout * 1000)) as client:
            return bool(client.admin.command("hello")["isWritablePrimary"])
    except PyMongoError:
        return False


def _listens(uri: str, timeout: float) -> bool:
    host, _, port = uri.partition("://")[2].rpartition("@")[2].partition("/")[0].partition(",")[0].rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout).close()
    except OSError:
        return False
    return True


class MongoServer(StackServer):
    """MongoDB with server parameters `settings` in addition to ours; started on entering.

    With `auth` every client needs a password; `uri` has the administrator's.
    """

    NAME = "MongoDB"
    VARIABLE = VARIABLE

    def __init__(
        self,
        *,
        settings: Mapping[str, str] | None = None,
        oplog_mb: int | None = None,
        auth: bool = False,
        choice: ServerChoice = ServerChoice.AUTO,
        progress: Progress = quiet,
    ) -> None:
        super().__init__(*choose(choice, VARIABLE), progress)
        if find_spec("pymongo") is None:
            raise StackError("the driver pymongo is not installed", remedy=install_remedy("mongo"))
        if auth and not self.local:
            raise StackError("only a local MongoDB can be started with users", remedy="use choice=ServerChoice.LOCAL")
        self.settings = dict(settings or {})
        self.set_name = mongo_local.new_set_name()
        self._oplog_mb = oplog_mb
        self._auth = auth
        self._password = ""
        self._host, self._port = HOST, 0
        self._advertised_port: int | None = None
        self._version = ""

    @property
    def host(self) -> str:
        return self._host

    @property
    def port(self) -> int:
        """The port that clients connect to: what a proxy must point to."""
        if not self._port:
            raise StackError("this MongoDB has no port yet", remedy="start it first")
        return self._port

    @property
    def uri(self) -> str:
        """For clients that discover the members of the replica set: through the proxy, if one is advertised."""
        return self._uri(ADMIN, self._password)

    @property
    def direct_uri(self) -> str:
        """For clients that connect to this one server and bypass any proxy."""
        if self.choice is ServerChoice.ADDRESS:
            return self._address
        return self._address_of(self.port, "directConnection=true", ADMIN, self._password)

    @property
    def version(self) -> str:
        """The version that the server reports, such as 6.0.5."""
        if not self._version:
            with self.client() as client:
                self._version = str(client.server_info()["version"])
        return self._version

    def client(self, **options: Any) -> MongoClient[Document]:  # noqa: ANN401 - what MongoClient takes
        """Returns a client of the administrator that bypasses any proxy. The caller closes it."""
        from pymongo import MongoClient

        return MongoClient(self.direct_uri, **{"serverSelectionTimeoutMS": CLIENT_TIMEOUT_MS, **options})

    def create_user(self, name: str, password: str, roles: Sequence[Role]) -> str:
        """Creates a user with these roles and returns their URI."""
        with self.client() as client:
            client.admin.command("createUser", name, pwd=password, roles=list(roles))
        return self._uri(name, password)

    def advertise(self, port: int) -> None:
        """Makes clients of `uri` connect to `port`, a proxy's.

        The server connects to itself there, now and at each start: the proxy must then be open and point here.
        """
        if not self.local:
            raise StackError("only a local MongoDB can be put behind a proxy", remedy="use choice=ServerChoice.LOCAL")
        with self.client() as client:
            config = client.admin.command("replSetGetConfig")["config"]
            me = client.admin.command("hello")["me"]
            config["version"] += 1
            for member in config["members"]:
                if member["host"] == me:
                    member["host"] = f"{self.host}:{port}"
            client.admin.command("replSetReconfig", config)
        self._advertised_port = port

    def _uri(self, user: str, password: str) -> str:
        if self.choice is ServerChoice.ADDRESS:
            return self._address
        if self._container is not None:
            return self.direct_uri
        return self._address_of(self._advertised_port or self.port, f"replicaSet={self.set_name}", user, password)

    def _address_of(self, port: int, options: str, user: str, password: str) -> str:
        login = f"{quote_plus(user)}:{quote_plus(password)}@" if password else ""
        return f"mongodb://{login}{self.host}:{port}/?{options}"

    def _use_address(self) -> None:
        from pymongo.uri_parser import parse_uri

        self._host, self._port = parse_uri(self._address)["nodelist"][0]

    def _create(self) -> None:
        self._progress(f"starting {self.NAME}")
        self._password, self._advertised_port = "", None
        self._process = LocalProcess("mongod", new_run_dir("mongo", None), stop_signal=signal.SIGTERM)
        if self._auth:
            # Members of a replica set authenticate with this key; a single member needs it too.
            private_file(self._key, secrets.token_hex(32), None)
        new_folder(self.data_dir, None)

    def _assign_ports(self) -> Sequence[int]:
        # A server that failed to bind has only written empty tables: nothing to undo.
        self._port = free_port()
        return [self._port]

    @property
    def _key(self) -> Path:
        return self.process.run_dir / "key"

    def _launch(self) -> None:
        options = mongo_local.options(self.set_name, self.settings, self._oplog_mb)
        argv = mongo_local.command(self.port, self.data_dir, self._key if self._auth else None, options)
        self.process.launch(argv, mongo_local.ENVIRONMENT)

    def _start_container(self) -> containers.RunningContainer:
        running = containers.start_mongo(mongo_local.options(self.set_name, self.settings, self._oplog_mb))
        self._host, self._port = running.host, running.port
        return running

    def _not_ready(self) -> str | None:
        from pymongo.errors import PyMongoError

        try:
            with self.client(
                serverSelectionTimeoutMS=REQUEST_TIMEOUT_MS, socketTimeoutMS=2 * REQUEST_TIMEOUT_MS
            ) as client:
                hello = client.admin.command("hello")
                if self.choice is ServerChoice.ADDRESS:
                    return None if {"setName", "msg"} & hello.keys() else "it is not a replica set"
                return self._unready(client, hello)
        except PyMongoError as exc:
            return str(exc)

    def _unready(self, client: MongoClient[Document], hello: Document) -> str | None:
        """Returns why our own server is not ready, after taking the next step towards it."""
        if "setName" not in hello:
            return self._initiate(client)
        if hello["setName"] != self.set_name:
            return f"the server on port {self.port} belongs to {hello['setName']}"
        if not hello["isWritablePrimary"]:
            return "it is not the primary yet"
        if self._auth and not self._password:
            # Without users, anybody on this machine may create the first one.
            password = secrets.token_urlsafe(16)
            client.admin.command("createUser", ADMIN, pwd=password, roles=["root"])
            self._password = password
            return "its administrator was just created"
        # A note in the oplog is a write like any other, but it creates no database.
        client.admin.command("appendOplogNote", 1, data={"by": ADMIN}, writeConcern=MAJORITY)
        return None

    def _initiate(self, client: MongoClient[Document]) -> str:
        from pymongo.errors import OperationFailure

        address = f"{self.host}:{self.port}" if self._container is None else f"localhost:{containers.MONGO_PORT}"
        try:
            client.admin.command("replSetInitiate", mongo_local.set_config(self.set_name, [address]))
        except OperationFailure as exc:
            if exc.code != ALREADY_INITIALIZED:
                raise
            if self._advertised_port:
                return f"it cannot reach itself at port {self._advertised_port}: the proxy there must let it through"
        return "it was just initiated"
