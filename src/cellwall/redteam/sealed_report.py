"""The report of an attack program, sealed with a key that its attacks never had.

The program reads the key from standard input after its last attack has ended, and each attack runs
in a process whose standard streams are /dev/null. So output of an attack cannot pass for a report.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping

from cellwall.redteam.attack import Observation

SENTINEL = "sentinel"
"""The name under which a program reports whether legitimate operations work where it runs."""
_KEY_BYTES = 32
_MAX_REPORT_BYTES = 1 << 20


def new_key() -> bytes:
    """A key for one run of a program, as its standard input."""
    return secrets.token_hex(_KEY_BYTES).encode()


def seal_of(text: str, key: bytes) -> str:
    """As `stage.py` computes it."""
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def read_report(output: bytes, key: bytes) -> dict[str, Observation] | None:
    """The observation of each attack; None unless the output is one sealed report, and the sentinel
    succeeded. Other output beside the report makes the whole unusable."""
    if len(output) > _MAX_REPORT_BYTES:
        return None
    try:
        envelope = json.loads(output)
        text, seal = envelope["report"], envelope["seal"]
        is_sealed = isinstance(text, str) and isinstance(seal, str) and seal.isascii()
        if not is_sealed or not hmac.compare_digest(seal_of(text, key), seal):
            return None
        report = json.loads(text)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if not isinstance(report, Mapping):
        return None
    found = {name: Observation.of(value) for name, value in report.items()}
    sentinel = found.pop(SENTINEL, None)
    return found if sentinel is not None and sentinel.kind == "through" else None
