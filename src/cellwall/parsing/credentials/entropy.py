"""Whether a value looks random, or says itself that it is no secret. Pure.

Entropy alone is not enough: `getAccessTokenFromRequest` has more entropy than many keys. So the
share of pronounceable letters counts as well. Rows of the alphabet or the keyboard count as random:
that is how people write invented keys.

Placeholders, templates and lookups are exempt. An exemption must never match a real secret.
"""

from __future__ import annotations

import math
import re
from collections import Counter

_JUDGED_BYTES = 128
_TERM_BYTES = 32
"""Of a long value; what follows does not change what it looks like."""
_UUID = re.compile(
    rb"[0-9a-zA-Z]{8}-[0-9a-zA-Z]{4}-[0-9a-zA-Z]{4}-[0-9a-zA-Z]{4}-[0-9a-zA-Z]{10,12}"
)
_HEX = re.compile(rb"[0-9a-f]+|[0-9A-F]+")
_CHUNK = re.compile(rb"[A-Za-z0-9]+")
_DIGITS = re.compile(rb"[0-9]+")
_PIECE = re.compile(rb"[A-Z]?[a-z]{3,}|[A-Z]{4,}(?![a-z])")
_UNSPOKEN = re.compile(rb"(?i)[bcdfghjklmnpqrstvwxz]{5}|[aeiou]{4}|[jq][bcdfghjklmnpqrstvwxz]")
_TURN = re.compile(rb"[a-z](?=[A-Z0-9])|[A-Z](?=[0-9])|[0-9](?=[A-Za-z])")
_VOWEL = re.compile(rb"(?i)[aeiouy]")
_TERMS = re.compile(
    rb"(?i)(?:ed|x|curve|secp)\d{2,5}[kr]?1?|sha\d{1,3}|md5|aes\d{0,3}|rsa\d*|base\d\d|u?int\d\d?|utf\d+"
    rb"|float\d\d|rfc\d+|mt19937|krb5|ipv[46]|oauth2|win\d\d|x86|amd64|arm64|ed448|x448|pcg64|k8s|i18n"
)
"""Names with digits in them, which would make what they stand in look like chance."""
_ALPHABET = b"abcdefghijklmnopqrstuvwxyz"
_KEYBOARD = b"qwertyuiopasdfghjklzxcvbnm"


def _parts(row: bytes, length: int) -> set[bytes]:
    return {row[i : i + length] for i in range(len(row) - length + 1)}


_ROWS = {
    4: frozenset(_parts(_ALPHABET, 4) | _parts(_ALPHABET[::-1], 4)),
    5: frozenset(_parts(_KEYBOARD, 5)),  # `property` has four of its keys
}

NOT, WEAK, STRONG = 0, 1, 2
"""How random a value looks: like a name or a word; as a short key may; as only a key does."""


_N_LOG_N = (0.0, *(n * math.log2(n) for n in range(1, 2 * _JUDGED_BYTES)))
"""Asked at every name of a secret: a sum of what was worked out before takes a third."""


def shannon(value: bytes) -> float:
    """Bits in each byte, from how often each one occurs; 0 for nothing."""
    total = len(value)
    if not total:
        return 0.0
    if total >= len(_N_LOG_N):
        return -sum(n / total * math.log2(n / total) for n in Counter(value).values())
    return math.log2(total) - sum(map(_N_LOG_N.__getitem__, Counter(value).values())) / total


def min_entropy(value: bytes) -> float:
    """What a random value over the same alphabet and of this length hardly falls below."""
    if _HEX.fullmatch(value):
        size = 16
    elif value.isalnum() and (value.islower() or value.isupper()):
        size = 36
    else:
        size = 64
    # Of a short value each byte can be another one, but chance repeats some.
    return 0.6 * math.log2(max(2, min(size, len(value))))


def randomness(value: bytes) -> int:
    """NOT, WEAK or STRONG."""
    value = value[:_JUDGED_BYTES]
    if len(value) < 2 * _TERM_BYTES:
        value = _TERMS.sub(b"", value)
    if len(value) < 8 or shannon(value) < min_entropy(value):
        return NOT
    digits = sum(map(len, _DIGITS.findall(value)))
    if _UUID.match(value):
        return STRONG if digits >= 2 else NOT
    chunks = _CHUNK.findall(value)
    solid = sum(map(len, chunks))
    longest = max(chunks, key=len, default=b"")
    if digits >= 3 and len(longest) >= 24 and _HEX.fullmatch(longest):
        return STRONG
    if solid - digits < 3:
        return _of_number(len(longest))
    if len(longest) < 6 or solid < 10:
        return _of_parts(chunks, len(value)) if digits else NOT
    found = _of_letters(_spoken(value) / solid, solid, digits)
    if found == NOT and len(longest) >= 16 and _turns(longest) >= 0.3 * len(longest):
        return WEAK
    return found


