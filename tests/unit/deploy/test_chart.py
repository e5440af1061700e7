"""The Helm chart, rendered with Helm: valid objects that fit together, and a command that the program takes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT4

from helpers.deploy_files import ALERTS, CHART, DASHBOARD, ROOT, dockerfile_steps, parse_command
from helpers.deploy_tools import Unavailable, helm, kubernetes_schema, kubernetes_schemas, operator_schema
from helpers.port_certificates import Authority
from tailrace import __version__
from tailrace.api.access import OPEN_PATHS
from tailrace.api.port import PortProtection
from tailrace.config.load import load_pipeline
from tools import manifests

FULL = {
    "replicas": 2,
    "image": {"repository": "registry.example.org/tailrace", "tag": "9.9"},
    "imagePullSecrets": [{"name": "pull"}],
    "kafka": {"bootstrap": "a:9092,b:9092", "settings": {"security.protocol": "SSL", "socket.keepalive.enable": True}},
    "pipelines": {"orders.yaml": "pipeline: orders\n", "users.yml": "pipeline: users\n"},
    "schemas": {"OrderPlaced/1.json": '{"type": "object"}', "OrderPlaced/2.avsc": '"string"'},
    "topics": {"orders.yaml": "topic: shop.orders\n"},
    "secretName": "shop-secrets",
    "http": {"secretName": "shop-http", "settings": {"allow": {"variables": ["SHOP_*"]}}},
    "extraArgs": ["--restart-minutes", "2"],
    "extraEnv": [{"name": "TAILRACE_LOG", "value": "json"}],
    "extraVolumes": [{"name": "tls", "secret": {"secretName": "tls"}}],
    "extraVolumeMounts": [{"name": "tls", "mountPath": "/etc/tls", "readOnly": True}],
    "metrics": {
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "alerts": {"enabled": True, "labels": {"release": "prometheus"}},
        "dashboard": {"enabled": True},
    },
    "networkPolicy": {"from": [{"namespaceSelector": {"matchLabels": {"team": "shop"}}}]},
    "podAnnotations": {"note": "x"},
    "nodeSelector": {"disk": "fast"},
    "tolerations": [{"key": "a", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {}},
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
    ],
}
OPERATOR = ("ServiceMonitor", "PrometheusRule")
Objects = dict[tuple[str, str], dict[str, Any]]


def program() -> Path:
    try:
        return helm()
    except Unavailable as error:
        pytest.skip(str(error))


def rendered(values: dict[str, Any], tmp_path: Path, release: str = "shop") -> Objects:
    """Returns the objects of the chart by kind and name."""
    file = tmp_path / "values.json"
    file.write_text(json.dumps(values))
    done = subprocess.run(
        [program(), "template", release, CHART, "--values", file], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    documents = [document for document in yaml.safe_load_all(done.stdout) if document]
    return {(each["kind"], each["metadata"]["name"]): each for each in documents}


def only(objects: Objects, kind: str) -> dict[str, Any]:
    [found] = [each for (name, _), each in objects.items() if name == kind]
    return found


def validate(thing: dict[str, Any]) -> None:
    """Validates an object of Kubernetes; unknown fields are errors."""
    if thing["kind"] in OPERATOR:
        schema = strict(operator_schema(thing["kind"]))
        jsonschema.Draft4Validator(schema).validate(thing)
        return
    folder = kubernetes_schemas()

    def retrieve(uri: str) -> Resource[Any]:
        return Resource(json.loads((folder / uri.rpartition("/")[2]).read_bytes()), DRAFT4)

    schema = kubernetes_schema(thing["apiVersion"], thing["kind"])
    jsonschema.Draft4Validator(schema, registry=Registry(retrieve=retrieve)).validate(thing)


def strict(schema: Any) -> Any:
    """Returns a schema of OpenAPI in which unknown fields are errors; metadata is checked by Kubernetes itself."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    result = {name: strict(each) for name, each in schema.items()}
    if isinstance(schema.get("properties"), dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        result.setdefault("additionalProperties", False)
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    return result


@pytest.mark.parametrize("values", [{}, FULL], ids=["defaults", "everything"])
def test_every_object_is_valid(values: dict[str, Any], tmp_path: Path) -> None:
    objects = rendered(values, tmp_path)
    assert {"Deployment", "Service", "ConfigMap", "PodDisruptionBudget", "NetworkPolicy", "ServiceAccount"} <= {
        kind for kind, _ in objects
    }
    for (kind, _), thing in objects.items():
        if kind not in OPERATOR:
            require_valid(thing)


@pytest.mark.parametrize("kind", OPERATOR)
def test_every_object_of_the_prometheus_operator_is_valid(kind: str, tmp_path: Path) -> None:
    thing = only(rendered(FULL, tmp_path), kind)
    try:
        require_valid(thing)
    except Unavailable as error:
        pytest.skip(str(error))


def require_valid(thing: dict[str, Any]) -> None:
    """Validates an object, and makes sure that the validation can fail."""
    validate(thing)
    with pytest.raises(jsonschema.ValidationError):
        validate({**thing, "spce": {}})


def test_helm_finds_nothing_to_complain_about(tmp_path: Path) -> None:
    (tmp_path / "values.json").write_text(json.dumps(FULL))
    done = subprocess.run(
        [program(), "lint", "--strict", CHART, "--values", tmp_path / "values.json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "wrong",
    [
        {"replicas": "two"},
        {"replica": 2},
        {"kafka": {"bootstrap": "kafka"}},
        {"pipelines": {"orders.txt": "x"}},
        {"schemas": {"OrderPlaced.json": "{}"}},
        {"metrics": {"prefix": "9-lives"}},
        {"networkPolicy": {"egressPorts": [0]}},
        {"image": {"pullPolicy": "Sometimes"}},
        {"http": {"secretName": ""}},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_wrong_values_are_refused(wrong: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "values.json").write_text(json.dumps(wrong))
    done = subprocess.run(
        [program(), "template", "shop", CHART, "--values", tmp_path / "values.json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "values" in done.stderr


def test_the_program_takes_the_command(tmp_path: Path) -> None:
    container = only(rendered(FULL, tmp_path), "Deployment")["spec"]["template"]["spec"]["containers"][0]
    given = parse_command(container["args"])
    assert given["command"] == "tailrace worker"
    assert given["bootstrap"] == "a:9092,b:9092"
    assert given["kafka_setting"] == ["security.protocol=SSL", "socket.keepalive.enable=true"]
    assert given["http"] == "0.0.0.0:8083"
    assert given["restart_minutes"] == 2
    assert str(given["folder"]) in {mount["mountPath"] for mount in container["volumeMounts"]}
    assert container["image"] == "registry.example.org/tailrace:9.9"


@pytest.mark.parametrize("tls", [True, False])
def test_the_port_is_protected(tls: bool, tmp_path: Path) -> None:
    """The worker accepts the file that the chart renders, with the files of the Secret."""
    without = {"settings": {"tls": None, "behind_tls_proxy": True}}
    objects = rendered(FULL if tls else {**FULL, "http": without}, tmp_path)
    pod = only(objects, "Deployment")["spec"]["template"]["spec"]
    [container] = pod["containers"]
    given = parse_command(container["args"])
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert str(given["http_settings"]) == f"{mounts['http-settings']}/http.yaml"
    secret = volumes["http-secrets"]["secret"]["secretName"]
    assert secret == ("shop-http" if tls else "tailrace-http")
    text = objects["ConfigMap", volumes["http-settings"]["configMap"]["name"]]["data"]["http.yaml"]
    folder = tmp_path / "secret"
    folder.mkdir()
    pair = Authority(tmp_path / "authority").issue()
    for name, content in {
        "admin": b"0123456789abcdef-admin", "read": b"0123456789abcdef-read",
        "tls.crt": pair.certificate.read_bytes(), "tls.key": pair.key.read_bytes(),
    }.items():  # fmt: skip
        (folder / name).write_bytes(content)
    file = tmp_path / "http.yaml"
    file.write_text(text.replace(mounts["http-secrets"], str(folder)))
    protection = PortProtection(file)
    protection.require_protected("0.0.0.0", 8083)
    scheme = "https" if tls else "http"
    assert protection.scheme == scheme
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["scheme"] == scheme.upper()
        assert container[probe]["httpGet"]["path"] in OPEN_PATHS
    [endpoint] = only(objects, "ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["scheme"] == scheme
    assert endpoint["authorization"]["credentials"] == {"name": secret, "key": "read"}
    assert ("tlsConfig" in endpoint) == tls


def test_the_prefix_reaches_the_worker_the_alerts_and_the_dashboard(tmp_path: Path) -> None:
    values = {**FULL, "metrics": {**FULL["metrics"], "prefix": "shop"}}  # type: ignore[dict-item]
    objects = rendered(values, tmp_path)
    container = only(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    assert parse_command(container["args"])["metrics_prefix"] == "shop"
    texts = [
        json.dumps(only(objects, "PrometheusRule")),
        json.dumps(objects["ConfigMap", "shop-tailrace-connect-dashboard"]),
    ]
    for text in texts:
        assert "shop_pipeline_state" in text
        assert "tailrace_" not in text


def test_the_objects_fit_together(tmp_path: Path) -> None:
    objects = rendered(FULL, tmp_path)
    pod = only(objects, "Deployment")["spec"]["template"]
    labels = pod["metadata"]["labels"].items()
    selectors = [
        only(objects, "Deployment")["spec"]["selector"]["matchLabels"],
        only(objects, "Service")["spec"]["selector"],
        only(objects, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        only(objects, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
    ]
    for selector in selectors:
        assert selector.items() <= labels
    [container] = pod["spec"]["containers"]
    [port] = container["ports"]
    assert only(objects, "Service")["spec"]["ports"][0]["targetPort"] == port["name"]
    assert only(objects, "NetworkPolicy")["spec"]["ingress"][0]["ports"][0]["port"] == port["name"]
    assert (
        only(objects, "ServiceMonitor")["spec"]["endpoints"][0]["port"]
        == only(objects, "Service")["spec"]["ports"][0]["name"]
    )
    assert (
        only(objects, "ServiceMonitor")["spec"]["selector"]["matchLabels"].items()
        <= only(objects, "Service")["metadata"]["labels"].items()
    )
    assert container["envFrom"] == [{"secretRef": {"name": "shop-secrets"}}]
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes.keys()
    for volume in volumes.values():
        if "configMap" in volume:
            data = objects["ConfigMap", volume["configMap"]["name"]]["data"]
            assert {item["key"] for item in volume["configMap"].get("items", [])} <= data.keys()
    paths = {item["path"] for item in volumes["schemas"]["configMap"]["items"]}
    assert paths == {"OrderPlaced/1.json", "OrderPlaced/2.avsc"}


def test_the_pod_is_restricted_and_runs_as_the_user_of_the_image(tmp_path: Path) -> None:
    pod = only(rendered({}, tmp_path), "Deployment")["spec"]["template"]["spec"]
    [user] = [step.text for step in dockerfile_steps() if step.word == "USER"]
    assert f"{pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}" == user
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    [container] = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["livenessProbe"]["httpGet"]["path"] == container["startupProbe"]["httpGet"]["path"] == "/livez"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"


def test_a_change_of_a_pipeline_starts_a_new_pod(tmp_path: Path) -> None:
    def checksum(text: str) -> str:
        deployment = only(rendered({"pipelines": {"orders.yaml": text}}, tmp_path), "Deployment")
        return str(deployment["spec"]["template"]["metadata"]["annotations"]["checksum/config"])

    assert checksum("pipeline: a\n") != checksum("pipeline: b\n")


def test_the_chart_uses_the_rules_and_the_dashboard_of_deploy(tmp_path: Path) -> None:
    objects = rendered(FULL, tmp_path)
    assert only(objects, "PrometheusRule")["spec"] == yaml.safe_load(ALERTS.read_text(encoding="utf-8"))
    text = objects["ConfigMap", "shop-tailrace-connect-dashboard"]["data"]["tailrace.json"]
    assert json.loads(text) == json.loads(DASHBOARD.read_bytes())


def test_the_version_of_the_chart_is_that_of_the_program() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert str(chart["appVersion"]) == __version__


def test_the_manifests_are_what_the_chart_renders() -> None:
    assert manifests.outdated(program()) == [], "run `make manifests`"
    listed = yaml.safe_load((manifests.MANIFESTS / "kustomization.yaml").read_text(encoding="utf-8"))["resources"]
    assert sorted([*listed, *manifests.NOT_RENDERED]) == sorted(
        file.name for file in manifests.MANIFESTS.glob("*.yaml")
    )


def test_the_pipeline_of_the_manifests_is_valid_as_kubernetes_mounts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ConfigMap is mounted as links to a hidden folder, and a schema's key has no slash."""
    monkeypatch.setenv("ORDERS_DB_PASSWORD", "secret")
    documents = [
        each
        for name in ("configmap.yaml", "deployment.yaml")
        for each in yaml.safe_load_all((manifests.MANIFESTS / name).read_text(encoding="utf-8"))
    ]
    data = {each["metadata"]["name"]: each["data"] for each in documents if each["kind"] == "ConfigMap"}
    pod = documents[-1]["spec"]["template"]["spec"]
    paths = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    for volume in pod["volumes"]:
        if "configMap" not in volume:
            continue
        texts = data[volume["configMap"]["name"]]
        folder = tmp_path / Path(paths[volume["name"]]).relative_to("/")
        items = volume["configMap"].get("items") or [{"key": key, "path": key} for key in texts]
        for item in items:
            file = folder / "..2026" / item["path"]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(texts[item["key"]], encoding="utf-8")
        (folder / "..data").symlink_to("..2026")
        for first in {Path(item["path"]).parts[0] for item in items}:
            (folder / first).symlink_to(Path("..data") / first)
    settings = load_pipeline(tmp_path / "etc" / "tailrace" / "pipelines" / "orders.yaml")
    assert settings.schemas is not None
    assert settings.schemas.folder is not None
    assert sorted(file.parent.name for file in settings.schemas.folder.glob("*/1.json")) == [
        "OrderChanged",
        "OrderPlaced",
    ]
    assert (ROOT / "schemas" / "OrderPlaced" / "1.json").exists()
