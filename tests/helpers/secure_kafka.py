"""A real broker with TLS, logins and ACLs, and the clients' settings for each way to log in.

It has three listeners with TLS: client certificates (CLIENT), SCRAM and PLAIN (SCRAM), and tokens that the broker
verifies with the keys of a token server (OAUTH). Nobody may do anything without an ACL, except through the broker's
internal listener, which the tests use to look and to grant.
"""

from __future__ import annotations

import shlex
import socket
import ssl
from collections.abc import Sequence
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from helpers.tls import HOST, CertificateFiles, Certificates
from tailrace.testkit.stack import KafkaBroker, ServerChoice, wait_until
from tailrace.testkit.stack.kafka import REQUEST_TIMEOUT, quiet_admin
from tailrace.testkit.stack.kafka_local import Listeners
from tailrace.testkit.stack.ports import free_port

LISTENERS = ("CLIENT", "SCRAM", "OAUTH")
NETWORK_THREADS = 2
MODULES = "org.apache.kafka.common.security"
PASSWORD = "kafka-password-7351"
KINDS = {
    "cluster": ResourceType.BROKER,
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional-id": ResourceType.TRANSACTIONAL_ID,
}


class SecureListeners(Listeners):
    def __init__(self) -> None:
        super().__init__(None)
        self.ports = {"CLIENT": self.client, "SCRAM": free_port(), "OAUTH": free_port()}

    def properties(self) -> dict[str, str]:
        found = super().properties()
        more = "".join(f",{name}://{HOST}:{port}" for name, port in self.ports.items() if name != "CLIENT")
        protocols = "CLIENT:SSL,SCRAM:SASL_SSL,OAUTH:SASL_SSL,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT"
        return {
            **found,
            "listeners": found["listeners"] + more,
            "advertised.listeners": found["advertised.listeners"] + more,
            "listener.security.protocol.map": protocols,
        }


