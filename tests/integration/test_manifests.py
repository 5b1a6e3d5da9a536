"""The chart, rendered with several values: valid objects that fit each other, the driver, and the server's flags."""

import copy
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from helm_subset import render, render_chart
from tests.support.fake_kubernetes import FakeKubernetes, Use, served

from headrace.cli.serve import load_config, make_parser
from headrace.config.fleet.drivers import DriversConfig, KubernetesConfig
from headrace.config.fleet.pools import DriverKind
from headrace.config.fleet.read import read_fleet
from headrace.core.clock import SystemClock
from headrace.fleet.drivers.build import check_pools, make_driver
from headrace.fleet.drivers.kubernetes.pods import FLEET_LABEL, POOL_LABEL, ROLE_LABEL

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "headrace"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
NAMESPACE = "llm"


def values(**changes: Any) -> dict[str, Any]:
    return {**copy.deepcopy(VALUES), **changes}


def two_pools() -> dict[str, Any]:
    chat = VALUES["pools"]["chat"]
    selecting = {
        "nodeSelector": {"gpu": "yes"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
    }
    serve = {"max-context": 4096, "prefix-cache": False, "served-model-name": "big"}
    large = {**chat, **selecting, "model": "hf:org/large", "minReplicas": 0, "serve": serve}
    return values(pools={"chat": chat, "large": {**large, "role": "decode"}}, fleet="shop")


def rendered(given: dict[str, Any]) -> list[dict[str, Any]]:
    text = render_chart(CHART, given, NAMESPACE)
    return [document for document in yaml.safe_load_all(text) if document]


def of_kind(documents: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    return {d["metadata"]["name"]: d for d in documents if d["kind"] == kind}


SETTINGS = {
    "default": values(),
    "two pools": two_pools(),
    "keda": {**two_pools(), "scaler": "keda"},
    "hpa": {**two_pools(), "scaler": "hpa"},
    "admin": values(gateway={**VALUES["gateway"], "adminSecret": "keys"}),
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("version", ["1.25", "1.29", "1.33"])
def test_every_object_is_valid(name: str, version: str) -> None:
    documents = rendered(SETTINGS[name])
    assert len(documents) >= 9
    for document in documents:
        if document["kind"] != "ScaledObject":  # KEDA's own; no schema of it is at hand
            kubernetes_validate.validate(document, version, strict=True)
        assert document["metadata"]["namespace"] == NAMESPACE
        assert document["metadata"]["labels"][FLEET_LABEL] == SETTINGS[name]["fleet"]


def test_a_wrong_object_is_not_valid() -> None:
    document = of_kind(rendered(values()), "Deployment")["headrace-chat"]
    document["spec"]["replica"] = 3
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, "1.33", strict=True)


@pytest.mark.parametrize("name", SETTINGS)
def test_the_gateway_can_read_its_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_ADMIN_KEYS", "secret")
    given = SETTINGS[name]
    config_map = of_kind(rendered(given), "ConfigMap")[f"{given['fleet']}-gateway"]
    file = tmp_path / "fleet.yaml"
    file.write_text(config_map["data"]["fleet.yaml"])
    config = read_fleet(file)
    check_pools(config.pools)
    assert {pool.name for pool in config.pools} == set(given["pools"])
    assert all(pool.driver is DriverKind.KUBERNETES for pool in config.pools)
    assert config.autoscaler.advisory == (given["scaler"] != "headrace")
    assert (config.gateway.admin_keys is not None) == (name == "admin")
    assert config.name == given["fleet"]


def test_what_else_is_said_of_the_gateway_stands_in_its_file(tmp_path: Path) -> None:
    more = {"routing": {"policy": "round_robin"}, "health": {"probe_period": 2}}
    given = values(gateway={**VALUES["gateway"], "config": more})
    config_map = of_kind(rendered(given), "ConfigMap")["headrace-gateway"]
    (tmp_path / "fleet.yaml").write_text(config_map["data"]["fleet.yaml"])
    config = read_fleet(tmp_path / "fleet.yaml")
    assert config.routing.policy == "round_robin"
    assert config.health.probe_period == 2


@pytest.mark.parametrize("name", SETTINGS)
def test_servers_take_the_flags_of_their_pods(name: str) -> None:
    given = SETTINGS[name]
    deployments = of_kind(rendered(given), "Deployment")
    for pool, told in given["pools"].items():
        deployment = deployments[f"{given['fleet']}-{pool}"]
        template = deployment["spec"]["template"]
        (container,) = template["spec"]["containers"]
        command, sub, *flags = container["args"]
        assert (command, sub) == ("headrace", "serve")
        config = load_config(make_parser(flags).parse(flags)).config
        assert config.engine.model.model == told["model"]
        assert config.server.port == container["ports"][0]["containerPort"] == 8000
        assert config.server.role == told["role"] == template["metadata"]["labels"][ROLE_LABEL]
        assert template["metadata"]["labels"][POOL_LABEL] == pool
        # It is killed only after it has had the time to finish what it has.
        assert template["spec"]["terminationGracePeriodSeconds"] > config.server.drain_timeout
        assert "replicas" not in deployment["spec"]
        labels = deployment["spec"]["selector"]["matchLabels"]
        assert labels.items() <= template["metadata"]["labels"].items()


@pytest.mark.parametrize("scaler", ["keda", "hpa"])
def test_other_scalers_name_deployments_and_metrics_that_there_are(scaler: str) -> None:
    documents = rendered({**two_pools(), "scaler": scaler})
    deployments = of_kind(documents, "Deployment")
    found = of_kind(documents, "ScaledObject") | of_kind(documents, "HorizontalPodAutoscaler")
    assert set(found) == {"shop-chat", "shop-large"}
    reference = (CHART.parents[2] / "docs" / "reference" / "metrics.md").read_text()
    assert "`headrace_gateway_queue_requests` | gauge" in reference
    for document in found.values():
        assert document["spec"]["scaleTargetRef"]["name"] in deployments
        assert "headrace_gateway_queue_requests" in yaml.safe_dump(document)


async def test_the_gateway_may_do_what_the_driver_does_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t")
    with served(FakeKubernetes({"t"})) as cluster:
        config = KubernetesConfig(api=cluster.url, credentials=str(tmp_path), namespace=NAMESPACE)
        driver = make_driver(
            DriverKind.KUBERNETES, "shop", DriversConfig(kubernetes=config), SystemClock()
        )
        cluster.deploy("shop", "chat", 2)
        cluster.run_pods()
        one, other = await driver.list()
        await driver.describe(one.id)
        await driver.stop(one.id, grace=1)
        await driver.stop(other.id, grace=1)
        used = cluster.uses
    (role,) = of_kind(rendered(values()), "Role").values()
    allowed = {
        Use(group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert used == allowed


ROOT = {"Values": {"a": {"b": 1, "c": "x y"}, "n": None, "t": True, "m": {"k2": 2, "k1": 1}}}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ .Values.a.b }}", "1"),
        ("{{ .Values.a.c | quote }}", '"x y"'),
        ("{{ .Values.t }}", "true"),
        ("a {{- .Values.a.b -}} b", "a1b"),
        ("a\n{{- /* words */ -}}\nb", "ab"),
        ("{{ if .Values.n }}yes{{ else }}no{{ end }}", "no"),
        ('{{ if eq .Values.a.c "x y" }}yes{{ end }}', "yes"),
        ("{{ with .Values.a }}{{ .b }}{{ $.Values.t }}{{ end }}", "1true"),
        ("{{ range $k, $v := .Values.m }}{{ $k }}={{ $v }};{{ end }}", "k1=1;k2=2;"),
        ("{{ .Values.n | default 7 }}", "7"),
        ('{{ printf "%s-%v" .Values.a.c .Values.a.b }}', "x y-1"),
        ("x:{{ toYaml .Values.m | nindent 2 }}", "x:\n  k1: 1\n  k2: 2"),
    ],
)
def test_the_subset_of_templates(template: str, text: str) -> None:
    assert render(template, ROOT) == text


@pytest.mark.parametrize(
    "template",
    [
        "{{ .Values.n }}", "{{ .Values.missing }}", "{{ .Values.a.b.c }}", "{{ .Values.a }}",
        '{{ include "x" . }}', "{{ if .Values.t }}", "{{ end }}", "{{ .Values.t", "{{ $x }}",
        "{{ range .Values.m }}{{ end }}", '{{ (eq 1 1) }}', '{{ printf "%d" 1 }}', "{{ define }}",
        "{{ 1000000 }}",
    ],
)  # fmt: skip
def test_what_is_not_of_the_subset_is_refused(template: str) -> None:
    with pytest.raises((ValueError, KeyError)):
        render(template, ROOT)
