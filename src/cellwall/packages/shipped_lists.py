"""The lists that Cellwall ships: popular names, and malicious versions; checked by hash.

Attack: a list that is cut, or is that of another registry, lets its packages through
without a sign. So damage is an error, and no package is judged.
"""

from __future__ import annotations

import hashlib
import lzma
from importlib import resources

from cellwall.core.errors import CellwallError

_MAX_BYTES = 16 * 2**20
SHA256 = {
    "malicious-npm": "c16939a9ae71663eaa86fc8833d3de895ddce27b132e91ad0a5162e5a6cbe844",
    "malicious-pypi": "fe3cec44c921e9814b57ae70907df7c935c65f78163392d4c4b2f2ced532f36c",
    "popular-npm": "f5a744f65a6e5c6c34a293e5f8fdf3bbcb028a5a85232c70af1cc04480776cdb",
    "popular-pypi": "769df2321cfd808a852241550be1ebe6625d9830d936e336a183de0ff6c3ac72",
}
"""Of the compressed files; the programs in `bench` that make the lists write it."""


def read_list(name: str) -> list[str]:
    """The lines of a list."""
    try:
        with (resources.files("cellwall.packages") / "data" / f"{name}.txt.xz").open("rb") as file:
            packed = file.read(_MAX_BYTES)
    except OSError:
        packed = b""
    if hashlib.sha256(packed).hexdigest() != SHA256[name]:
        raise CellwallError(
            f"the list {name} is missing or damaged, so no package can be judged",
            hint="Install Cellwall anew.",
            code="CW-PACKAGE-LISTS",
        )
    return lzma.decompress(packed).decode().splitlines()
