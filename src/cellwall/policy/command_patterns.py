"""Command patterns: the specifier of a `Bash(…)` rule against the words of a command. Pure.

Words are compared, never the text: a word with a space in it is not two words. `*` matches any
text, also over several words; a last word `*`, or `:*` at the end, any further words or none. A
rule that forbids also matches equivalent commands: other orders and clusters of flags, the program
by its full path, unknown words.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from cellwall.parsing.shell.words import UNKNOWN, Number, Word
from cellwall.policy.commands.arguments import Takes
from cellwall.policy.commands.catalog import find_model
from cellwall.policy.commands.effects import STDIN

_BETWEEN = "\x1f"  # stands in no word: control characters are refused before
_token = re.compile(
    r"""'([^']*)'|"((?:[^"\\]|\\.)*)"|\\(.)|(\s+)|(\*)|([^\s'"\\*]+|.)""", re.DOTALL
)
_is_setting = re.compile(r"[a-z]{1,16}=.*", re.DOTALL).fullmatch
_is_open_host = re.compile(r"[a-z]+://[^/?#]*").fullmatch
_scheme_before = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,31}\Z").search
_is_behind_host = re.compile(r"(?::[0-9]{0,5})?(?:[/?#].*)?", re.DOTALL).fullmatch
_is_cluster = re.compile(r"-[A-Za-z0-9]{2,}").fullmatch


@dataclass(frozen=True, slots=True)
class CommandPattern:
    """`tokens` are the words of the pattern, each as the texts between its wildcards."""

    tokens: tuple[tuple[str, ...], ...]
    is_open: bool
    """Any further words may follow."""
    is_any: bool = False

    @classmethod
    def parse(cls, specifier: str | None, home: str = "~") -> CommandPattern:
        """From the specifier of a rule; None and `*` are any command."""
        text = "*" if specifier is None else specifier.strip()
        if text == "*":
            return cls((), is_open=True, is_any=True)
        is_prefix = text.endswith(":*")
        text = text[:-2] if is_prefix else text
        tokens = tuple(_at_home(token, home) for token in _tokens(text))
        # As in the agents' own rules: only a wildcard that stands alone may match nothing.
        is_last = bool(tokens) and tokens[-1] == ("", "")
        is_only = is_last and all(len(token) == 1 for token in tokens[:-1])
        if is_only and len(tokens) > 1:
            return cls(tokens[:-1], is_open=True)
        return cls(tokens, is_open=is_prefix)

    @property
    def program(self) -> str | None:
        """The one program of the pattern; None for several."""
        if not self.tokens or len(self.tokens[0]) > 1:
            return None
        return posixpath.basename(self.tokens[0][0])

    def is_about(self, program: str) -> bool:
        """Whether the first word, wildcards included, matches the base name of a program."""
        return bool(self.tokens) and _fits(self.tokens[0], program)

    def spells(self, option: str) -> bool:
        """Whether the pattern spells this word, so that its author means it. No rule can spell
        standard input."""
        return (self.is_exact and option != STDIN) or (option,) in self.tokens[1:]

    @property
    def is_exact(self) -> bool:
        """Whether the pattern matches one command only, so that its author means all of it."""
        return not self.is_open and all(len(token) == 1 for token in self.tokens)

    def matches(self, words: Sequence[Word]) -> bool:
        """Whether the words match literally; only a wildcard matches an unknown part."""
        if self.is_any:
            return True
        text = _BETWEEN.join(word.text for word in words)
        pieces = _pieces(self.tokens)
        is_fit = _fits(pieces, text) or (
            self.is_open and _fits((*pieces[:-1], pieces[-1] + _BETWEEN, ""), text)
        )
        return is_fit and self._hosts_hold(words)

    def _hosts_hold(self, words: Sequence[Word]) -> bool:
        """`http://localhost*` is that host, with any port and path; not `localhost.evil.com`, nor
        another address after it."""
        hosts = [token[0] for token in self.tokens if len(token) > 1 and _is_open_host(token[0])]
        if not hosts:
            return True
        found = [address for word in words for address in _addresses(word.text)]
        return all(any(_leads_to(each, host) for host in hosts) for each in found)

    def forbids(self, words: Sequence[Word]) -> bool:
        """Whether the command matches, is equivalent to, or could become a match."""
        if self.is_any or not words:
            return self.is_any
        named = [Word(posixpath.basename(words[0].text)), *words[1:]]
        if self.matches(words) or self.matches(named):
            return True
        first = self.tokens[0]
        if not (_fits(first, named[0].text) or _fits(first, words[0].text)):
            return False
        return self._forbids_arguments(named[0].text, words[1:])

    def _forbids_arguments(self, program: str, words: Sequence[Word]) -> bool:
        if any(word.is_digits and word.is_split for word in words):  # a number, or no word
            there = [replace(each, is_split=False) if each.is_digits else each for each in words]
            gone = [word for word in words if not (word.is_digits and word.is_split)]
            return any(self._forbids_arguments(program, each) for each in (there, gone))
        leading, flags, trailing = _sorted_tokens(self.tokens[1:])
        operands = [word for word in words if not _is_flag(word)]
        present = {flag for word in words if _is_flag(word) for flag in _flags(word.text, program)}
        is_vague = any(_is_vague(word) for word in words)
        if not all(
            _has_flag(present, flag) or any(_could_be_flag(word, flag) for word in words)
            for flag in flags
        ):
            return False
        if len(operands) < len(leading) and not is_vague:
            return False
        if any(not _has_flag(present, flag) for flag in flags) and not any(map(_is_many, words)):
            # One word is the flag, and then no operand.
            spare = [word for word in operands if any(_could_be_flag(word, f) for f in flags)]
            rest = operands[len(leading) :]
            return any(_in_order(trailing, [w for w in rest if w is not each]) for each in spare)
        if leading and not any(_could_fit(leading[0], each) for each in _first_operands(words)):
            return False
        if not all(_could_fit(token, word) for token, word in zip(leading, operands, strict=False)):
            return is_vague and any(word.is_split for word in words)
        if not (flags or trailing or self.is_open or is_vague) and len(operands) != len(leading):
            return False
        return _in_order(trailing, operands[len(leading) :]) or any(w.is_split for w in operands)


