"""A real node of Ray lets in only who has the token and a certificate of the authority (SRV-6)."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cellwall.fleet.identity import fleet_folder
from cellwall.fleet.ray_node import NodeOptions, RayNode, RayTrust, ray_environment
from unit.fleet.trusting import FIRST, Fleet

pytestmark = [pytest.mark.requirement("SRV-6"), pytest.mark.long]
pytest.importorskip("ray")
_PORT = 6397
_CLIENT = f"""
import ray
ray.init(address="{FIRST}:{_PORT}", _node_ip_address="{FIRST}", log_to_driver=False,
         configure_logging=False)
print("in", len(ray.nodes()))
"""


def trust_of(fleet: Fleet) -> RayTrust:
    folder = fleet_folder(fleet.home)
    token = fleet.folder / "token"
    token.write_text("a" * 64)
    return RayTrust(
        token_file=str(token),
        authority=f"{folder}/ca.pem",
        certificate=f"{folder}/tls.pem",
        key=f"{folder}/tls.key",
    )


def call(trust: RayTrust) -> subprocess.CompletedProcess[bytes]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    quick = {
        "RAY_gcs_rpc_server_reconnect_timeout_s": "5",
        "RAY_gcs_server_request_timeout_s": "10",
    }
    return subprocess.run(
        [sys.executable, "-c", _CLIENT],
        env={**plain, **ray_environment(trust), **quick},
        capture_output=True,
        timeout=180,
        check=False,
    )


def test_a_program_without_token_certificate_or_with_forged_ones_cannot_call_ray(tmp_path):
    fleet = Fleet(tmp_path)
    (tmp_path / "eve").mkdir()
    eve, trust = Fleet(tmp_path / "eve"), trust_of(fleet)
    wrong = tmp_path / "wrong"
    wrong.write_text("b" * 64)
    forged = trust_of(eve)
    node = RayNode(
        NodeOptions(
            address=f"{FIRST}:{_PORT}",
            is_head=True,
            node_ip=FIRST,
            host_id=fleet.keys.host_id,
            trust=trust,
            log_file=str(tmp_path / "node.log"),
        ),
        {name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
    )
    node.start()
    try:
        node.wait_until_up()
        for bad in (
            replace(trust, token_file=str(wrong)),
            replace(trust, certificate="", key="", authority=""),
            replace(trust, certificate=forged.certificate, key=forged.key),
            forged,
        ):
            assert b"in 1" not in call(bad).stdout
        control = call(trust)
        assert b"in 1" in control.stdout, control.stderr
    finally:
        node.stop()
    assert Path(trust.token_file).read_bytes() not in (tmp_path / "node.log").read_bytes()
