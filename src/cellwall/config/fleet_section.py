"""The section of a service over several hosts."""

from __future__ import annotations

import ipaddress
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from cellwall.config.fields import Section, absolute_path, danger, number, one_of, word

_MAX_LABEL_CHARACTERS = 63


def _check_address(text: str) -> str:
    try:
        is_address = ipaddress.ip_address(text).compressed == text
    except ValueError:
        is_address = False
    if not is_address:
        raise PydanticCustomError(
            "address", 'is not an address. Write for example "10.0.0.5" or "fd00::5".'
        )
    if text in {"127.0.0.1", "::1"}:
        raise PydanticCustomError(
            "address",
            "is replaced by the address of the network card, by Ray. Write 127.0.0.2 for hosts of "
            "this machine alone.",
        )
    return text


def _check_labels(table: dict[str, str]) -> dict[str, str]:
    for name, value in table.items():
        is_plain = all(
            0 < len(text) <= _MAX_LABEL_CHARACTERS
            and text.replace("-", "").replace("_", "").replace(".", "").isalnum()
            and text.isascii()
            for text in (name, value)
        )
        if not is_plain:
            raise PydanticCustomError(
                "labels",
                'has a name or value that is no plain word. Write for example region = "eu-1".',
            )
    return table


class FleetSection(Section):
    """Several hosts behind one address, `cellwall fleet` (SRV-6)."""

    driver: Annotated[str, one_of("ray", "agent-sandbox")] = word(
        "what places sessions: Ray on machines of your own, or agent-sandbox on Kubernetes, which "
        "gives each session a pod",
        "ray", "agent-sandbox",
    )  # fmt: skip
    node_address: Annotated[str, AfterValidator(_check_address)] = Field(
        default="127.0.0.2",
        description="the address of this machine under which the other hosts reach it",
        max_length=45,
    )
    port: int = number(
        6390, "port of the engine on the first host, which the others join", least=1, most=65_535
    )
    join_port: int = number(
        6391,
        "port on the first host at which machines join with a token",
        least=1,
        most=65_535,
    )
    labels: Annotated[dict[str, str], AfterValidator(_check_labels)] = Field(
        default={},
        description="of this host; a session may ask for some, and `tenant` reserves the host",
        max_length=16,
    )
    lease_s: float = number(
        2.5,
        "how long a host serves without reaching the database; the others take over after 1.65 "
        "times this",
        least=1.0,
        most=60.0,
    )
    token_file: Annotated[str, absolute_path("/etc/cellwall/fleet.token")] | None = Field(
        default=None,
        description="by which hosts recognise each other; left out, fleet.token in the state "
        "folder",
        max_length=4096,
    )
    vault: Annotated[str, one_of("own", "keeper", "fleet")] = word(
        "whose vault has the secrets of users: that of each host; that of this host, which lends "
        "to the others; or that of the host whose setting is `keeper`",
        "own", "keeper", "fleet",
    )  # fmt: skip
    snapshots: Annotated[str, absolute_path("/mnt/shared/snapshots")] | None = Field(
        default=None,
        description="a folder that all hosts share, for the last snapshot of each session that is "
        "to start again when its host is lost; encrypted under the key of [accounts]",
        max_length=4096,
    )
    dangerously_without_tls: bool = danger(
        "start Ray without TLS: who listens on the network of the hosts reads sessions, and runs "
        "code on every host with one captured request"
    )
