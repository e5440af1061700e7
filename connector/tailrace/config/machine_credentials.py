"""Settings with which a client library would use what belongs to the worker's machine: its identity, keys and files.

A configuration that is sent over REST may not have them: it names the server that would get the credentials. Of a
connection string of Postgres, only parameters that are known to be harmless are accepted, because new versions of libpq
add others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from tailrace.config.problems import SettingProblem
from tailrace.config.references import without_references

Place = tuple[str, ...]

_POSTGRES = frozenset(
    {
        "application_name", "channel_binding", "client_encoding", "connect_timeout", "dbname",
        "fallback_application_name", "host", "hostaddr", "keepalives", "keepalives_count", "keepalives_idle",
        "keepalives_interval", "load_balance_hosts", "max_protocol_version", "min_protocol_version", "options",
        "password", "port", "replication", "require_auth", "requirepeer", "requiressl", "scram_client_key",
        "scram_server_key", "ssl", "ssl_max_protocol_version", "ssl_min_protocol_version", "sslcert", "sslcertmode",
        "sslcompression", "sslcrl", "sslcrldir", "sslkey", "sslmode", "sslnegotiation", "sslpassword", "sslrootcert",
        "sslsni", "target_session_attrs", "tcp_user_timeout", "user",
    }
)  # fmt: skip
_NAMED = frozenset(
    {
        "service", "servicefile", "passfile", "gssencmode", "gssdelegation", "gsslib", "krbsrvname", "sslkeylogfile",
        "host", "hostaddr", "no host",
    }
)  # fmt: skip
_POSTGRES_HARMLESS_VALUES = {"gssencmode": "disable"}
_PARAMETER = re.compile(r"([^\s=]+)\s*=\s*('(?:[^'\\]|\\.)*'?|(?:\\.|[^\s\\])*)", re.DOTALL)
_MONGO_MECHANISMS = ("MONGODB-OIDC", "GSSAPI")
_KAFKA = re.compile(
    r"sasl\.oauthbearer\.(assertion\.file|assertion\.jwt\.template\.file|metadata\.authentication\.type)"
    r"|sasl\.kerberos\..*"
)
"""Settings of librdkafka that send the content of a file, or the identity of the machine, to a server."""
_KAFKA_KEYS = ("ssl.key.location", "ssl.keystore.location", "sasl.oauthbearer.assertion.private.key.file")
_AZURE_LOGINS = (
    {"account_key"}, {"access_key"}, {"storage_account_key"}, {"master_key"}, {"sas_key"}, {"sas_token"},
    {"client_id", "client_secret", "tenant_id"}, {"skip_signature"},
)  # fmt: skip
_AWS_LOGINS = ({"access_key_id", "secret_access_key"}, {"skip_signature"})
_STORE_LOGINS = {
    "s3": _AWS_LOGINS, "s3a": _AWS_LOGINS, "gs": ({"service_account_key"}, {"skip_signature"}),
    "az": _AZURE_LOGINS, "abfs": _AZURE_LOGINS, "abfss": _AZURE_LOGINS,
}  # fmt: skip
"""Options of an object store with which its client asks nobody else for credentials."""
LIBPQ_LOGINS = ("PGPASSWORD", "PGPASSFILE", "PGSERVICE")
"""Variables of the environment with which libpq logs in to any server, if the connection string has no password."""
_STORE_OWN = re.compile(
    r"file$|path$|credentials|imds|metadata|msi|identity|azure_cli|fabric|federated|^service_account$|^container_"
)
_OWN = "uses credentials or files of the worker's machine, with a server that the configuration names"
_REMEDY = "remove it, or configure this pipeline with a file in the worker's folder"


def machine_credentials(tree: Mapping[str, Any]) -> Iterator[SettingProblem]:
    """Yields the settings that use what belongs to the machine."""
    for place, what in _found(tree):
        yield SettingProblem(place, f"{_OWN}{f': {what}' if what else ''}", _REMEDY)


def uses_environment(tree: Mapping[str, Any]) -> bool:
    """Whether libpq would look for a password elsewhere: in the environment, or in files that it names."""
    source = _section(tree, "source")
    address = source.get("postgres")
    found = postgres_parameters(address) if isinstance(address, str) and not source.get("auth") else []
    return bool(found) and not any(name == "password" and value for name, value in found)


def key_files(tree: Mapping[str, Any]) -> Iterator[tuple[Place, str]]:
    """Yields the files with private keys that settings name. They may be used if the operator allows these files."""
    source, kafka, schemas = (_section(tree, name) for name in ("source", "kafka", "schemas"))
    if isinstance(address := source.get("postgres"), str):
        for name, value in postgres_parameters(address):
            if name == "sslkey" and value:
                yield ("source", "postgres"), value
    if isinstance(address := source.get("mongo"), str):
        for name, value in _mongo_options(address):
            if name == "tlscertificatekeyfile":
                yield ("source", "mongo"), value
    registry = _section(_section(schemas, "registry"), "settings")
    for place, settings in ((("kafka",), _section(kafka, "settings")), (("schemas", "registry"), registry)):
        for name, value in settings.items():
            if str(name).lower() in _KAFKA_KEYS:
                yield (*place, "settings", str(name)), str(value)
    url = _section(tree, "archive").get("url")
    if isinstance(url, str) and url.startswith("file://"):
        yield ("archive", "url"), url.removeprefix("file://")


def postgres_parameters(address: str) -> list[tuple[str, str]]:
    """Returns the parameters of a connection string as libpq reads them; references are replaced by `x`.

    Of a URL, its host, its password, and those of its query; a user or password may contain `?`.
    """
    text = without_references(address, "x")
    for scheme in ("postgresql://", "postgres://"):
        if text.startswith(scheme):
            user, rest = re.findall(r"^([^@/]*@)?(.*)", text.removeprefix(scheme), re.DOTALL)[0]
            host = re.split(r"[/?]", rest, maxsplit=1)[0]
            password = unquote(user.removesuffix("@").partition(":")[2])
            return [("host", unquote(host)), ("password", password), *_query(rest.partition("?")[2].split("&"))]
    return [(name, _unquoted(value)) for name, value in _PARAMETER.findall(text)]


def _found(tree: Mapping[str, Any]) -> Iterator[tuple[Place, str]]:
    source, kafka = _section(tree, "source"), _section(tree, "kafka")
    if isinstance(address := source.get("postgres"), str):
        found = postgres_parameters(address)
        names = sorted({name for name, value in found if not _is_harmless(name, value)})
        if found and not any(value for name, value in found if name in ("host", "hostaddr")):
            names.append("no host")  # a socket, or the host of the environment
        if names:
            # Another name may be a part of a password that is not quoted.
            yield ("source", "postgres"), ", ".join(sorted({n if n in _NAMED else "another parameter" for n in names}))
    address = source.get("mongo")
    if isinstance(address, str) and any(
        name == "authmechanism" and _is_own(value, address) for name, value in _mongo_options(address)
    ):
        yield ("source", "mongo"), ""
    for name, section in (("source", source), ("kafka", kafka)):
        auth = _section(section, "auth")
        yield from (((name, "auth", way), "") for way in ("aws_iam", "provider") if auth.get(way))
    yield from ((("kafka", "settings", name), "") for name in _own_of_kafka(kafka))
    yield from ((("archive", *place), "") for place in _own_of_archive(_section(tree, "archive")))


def _own_of_kafka(kafka: Mapping[str, Any]) -> Iterator[str]:
    given = {str(name).lower(): (str(name), str(value).upper()) for name, value in _section(kafka, "settings").items()}
    mechanisms = [given[name] for name in ("sasl.mechanism", "sasl.mechanisms") if name in given]
    yield from (name for key, (name, _) in given.items() if _KAFKA.fullmatch(key))
    yield from (name for name, value in mechanisms if "GSSAPI" in value)
    protocol, value = given.get("security.protocol", ("", ""))
    if value.startswith("SASL") and not mechanisms and not kafka.get("auth"):
        yield protocol  # GSSAPI is librdkafka's default


def _own_of_archive(archive: Mapping[str, Any]) -> Iterator[Place]:
    """A store's client without a login asks the environment, the cloud's metadata service, or files."""
    options = _section(archive, "options")
    names = {
        re.sub(r"^(aws|google|azure_storage|azure)_", "", str(name).lower()): str(name)
        for name, value in options.items()
        if str(value).lower() not in ("", "false")
    }
    yield from (("options", given) for name, given in names.items() if _STORE_OWN.search(name))
    scheme, separator, _ = str(archive.get("url", "")).partition("://")
    if separator and scheme != "file" and not any(each <= names.keys() for each in _STORE_LOGINS.get(scheme, ())):
        yield ("url",)


def _is_own(mechanism: str, address: str) -> bool:
    """Without a user in the address, the driver looks for AWS credentials in the environment and asks the instance."""
    has_user = re.match(r"mongodb(\+srv)?://[^/?]*@", address) is not None
    return mechanism.upper() in _MONGO_MECHANISMS or (mechanism.upper() == "MONGODB-AWS" and not has_user)


def _is_harmless(name: str, value: str) -> bool:
    if name in ("host", "hostaddr") and any(each[:1] in ("/", "@") for each in value.split(",")):
        return False  # a socket of this machine, where the server may trust the worker's user
    return name in _POSTGRES or _POSTGRES_HARMLESS_VALUES.get(name) == value


def _mongo_options(address: str) -> list[tuple[str, str]]:
    """Returns more than the driver reads: a password may contain `?`."""
    pieces = re.split("[?&;]", without_references(address, "x"))[1:]
    return [(name.lower(), value) for name, value in _query(pieces)]


def _query(pieces: list[str]) -> Iterator[tuple[str, str]]:
    for name, _, value in (piece.partition("=") for piece in pieces if piece):
        yield unquote(name), unquote(value)


def _unquoted(value: str) -> str:
    inner = value[1:-1] if value[:1] == "'" == value[-1:] and len(value) > 1 else value
    return re.sub(r"\\(.)", r"\1", inner, flags=re.DOTALL)


def _section(tree: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = tree.get(name)
    return found if isinstance(found, Mapping) else {}
