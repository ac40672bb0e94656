"""What stands where a secret would and is none: placeholders, templates, look-ups. Pure.

Everything here makes the net wider-meshed, so nothing here may be what a real secret looks like.
"""

from __future__ import annotations

import re

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


def is_looked_up(value: bytes) -> bool:
    """Whether it is code that fetches the secret from where it is."""
    return bool(_LOOKED_UP.match(value))
