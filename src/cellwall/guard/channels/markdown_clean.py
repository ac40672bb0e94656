"""Makes Markdown that loads nothing, runs nothing and hides nothing (GRD-2, GRD-7).

For renderers of CommonMark and its kin. Where renderers could disagree about what is code, ours
is made so that they cannot: fences are written anew, longer than any run in the text, and every
other run of backticks either has its partner on the same line or is written as characters.
"""

from __future__ import annotations

import re

from cellwall.guard.channels.addresses import LIVE, defused, load_in_text
from cellwall.parsing.html.tokens import characters

# Removes invisible characters from a text before it is sent (GRD-1, GRD-7).
#
# Every `clean` begins here: removing invisible characters after escaping markup could join what
# the
# escaping has separated.

# Controls: an escape sequence rewrites what a terminal shows. CR: a line that hides another one,
# and the end of a mail header.
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_LINE_ENDS = re.compile(r"\r\n?|[\u0085\u2028\u2029]")
_INVISIBLE = re.compile(
    "["
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f"  # zero width, directions, invisible operators
    "\u2800\u3164\ufeff\uffa0\ufff0-\ufffb"
    "\ufe00-\ufe0d"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff"  # tags and selectors: a whole hidden alphabet
    "]+"
)
# One joiner between letters of scripts that need it, or within an emoji, is spelling; a run of
# them, or one in an English word, is a message.
_JOINERS = re.compile(r"(?<![^\x00-\x7f])[\u200c\u200d]+|[\u200c\u200d]+(?![^\x00-\x7f])")
_JOINER_RUNS = re.compile(r"([\u200c\u200d])[\u200c\u200d]+")
_SELECTORS = re.compile(r"([\ufe0e\ufe0f])[\ufe0e\ufe0f]+")
_SURROGATES = re.compile(r"[\ud800-\udfff]")


def visible(text: str) -> str:
    """The visible text; lines end with a line feed alone."""
    if "\r" in text or not text.isascii():
        text = _LINE_ENDS.sub("\n", text)
    text = _CONTROLS.sub("", text)
    if text.isascii():
        return text
    text = _INVISIBLE.sub("", text)
    text = _JOINER_RUNS.sub(r"\1", text)
    text = _SELECTORS.sub(r"\1", text)
    text = _JOINERS.sub("", text)
    return _SURROGATES.sub("\ufffd", text)


def one_line(text: str) -> str:
    """The visible text on one line, so that it cannot begin a second header or message."""
    return " ".join(visible(text).split())


