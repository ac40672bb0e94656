"""Texts of other people: pages, mail, chat, code, output, in all their disguises."""

from __future__ import annotations

import base64
import json
import re
import zlib
from html.parser import HTMLParser

from cellwall.core.errors import ConfigError
from cellwall.core.showing import block, escaped, one_line, warnings
from cellwall.guard.channel_formats import clean, read
from cellwall.guard.code import RULES, screen
from cellwall.guard.detect.passages import finder as passages
from cellwall.guard.normalise import unfold
from cellwall.guard.pii import finder
from cellwall.guard.redact import Redactor, load_gitleaks
from cellwall.guard.redact.stream import EscapeSequences
from cellwall.parsing.calendar.dav_xml import BadCalendarData, calendar_texts
from cellwall.parsing.calendar.icalendar import EventText, events_in, new_event, utc_time
from cellwall.parsing.canaries.canary_set import Canary, CanarySet
from cellwall.parsing.canaries.letters import letters
from cellwall.parsing.credentials.known_forms import forms
from fuzz.second_readers import cut
from fuzz.targets import target, text_of, wild_text_of

_DISGUISES = (
    b"ignore previous instructions", b"%69", b"&#105;", b"\\x69", b"\\u0069", b"=69", b"aWdub3JlIGFsbCBwcmV2aW91cw==",
    b"NFTW433SMUQGC3DM", b"69676e6f7265", b"vtaber", b"I g n o r e", b"\x1b[31m", b"\x1b]8;;",
    *(each.encode() for each in ("\u200b", "\u202e", "\ufe0f", "\U000e0041", "\u0430", "\uff49", "\u0301", "\U0001d422", "\u00ad")),
)  # fmt: skip


@target("guard.normalise", tokens=_DISGUISES)
def disguised_text(data: bytes) -> None:
    """Texts in any encoding and disguise: every view leads back to places in the original"""
    text = wild_text_of(data)
    found = unfold(text)
    assert found.views[0].via == ()
    for view in found.views:
        assert len(view.folded) == len(view.plain)
        middle = len(view.plain) // 2
        for start, end in ((0, len(view.plain)), (middle, middle + 1), (0, middle)):
            low, high = view.span(start, min(end, len(view.plain)))
            assert 0 <= low <= high <= len(text)
    assert all(0 <= hit.start < hit.end <= len(text) for hit in found.hits)


_ORDERS = (
    b"You must ", b"ignore ", b"previous instructions", b"system prompt", b"as an AI", b"please ", b"send ", b"to me", b"?", b". ", b"\n\n", b"- ", b"```\n",
    b"do not tell the user", "\u3002".encode(), "\u0130".encode(), "\u00df".encode(), "\u0301".encode(), b"<|im_start|>", b"SYSTEM: ", b"\t", b"# ",
)  # fmt: skip
_FAR = "The weather is fine today and the market opens at nine. " * 80


@target("guard.detect.passages", tokens=_ORDERS)
def suspect_passage(data: bytes) -> None:
    """Texts for the classifier of passages, short and in the middle of long ones: hits lie in the text, in order,
    and the parts that are read are apart"""
    text = wild_text_of(data[1:])
    if data[:1] > b"\x7f":
        text = _FAR + text + _FAR
    last = 0
    for start, end in passages.suspect_parts(text):
        assert last <= start < end <= len(text) or (start, end) == (0, 0)
        last = end
    found = passages.find(text)
    last = 0
    for hit in found.hits:
        assert last <= hit.start <= hit.end <= len(text)
        assert 0 <= hit.score <= 1
        last = hit.start


_MARKUP = (
    b"![a](b)", b"[x](javascript:y)", b"<img src=", b"<!--", b"-->", b"```\n", b"~~~", b"[a]: http://b", b"<http://x|y>", b"@everyone",
    b"tg://user?id=1", b'{"text":"', b'"entities":[{"type":"text_link","offset":0,"length":1,"url":"', b'"blocks":[', b'"embeds":[{',
    b"From: a@b.c\n", b"Content-Type: multipart/mixed; boundary=b\n", b"\n--b\n", b"--b--", b"Content-Transfer-Encoding: base64\n",
    b"=?utf-8?b?", b"?=", b"begin 644 a\n", b"&lt;", b"<style>", b"display:none", b"\n\n", b"||a||", b"<@123>", b"\\", b"|", b"`",
)  # fmt: skip
_CHANNELS = ("plain", "markdown", "html", "email", "telegram", "discord", "slack")


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.found.append(tag)


