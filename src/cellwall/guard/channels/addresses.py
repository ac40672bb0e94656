"""What data a URL carries, and whether it differs from the URL that is shown. Pure.

A client loads the images of an answer without asking: an address exfiltrates anything that a model
can be talked into writing there (GRD-2). So does a link that a chat server opens for its preview.
"""

from __future__ import annotations

import binascii
import re
from base64 import b32decode, b64decode
from typing import Literal
from urllib.parse import unquote, unquote_plus

Load = Literal["", "value", "opaque", "text", "template"]
"""The data of an address, from none to the worst: a longer value, an opaque value, readable text in
an encoding, a placeholder that a model is to fill in."""

URL = re.compile(r"https?://[^\s<>\"'`|]+", re.IGNORECASE)
"""An address in running text."""

LIVE = re.compile(
    r"https?://[^\s<>]+"
    r"|(?:(?<![\w.\\/-])|(?<=//))[\w-]++(?:\.[\w-]++)+\.?+(?::\d{1,5})?(?:[/?#][^\s<>]*)?+",
    re.IGNORECASE,
)
"""Everything that some client turns into a link: chat clients take any text up to the next space,
and a bare host name as well."""

_MAX_LOOKED_AT = 4096
_SCHEME = re.compile(r"[\x00-\x20]*([A-Za-z][A-Za-z0-9+.-]{0,40}):")
_AUTHORITY = re.compile(r"[\x00-\x20]*(?:[A-Za-z][A-Za-z0-9+.-]{0,40}:)?[/\\]{2,}([^/\\?#]*)")
_IGNORED_BY_BROWSERS = re.compile(r"[\t\n\r]")

SCRIPT_SCHEMES = frozenset({"javascript", "vbscript", "livescript", "jscript", "mocha"})
_SCRIPT_TYPES = re.compile(
    r"data:(?:text/html|application/xhtml|image/svg|text/xml|application/xml)"
)
_HARMLESS_SCRIPT = re.compile(r"(?:void\(?0\)?|;|//|#)*;?", re.IGNORECASE)

_PLACES = re.compile(
    r"\{\{?[^{}\s/]{0,60}\}?\}"
    r"|\$\{?[A-Z_][A-Z0-9_]{2,40}\}?"
    r"|<[A-Za-z][A-Za-z_ -]{1,40}>"
    r"|\[[A-Za-z][A-Za-z_ -]{2,40}\]"
    r"|(?<=[=/])(?:YOUR|INSERT|REPLACE)[_-][A-Z_-]{2,40}"
    r"|(?<=[=/])[A-Z_]{2,40}_HERE\b"
    r"|(?<==)(?:SECRET|DATA|TOKEN|PASSWORD|API_?KEY|HISTORY|CONVERSATION|CONTEXT|SUMMARY)\b"
)
_OF_THE_CONVERSATION = re.compile(
    r"data|secret|conversation|history|chat|context|prompt|summary|password|credential|memory"
    r"|message|user.?in(?:fo|put)|api.?key|content|answer|response|everything",
    re.IGNORECASE,
)
_NAMES_A_THING = re.compile(r"(?:id|name|type|number|version|index|date)\W*$", re.IGNORECASE)
_PARTS = re.compile(r"[/?#&;=]+")
_WORDS = re.compile(r"[^A-Za-z0-9+_~.%-]+")
_NEXT = re.compile(r"(?=https?://)", re.IGNORECASE)
_NEXT_LINK = re.compile(r"\)[^\w\s]{0,4}\[")
# `1.5/x` and `e.g./x` are no addresses.
_NAME = re.compile(r"(?:[\w-]++\.)++(?:[^\W\d_]{2,24}|xn--[\w-]+)|(?:\d{1,3}\.){3}\d{1,3}")
_HTTP = re.compile(r"http(?=s?://)", re.IGNORECASE)
_DOT = re.compile(r"(?<=\w)\.(?=\w)")
_HEX_NAME = re.compile(r"(?:[0-9a-f]{32}|[0-9a-f]{40}|[0-9a-f]{64})(?:\.[a-z0-9]{1,5})?")
_BASE64 = re.compile(r"[A-Za-z0-9+_-]{16,}={0,2}")
_BASE32 = re.compile(r"[A-Za-z2-7]{16,}={0,6}")
_HEX = re.compile(r"(?:[0-9a-fA-F]{2}){10,}")
_READABLE = re.compile(rb"[\t\n\r\x20-\x7e]{8,}")
_SENTENCE_WORDS = 6
_LONG_NAME = 40
_LONG_VALUE = 24
_LONG_HOST = 32
"""Of all names before the last two: buckets and regions of clouds are shorter."""
_LONG_USER = 16

