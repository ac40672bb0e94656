"""The section of the cluster: for the driver of agent-sandbox, and for pods that join a fleet."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from cellwall.config.fields import Section, absolute_path, matching, number

_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_NAME = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_PROBLEM = 'is no name of Kubernetes. Write for example "cellwall".'


Name = Annotated[str, matching(_NAME, _PROBLEM)]


def _check_url(text: str) -> str:
    is_plain = text.startswith("https://") and text.isprintable() and " " not in text
    if not is_plain or "@" in text:
        raise PydanticCustomError(
            "url", 'is no address with TLS. Write for example "https://10.0.0.1:6443".'
        )
    return text.rstrip("/")


class KubernetesSection(Section):
    """The cluster of a fleet: with `driver = "agent-sandbox"` in [fleet], and for pods that join
    (SRV-6)."""

    url: Annotated[str, AfterValidator(_check_url)] = Field(
        default="https://kubernetes.default.svc",
        description="address of the API of the cluster",
        max_length=300,
    )
    namespace: Name = Field(
        default="cellwall",
        description="where the sandboxes are claimed, and of the pods that join",
        max_length=63,
    )
    token_file: Annotated[str, absolute_path(f"{_ACCOUNT}/token")] = Field(
        default=f"{_ACCOUNT}/token",
        description="token of the front's service account, read for each request",
        max_length=4096,
    )
    ca_file: Annotated[str, absolute_path(f"{_ACCOUNT}/ca.crt")] = Field(
        default=f"{_ACCOUNT}/ca.crt",
        description="certificate of the cluster's authority, which alone is trusted",
        max_length=4096,
    )
    host_account: Name | None = Field(
        default=None,
        description="service account whose pods may join as hosts (`cellwall fleet certify`); left "
        "out, none",
        max_length=63,
    )
    fleet: Name = Field(
        default="cellwall", description="the label of this fleet's claims", max_length=63
    )
    pool: Name = Field(
        default="cellwall",
        description="the SandboxWarmPool of all templates but those in `pools`",
        max_length=63,
    )
    pools: dict[str, Name] = Field(
        default={}, description="the SandboxWarmPool of each template", max_length=64
    )
    ready_s: float = number(
        120.0, "how long a new session waits for its sandbox", least=1.0, most=3600.0
    )
    service_port: int = number(8750, "port of the services in the pods", least=1, most=65_535)
    service_ca_file: Annotated[str, absolute_path("/run/cellwall/service-ca.crt")] = Field(
        default="/run/cellwall/service-ca.crt",
        description="certificate of the authority of the services in the pods",
        max_length=4096,
    )
    service_name: str = Field(
        default="cellwall.internal",
        description="the name in their certificates; the addresses of pods change",
        min_length=1,
        max_length=253,
    )
