"""Reads a shell script into commands, as far as the screening needs them.

In one pass, with a bound on nesting. It follows quoting, substitutions, pipelines, redirections
and here-documents; what it does not understand becomes a word or a border, never an error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from cellwall.parsing.budget import checkpoint

_DEEPEST = 24
_MAX_DOUBTS = 32
_BARE = re.compile(r"[^\s\\'\"`$|&;<>(){}#*?\[\]~!=]+")
_NAME = re.compile(r"[A-Za-z_]\w*")
_ASSIGNED = re.compile(r"[A-Za-z_]\w*(?:\[[^\]\s]{0,100}\])?\+?=")
_REDIRECT = re.compile(r"(?:[0-9]{0,4}|&)(?:<<<|<<-?|<>|>>|>\||[<>]&|[<>])(?!\()|&>>?")
_DOLLAR_QUOTED = re.compile(r"\$'[^'\\]*(?:\\[\s\S][^'\\]*)*'?")
_BLANK = re.compile(r"[ \t\r]+|\\\n|#[^\n]*")
_PLAIN_QUOTED = re.compile(r"'[^'}{\"`$\\\n]{0,200}'")
_DEFINED = re.compile(r"\([ \t]*\)")
_QUOTES = re.compile(r"[\"'\\]")
# Without substitutions; what holds one is read as words.
_OLD_SUM = re.compile(r"\$\[[^\]\[$`\n]{0,200}\]")
_BACKTICK = re.compile(r"[^`\\]*(?:\\[\s\S][^`\\]*)*`")
_ESCAPED = re.compile(r"\\(?:x([0-9A-Fa-f]{1,2})|([0-7]{1,3})|u([0-9A-Fa-f]{1,4})|([\s\S]))")
# Words behind which another command begins.
_LEADS = frozenset(
    {"if", "then", "else", "elif", "do", "while", "until", "!", "{", "time", "fi", "done", "}"}
)


class Unread(Exception):
    """Nested deeper, or with more doubts, than anybody writes."""


@dataclass(slots=True)
class Word:
    """`text` is what it says without quotes; what is expanded is left out of it."""

    start: int
    end: int = 0
    text: str = ""
    is_expanded: bool = False
    is_split: bool = False
    """Quotes or escapes stand between its letters."""
    has_ifs: bool = False
    is_fully_quoted: bool = False
    inner: list[Pipeline] = field(default_factory=list)
    """Commands in it: `$(…)`, `` `…` ``, `<(…)`."""
    is_fed: bool = False
    """It holds a `<(…)`."""


@dataclass(slots=True)
class Command:
    """One, with its words, redirections and here-document."""

    start: int
    end: int = 0
    words: list[Word] = field(default_factory=list)
    assigned: list[tuple[str, Word]] = field(default_factory=list)
    redirects: list[tuple[str, Word]] = field(default_factory=list)
    document: tuple[int, int] | None = None


@dataclass(slots=True)
class Pipeline:
    """Commands of which each reads what the one before it writes."""

    commands: list[Command] = field(default_factory=list)


class Reader:
    """Reads one script. Only `read` is called from outside."""

    def __init__(self, code: str) -> None:
        self._code = code
        self._at = 0
        self._end = len(code)
        self._waiting: list[tuple[frozenset[str], bool, Command, Word | None]] = []
        self._sums = 0
        """How many `((` are open: `<<` in them is a shift and begins no here-document."""
        self.doubts: list[tuple[int, int]] = []
        """Where shells of different kinds, or we, may read something else."""

    def read(self) -> list[Pipeline]:
        found: list[Pipeline] = []
        while self._at < self._end:
            found += self._list(end="", depth=0)
        return found

    def _list(self, *, end: str, depth: int) -> list[Pipeline]:
        """Pipelines up to the sign that ends them."""
        if depth > _DEEPEST:
            raise Unread
        found: list[Pipeline] = []
        pipeline, command = Pipeline(), Command(self._at)
        cases = 0  # in `case x in a) …` a bracket ends a pattern, and no `$(`
        while self._at < self._end:
            checkpoint()
            sign = self._code[self._at]
            if sign == ")" and cases:
                self._at += 1
                self._finish(command, pipeline)
                pipeline, command = self._ended(pipeline, found), Command(self._at)
                continue
            if sign == end or (sign == ")" and not end):
                self._at += 1
                break
            if blank := _BLANK.match(self._code, self._at, self._end):
                self._at = blank.end()
            elif sign in "\n;&|" and not self._code.startswith("&>", self._at):
                is_pipe = sign == "|" and not self._code.startswith("||", self._at)
                self._finish(command, pipeline)
                if not is_pipe:
                    pipeline = self._ended(pipeline, found)
                self._behind_border(sign)
                command = Command(self._at)
            elif sign == "(":
                if len(command.words) == 1 and (defined := _DEFINED.match(self._code, self._at)):
                    self._at = defined.end()
                    command = Command(self._at)  # of a function's body, not of its name
                    continue
                inner = self._bracketed(depth)
                self._grouped(inner, command, pipeline, found)
            elif redirect := _REDIRECT.match(self._code, self._at):
                self._redirected(redirect[0].lstrip("0123456789"), redirect.end(), command, depth)
            else:
                first = self._at
                command = self._worded(command, pipeline, found, depth)
                if len(command.words) == 1 and command.words[0].start == first:
                    written = self._code[first : self._at]
                    cases = max(0, cases + (written == "case") - (written == "esac"))
        self._finish(command, pipeline)
        self._ended(pipeline, found)
        return found

    def _bracketed(self, depth: int) -> list[Pipeline]:
        """Behind `(`, or `((`: a sum, or a group in a group. Both are read as commands."""
        is_sum = self._code.startswith("((", self._at)
        self._at += 1
        self._sums += is_sum
        inner = self._list(end=")", depth=depth + 1)
        self._sums -= is_sum
        return inner

    def _grouped(
        self, inner: list[Pipeline], command: Command, pipeline: Pipeline, found: list[Pipeline]
    ) -> None:
        """`( … )`: what it writes goes where the group's output goes."""
        if command.words:
            found += inner  # `name()`, or an array
        elif inner:
            found += inner[:-1]
            pipeline.commands += inner[-1].commands

    def _worded(
        self, command: Command, pipeline: Pipeline, found: list[Pipeline], depth: int
    ) -> Command:
        if not command.words and not command.assigned:
            command.start = self._at
        assigned = None if command.words else _ASSIGNED.match(self._code, self._at)
        if assigned:
            name = _NAME.match(self._code, self._at)
            self._at = assigned.end()
            command.assigned.append((name[0] if name else "", self._word(depth)))
            return command
        word = self._word(depth)
        if not command.words and word.text in _LEADS and not word.is_split:
            if command.assigned:
                self._finish(command, pipeline)
                self._ended(pipeline, found)
            return Command(self._at)
        command.words.append(word)
        if len(command.words) == 2 and command.words[0].text == "function":
            return Command(self._at)  # of its body, as above
        return command

    def _finish(self, command: Command, pipeline: Pipeline) -> None:
        if command.words or command.assigned or command.redirects:
            parts = [
                *command.words,
                *(word for _, word in command.assigned),
                *(word for _, word in command.redirects),
            ]
            command.end = max(word.end for word in parts)
            pipeline.commands.append(command)

    def _ended(self, pipeline: Pipeline, found: list[Pipeline]) -> Pipeline:
        if pipeline.commands:
            found.append(Pipeline(list(pipeline.commands)))
            pipeline.commands.clear()
        return Pipeline()

    def _behind_border(self, sign: str) -> None:
        while self._at < self._end and self._code[self._at] == sign and sign != "\n":
            self._at += 1
        if sign == "|" and self._code.startswith("&", self._at):
            self._at += 1
        if sign == "\n":
            self._at += 1
            self._documents()

    def _redirected(self, sign: str, at: int, command: Command, depth: int) -> None:
        self._at = at
        while self._code[self._at : self._at + 1] in (" ", "\t"):
            self._at += 1
        word = self._word(depth)
        command.redirects.append((sign, word))
        if sign in {"<<", "<<-"} and not self._sums:
            # Nothing is expanded in it: `<<E$x` ends with the line `E$x`.
            names = {word.text}
            written = self._code[word.start : word.end]
            if word.is_expanded:
                names |= {written, _QUOTES.sub("", written)}
                self._doubt(word.start, word.end)
            is_plain = _QUOTES.search(written) is None
            self._waiting.append(
                (frozenset(names), sign == "<<-", command, word if is_plain else None)
            )

    def _documents(self) -> None:
        """Here-documents begin behind the line that names them."""
        waiting, self._waiting = self._waiting, []
        for names, is_indented, command, word in waiting:
            start = self._at
            found = [self._line_that_is(name, start, is_indented=is_indented) for name in names]
            ends = [each for each in found if each is not None]
            if not ends:
                # To the end of the script, or we do not know its name: then this would hide all.
                self._doubt(start, self._end)
                command.document = (start, self._end)
                continue
            last, behind = min(ends)
            command.document = (start, last)
            if word is not None:
                self._expanded(word, last)
            self._at = behind

    def _expanded(self, word: Word, last: int) -> None:
        """Behind a name without quotes, `$(…)` in the document is run."""
        outer, self._end = self._end, last
        while self._at < last:
            self._quoted("", word, [], 1)
        self._end = outer

    def _line_that_is(self, name: str, at: int, *, is_indented: bool) -> tuple[int, int] | None:
        """Each line is looked at once, however often the name stands in it."""
        code = self._code
        first = at
        while (at := code.find(name, at, self._end)) >= 0:
            start, end = at, at + len(name)
            while is_indented and start > first and code[start - 1] == "\t":
                start -= 1
            end += code.startswith("\r", end)
            is_line = start == first or code[start - 1] == "\n"
            if is_line and (end >= self._end or code[end] == "\n"):
                return start, end
            at = code.find("\n", at, self._end) + 1
            if not at:
                return None
        return None

    def _doubt(self, start: int, end: int) -> None:
        self.doubts.append((start, end))
        if len(self.doubts) > _MAX_DOUBTS:
            raise Unread

    def _word(self, depth: int) -> Word:
        """One word; at least one sign is read, so that there is always an end."""
        word = Word(self._at)
        pieces: list[str] = []
        quoted = bare = 0
        first = self._at
        while self._at < self._end:
            sign = self._code[self._at]
            if sign in " \t\r\n;|&)" or (
                sign in "<>" and self._code[self._at + 1 : self._at + 2] != "("
            ):
                break
            if sign == "(":
                break
            if (
                sign in "'\""
                or (sign == "\\" and self._at > first)
                or self._code.startswith("$'", self._at)
            ):
                quoted += 1
            elif sign.isalnum():
                bare += 1
            self._piece(sign, word, pieces, depth)
        if self._at == first:
            self._at += 1
            pieces.append(self._code[first : self._at])
        word.end = min(self._at, len(self._code))  # a quote that is never closed ends with it
        word.text = "".join(pieces)
        word.is_split = bool(quoted and bare)
        word.is_fully_quoted = bool(quoted) and not bare
        return word

    def _piece(self, sign: str, word: Word, pieces: list[str], depth: int) -> None:
        code = self._code
        if sign == "'":
            end = code.find("'", self._at + 1, self._end)
            end = self._end if end < 0 else end
            pieces.append(code[self._at + 1 : end])
            self._at = end + 1
        elif sign == '"':
            self._at += 1
            self._quoted('"', word, pieces, depth)
        elif sign == "\\":
            pieces.append(code[self._at + 1 : self._at + 2].replace("\n", ""))
            self._at += 2
        elif sign == "$":
            self._dollar(word, pieces, depth)
        elif sign == "`":
            word.is_expanded = True
            self._backticks(word, depth + 1)
        elif sign in "<>":
            self._at += 2
            word.is_fed = True
            word.inner += self._list(end=")", depth=depth + 1)
        else:
            bare = _BARE.match(code, self._at)
            end = bare.end() if bare else self._at + 1
            pieces.append(code[self._at : end])
            self._at = end

    def _backticks(self, word: Word, depth: int) -> None:
        """They end at the next one, whatever stands between: quotes in them cannot hide it."""
        closing = _BACKTICK.match(self._code, self._at + 1, self._end)
        last, behind = self._end, self._end
        if closing:
            last, behind = closing.end() - 1, closing.end()
        outer, self._end = self._end, last
        self._at += 1
        while self._at < last:
            word.inner += self._list(end="", depth=depth)
        self._at, self._end = max(self._at, behind), outer

    def _quoted(
        self, end: str, word: Word, pieces: list[str], depth: int, *, in_quotes: bool = False
    ) -> None:
        """Inside double quotes, or inside `${…}`."""
        if depth > _DEEPEST:
            raise Unread
        code = self._code
        while self._at < self._end:
            sign = code[self._at]
            if sign == end:
                self._at += 1
                return
            if sign == "\\":
                pieces.append(code[self._at + 1 : self._at + 2].replace("\n", ""))
                self._at += 2
            elif sign == "$":
                self._dollar(word, pieces, depth + 1, in_quotes=in_quotes or end == '"')
            elif sign == "'" and end == "}" and in_quotes:
                # `"${x:-'}"` ends here, `"${x#'}'}"` does not; of `"${x:-':'}"` there is no doubt.
                plain = _PLAIN_QUOTED.match(code, self._at, self._end)
                if plain is None:
                    self._doubt(self._at, self._at + 1)
                self._at = plain.end() if plain else self._at + 1
            elif sign == "`" or (sign in "'\"" and end == "}"):
                self._piece(sign, word, pieces, depth + 1)
            else:
                pieces.append(sign)
                self._at += 1

    def _dollar(
        self, word: Word, pieces: list[str], depth: int, *, in_quotes: bool = False
    ) -> None:
        code, at = self._code, self._at
        if not in_quotes and (quoted := _DOLLAR_QUOTED.match(code, at)):
            pieces.append(_ESCAPED.sub(_unescaped, quoted[0][2:].removesuffix("'")))
            self._at = quoted.end()
            return
        if code.startswith('$"', at):
            self._at += 1
            if in_quotes:
                pieces.append("$")  # and the quote ends what it stands in
            return
        word.is_expanded = True
        if code.startswith("$(", at):
            self._at += 1
            word.inner += self._bracketed(depth)
        elif code.startswith("$[", at) and (old_sum := _OLD_SUM.match(code, at, self._end)):
            self._at = old_sum.end()
        elif code.startswith("${", at):
            word.has_ifs |= code.startswith("${IFS", at)
            self._at += 2
            self._quoted("}", word, [], depth + 1, in_quotes=in_quotes)
        else:
            name = _NAME.match(code, at + 1)
            word.has_ifs |= name is not None and name[0] == "IFS"
            self._at = name.end() if name else at + 1
            if name is None and self._at < self._end and code[self._at] in "0123456789@*#?$!-":
                self._at += 1


def _unescaped(match: re.Match[str]) -> str:
    if digits := match[1] or match[3]:
        return chr(int(digits, 16))
    if match[2]:
        return chr(int(match[2], 8))
    return {"n": "\n", "t": "\t", "r": "\r", "e": "\x1b", "a": "\a"}.get(match[4], match[4])
