"""The record and the settings, for interfaces that only read them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from holdfast.audit import verify as record
from holdfast.audit.verify import VerifyReport
from holdfast.config.load import load_settings
from holdfast.config.models import Settings, weakened
from holdfast.config.schema import schema_text
from holdfast.runtime.wiring import state_home

__all__ = [
    "Settings",
    "VerifyReport",
    "audit_records",
    "check_audit",
    "read_settings",
    "schema_text",
    "weakened",
]


def audit_records(*, action_id: str | None = None) -> Iterator[dict[str, Any]]:
    """The records in order, or those of one action; an altered one raises."""
    return record.read(_audit_directory(), action_id=action_id)


def check_audit() -> VerifyReport:
    """Check the whole log; writes nothing, not even a repair."""
    return record.verify(_audit_directory())


def _audit_directory() -> str:
    return os.path.join(state_home(os.environ), "audit")


def read_settings(*, config: str | None, profile: str | None) -> Settings:
    """The effective settings, without touching the host or the state folder."""
    return load_settings(file=config, profile=profile, environ=os.environ)
