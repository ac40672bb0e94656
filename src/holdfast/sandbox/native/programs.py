"""Asks a program of the host for its version; for the host check alone."""

from __future__ import annotations

import subprocess

_ANSWER_WITHIN_S = 5.0


def version_of(path: str) -> str:
    """The first line of `PROGRAM --version`, or why there is none."""
    try:
        done = subprocess.run(
            [path, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_ANSWER_WITHIN_S,
            check=False,
            env={},
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"does not start ({type(error).__name__})"
    return done.stdout.decode("utf-8", "replace").partition("\n")[0].strip()[:100]
