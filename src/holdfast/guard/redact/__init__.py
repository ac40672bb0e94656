"""Takes secrets out of texts and streams: known values, known shapes, and what is named as one."""

from holdfast.guard.redact.data import RedactedText
from holdfast.guard.redact.gitleaks import load_gitleaks
from holdfast.guard.redact.redactor import Redacted, Redactor
from holdfast.guard.redact.rules import SecretRules, shipped
from holdfast.guard.redact.spans import SecretHit
from holdfast.guard.redact.stream import RedactingStream

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
