"""The tokens of JavaScript in one canonical form, in which patterns are searched. Pure.

`a?.["b" + "c"]` is `a.bc`, strings lose all but plain characters, names that stand for a module or
a function are replaced by its path.
"""

from __future__ import annotations

from bisect import bisect_right

from cellwall.parsing.budget import checked
from cellwall.parsing.javascript.patterns import NAMES, TOKENS, alias_pattern
from cellwall.parsing.javascript.tokens import HEADS, OPERATORS, SOMETIMES, JavaScriptToken

_HIDDEN, _KNOWN_NAMES = NAMES["hidden"], NAMES["known"]
_TEXTS = frozenset({"string", "template"})
_WORDS = frozenset({"name", "number"})
_REWRITTEN = frozenset({"[", "?.", "!", "<"})
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_MAX_SHOWN = 200
_MAX_STEPS = 64


class CanonicalForm:
    """The tokens of one piece of code, written in one way."""

    def __init__(self, code: str, tokens: list[JavaScriptToken]) -> None:
        self._code = code
        self._tokens = tokens
        self.hidden_names: list[tuple[int, int]] = []
        """Places where a dangerous name is put together from pieces."""
        self._aliases: dict[str, str] = {}
        self._starts: list[int] = []
        """For each piece, its place in the text."""
        self._pairs: dict[int, int] = {}
        """Which bracket closes which, by the numbers of their pieces, in both directions."""
        self.text = ""
        self._texts = {
            tokens[at - 1].text: tokens[at + 1].text
            for at in range(1, len(tokens) - 1)
            if tokens[at].text == "=" and tokens[at + 1].text in _HIDDEN
            and tokens[at + 1].kind in _TEXTS
        }  # fmt: skip
        """Names that hold a text which is the name of something dangerous."""
        self._pieces: list[JavaScriptToken] = []
        done = 0
        for at, token in checked(enumerate(tokens)):
            if at < done:
                continue
            if token.kind not in _TEXTS and token.text not in _REWRITTEN:
                self._pieces.append(token)
                continue
            used, text = self._rewrite(at)
            done = at + used
            if text:
                end = tokens[done - 1].end
                self._pieces.append(JavaScriptToken(token.kind, text, token.start, end))
        self._join()
        self._learn_aliases()
        if self._aliases:
            self._join()

    def _rewrite(self, at: int) -> tuple[int, str]:
        """The number of tokens that become one piece, and the text of the piece."""
        kind, text, start, _ = self._tokens[at]
        after = self._text(at + 1)
        is_member = bool(self._pieces) and _is_operand(self._pieces[-1])
        if kind in _TEXTS:
            used, value = self._fold(at)
            text = f'"{TOKENS["NOTPLAIN"].sub("_", value[:_MAX_SHOWN])}"' if used else "`"
            is_tagged = kind == "template" and is_member and start >= self._pieces[-1].end
            return max(used, 1), f"({text})" if is_tagged else text
        if text == "[" and is_member:
            used, value = self._fold(at + 1)
            if value.isidentifier() and self._text(at + used + 1) == "]":
                return used + 2, f".{value}"
        elif text == "?.":
            return 1, "" if after in {"[", "("} else "."
        elif text == "!" and is_member and after in {".", "[", "("}:
            return 1, ""  # TypeScript's "not null"
        elif text == "<" and (types := TOKENS["TYPES"].match(self._code, start)):
            inside = [each for each in self._tokens[at : at + 64] if each.start < types.end()]
            return len(inside), ""
        return 1, text

    def _text(self, at: int) -> str:
        return self._tokens[at].text if at < len(self._tokens) else ""

    def _fold(self, first: int) -> tuple[int, str]:
        """The number of tokens that make up a text, and the text: `"ev" + "al"`."""
        texts: list[str] = []
        for at in range(first, min(first + 64, len(self._tokens)), 2):
            kind, text, _, end = self._tokens[at]
            after = self._tokens[at + 1] if at + 1 < len(self._tokens) else None
            is_open = kind == "template" and after is not None and after.start == end - 1
            if is_open or (kind not in _TEXTS and text not in self._texts):
                break
            texts.append(text if kind in _TEXTS else self._texts[text])
            if after is None or after.text != "+":
                break
        used, text = max(0, 2 * len(texts) - 1), "".join(texts)
        if len(texts) > 1 and text in _HIDDEN:
            last = min(first + used, len(self._tokens) - 1)
            start, end = self._tokens[max(0, first - 1)].start, self._tokens[last].end
            self.hidden_names.append((start, end))
        return used, text

    def _join(self) -> None:
        texts: list[str] = []
        opened: list[int] = []
        self._starts = []
        length, before, ends_word = 0, "", False
        for number, (kind, text, _, _) in enumerate(self._pieces):
            is_word = kind in _WORDS
            if ends_word and is_word:
                texts.append(" ")
                length += 1
            written = self._aliases.get(text, text) if is_word and before != "." else text
            self._starts.append(length)
            texts.append(written)
            length += len(written)
            before, ends_word = text, is_word or (text[:1] == "." and len(text) > 1)
            if kind == "sign" and text in _CLOSING:
                opened.append(number)
            elif kind == "sign" and opened and text == _CLOSING[self._pieces[opened[-1]].text]:
                self._pairs[number] = opened.pop()
                self._pairs[self._pairs[number]] = number
        self.text = "".join(texts)

    def _learn_aliases(self) -> None:
        for match in checked(alias_pattern("imported").finditer(self.text)):
            self._learn(match["name"], match["module"])
            self._learn(match["all"], match["module"])
            self._learn_parts(match["parts"], match["module"], " as ")
        for match in checked(alias_pattern("assigned").finditer(self.text)):
            base = match["module"] or self._aliases.get(match["base"], match["base"])
            self._learn(match["name"], base + match["path"])
            self._learn_parts(match["parts"], base + match["path"], ":")
        for match in checked(alias_pattern("function").finditer(self.text)):
            self._learn(match[1], "Function")
        for match in checked(alias_pattern("decoded").finditer(self.text)):
            if match[1] not in self._aliases:
                self._learn(match[1], "atob")  # the name holds a decoded text

    def _learn(self, name: str | None, path: str) -> None:
        if not name or name in _KNOWN_NAMES or name == path or len(path) > _MAX_SHOWN:
            return
        if path.partition(".")[0] in _KNOWN_NAMES:
            self._aliases[name] = path
        else:
            self._aliases.setdefault(name, path)

    def _learn_parts(self, parts: str | None, path: str, renames: str) -> None:
        for part in (parts or "").split(","):
            name, _, own = part.partition(renames)
            self._learn(own or name, f"{path}.{name}")

    def place(self, start: int, end: int) -> tuple[int, int] | None:
        """The place in the code of a match: from the first piece of its chain to its call.

        None for a match inside of a text.
        """
        first, last = (bisect_right(self._starts, at) - 1 for at in (start, end - 1))
        if self._pieces[first].kind in _TEXTS:
            return None
        for _ in range(_MAX_STEPS):
            text = self._pieces[first].text
            first = self._pairs.get(first, first) if text in {")", "]"} else first
            is_step = text.startswith(".") or (first and self._pieces[first - 1].text == ".")
            is_step = is_step or self._pieces[first].text in {"(", "["}
            if not first or not is_step or not _is_operand(self._pieces[first - 1], dots=True):
                break
            first -= 1
        if (call := TOKENS["CALL"].match(self.text, end)) and self._pieces[last].text != "(":
            last = bisect_right(self._starts, call.end() - 1) - 1
        last = self._pairs.get(last, last) if self._pieces[last].text == "(" else last
        return self._pieces[first].start, self._pieces[last].end


def _is_operand(piece: JavaScriptToken, *, dots: bool = False) -> bool:
    """Whether a `[` behind it is an index, a `(` a call and a template a call."""
    if piece.kind == "sign":
        return piece.text in {")", "]"} or (piece.text[:1] == "." and (dots or len(piece.text) > 1))
    return piece.kind != "name" or piece.text not in OPERATORS | SOMETIMES | HEADS