_DOMAIN = re.compile(
    r"(?P<scheme>https?://)?(?P<host>(?:[\w-]{1,63}\.){1,8}(?P<last>[^\W\d_]{2,24}))"
    r"(?::\d{1,5})?(?:[/?#]\S*)?",
    re.IGNORECASE,
)
# `setup.py` and `asp.net` are names too; without `https://` or `www.` only these are addresses.
_PLAINLY_DOMAINS = frozenset({"com", "org", "gov", "edu", "bank", "mil"})


def scheme_of(url: str) -> str:
    """Scheme in lower case; empty for a relative address."""
    found = _SCHEME.match(_IGNORED_BY_BROWSERS.sub("", url[:_MAX_LOOKED_AT]))
    return found[1].lower() if found is not None else ""


def host_of(url: str) -> str:
    """Host without port and user; empty for a relative address."""
    host = _authority(url).rpartition("@")[2]
    if not host.startswith("["):
        host = host.partition(":")[0]
    return host.strip(". ").lower()


def _authority(url: str) -> str:
    found = _AUTHORITY.match(_IGNORED_BY_BROWSERS.sub("", url[:_MAX_LOOKED_AT]))
    return "" if found is None else found[1]


def runs_code(url: str) -> bool:
    """Whether opening it runs code; the empty script of many links does not count."""
    flat = _IGNORED_BY_BROWSERS.sub("", url[:_MAX_LOOKED_AT]).strip()
    if scheme_of(flat) in SCRIPT_SCHEMES:
        return _HARMLESS_SCRIPT.fullmatch(flat.partition(":")[2].strip()) is None
    return _SCRIPT_TYPES.match(flat.lower()) is not None


def load_of(url: str) -> Load:
    """The worst that an address carries: behind its host, in its names, and before it."""
    if scheme_of(url) not in ("", "http", "https", "ftp", "ws", "wss"):
        return ""
    host = host_of(url)
    if not host:
        return ""  # it stays where the message came from
    rest = url[:_MAX_LOOKED_AT]
    if _PLACES.search(rest) is not None or _PLACES.search(unquote(rest)) is not None:
        return "template"
    if len(url) > 2048:
        return "opaque"
    behind = _AUTHORITY.sub("", rest, count=1)
    path, mark, query = behind.partition("?")
    loads = [_part_load(part, _LONG_NAME) for part in _PARTS.split(path)]
    loads += [_part_load(part, _LONG_VALUE) for part in _PARTS.split(query)]
    labels = host.split(".")
    loads += [_part_load(label, _LONG_VALUE) for label in labels if len(label) > 24]
    # The server of a name is told all of it, however it is cut.
    loads.append(_part_load("".join(labels[:-2]), _LONG_HOST))
    user = _authority(url).rpartition("@")[0]
    loads += [_part_load(part, _LONG_VALUE) for part in user.split(":")]
    if "text" in loads:
        return "text"
    if "opaque" in loads:
        return "opaque"
    data = query if mark else path.partition("#")[2]
    is_long = len(data) >= 32 or any(len(part) >= 16 for part in _PARTS.split(data))
    return "value" if is_long or host.count(".") > 5 or len(user) >= _LONG_USER else ""


