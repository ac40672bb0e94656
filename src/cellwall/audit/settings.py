"""How a log is kept."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The defaults are those of the configuration."""

    max_field_bytes: int = 4096
    segment_bytes: int = 64 * 1024 * 1024
    segment_age_s: float = 7 * 86_400.0
    checkpoint_events: int = 1000
    checkpoint_s: float = 30.0
    keep_days: int | None = None
    """None: sealed segments are never deleted."""
    signing_key: str | None = None
    """A private key from outside; None: one of our own, beside the audit folder."""
    witness_directory: str | None = None
    witness_command: tuple[str, ...] = ()
