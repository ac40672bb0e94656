"""The manifests of deploy/kubernetes: valid by strict schemas, and no weaker than the walls need."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cellwall.admin.fleet import check_fleet_settings
from cellwall.config.load import load_settings
from kubernetes_schemas import problems

FOLDER = Path(__file__).parents[3] / "deploy" / "kubernetes"
Resource = dict[str, Any]


def resources(name: str = "*") -> list[Resource]:
    return [
        resource
        for path in sorted(FOLDER.glob(f"{name}.yaml"))
        if path.name != "kustomization.yaml"
        for resource in yaml.safe_load_all(path.read_text("utf-8"))
    ]


def cluster() -> Resource:
    (found,) = resources("fleet")
    return found


def pods() -> Iterator[tuple[str, Resource]]:
    spec = cluster()["spec"]
    yield "front", spec["headGroupSpec"]["template"]["spec"]
    for group in spec["workerGroupSpecs"]:
        yield "host", group["template"]["spec"]


def containers() -> Iterator[tuple[str, Resource]]:
    for role, pod in pods():
        for container in (*pod["initContainers"], *pod["containers"]):
            yield f"{role}/{container['name']}", container


def test_every_manifest_is_valid_and_applied():
    listed = yaml.safe_load((FOLDER / "kustomization.yaml").read_text("utf-8"))["resources"]
    there = {path.name for path in FOLDER.glob("*.yaml")} - {"kustomization.yaml"}
    assert there - set(listed) == {"secrets.example.yaml"}
    found = {f"{each['kind']} {each['metadata']['name']}": problems(each) for each in resources()}
    assert {name: wrong for name, wrong in found.items() if wrong} == {}
    assert len(found) > 10


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "headGroupSpec", "template", "spec", "hostUser"), False),
        (("spec", "workerGroupSpecs", 0, "replica"), 3),
        (("spec", "workerGroupSpecs", 0, "replicas"), "three"),
        (("spec", "authOptions", "mode"), "none"),
        (("metadata", "label"), {}),
        (("kind",), "RayClusters"),
    ],
)
def test_a_wrong_field_is_refused(path, value):
    wrong = copy.deepcopy(cluster())
    at: Any = wrong
    for part in path[:-1]:
        at = at[part]
    at[path[-1]] = value
    assert problems(wrong) != []


def test_no_container_has_more_than_the_walls_need():
    weaker = {}
    for name, container in containers():
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False, name
        assert context["readOnlyRootFilesystem"] is True, name
        assert context["capabilities"] == {"drop": ["ALL"]}, name
        assert set(container["resources"]) == {"requests", "limits"}, name
        usual = {"allowPrivilegeEscalation", "readOnlyRootFilesystem", "capabilities"}
        if more := set(context) - usual:
            weaker[name] = more
    assert weaker == {"host/ray-worker": {"seccompProfile", "appArmorProfile", "procMount"}}


def test_no_pod_shares_anything_with_its_node():
    for role, pod in pods():
        assert pod["hostUsers"] is False, role
        assert pod["automountServiceAccountToken"] is False, role
        assert pod["securityContext"]["runAsNonRoot"] is True, role
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod), role
        kinds = {kind for volume in pod["volumes"] for kind in volume if kind != "name"}
        assert kinds == {"emptyDir", "configMap", "secret"}, role
    kinds = {each["kind"] for each in resources()}
    assert not kinds & {"Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"}


def test_what_pods_name_is_there():
    names = {(each["kind"], each["metadata"]["name"]) for each in resources()}
    for _, pod in pods():
        assert ("ServiceAccount", pod["serviceAccountName"]) in names
        for volume in pod["volumes"]:
            if "secret" in volume:
                assert ("Secret", volume["secret"]["secretName"]) in names
            if "configMap" in volume:
                assert ("ConfigMap", volume["configMap"]["name"]) in names
        mounts = {m["name"] for c in pod["containers"] for m in c["volumeMounts"]}
        assert mounts <= {volume["name"] for volume in pod["volumes"]}
    assert ("Secret", cluster()["spec"]["authOptions"]["secretName"]) in names


def test_settings_are_those_of_a_fleet(tmp_path):
    (found,) = resources("settings")
    file = tmp_path / "config.toml"
    file.write_text(found["data"]["config.toml"].replace("POD_IP", "10.1.2.3"), "utf-8")
    file.chmod(0o600)
    settings = load_settings(file=str(file), profile=None, environ={})
    check_fleet_settings(settings)
    assert settings.fleet.node_address == "10.1.2.3"
    for _, pod in pods():
        assert pod["terminationGracePeriodSeconds"] > settings.server.drain_s
    join = next(c["command"] for n, c in containers() if n == "host/cellwall")
    assert f"cellwall-head-svc:{settings.fleet.port}" in join


def test_only_pods_of_the_fleet_reach_ray_and_only_clients_the_front():
    policies = {each["metadata"]["name"]: each["spec"] for each in resources("network")}
    denied = policies.pop("cellwall-nothing")
    assert denied == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    opened = {name: spec["ingress"] for name, spec in policies.items() if "ingress" in spec}
    fleet = {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "cellwall"}}}
    assert opened == {
        "cellwall-fleet": [{"from": [fleet]}],
        "cellwall-clients": [{"ports": [{"protocol": "TCP", "port": "https"}]}],
    }
    (outside,) = policies["cellwall-egress"]["egress"]
    assert "169.254.0.0/16" in outside["to"][0]["ipBlock"]["except"]
