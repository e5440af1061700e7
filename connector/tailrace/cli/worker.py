"""`tailrace worker`: runs any number of pipelines, each in its own process, with an HTTP port."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from tailrace.cli.http_option import HttpSettingsFile
from tailrace.cli.log_option import LogJson
from tailrace.cli.metrics_option import MetricsPrefix
from tailrace.errors import ConfigError, install_remedy
from tailrace.kafka.client import KafkaOptions
from tailrace.manager.manager import PipelineManager
from tailrace.manager.restarts import RestartPolicy
from tailrace.state.config_topic import ConfigTopic
from tailrace.worker import logs

if TYPE_CHECKING:
    from tailrace.api.port import PortProtection

HTTP_HELP = "The HTTP port, as PORT or HOST:PORT. Only this machine can reach the default host."
THREADS = 16
OPEN_FILES = 65_536
CLOSE_SECONDS = 4.5


def worker(
    folder: Path | None = typer.Argument(
        None, help="A folder with the files of pipelines, such as pipelines/. Changes are noticed within seconds."
    ),
    http: str = typer.Option("127.0.0.1:8083", "--http", metavar="[HOST:]PORT", help=HTTP_HELP),
    http_settings: HttpSettingsFile = None,
    bootstrap: str = typer.Option(
        "", "--bootstrap", help="Kafka servers of the config topic: pipelines can then be created over HTTP."
    ),
    kafka_setting: list[str] = typer.Option(
        [],
        "--kafka-setting",
        metavar="NAME=VALUE",
        help="A setting of librdkafka for the config topic, such as security.protocol=SSL. Repeatable. A value can be "
        "a reference such as ${env:NAME}.",
    ),
    config_topic: str = typer.Option("tailrace-configs", "--config-topic", help="The compacted topic of pipelines."),
    restart_minutes: float = typer.Option(
        1.0,
        "--restart-minutes",
        min=0.0001,
        help="A failed pipeline that may recover is restarted after n*n+n times this many minutes: at once, then after "
        "2, 6, 12, ...",
    ),
    restart_most: float = typer.Option(
        60.0, "--restart-most", min=0.0, help="The longest delay before a restart, in units of --restart-minutes."
    ),
    silent_seconds: float = typer.Option(
        30.0,
        "--silent-seconds",
        min=2.0,
        help="A pipeline process that sends no report for this long is stuck: it is killed and restarted.",
    ),
    restarts: bool = typer.Option(True, "--restarts/--no-restarts", help="Whether failed pipelines are restarted."),
    metrics_prefix: MetricsPrefix = "tailrace",
    log_json: LogJson = None,
) -> None:
    """Run all pipelines of a folder, each in its own process, until SIGTERM.

    A crash, a leak or a stall of one pipeline does not affect the others. Files that are added, changed or removed are
    noticed. A bad file is reported, and the others run. Two workers may run the same pipelines: one of them runs each
    pipeline, the other waits and takes over. SIGTERM stops all pipelines within 5 s and exits with code 0.

    The HTTP port has Kafka Connect's REST API, a JSON API, metrics for Prometheus and health checks.

    Examples:

        tailrace worker pipelines/

        tailrace worker pipelines/ --http 0.0.0.0:8083 --http-settings http.yaml

        tailrace worker --bootstrap kafka:9092 --config-topic tailrace-configs
    """
    logs.configure(as_json=log_json)
    if folder is None and not bootstrap:
        raise ConfigError(
            "there is nothing to run",
            why="A worker runs the pipelines of a folder, of a config topic, or of both.",
            remedy="Name a folder, such as `tailrace worker pipelines/`, or the Kafka servers with --bootstrap.",
        )
    topic = ConfigTopic(kafka_options(bootstrap, kafka_setting), config_topic) if bootstrap else None
    protection = protection_of(http_settings)
    policy = RestartPolicy(60.0 * restart_minutes, restart_most, enabled=restarts)
    manager = PipelineManager(
        folder,
        topic,
        restarts=policy,
        silent_seconds=silent_seconds,
        as_json=logs.is_json(log_json),
        allowed=protection.allowed,
    )
    serve(manager, http, protection, lambda _: manager.start(), metrics_prefix=metrics_prefix)


def protection_of(file: Path | None) -> PortProtection:
    """Reads the settings of the HTTP port; raises ConfigError."""
    if find_spec("uvicorn") is None or find_spec("starlette") is None:
        raise ConfigError("the HTTP port needs libraries that are not installed", remedy=install_remedy("http"))
    from tailrace.api.port import PortProtection

    return PortProtection(file)


def kafka_options(bootstrap: str, given: list[str]) -> KafkaOptions:
    """Returns how to reach the Kafka of the config topic."""
    from tailrace.config.references import UnresolvedError, resolve
    from tailrace.config.secrets import remember

    settings: dict[str, str | int | float | bool] = {}
    for each in given:
        name, equals, text = each.partition("=")
        if not equals or not name.strip():
            raise ConfigError(
                "--kafka-setting needs NAME=VALUE", remedy="Write it like --kafka-setting security.protocol=SSL."
            )
        try:
            value = resolve(text, os.environ, Path.cwd())
        except UnresolvedError as error:
            raise ConfigError(f"--kafka-setting {name} cannot be resolved: {error.why}", remedy=error.remedy) from None
        if value != text or "password" in name or "secret" in name:
            remember(value)
        settings[name.strip()] = value
    return KafkaOptions(bootstrap, "worker", settings=settings)


def serve(
    manager: PipelineManager,
    http: str,
    protection: PortProtection,
    start: Callable[[Callable[[int], None]], Coroutine[Any, Any, None]],
    *,
    metrics_prefix: str,
) -> NoReturn:
    """Opens the port, starts the pipelines, and ends the process with code 0 after a signal.

    `start` gets a function that ends the process earlier, with another code.
    """
    from tailrace.api.exposition import require_prefix
    from tailrace.api.server import listen, parse_address

    require_prefix(metrics_prefix)
    host, port = parse_address(http)
    protection.require_protected(host, port)
    opened = listen(host, port)
    port = opened.getsockname()[1]
    log = logs.StructuredLogger("tailrace.http")
    manager.worker_id = f"{host}:{port}"
    _allow_open_files()

    async def main() -> int:
        from tailrace.api.app import create_app
        from tailrace.api.server import HttpServer
        from tailrace.api.v1.routes import JsonApi
        from tailrace.cli.operations import operations, run_for_worker

        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(THREADS, thread_name_prefix="worker"))
        code: asyncio.Future[int] = loop.create_future()

        def end(with_code: int) -> None:
            if not code.done():
                code.set_result(with_code)

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end, 0)
        api = JsonApi(manager, operations(), manager.warm, run_for_worker)
        app = create_app(manager, api.routes(), metrics_prefix=metrics_prefix)
        server = HttpServer(protection.guarded(app, host), opened, protection.context)
        server.start()
        following = asyncio.create_task(protection.follow(host, port), name="settings of the HTTP port")
        log.info("listening", address=f"{protection.scheme}://{manager.worker_id}")
        starting = asyncio.create_task(start(end))
        waits: list[asyncio.Future[Any]] = [starting, code]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                await code
            starting.cancel()
        finally:
            following.cancel()
            jobs = asyncio.wait_for(api.close(), CLOSE_SECONDS)
            await asyncio.gather(manager.close(), jobs, server.close(), return_exceptions=True)
        return await code

    code = asyncio.Runner().run(main())  # not closed: that would wait for threads that wait for servers
    log.info("stopped")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _allow_open_files() -> None:
    """Raises the limit of open files as far as allowed: each connection and each pipeline needs some."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
