"""The manifests of deploy/kubernetes: valid by strict schemas, and no weaker than the walls need."""

from __future__ import annotations

import copy
import os
import re
import shutil
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
import yaml

from cellwall.admin.fleet import check_fleet_settings
from cellwall.admin.fleet_trust import listening_for_machines, trust_of_running_ray
from cellwall.config.load import load_settings
from cellwall.config.models import Settings
from cellwall.fleet.pod_tokens import AUDIENCE
from conftest import need
from databases import PostgresServer, postgres  # noqa: F401  # a fixture
from kubernetes_double import api_server, write_certificate
from kubernetes_schemas import problems
from unit.fleet.test_pod_tokens import genuine, pod_token

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
        assert kinds == {"emptyDir", "configMap", "secret", "projected"}, role


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


MADE = ("ca.pem", "tls.key", "tls.pem")


def mounted(container: Resource) -> set[str]:
    return {mount["name"] for mount in container["volumeMounts"]}


@pytest.mark.requirement("SRV-6")
def test_ray_is_tls_in_every_container_and_sees_no_authority():
    (settings,) = resources("settings")
    assert "dangerously_without_tls" not in settings["data"]["config.toml"]
    for role, pod in pods():
        for container in pod["containers"]:
            given = environment(container)
            assert (given["RAY_USE_TLS"], given["RAY_AUTH_MODE"]) == ("1", "token")
            files = [given[name] for name in given if name.startswith("RAY_TLS_")]
            assert sorted(files) == [f"/run/cellwall/ray-{name}" for name in MADE]
        (authority,) = (each for each in pod["volumes"] if each["name"] == "given-authority")
        items = authority["secret"].get("items")
        # The key is in the pod of the front alone, and there not where Ray runs.
        assert items == (None if role == "front" else [{"key": "ca.crt", "path": "ca.crt"}])
    front = dict(containers())["front/ray-head"]
    assert mounted(front) == {"run", "ray", "memory"}


