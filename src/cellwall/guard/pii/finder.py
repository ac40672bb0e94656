"""Finds personal data of all kinds in one text.

1. Engines without backtracking find candidates; Python and the libraries check only those.
2. Where hits overlap, the hit of the earlier finder stays and the other is shortened.
3. Beyond the limits, the rest of the text is one hit: hiding too much is safe, too little is not.
"""

from __future__ import annotations

import ipaddress
import re
import string
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, islice

from cellwall.guard.pii import numbers, people
from cellwall.guard.pii.hit import REGIONS, UNREAD, CheckBudget, PiiHit
from cellwall.parsing.budget import ScanBudget, ScanUnfinished, checkpoint, grant
from cellwall.parsing.matching import Pattern

# E-mail, IP and MAC addresses.

# Bytes of a local part; non-ASCII bytes count as letters.
_BEYOND = bytes(range(0x80, 0x100))
_LOCAL = string.ascii_letters.encode() + string.digits.encode() + b"._%+'-" + _BEYOND
# Punctuation, and continuation bytes of a character that was cut.
_NO_BEGINNING = b".'-" + bytes(range(0x80, 0xC0))
_MAX_LOCAL_BYTES, _MAX_DOMAIN_BYTES = 64, 253
_DOMAIN = re.compile(r"(?:[^\W_](?:[\w\-]{0,61}[^\W_])?\.){1,8}[^\W\d_]{2,24}(?![\w])")
# Endings behind the @ of a high-resolution image, a systemd unit or a versioned package.
_NO_DOMAINS = frozenset(
    {"png", "jpg", "jpeg", "gif", "svg", "webp", "ico", "css", "js", "mjs", "ts", "tsx", "jsx",
     "json", "html", "py", "txt", "yaml", "yml", "toml", "lock", "service", "socket", "timer",
     "mount", "target", "slice", "scope", "path", "device", "swap", "latest", "beta", "alpha"}
)  # fmt: skip
_VERSION = re.compile(r"[\dxv]+(?:\.[\dx]+)*\.[a-z]+")
_CLONE_USERS = frozenset({b"git", b"hg", b"svn"})

_IPV4 = Pattern(r"\b(?:[0-9]{1,3}\.){3}[0-9]{1,3}\b")
# Allocated global unicast addresses begin with 2 or 3.
_IPV6 = Pattern(r"\b[23][0-9A-Fa-f]{3}:[0-9A-Fa-f:.]{2,41}")
_VERSION_BEFORE = re.compile(rb"(?i)(?:v|ver|version|release|build|oid)[\s\"'=:]{1,3}$")

_MAC = Pattern(r"\b[0-9A-Fa-f]{2}(?:(?::[0-9A-Fa-f]{2}){5}|(?:-[0-9A-Fa-f]{2}){5})\b")
_DOCUMENTED_MAC = "00005e0053"


def find_mails(data: bytes, _: CheckBudget) -> Iterator[PiiHit]:
    """E-mail addresses with a plausible domain."""
    if b"@" not in data:
        return
    at = data.find(b"@")
    while at >= 0:
        before = data[max(0, at - _MAX_LOCAL_BYTES) : at]
        local = before[len(before.rstrip(_LOCAL)) :].lstrip(_NO_BEGINNING)
        after = data[at + 1 : at + 1 + _MAX_DOMAIN_BYTES].decode("utf-8", "replace")
        domain = _DOMAIN.match(after) if local else None
        if domain is not None:
            end = at + 1 + len(domain[0].encode())
            if _is_mail(local, domain[0], data[end : end + 1]):
                yield PiiHit("mail", at - len(local), end)
        at = data.find(b"@", at + 1)


def _is_mail(local: bytes, domain: str, behind: bytes) -> bool:
    is_clone = local in _CLONE_USERS and behind in (b":", b"/")
    ending = domain.rpartition(".")[2].casefold()
    return not is_clone and ending not in _NO_DOMAINS and not _VERSION.fullmatch(domain)


def find_ip_addresses(data: bytes, _: CheckBudget) -> Iterator[PiiHit]:
    """Public addresses; private, documentation and reserved ranges identify no person."""
    if data.count(b".") >= 3:
        for start, end in _IPV4.spans(data):
            is_version = _VERSION_BEFORE.search(data, max(0, start - 12), start)
            is_whole = not is_version and _is_word(data, start, end)
            if is_whole and _is_public(data[start:end]):
                yield PiiHit("ip", start, end)
    if data.count(b":") >= 2:
        for start, end in _IPV6.spans(data):
            found = data[start:end].rstrip(b".")  # the full stop of a sentence
            if found.endswith(b":") and not found.endswith(b"::"):
                found = found[:-1]
            if _is_public(found):
                yield PiiHit("ip", start, start + len(found))


