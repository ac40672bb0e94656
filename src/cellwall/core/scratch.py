"""Folders for the time of one task, below the host's folder for temporary files."""

from __future__ import annotations

import tempfile

from cellwall.core.errors import StorageError


def scratch_folder(
    prefix: str, *, below: str | None = None, ignore_cleanup_errors: bool = False
) -> tempfile.TemporaryDirectory[str]:
    """A context manager that yields the path; an error with a hint where no folder can be made."""
    try:
        return tempfile.TemporaryDirectory(
            prefix=prefix, dir=below, ignore_cleanup_errors=ignore_cleanup_errors
        )
    except OSError as error:
        raise StorageError(
            "no folder for temporary files can be written",
            hint=f"Make {below or '/tmp'} writable and check that its disk has room"
            + ("." if below else ", or name another folder in TMPDIR."),
            code="CW-NO-TEMPORARY-FOLDER",
            detail=str(error),
        ) from error