def load_in_text(found: str) -> Load:
    """The worst of what `LIVE` found: all that a program may take for the address."""
    loads: list[Load] = []
    for piece in _NEXT.split(found):
        full = piece
        if _HTTP.match(piece) is None:
            full = f"//{piece}"
            host = host_of(full)
            if _NAME.fullmatch(host) is None:
                continue
            if len(piece) <= len(host) + 1:
                # `a.b.c` is a name of many things: only what it surely says counts.
                loads.append("text" if load_of(full) == "text" else "")
                continue
        # What surely belongs to it; quotes and brackets behind it are more often something else,
        # such as the next link, so of those only what is data by its form counts.
        sure = re.split(r"[\"'`|]", full, maxsplit=1)[0]
        sure = _NEXT_LINK.split(sure, maxsplit=1)[0].rstrip(")].,;:!?*_~")
        loads.append(load_of(sure))
        loads += (_part_load(part, _LONG_VALUE) for part in _PARTS.split(full[len(sure) :]))
    return _worst(loads)


def _worst(loads: list[Load]) -> Load:
    order: tuple[Load, ...] = ("template", "text", "opaque", "value")
    return next((load for load in order if load in loads), "")


def _part_load(part: str, long: int) -> Load:
    if unquote_plus(part).count(" ") >= _SENTENCE_WORDS:
        return "text"
    # Any sign may stand before data, and does not make it anything else.
    return _worst([_word_load(word, long) for word in _WORDS.split(unquote(part)) if word])


def _word_load(word: str, long: int) -> Load:
    if _says_something(word):
        return "text"
    if len(word) < long or _HEX_NAME.fullmatch(word.lower()) is not None:
        return ""
    # Words with hyphens are how pages are named; letters and digits in one are not.
    is_mixed = any(c.isdigit() for c in word) and any(c.isalpha() for c in word)
    return "opaque" if is_mixed and word.count("-") < 4 else ""


def _says_something(part: str) -> bool:
    """Whether it is base64 or hex of readable text."""
    if _HEX.fullmatch(part) is not None:
        return _READABLE.fullmatch(bytes.fromhex(part)) is not None
    if _BASE32.fullmatch(part) is not None and _is_base32_of_text(part):
        return True
    if _BASE64.fullmatch(part) is None:
        return False
    flat = part.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        plain = b64decode(flat + "=" * (-len(flat) % 4))
    except (binascii.Error, ValueError):
        return False
    return _READABLE.fullmatch(plain) is not None


def _is_base32_of_text(part: str) -> bool:
    """Base32 as host names carry it: they are case-insensitive."""
    flat = part.rstrip("=").upper()
    flat = flat[: len(flat) // 8 * 8]
    return _READABLE.fullmatch(b32decode(flat)) is not None


def beacon_trick(url: str, *, is_automatic: bool) -> str:
    """The entry of `TRICKS` that the address matches, or empty."""
    load = load_of(url)
    if is_automatic:
        return f"beacon-{load}" if load in ("template", "text", "opaque") else ""
    if load == "text":
        return "link-text"
    if load != "template":
        return ""
    # `https://api.example/{user_id}` is documentation; `?q={conversation}` is not.
    for url_form in (url[:_MAX_LOOKED_AT], unquote(url[:_MAX_LOOKED_AT])):
        for place in _PLACES.finditer(url_form):
            if _OF_THE_CONVERSATION.search(place[0]) and not _NAMES_A_THING.search(place[0]):
                return "link-template"
    return ""


def is_disguised(shown: str, target: str) -> bool:
    """Whether the label of a link is an address of another host than the target."""
    host = host_of(target)
    authority = _AUTHORITY.match(target[:_MAX_LOOKED_AT])
    if authority is not None and "." in authority[1].rpartition("@")[0]:
        return True  # https://bank.example@other.example/
    found = _DOMAIN.fullmatch(shown.strip()[:_MAX_LOOKED_AT])
    if found is None or not host:
        return False
    seen = found["host"].lower()
    if not (found["scheme"] or seen.startswith("www.") or found["last"] in _PLAINLY_DOMAINS):
        return False
    seen, host = seen.removeprefix("www."), host.removeprefix("www.")
    return not (seen == host or seen.endswith("." + host) or host.endswith("." + seen))


def defused(url: str) -> str:
    """Readable and complete, but no client turns it, or a part of it, into a link."""
    url = _HTTP.sub("hxxp", url)
    return _DOT.sub("[.]", url)