@pytest.mark.requirement("SRV-6")
def test_a_pod_joins_by_a_token_that_only_its_init_container_sees():
    (settings,) = resources("settings")
    (section,) = re.findall(r'host_account = "(.*)"', settings["data"]["config.toml"])
    for role, pod in pods():
        assert (pod["serviceAccountName"] == section) == (role == "host")
        tokens = {
            volume["name"]: source["serviceAccountToken"].get("audience")
            for volume in pod["volumes"]
            for source in volume.get("projected", {}).get("sources", ())
            if "serviceAccountToken" in source
        }
        seeing = {
            (each["name"], name)
            for each in (*pod["initContainers"], *pod["containers"])
            for name in mounted(each) & set(tokens)
        }
        if role == "front":
            assert (tokens, seeing) == ({"account": None}, {("cellwall", "account")})
        else:
            assert (tokens, seeing) == ({"given-pod": AUDIENCE}, {("certificate", "given-pod")})
    # The front may ask whose token it is, and nobody may do more.
    roles = [each for each in resources() if "Role" in each["kind"]]
    assert [each["kind"] for each in roles] == ["ClusterRole", "ClusterRoleBinding"]
    rule = {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"]}
    assert roles[0]["rules"] == [{**rule, "verbs": ["create"]}]
    assert [each["name"] for each in roles[1]["subjects"]] == ["cellwall-front"]
    join = next(each for each in resources() if each["metadata"]["name"] == "cellwall-join")
    assert join["kind"] == "ClusterRole"
    services = {each["metadata"]["name"]: each["spec"] for each in resources("service")}
    assert services["cellwall-join"]["publishNotReadyAddresses"] is True
    (port,) = services["cellwall-join"]["ports"]
    words = " ".join(dict(containers())["host/certificate"]["args"])
    assert f"cellwall fleet certify cellwall-join:{port['port']} " in words
    # Of no other pod: each host has a certificate for its own address.
    assert " --name cellwall-join " in " ".join(dict(containers())["front/certificate"]["args"])


class Pod:
    """The state folder and the configuration of a pod, and what its init containers do there."""

    def __init__(self, folder: Path, address: str, **texts: str) -> None:
        self.home, self.made = folder / "state", folder / "run"
        for each in (folder, self.home, self.made):
            each.mkdir(mode=0o700)
        (found,) = resources("settings")
        text = found["data"]["config.toml"].replace("POD_IP", address)
        for old, new in {"/run/cellwall": str(self.made), **texts}.items():
            assert old in text, old
            text = text.replace(old, new)
        self.config = folder / "config.toml"
        self.config.write_text(text, "utf-8")
        (self.made / "fleet.token").write_text("t" * 64)
        for file in (self.config, self.made / "fleet.token"):
            file.chmod(0o600)

    def environment(self) -> dict[str, str]:
        folder = os.path.dirname(sys.executable)
        return {
            "PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(self.home),
            "CELLWALL_CONFIG": str(self.config), "CELLWALL_HOME": str(self.home),
        }  # fmt: skip

    def certify(self, role: str, given: Path, **texts: str) -> subprocess.CompletedProcess[str]:
        """Run the init container of the manifests."""
        (script,) = dict(containers())[f"{role}/certificate"]["args"]
        paths = {"/state": self.home, "/run/cellwall": self.made, "/given/authority": given}
        for old, new in {**{key: str(value) for key, value in paths.items()}, **texts}.items():
            assert old in script, old
            script = script.replace(old, new)
        return subprocess.run(
            ["/bin/sh", "-euc", script],
            env=self.environment(), capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    def settings(self) -> Settings:
        return load_settings(file=str(self.config), profile=None, environ={})


@pytest.mark.slow
@pytest.mark.requirement("SRV-6")
@pytest.mark.xdist_group("postgresql")
@pytest.mark.long  # ten starts of the command; enrolment has its tests
def test_pods_get_certificates_by_their_init_containers_and_know_each_other(
    postgres: PostgresServer,  # noqa: F811  # a fixture
    tmp_path,
):
    need(shutil.which("openssl"), "openssl")
    ours, token = make_authority(tmp_path / "ours"), tmp_path / "token"
    foreign = make_authority(tmp_path / "foreign")
    (tmp_path / "api").mkdir()
    database = {
        "postgresql://cellwall@postgres.example.com/cellwall?sslmode=verify-full": (
            postgres.new_url()
        ),
        'password_file = "': '# "',
    }
    with api_server(write_certificate(tmp_path / "api")) as (api, port):
        (tmp_path / "api/token").write_text(api.token)
        cluster = {
            "[kubernetes]": f'[kubernetes]\nurl = "https://127.0.0.1:{port}"',
            "/run/account": str(tmp_path / "api"),
        }
        front = Pod(tmp_path / "front", "127.0.0.2", **database, **cluster)
        host = Pod(tmp_path / "host", "127.0.0.3", **database)
        thief = Pod(tmp_path / "thief", "127.0.0.4", **database)
        done = front.certify("front", ours)
        assert done.returncode == 0, done
        token.write_text(pod_token())
        token.chmod(0o600)
        api.reviews[token.read_text()] = genuine()
        joins = {"cellwall-join": "127.0.0.2", "/given/pod/token": str(token)}

        async def serve(work: Callable[[], None]) -> None:
            home, settings = str(front.home), front.settings()
            given = str(front.made / "fleet.token")
            trust = trust_of_running_ray(home, settings, given, creates=True)
            async with listening_for_machines(home, settings, trust, ray_address=""):
                await anyio.to_thread.run_sync(work)

        def join() -> None:
            refused = thief.certify("host", foreign, **joins)
            assert "CW-FLEET-PIN" in refused.stderr, refused
            done = host.certify("host", ours, **joins)
            assert done.returncode == 0, done
            made = {path.name: path.read_bytes() for path in host.made.glob("ray-*")}
            again = host.certify("host", ours, **joins)  # an init container may run twice
            assert again.returncode == 0, again
            assert {path.name: path.read_bytes() for path in host.made.glob("ray-*")} == made
            refused = thief.certify("host", ours, **joins)
            assert "CW-FLEET-TOKEN" in refused.stderr, refused

        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("RAY_USE_TLS", "1")
            anyio.run(serve, join)
    assert not (thief.made / "ray-tls.pem").exists()
    assert not (host.home / "fleet" / "ca.key").exists()
    names = [f"cellwall-head-svc{end}" for end in ("", ".cellwall", ".cellwall.svc")]
    for name in ("127.0.0.2", "127.0.0.1", "localhost", *names, f"{names[-1]}.cluster.local"):
        handshake(front.made, host.made, name)
    handshake(host.made, front.made, "127.0.0.3")
    for name in ("127.0.0.2", "cellwall-head-svc"):  # of another pod; a host is not the head
        with pytest.raises(ssl.SSLError):
            handshake(host.made, front.made, name)


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
