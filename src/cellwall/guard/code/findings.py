"""Rules of the screening, the findings of one piece of code, and signs in code of any language.

Each rule has a stable id: a setting can turn chosen rules into refusals. Low is for forms that
plain code uses too: evaluating, starting programs, reading foreign formats. Medium is for forms
that honest code hardly ever uses.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache

from cellwall.core.errors import BadInput
from cellwall.core.outcomes import SEVERITIES, Severity
from cellwall.guard.report import Hit
from cellwall.parsing.matching import Pattern

_SCORES: dict[Severity, float] = {"low": 0.1, "medium": 0.4, "high": 0.8, "critical": 1.0}
PATTERN_RULE = "code.pattern"
"""The rule of every pattern of the configuration; the pattern brings its own severity."""


@dataclass(frozen=True, slots=True)
class CodeRule:
    """One form that the screening reports."""

    id: str
    category: str
    severity: Severity
    message: str

    @property
    def score(self) -> float:
        return _SCORES[self.severity]


_TABLE: tuple[tuple[str, str, Severity, str], ...] = (
    # Of any language
    ("text.too-long", "unscreened", "medium", "the code is too long and could not be screened"),
    ("text.not-finished", "unscreened", "medium", "the code takes too long to screen"),
    ("text.language", "unscreened", "low", "code in this language is not screened"),
    ("text.unparsable", "unscreened", "low", "a part of the code could not be read and screened"),
    ("text.bidi", "hidden", "medium", "bidirectional controls: it reads otherwise than it runs"),
    ("text.invisible", "hidden", "medium", "invisible characters stand in the code"),
    ("text.look-alike", "hidden", "medium", "a name has letters that only look like others"),
    ("text.encoded", "obfuscation", "low", "a very long piece of encoded data stands in the code"),
    ("text.escapes", "obfuscation", "low", "a text is written almost wholly in escapes"),
    # Python
    ("python.eval", "eval", "low", "evaluates a text as an expression"),
    ("python.exec", "eval", "low", "executes a text as code"),
    ("python.compile", "eval", "low", "compiles a text to code"),
    ("python.decode-exec", "obfuscation", "medium", "executes what it decodes"),
    ("python.download-exec", "download", "medium", "executes what it downloads"),
    ("python.dynamic-import", "import", "low", "imports a module whose name is computed"),
    ("python.hidden-name", "obfuscation", "medium", "makes a dangerous name from pieces"),
    ("python.builtins", "introspection", "low", "reaches for the built-in functions by a detour"),
    ("python.introspection", "introspection", "low", "looks into the interpreter's own objects"),
    ("python.introspection-chain", "introspection", "medium", "climbs objects as escapes do"),
    ("python.format-introspection", "introspection", "medium", "climbs objects by a format"),
    ("python.frames", "introspection", "low", "looks into the frames of its callers"),
    ("python.objects", "introspection", "low", "lists all objects of the interpreter"),
    ("python.code-object", "introspection", "low", "makes or changes code objects"),
    ("python.hooks", "introspection", "low", "hooks into the execution of other code"),
    ("python.native", "native", "low", "calls native code"),
    ("python.executable-memory", "native", "medium", "makes memory executable"),
    ("python.deserialise", "deserialisation", "low", "reads a format that can run code"),
    ("python.process", "process", "low", "starts a program"),
    ("python.shell", "process", "low", "starts a shell command"),
    ("python.characters", "obfuscation", "low", "puts a text together from numbers"),
    # JavaScript and TypeScript
    ("javascript.eval", "eval", "low", "evaluates a text as code"),
    ("javascript.function", "eval", "low", "makes a function from a text"),
    ("javascript.string-timer", "eval", "low", "a timer runs a text as code"),
    ("javascript.decode-exec", "obfuscation", "medium", "executes what it decodes"),
    ("javascript.dynamic-import", "import", "low", "imports a module whose name is computed"),
    ("javascript.hidden-name", "obfuscation", "medium", "makes a dangerous name from pieces"),
    ("javascript.escaped-name", "obfuscation", "medium", "a name is written with escapes"),
    ("javascript.characters", "obfuscation", "low", "puts a text together from numbers"),
    ("javascript.constructor", "introspection", "medium", "reaches the constructor of functions"),
    ("javascript.prototype", "pollution", "low", "reaches, changes or replaces a prototype"),
    ("javascript.accessor", "pollution", "low", "defines or looks up an accessor of an object"),
    ("javascript.pollution", "pollution", "medium", "writes into a prototype that others share"),
    ("javascript.computed-path", "pollution", "low", "two computed keys reach a prototype"),
    ("javascript.computed-global", "pollution", "low", "computed key into a given object"),
    ("javascript.process", "process", "low", "starts a program"),
    ("javascript.vm", "eval", "low", "runs code in another context"),
    ("javascript.binding", "native", "medium", "reaches the interpreter's internal bindings"),
    ("javascript.native", "native", "low", "loads native code"),
    ("javascript.wasm", "native", "low", "compiles WebAssembly"),
    ("javascript.worker-eval", "eval", "low", "a worker runs a text as code"),
    # Shell
    ("shell.eval", "eval", "low", "evaluates a text as a command"),
    ("shell.source", "eval", "low", "reads commands from another command's output"),
    ("shell.pipe-to-shell", "eval", "low", "pipes text into a shell"),
    ("shell.download-run", "download", "medium", "runs what it downloads"),
    ("shell.decode-run", "obfuscation", "medium", "runs what it decodes"),
    ("shell.split-word", "obfuscation", "medium", "quotes or escapes hide a command"),
    ("shell.ifs", "obfuscation", "medium", "uses IFS in the place of a blank"),
    ("shell.network-device", "network", "medium", "connects by /dev/tcp or /dev/udp"),
    ("shell.remote-shell", "network", "medium", "gives a shell to the network"),
    ("shell.device-write", "device", "medium", "writes to a disk or to memory directly"),
    ("shell.preload", "native", "low", "loads a library into other programs"),
    ("shell.history", "tampering", "medium", "hides what was run from the history"),
    ("shell.persistence", "persistence", "low", "arranges to be run again later"),
    ("shell.bomb", "process", "medium", "a function starts itself without end"),
)  # fmt: skip

RULES: dict[str, CodeRule] = {
    f"code.{name}": CodeRule(f"code.{name}", f"code:{category}", severity, message)
    for name, category, severity, message in _TABLE
}


@dataclass(frozen=True, slots=True)
class CodePattern:
    """A pattern of the configuration, in the syntax of RE2, for code of every language."""

    severity: Severity
    pattern: Pattern

    @classmethod
    def parse(cls, text: str) -> CodePattern:
        """`"high document\\.cookie"`: a severity, a blank, the pattern. Raises `BadInput`."""
        word, _, source = text.partition(" ")
        severity = next((each for each in SEVERITIES if each == word), None)
        if severity is None or not source.strip():
            raise BadInput(
                f"{text[:60]!r} is no pattern for code",
                hint='Write a severity and a pattern, for example "medium document\\.cookie".',
            )
        pattern = Pattern(source.strip())
        pattern.check()
        return cls(severity, pattern)

    def rule(self) -> CodeRule:
        message = f"matches the pattern {self.pattern.source[:60]} of the configuration"
        return CodeRule(PATTERN_RULE, "code:pattern", self.severity, message)


parse_pattern = lru_cache(maxsize=256)(CodePattern.parse)
"""`CodePattern.parse`, once for each pattern of the configuration."""


# Findings of one piece of code, a bounded number for each rule.

_MAX_OF_A_RULE = 5
"""Per rule: a flood of one finding hides no other finding that a setting refuses."""


class Findings:
    """The findings of one piece of code; positions are in characters."""

    def __init__(self) -> None:
        self._found: dict[str, set[tuple[int, int]]] = {}
        self._patterned: list[Hit] = []

    def add(self, name: str, start: int, end: int) -> None:
        spans = self._found.setdefault(f"code.{name}", set())
        if len(spans) < _MAX_OF_A_RULE:
            spans.add((start, max(start, end)))

    def add_pattern(self, code: str, given: CodePattern) -> None:
        """All matches of a pattern of the configuration, up to the same bound."""
        data = code.encode("utf-8", "surrogatepass")
        for number, (start, end) in enumerate(given.pattern.spans(data)):
            if number >= _MAX_OF_A_RULE:
                break
            first = len(data[:start].decode("utf-8", "surrogatepass"))
            length = len(data[start:end].decode("utf-8", "surrogatepass"))
            self._patterned.append(_hit(given.rule(), first, first + length))

    def is_full(self, name: str) -> bool:
        """Whether another finding of this rule would be dropped: its place is not needed."""
        return len(self._found.get(f"code.{name}", ())) >= _MAX_OF_A_RULE

    def within(self, start: int, end: int) -> Findings:
        """For code that is a text at this place: all of its findings get this place."""
        return _Within(self, start, end)

    def hits(self) -> tuple[Hit, ...]:
        """From left to right."""
        found = [
            _hit(RULES[name], start, end)
            for name, spans in self._found.items()
            for start, end in spans
        ]
        found += self._patterned
        return tuple(sorted(found, key=lambda hit: (hit.start, hit.end, hit.rule)))


def _hit(rule: CodeRule, start: int, end: int) -> Hit:
    return Hit(
        category=rule.category,
        severity=rule.severity,
        rule=rule.id,
        message=rule.message,
        start=start,
        end=end,
        score=rule.score,
    )


class _Within(Findings):
    def __init__(self, outer: Findings, start: int, end: int) -> None:
        super().__init__()
        self._outer = outer
        self._start = start
        self._end = end

    def add(self, name: str, start: int, end: int) -> None:  # noqa: ARG002  # of the inner code
        self._outer.add(name, self._start, self._end)

    def is_full(self, name: str) -> bool:
        return self._outer.is_full(name)


# Signs in code of any language that need no parser.

# Trojan Source (CVE-2021-42574): embeddings, overrides and isolates turn lines around for the
# reader. Plain marks (LRM, RLM) only nudge neutral signs and stand in honest texts.
_BIDI = re.compile("[\u202a-\u202e\u2066-\u2069]")
# Signs without any width between letters of a name; runs of tags or variation selectors, which
# carry whole programs. One selector behind a sign, or joiners in an emoji, are nothing special.
_INVISIBLE = re.compile(
    "[A-Za-z0-9_$][\u200b-\u200d\u2060-\u2064\ufeff\u00ad\u180e]+[A-Za-z0-9_$]"
    "|[\U000e0020-\U000e007f]{8,}|[\ufe00-\ufe0f\U000e0100-\U000e01ef]{4,}|[\u200b-\u200d\u2060-\u2064]{8,}"
    "|[\u115f\u1160\u3164\uffa0]"
)
# Matches only at the beginning of a run: a search from each of its signs takes quadratic time.
_ENCODED = re.compile(r"(?<![A-Za-z0-9+/_\-])[A-Za-z0-9+/_\-]{1500,}={0,2}")
_ESCAPES = re.compile(r"(?:\\x[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}|\\[0-7]{3}){40,}")
_WORD = re.compile(r"[^\W\d]\w*")
# Look like Latin letters; Greek ones that people use as symbols are not among them.
_LOOK_ALIKES = frozenset("асеорхуіјѕԁһӏԛԝАВСЕНІЈКМОРЅТХҮοОΟΑΒΕΖΗΙΚΜΝΡΤΥΧ")  # noqa: RUF001  # look-alikes are the point


def find_signs(code: str, findings: Findings) -> None:
    """Signs that deceive a reader, and data that hides from one."""
    for match in _first(_ENCODED, code):
        findings.add("text.encoded", *match.span())
    if "\\" in code:
        for match in _first(_ESCAPES, code):
            findings.add("text.escapes", *match.span())
    if code.isascii():
        return
    for match in _first(_BIDI, code):
        findings.add("text.bidi", *match.span())
    for match in _first(_INVISIBLE, code):
        findings.add("text.invisible", *match.span())


def check_name(name: str, start: int, findings: Findings) -> None:
    """A name that reads like another name: mixed scripts, or letters that NFKC makes ASCII."""
    if name.isascii():
        return
    plain = unicodedata.normalize("NFKC", name)
    is_dressed = plain.isascii() and plain != name  # mathematical or wide letters
    is_mixed = any("a" <= sign.lower() <= "z" for sign in name) and not _LOOK_ALIKES.isdisjoint(
        name
    )
    if is_dressed or is_mixed:
        findings.add("text.look-alike", start, start + len(name))


def check_words(code: str, findings: Findings) -> None:
    """All names of a piece of code that is not parsed."""
    if not code.isascii():
        for match in _WORD.finditer(code):
            check_name(match[0], match.start(), findings)


def _first(pattern: re.Pattern[str], code: str) -> list[re.Match[str]]:
    found: list[re.Match[str]] = []
    for match in pattern.finditer(code):
        found.append(match)
        if len(found) >= 5:
            break
    return found
