"""Looks for texts that cost more than in proportion to their length (GRD-11).

Near misses are made of the rules themselves: the words and examples of every rule, cut, broken at
their last character, joined by separators and repeated. Each scan gets such a text at a length and
at four times that length; the longer one may cost four times as much, and some for noise. Times are
those of the process, and only their ratio counts, so a busy machine changes nothing.

    python -m tests.fuzz.guard_sweep --minutes 10 --seed 1
"""

from __future__ import annotations

import argparse
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from random import Random

from cellwall.audit.encoding import encode_body
from cellwall.egress.inspection.leak_scan import KnownIndex, LeakScan, Patterns, scan_head
from cellwall.guard import mark
from cellwall.guard.channel_formats import CHANNELS, Channel
from cellwall.guard.code import screen
from cellwall.guard.detect.rule_packs import shipped_packs
from cellwall.guard.pii import Pseudonyms, find
from cellwall.guard.redact import Redactor, shipped
from cellwall.guard.scanning import Scanner

Scan = Callable[[str], object]

FIRST_CHARACTERS = 8 * 1024
MAX_CHARACTERS = 2 << 20
ENOUGH_S = 0.2
"""A scan that takes so long can be told apart from noise."""
MAX_RATIO = 6.5
"""For four times the text; four is linear, sixteen is quadratic."""
CLEAR_RATIO = 10.0
TRIES = 4

SEPARATORS = (
    *("", " ", "\n", "-", "1-", ".", ":", "=", "/", '"', "'", ",", ";", "<", ">", "(", ")"),
    *("[", "]", "{", "}", "\\", "%", "&", "_", "@", "\t", "\u200b", "\r\n", "|", "!", "#", "+"),
    *("\x1b[31m", "\u0430", "\U000e0041", "a", "0", "9", "A", "é"),
)
SYNTAX = tuple(
    """<a |<a href="|<img src=x |<!--|<style>|<style>.a{|<script>|</|<div style="display:none">|&#6|&#x41;|&amp|&lt;
[a](|![|![a](http://|[a]:|**|__|```|~~~|`|> |- |# || a ||[[|<http://|1. |*a|_a
Content-Type: multipart/mixed; boundary=a|--a|=?utf-8?B?YQ?=|=?utf-8?Q?=|=3D|Subject: |Received: |boundary="|charset=|begin 644 a
<@U1|<!here>|<#C1|||`a`|{"blocks":[|{"type":"section","text":{"text":"|"entities":[|tg://user?id=|@everyone|<@&1>|<:a:1>|{"embeds":[{
eval(|f(|(|[|{|a.b.|a[|`${|/*|//|'|"|a=>|function(){|class a{|import(|/a/|/[|<<EOF|$(|${a|`a|| a|;a|&&a|if a;then|for a in|case a in|\\|'''|f'{|lambda a:|a if|not |~|-|**a|@a|async |await |yield |x:=
YWJj|YWJjZGVm |4142|41 42 |%41|%2541|\\u0041|\\x41|\\101|&#65;|=41|+AGE-|\ufb01|\u0431|\u200b|\u202e|\U000e0061|e\u0301|\u0301|\uff41|l33t |rot13 |a b c |i.g.n.o.r.e |0x41,|61 |01100001 |.-
\x1b[31m|\x1b]8;;|\\x1b[|\\u001b[1m|^[[0m|\xc2\x9b31m|\\033[|[redacted:|[redacted:jwt]|hfsecret_|hfsecret_a_abcdefghij234567klmnopqrst|00000000: 6162 6364  ab|0000000   a   b
-----BEGIN PRIVATE KEY-----|-----BEGIN |-----END |://a:b@|://a:|Authorization: Bearer |Authorization: |password="|token=|--token |key: |secret_access_key=|api_key": "|"default = "|eyJ|eyJa.eyJa.
a@b.c|a@|+49 30 |0049 |4111 1111 1111 1111 |DE89 3704 |1.2.3.4 |::1|fe80::|12-34-56 |078-05-1120|Musterstr. 1, |1990-01-01 |born |SSN |00:11:22:33:44:55
ignore all previous instructions|system:|<|im_start|>|[INST]|Human:|Assistant:|###|you are now |please |do not |send |forward |http://a.b/?q=""".replace(
        "\n", "|"
    ).split("|")
)
KNOWN = {
    "PLAIN": b"hunter2-correct-horse",
    "PERIODIC": b"abababababababababab",
    "ONE": b"aaaaaaaaaaaaaaaa",
    "MARKS": b"%%%%//++==&&!!<<>>",
    "LINES": b"line one\nline two\nline three\n",
    "SHORT": b"qwe-12",
    "LONG": b"Zx81kdQ02-" * 90,
}


