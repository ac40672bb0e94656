"""A pod joins by the token that its cluster has made for it, once, and nobody else does (SRV-6).

Each attack stands beside the pod that is admitted in the same fleet.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import anyio
import pytest

from cellwall.core.errors import BadInput, CellwallError
from cellwall.core.ids import new_id
from cellwall.fleet.certificates import read_host_certificate
from cellwall.fleet.enrolment import JoinToken, admit, join_request
from cellwall.fleet.enrolment_service import enrol
from cellwall.fleet.kubernetes_api import ClusterSettings, KubernetesApi
from cellwall.fleet.pod_tokens import AUDIENCE, PodReviewer, PodToken
from kubernetes_double import ApiDouble, api_server, write_certificate
from unit.fleet.trusting import FIRST, SECOND, THIRD, Fleet

pytestmark = pytest.mark.requirement("SRV-6")
POD = "authentication.kubernetes.io/pod-"


def genuine(name: str = "hosts-1") -> dict[str, Any]:
    """What the cluster says about the token of a host's pod."""
    return {
        "authenticated": True,
        "audiences": [AUDIENCE],
        "user": {
            "username": "system:serviceaccount:cellwall:cellwall-host",
            "extra": {f"{POD}name": [name], f"{POD}uid": [f"uid-of-{name}"]},
        },
    }


def without(*path: str) -> dict[str, Any]:
    status = genuine()
    at = status
    for part in path[:-1]:
        at = at[part]
    del at[path[-1]]
    return status


def with_(status: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**status, **changes}


def pod_token(name: str = "hosts-1") -> str:
    """In the form of the kubelet; only the cluster can tell whether the signature is its own."""
    claims = {"exp": int(time.time() + 600), "sub": name}
    parts = json.dumps({"alg": "RS256"}).encode(), json.dumps(claims).encode(), b"\0" * 32
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)


@dataclass
class Cluster:
    api: ApiDouble
    settings: ClusterSettings
    fleet: Fleet

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[int]:
        api = KubernetesApi(self.settings)
        reviewer = PodReviewer(api, namespace="cellwall", account="cellwall-host")
        try:
            async with self.fleet.listening(pods=reviewer) as port:
                yield port
        finally:
            await api.close()

    def token(self, text: str, port: int) -> JoinToken:
        return JoinToken.of_pod(text, authority=self.fleet.authority.pem, host=FIRST, port=port)


@pytest.fixture
def cluster(tmp_path) -> Iterator[Cluster]:
    context = write_certificate(tmp_path)
    (tmp_path / "token").write_text("first-token\n")
    with api_server(context) as (api, port):
        settings = ClusterSettings(
            url=f"https://127.0.0.1:{port}",
            token_file=str(tmp_path / "token"),
            ca_file=str(tmp_path / "ca.crt"),
        )
        (tmp_path / "fleet").mkdir()
        yield Cluster(api, settings, Fleet(tmp_path / "fleet"))


async def refusal(keys, token, address) -> str:
    with pytest.raises(CellwallError) as caught:
        await enrol(keys, token, address=address)
    assert (token.pod_token or "hosts-1.") not in caught.value.message + caught.value.hint
    return caught.value.code


def test_a_pod_joins_with_its_token_and_only_once(cluster):
    text = pod_token()
    cluster.api.reviews[text] = genuine()

    async def go() -> None:
        keys, thief = cluster.fleet.machine("second"), cluster.fleet.machine("thief")
        async with cluster.listening() as port:
            token = cluster.token(text, port)
            got = await enrol(keys, token, address=SECOND)
            assert await refusal(thief, token, THIRD) == "CW-FLEET-TOKEN"
            # Nor as a join token without a question to the cluster, nor with a longer life.
            assert await refusal(thief, replace(token, pod_token=""), THIRD) == "CW-FLEET-TOKEN"
            longer = replace(token, expires_s=token.expires_s + 60)
            assert await refusal(thief, longer, THIRD) == "CW-FLEET-TOKEN"
            # Nor in another form of the same bytes, which a cluster may accept.
            cluster.api.reviews[other := f"{text[:-1]}B"] = genuine()
            assert await refusal(thief, cluster.token(other, port), THIRD) == "CW-FLEET-TOKEN"
            # The kubelet has renewed it: the same pod may ask again, for its own name.
            cluster.api.reviews[newer := pod_token("newer")] = genuine()
            await enrol(keys, cluster.token(newer, port), address=SECOND)
        stated = read_host_certificate(got.certificate, cluster.fleet.authority.pem)
        assert (stated.host_id, stated.address) == (keys.host_id, SECOND)
        assert stated.box_key == keys.box_public

    anyio.run(go)


