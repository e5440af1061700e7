"""compose/compose.yaml against the official schema, the program, and the files that it mounts."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from helpers.deploy_files import COMPOSE, ROOT, compose, parse_command
from helpers.deploy_tools import Unavailable, compose_schema, promtool
from tailrace.cli.project.command import load_app
from tailrace.config.http_port import load_http_settings
from tailrace.config.load import load_pipeline
from tailrace.testkit.stack import registry
from tailrace.testkit.stack.containers import KAFKA_IMAGE, MONGO_IMAGE

VARIABLE = re.compile(r"\$\{([A-Z_]+)(:[-?][^}]*)?\}")
SERVICES: dict[str, Any] = compose()["services"]
OURS = [name for name, service in SERVICES.items() if service["image"].startswith("tailrace")]
SERVED = {
    "kafka:9092",
    "postgres:5432",
    "mongo:27017",
    "registry:8080",
    "prometheus:9090",
    "worker:8083",
    "projection:8083",
}
"""The addresses inside the network: the name of a service, and the port that its program listens on."""


def variables(text: str) -> set[str]:
    return {match[1] for match in VARIABLE.finditer(text)}


def example_variables(*, commented: bool) -> set[str]:
    lines = (ROOT / "compose" / "env.example").read_text(encoding="utf-8").splitlines()
    begin = "# " if commented else ""
    return {match[1] for line in lines if (match := re.match(rf"{begin}([A-Z_]+)=", line))}


def test_it_follows_the_compose_specification() -> None:
    try:
        schema = compose_schema()
    except Unavailable as error:
        pytest.skip(str(error))
    jsonschema.Draft202012Validator(schema).validate(compose())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(schema).validate({"services": {"a": {"imagge": "x"}}})


def test_all_services_of_the_issue_are_there() -> None:
    wanted = {"kafka", "postgres", "mongo", "registry", "worker", "projection", "prometheus", "grafana"}
    assert wanted <= SERVICES.keys()


@pytest.mark.parametrize("name", OURS)
def test_the_program_takes_each_command(name: str) -> None:
    assert parse_command(SERVICES[name]["command"])["command"].startswith("tailrace ")


def test_the_worker_reads_the_mounted_pipelines_and_listens_on_the_published_port() -> None:
    given = parse_command(SERVICES["worker"]["command"])
    assert given["bootstrap"] in SERVED
    mounts = {volume.split(":")[1]: volume.split(":")[0] for volume in SERVICES["worker"]["volumes"]}
    assert mounts == {
        "/etc/tailrace/pipelines": "./pipelines",
        "/etc/tailrace/schemas": "../schemas",
        "/etc/tailrace/topics": "../topics",
        "/etc/tailrace/worker": "./worker",
    }
    assert str(given["folder"]) in mounts
    assert [port.rpartition(":")[2] for port in SERVICES["worker"]["ports"]] == [given["http"].rpartition(":")[2]]
    assert "/readyz" in " ".join(SERVICES["worker"]["healthcheck"]["test"])
    assert str(given["http_settings"].parent) in mounts
    assert (ROOT / "compose" / "worker" / given["http_settings"].name).is_file()


@pytest.mark.parametrize("file", sorted((ROOT / "compose" / "pipelines").glob("*.yaml")), ids=lambda file: file.stem)
def test_each_pipeline_is_valid_where_it_is_mounted(file: Path, tmp_path: Path) -> None:
    for name in ("schemas", "topics"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copytree(file.parent, tmp_path / "pipelines")
    environment = dict.fromkeys(SERVICES["worker"]["environment"], "secret")
    settings = load_pipeline(tmp_path / "pipelines" / file.name, environment)
    assert settings.kafka.bootstrap in SERVED
    assert settings.topics.folder is not None
    assert settings.topics.folder.resolve() == ROOT / "topics"
    assert settings.schemas is not None
    assert settings.schemas.folder is not None
    assert settings.schemas.folder.resolve() == ROOT / "schemas"
    assert re.search(r"(postgres:5432|mongo:27017)", file.read_text(encoding="utf-8"))
    if settings.schemas.registry is not None:
        address = f"http://registry:8080{registry.API}"
        assert str(settings.schemas.registry.url) == address


def test_the_port_of_the_worker_is_protected() -> None:
    token = "0123456789abcdef"
    file = ROOT / "compose" / "worker" / "http.yaml"
    settings = load_http_settings(file, {"WORKER_TOKEN": token})
    assert settings.authenticates
    assert settings.tokens["admin"].role == "admin"
    assert settings.metrics == "open"  # prometheus.yml has no token
    text = (ROOT / "compose" / "env.example").read_text(encoding="utf-8")
    [example] = re.findall(r"^WORKER_TOKEN=(.*)$", text, re.MULTILINE)
    assert load_http_settings(file, {"WORKER_TOKEN": example}).authenticates


def test_worker_and_pipelines_use_all_variables_of_the_worker_and_no_others() -> None:
    used = set[str]()
    files = [ROOT / "compose" / "worker" / "http.yaml", *(ROOT / "compose" / "pipelines").glob("*.yaml")]
    for file in files:
        used |= set(re.findall(r"\$\{env:([A-Z_]+)\}", file.read_text(encoding="utf-8")))
    assert used == set(SERVICES["worker"]["environment"])


def test_the_projection_is_the_example_with_its_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    service = SERVICES["projection"]
    given = parse_command(service["command"])
    assert service["volumes"] == ["../examples:/srv/examples:ro"]
    assert service["working_dir"] == "/srv"
    code = (ROOT / "examples" / "order_summary" / "app.py").read_text(encoding="utf-8")
    own = set(re.findall(r'environ\.get\("([A-Z_]+)"', code))
    assert set(service["environment"]) == {*own, "CONSUMER_GROUP_INSTANCE_ID"}
    for name, value in service["environment"].items():
        monkeypatch.setenv(name, VARIABLE.sub("secret", value))
    monkeypatch.chdir(ROOT)
    assert load_app(given["app"]).conf.id == "order-summary"


def test_images_are_pinned_and_those_of_the_stack() -> None:
    images = {name: service["image"] for name, service in SERVICES.items()}
    assert images["kafka"] == KAFKA_IMAGE == "apache/kafka:4.1.0"
    assert images["mongo"] == images["mongo-setup"] == MONGO_IMAGE
    assert images["registry"].endswith(f":{registry.VERSION}")
    for image in images.values():
        assert re.fullmatch(r"[a-z/-]+:[v0-9][0-9.]*|tailrace:local", image), image


def test_every_server_has_a_health_check_and_every_dependency_waits_for_it() -> None:
    for name, service in SERVICES.items():
        for other, how in service.get("depends_on", {}).items():
            if how["condition"] == "service_healthy":
                assert "test" in SERVICES[other]["healthcheck"], f"{name} waits for the health of {other}"
            else:
                assert how["condition"] == "service_completed_successfully"
                assert SERVICES[other]["restart"] == "on-failure:5", f"{other} must end"
        if name not in ("mongo-setup", "schemas"):
            assert "test" in service["healthcheck"], name


def test_a_service_that_ends_is_awaited_by_one_that_runs() -> None:
    """Otherwise `up --wait` takes its end for a failure."""
    ending = {name for name, service in SERVICES.items() if service["restart"] != "unless-stopped"}
    assert ending == {"mongo-setup", "schemas"}
    awaited = {
        other
        for name, service in SERVICES.items()
        if name not in ending
        for other, how in service.get("depends_on", {}).items()
        if how["condition"] == "service_completed_successfully"
    }
    assert awaited == ending


def test_ports_are_published_on_the_loopback_interface_only() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(ports) == 8
    assert all(port.startswith("127.0.0.1:${") for port in ports)


def test_there_is_no_secret_in_the_file_and_the_example_names_all_variables() -> None:
    text = COMPOSE.read_text(encoding="utf-8")
    for service in SERVICES.values():
        for name, value in (service.get("environment") or {}).items():
            if re.search("PASSWORD|SECRET|TOKEN", name):
                assert re.fullmatch(r"\$\{[A-Z_]+:\?[^}]+\}", value), name
    required = {match[1] for match in VARIABLE.finditer(text) if match[2] and match[2].startswith(":?")}
    optional = variables(text) - required
    assert required == example_variables(commented=False)
    assert optional == example_variables(commented=True)
    assert "compose/.env" in (ROOT / ".gitignore").read_text(encoding="utf-8").split()


def test_mounted_files_exist_and_named_volumes_are_declared() -> None:
    declared = set(compose()["volumes"])
    used = set[str]()
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (COMPOSE.parent / source).exists(), source
                assert volume.endswith(":ro"), volume
            else:
                used.add(source)
    assert used == declared


def test_postgres_keeps_a_logical_log_with_a_limit() -> None:
    assert "wal_level=logical" in SERVICES["postgres"]["command"]
    assert any(word.startswith("max_slot_wal_keep_size=") for word in SERVICES["postgres"]["command"])
    setup = (ROOT / "compose" / "postgres" / "shop.sh").read_text(encoding="utf-8")
    assert variables(setup) | set(re.findall(r'="\$([A-Z_]+)"', setup)) <= {
        *SERVICES["postgres"]["environment"], "POSTGRES_USER", "POSTGRES_DB",
    }  # fmt: skip


def test_prometheus_accepts_its_configuration_with_our_rules(tmp_path: Path) -> None:
    try:
        program = promtool()
    except Unavailable as error:
        pytest.skip(str(error))
    service = SERVICES["prometheus"]
    mounts = {volume.split(":")[1]: COMPOSE.parent / volume.split(":")[0] for volume in service["volumes"]}
    assert "--config.file=/etc/prometheus/prometheus.yml" in service["command"]
    text = mounts["/etc/prometheus/prometheus.yml"].read_text(encoding="utf-8")
    rules = mounts["/etc/prometheus/rules/alerts.yaml"].resolve()
    assert rules == ROOT / "deploy" / "prometheus" / "alerts.yaml"
    (tmp_path / "prometheus.yml").write_text(text.replace("/etc/prometheus/rules/*.yaml", str(rules)))
    done = subprocess.run(
        [program, "check", "config", tmp_path / "prometheus.yml"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert re.search(r"\d+ rules found", done.stdout)
    targets = {
        target
        for job in yaml.safe_load(text)["scrape_configs"]
        for config in job["static_configs"]
        for target in config["targets"]
    }
    assert targets - {"localhost:9090"} <= SERVED


def test_grafana_finds_its_data_source_and_the_dashboard() -> None:
    service = SERVICES["grafana"]
    folder = ROOT / "compose" / "grafana" / "provisioning"
    [source] = yaml.safe_load((folder / "datasources" / "prometheus.yaml").read_text())["datasources"]
    assert source["url"].removeprefix("http://") in SERVED
    [provider] = yaml.safe_load((folder / "dashboards" / "tailrace.yaml").read_text())["providers"]
    mounted = {volume.split(":")[1]: volume.split(":")[0] for volume in service["volumes"]}
    [file] = [path for path in mounted if path.startswith(provider["options"]["path"])]
    assert mounted[file] == "../deploy/grafana/tailrace.json"
    assert service["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] == file
