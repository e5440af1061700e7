"""Postgres, MongoDB and a schema registry with their own TLS.

The wheel's Postgres is built without TLS, so these tests use Debian's: the installed one, or the package unpacked. The
servers' certificates are for 127.0.0.1 and can be renewed while they run.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import psycopg

from helpers.deploy_tools import Unavailable, kept, run
from helpers.tls import HOST, CertificateFiles, Certificates, Flaw
from tailrace.testkit.stack import MongoServer, PostgresServer, RegistryServer, ServerChoice, registry, wait_until
from tailrace.testkit.stack.paths import User, private_file, unprivileged
from tailrace.testkit.stack.ports import free_port
from tailrace.testkit.stack.registry import API


def debian_postgres() -> Path:
    """Returns the folder of the programs of a Postgres with TLS. Raises Unavailable if there is none."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if found:
        return found[-1].parent
    if shutil.which("apt-get") is None:
        raise Unavailable("a Postgres with TLS is a Debian package here, and there is no apt-get")

    def fill(folder: Path) -> None:
        run(["apt-get", "download", "postgresql-15", "libpq5", "libllvm14"], folder)
        for package in folder.glob("*.deb"):
            run(["dpkg", "-x", str(package), str(folder)], folder)
            package.unlink()

    return kept("debian-postgres", fill) / "usr" / "lib" / "postgresql" / "15" / "bin"


class TlsPostgres(PostgresServer):
    """Postgres that accepts only TLS, and client certificates for roles named in `certificate_roles`."""

    def __init__(self, certificates: Certificates, *, hba: Sequence[str] = ()) -> None:
        self.certificates = certificates
        self._hba = hba
        super().__init__("15", choice=ServerChoice.LOCAL, settings={"ssl": "on", "ssl_min_protocol_version": "TLSv1.2"})

    def _create(self) -> None:
        super()._create()
        self._parameters |= {"sslmode": "verify-full", "sslrootcert": str(self.certificates.authority)}
        lines = [*self._hba, "hostssl all all 127.0.0.1/32 scram-sha-256", ""]
        (self.data_dir / "pg_hba.conf").write_text("\n".join(lines), encoding="utf-8")
        self._install(self.certificates.files("postgres"))
        self.settings |= {
            "ssl_cert_file": str(self.data_dir / "server.crt"),
            "ssl_key_file": str(self.data_dir / "server.key"),
            "ssl_ca_file": str(self.data_dir / "authority.pem"),
        }

    def _programs(self, user: User | None) -> Path:
        return debian_postgres()

    def _install(self, files: CertificateFiles) -> None:
        user = unprivileged()
        for name, source in (
            ("server.crt", files.certificate),
            ("server.key", files.key),
            ("authority.pem", self.certificates.authority),
        ):
            private_file(self.data_dir / name, source.read_text(), user)

    def renew(self, files: CertificateFiles) -> None:
        """Presents another certificate to new connections."""
        # Without verification: the certificate of now may be a flawed one.
        dsn = self.dsn(sslmode="require", sslrootcert="/none")
        with psycopg.connect(dsn, autocommit=True) as connection:
            [before] = connection.execute("SELECT pg_conf_load_time()").fetchone() or [None]
            self._install(files)
            connection.execute("SELECT pg_reload_conf()")

        def reloaded() -> bool:
            with psycopg.connect(dsn) as connection:
                return (connection.execute("SELECT pg_conf_load_time()").fetchone() or [before])[0] != before

        wait_until(reloaded, what="the new certificate")


class TlsMongo(MongoServer):
    """MongoDB that requires TLS, and with `auth` a password or a client certificate."""

    def __init__(self, certificates: Certificates, *, auth: bool = False) -> None:
        self.certificates = certificates
        super().__init__(auth=auth, choice=ServerChoice.LOCAL)
        self._tls = certificates.files("mongo")

    def renew(self, files: CertificateFiles) -> None:
        """Presents another certificate to new connections."""
        # Without verification: the certificate of now may be a flawed one.
        with self.client(tlsInsecure=True) as admin:
            self._tls.both.write_text(files.both.read_text())
            admin.admin.command("rotateCertificates", 1)

    def _launch(self) -> None:
        from tailrace.testkit.stack import mongo_local

        options = mongo_local.options(self.set_name, self.settings, self._oplog_mb)
        options += ["--tlsMode", "requireTLS", "--tlsCertificateKeyFile", str(self._tls.both)]
        options += ["--tlsCAFile", str(self.certificates.authority), "--tlsAllowConnectionsWithoutCertificates"]
        argv = mongo_local.command(self.port, self.data_dir, self._key if self._auth else None, options)
        self.process.launch(argv, mongo_local.ENVIRONMENT)

    def _address_of(self, port: int, options: str, user: str, password: str) -> str:
        return super()._address_of(port, f"{options}&{self.trust}", user, password)

    @property
    def trust(self) -> str:
        return f"tls=true&tlsCAFile={self.certificates.authority}"


class TlsRegistry(RegistryServer):
    """A schema registry with TLS on `secure_url`; the plain port is for the tests' own questions."""

    def __init__(self, certificates: Certificates, flaw: Flaw = "") -> None:
        self._tls = certificates.files("registry", flaw)
        self._tls_port = 0
        super().__init__(choice=ServerChoice.LOCAL)

    @property
    def tls_port(self) -> int:
        return self._tls_port

    @property
    def secure_url(self) -> str:
        return f"https://{HOST}:{self._tls_port}{API}"

    def _assign_ports(self) -> Sequence[int]:
        self._tls_port = free_port()
        return [*super()._assign_ports(), self._tls_port]

    def _launch(self) -> None:
        properties = {
            "quarkus.http.ssl-port": str(self._tls_port),
            "quarkus.http.ssl.certificate.files": str(self._tls.certificate),
            "quarkus.http.ssl.certificate.key-files": str(self._tls.key),
            "quarkus.http.insecure-requests": "enabled",
        }
        java, *rest = registry._command(self._library, self.port, self._identity, self.process.run_dir)
        self.process.launch([java, *(f"-D{name}={value}" for name, value in properties.items()), *rest], {})