class SecureBroker(KafkaBroker):
    """Started on entering. `jwks` is the address of the keys of a token server."""

    def __init__(self, certificates: Certificates, *, jwks: str = "", properties: dict[str, str] | None = None) -> None:
        self.certificates = certificates
        self._jwks = jwks
        self._secure: SecureListeners | None = None
        ours = {
            "allow.everyone.if.no.acl.found": "false",
            "super.users": "User:ANONYMOUS",
            "ssl.principal.mapping.rules": "RULE:^CN=(.*?)$/$1/,DEFAULT",
            "num.network.threads": str(NETWORK_THREADS),
            "ssl.allow.dn.changes": "true",
            "ssl.allow.san.changes": "true",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(certificates.authority),
            "listener.name.client.ssl.client.auth": "required",
            "listener.name.scram.sasl.enabled.mechanisms": "SCRAM-SHA-256,PLAIN",
            "listener.name.scram.scram-sha-256.sasl.jaas.config": f"{MODULES}.scram.ScramLoginModule required;",
            "listener.name.scram.plain.sasl.jaas.config": f"{MODULES}.plain.PlainLoginModule required "
            f'user_plain="{PASSWORD}";',
            **{
                key: value for name in LISTENERS for key, value in _keystore(name, certificates.files("broker")).items()
            },
            **(_oauth(jwks) if jwks else {"listener.name.oauth.sasl.enabled.mechanisms": "PLAIN"}),
            **(
                {}
                if jwks
                else {"listener.name.oauth.plain.sasl.jaas.config": f"{MODULES}.plain.PlainLoginModule required;"}
            ),
        }
        super().__init__(properties={**ours, **(properties or {})}, choice=ServerChoice.LOCAL)

    def _draw_ports(self) -> Listeners:
        self._secure = SecureListeners()
        return self._secure

    def _launch(self, *flags: str) -> None:
        allowed = [f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self._jwks}"] if self._jwks and not flags else []
        super()._launch(*(flags or (f"-XX:AOTCache={self._warm / 'classes.aot'}", *allowed)))

    def _not_ready(self) -> str | None:
        for port in self._ports.values():
            with socket.socket() as probe:
                if probe.connect_ex((HOST, port)):
                    return f"nothing listens on port {port}"
        try:
            found = quiet_admin(self.direct_bootstrap).list_topics(timeout=REQUEST_TIMEOUT)
        except KafkaException as error:
            return str(error.args[0].str())
        if found.cluster_id != self.cluster_id:
            return f"the broker belongs to cluster {found.cluster_id}"
        return None if found.brokers else "the broker is not in its own metadata yet"

    @property
    def _ports(self) -> dict[str, int]:
        assert self._secure is not None
        return self._secure.ports

    @property
    def bootstrap(self) -> str:
        """What the helpers of the tests use; the clients under test use `address`."""
        return self.direct_bootstrap

    def address(self, listener: str) -> str:
        return f"{HOST}:{self._ports[listener]}"

    # Clients.

    @property
    def trust(self) -> dict[str, str]:
        return {"ssl.ca.location": str(self.certificates.authority)}

    def tls(self, files: CertificateFiles) -> dict[str, Any]:
        """Returns `kafka` settings of a client with a certificate."""
        own = {"ssl.certificate.location": str(files.certificate), "ssl.key.location": str(files.key)}
        return {
            "bootstrap": self.address("CLIENT"),
            "settings": {"security.protocol": "SSL", **self.trust, **own},
        }

    def scram(self, user: str, password: str = PASSWORD, mechanism: str = "SCRAM-SHA-256") -> dict[str, Any]:
        """Returns `kafka` settings of a client with a password."""
        login = {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": password}
        return {
            "bootstrap": self.address("SCRAM"),
            "settings": {"security.protocol": "SASL_SSL", **self.trust, **login},
        }

    # What an operator does.

    def add_user(self, name: str, password: str = PASSWORD) -> None:
        """Creates a SCRAM user, or changes its password."""
        admin = self.admin()
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
        change = UserScramCredentialUpsertion(name, info, password.encode())
        for done in admin.alter_user_scram_credentials([change]).values():
            done.result(30)

    def grant(self, principal: str, commands: Sequence[str]) -> None:
        """Does what `kafka-acls --add --allow-principal User:PRINCIPAL` does with these arguments."""
        admin = self.admin()
        for done in admin.create_acls([each for command in commands for each in bindings(principal, command)]).values():
            done.result(30)

    def revoke_all(self) -> None:
        everything = AclBindingFilter(
            ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
        )
        admin = self.admin()
        for done in admin.delete_acls([everything]).values():
            done.result(30)

    def renew(self, listener: str, files: CertificateFiles) -> None:
        """Changes the certificate of a listener while the broker runs; open connections stay."""
        prefix = f"listener.name.{listener.lower()}"
        entry = ConfigEntry(
            f"{prefix}.ssl.keystore.location", str(files.both), incremental_operation=AlterConfigOpType.SET
        )
        admin = self.admin()
        resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
        for done in admin.incremental_alter_configs([resource]).values():
            done.result(30)
        place, expected = (HOST, self._ports[listener]), files.certificate.read_text()
        # Each network thread of the broker changes it at its own moment, and connections go to them in turn.
        wait_until(
            lambda: all(ssl.get_server_certificate(place) == expected for _ in range(NETWORK_THREADS)),
            30,
            what="the new certificate",
        )


def _keystore(listener: str, files: CertificateFiles) -> dict[str, str]:
    prefix = f"listener.name.{listener.lower()}"
    return {f"{prefix}.ssl.keystore.type": "PEM", f"{prefix}.ssl.keystore.location": str(files.both)}


def _oauth(jwks: str) -> dict[str, str]:
    prefix = "listener.name.oauth"
    return {
        f"{prefix}.sasl.enabled.mechanisms": "OAUTHBEARER",
        f"{prefix}.sasl.oauthbearer.jwks.endpoint.url": jwks,
        f"{prefix}.sasl.oauthbearer.expected.audience": "kafka",
        # The default of Kafka 4.1 does not verify signatures.
        f"{prefix}.sasl.oauthbearer.jwt.validator.class": f"{MODULES}.oauthbearer.BrokerJwtValidator",
        f"{prefix}.oauthbearer.sasl.jaas.config": f"{MODULES}.oauthbearer.OAuthBearerLoginModule required;",
        f"{prefix}.oauthbearer.sasl.server.callback.handler.class": f"{MODULES}.oauthbearer."
        "OAuthBearerValidatorCallbackHandler",
    }


def bindings(principal: str, command: str) -> list[AclBinding]:
    """Parses the arguments of one `kafka-acls --add`."""
    words = shlex.split(command)
    pattern = ResourcePatternType.PREFIXED if "prefixed" in words else ResourcePatternType.LITERAL
    operations = [words[at + 1] for at, word in enumerate(words) if word == "--operation"]
    resources = [
        (kind, "kafka-cluster" if name == "cluster" else words[at + 1])
        for at, word in enumerate(words)
        if (kind := KINDS.get(name := word.removeprefix("--"))) is not None and word.startswith("--")
    ]
    assert operations
    assert resources
    return [
        AclBinding(kind, name, pattern, f"User:{principal}", "*", _operation(operation), AclPermissionType.ALLOW)
        for kind, name in resources
        for operation in operations
    ]


def _operation(name: str) -> AclOperation:
    by_name = {each.name.replace("_", "").lower(): each for each in AclOperation}
    return by_name[name.replace("_", "").lower()]