_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})([^\n`]*)")
_RUN = re.compile(r"`+")
_TILDES = re.compile(r"~{3,}")
_FRONT = re.compile(r"(?:-{3,}|\+{3,}|;{3,})[ \t]*")
_INFO = re.compile(r"[A-Za-z0-9_+#.-]{1,30}")
# Without one of them there is nothing for any step of `_text`.
_SIGNS = re.compile(r"[<&~!\[\]:/\\?#]|\w\.\w")
_ANGLE_LINK = re.compile(r"<(https?://[^\s<>]*)>", re.IGNORECASE)
_ENTITY = re.compile(r"&(?!(?:amp|lt|gt|quot|nbsp|#39|#96|#126);)(?=#?\w{1,40};?)")
# The image's `!` and the bracket are kept apart by a blank: in no dialect does that load, whatever
# stands before it, and it stays readable. The same for `![[file]]`.
_IMAGE = re.compile(r"!(?=\[)")
_RUNS_CODE = re.compile(
    r"(?<![\w.+-])(javascript|vbscript|livescript|jscript|mocha|data|file|blob|filesystem|"
    r"view-source|search-ms|ms-[a-z-]{2,40}|intent|jar|chrome|about|res)(\\*:)(?=\S)",
    re.IGNORECASE,
)
_OTHER_SCHEME = re.compile(
    r"(\](?:\(|:)\s*)(?!https?:|mailto:|tel:)([A-Za-z][\w.+-]{0,40})(\\*:)", re.IGNORECASE
)
_TITLE = re.compile(r"(\]\([^\s()]*+)[ \t]++(?:\"[^\"\n]*+\"|'[^'\n]*+'|\([^()\n]*+\))[ \t]*+\)")
_DEFINITION = re.compile(r"^([ \t>]{0,12})\[([^\[\]\n]{1,999})\]:", re.MULTILINE)
_LABEL = re.compile(r"\[([^\[\]\n]{1,999})\]")
_OPENS = ("](", "]:", "$")
"""A link's target, and mathematics."""
_BEGINS_ADDRESS = ("//", "www.", "@")
# Where a target begins; also at the beginning of a line, for the bracket may end the one before.
_TARGET = r"((?:\A|\](?:\(|:))\s*+(?:&lt;)?+"
_NO_SCHEME = re.compile(rf"{_TARGET})([/\\]{{2,}}[^\s<>]*)")
_ODD_SLASHES = re.compile(rf"{_TARGET}https?)\\*:(?!//)[/\\]*+(?=[^\s/\\])", re.IGNORECASE)
_ESCAPED = re.compile(r"\\([!-/:-@\[-`{-~])")


def clean(text: str) -> str:
    """Images become links, HTML becomes text; addresses that run code or carry data are defused."""
    lines = visible(text).split("\n")
    longest = max((len(run) for line in lines for run in _RUN.findall(line)), default=0)
    fence = "`" * max(3, longest + 1)
    out: list[str] = []
    prose: list[str] = []
    at = 0
    while at < len(lines):
        opening = _FENCE.fullmatch(lines[at])
        if opening is None:
            prose.append(lines[at])
            at += 1
            continue
        out += _prose(prose, is_first=not out)
        prose = []
        end = _closing(lines, at + 1, opening[1])
        info = _INFO.match(opening[2].strip())
        # What is drawn instead of shown may load images: only languages keep their name.
        is_code = info is not None and info[0].lower() in LANGUAGES
        out.append(fence + (info[0] if info is not None and is_code else ""))
        indent = lines[at][: opening.start(1)]
        out += (line.removeprefix(indent) for line in lines[at + 1 : end])
        out.append(fence)
        at = end + 1
    out += _prose(prose, is_first=not out)
    return "\n".join(out)


def _closing(lines: list[str], at: int, mark: str) -> int:
    closing = re.compile(rf"[ \t]*{re.escape(mark[0])}{{{len(mark)},}}[ \t]*")
    while at < len(lines) and closing.fullmatch(lines[at]) is None:
        at += 1
    return at


def _prose(lines: list[str], *, is_first: bool) -> list[str]:
    if not lines:
        return []
    if is_first and _FRONT.fullmatch(lines[0]) is not None:
        lines = ["***", *lines[1:]]  # a line, as it would be without a program that hides it
    safe: list[str] = []
    is_open = False
    for line in lines:
        if not line.strip():
            is_open = False
        done, opens = _line(line, may_keep_code=not is_open)
        safe.append(done)
        is_open = is_open or opens
    return _definitions("\n".join(safe)).split("\n")


def _line(line: str, *, may_keep_code: bool) -> tuple[str, bool]:
    """One line, and whether something may be open at its end in which a backtick is no code.

    Behind such a thing no code is kept as it is: in `[x](a`b) <img src=y> `c` the image is real.
    """
    # A `|` ends a cell of a table even within code.
    may_keep_code = may_keep_code and "|" not in line
    parts: list[str] = []
    text: list[str] = []
    """Stands together: no backtick that is none of code ends an address."""
    is_open = False
    at = 0
    runs = list(_RUN.finditer(line))
    partners = _partners(runs)
    index = 0
    while index < len(runs):
        run = runs[index]
        before = line[at : run.start()]
        text.append(before)
        is_open = is_open or _opens(before)
        partner = partners[index]
        if partner is None or len(run[0]) > 2 or line[run.start() - 1 : run.start()] == "\\":
            text.append("&#96;" * len(run[0]))
            at = run.end()
            index += 1
            continue
        close = runs[partner]
        if may_keep_code and not is_open:
            parts += (_text("".join(text)), line[run.start() : close.end()])
            text = []
        else:
            text.append(line[run.start() : close.end()])
            is_open = True
        at = close.end()
        index = partner + 1
    rest = line[at:]
    parts.append(_text("".join([*text, rest])))
    return "".join(parts), is_open or _opens(rest)


def _opens(text: str) -> bool:
    """Whether a backtick after it may belong to something other than code."""
    if any(sign in text for sign in _OPENS):
        return True
    last = text.rsplit(None, 1)[-1:] if text and not text[-1].isspace() else []
    return any(sign in word for word in last for sign in _BEGINS_ADDRESS)


def _partners(runs: list[re.Match[str]]) -> list[int | None]:
    """For each run of backticks the next one of its length; each is looked at once."""
    following: dict[int, int] = {}
    partners: list[int | None] = [None] * len(runs)
    for index in range(len(runs) - 1, -1, -1):
        length = len(runs[index][0])
        partners[index] = following.get(length)
        following[length] = index
    return partners


def _text(text: str) -> str:
    if _SIGNS.search(text) is None:
        return text
    text = _ANGLE_LINK.sub(r"\1", text)
    # (1) Entities first: `javascript&colon;` is an address of code once they are resolved.
    text = _ENTITY.sub("&amp;", text)
    # (2) No tag, comment or declaration is left. A `>` alone is a quote, and harmless.
    text = text.replace("<", "&lt;")
    text = _TILDES.sub(lambda run: "&#126;" * len(run[0]), text)
    # (3) Nothing is loaded without a question.
    text = _IMAGE.sub("! ", text)
    # (4) No address runs code or reads files; a blank before the colon and it is none.
    text = _RUNS_CODE.sub(r"\1 \2", text)
    text = _OTHER_SCHEME.sub(r"\1\2 \3", text)
    # (5) Titles are shown only while the pointer is over them.
    text = _TITLE.sub(r"\1)", text)
    # (6) An address that carries data is shown, and cannot be opened by a slip or a preview.
    text = _ODD_SLASHES.sub(r"\1://", text)  # as browsers read `https:\/a` and `https:/a`
    text = _NO_SCHEME.sub(_without_scheme, text)
    return LIVE.sub(_address, text)


def _address(found: re.Match[str]) -> str:
    return defused(found[0]) if _carries(found[0]) else found[0]


def _without_scheme(found: re.Match[str]) -> str:
    """`//host` is an address as well; with a blank in it, it is none."""
    start, target = found[1], found[2]
    if not _carries("https://" + target.lstrip("/\\")):
        return found[0]
    return f"{start}{target[0]} {defused(target[1:])}"


def _carries(url: str) -> bool:
    # `&amp;` is our own escape of `&`; what is written as a number, or behind a backslash, is
    # the same address.
    plain = characters(characters(_ESCAPED.sub(r"\1", url)))
    return load_in_text(plain) not in ("", "value")


def _definitions(text: str) -> str:
    """(7) A definition that nothing refers to is a comment: it is made visible."""
    if "]:" not in text:
        return text
    used: dict[str, int] = {}
    for label in _LABEL.findall(text):
        used[label.casefold()] = used.get(label.casefold(), 0) + 1

    def shown(found: re.Match[str]) -> str:
        label = found[2]
        if label.startswith("^") or used.get(label.casefold(), 0) > 1:
            return found[0]
        return f"{found[1]}\\[{label}]:"

    return _DEFINITION.sub(shown, text)


def names(text: str) -> frozenset[str]:
    """A set of words, written as one string."""
    return frozenset(text.split())


LANGUAGES = names(
    "abap ada apl applescript asm assembly awk bash basic bat batch bazel c c# c++ cfg clj clojure "
    "cmake cobol coffeescript conf console cpp cs csharp css csv cuda cxx cython d dart diff "
    "docker dockerfile dosbatch elisp elixir elm erl erlang ex f# fish forth fortran fs fsharp "
    "gdscript git gitignore glsl gml go golang gradle graphql groovy h haskell hcl hlsl hpp hs "
    "http ini java javascript jinja jinja2 jl js json json5 jsonc jsonl julia jsx kotlin kt ksh "
    "less lisp llvm log lua m make makefile markdown matlab md mk mips mjs mts nasm nginx nim nix "
    "none objc objective-c ocaml octave output pascal patch perl php pl plain plaintext powershell "
    "prisma prolog properties proto protobuf ps1 puppet purescript py python python3 pycon qml r "
    "racket rb reason regex rego rs rst ruby rust sas sass scala scheme scss sh shell "
    "shell-session sql sol solidity starlark swift systemverilog tcl terraform text tf toml ts tsx "
    "txt typescript v vala vb vba vbnet verilog vhdl vim viml vue wasm wat wgsl xml yaml yml zig "
    "zsh"
)
"""Languages that renderers highlight, and nothing else."""
DRAWN = names(
    "abc bpmn chart chartjs d2 dataview dataviewjs ditaa dot echarts embed excalidraw flowchart "
    "geojson graph graphviz katex latex markmap math mermaid nomnoml pikchr plantuml puml sequence "
    "stl svg svgbob tex tikz topojson uml vega vega-lite vegalite wavedrom"
)
"""Languages that renderers turn into pictures, loading what they name."""
