"""Text that must become bytes for the kernel."""

from __future__ import annotations

from holdfast.core.errors import BadInput


def to_bytes(text: str, *, what: str) -> bytes:
    """UTF-8; bytes that Python smuggled through as surrogates come back as they were."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise BadInput(
            f"{what} holds a lone surrogate, which no file or program can be given",
            mend="Use valid text.",
            code="HF-NOT-TEXT",
        ) from error
