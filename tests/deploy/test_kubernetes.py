"""The Kubernetes manifests: built by Kustomize, checked against the published schemas and our own code."""

from __future__ import annotations

import tomllib
import urllib.request
from pathlib import Path

import kubernetes_validate
import pytest
import typer
import yaml
from prometheus_client import CollectorRegistry
from typer.core import TyperGroup

import fedmap_aggregator.cli.main
import fedmap_site.cli.main
from fedmap.process.addresses import port_of
from fedmap.process.settings import parse_config
from fedmap.process.telemetry import TelemetryServer
from fedmap_aggregator.config import AggregatorConfig
from fedmap_site.config import SiteConfig
from fedmap_site.policy import read_policy
from tests.deploy.kubernetes_files import FOLDER, OVERLAYS, Built, built, manifests

VERSION = tomllib.loads((FOLDER.parents[1] / "pyproject.toml").read_text())["project"]["version"]

VERSIONS = ("1.31", "1.34", "1.37")
LABELS = ("enforce", "audit", "warn")


@pytest.fixture(params=OVERLAYS)
def overlay(request: pytest.FixtureRequest) -> Built:
    return built(request.param)


@pytest.fixture(params=[name for name in OVERLAYS if name.startswith("aggregator-")])
def centre(request: pytest.FixtureRequest) -> Built:
    return built(request.param)


@pytest.fixture(params=[name for name in OVERLAYS if name.startswith("site-")])
def site(request: pytest.FixtureRequest) -> Built:
    return built(request.param)


def centre_config(centre: Built) -> AggregatorConfig:
    return parse_config(
        centre.config("aggregator.toml"), "aggregator.toml", Path("/etc/fedmap"), AggregatorConfig
    )


def site_config(site: Built) -> SiteConfig:
    return parse_config(site.config("site.toml"), "site.toml", Path("/etc/fedmap"), SiteConfig)


# Files as they are written: no tool needed


def test_every_resource_of_the_bases_fits_the_schema() -> None:
    found = list(manifests())
    assert len(found) >= 10
    for _, document in found:
        filled = yaml.safe_load(yaml.safe_dump(document))
        if filled["kind"] == "StatefulSet":  # the labels of the kustomization come here
            filled["spec"]["template"]["metadata"] = {"labels": filled["spec"]["selector"]["matchLabels"]}
        kubernetes_validate.validate(filled, VERSIONS[-1], strict=True)


def test_a_misspelt_key_is_seen() -> None:
    policy = next(document for _, document in manifests() if document["kind"] == "NetworkPolicy")
    wrong = policy | {"spec": policy["spec"] | {"egres": []}}
    with pytest.raises(kubernetes_validate.ValidationError, match="egres"):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


def test_kustomizations_name_every_file_beside_them_and_no_other() -> None:
    for path in FOLDER.rglob("kustomization.yaml"):
        read = yaml.safe_load(path.read_text())
        named = {name for name in read["resources"] if not name.startswith("..")}
        named |= {patch["path"] for patch in read.get("patches", ())}
        named |= {name for one in read["configMapGenerator"] for name in one["files"]}
        assert named == {file.name for file in path.parent.iterdir()} - {"kustomization.yaml"}


# Overlays as Kustomize builds them


@pytest.mark.parametrize("version", VERSIONS)
def test_everything_that_an_overlay_builds_fits_the_schema(overlay: Built, version: str) -> None:
    for document in overlay.documents:
        kubernetes_validate.validate(document, version, strict=True)


def test_the_namespace_admits_restricted_pods_alone(overlay: Built) -> None:
    namespace = overlay.one("Namespace")["metadata"]
    for label in LABELS:
        assert namespace["labels"][f"pod-security.kubernetes.io/{label}"] == "restricted"
    for document in overlay.documents:
        if document["kind"] != "Namespace":
            assert document["metadata"]["namespace"] == namespace["name"]


