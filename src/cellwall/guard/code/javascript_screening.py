"""Screens JavaScript and TypeScript by the member chains of one token scan (GRD-9)."""

from __future__ import annotations

import re
from bisect import bisect_left
from itertools import pairwise

from cellwall.guard.code.findings import Findings, check_name
from cellwall.guard.code.javascript_chains import (
    FUNCTION,
    HIDDEN,
    JavaScriptChain,
    JavaScriptSource,
    Step,
)
from cellwall.parsing.budget import checked

_PROCESS = re.compile(
    r"child_process\.(?:exec|execSync|execFile|execFileSync|spawn|spawnSync|fork)"
    r"|Deno\.(?:run|Command)|Bun\.(?:spawn|spawnSync|\$)|process\.(?:spawn|execve)|execa|shelljs\.exec"
)
_VM = re.compile(
    r"vm\.(?:runIn\w+|Script|SourceTextModule|compileFunction|createScript)(?:\.runIn\w+)?"
)
_WASM = re.compile(r"WebAssembly\.(?:compile|instantiate|Module|Instance)\w*")
_BINDING = re.compile(r"process\.(?:binding|_linkedBinding|dlopen)|internalBinding")
_TIMERS = frozenset({"setTimeout", "setInterval", "setImmediate", "execScript"})
_DECODERS = frozenset(
    {"atob", "Buffer.from", "unescape", "String.fromCharCode", "String.fromCodePoint"}
)
_DECODER_BASES = frozenset(
    {"atob", "Buffer", "unescape", "String", "globalThis", "window", "self", "global", "top",
     "parent", "frames"}
)  # fmt: skip
_MAKERS = frozenset({"Function", "AsyncFunction", "GeneratorFunction", "AsyncGeneratorFunction"})
# Write into their first argument.
_WRITERS = frozenset(
    {"Object.assign", "Object.defineProperty", "Object.defineProperties", "Reflect.set",
     "Reflect.defineProperty"}
)  # fmt: skip
_LEADS = frozenset(
    {"return", "await", "in", "of", "typeof", "yield", "case", "else", "throw", "void", "delete",
     "new", "do", "default", "extends", "instanceof"}
)  # fmt: skip
_HEADS = frozenset({"if", "while", "for", "with", "switch", "catch"})
_WRITES = ("=", "+=", "||=", "??=", "&&=")
_GIVEN = frozenset(
    {"globalThis", "global", "window", "self", "process", "context", "ctx", "sandbox", "module",
     "exports", "require", "Object.prototype", "Array.prototype", "Function.prototype"}
)  # fmt: skip
_ACCESSORS = frozenset(
    {"__defineGetter__", "__defineSetter__", "__lookupGetter__", "__lookupSetter__"}
)
_POLLUTING = re.compile(r"""["']__proto__\\*["']\s*:\s*(?!null)""")
_STARTS = frozenset({".", "?.", "[", "(", "!", "<"})
_NO_BASES = frozenset({".", "?."})
_MAX_INSIDE = 400
_MAX_GIVEN = 24


def screen_javascript(code: str, findings: Findings) -> None:
    """Add what is found in it."""
    script = JavaScriptSource.of(code)
    for doubt in script.doubts:
        findings.add("text.unparsable", *doubt)
    screener = _JavaScriptScreener(code, script, findings)
    script.learn()
    screener.run()


