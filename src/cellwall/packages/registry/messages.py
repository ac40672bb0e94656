"""What a package manager asks for, and the answer: a whole file, a part of it, or "not modified".

A client's copy is used only after a request that was judged: each answer says `no-cache`, so that
a verdict that has changed reaches a client with a copy, and each use of a file is on the record.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import IO
from urllib.parse import unquote

from cellwall.core.network import HostReply, HostRequest, Scheme
from cellwall.packages.registry.downloads import Artifact

# RFC 9110, 14.1.2, with one range; servers may ignore several, and this one does.
_RANGE = re.compile(
    r"bytes=(?:(?P<first>[0-9]{1,19})-(?P<last>[0-9]{0,19})|-(?P<suffix>[0-9]{1,19}))"
)
_TAG = re.compile(r'(?:W/)?("[^"]*")')
_MAX_TAGS_CHARACTERS = 4096
_HEADERS = frozenset({b"accept", b"range", b"if-range", b"if-none-match"})


@dataclass(frozen=True, slots=True)
class RegistryRequest:
    """What a package manager asks for. `path` is the target, with its query."""

    method: str
    host: str
    path: str
    accept: str = ""
    range: str = ""
    if_range: str = ""
    if_none_match: str = ""
    scheme: Scheme = "https"

    @classmethod
    def of(cls, asked: HostRequest) -> RegistryRequest:
        """The parts of a request that an answer depends on."""
        sent = {name: value.decode("latin-1") for name, value in asked.headers if name in _HEADERS}
        return cls(
            asked.method,
            asked.host,
            asked.path,
            sent.get(b"accept", ""),
            sent.get(b"range", ""),
            sent.get(b"if-range", ""),
            sent.get(b"if-none-match", ""),
            asked.scheme,
        )

    @property
    def decoded_path(self) -> str:
        """Without the query: npm writes the slash of a scope as %2f, pip a plus sign as %2B."""
        return unquote(self.path.partition("?")[0])


def index_reply(request: RegistryRequest, content_type: str, body: bytes, tag: str) -> HostReply:
    """A page of an index; `tag` changes with its bytes."""
    reply = HostReply(
        200, content_type, body, size=len(body), headers=(*_validators(tag), ("vary", "accept"))
    )
    return replace(reply, status=304, body=b"", size=0) if _has_copy(request, tag) else reply


def artifact_reply(
    request: RegistryRequest, artifact: Artifact, stream: IO[bytes], size: int
) -> HostReply:
    """An artifact of this size, or the part that the request names."""
    tag = f'"{artifact.algorithm}-{artifact.digest}"'
    headers = (*_validators(tag), ("accept-ranges", "bytes"))
    reply = HostReply(200, "application/octet-stream", stream=stream, size=size, headers=headers)
    if _has_copy(request, tag):
        return replace(reply, status=304, size=0)
    # A Range of another method has no meaning. If-Range names the copy that the part would extend.
    if request.method != "GET" or request.if_range not in ("", tag):
        return reply
    bounds = _bounds(request.range.strip(), size)
    if bounds is None:
        return reply
    start, end = bounds
    if start >= end:  # outside of the file
        unsatisfied = (*headers, ("content-range", f"bytes */{size}"))
        return replace(reply, status=416, size=0, headers=unsatisfied)
    part = (*headers, ("content-range", f"bytes {start}-{end - 1}/{size}"))
    return replace(reply, status=206, start=start, size=end - start, headers=part)


def _bounds(text: str, size: int) -> tuple[int, int] | None:
    """Start and end of the range; None: the header is to be ignored. An empty range is outside."""
    found = _RANGE.fullmatch(text)
    if found is None:
        return None
    if found["suffix"] is not None:
        return max(0, size - int(found["suffix"])), size
    first = int(found["first"])
    last = int(found["last"]) if found["last"] else size
    return None if last < first else (first, min(last + 1, size))


def _validators(tag: str) -> tuple[tuple[str, str], ...]:
    return (("etag", tag), ("cache-control", "no-cache"))


def _has_copy(request: RegistryRequest, tag: str) -> bool:
    return tag in _TAG.findall(request.if_none_match[:_MAX_TAGS_CHARACTERS])
