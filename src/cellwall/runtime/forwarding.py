"""Continuous forwarding of the audit log, as configured (AUD-4)."""

# ruff: noqa: PLC0415  # late imports: few installations forward

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from cellwall.config.models import Settings
from cellwall.core.errors import ConfigError
from cellwall.runtime.recording import audit_directory, forward_folder
from cellwall.secrets.session_keys import SessionKeys

if TYPE_CHECKING:
    from cellwall.audit.export.forwarding import Forwarder


def forwarder(home: str, settings: Settings, keys: SessionKeys) -> Forwarder:
    """Not started yet; raises `ConfigError` or `BadInput` if it cannot be."""
    from cellwall.audit.export.forwarding import Forwarder
    from cellwall.audit.export.target import ExportTarget

    audit = settings.audit
    if audit.forward is None:
        raise ConfigError(
            "no receiver of the audit log is configured",
            hint='Set for example [audit] forward = "tls://logs.example:6514".',
        )
    target = ExportTarget.parse(
        "syslog",
        audit.forward,
        ca_file=audit.forward_ca_file,
        client_cert_file=audit.forward_client_cert,
        client_key_file=audit.forward_client_key,
    )
    os.makedirs(os.path.join(home, "audit-forward"), mode=0o700, exist_ok=True)
    is_sealed = audit.forward_bodies == "sealed"
    return Forwarder(
        audit_directory(home), forward_folder(home), target, None if is_sealed else keys
    )
