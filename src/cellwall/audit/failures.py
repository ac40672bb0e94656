"""What is told when the log cannot be used."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from cellwall.audit.segments import BadSegment
from cellwall.core.errors import AuditFailed


def failed(error: OSError) -> AuditFailed:
    """What may be told of an error of the system; the path stays out (ERR-1)."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        hint = "Free some disk space or move old segments of the audit log away."
    elif error.errno == errno.ETIMEDOUT:
        hint = "Look for a stopped Cellwall process that keeps the log locked."
    else:
        hint = (
            "Check that the audit folder is yours with mode 0700, its files plain ones with mode "
            "0600, and the disk writable."
        )
    return AuditFailed(
        "the audit log cannot be used",
        hint=hint,
        detail=errno.errorcode.get(error.errno or 0, "unknown"),
    )


def altered(message: str) -> AuditFailed:
    """Somebody else wrote into the log; nothing is built upon it and nothing of it is removed."""
    return AuditFailed(
        message,
        hint="Check the log with `cellwall audit verify`, keep it, and move it away to begin anew.",
        code="CW-AUDIT-ALTERED",
    )


def told(error: OSError | BadSegment) -> AuditFailed:
    """Either of the two, as whoever uses the log is told of it."""
    if isinstance(error, OSError):
        return failed(error)
    return altered(f"the audit log was altered: {error}")


@contextmanager
def failures() -> Iterator[None]:
    """No other error than our own comes out of this."""
    try:
        yield
    except (OSError, BadSegment) as error:
        raise told(error) from None
