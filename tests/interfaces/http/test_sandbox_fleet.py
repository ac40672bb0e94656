"""`cellwall fleet` with the driver of agent-sandbox: the real front and the real service of a pod as
processes, against the double of the cluster's API (SRV-6)."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from cellwall.fleet.claims import host_id_of
from databases import PostgresServer, postgres  # noqa: F401  # a fixture
from fleet_hosts import DEADLINE_S, PROGRAM, free_port, until
from interfaces.http.running_service import new_session
from kubernetes_double import ApiDouble, api_server, write_certificate

pytestmark = [
    pytest.mark.long,  # a service in each of its pods; the driver has tests of its own
    pytest.mark.requirement("SRV-6"),
    pytest.mark.xdist_group("postgresql"),
]
REFUSED = 125


@dataclass
class Place:
    """A state folder and a configuration: of the front, or of a pod."""

    folder: Path
    config: str
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.folder / "state").mkdir(parents=True, mode=0o700)
        self.folder.chmod(0o700)
        self.write(self.config)

    def write(self, config: str) -> None:
        (self.folder / "cellwall.toml").write_text(config)

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [PROGRAM, *words],
            env=self._environment(),
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )

    def cellwall(self, *words: str) -> str:
        done = self.call(*words)
        assert done.returncode == 0, done
        return done.stdout

    def start(self, *words: str) -> dict[str, Any]:
        as_root = ["--dangerously-as-root"] if os.geteuid() == 0 else []
        with open(self.folder / "log", "ab") as log:
            made = subprocess.Popen(
                [PROGRAM, *words, "--json", *as_root],
                env=self._environment(),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self.processes.append(made)
        assert made.stdout is not None
        line = made.stdout.readline()
        assert line, (self.folder / "log").read_text()[-4000:]
        told = dict(json.loads(line))
        assert not told.get("error"), told
        return told

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "CELLWALL_HOME": str(self.folder / "state"),
            "CELLWALL_CONFIG": str(self.folder / "cellwall.toml"),
            "CELLWALL_PATH": "cold",
        }

    def stop(self) -> None:
        for each in self.processes:
            each.terminate()
            each.wait(DEADLINE_S)
            assert each.stdout is not None
            each.stdout.close()


@dataclass
class Cluster:
    """The double, a front, the service of one pod, and a user."""

    api: ApiDouble
    front: Place
    pod: Place
    url: str
    trusted: ssl.SSLContext
    token: str = ""

    def client(self, token: str) -> httpx.Client:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(
            base_url=self.url,
            headers=headers,
            timeout=DEADLINE_S,
            trust_env=False,
            verify=self.trusted,
        )

    def status(self) -> list[dict[str, Any]]:
        return list(json.loads(self.front.cellwall("fleet", "status", "--json"))["hosts"])


@contextmanager
def cluster_in(folder: Path, database: str, context: ssl.SSLContext) -> Iterator[Cluster]:
    with api_server(context) as (api, api_port):
        (folder / "token").write_text(api.token)
        api.sandbox_name = socket.gethostname()  # as the name of a pod is its hostname
        port, pod_port = free_port(), free_port()
        url = f"https://127.0.0.1:{port}"
        weaker = "" if os.geteuid() == 0 else "dangerously_without_cgroup = true\n"
        shared = (
            f'[storage]\nurl = "{database}"\n[accounts]\nkey_file = "{folder}/accounts.key"\n'
            f"argon2_memory_kib = 64\nargon2_passes = 1\n[sandbox]\n{weaker}"
            f'[fleet]\ndriver = "agent-sandbox"\n'
            f'[kubernetes]\nurl = "https://127.0.0.1:{api_port}"\ntoken_file = "{folder}/token"\n'
            f'ca_file = "{folder}/ca.crt"\nservice_ca_file = "{folder}/ca.crt"\n'
            f'service_port = {pod_port}\n[server]\npublic_url = "{url}"\n'
            f'tls_certificate = "{folder}/ca.crt"\ntls_key = "{folder}/key"\n'
        )
        front = Place(folder / "front", shared + f"port = {port}\n")
        pod = Place(folder / "pod", shared + f"port = {pod_port}\n")
        trusted = ssl.create_default_context(cafile=folder / "ca.crt")
        found = Cluster(api, front, pod, url, trusted)
        try:
            pod.start("serve")
            front.start("fleet", "up")
            front.cellwall("user", "add", "ann", "--role", "user")
            made = front.cellwall("token", "create", "--user", "ann", "--ttl", "1h")
            found.token = made.strip()
            yield found
        finally:
            front.stop()
            pod.stop()


@pytest.fixture(scope="module")
def cluster(
    postgres: PostgresServer,  # noqa: F811  # a fixture
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("sandbox-fleet")
    with cluster_in(folder, postgres.new_url(), write_certificate(folder)) as found:
        yield found


def test_a_session_claims_a_sandbox_and_its_requests_reach_the_service_there(cluster: Cluster):
    before = len(cluster.api.claims)
    with cluster.client(cluster.token) as client:
        session = new_session(client)
        assert len(cluster.api.claims) == before + 1
        path = f"/v1/sessions/{session}/commands"
        assert client.post(path, json={"command": "echo hi"}).json()["stdout"] == "hi\n"
        hosts = cluster.status()
        assert {each["id"] for each in hosts} == {host_id_of(socket.gethostname())}
        assert {each["sessions"] for each in hosts} == {1}
        assert client.delete(f"/v1/sessions/{session}").status_code == 204


def test_who_is_unknown_or_refused_takes_no_sandbox(cluster: Cluster):
    """A pool is small: strangers who ask for sessions must not empty it."""
    before = len(cluster.api.claims)
    for token in ("", "cwt_" + "0" * 40):
        with cluster.client(token) as stranger:
            for _ in range(5):
                assert stranger.post("/v1/sessions", json={}).status_code == 401
            assert stranger.get("/v1/audit").status_code == 401
    assert len(cluster.api.claims) == before
    with cluster.client(cluster.token) as client:
        refused = client.post("/v1/sessions", json={"template": "no-such-template"})
        assert refused.status_code >= 400, refused.text
        until(lambda: len(cluster.api.claims) == before)
        foreign = {"Cellwall-Labels": "pool=other-tenant"}
        refused = client.post("/v1/sessions", json={}, headers=foreign)
        assert refused.json()["error"]["code"] == "CW-FLEET-FULL"
        assert len(cluster.api.claims) == before
        session = new_session(client)  # the control
        assert len(cluster.api.claims) == before + 1
        assert client.delete(f"/v1/sessions/{session}").status_code == 204


def test_a_host_is_drained_and_removed_in_the_cluster(cluster: Cluster):
    host = cluster.status()[0]["id"]
    cluster.front.cellwall("fleet", "drain", host)
    assert any(each["is_draining"] for each in cluster.status())
    marks = [each["metadata"].get("annotations", {}) for each in cluster.api.claims.values()]
    assert {"cellwall.dev/draining": "true"} in marks
    cluster.front.cellwall("fleet", "drain", host, "--undo")
    assert not any(each["is_draining"] for each in cluster.status())
    before = len(cluster.api.claims)
    cluster.front.cellwall("fleet", "remove", host)
    assert len(cluster.api.claims) == before - 1
    unknown = cluster.front.call("fleet", "drain", host_id_of("no-such"))
    assert (unknown.returncode, "CW-FLEET-UNKNOWN" in unknown.stderr) == (REFUSED, True)


def test_what_cannot_work_is_refused_with_a_hint(cluster: Cluster, tmp_path: Path):
    front, api = cluster.front, cluster.api
    right = (front.folder / "cellwall.toml").read_text()
    closed = f'url = "https://127.0.0.1:{free_port()}"\ntoken_file'
    address = right.partition("[kubernetes]\n")[2].partition("token_file")[0] + "token_file"
    wrong = {
        "CW-KUBERNETES-AWAY": right.replace(address, closed),
        "CW-KUBERNETES-CA": right.replace("/ca.crt", "/missing.crt"),
        "CW-KUBERNETES-TOKEN": right.replace("/token", "/missing"),
    }
    try:
        for code, config in wrong.items():
            front.write(config)
            told = front.call("fleet", "status")
            assert told.returncode == REFUSED, told
            assert code in told.stderr
            assert str(tmp_path.parent) not in told.stderr, "a path of the host"
    finally:
        front.write(right)
    api.token = "another"
    told = front.call("fleet", "status")
    api.token = "first-token"
    assert (told.returncode, "CW-KUBERNETES-DENIED" in told.stderr) == (REFUSED, True)
    for words in (("join", "10.0.0.5:6390"), ("remove", "svc_x", "--revoke")):
        as_root = ["--dangerously-as-root"] if words[0] == "join" and os.geteuid() == 0 else []
        told = front.call("fleet", *words, *as_root)
        assert (told.returncode, "CW-FLEET-DRIVER" in told.stderr) == (REFUSED, True), told
    assert front.call("fleet", "status").returncode == 0  # the control