def test_no_pod_asks_for_more_than_the_restricted_profile_gives(overlay: Built) -> None:
    pod = overlay.pod["securityContext"]
    assert pod["runAsNonRoot"] is True
    assert pod["runAsUser"] > 0
    assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["fsGroupChangePolicy"] == "OnRootMismatch"
    for kind in ("hostNetwork", "hostPID", "hostIPC"):
        assert not overlay.pod.get(kind)
    allowed = {"configMap", "emptyDir", "secret", "persistentVolumeClaim"}
    assert all(set(volume) - {"name"} <= allowed for volume in overlay.pod["volumes"])
    for container in overlay.containers():
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert not any("hostPort" in port for port in container.get("ports", ()))
        assert container["resources"]["requests"]
        assert container["resources"]["limits"]["memory"]


def test_the_pod_gets_no_token_of_the_cluster(overlay: Built) -> None:
    assert overlay.one("ServiceAccount")["automountServiceAccountToken"] is False
    assert overlay.pod["automountServiceAccountToken"] is False
    assert overlay.pod["serviceAccountName"] == overlay.one("ServiceAccount")["metadata"]["name"]


def test_there_is_never_more_than_one_pod_of_a_state(overlay: Built) -> None:
    stateful = overlay.one("StatefulSet")["spec"]
    assert stateful["replicas"] == 1
    (claim,) = stateful["volumeClaimTemplates"]
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert overlay.one("PodDisruptionBudget")["spec"]["minAvailable"] == 1