@dataclass(frozen=True, slots=True)
class SlowText:
    """A text that a scan takes too long for."""

    scan: str
    text: tuple[str, str, str]
    """What it begins with, what is repeated, what it ends with."""
    characters: int
    seconds: float
    ratio: float

    def __str__(self) -> str:
        return (
            f"{self.scan}: {self.text!r} with {self.characters} characters took {self.seconds:.2f} s,"
            f" {self.ratio:.1f} times as long as a fourth of it"
        )


def repeated(text: tuple[str, str, str], characters: int) -> str:
    """The text with its middle repeated to about so many characters."""
    first, unit, last = text
    return first + unit * max(1, characters // len(unit)) + last


def measured(
    name: str, scan: Scan, text: tuple[str, str, str], *, enough_s: float = ENOUGH_S
) -> SlowText | None:
    """What is wrong with the scan of such a text, or nothing."""
    characters = FIRST_CHARACTERS
    spent = _seconds(scan, repeated(text, characters))
    while spent < enough_s and characters < MAX_CHARACTERS:
        characters *= 4
        before, spent = spent, _seconds(scan, repeated(text, characters))
        if spent >= enough_s and spent > MAX_RATIO * before:
            break
    else:
        before = 0.0
    if not before:  # slow from the start, or fast to the end: measured once more
        before = _seconds(scan, repeated(text, characters // 4))
    if spent <= MAX_RATIO * before or spent < enough_s:
        return None
    # The best of several, alternating: what else the machine does only makes things slower.
    for _ in range(TRIES):
        before = min(before, _seconds(scan, repeated(text, characters // 4)))
        spent = min(spent, _seconds(scan, repeated(text, characters)))
        if spent <= MAX_RATIO * before:
            return None
    if spent < CLEAR_RATIO * before:  # neither linear nor clearly not: a longer text tells
        longer = min(_seconds(scan, repeated(text, characters * 4)) for _ in range(2))
        if longer <= MAX_RATIO * spent:
            return None
    return SlowText(name, text, characters, spent, spent / before)


def _seconds(scan: Scan, text: str) -> float:
    start = time.process_time()
    scan(text)
    return max(time.process_time() - start, 1e-6)


@cache
def scans() -> Mapping[str, Scan]:
    """Everything that meets texts of others, by name."""

    plain, knowing = Redactor(), Redactor(known=lambda: KNOWN)
    scanner = Scanner()
    index = KnownIndex(KNOWN)

    def streamed(text: str) -> None:
        data, stream = text.encode("utf-8", "surrogatepass"), plain.stream()
        for start in range(0, len(data), 4096):
            stream.feed(data[start : start + 4096])
        stream.end()

    def wired(text: str) -> None:
        data, wire = text.encode("utf-8", "surrogatepass"), LeakScan(index, Patterns.shipped())
        for start in range(0, len(data), 16 * 1024):
            wire.feed(data[start : start + 16 * 1024])

    found: dict[str, Scan] = {
        "redact": plain.redact_text,
        "redact known": knowing.redact_text,
        "redact stream": streamed,
        "redact json": lambda text: plain.redact_json({"token": [text, {text[:64]: text}]}),
        "audit": lambda text: encode_body({"command": [text, text]}, max_field_bytes=8192),
        "wire": wired,
        "wire head": lambda text: scan_head(
            b"/?a=b", [(b"x", text.encode()[: 64 * 1024])], known=index, patterns=Patterns.shipped()
        ),
        "pii": find,
        "pii cover": lambda text: Pseudonyms().cover(text),
        "mark": lambda text: mark.wrap(text, source="a", mode="delimit"),
        "input": lambda text: scanner.scan(text, kind="input"),
    }
    for channel, form in CHANNELS.items():
        found[f"output {channel}"] = _channel(scanner, channel)
        found[f"clean {channel}"] = form.clean
    for language in ("python", "javascript", "typescript", "shell"):
        found[f"code {language}"] = _code(language)
    return found


def _channel(scanner: Scanner, channel: Channel) -> Scan:
    return lambda text: scanner.scan(text, channel=channel)


def _code(language: str) -> Scan:
    return lambda text: screen(text, language)


@cache
def seeds(kind: str) -> tuple[str, ...]:
    """Words and examples of the rules that scans of a kind work with."""
    found: dict[str, None] = dict.fromkeys(SYNTAX)
    if kind in ("redact", "audit", "wire"):
        found |= dict.fromkeys(_secrets())
    if kind in ("output", "input"):
        found |= dict.fromkeys(_orders())
    if kind == "pii":
        forms = resources.files("cellwall.guard.pii").joinpath("forms.toml").read_text("utf-8")
        for row in tomllib.loads(forms)["identity"]:
            found |= dict.fromkeys(row.get("words", ()))
    return tuple(text for text in found if text)


def _secrets() -> Iterator[str]:

    for rule in shipped().shapes:
        yield from (word.decode() for word in rule.words)
        yield from (*rule.match, *rule.not_match)
    for named in shipped().named:
        yield from (word.decode() for word in named.words[:40])


def _orders() -> Iterator[str]:

    for pack in shipped_packs():
        for each in pack.rules:
            yield from (word.decode() for word in (*each.words[:4], *each.near[:2]))
            yield from each.match[:2]


def aimed() -> Iterator[tuple[str, str, str]]:
    """For every rule of secrets, beginnings of its example that follow each other within a value."""

    for rule in shipped().shapes:
        word, example = rule.words[0].decode(), rule.match[0]
        at = max(0, example.lower().find(word.lower()))
        for more in (0, 1, 6):
            for border in ("1-", "-", ".", "/", ",", "", " "):
                yield "", example[at : at + len(word) + more] + border, ""


def texts(random: Random, kind: str) -> Iterator[tuple[str, str, str]]:
    """Near misses without end."""
    words = seeds(kind)
    while True:
        unit = _near_miss(random, words)
        if random.random() < 0.4:
            unit += _near_miss(random, words)
        first = _near_miss(random, words) if random.random() < 0.25 else ""
        last = _near_miss(random, words) if random.random() < 0.25 else ""
        yield first, unit or "a", last


def _near_miss(random: Random, words: Sequence[str]) -> str:
    text = random.choice(words if random.random() < 0.8 else SYNTAX)
    text = text or "a"
    match random.randrange(6):
        case 0:
            text = text[: random.randint(1, len(text))]
        case 1:
            text = text[random.randrange(len(text)) :]
        case 2:
            text = text[:-1] + random.choice(("!", "a", "0", " ", "", "-"))
        case 3:
            text = text[: random.randint(1, min(12, len(text)))]
        case _:
            pass
    return text[:200] + random.choice(SEPARATORS)


def sweep(
    *, minutes: float, seed: int, only: str = "", enough_s: float = ENOUGH_S
) -> Iterator[SlowText]:
    """What is found within the time: what is aimed first, then at random."""
    random, chosen = Random(seed), [name for name in scans() if only in name]
    until = time.monotonic() + minutes * 60
    streams = {name: texts(random, name.partition(" ")[0]) for name in chosen}
    rows = list(aimed())
    random.shuffle(rows)
    plain = [(name, ("", unit, "")) for name in chosen for unit in SYNTAX if unit]
    random.shuffle(plain)
    secret = [name for name in chosen if name.startswith(("redact", "audit", "wire"))]
    while time.monotonic() < until:
        if rows and secret and random.random() < 0.4:
            name, text = random.choice(secret), rows.pop()
        elif plain and random.random() < 0.4:  # a beginning that is never ended, and nothing else
            name, text = plain.pop()
        else:
            name = random.choice(chosen)
            text = next(streams[name])
        if (slow := measured(name, scans()[name], text, enough_s=enough_s)) is not None:
            yield slow


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="scans whose name holds this")
    options = parser.parse_args(argv)
    count = 0
    for slow in sweep(minutes=options.minutes, seed=options.seed, only=options.only):
        print(slow, flush=True)
        count += 1
    print(f"{count} slow texts, seed {options.seed}", file=sys.stderr)
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