def _is_word(data: bytes, start: int, end: int) -> bool:
    """Whether the address is whole: a port or prefix length may follow, a version part may not."""
    before = data[max(0, start - 2) : start]
    after = data[end : end + 2]
    return not (
        re.search(rb"[0-9A-Za-z_][.-]$|[A-Za-z_]$", before) or re.match(rb"[.-][0-9A-Za-z]", after)
    )


def _is_public(address: bytes) -> bool:
    try:
        found = ipaddress.ip_address(address.decode("ascii"))
    except ValueError:
        return False
    return found.is_global and not found.is_multicast


def find_mac_addresses(data: bytes, _: CheckBudget) -> Iterator[PiiHit]:
    """MAC addresses assigned by a vendor; local and multicast addresses identify no person."""
    for start, end in _MAC.spans(data):
        digits = data[start:end].decode("ascii").replace(":", "").replace("-", "").lower()
        is_given = int(digits[:2], 16) & 0b11 == 0 and int(digits, 16) != 0
        is_documented = digits.startswith(_DOCUMENTED_MAC)
        is_part = data[start - 1 : start] in (b":", b"-") or data[end : end + 1] in (b":", b"-")
        if is_given and not is_documented and not is_part:
            yield PiiHit("mac", start, end)


_CHECKS = 20_000
_MAX_HITS = 100_000
_HITS_A_STEP = 256

Names = Callable[[str], Sequence[PiiHit]]
"""Finds names of people: `people.NameFinder`, which needs an optional dependency."""


def find(
    text: str,
    *,
    regions: Sequence[str] = REGIONS,
    names: Names | None = None,
    max_hits: int = _MAX_HITS,
) -> tuple[PiiHit, ...]:
    """Hits in characters, from left to right and without overlaps.

    Telephone numbers without a country code are found if they belong to one of the `regions`.
    """
    time = ScanBudget()
    grant(time, len(text))
    try:
        with time.running():
            return _find_within_budget(text, regions=regions, names=names, max_hits=max_hits)
    except ScanUnfinished:
        return (PiiHit(UNREAD, 0, len(text)),)


def _find_within_budget(
    text: str, *, regions: Sequence[str], names: Names | None, max_hits: int
) -> tuple[PiiHit, ...]:
    data = text.encode("utf-8", "surrogatepass")
    budget = CheckBudget(_CHECKS)
    finders: list[Callable[[bytes, CheckBudget], Iterator[PiiHit]]] = [find_mails]
    if any(digit in data for digit in _DIGITS):
        finders += [
            numbers.find_ibans,
            numbers.find_unambiguous,
            numbers.find_named,
            people.find_birth_dates,
            find_ip_addresses,
            find_mac_addresses,
            partial(numbers.find_numbers, regions=regions),
            people.find_postal_addresses,
        ]
    ranked = [
        (rank, hit)
        for rank, finder in enumerate(finders)
        for hit in islice(_timed(finder(data, budget)), max_hits + 1)
    ]
    found = list(_in_characters(text, data, _apart(ranked)))
    if names is not None:
        people_hits = [(len(finders), hit) for hit in names(text)]
        found = _apart(chain(((0, hit) for hit in found), people_hits))
    if len(found) > max_hits:
        found[max_hits:] = [PiiHit(UNREAD, found[max_hits].start, len(text))]
    return tuple(found)


def _timed(hits: Iterator[PiiHit]) -> Iterator[PiiHit]:
    checkpoint()
    for number, hit in enumerate(hits):
        if number % _HITS_A_STEP == 0:
            checkpoint()
        yield hit


_DIGITS = tuple(bytes([digit]) for digit in b"0123456789")


def _apart(ranked: Iterator[tuple[int, PiiHit]] | Sequence[tuple[int, PiiHit]]) -> list[PiiHit]:
    """Step 2. Of two hits with one start the longer comes first, then the earlier finder."""
    found: list[PiiHit] = []
    reached = 0
    for _, hit in sorted(ranked, key=lambda each: (each[1].start, -each[1].end, each[0])):
        if hit.end <= reached:
            continue
        found.append(hit if hit.start >= reached else PiiHit(hit.kind, reached, hit.end))
        reached = hit.end
    return found


def _in_characters(text: str, data: bytes, hits: Sequence[PiiHit]) -> Iterator[PiiHit]:
    if len(text) == len(data):
        yield from hits
        return
    at_byte = at_character = 0
    for hit in hits:
        start = at_character + _length(data, at_byte, hit.start)
        end = start + _length(data, hit.start, hit.end)
        yield PiiHit(hit.kind, start, end)
        at_byte, at_character = hit.end, end


def _length(data: bytes, start: int, end: int) -> int:
    return len(data[start:end].decode("utf-8", "surrogatepass"))
