"""A request in another script than the rest of the text: written for other readers than the text.

A page in English has no reason to ask for something in Chinese, nor the other way round. Languages
that share a script are told apart by the rules alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cellwall.guard.detect.sweep import Spot, Sweep, as_word
from cellwall.parsing.matching import Pattern


@dataclass(frozen=True)
class _Request:
    """How a language of another script asks for an act."""

    words: tuple[bytes, ...]
    pattern: Pattern


def _request(words: str, pattern: str) -> _Request:
    return _Request(tuple(as_word(word) for word in words.split()), Pattern(pattern))


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
WORDS = (*_FOREIGN_WORDS, *_ENGLISH.words)
_BEYOND_ASCII = bytes(range(0x80, 0x100))
_FEW_FOREIGN = 0.15
"""Share of characters beyond ASCII up to which a text is in a Latin script."""
_MOSTLY_FOREIGN = 0.5
_MAX_FOREIGN = 800
"""Characters; a text with more of them is in two languages, as translated manuals are."""
_MIN_CHARACTERS = 200


def find(sweep: Sweep) -> Iterator[Spot]:
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
                yield _spot(start, end)
    elif foreign > _MOSTLY_FOREIGN:
        for start, end in sweep.spans(_ENGLISH.pattern, _ENGLISH.words):
            yield _spot(start, end)


def _spot(start: int, end: int) -> Spot:
    return Spot(
        category="injection",
        severity="medium",
        rule="shift.script",
        message="asks for an act in another script than the rest of the text",
        start=start,
        end=end,
        score=0.5,
    )