def test_the_address_of_a_pod_that_has_ended_is_the_next_pods(cluster):
    texts = [pod_token(name) for name in ("hosts-1", "hosts-2")]
    cluster.api.reviews |= {text: genuine(text) for text in texts}

    async def go() -> None:
        async with cluster.listening() as port:
            for name, text in zip(("second", "third"), texts, strict=True):
                await enrol(cluster.fleet.machine(name), cluster.token(text, port), address=SECOND)
            # Not with a join token, as on machines.
            own = await cluster.fleet.token(port)
            assert await refusal(cluster.fleet.machine("x"), own, SECOND) == "CW-FLEET-ADDRESS"

    anyio.run(go)


@pytest.mark.parametrize(
    "status",
    [
        {"authenticated": False},
        with_(genuine(), authenticated=False),
        with_(genuine(), audiences=["https://kubernetes.default.svc"]),
        without("audiences"),
        without("user", "username"),
        with_(genuine(), user={**genuine()["user"], "username": "system:serviceaccount:cellwall:x"}),
        with_(
            genuine(),
            user={**genuine()["user"], "username": "system:serviceaccount:other:cellwall-host"},
        ),
        without("user", "extra"),  # of no pod
        without("user", "extra", f"{POD}uid"),
        without("user"),
        {},
    ],
)  # fmt: skip
def test_a_token_of_anybody_else_admits_nobody(cluster, status):
    text, own = pod_token("other"), pod_token()
    cluster.api.reviews |= {text: status, own: genuine()}

    async def go() -> None:
        async with cluster.listening() as port:
            keys = cluster.fleet.machine("second")
            assert await refusal(keys, cluster.token(text, port), SECOND) == "CW-FLEET-TOKEN"
            assert cluster.fleet.trust.tokens == {}
            await enrol(keys, cluster.token(own, port), address=SECOND)  # the control

    anyio.run(go)


@pytest.mark.parametrize("fault", [401, 403, 404, 500, b"{}", b"no JSON"])
def test_without_an_answer_of_the_cluster_no_pod_joins(cluster, fault):
    cluster.api.reviews[text := pod_token()] = genuine()
    cluster.api.faults.append(fault)

    async def go() -> None:
        async with cluster.listening() as port:
            keys, token = cluster.fleet.machine("second"), cluster.token(text, port)
            assert await refusal(keys, token, SECOND) == "CW-FLEET-TOKEN"
            await enrol(keys, token, address=SECOND)  # the token was not used

    anyio.run(go)


def test_a_fleet_of_machines_asks_no_cluster(cluster):
    cluster.api.reviews[text := pod_token()] = genuine()

    async def go() -> None:
        async with cluster.fleet.listening() as port:
            token = cluster.token(text, port)
            assert await refusal(cluster.fleet.machine("x"), token, SECOND) == "CW-FLEET-TOKEN"
        assert cluster.api.requests == []

    anyio.run(go)


def test_a_pod_states_its_own_address_and_name(cluster):
    cluster.api.reviews[text := pod_token()] = genuine()

    async def go() -> None:
        async with cluster.listening() as port:
            token = cluster.token(text, port)
            # It comes from its own address and states the one of the first host.
            asked = join_request(cluster.fleet.machine("x"), token, address=FIRST)
            with pytest.raises(CellwallError) as caught:
                await admit(
                    asked,
                    peer=SECOND,
                    authority=cluster.fleet.authority,
                    trust=cluster.fleet.trust,
                )
            assert caught.value.code == "CW-FLEET-ADDRESS"
            liar = cluster.fleet.machine("liar", cluster.fleet.keys.host_id)
            assert await refusal(liar, token, SECOND) == "CW-FLEET-NAME"
            foreign = replace(token, fingerprint=b"f" * 32)
            assert await refusal(cluster.fleet.machine("x"), foreign, SECOND) == "CW-FLEET-PIN"
            await enrol(cluster.fleet.machine("x"), token, address=SECOND)

    anyio.run(go)


@pytest.mark.parametrize(
    "text", ["", "a.b.c", "a.e30.c", f"{pod_token()}.more", "\u00e4.b.c", "x" * 20_000]
)
def test_a_text_that_is_no_token_of_a_pod_is_refused(text):
    with pytest.raises(BadInput):
        PodToken.parse(text)


def test_a_certificate_states_one_address_beside_loopback(cluster):
    fleet, keys = cluster.fleet, cluster.fleet.machine("x", new_id("svc"))

    def certificate(*names: str) -> str:
        return fleet.authority.issue(
            keys.tls.public_key(),
            host_id=keys.host_id,
            address=SECOND,
            identity=keys.signing.public,
            box_key=keys.box_public,
            names=names,
        )

    pem = certificate("127.0.0.1", "localhost", "cellwall-head-svc")
    assert read_host_certificate(pem, fleet.authority.pem).address == SECOND
    with pytest.raises(CellwallError):
        read_host_certificate(certificate("10.0.0.1"), fleet.authority.pem)