def _addresses(text: str) -> list[str]:
    """Everything that looks like an address, each to the end of the word."""
    found, at = [], text.find("://")
    while at >= 0:
        scheme = _scheme_before(text, max(0, at - 32), at)
        found.append(text[scheme.start() if scheme else at :])
        at = text.find("://", at + 3)
    return found


def _leads_to(address: str, host: str) -> bool:
    rest = address[len(host) :]
    return address.startswith(host) and _is_behind_host(rest) is not None


def _tokens(text: str) -> tuple[tuple[str, ...], ...]:
    tokens: list[list[str]] = []
    is_between = True
    for single, double, escaped, blank, star, plain in _token.findall(text):
        if blank:
            is_between = True
            continue
        if is_between:
            tokens.append([""])
            is_between = False
        if star:
            tokens[-1].append("")
        else:
            tokens[-1][-1] += single or re.sub(r"\\(.)", r"\1", double) or escaped or plain
    return tuple(tuple(token) for token in tokens)


def _at_home(token: tuple[str, ...], home: str) -> tuple[str, ...]:
    """`~` and `$HOME` in front, as the shell has them."""
    for sign in ("~", "$HOME", "${HOME}"):
        if token[0] == sign or token[0].startswith(f"{sign}/"):
            return (home + token[0][len(sign) :], *token[1:])
    return token


def _pieces(tokens: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """The whole pattern as the texts between its wildcards."""
    pieces = [""]
    for index, token in enumerate(tokens):
        pieces[-1] += (_BETWEEN if index else "") + token[0]
        pieces.extend(token[1:])
    return tuple(pieces)


def _fits(pieces: Sequence[str], text: str) -> bool:
    """Whether the text is these pieces with any text between them; in linear time."""
    if len(pieces) == 1:
        return text == pieces[0]
    first, *middle, last = pieces
    if not text.startswith(first) or len(text) < len(first) + len(last):
        return False
    at, end = len(first), len(text) - len(last)
    for piece in middle:
        found = text.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return text.endswith(last) and at <= end


def _sorted_tokens(
    tokens: Iterable[tuple[str, ...]],
) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]], list[tuple[str, ...]]]:
    """The tokens before the first flag, the single flags, and the tokens after the first flag."""
    leading: list[tuple[str, ...]] = []
    flags: list[tuple[str, ...]] = []
    trailing: list[tuple[str, ...]] = []
    for token in tokens:
        if token[0].startswith("-") and token != ("-",):
            is_plain = len(token) == 1 and _is_cluster(token[0])
            flags.extend((each,) for each in _flags(token[0])[1:]) if is_plain else flags.append(
                token
            )
        elif token != ("", ""):
            # `of=/dev/sda` may stand anywhere, as flags may.
            is_free = bool(flags) or _is_setting(token[0])
            (trailing if is_free else leading).append(token)
    return leading, flags, trailing


