"""Files with certificates and no private key, which are no secret (FS-4)."""

from __future__ import annotations

import os
import re

from cellwall.sandbox.files.descriptors import OPEN_NODE, closing_fd, open_regular, read_at_most

_MAX_CERTIFICATE_BYTES = 4 * 1024 * 1024
_PEM_BOUNDARY = re.compile(rb"-----(BEGIN|END) ([A-Z0-9 ]{1,40})-----")
_PUBLIC_LABELS = frozenset(
    (
        *(b"CERTIFICATE", b"TRUSTED CERTIFICATE", b"X509 CERTIFICATE", b"CERTIFICATE REQUEST"),
        *(b"X509 CRL", b"PUBLIC KEY", b"RSA PUBLIC KEY", b"DH PARAMETERS", b"EC PARAMETERS"),
    )
)
"""Labels of RFC 7468 and OpenSSL for public content."""


def is_certificates(dir_fd: int, name: str) -> bool:
    """Whether a name is a regular file with certificates only, which are no secret (FS-4).

    Every HTTPS client reads such a bundle. Private keys have the same file names, so the content
    decides; a file that cannot be read completely, or holds any other block, counts as a key.
    """
    try:
        with (
            closing_fd(os.open(name, OPEN_NODE, dir_fd=dir_fd)) as node,
            closing_fd(open_regular(node)) as fd,
        ):
            data = read_at_most(fd, _MAX_CERTIFICATE_BYTES + 1)
    except OSError:
        return False
    return len(data) <= _MAX_CERTIFICATE_BYTES and is_public_text(data)


def is_public_text(data: bytes) -> bool:
    """Whether every PEM block is public, each opened and closed, and no key is mentioned."""
    marks = _PEM_BOUNDARY.findall(data)
    begun = [label for word, label in marks if word == b"BEGIN"]
    ended = [label for word, label in marks if word == b"END"]
    return (
        bool(begun)
        and begun == ended
        and _PUBLIC_LABELS.issuperset(begun)
        # Other spellings, or truncated: `---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----`.
        and data.upper().count(b"BEGIN ") == len(begun)
        and b"PRIVATE" not in data.upper().replace(b"PRIVATE KEY USAGE", b"")
    )