class _JavaScriptScreener:
    def __init__(self, code: str, script: JavaScriptSource, findings: Findings) -> None:
        self._code = code
        self._script = script
        self._findings = findings
        self._decoders: list[int] = []
        self._direct: frozenset[int] = frozenset()

    def run(self) -> None:
        script = self._script
        self._find_decoders()
        for number, token in checked(enumerate(script.tokens)):
            if token.kind == "name":
                self._name(number)
                if self._is_plain(number, token.text):
                    continue
            elif token.kind == "string":
                self._string(number)
            if self._is_base(number):
                chain = script.chain(number)
                if chain is not None:
                    self._chain(chain)

    def _is_plain(self, number: int, name: str) -> bool:
        """A name with nothing behind it that would make a chain."""
        tokens = self._script.tokens
        if name == "eval" or (number and tokens[number - 1].text == "new"):
            return False
        if number + 1 >= len(tokens):
            return True
        kind, text, _, _ = tokens[number + 1]
        return kind != "template" and not (kind == "sign" and text in _STARTS)

    def _is_base(self, number: int) -> bool:
        """Whether a chain begins here; what stands inside one was seen with it."""
        script, token = self._script, self._script.tokens[number]
        if script.is_sign(number - 1, *_NO_BASES):
            return False
        if token.kind == "name":
            return True
        follows = script.is_sign(number + 1, ".", "?.", "[")
        if token.kind in {"string", "regex", "template", "number"}:
            return follows
        if token.kind != "sign" or token.text not in {"(", "["} or number not in script.pairs:
            return False
        before = script.tokens[number - 1] if number else None
        is_call = before is not None and (
            before.kind in {"string", "template"}
            or (before.kind == "name" and before.text not in _LEADS)
            or (before.text == ")" and not self._is_head(number - 1))
            or before.text == "]"
        )
        return not is_call

    def _is_head(self, closed: int) -> bool:
        """Whether this bracket ends the head of a statement: `if (…)`."""
        script = self._script
        opened = script.pairs.get(closed, 0)
        return script.text(opened - 1) in _HEADS and not script.is_sign(opened - 2, *_NO_BASES)

    def _add(self, rule: str, first: int, last: int) -> None:
        tokens = self._script.tokens
        self._findings.add(rule, tokens[first].start, tokens[min(last, len(tokens) - 1)].end)

    def _name(self, number: int) -> None:
        token = self._script.tokens[number]
        # An escape is longer than what it stands for.
        if len(token.text) != token.end - token.start:
            self._add("javascript.escaped-name", number, number)
        if not token.text.isascii():
            check_name(token.text, token.start, self._findings)

    def _string(self, number: int) -> None:
        token, script = self._script.tokens[number], self._script
        is_key = token.text == "__proto__" and script.is_sign(number + 1, ":")
        is_null = script.text(number + 2) in {"null", "undefined"}
        if (is_key and script.is_sign(number - 1, "{", ",") and not is_null) or (
            "__proto__" in token.text and _POLLUTING.search(token.text)
        ):
            self._add("javascript.pollution", number, number)

    def _chain(self, chain: JavaScriptChain) -> None:
        path = chain.base
        if chain.is_new and not any(step.kind == "(" for step in chain.steps):
            self._call(chain, path, None)
        for step in chain.steps:
            if step.is_pieced and step.name in HIDDEN:
                self._add("javascript.hidden-name", step.first, step.last)
            if step.kind == "(":
                self._call(chain, path, step)
            path = self._script.after(path, step)
        self._climbing(chain)
        names = [step.name for step in chain.steps]
        if not _ACCESSORS.isdisjoint(names):
            self._add("javascript.accessor", chain.first, chain.last)
        if self._script.is_sign(chain.last + 1, *_WRITES):
            self._writing(chain)
        elif _has_prototype(names):
            self._add("javascript.prototype", chain.first, chain.last)
        if self._script.text(chain.first) == "eval" and not chain.steps:
            self._add("javascript.eval", chain.first, chain.last)

    def _call(self, chain: JavaScriptChain, path: str, step: Step | None) -> None:
        last = step.last if step else chain.last
        rule = self._rule(path, step)
        if rule:
            self._add(rule, chain.first, last)
        if step is None:
            return
        is_text = rule in {"javascript.eval", "javascript.function", "javascript.vm"}
        # Timers are given functions; only what is decoded in that place is a text.
        is_timed = path in _TIMERS and step.first + 1 in self._direct
        if is_timed or (is_text and self._is_decoded(step)):
            self._add("javascript.decode-exec", chain.first, last)
        if path in {"String.fromCharCode", "String.fromCodePoint"} and self._has_many(step):
            self._add("javascript.characters", chain.first, last)
        is_computed = step.name is None and self._has_any(step) and not self._is_declared(chain)
        if path in {"require", "import", "module.require"} and is_computed:
            self._add("javascript.dynamic-import", chain.first, last)

    def _rule(self, path: str, step: Step | None) -> str | None:  # noqa: PLR0911  # a table of forms
        if path == "eval":
            return "javascript.eval"
        if step is not None and (rule := self._rule_of_given(path, step)):
            return rule
        if _PROCESS.fullmatch(path):
            return "javascript.process"
        if _VM.fullmatch(path):
            return "javascript.vm"
        if _BINDING.fullmatch(path):
            return "javascript.binding"
        if _WASM.fullmatch(path):
            return "javascript.wasm"
        if path in {"Object.setPrototypeOf", "Reflect.setPrototypeOf"}:
            return "javascript.prototype"
        if (
            path in {"Worker", "worker_threads.Worker"}
            and step is not None
            and self._says(step, "eval")
        ):
            return "javascript.worker-eval"
        return None

    def _rule_of_given(self, path: str, step: Step) -> str | None:
        """Where it depends on what a call is given."""
        if path in _MAKERS and self._has_any(step):
            return "javascript.function"
        if path in {"Reflect.construct", "Reflect.apply"}:
            given = self._given(step)
            made = "" if given is None else self._script.path(given)
            return "javascript.function" if made in _MAKERS else None
        if path in _WRITERS and self._is_shared(self._given(step)):
            return "javascript.pollution"
        if path in _TIMERS and self._begins_with_text(step):
            return "javascript.string-timer"
        if (step.name or "").endswith(".node") and path == "require":
            return "javascript.native"
        return None

    def _climbing(self, chain: JavaScriptChain) -> None:
        """`x.constructor.constructor("…")`, and the constructor of a function given a text."""
        before: str | None = None
        for number, step in enumerate(chain.steps):
            if step.kind == "(" and number and chain.steps[number - 1].name == "constructor":
                is_text = not chain.is_new and self._has_any(step) and self._begins_with_text(step)
                is_called = number + 1 < len(chain.steps) and chain.steps[number + 1].kind == "("
                is_run = is_called and not chain.is_new and self._has_any(step)
                if before == "constructor" or is_text or is_run or chain.base == FUNCTION:
                    self._add("javascript.constructor", chain.first, step.last)
            before = chain.steps[number - 1].name if number and step.kind != "(" else before

    def _writing(self, chain: JavaScriptChain) -> None:
        script = self._script
        names = [step.name for step in chain.steps]
        keys = [step for step in chain.steps if step.kind == "[" and step.name is None]
        before = names[:-1]
        owner = ".".join([chain.base, *(name or "?" for name in before)])
        if any(step.kind == "(" for step in chain.steps):
            return
        if owner == "Object.prototype" or _has_prototype(before):
            self._add("javascript.pollution", chain.first, chain.last)
        elif names and names[-1] == "__proto__":
            self._add("javascript.prototype", chain.first, chain.last)
        elif keys and chain.steps[-1] is keys[-1] and owner in _GIVEN:
            self._add("javascript.computed-global", chain.first, chain.last)
        elif (
            len(keys) >= 2
            and all(script.tokens[step.first + 1].kind == "name" for step in keys)
            and chain.steps[-1] is keys[-1]
            and chain.steps[-2] is keys[-2]
        ):
            self._add("javascript.computed-path", chain.first, chain.last)

    def _given(self, step: Step) -> JavaScriptChain | None:
        """The first thing that a call is given."""
        return self._script.chain(step.first + 1) if self._has_any(step) else None

    def _is_shared(self, given: JavaScriptChain | None) -> bool:
        if given is None:
            return False
        names = [step.name for step in given.steps]
        return self._script.path(given) == "Object.prototype" or _has_prototype(names)

    def _has_any(self, step: Step) -> bool:
        return step.last > step.first + 1 or self._script.tokens[step.first].kind == "template"

    def _has_many(self, step: Step) -> bool:
        return step.last - step.first > 12 or self._script.is_sign(step.first + 1, "...")

    def _begins_with_text(self, step: Step) -> bool:
        tokens = self._script.tokens
        is_template = tokens[step.first].kind == "template"
        return is_template or tokens[step.first + 1].kind in {"string", "template"}

    def _says(self, step: Step, word: str) -> bool:
        inside = self._script.tokens[step.first : min(step.last, step.first + _MAX_INSIDE)]
        return any(token.kind == "name" and token.text == word for token in inside)

    def _is_declared(self, chain: JavaScriptChain) -> bool:
        """`function require(…)`, `import type`, a method of that name."""
        script = self._script
        return script.text(chain.first - 1) in {"function", "get", "set"} or script.is_sign(
            chain.last + 1, "{"
        )

    def _is_decoded(self, step: Step) -> bool:
        script = self._script
        first, last = step.first + 1, step.last
        if script.text(first) == "function" and last - first > 4:
            return script.is_sign(last - 1, ")")  # a packer: eval(function(p,a,c,k,e,d){…}(…))
        return self._has_decoder(first, last)

    def _has_decoder(self, first: int, last: int) -> bool:
        at = bisect_left(self._decoders, first)
        return at < len(self._decoders) and self._decoders[at] < last

    def _find_decoders(self) -> None:
        """Where something is decoded, and where names stand that were given it."""
        script = self._script
        for number, token in checked(enumerate(script.tokens)):
            if token.kind == "name" and not script.is_sign(number - 1, *_NO_BASES):
                meaning = script.meanings.get(token.text, token.text)
                if meaning.partition(".")[0] not in _DECODER_BASES:
                    continue
                chain = script.chain(number)
                if chain is not None and self._decodes(chain):
                    self._decoders.append(number)
        names = {
            token.text
            for number, token in checked(enumerate(script.tokens))
            if token.kind == "name" and self._is_given_decoded(number)
        }
        self._direct = frozenset(self._decoders)
        if names:
            self._decoders += [
                number
                for number, token in enumerate(script.tokens)
                if token.kind == "name" and token.text in names
            ]
            self._decoders.sort()

    def _decodes(self, chain: JavaScriptChain) -> bool:
        path = chain.base
        for step in chain.steps:
            if step.kind == "(" and path in _DECODERS and self._is_decoder(path, step):
                return True
            path = self._script.after(path, step)
        return False

    def _is_decoder(self, path: str, step: Step) -> bool:
        if path != "Buffer.from":
            return True
        last = self._script.tokens[step.last - 1]
        return last.kind == "string" and last.text in {"base64", "hex"}

    def _is_given_decoded(self, number: int) -> bool:
        """`name = …`, as far as the statement goes, and not into functions."""
        script = self._script
        if not script.is_sign(number + 1, "=") or script.is_sign(number - 1, *_NO_BASES):
            return False
        if script.text(number + 2) in {"function", "(", "async"}:
            return False
        last = number + 2
        while last < min(number + _MAX_GIVEN, len(script.tokens)) and not script.is_sign(last, ";"):
            last += 1
        return self._has_decoder(number + 2, last)


def _has_prototype(names: list[str | None]) -> bool:
    """Whether a chain goes through a prototype that others share."""
    return "__proto__" in names or ("constructor", "prototype") in pairwise(names)