def _is_flag(word: Word) -> bool:
    return word.text.startswith("-") and word.text != "-"


def _is_many(word: Word) -> bool:
    """Whether a word may become several words."""
    return word.is_split or word.has_glob


def _is_vague(word: Word) -> bool:
    is_name = word.has_glob and word.text.startswith(("*", "?", "["))
    return word.is_split or is_name or (word.text.startswith(UNKNOWN) and not word.is_digits)


def _flags(text: str, program: str = "") -> list[str]:
    """A flag and, for a cluster, each of its letters. Letters after an option that takes the rest
    of the word as its value, as `-I` of `date -Iseconds`, are no flags."""
    if not _is_cluster(text):
        return [text]
    model = find_model(program) if program else None
    found = [text]
    for letter in text[1:]:
        found.append(f"-{letter}")
        option = model.options.get(f"-{letter}") if model else None
        if option is not None and option.takes in (Takes.VALUE, Takes.GLUED):
            break
    return found


def _has_flag(present: set[str], flag: tuple[str, ...]) -> bool:
    if len(flag) > 1:
        return any(_fits(flag, each) for each in present)
    # `--force=yes`, and the abbreviations of GNU programs.
    name = flag[0]
    return any(
        each == name
        or each.startswith(f"{name}=")
        or (len(each) > 3 and each.startswith("--") and name.startswith(each))
        for each in present
    )


def _is_glob(word: Word) -> bool:
    """Whether a word expands to matching names only."""
    return word.has_glob and not word.is_split and UNKNOWN not in word.text


def _could_be_flag(word: Word, flag: tuple[str, ...]) -> bool:
    if word.is_digits or word.is_operand or not _is_vague(word):
        return False
    if not (word.is_split or word.has_glob):  # "$X/a" is one word, and ends in /a
        return _overlaps(flag, word.text)
    return not (_is_glob(word) and len(flag) == 1) or fnmatchcase(flag[0], word.text)


def _first_operands(words: Sequence[Word]) -> list[Word]:
    """Words that may be the first operand. A word after a flag may be the flag's value; any other
    literal word is an operand for sure, and no word after it can be the first."""
    found: list[Word] = []
    is_behind_flag = False
    for word in words:
        if not _is_flag(word):
            found.append(word)
            if word.is_literal and not is_behind_flag:
                break
        is_behind_flag = _is_flag(word) or _is_vague(word)
    return found


def _could_fit(token: tuple[str, ...], word: Word) -> bool:
    if _is_glob(word) and len(token) == 1:  # names that match; none of them is another text
        return fnmatchcase(token[0], word.text) and word.text.count("/") == token[0].count("/")
    if word.is_digits and word.number is not Number.OBJECT:
        return _may_be_digits(token)
    if _fits(token, word.text) or word.is_split or word.has_glob:
        return True
    return UNKNOWN in word.text and (_overlaps(token, word.text) or _may_climb(word.text))


def _may_climb(text: str) -> bool:
    """`$X/..` and `$X/.` may be any folder."""
    names = text.rpartition(UNKNOWN)[2].split("/")
    return len(names) > 1 and (".." in names or set(names) <= {"", "."})


def _may_be_digits(token: tuple[str, ...]) -> bool:
    return all(piece.isdigit() or not piece for piece in token)


def _overlaps(token: tuple[str, ...], text: str) -> bool:
    """Whether a word with unknown parts could become a match of a token."""
    start, end = text.partition(UNKNOWN)[0], text.rpartition(UNKNOWN)[2]
    first, last = token[0], token[-1]
    if len(token) == 1:  # the token has no wildcard: the word would have to become this very text
        is_long_enough = len(first) >= len(start) + len(end)
        return is_long_enough and first.startswith(start) and first.endswith(end)
    return (first.startswith(start) or start.startswith(first)) and (
        last.endswith(end) or end.endswith(last)
    )


def _in_order(tokens: Sequence[tuple[str, ...]], words: Sequence[Word]) -> bool:
    """Whether each token has a matching word, in this order."""
    waiting = iter(words)
    return all(any(_could_fit(token, word) for word in waiting) for token in tokens)