def test_every_selector_finds_the_pod_and_dns_is_found_by_its_own_labels(overlay: Built) -> None:
    labels = overlay.one("StatefulSet")["spec"]["template"]["metadata"]["labels"].items()
    selectors = [
        overlay.one("StatefulSet")["spec"]["selector"]["matchLabels"],
        overlay.one("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        overlay.one("NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
        *(service["spec"]["selector"] for service in overlay.all_of("Service")),
    ]
    assert all(selector and selector.items() <= labels for selector in selectors)
    names = {service["metadata"]["name"] for service in overlay.all_of("Service")}
    assert overlay.one("StatefulSet")["spec"]["serviceName"] in names
    for rule in overlay.one("NetworkPolicy")["spec"]["egress"]:
        for peer in rule["to"]:
            assert peer.get("podSelector", {"matchLabels": {"k8s-app": "kube-dns"}}) == {
                "matchLabels": {"k8s-app": "kube-dns"}
            }


def test_services_probes_and_policies_name_ports_that_the_container_has(overlay: Built) -> None:
    ports = {port["name"]: port["containerPort"] for port in overlay.container["ports"]}
    for service in overlay.all_of("Service"):
        for port in service["spec"]["ports"]:
            assert ports[port["targetPort"]] == port["port"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert overlay.container[probe]["httpGet"]["port"] == "metrics"
    config = site_config(overlay) if overlay.is_site else centre_config(overlay)
    assert port_of(config.metrics.listen) == ports["metrics"]
    ingress = overlay.one("NetworkPolicy")["spec"]["ingress"]
    assert {port["port"] for rule in ingress for port in rule["ports"]} == set(ports.values())


def test_probes_ask_for_pages_that_are_really_served(overlay: Built) -> None:
    server = TelemetryServer("127.0.0.1:0", CollectorRegistry(), lambda: None)
    server.start()
    try:
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            page = overlay.container[probe]["httpGet"]["path"]
            with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{page}", timeout=10) as answer:
                assert answer.status == 200
        assert overlay.container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    finally:
        server.stop()


def test_containers_run_commands_and_options_that_exist(overlay: Built) -> None:
    app = fedmap_site.cli.main.app if overlay.is_site else fedmap_aggregator.cli.main.app
    root = typer.main.get_command(app)
    assert isinstance(root, TyperGroup)
    for container in overlay.containers():
        assert "command" not in container  # the image's entry point, with tini before it
        name, *rest = container["args"]
        known = {option for parameter in root.commands[name].params for option in parameter.opts}
        assert {word.partition("=")[0] for word in rest} <= known
        assert container["image"] == overlay.container["image"]
        assert container["image"].endswith(f":{VERSION}")


def test_the_first_start_makes_an_identity_and_a_later_one_does_not(overlay: Built) -> None:
    (first,) = overlay.pod["initContainers"]
    assert first["args"][:2] == (["enrol", "--if-missing"] if overlay.is_site else ["init", "--if-missing"])


# The aggregator


def test_the_aggregator_accepts_its_configuration_and_finds_its_folders(centre: Built) -> None:
    config = centre_config(centre)
    named = {port["name"]: port["containerPort"] for port in centre.container["ports"]}
    assert port_of(config.listen) == named["grpc"]
    for container in centre.containers():
        mounts = centre.mounts(container)
        (state,) = (folder for folder, volume in mounts.items() if "claim" in volume)
        assert config.server.state.parent == state  # below the volume: its top belongs to root
        assert not mounts[state]["readOnly"]
        assert mounts[Path("/etc/fedmap")]["readOnly"]
        secret = {folder for folder, volume in mounts.items() if "secret" in volume and volume["readOnly"]}
        external = config.pki.external
        files = [config.database.url_file, config.release.key]
        files += [external.server_certificate, external.server_key, external.client_ca] if external else []
        assert {file.parent for file in files if file is not None} == secret


def test_the_aggregator_is_reached_on_its_port_and_reaches_nothing_but_its_database(centre: Built) -> None:
    policy = centre.one("NetworkPolicy")["spec"]
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    sites, metrics = policy["ingress"]
    assert (sites["ports"], "from" in sites) == ([{"protocol": "TCP", "port": 8443}], False)
    assert metrics["from"] == [
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    ]
    reached = {port["port"] for rule in policy["egress"] for port in rule["ports"]}
    assert reached == ({53, 5432} if centre.overlay == "aggregator-postgres" else set())


def test_secrets_are_files_for_the_pods_group_alone(overlay: Built) -> None:
    for volume in overlay.pod["volumes"]:
        if "secret" in volume:
            assert volume["secret"]["defaultMode"] == 0o440
    assert overlay.all_of("Secret") == ()


# The agent


def test_the_agent_accepts_its_configuration_and_policy(site: Built, tmp_path: Path) -> None:
    config = site_config(site)
    mounts = site.mounts(site.container)
    (state,) = (folder for folder, volume in mounts.items() if "claim" in volume)
    assert config.site.state.parent == state
    assert config.data.file is not None
    data = mounts[config.data.file.parent]
    assert data["readOnly"]
    assert data["persistentVolumeClaim"]["readOnly"]
    assert config.policy.file.parent == Path("/etc/fedmap")
    (tmp_path / "policy.toml").write_text(site.config(config.policy.file.name))
    expected = "review" if site.overlay == "site-review" else "automatic"
    assert read_policy(tmp_path / "policy.toml").egress == expected


def test_the_agent_reaches_one_address_and_nothing_reaches_the_agent(site: Built) -> None:
    config, policy = site_config(site), site.one("NetworkPolicy")["spec"]
    dns, outside = policy["egress"]
    assert {port["port"] for port in dns["ports"]} == {53}
    (peer,) = outside["to"]
    assert peer["ipBlock"]["cidr"].endswith("/32")
    dialled = config.aggregator.proxy or config.aggregator.address
    assert [port["port"] for port in outside["ports"]] == [port_of(dialled)]
    (metrics,) = policy["ingress"]
    assert metrics["ports"] == [{"protocol": "TCP", "port": 9464}]
    assert [service["spec"]["clusterIP"] for service in site.all_of("Service")] == ["None"]


def test_the_running_agent_does_not_see_the_invitation(site: Built) -> None:
    assert not any("secret" in volume for volume in site.mounts(site.container).values())
    assert not any("valueFrom" in one for one in site.container["env"])