def _turns(chunk: bytes) -> int:
    """How often small letters, capitals and digits take turns; a capital begins a word with what
    follows it. Names turn once for each word, chance at nearly every second letter."""
    return len(_TURN.findall(chunk))


def _of_number(length: int) -> int:
    return NOT if length < 15 else WEAK if length < 24 else STRONG


def _of_letters(spoken: float, solid: int, digits: int) -> int:
    """Of how much of it can be read out, how long it is and whether it has digits."""
    if digits < 2:
        if solid < 16 or spoken >= 0.35:
            return NOT
        return STRONG if solid >= 20 else WEAK
    if solid >= 16 and spoken < 0.45:
        return STRONG
    return WEAK if spoken < 0.5 else NOT


def _spoken(value: bytes) -> int:
    """How many of its letters stand in what a person could read out."""
    return sum(
        len(piece)
        for piece in _PIECE.findall(value)
        if _VOWEL.search(piece) and not _UNSPOKEN.search(piece) and not _has_row(piece)
    )


def _has_row(piece: bytes) -> bool:
    small = piece.lower()
    return any(not rows.isdisjoint(_parts(small, length)) for length, rows in _ROWS.items())


def _of_parts(chunks: list[bytes], length: int) -> int:
    """Of short pieces with marks between them, as in grouped keys or base64 with many marks."""
    mixed = [chunk for chunk in chunks if not chunk.isalpha() and not chunk.isdigit()]
    if length >= 16 and sum(map(len, mixed)) >= 0.4 * length:
        return STRONG if length >= 24 else WEAK
    return NOT


_TOLD = re.compile(
    rb"(?i)example|placeholder|change[_-]?(?:me|it)|(?:insert|replace|enter|put)[_-]?(?:your|with)"
    rb"|(?:^|[_\-.<\[{ ])(?:your|my|some|the)[_\- ]|x{5,}|\*{3,}|\.{3,}|0{12,}|redacted|notreal"
    rb"|(?:^|[_\-. ])(?:dummy|foobar|todo|fixme|lorem|replaceme)(?:$|[_\-. ])"
    rb"|not[_-]?set|not[_-]a[_-]real|deadbeef-dead|goes[_-]?here"
)
_TEMPLATE = re.compile(
    rb"\$\{|\$\(|\{\{|\}\}|#\{|<%|%>|<[A-Za-z_][\w .:-]*>|%\([a-z]|%[sdvqr]\b|@\{"
    rb"|^\$[A-Za-z_]|^%[A-Za-z_]+%$|^\{[^{}]*\}$|^<.*>$|^\[[^\[\]]*\]$|^@[A-Za-z]+@$|^\{\w+"
)
_WORDS = frozenset(
    b"password passwd pass pwd passphrase secret token key apikey api_key none null nil true false"
    b" undefined string str bytes bool int any object admin root user username test testing tests"
    b" default required optional hidden unknown empty value login guest anonymous private public"
    b" foo bar baz qux mysecret mypassword my-password my_password yourpassword your_password abc"
    b" abc123 123456 12345678 1234567890 xxx xxxx xx pw text self this env config auth mypass"
    b" userpass thepassword the_password new_password old_password somepassword basic bearer"
    b" hunter pass123 password1 disabled enabled secretkey changeit hash basestring".split()
)
_LOOKED_UP = re.compile(
    rb"(?i)^(?:os\.|env\b|environ|process\.env|getenv|system\.getenv|config[.\[]|settings[.\[]"
    rb"|self\.|this\.|args\.|params?[.\[]|options?[.\[]|request\.|req\.|ctx\.|secrets?[.\[]|vars?\."
    rb"|data\.|local\.|module\.|viper\.|lookup\(|file\(|vault:|ssm:|arn:aws:|!ref|!sub|op://)"
)
_LENT = re.compile(rb"hfsecret_[a-z0-9_]{1,64}_[a-z2-7]{26}")
"""What code sees in the place of a secret that it was lent (SEC-5)."""
_MARKED = re.compile(rb"\[redacted:")
_LONG_BYTES = 200
"""In so long a value chance writes any short word."""


def is_placeholder(value: bytes) -> bool:
    """Whether it says itself that it is no secret."""
    if len(set(value[:64])) <= 3:
        return True
    if value.lower() in _WORDS or _MARKED.search(value) or _LENT.fullmatch(value):
        return True
    if len(value) > _LONG_BYTES:
        return False
    return bool(_TOLD.search(value) or _TEMPLATE.search(value))


def is_lookup_expression(value: bytes) -> bool:
    """Whether it is code that fetches the secret from where it is."""
    return bool(_LOOKED_UP.match(value))
