"""Every rule of the screening, with its stable id: a setting can turn chosen ones into refusals.

Low is what plain code does too: evaluating, starting programs, reading foreign formats. Medium is
what honest code hardly ever does.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from cellwall.core.errors import BadInput
from cellwall.core.outcomes import SEVERITIES, Severity
from cellwall.parsing.matching import Pattern

_SCORES: dict[Severity, float] = {"low": 0.1, "medium": 0.4, "high": 0.8, "critical": 1.0}
PATTERN_RULE = "code.pattern"
"""The rule of every pattern of the configuration; the pattern brings its own severity."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that is looked for."""

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

RULES: dict[str, Rule] = {
    f"code.{name}": Rule(f"code.{name}", f"code:{category}", severity, message)
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

    def rule(self) -> Rule:
        message = f"matches the pattern {self.pattern.source[:60]} of the configuration"
        return Rule(PATTERN_RULE, "code:pattern", self.severity, message)


parse_pattern = lru_cache(maxsize=256)(CodePattern.parse)
"""`CodePattern.parse`, once for each pattern of the configuration."""
