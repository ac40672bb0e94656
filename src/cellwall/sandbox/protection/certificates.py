"""Whether a `*.pem` file holds certificates alone, which are no secret (FS-4).

Every HTTPS client reads such a bundle. Private keys are kept in files of the same name, so the
contents decide; whatever cannot be read whole or holds any other block counts as a key.
"""

from __future__ import annotations

import os
import re

from cellwall.sandbox.files.descriptors import held, open_regular

_MAX_BYTES = 4 * 1024 * 1024
_MARK = re.compile(rb"-----(BEGIN|END) ([A-Z0-9 ]{1,40})-----")
_PUBLIC = frozenset(
    {
        b"CERTIFICATE",
        b"TRUSTED CERTIFICATE",
        b"X509 CERTIFICATE",
        b"CERTIFICATE REQUEST",
        b"X509 CRL",
        b"PUBLIC KEY",
        b"RSA PUBLIC KEY",
        b"DH PARAMETERS",
        b"EC PARAMETERS",
    }
)
"""Labels of RFC 7468 and OpenSSL for what is meant to be given away."""


def is_certificates(dir_fd: int, name: str) -> bool:
    """Whether a name is a regular file with certificates, and nothing secret, in it."""
    try:
        flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
        with (
            held(os.open(name, flags, dir_fd=dir_fd)) as node,
            held(open_regular(node)) as fd,
            open(fd, "rb", closefd=False) as file,
        ):
            data = file.read(_MAX_BYTES + 1)
    except OSError:
        return False
    return len(data) <= _MAX_BYTES and is_public_text(data)


def is_public_text(data: bytes) -> bool:
    """Whether every block is a public one, each opened and closed, and no key is spoken of."""
    marks = _MARK.findall(data)
    opened = [label for word, label in marks if word == b"BEGIN"]
    closed = [label for word, label in marks if word == b"END"]
    return (
        bool(opened)
        and opened == closed
        and _PUBLIC.issuperset(opened)
        # Of another spelling, or cut: `---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----`.
        and data.upper().count(b"BEGIN ") == len(opened)
        and b"PRIVATE" not in data.upper().replace(b"PRIVATE KEY USAGE", b"")
    )
