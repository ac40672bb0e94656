"""Redacts secrets in texts and streams: known values, known shapes, named values."""

from cellwall.guard.redact.redactor import Redacted, RedactedText, Redactor
from cellwall.guard.redact.stream import RedactingStream
from cellwall.parsing.credentials.gitleaks import load_gitleaks
from cellwall.parsing.credentials.rule_set import SecretRules, shipped
from cellwall.parsing.credentials.spans import SecretHit

__all__ = [
    "Redacted",
    "RedactedText",
    "RedactingStream",
    "Redactor",
    "SecretHit",
    "SecretRules",
    "load_gitleaks",
    "shipped",
]
