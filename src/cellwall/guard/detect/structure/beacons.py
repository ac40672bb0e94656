"""Images and links that carry data out in their address.

A client that shows an image asks its server for it, without anybody's click: what stands in the
query is gone then. A place holder in such an address asks the model to fill it in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from cellwall.core.outcomes import Severity
from cellwall.guard.detect.sweep import Span, Spot, Sweep
from cellwall.parsing.matching import Pattern

WORDS = (b"](http", b"](//", b"](<http", b"]: http", b'src="http', b"src='http", b"src=http",
         b'src="//', b"url(http")  # fmt: skip
_IMAGES = Pattern(
    r"!\[[^\]\n]{0,300}\]\(\s*<?(?:https?:)?//|<img\b[^>]{0,300}\bsrc\s*=\s*[\"']?(?:https?:)?//"
)
_BEGINS = (b"![", b"<img")
_LINKS = Pattern(r"\]\(\s*<?(?:https?:)?//|(?m)^\[[^\]\n]{1,60}\]:\s+https?://")
_ADDRESS = re.compile(rb"[^ \t\n\f\r)>\"']*")
_MAX_ADDRESS_BYTES = 8000
_DATA_NAMES = (
    r"(?:\w{0,20}(?:secret|passw|token|api_?key|credential|conversation|history|chat|prompt|memory|"
    r"user_?(?:data|input|info|name|message|email)|private|sensitive|summary|answer|stolen|exfil|"
    r"leak|env|base64|encoded|session|cookie|context|contents?)\w{0,20}|data|text|info|message|"
    r"email|input|output|key|payload)"
)
# {secret}, {{secret}}, ${SECRET}, $SECRET, [SECRET], <SECRET>, %SECRET%, also percent-encoded.
_HOLDER_FORM = (
    r"(?:\{\{?|\$\{?|\[|<|%7b(?:%7b)?|%5b|%3c|%)[ _-]?(?:the_|your_|insert_|user_)?"
    rf"{_DATA_NAMES}"
    r"[ _-]?(?:here)?(?:\}\}?|\]|>|%7d|%5d|%3e|%|\b)"
)
_HOLDER = Pattern(_HOLDER_FORM)
_IN_QUERY = Pattern(rf"\?[^ \t\n\f\r)>\"']*(?:{_HOLDER_FORM})")
"""Asked once, and most texts are done with: there are thousands of links in a README."""
_OPENS_HOLDER = re.compile(rb"[{$\[<%]")
_MIN_LONG_BYTES = 64
_LONG_VALUE = Pattern(r"[?&#;][\w.\-\[\]]{0,60}=(?:[\w+/=-]|%[0-9a-f]{2}){64,}")
# Signatures that hosts of pictures put into their addresses.
_SIGNED = Pattern(
    r"x-(?:amz|goog)-|[?&](?:sig|signature|jwt|expires|se|token|hmac)=|camo\.|/proxy/"
)
_LONG_URL_BYTES = 600


def find(sweep: Sweep) -> Iterator[Spot]:
    """Addresses with a place for data, or with data, in them."""
    images: set[int] = set()
    for start, begin in _images(sweep):
        images.add(begin)
        url = _address(sweep.data, begin)
        end = begin + len(url)
        if _has_holder(url):
            yield _spot("beacon.image-holder", "high", start, end, 0.85)
        elif len(url) <= _MIN_LONG_BYTES:
            continue
        elif _LONG_VALUE.matches(url) and not _SIGNED.matches(url):
            yield _spot("beacon.image-data", "medium", start, end, 0.5)
        elif len(url) > _LONG_URL_BYTES and not _SIGNED.matches(url):
            yield _spot("beacon.image-long", "low", start, end, 0.25)
    if not _IN_QUERY.matches(sweep.data):
        return
    for start, begin in sweep.spans(_LINKS, WORDS):
        url = b"" if begin in images else _address(sweep.data, begin)
        if _has_holder(url.partition(b"?")[2]):
            yield _spot("beacon.link-holder", "medium", start, begin + len(url), 0.55)


def _images(sweep: Sweep) -> Iterator[Span]:
    """Where one is shown: most links are not looked at, for they have none of its beginnings."""
    data = sweep.data
    for first, last in sweep.around(WORDS):
        places = [at for sign in _BEGINS if (at := data.find(sign, first, last)) >= 0]
        if places:
            yield from _IMAGES.spans(data, min(places), last)


def _address(data: bytes, begin: int) -> bytes:
    """What follows the two slashes; longer than the neighbourhood in which it was found."""
    match = _ADDRESS.match(data, begin, begin + _MAX_ADDRESS_BYTES)
    return match[0] if match else b""


def _has_holder(part: bytes) -> bool:
    # Most addresses have none of its signs.
    return _OPENS_HOLDER.search(part) is not None and _HOLDER.matches(part)


_MESSAGES = {
    "beacon.image-holder": "an image whose address is to be filled with data",
    "beacon.image-data": "an image with much data in its address",
    "beacon.image-long": "an image with an unusually long address",
    "beacon.link-holder": "a link whose address is to be filled with data",
}


def _spot(rule: str, severity: Severity, start: int, end: int, score: float) -> Spot:
    return Spot(
        category="beacon",
        severity=severity,
        rule=rule,
        message=_MESSAGES[rule],
        start=start,
        end=end,
        score=score,
    )