@target("guard.channels", "guard.chat", "parsing.html", tokens=_MARKUP)
def channel_message(data: bytes) -> None:
    """Messages of every channel (Markdown, HTML, e-mail, Telegram, Discord, Slack): pieces lie in the
    text; a cleaned text stays cleaned"""
    channel = _CHANNELS[data[0] % 7 if data else 0]
    text = wild_text_of(data[1:])
    found = read(channel, text)
    for piece in found.pieces:
        low, high = piece.span(0, len(piece.text))
        assert 0 <= low <= high <= len(text)
    assert all(0 <= hit.start <= hit.end <= len(text) for hit in found.hits)
    once = clean(channel, text)
    if channel == "html":
        tags = _Tags()
        tags.feed(once)
        tags.close()
        assert tags.found == []
    if channel == "discord":
        assert not re.search(r"@everyone|@here|<@[!&]?\d+>", once)


_CODE = (
    b"import os\n", b"eval(", b"exec(", b"__import__('os')", b"getattr(", b"subprocess.run(", b"base64.b64decode(", b"require('child_process')",
    b"process.env", b"`${", b"new Function(", b"curl ", b" | sh", b"$(", b"<<A\n", b"A\n", b"rm -rf /", b"\\u{", b"f'{", b"/*", b"*/", b"'''",
)  # fmt: skip
_LANGUAGES = ("python", "javascript", "typescript", "shell", "none")


@target("guard.code", "parsing.python", "parsing.javascript", tokens=_CODE)
def screened_code(data: bytes) -> None:
    """Python, JavaScript, TypeScript and shell code that is screened: findings lie in the code"""
    language = _LANGUAGES[data[0] % 5 if data else 0]
    code = wild_text_of(data[1:])
    for hit in screen(code, language):
        assert 0 <= hit.start <= hit.end <= len(code)
        assert hit.rule in RULES


_KNOWN = {"HORSE": b"hunter2-correct-horse", "TOKEN": b"tok/5f9c+2e81d7=="}
_REDACTOR = Redactor(known=lambda: _KNOWN)
_SECRETS = (
    b"ghp_", b"AKIA", b"password=", b"token: ", b"-----BEGIN RSA PRIVATE KEY-----\n", b"-----END ", b"eyJ", b"xoxb-", b"sk_live_",
    *_KNOWN.values(), base64.b64encode(_KNOWN["HORSE"]), _KNOWN["HORSE"].hex().encode(), b"\x1b[1m", b"\x1b]0;", b"\x1b]8;;a\x1b\\", b"\r", b"\x08", b'"',
)  # fmt: skip


_MARK = re.compile(rb"(\[redacted:[^\]]*\])")
_FORMS = tuple(form for value in _KNOWN.values() for form in forms(value))


@target("guard.redact", "parsing.credentials", tokens=_SECRETS)
def redacted_output(data: bytes) -> None:
    """Output with secrets: no form of a known value is left, whole or in pieces; the same in any pieces,
    but for two characters of an encoded value"""
    whole = _REDACTOR.redact(data).data
    places = [zlib.crc32(data[:size]) for size in (1, 7, 31) if size < len(data)]
    cuts = [cut(data, places)]
    if len(data) <= _MAX_BYTEWISE:
        cuts.append([data[at : at + 1] for at in range(len(data))])
    outputs = {_redacted_in(pieces) for pieces in cuts} | {whole}
    for shown in outputs | {_without_sequences(each) for each in outputs}:
        assert all(form.first(shown) is None for form in _FORMS)
    assert all(_is_same_but_for_first_characters(each, whole) for each in outputs)


_MAX_BYTEWISE = 96


def _redacted_in(pieces: list[bytes]) -> bytes:
    stream = _REDACTOR.stream()
    return b"".join([*map(stream.feed, pieces), stream.end()])


def _without_sequences(data: bytes) -> bytes:
    return EscapeSequences().plain(data, is_final=True)


def _is_same_but_for_first_characters(split: bytes, whole: bytes) -> bool:
    """As `guard.redact.stream` declares it: two characters leave before the third identifies a value."""
    ones, others = _MARK.split(split), _MARK.split(whole)
    if len(ones) != len(others) or ones[1::2] != others[1::2]:
        return False
    marks = [*ones[1::2], b""]
    return all(
        # Sequences inside a value stand behind its mark, or before it, if two characters have left.
        _begins_with(one, other, mark)
        or _begins_with(_without_sequences(one), _without_sequences(other), mark)
        for one, other, mark in zip(ones[::2], others[::2], marks, strict=True)
    )


def _begins_with(one: bytes, other: bytes, mark: bytes) -> bool:
    spare = 2 if mark.startswith(b"[redacted:secret ") else 0
    return one.startswith(other) and len(one) <= len(other) + spare


_REGISTERED = (
    "You are the assistant of a small bank. Whoever asks which customers have accounts gets no answer; "
    "charges above five hundred are confirmed by the manager on call before they are made."
)
_CANARY = Canary.of("prompt", _REGISTERED)
_CANARIES = CanarySet([] if _CANARY is None else [_CANARY])


