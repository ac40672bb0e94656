"""Whether a value looks random, or is evidently not a secret. Pure.

Entropy alone is not enough: `getAccessTokenFromRequest` has more entropy than many keys. So the
share of pronounceable letters counts as well. Rows of the alphabet or the keyboard count as random:
people write invented keys that way.

Placeholders, templates and lookups are exempt. An exemption must never match a real secret.
"""

from __future__ import annotations

import math
import re
from collections import Counter

_JUDGED_BYTES = 128
_TERM_BYTES = 32
"""The length below which technical terms are removed from a value."""
_UUID = re.compile(
    rb"[0-9a-zA-Z]{8}-[0-9a-zA-Z]{4}-[0-9a-zA-Z]{4}-[0-9a-zA-Z]{4}-[0-9a-zA-Z]{10,12}"
)
_HEX = re.compile(rb"[0-9a-f]+|[0-9A-F]+")
_CHUNK = re.compile(rb"[A-Za-z0-9]+")
_DIGITS = re.compile(rb"[0-9]+")
_PIECE = re.compile(rb"[A-Z]?[a-z]{3,}|[A-Z]{4,}(?![a-z])")
_UNSPEAKABLE = re.compile(rb"(?i)[bcdfghjklmnpqrstvwxz]{5}|[aeiou]{4}|[jq][bcdfghjklmnpqrstvwxz]")
_CHANGE = re.compile(rb"[a-z](?=[A-Z0-9])|[A-Z](?=[0-9])|[0-9](?=[A-Za-z])")
_VOWEL = re.compile(rb"(?i)[aeiouy]")
_TERMS = re.compile(
    rb"(?i)(?:ed|x|curve|secp)\d{2,5}[kr]?1?|sha\d{1,3}|md5|aes\d{0,3}|rsa\d*|base\d\d|u?int\d\d?|utf\d+"
    rb"|float\d\d|rfc\d+|mt19937|krb5|ipv[46]|oauth2|win\d\d|x86|amd64|arm64|ed448|x448|pcg64|k8s|i18n"
)
"""Terms with digits, which would make the value that contains them look random."""
_ALPHABET = b"abcdefghijklmnopqrstuvwxyz"
_KEYBOARD = b"qwertyuiopasdfghjklzxcvbnm"


def _parts(row: bytes, length: int) -> set[bytes]:
    return {row[i : i + length] for i in range(len(row) - length + 1)}


_ROWS = {
    4: frozenset(_parts(_ALPHABET, 4) | _parts(_ALPHABET[::-1], 4)),
    5: frozenset(_parts(_KEYBOARD, 5)),  # `property` has four of its keys
}

NOT, WEAK, STRONG = 0, 1, 2
"""How random a value looks: like a name or a word; like a short key; like nothing but a key."""


_N_LOG_N = (0.0, *(n * math.log2(n) for n in range(1, 2 * _JUDGED_BYTES)))
"""Precomputed: `shannon` runs for every keyword, and takes a third of the time with this table."""


def shannon(value: bytes) -> float:
    """Shannon entropy in bits per byte; 0 for no bytes."""
    total = len(value)
    if not total:
        return 0.0
    if total >= len(_N_LOG_N):
        return -sum(n / total * math.log2(n / total) for n in Counter(value).values())
    return math.log2(total) - sum(map(_N_LOG_N.__getitem__, Counter(value).values())) / total


def min_entropy(value: bytes) -> float:
    """The entropy that a random value of the same alphabet and length rarely falls below."""
    if _HEX.fullmatch(value):
        size = 16
    elif value.isalnum() and (value.islower() or value.isupper()):
        size = 36
    else:
        size = 64
    # In a short value all bytes can differ, but a random one repeats some.
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
        return _judge_number(len(longest))
    if len(longest) < 6 or solid < 10:
        return _judge_parts(chunks, len(value)) if digits else NOT
    level = _judge_letters(_pronounceable(value) / solid, solid, digits)
    if level == NOT and len(longest) >= 16 and _count_changes(longest) >= 0.3 * len(longest):
        return WEAK
    return level


def _count_changes(chunk: bytes) -> int:
    """Changes between small letters, capitals and digits, where a capital and the letter behind it
    are one. Names change once per word, random text at nearly every second letter."""
    return len(_CHANGE.findall(chunk))


def _judge_number(length: int) -> int:
    return NOT if length < 15 else WEAK if length < 24 else STRONG


def _judge_letters(pronounceable: float, solid: int, digits: int) -> int:
    """Judged by the share of pronounceable letters, the length, and the number of digits."""
    if digits < 2:
        if solid < 16 or pronounceable >= 0.35:
            return NOT
        return STRONG if solid >= 20 else WEAK
    if solid >= 16 and pronounceable < 0.45:
        return STRONG
    return WEAK if pronounceable < 0.5 else NOT


def _pronounceable(value: bytes) -> int:
    """The number of letters in pronounceable parts."""
    return sum(
        len(piece)
        for piece in _PIECE.findall(value)
        if _VOWEL.search(piece) and not _UNSPEAKABLE.search(piece) and not _has_row(piece)
    )


def _has_row(piece: bytes) -> bool:
    small = piece.lower()
    return any(not rows.isdisjoint(_parts(small, length)) for length, rows in _ROWS.items())


def _judge_parts(chunks: list[bytes], length: int) -> int:
    """For short chunks with marks between them: grouped keys, base64 with many marks."""
    mixed = [chunk for chunk in chunks if not chunk.isalpha() and not chunk.isdigit()]
    if length >= 16 and sum(map(len, mixed)) >= 0.4 * length:
        return STRONG if length >= 24 else WEAK
    return NOT


_PLACEHOLDER = re.compile(
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
_LOOKUP = re.compile(
    rb"(?i)^(?:os\.|env\b|environ|process\.env|getenv|system\.getenv|config[.\[]|settings[.\[]"
    rb"|self\.|this\.|args\.|params?[.\[]|options?[.\[]|request\.|req\.|ctx\.|secrets?[.\[]|vars?\."
    rb"|data\.|local\.|module\.|viper\.|lookup\(|file\(|vault:|ssm:|arn:aws:|!ref|!sub|op://)"
)
_LEASED = re.compile(rb"hfsecret_[a-z0-9_]{1,64}_[a-z2-7]{26}")
"""The placeholder of a leased secret (SEC-5)."""
_MARKED = re.compile(rb"\[redacted:")
_LONG_BYTES = 200
"""In a longer random value, any short word can occur by chance."""


def is_placeholder(value: bytes) -> bool:
    """Whether the value is evidently a placeholder, not a secret."""
    if len(set(value[:64])) <= 3:
        return True
    if value.lower() in _WORDS or _MARKED.search(value) or _LEASED.fullmatch(value):
        return True
    if len(value) > _LONG_BYTES:
        return False
    return bool(_PLACEHOLDER.search(value) or _TEMPLATE.search(value))


def is_lookup_expression(value: bytes) -> bool:
    """Whether the value is code that looks the secret up elsewhere."""
    return bool(_LOOKUP.match(value))
