"""Ray's own server lets in only who has the token and a certificate of the authority (SRV-6).

The server is that of a first node, started alone: the agents of a whole node would take a minute.
"""

from __future__ import annotations

import base64
import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from cellwall.fleet.identity import fleet_folder
from cellwall.fleet.ray_node import RayTrust, ray_environment
from unit.fleet.trusting import FIRST, Fleet

pytestmark = [pytest.mark.requirement("SRV-6"), pytest.mark.long]
ray = pytest.importorskip("ray")
_CLIENT = """
import sys
from ray._raylet import GcsClient
client = GcsClient(address=sys.argv[1])
client.internal_kv_put(b"k", b"v", True, None, timeout=10)
print("in", client.internal_kv_get(b"k", None, timeout=10))
"""


def trust_of(fleet: Fleet) -> RayTrust:
    folder = fleet_folder(fleet.home)
    (fleet.folder / "token").write_text("a" * 64)
    return RayTrust(
        token_file=str(fleet.folder / "token"),
        authority=f"{folder}/ca.pem",
        certificate=f"{folder}/tls.pem",
        key=f"{folder}/tls.key",
    )


def environ_of(trust: RayTrust) -> dict[str, str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    quick = {"RAY_gcs_rpc_server_connect_timeout_s": "2"}
    return {**plain, **ray_environment(trust), **quick}


@pytest.fixture
def served(tmp_path):
    """A server of a fleet and its address."""
    fleet = Fleet(tmp_path)
    with socket.create_server((FIRST, 0)) as free:
        port = free.getsockname()[1]
    program = Path(ray.__file__).parent / "core/src/ray/gcs/gcs_server"
    config = base64.b64encode(b"{}").decode()
    with (tmp_path / "server.log").open("wb") as log:
        server = subprocess.Popen(
            [
                *(program, f"--log_dir={tmp_path}", f"--config_list={config}"),
                *(f"--gcs_server_port={port}", "--metrics-agent-port=0"),
                *(f"--node-ip-address={FIRST}", "--session-name=session"),
                *(f"--session-dir={tmp_path}", "--node-id=" + "0" * 56),
            ],
            env=environ_of(trust_of(fleet)),
            stdout=log,
            stderr=log,
        )
    try:
        for _ in range(600):
            with socket.socket() as line:
                if line.connect_ex((FIRST, port)) == 0:
                    break
            time.sleep(0.1)
        yield fleet, f"{FIRST}:{port}"
    finally:
        server.kill()
        server.wait()


def has_called(address: str, trust: RayTrust) -> bool:
    done = subprocess.run(
        [sys.executable, "-c", _CLIENT, address],
        env=environ_of(trust),
        capture_output=True,
        timeout=180,
        check=False,
    )
    return b"in b'v'" in done.stdout


def test_a_program_without_token_or_certificate_or_with_forged_ones_cannot_call_ray(
    served, tmp_path
):
    fleet, address = served
    (tmp_path / "eve").mkdir()
    trust, forged = trust_of(fleet), trust_of(Fleet(tmp_path / "eve"))
    (tmp_path / "wrong").write_text("b" * 64)
    assert has_called(address, trust)  # the control
    for bad in (
        replace(trust, token_file=str(tmp_path / "wrong")),  # a host's certificate, another token
        replace(trust, certificate="", key="", authority=""),  # the token without TLS
        replace(trust, certificate=forged.certificate, key=forged.key),  # a forged certificate
    ):
        assert not has_called(address, bad)
    assert has_called(address, trust)
    assert (tmp_path / "token").read_bytes() not in (tmp_path / "server.log").read_bytes()


def test_a_host_does_not_speak_to_a_server_of_another_authority(served, tmp_path):
    _fleet, address = served
    (tmp_path / "eve").mkdir()
    other = trust_of(Fleet(tmp_path / "eve"))
    shown = replace(other, token_file=str(tmp_path / "token"))
    assert not has_called(address, shown)
