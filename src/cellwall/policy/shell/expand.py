"""A word of the syntax tree to the words that the command will get, as far as they are known.

Every expansion that runs something hands it on to be read; nothing is resolved that is not literal,
but for the home directory, the working directory and variables that the text itself sets once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cellwall.policy.shell.directories import Directories
from cellwall.policy.shell.names import Names, is_name, plain_text
from cellwall.policy.shell.numeric import PARAMETERS, printed
from cellwall.policy.shell.opened import Assignment
from cellwall.policy.shell.parser import Node, NotUnderstood
from cellwall.policy.shell.quoting import Piece, ansi, braced, in_double_quotes, unquoted
from cellwall.policy.shell.words import UNKNOWN, Number, Word

GIVEN = frozenset(("@", "*", "_", "REPLY", "OPTARG", "BASH_REMATCH", "MAPFILE", "COPROC"))
"""Parameters that hold what the text, or its caller, was given."""
_SPLITTING = frozenset(" \t\n*?[")

ReadStatements = Callable[[Sequence[Node], str], None]


@dataclass(slots=True)
class _Draft:
    pieces: list[Piece] = field(default_factory=list)
    is_split: bool = False

    def unknown(self, *, is_quoted: bool) -> None:
        self.pieces.append(Piece(UNKNOWN))
        self.is_split = self.is_split or not is_quoted

    def number(self, number: Number, *, is_quoted: bool) -> None:
        is_gap = number is Number.COUNT_OR_NOTHING and not is_quoted
        self.pieces.append(Piece(UNKNOWN, number=number, is_gap=is_gap))

    def known(self, word: Word, *, is_quoted: bool) -> None:
        """The value of a variable."""
        if word.number is not Number.NONE:
            self.number(word.number, is_quoted=is_quoted)
        elif word == Word("") and not is_quoted:
            pass  # a word of nothing else is no word
        elif not is_quoted and not (word.is_literal and _SPLITTING.isdisjoint(word.text)):
            # It is split at blanks, and its wildcards become names.
            is_names = word.has_glob and not word.is_split and " " not in word.text
            self.pieces.append(Piece(word.text if is_names else UNKNOWN, is_active=is_names))
            self.is_split = self.is_split or not is_names
        elif word.has_glob and not word.is_split:  # one of the names that match
            self.pieces.append(Piece(word.text, is_active=True))
        elif word.is_split:
            self.unknown(is_quoted=is_quoted)
        else:
            self.pieces.append(Piece(word.text))


class Expander:
    """Of one text; `values` are the variables that are known at this place in it."""

    def __init__(self, names: Names, directories: Directories, read: ReadStatements) -> None:
        self._names, self._directories, self._read = names, directories, read
        self._home = directories.home
        self.values: Mapping[str, Word] = {}
        self.is_made_up = False
        """Some word was cut or put together out of what the text itself has set."""
        self.assigned: list[Assignment] = []
        """What expansions such as `${x:=y}` have set since somebody looked."""
        self.mentioned: list[Word] = []
        """Words that stand in expansions, and may become words of a command."""

    def set_once(self, name: str, value: Word) -> None:
        """The variable holds this from here on, if it gets a value nowhere else."""
        if self._names.is_single(name):
            self.values = {**self.values, name: value}

    def words(self, node: Node) -> list[Word]:
        """All words that one makes: braces make several."""
        draft = _Draft()
        for index, part in enumerate(node["Parts"]):
            self._part(part, draft, is_first=index == 0)
        if not draft.pieces:
            return []
        made = braced(draft.pieces)
        if len(made) == 1:
            return [_finished(made[0], is_split=draft.is_split)]
        # `{,x}` makes one word, and `{"",x}` makes two.
        is_split = draft.is_split or any(piece.is_gap for piece in draft.pieces)
        return [
            _finished(each, is_split=is_split or not any(p.text for p in each)) for each in made
        ]

    def word(self, node: Node) -> Word:
        """Where bash makes one word and no more: a value, a target, a here-document."""
        draft = _Draft()
        for index, part in enumerate(node.get("Parts", ())):
            self._part(part, draft, is_first=index == 0)
        found = _finished(draft.pieces, is_split=False)
        return replace(found, is_split=False) if found.is_split else found

    def here_document(self, node: Node, *, is_quoted: bool) -> Word:
        """Its text; expansions in it are made unless its end was quoted."""
        draft = _Draft()
        for part in node.get("Parts", ()):
            if part["Type"] == "Lit":
                text = part["Value"]
                draft.pieces.append(Piece(text if is_quoted else in_double_quotes(text, "$`\\")))
            else:
                self._quoted_part(part, draft)
        return Word("".join(piece.text for piece in draft.pieces))

    # --- parts of words

    def _part(self, part: Node, draft: _Draft, *, is_first: bool) -> None:
        match part["Type"]:
            case "Lit":
                draft.pieces.extend(self._literal(part["Value"], is_first=is_first))
            case "SglQuoted":
                text = part.get("Value", "")
                draft.pieces.append(Piece(ansi(text) if part.get("Dollar") else text))
            case "DblQuoted":
                draft.pieces.append(Piece(""))
                for inner in part.get("Parts", ()):
                    self._quoted_part(inner, draft)
            case "ExtGlob":
                draft.unknown(is_quoted=False)
            case "ProcSubst":
                self._read(part.get("Stmts", ()), f"{part['Op']}…)")
                draft.pieces.append(Piece("/dev/fd/63"))  # as bash names it; a pipe in any case
            case _:
                self._expansion(part, draft, is_quoted=False)

    def _quoted_part(self, part: Node, draft: _Draft) -> None:
        if part["Type"] == "Lit":
            draft.pieces.append(Piece(in_double_quotes(part["Value"])))
        else:
            self._expansion(part, draft, is_quoted=True)

    def _literal(self, text: str, *, is_first: bool) -> list[Piece]:
        pieces = list(unquoted(text))
        if is_first and text.startswith("~"):
            user, slash, rest = pieces[0].text.partition("/")
            # Of another user, or of the directory stack: not known here.
            home = self._home if user == "~" else UNKNOWN
            pieces[0:1] = [Piece(home), Piece(slash + rest, is_active=True)]
        return pieces

    def _expansion(self, part: Node, draft: _Draft, *, is_quoted: bool) -> None:
        match part["Type"]:
            case "ParamExp":
                self._parameter(part, draft, is_quoted=is_quoted)
            case "CmdSubst":
                self._read(part.get("Stmts", ()), "$(…)")
                self._printed(part, draft, is_quoted=is_quoted)
            case "ArithmExp":
                self.arithmetic(part.get("X"))
                draft.number(Number.SUM, is_quoted=is_quoted)
            case other:
                raise NotUnderstood(f"it holds {other}, which is not known here")

    def _printed(self, part: Node, draft: _Draft, *, is_quoted: bool) -> None:
        number = printed(part, self._names)
        if number is Number.NONE:
            draft.unknown(is_quoted=is_quoted)
        else:
            draft.number(number, is_quoted=is_quoted)

    def _parameter(self, part: Node, draft: _Draft, *, is_quoted: bool) -> None:
        name = part["Param"]["Value"] if "Param" in part else ""
        is_plain = part.keys() <= {"Type", "Pos", "End", "Dollar", "Rbrace", "Short", "Param"}
        if is_plain and name == "HOME" and self._names.counts.get("HOME", 0) == 0:
            draft.pieces.append(Piece(self._home))
        elif is_plain and name == "PWD" and self._is_in_one_place():
            draft.pieces.append(Piece(self._directories.now[0]))
        elif is_plain and name in self.values:
            draft.known(self.values[name], is_quoted=is_quoted)
        elif is_plain and name in PARAMETERS:
            draft.number(PARAMETERS[name], is_quoted=is_quoted)
        else:
            if is_quoted and _holds_quotes(part):
                # Between double quotes, and in here-documents, bash takes ' for itself here.
                raise NotUnderstood("quotes stand in an expansion that is quoted itself")
            index = plain_text(part["Index"]) if _has_word_index(part) else ""
            # Its elements are looked at.
            is_spelled = name in self._names.spelled and index not in {"@", "*"}
            is_given = name in GIVEN or name.isdigit() or is_spelled
            self.is_made_up = self.is_made_up or is_given
            self._odd_parameter(part)
            if part.get("Length"):
                draft.number(Number.COUNT, is_quoted=is_quoted)
                return
            # Quotes keep these from being split further, and not from being many words, or none.
            is_many = name == "@" or index == "@" or part.get("Names") == "@"
            draft.unknown(is_quoted=is_quoted and not is_many)

    def _is_in_one_place(self) -> bool:
        return self._directories.only is not None and not self._names.counts.get("PWD")

    def _odd_parameter(self, part: Node) -> None:
        """Its value is not known; what is in its braces is read all the same."""
        is_set_here = self._names.counts.get(part.get("Param", {}).get("Value", ""), 0) > 0
        if part.get("Exp", {}).get("Word") or (
            is_set_here and part.keys() & {"Exp", "Repl", "Slice"}
        ):
            self.is_made_up = True
        if part.get("Exp", {}).get("Op") == "@":
            operator = plain_text(part["Exp"]["Word"])
            if operator not in {"Q", "E", "A", "a", "K", "k", "U", "u", "L"}:
                raise NotUnderstood("${…@P} runs what stands in a variable")
        if part.get("Excl") and "Names" not in part:
            raise NotUnderstood("${!…} takes its variable, with whatever index, from a value")
        if "Index" in part:
            self.index(part["Index"])
        for bound in part.get("Slice", {}).values():
            self.arithmetic(bound)
        for words in (part.get("Exp", {}), part.get("Repl", {})):
            for each in words.values():
                if isinstance(each, dict) and "Parts" in each:
                    self.mentioned.append(self.word(each))
        if part.get("Exp", {}).get("Op") in {"=", ":="}:
            value = self.word(part["Exp"]["Word"]) if "Word" in part["Exp"] else Word("")
            self.assigned.append(Assignment(part["Param"]["Value"], value))
        if "NestedParam" in part or "Modifiers" in part or "Flags" in part:
            raise NotUnderstood("it is not bash")

    # --- arithmetic

    def index(self, node: Node) -> None:
        """Of an array: arithmetic, unless it is all of it or plain text."""
        text = plain_text(node) if node.get("Type") == "Word" else None
        if text is None or not (text in {"@", "*"} or is_name(text) or text.isdigit()):
            self.arithmetic(node)
        elif is_name(text):
            self._number(text)

    def arithmetic(self, node: Node | None) -> None:
        """Bash evaluates the values of the variables in it, and the indices in those values."""
        if node is None:
            return
        match node.get("Type"):
            case "BinaryArithm":
                self.arithmetic(node["X"])
                self.arithmetic(node["Y"])
            case "UnaryArithm" | "ParenArithm":
                self.arithmetic(node["X"])
            case "Word":
                for part in node["Parts"]:
                    self._number_part(part)
            case other:
                raise NotUnderstood(f"it holds {other}, which is not known here")

    def _number_part(self, part: Node) -> None:
        match part["Type"]:
            case "Lit":
                text = part["Value"]
                if is_name(text):
                    self._number(text)
                elif not text.replace("#", "").isalnum():
                    raise NotUnderstood("its arithmetic is not plain")
            case "DblQuoted":
                for inner in part.get("Parts", ()):
                    self._number_part(inner)
            case "ParamExp":
                is_length = part.get("Length", False)
                self._odd_parameter(part)
                if not is_length:
                    self._number(part.get("Param", {}).get("Value", "1"))
            case "ArithmExp":
                self.arithmetic(part.get("X"))
            case "CmdSubst":
                self._read(part.get("Stmts", ()), "$(…)")
                raise NotUnderstood("arithmetic would evaluate what a command prints")
            case _:
                raise NotUnderstood("its arithmetic is not plain")

    def _number(self, name: str) -> None:
        if name in PARAMETERS:
            return
        if name in self._names.vague or self._names.is_open or not is_name(name):
            raise NotUnderstood(f"arithmetic would evaluate what stands in {name}")


def _has_word_index(part: Node) -> bool:
    return bool(part.get("Index", {}).get("Type") == "Word")


def _holds_quotes(part: Node) -> bool:
    waiting: list[object] = [part]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            if each.get("Type") == "SglQuoted":
                return True
            waiting.extend(each.values())
        elif isinstance(each, list):
            waiting.extend(each)
    return False


def _finished(pieces: Sequence[Piece], *, is_split: bool) -> Word:
    text = "".join(piece.text for piece in pieces)
    active = "".join(piece.text for piece in pieces if piece.is_active)
    has_glob = "*" in active or "?" in active or ("[" in active and "]" in text)
    number = Number.NONE
    if UNKNOWN in text:
        solid = [piece for piece in pieces if piece.text]
        number = solid[0].number if len(solid) == 1 else number
        is_split = is_split or all(piece.is_gap for piece in solid)
    return Word(text, is_split, has_glob, number)
