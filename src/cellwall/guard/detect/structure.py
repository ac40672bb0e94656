"""Detectors of structure: the order, number and combination of sentences, not single patterns.

Each detector has a tuple of keywords, at least one of which is in everything it finds, and a
function that searches a view in which one of the keywords was found.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from cellwall.core.outcomes import Severity
from cellwall.guard.ctext.library import LineHeads, byte_set
from cellwall.guard.detect import orders
from cellwall.guard.detect.sweep import Span, Spot, Sweep, as_word, without_flood
from cellwall.guard.report import Kind
from cellwall.parsing.matching import Pattern

# A request in another script than the rest of the text: written for other readers than the text.
#
# A page in English has no reason to ask for something in Chinese, nor the other way round.
# Languages
# that share a script are told apart by the rules alone.


@dataclass(frozen=True)
class _RequestForm:
    """How a language of another script asks for an act."""

    words: tuple[bytes, ...]
    pattern: Pattern


def _request(words: str, pattern: str) -> _RequestForm:
    return _RequestForm(tuple(as_word(word) for word in words.split()), Pattern(pattern))


_FOREIGN = (
    _request(
        "отправ удали выполни запусти игнорир перешли ответь напиши сообщи покажи",
        r"(?:пожалуйста[,\s]+|ты должен\s+|вы должны\s+|немедленно\s+|теперь\s+|(?m:^)\s*|[.!?]\s+)"
        r"(?:отправь(?:те)?|удали(?:те)?|выполни(?:те)?|запусти(?:те)?|игнорируй(?:те)?|"
        r"перешли(?:те)?|ответь(?:те)?|напиши(?:те)?|сообщи(?:те)?|покажи(?:те)?)\s+\S+[^.!?\n]{0,80}",
    ),
    _request(
        "发送 發送 删除 刪除 执行 執行 运行 忽略 回答 回复 输出 告诉 调用",
        r"(?:请|請|你必须|你应该|现在|立即|务必|必须)[^。\n]{0,12}"
        r"(?:发送|發送|删除|刪除|执行|執行|运行|忽略|回答|回复|输出|告诉|调用)[^。\n]{1,60}",
    ),
    _request(
        "送信 削除 実行 無視 回答 出力 教えて 呼び出",
        r"(?:送信|削除|実行|無視|回答|出力|教え|呼び出)(?:して|し|て)?(?:ください|下さい|なさい|しろ|せよ)",
    ),
    _request(
        "보내 삭제 실행 무시 출력 답변 알려 호출",
        r"(?:보내|삭제|실행|무시|출력|답변|알려|호출)(?:해|하)?\s?(?:주세요|줘|하십시오|하세요|십시오|라)",
    ),
    _request(
        "أرسل ارسل احذف نفذ تجاهل أجب اكتب شغل",
        r"(?:^|[\s،.])(?:من فضلك\s+|يجب أن\s+|الآن\s+)?"
        r"(?:أرسل|ارسل|احذف|نفذ|تجاهل|أجب|اكتب|شغل)\s+\S+",
    ),
)
_ENGLISH = _request(
    "please assistant",
    r"\b(?:please|assistant,)\s+(?:immediately\s+|now\s+)?(?:send|delete|run|execute|ignore|forward|"
    r"reply|respond|answer|write|tell|print|call|visit|open|summari[sz]e|output)\s+\S+[^.!?\n]{0,80}",
)
_FOREIGN_WORDS = tuple(word for request in _FOREIGN for word in request.words)
SCRIPT_SHIFT_WORDS = (*_FOREIGN_WORDS, *_ENGLISH.words)
_BEYOND_ASCII = bytes(range(0x80, 0x100))
_FEW_FOREIGN = 0.15
"""Share of characters beyond ASCII up to which a text is in a Latin script."""
_MOSTLY_FOREIGN = 0.5
_MAX_FOREIGN = 800
"""Characters; a text with more of them is in two languages, as translated manuals are."""
_MIN_CHARACTERS = 200


def find_script_shifts(sweep: Sweep) -> Iterator[Spot]:
    """Requests in the script that the text is not in."""
    length = len(sweep.view.plain)
    # Each character beyond ASCII has at least one byte more.
    max_foreign = len(sweep.data) / max(length, 1) - 1
    if length < _MIN_CHARACTERS or not max_foreign:
        return
    if max_foreign <= _MOSTLY_FOREIGN and not sweep.has(_FOREIGN_WORDS):
        return
    foreign = 1 - len(sweep.data.translate(None, _BEYOND_ASCII)) / length
    if foreign <= _FEW_FOREIGN and foreign * length <= _MAX_FOREIGN:
        for request in _FOREIGN:
            for start, end in sweep.spans(request.pattern, request.words):
                yield _script_shift_spot(start, end)
    elif foreign > _MOSTLY_FOREIGN:
        for start, end in sweep.spans(_ENGLISH.pattern, _ENGLISH.words):
            yield _script_shift_spot(start, end)


def _script_shift_spot(start: int, end: int) -> Spot:
    return Spot(
        category="injection",
        severity="medium",
        rule="shift.script",
        message="asks for an act in another script than the rest of the text",
        start=start,
        end=end,
        score=0.5,
    )


# Conversations that a text imitates: turns of a person and of an assistant, line by line.
#
# One pair of turns makes a model believe it has agreed to something already. Many of them are an
# attack of their own: after enough examples of an obedient assistant a model becomes one (many-
# shot).
# Keys of YAML and fields of logs look alike in one line, not in their order. Questions and answers
# are what every FAQ has, so even many of them are only told, not acted on.

_PEOPLE = ("human", "user", "utilisateur", "benutzer", "usuario", "пользователь", "用户",
           "ユーザー")  # fmt: skip
_MACHINES = ("assistant", "ai", "chatgpt", "claude", "gemini", "llm", "asistente", "assistent",
             "ассистент", "助手", "アシスタント", "어시스턴트", "المساعد")  # fmt: skip
_TURN_WORDS = tuple(
    as_word(word)
    for word in (
        *(name + end for name in _MACHINES if name != "ai" for end in (":", "]", "**", ">")),
        "\nai:",
        "**ai:",
        "[ai]",
    )
)
_QUESTION_WORDS = tuple(as_word(word) for word in ("\nq:", "*q:", "\nq1", "question:"))
CHAT_TURN_WORDS = (*_TURN_WORDS, *_QUESTION_WORDS)
_MAX_ORNAMENTS = 6
_BEFORE = rf"(?m)^[ \t>*_#\[<(|\-]{{0,{_MAX_ORNAMENTS}}}"
_AFTER = r"(?:[ \t]*\(?\d{0,3}\)?)[\])>*_]{0,3}[ \t]*[:>\]][*_ \t]{0,3}"
_TURN = Pattern(rf"{_BEFORE}(?:{'|'.join(_PEOPLE)}|{'|'.join(_MACHINES)}){_AFTER}[^\s:{{}}\[\]]")
_QUESTION = Pattern(rf"{_BEFORE}(?:q|question|a|answer)[ \t]?\d{{0,3}}[\])*_]{{0,3}}[:.] ?\S")
_ORNAMENTS = b" \t>*_#[<(|-"
_QUESTION_LINES = LineHeads(
    ornaments=byte_set(_ORNAMENTS),
    max_ornaments=_MAX_ORNAMENTS,
    words=(b"q", b"question", b"a", b"answer"),
    follow=byte_set(b" \t0123456789])*_:."),
)
_FEW_LINES = 1000
"""Looked at one by one; for more of them it is quicker to go through all of the text."""
_NEAR_BYTES = 4000
"""Between two turns of one conversation."""
_MANY = 12
"""Turns that are no sample of a conversation any more."""
_MANY_QUESTIONS = 40
_PEOPLE_NAMES = tuple(name.encode() for name in _PEOPLE)
_ASKING_NAMES = (b"q",)


@dataclass(slots=True)
class _TurnRun:
    """A conversation as far as it was read."""

    start: int
    end: int
    is_person: bool
    """Who spoke last."""
    count: int = 1


def find_chat_turns(sweep: Sweep) -> Iterator[Spot]:
    """Runs of turns in which one speaks and the other answers."""
    if sweep.has(_TURN_WORDS):
        for run in _runs(sweep.data, _TURN.spans(sweep.data), _PEOPLE_NAMES):
            yield from _conversation(run)
    if sweep.has(_QUESTION_WORDS):
        for run in _runs(sweep.data, _questions(sweep.data), _ASKING_NAMES):
            if run.count >= _MANY_QUESTIONS:
                yield Spot(
                    category="many-shot",
                    severity="low",
                    rule="turns.questions",
                    message="many questions with their answers",
                    start=run.start,
                    end=run.end,
                    score=0.2,
                )


def _questions(data: bytes) -> Iterator[tuple[int, int]]:
    """Lines that begin a question or an answer."""
    lines = _QUESTION_LINES.of(data, _FEW_LINES)
    if lines is None:
        yield from _QUESTION.spans(data)
        return
    for start in lines:
        if span := _QUESTION.at(data, start):
            yield span


def _runs(
    data: bytes, spans: Iterable[tuple[int, int]], people: tuple[bytes, ...]
) -> Iterator[_TurnRun]:
    run: _TurnRun | None = None
    for start, end in spans:
        is_person = data[start:end].lstrip(_ORNAMENTS).startswith(people)
        if run is None or start - run.end > _NEAR_BYTES:
            if run is not None:
                yield run
            run = _TurnRun(start, end, is_person)
        elif run.is_person != is_person:
            run.end, run.is_person, run.count = end, is_person, run.count + 1
    if run is not None:
        yield run


def _conversation(run: _TurnRun) -> Iterator[Spot]:
    if run.count < 2:
        return
    is_many = run.count >= _MANY
    yield Spot(
        category="many-shot" if is_many else "role-marker",
        severity="high" if is_many else "medium",
        rule="turns.many" if is_many else "turns.pair",
        message=(
            "many made-up turns of a conversation"
            if is_many
            else "imitates turns of a conversation with an assistant"
        ),
        start=run.start,
        end=run.end,
        score=0.75 if is_many else 0.5,
    )


# Images and links that carry data out in their address.
#
# A client that shows an image asks its server for it, without anybody's click: what stands in the
# query is gone then. A place holder in such an address asks the model to fill it in.

BEACON_WORDS = (b"](http", b"](//", b"](<http", b"]: http", b'src="http', b"src='http", b"src=http",
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


def find_beacons(sweep: Sweep) -> Iterator[Spot]:
    """Addresses with a place for data, or with data, in them."""
    images: set[int] = set()
    for start, begin in _images(sweep):
        images.add(begin)
        url = _address(sweep.data, begin)
        end = begin + len(url)
        if _has_holder(url):
            yield _beacon_spot("beacon.image-holder", "high", start, end, 0.85)
        elif len(url) <= _MIN_LONG_BYTES:
            continue
        elif _LONG_VALUE.matches(url) and not _SIGNED.matches(url):
            yield _beacon_spot("beacon.image-data", "medium", start, end, 0.5)
        elif len(url) > _LONG_URL_BYTES and not _SIGNED.matches(url):
            yield _beacon_spot("beacon.image-long", "low", start, end, 0.25)
    if not _IN_QUERY.matches(sweep.data):
        return
    for start, begin in sweep.spans(_LINKS, BEACON_WORDS):
        url = b"" if begin in images else _address(sweep.data, begin)
        if _has_holder(url.partition(b"?")[2]):
            yield _beacon_spot("beacon.link-holder", "medium", start, begin + len(url), 0.55)


def _images(sweep: Sweep) -> Iterator[Span]:
    """Where one is shown: most links are not looked at, for they have none of its beginnings."""
    data = sweep.data
    for first, last in sweep.around(BEACON_WORDS):
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


def _beacon_spot(rule: str, severity: Severity, start: int, end: int, score: float) -> Spot:
    return Spot(
        category="beacon",
        severity=severity,
        rule=rule,
        message=_MESSAGES[rule],
        start=start,
        end=end,
        score=score,
    )


class _StructureDetector(NamedTuple):
    words: tuple[bytes, ...]
    find: Callable[[Sweep], Iterator[Spot]]
    is_for_output_only: bool = False


_DETECTORS = (
    _StructureDetector(CHAT_TURN_WORDS, find_chat_turns),
    _StructureDetector(BEACON_WORDS, find_beacons),
    _StructureDetector(orders.WORDS, orders.find),
    # People who write to a model mix languages and are in a hurry; tool output has no reason to.
    _StructureDetector(SCRIPT_SHIFT_WORDS, find_script_shifts, is_for_output_only=True),
    _StructureDetector(orders.PRESSURE_WORDS, orders.find_pressure, is_for_output_only=True),
)

WORDS = tuple(chain.from_iterable(detector.words for detector in _DETECTORS))


def find(sweep: Sweep, kind: Kind) -> Iterator[Spot]:
    """Run every detector whose keywords are in the view."""
    for detector in _DETECTORS:
        is_asked = kind == "output" or not detector.is_for_output_only
        if is_asked and sweep.has(detector.words):
            yield from without_flood(detector.find(sweep), len(sweep.data))
