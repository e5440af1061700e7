"""The reader's librdkafka settings, made from the settings of the Faust app."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from typing import TYPE_CHECKING, Any

import faust
from faust.transport.drivers.aiokafka import server_list
from faust.types.auth import AuthProtocol, CredentialsT

from tailrace.errors import ConfigError
from tailrace.kafka.client import login_config
from tailrace.projections.faust.credentials import SharedToken

if TYPE_CHECKING:
    from tailrace.projections.faust.app import ProjectionApp

Config = dict[str, Any]
TOKEN_SECONDS = 300.0
"""After that a new token is asked for: a token provider does not say how long its token is valid."""
PREFETCH_KBYTES = 8_192
"""How much the client fetches ahead, of all partitions together."""

_log = logging.getLogger("librdkafka")


def group_of(app_id: str) -> str:
    """Returns the consumer group of the reader. Faust's own consumer has the app's id as its group."""
    return f"{app_id}.projections"


def client_config(app: ProjectionApp) -> Config:
    """Returns the settings of every client: addresses, credentials, and what the user gave as `kafka_settings`."""
    conf = app.conf
    return {
        # New partitions are noticed when the client's cache of metadata expires, by default after three refreshes.
        "topic.metadata.refresh.interval.ms": conf.consumer_metadata_max_age_ms // 3,
        "metadata.max.age.ms": conf.consumer_metadata_max_age_ms,
        "reconnect.backoff.max.ms": 2_000,
        "socket.connection.setup.timeout.ms": 10_000,
        **_security(app),
        **app.kafka_settings,
        "bootstrap.servers": ",".join(server_list(conf.broker_consumer, 9092)),
        "client.id": conf.broker_client_id,
        "logger": _log,
    }


def consumer_config(app: ProjectionApp) -> Config:
    """Returns the settings of the reader's consumer."""
    conf = app.conf
    config = {
        "queued.max.messages.kbytes": PREFETCH_KBYTES,
        "max.partition.fetch.bytes": conf.consumer_max_fetch_size,
        "fetch.wait.max.ms": 100,
        "fetch.queue.backoff.ms": 10,
        "session.timeout.ms": int(conf.broker_session_timeout * 1000),
        "heartbeat.interval.ms": int(conf.broker_heartbeat_interval * 1000),
        "max.poll.interval.ms": int(max(conf.broker_max_poll_interval, conf.broker_session_timeout) * 1000),
        **client_config(app),
        # The guarantees depend on these:
        "group.id": group_of(str(conf.id)),
        "partition.assignment.strategy": "roundrobin",
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "check.crcs": True,
        # Any other value would silently continue elsewhere when the log no longer has the offset.
        "auto.offset.reset": "error",
        "allow.auto.create.topics": False,
    }
    if conf.consumer_group_instance_id:
        config["group.instance.id"] = conf.consumer_group_instance_id
    return config


def _security(app: ProjectionApp) -> Config:
    credentials: CredentialsT | None = app.conf.broker_credentials
    if credentials is None:
        return {} if app.conf.ssl_context is None else {"security.protocol": "ssl", **_tls(app.conf.ssl_context)}
    if isinstance(credentials, faust.SSLCredentials):
        return {"security.protocol": "ssl", **_tls(credentials.context)}
    config: Config = {
        "security.protocol": AuthProtocol(credentials.protocol).value.lower(),
        "sasl.mechanism": credentials.mechanism.value,  # type: ignore[attr-defined]
    }
    context: ssl.SSLContext | None = getattr(credentials, "ssl_context", None)
    if context is not None:
        config |= _tls(context)
    if isinstance(credentials, faust.SASLCredentials):
        return config | {"sasl.username": credentials.username, "sasl.password": credentials.password}
    if isinstance(credentials, faust.GSSAPICredentials):
        return config | {"sasl.kerberos.service.name": credentials.kerberos_service_name}
    if isinstance(credentials, faust.OAuthCredentials):
        provider = credentials.oauth_cb
        if isinstance(provider, SharedToken):
            # Its token's end is known, and another thread may ask for it.
            return {**login_config(provider.provider), **config}

        def token(_: str) -> tuple[str, float]:
            if app.event_loop is None:
                raise RuntimeError("the app has not started")
            found = asyncio.run_coroutine_threadsafe(provider.token(), app.event_loop)
            return found.result(TOKEN_SECONDS), time.time() + TOKEN_SECONDS

        return config | {"oauth_cb": token}
    raise ConfigError(
        f"{app.conf.id}: {type(credentials).__name__} is not known as broker_credentials",
        remedy="Give one of Faust's own credentials, or librdkafka's settings as `kafka_settings`.",
    )


def _tls(context: ssl.SSLContext) -> Config:
    """Translates a TLS context. A client certificate cannot be read from it: `kafka_settings` names its files."""
    config: Config = {
        "enable.ssl.certificate.verification": context.verify_mode != ssl.CERT_NONE,
        "ssl.endpoint.identification.algorithm": "https" if context.check_hostname else "none",
    }
    certificates = context.get_ca_certs(binary_form=True)
    if certificates:
        config["ssl.ca.pem"] = "".join(map(ssl.DER_cert_to_PEM_cert, certificates))
    return config
