"""`MongoServer`: a real MongoDB for the demo, the tests and the benchmark, as a replica set of one.

A context manager like `PostgresServer`, with the same powers when it is local. A replica set, because only that has
transactions and change streams. It is ready when it is a primary that can be written to and a write has reached the
majority.

A client that is given `replicaSet` asks the server for its members and goes to the addresses it is told, whatever
address it was given. So for a proxy in front the server must tell of the proxy: `advertise`. Past any proxy goes
`direct_uri`, which asks for no members; so it is in Docker, where the server cannot know its address outside.
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
from tailrace.testkit.stack.cache import Progress, quiet
from tailrace.testkit.stack.errors import StackError
from tailrace.testkit.stack.paths import new_folder, new_run_dir, private_file
from tailrace.testkit.stack.ports import HOST, free_port
from tailrace.testkit.stack.process import LocalProcess
from tailrace.testkit.stack.server import StackServer
from tailrace.testkit.stack.server_choice import ServerChoice, choose

if TYPE_CHECKING:
    from pymongo import MongoClient

VARIABLE = "TAILRACE_STACK_MONGO"
ASK_TIMEOUT_MS = 2000
CLIENT_TIMEOUT_MS = 10_000
MAJORITY = {"w": "majority", "wtimeout": ASK_TIMEOUT_MS}
ALREADY_INITIALIZED = 23
ADMIN = "tailrace"

Document = dict[str, Any]
Role = str | Mapping[str, str]


def answers(uri: str, timeout: float) -> bool:
    """Whether there is a primary now; without the driver, whether something listens."""
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
    """MongoDB with server parameters `settings` on top of ours; started on entering.

    With `auth` it wants a password from everyone; `uri` has the administrator's.
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
            raise StackError(
                "only a local MongoDB can be started with users", remedy="ask for it with source=Source.LOCAL"
            )
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
        """The port that clients' connections arrive at: what a proxy must point to."""
        if not self._port:
            raise StackError("this MongoDB has no port yet", remedy="start it first")
        return self._port

    @property
    def uri(self) -> str:
        """For clients that find the members of the replica set: through the proxy, when one is advertised."""
        return self._uri(ADMIN, self._password)

    @property
    def direct_uri(self) -> str:
        """For clients that stay with this one server and go past any proxy."""
        if self.choice is ServerChoice.ADDRESS:
            return self._address
        return self._address_of(self.port, "directConnection=true", ADMIN, self._password)

    @property
    def version(self) -> str:
        """As the server says it: 6.0.5."""
        if not self._version:
            with self.client() as client:
                self._version = str(client.server_info()["version"])
        return self._version

    def client(self, **options: Any) -> MongoClient[Document]:  # noqa: ANN401 - whatever MongoClient takes
        """A client of the administrator's, past any proxy. The caller closes it."""
        from pymongo import MongoClient

        return MongoClient(self.direct_uri, **{"serverSelectionTimeoutMS": CLIENT_TIMEOUT_MS, **options})

    def create_user(self, name: str, password: str, roles: Sequence[Role]) -> str:
        """A new user with these roles; what they connect with."""
        with self.client() as client:
            client.admin.command("createUser", name, pwd=password, roles=list(roles))
        return self._uri(name, password)

    def advertise(self, port: int) -> None:
        """Let clients of `uri` come by `port` of a proxy.

        The server looks for itself there, now and whenever it starts: the proxy must point here then, and be open.
        """
        if not self.local:
            raise StackError("only a local MongoDB can be put behind a proxy", remedy="start it with Source.LOCAL")
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
            # Members of a replica set know each other by this key; one member needs it too.
            private_file(self._key, secrets.token_hex(32), None)
        new_folder(self.data_dir, None)

    def _settle(self) -> Sequence[int]:
        # A server that failed to bind has written no more than empty tables: nothing to undo.
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

    def _silence(self) -> str | None:
        from pymongo.errors import PyMongoError

        try:
            with self.client(serverSelectionTimeoutMS=ASK_TIMEOUT_MS, socketTimeoutMS=2 * ASK_TIMEOUT_MS) as client:
                hello = client.admin.command("hello")
                if self.choice is ServerChoice.ADDRESS:
                    return None if {"setName", "msg"} & hello.keys() else "it is not a replica set"
                return self._unready(client, hello)
        except PyMongoError as exc:
            return str(exc)

    def _unready(self, client: MongoClient[Document], hello: Document) -> str | None:
        """Why our own server cannot be used yet; does the next thing that it needs for that."""
        if "setName" not in hello:
            return self._initiate(client)
        if hello["setName"] != self.set_name:
            return f"the server on port {self.port} belongs to {hello['setName']}"
        if not hello["isWritablePrimary"]:
            return "it is no primary yet"
        if self._auth and not self._password:
            # The first user can be made by anybody on this machine, and makes the last one who could.
            password = secrets.token_urlsafe(16)
            client.admin.command("createUser", ADMIN, pwd=password, roles=["root"])
            self._password = password
            return "its administrator was made just now"
        # A note in the oplog: a write like any other, but it leaves no database behind.
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
                return f"it cannot find itself by port {self._advertised_port}: the proxy there must let it through"
        return "it was initiated just now"
