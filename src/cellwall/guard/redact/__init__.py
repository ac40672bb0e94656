"""Takes secrets out of texts and streams: known values, known shapes, and what is named as one."""

from cellwall.guard.redact.data import RedactedText
from cellwall.guard.redact.gitleaks import load_gitleaks
from cellwall.guard.redact.redactor import Redacted, Redactor
from cellwall.guard.redact.rules import SecretRules, shipped
from cellwall.guard.redact.spans import SecretHit
from cellwall.guard.redact.stream import RedactingStream

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
