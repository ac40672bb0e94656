"""The section of the audit log."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from cellwall.config.fields import Section, Size, absolute_path, listed, number, one_of, size, word
from cellwall.core.limits import GIB, KIB, MIB


def _check_forward(text: str) -> str:
    if re.fullmatch(r"tls://(?:\[[0-9a-f:.]+\]|[0-9A-Za-z.-]+):[0-9]{1,5}", text) is None:
        raise PydanticCustomError(
            "forward", 'is not a receiver. Write for example "tls://logs.example:6514".'
        )
    return text


class AuditSection(Section):
    """The audit log of decisions and actions."""

    max_field_bytes: Size = size(
        4 * KIB,
        "length of one field; a flood must not fill the log",
        least=64,
        most=8 * KIB,
    )
    segment_bytes: Size = size(
        64 * MIB, "a log file is sealed and compressed at this size", least=MIB, most=4 * GIB
    )
    segment_days: float = number(
        7.0, "or at this age, so that retention can delete whole files", least=0.01, most=3650.0
    )
    checkpoint_events: int = number(
        1000, "the log is signed after at most this many events", least=1, most=1_000_000
    )
    checkpoint_s: float = number(
        30.0, "or after this many seconds, and at the end of a process", least=0.1, most=86_400.0
    )
    keep_days: int | None = Field(
        default=None,
        description="sealed files older than this are deleted; left out, none",
        ge=1,
        le=36_500,
    )
    signing_key: Annotated[str, absolute_path()] | None = Field(
        default=None,
        description="an Ed25519 private key (PEM); left out, Cellwall creates one",
        max_length=4096,
    )
    witness_directory: Annotated[str, absolute_path()] | None = Field(
        default=None,
        description="a directory, best on another machine, that gets a copy of each signature",
        max_length=4096,
    )
    witness_command: tuple[str, ...] = listed(
        (),
        "a program and its arguments that get each signature on stdin; its absolute path, or a "
        "name in the system's program directories (PATH is not searched)",
        most=32,
    )
    forward: Annotated[str, AfterValidator(_check_forward)] | None = Field(
        default=None,
        description="a syslog receiver over TLS that gets every record, such as "
        "tls://logs.example:6514",
        max_length=300,
    )
    forward_ca_file: Annotated[str, absolute_path()] | None = Field(
        default=None,
        description="the authorities (PEM) that may vouch for the receiver; left out, the system's",
        max_length=4096,
    )
    forward_client_cert: Annotated[str, absolute_path()] | None = Field(
        default=None, description="a certificate (PEM) to show to the receiver", max_length=4096
    )
    forward_client_key: Annotated[str, absolute_path()] | None = Field(
        default=None, description="the key (PEM) of that certificate", max_length=4096
    )
    forward_bodies: Annotated[str, one_of("decrypted", "sealed")] = word(
        "how bodies are forwarded: decrypted, and then records wait while the vault is locked, or "
        "sealed, as stored",
        "decrypted",
        "sealed",
    )