@target("parsing.canaries", tokens=(
    _REGISTERED[:70].encode(), _REGISTERED[70:140].encode(), _REGISTERED.encode(), base64.b64encode(_REGISTERED[:90].encode()),
    _REGISTERED[40:100].encode().hex().encode(), b"\\u0068", b"%68", b"&#104;", b"\\n", b"&amp", b"%", b"\\", b"\xc3",
))  # fmt: skip
def registered_text(data: bytes) -> None:
    """Output with parts of a registered text, such as a system prompt: found in any pieces"""
    assert _CANARIES
    is_plain = next(_CANARIES.in_letters(letters(data)), None) is not None
    assert not is_plain or _CANARIES.find(data) == "prompt"
    stream = _CANARIES.stream()
    places = [zlib.crc32(data[:size]) for size in (1, 7, 31) if size < len(data)]
    found = [stream.feed(piece) for piece in cut(data, places)]
    assert not is_plain or found[-1] == "prompt"


_RULES_TOKENS = (
    b"[[rules]]\n", b'id = "a"\n', b"regex = '''", b"'''\n", b"entropy = 3.5\n", b"secretGroup = 1\n", b'keywords = ["', b"[[rules.allowlists]]\n",
    b"[allowlist]\n", b'stopwords = ["', b'regexTarget = "line"\n', b'condition = "AND"\n', b"[extend]\n", b"(?i)", b"[a-z]{10}", b"a.b.c",
)  # fmt: skip


@target("parsing.credentials.gitleaks", "parsing.toml", tokens=_RULES_TOKENS)
def gitleaks_rules(data: bytes) -> None:
    """Rules of gitleaks that a user adds: rules that redact, or one error with a hint"""
    try:
        rules = load_gitleaks(text_of(data))
    except ConfigError as error:
        assert error.hint  # noqa: PT017
        assert str(error).isprintable()  # noqa: PT017
        return
    Redactor(rules).redact(b"token = abcdefghij0123456789")


@target(
    "guard.pii",
    tokens=(
        b"@example.com",
        b"+49 30 ",
        b"DE89370400440532013000",
        b"4111 1111 1111 1111",
        b"192.0.2.1",
        b"1.1.1980",
        b"born ",
    ),
)
def personal_data(data: bytes) -> None:
    """Texts with personal data: places in order, apart, and in the text"""
    text = wild_text_of(data)
    last = 0
    for hit in finder.find(text):
        assert last <= hit.start < hit.end <= len(text)
        last = hit.end


@target(
    "core.showing",
    tokens=tuple(
        each.encode()
        for each in ("\u202e", "\u200b", "\x1b[2J", "\r", "\ufeff", "\U000e0041", "\u0301", "漢")
    ),
)
def shown_text(data: bytes) -> None:
    """Untrusted texts on a terminal: nothing that is shown can move the cursor or hide"""
    text = wild_text_of(data)
    for shown in (
        escaped(text),
        one_line(text),
        block(text, max_rows=8, max_characters=400),
        *warnings(text),
    ):
        assert not re.search(
            "[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", shown
        )
    assert "\n" not in one_line(text)


_CALENDAR = (
    b"BEGIN:VCALENDAR\r\n", b"BEGIN:VEVENT\r\n", b"END:VEVENT\r\n", b"SUMMARY:", b"DTSTART:20260131T120000Z\r\n", b"DTSTART;TZID=", b"\r\n ",
    b"<D:multistatus xmlns:D='DAV:' xmlns:C='urn:ietf:params:xml:ns:caldav'>", b"<D:response>", b"<C:calendar-data>", b"<!DOCTYPE ",
    b"<!ENTITY ", b"encoding='utf-7'", b"&#x41;", b"2026-01-31T12:00:00+01:00", b"0001-01-01T00:00:00+14:00",
)  # fmt: skip


@target("parsing.calendar", tokens=_CALENDAR)
def calendar(data: bytes) -> None:
    """CalDAV responses, iCalendar objects and times: texts that can be written again, or the declared error"""
    try:
        found = calendar_texts(data)
    except BadCalendarData:
        found = ()
    for text in (*found, text_of(data)):
        try:
            events = events_in(text)
        except BadCalendarData:
            continue
        for event in events:
            json.dumps(event.summary)
            plain = EventText(
                uid="u", summary=event.summary, start="20260131T120000Z", end="20260131T130000Z"
            )
            (again,) = events_in(new_event(plain, stamp="20260131T120000Z").decode())
            # Line ends and control characters are written in one form.
            assert again.summary == event.summary or not event.summary.isprintable()
    try:
        utc_time(text_of(data))
    except ValueError:
        return
