"""Scripts and styles of the dashboard, from the package alone; their address holds their digest.

`static/VENDORED.toml` names the version, licence and digest of each file of others.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import resources

from fastapi import APIRouter, Response

from cellwall.core.errors import NotFound

_KINDS = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_PREFIX = "/ui/assets"
routes = APIRouter()


@dataclass(frozen=True, slots=True)
class Asset:
    """One file."""

    name: str
    content: bytes
    kind: str

    @property
    def address(self) -> str:
        """Another one for each content, so that browsers may keep it."""
        return f"{_PREFIX}/{hashlib.sha256(self.content).hexdigest()[:16]}/{self.name}"


@cache
def assets() -> dict[str, Asset]:
    """All files by name."""
    folder = resources.files("cellwall.interfaces.http.dashboard").joinpath("static")
    found = {}
    for each in folder.iterdir():
        kind = _KINDS.get(each.name.rpartition(".")[2])
        if kind is not None:
            found[each.name] = Asset(each.name, each.read_bytes(), kind)
    return found


@cache
def asset_address(name: str) -> str:
    """The address of a file, for templates."""
    return assets()[name].address


@routes.get(_PREFIX + "/{digest}/{name}")
async def read_asset(digest: str, name: str) -> Response:
    """One file. Needs no sign-in: the package is public."""
    found = assets().get(name)
    if found is None or found.address != f"{_PREFIX}/{digest}/{name}":
        raise NotFound("there is no such file", hint="Load the page again.")
    headers = {"Cache-Control": "public, max-age=31536000, immutable"}
    return Response(found.content, media_type=found.kind, headers=headers)
