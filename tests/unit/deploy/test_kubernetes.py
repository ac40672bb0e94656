"""The manifests of deploy/kubernetes: valid by strict schemas, and no weaker than the walls need."""

from __future__ import annotations

import copy
import re
import shutil
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from cellwall.admin.fleet import check_fleet_settings
from cellwall.config.load import load_settings
from conftest import need
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


def environment(container: Resource) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in container["env"]}


@pytest.mark.requirement("SRV-6")
def test_ray_is_tls_in_every_container_and_only_one_sees_the_authority():
    (settings,) = resources("settings")
    assert "dangerously_without_tls" not in settings["data"]["config.toml"]
    for role, pod in pods():
        for container in pod["containers"]:
            given = environment(container)
            assert (given["RAY_USE_TLS"], given["RAY_AUTH_MODE"]) == ("1", "token")
            files = [given[name] for name in given if name.startswith("RAY_TLS_")]
            assert sorted(files) == [f"/run/cellwall/ray-{name}" for name in MADE]
        seeing = {
            container["name"]
            for container in (*pod["initContainers"], *pod["containers"])
            if "given-authority" in {mount["name"] for mount in container["volumeMounts"]}
        }
        assert seeing == {"certificate"}, role


MADE = ("ca.pem", "tls.key", "tls.pem")


def make_certificate(folder: Path, authority: Path, **environ: str) -> Path:
    """By the script of the init container."""
    (found,) = resources("certificate")
    script = folder / "certificate.py"
    script.write_text(found["data"]["certificate.py"], "utf-8")
    given = {"GIVEN": str(authority), "MADE": str(folder), **environ}
    subprocess.run([sys.executable, "-I", script], env=given, check=True)
    assert {path.name for path in folder.glob("ray-*")} == {f"ray-{name}" for name in MADE}
    assert (folder / "ray-tls.key").stat().st_mode & 0o777 == 0o600
    return folder


def make_authority(folder: Path) -> Path:
    """By the command of the guide."""
    folder.mkdir()
    guide = (FOLDER.parents[1] / "docs/guides/kubernetes.md").read_text("utf-8")
    (command,) = re.findall(r"^openssl req .*?(?<!\\)$", guide, re.MULTILINE | re.DOTALL)
    subprocess.run(["sh", "-euc", command], cwd=folder, check=True, stderr=subprocess.DEVNULL)
    return folder


def handshake(server: Path, client: Path, name: str) -> None:
    """TLS on both ends, as Ray has it; raises where one end does not accept the other."""
    sides = []
    for folder, purpose in ((server, ssl.Purpose.CLIENT_AUTH), (client, ssl.Purpose.SERVER_AUTH)):
        context = ssl.create_default_context(purpose, cafile=str(folder / "ray-ca.pem"))
        context.load_cert_chain(folder / "ray-tls.pem", folder / "ray-tls.key")
        context.verify_mode = ssl.CERT_REQUIRED
        sides.append((context, ssl.MemoryBIO(), ssl.MemoryBIO()))
    (at_server, to_server, from_server), (at_client, to_client, from_client) = sides
    ends = [
        at_client.wrap_bio(to_client, from_client, server_hostname=name),
        at_server.wrap_bio(to_server, from_server, server_side=True),
    ]
    for _ in range(6):
        for end in ends:
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
            to_server.write(from_client.read())
            to_client.write(from_server.read())
    for end in ends:
        end.do_handshake()
        with suppress(ssl.SSLWantReadError):
            end.read(1)  # TLS 1.3: a refused client learns it with the first bytes


@pytest.mark.requirement("SRV-6")
def test_pods_know_each_other_by_certificates_of_their_authority_and_address(tmp_path):
    need(shutil.which("openssl"), "openssl")
    ours, foreign = (make_authority(tmp_path / name) for name in ("ours", "foreign"))
    certificate = {name: c for name, c in containers() if name.endswith("/certificate")}
    names = environment(certificate["front/certificate"])["NAMES"]
    assert "NAMES" not in environment(certificate["host/certificate"])
    for each in ("front", "host", "stranger"):
        (tmp_path / each).mkdir()
    front = make_certificate(tmp_path / "front", ours, POD_IP="10.1.0.1", NAMES=names)
    host = make_certificate(tmp_path / "host", ours, POD_IP="10.1.0.2")
    stranger = make_certificate(tmp_path / "stranger", foreign, POD_IP="10.1.0.2")
    for name in ("10.1.0.1", "127.0.0.1", *names.split()):
        handshake(front, host, name)
    handshake(host, front, "10.1.0.2")
    for server, client, name in (
        (host, front, "10.1.0.1"),  # the address of another pod
        (host, front, "cellwall-head-svc"),  # a host is not the head
        (stranger, front, "10.1.0.2"),
        (front, stranger, "10.1.0.1"),
    ):
        with pytest.raises(ssl.SSLError):
            handshake(server, client, name)


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
