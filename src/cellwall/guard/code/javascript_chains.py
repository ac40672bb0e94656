"""Member chains of JavaScript (`a.b[c](d)`) and the values of names in them."""

from __future__ import annotations

from dataclasses import dataclass, field

from cellwall.guard.code.javascript_tokens import JavaScriptToken, Tokenizer, match_brackets
from cellwall.parsing.budget import checked

FUNCTION = "<function>"
"""The path of a function that is written there."""
HIDDEN = frozenset(
    {"eval", "Function", "constructor", "__proto__", "prototype", "require", "process", "exec",
     "child_process", "mainModule", "binding", "execSync", "spawn", "vm", "atob", "fromCharCode"}
)  # fmt: skip
# Their constructor makes a function from a text.
_FUNCTIONS = frozenset(
    {FUNCTION, "Function", "Function.prototype", "Object", "Array", "String", "Number", "Boolean",
     "Promise", "Symbol", "Map", "Set", "Date", "RegExp", "Error", "Proxy", "eval", "require",
     "parseInt", "setTimeout", "isNaN", "fetch"}
)  # fmt: skip
_HEADS = frozenset({"if", "while", "for", "with", "switch", "catch"})
_GIVES = frozenset({"=", "??=", "||=", "&&="})
_IN_TYPES = frozenset({".", ",", "[", "]", "|", "&", "<", "{", "}", ":", "?", ";"})
_MAX_TYPES = 24
_DEEPEST = 3
_MAX_STEPS = 64
_MAX_PIECES = 64
_WORLDS = frozenset({"globalThis", "window", "self", "global", "top", "parent", "frames"})
_LOADERS = frozenset(
    {
        "require",
        "module.require",
        "process.mainModule.require",
        "process.getBuiltinModule",
        "import",
    }
)


@dataclass(slots=True)
class Step:
    """One step of a chain: `.name`, `[…]` or `(…)`; `name` where it is known."""

    kind: str
    name: str | None
    first: int
    last: int
    is_pieced: bool = False
    """The name is put together from several texts."""


@dataclass(slots=True)
class JavaScriptChain:
    """From its first token to its last; `path` is what it stands for before each step."""

    first: int
    last: int
    base: str
    steps: list[Step]
    is_new: bool = False


@dataclass(slots=True)
class JavaScriptSource:
    """The tokens of a piece of code, with their brackets matched."""

    tokens: list[JavaScriptToken]
    pairs: dict[int, int]
    doubts: list[tuple[int, int]]
    texts: dict[str, str] = field(default_factory=dict)
    """Names that hold a text which is the name of something dangerous."""
    meanings: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, code: str) -> JavaScriptSource:
        tokenizer = Tokenizer(code)
        tokenizer.run()
        return cls(tokenizer.found, match_brackets(tokenizer.found), tokenizer.doubts)

    def is_sign(self, number: int, *signs: str) -> bool:
        if not 0 <= number < len(self.tokens):
            return False
        token = self.tokens[number]
        return token.kind == "sign" and token.text in signs

    def text(self, number: int) -> str:
        return self.tokens[number].text if 0 <= number < len(self.tokens) else ""

    def folded(self, first: int, last: int) -> tuple[str | None, bool]:
        """The text that tokens make up, if they do, and whether it stands there in pieces."""
        parts: list[str] = []
        for number in range(first, min(last, first + _MAX_PIECES)):
            token = self.tokens[number]
            if (number - first) % 2 == 0:
                is_closed = token.kind == "template" and not self.is_sign(number + 1, "{")
                known = self.texts.get(token.text) if token.kind == "name" else None
                if known is None and token.kind != "string" and not is_closed:
                    return None, False
                parts.append(token.text if known is None else known)
            elif not self.is_sign(number, "+"):
                return None, False
        if not parts or (last - first) % 2 == 0 or last - first > _MAX_PIECES:
            return None, False
        return "".join(parts), len(parts) > 1

    def chain(self, first: int, depth: int = 0) -> JavaScriptChain | None:
        """The chain that begins with this token."""
        token = self.tokens[first]
        base, at = "", first + 1
        if token.kind == "name":
            if token.text in _HEADS and not self.is_sign(first - 1, ".", "?."):
                return None  # what stands behind `if (…)` is no part of it
            base = self.meanings.get(token.text, token.text)
        elif token.kind == "sign" and token.text in {"(", "["}:
            closed = self.pairs.get(first)
            if closed is None:
                return None
            at = closed + 1
            base = self._inside(first, closed, depth) if token.text == "(" else ""
        elif token.kind not in {"string", "template", "regex", "number"}:
            return None
        steps = self._steps(at)
        last = steps[-1].last if steps else at - 1
        is_new = (
            self.text(first - 1) == "new" and self.tokens[first - 1].kind == "name"
            if first
            else False
        )
        return JavaScriptChain(first, last, base, steps, is_new)

    def _inside(self, first: int, closed: int, depth: int) -> str:
        """What brackets stand for: `(0, eval)`, `(await import("a"))`, `(x as any)`, `(() => 1)`"""
        if closed == first + 1 or depth >= _DEEPEST:
            return ""
        last = self.tokens[closed - 1]
        if last.kind == "name" and self.text(closed - 2) in {"(", ","}:
            return self.meanings.get(last.text, last.text)
        at = first + 1
        if self.tokens[at].kind == "number" and self.is_sign(at + 1, ","):
            at += 2
        if self.text(at) in {"function", "async"} or self.is_sign(at + 1, "=>"):
            return FUNCTION
        if self.is_sign(at, "(") and self.is_sign(self.pairs.get(at, at) + 1, "=>"):
            return FUNCTION
        if self.is_sign(at, "<"):
            at = self._behind_types(at) or at  # `<any>x`
        while self.text(at) in {"await", "new"} and self.tokens[at].kind == "name":
            at += 1
        chain = self.chain(at, depth + 1) if at < closed else None
        if chain is None:
            return ""
        behind = chain.last + 1
        is_all = behind == closed or self.text(behind) in {"as", "satisfies", "!"}
        return self.path(chain) if is_all else ""

    def _behind_types(self, at: int) -> int | None:
        """Of `<…>` as TypeScript puts it between a function and its arguments."""
        depth = 0
        for number in range(at, min(at + _MAX_TYPES, len(self.tokens))):
            token = self.tokens[number]
            if token.kind == "sign":
                depth += (token.text == "<") - (token.text == ">")
                if not depth:
                    return number + 1
                if token.text not in _IN_TYPES:
                    return None
            elif token.kind not in {"name", "string"}:
                return None
        return None

    def _behind_template(self, at: int) -> int:
        """The last token of a template that begins here."""
        while (
            self.is_sign(at + 1, "{")
            and self.tokens[at + 1].start == self.tokens[at].end - 1
            and at + 1 in self.pairs
            and self.pairs[at + 1] + 1 < len(self.tokens)
        ):
            at = self.pairs[at + 1] + 1
        return at

    def _steps(self, at: int) -> list[Step]:
        steps: list[Step] = []
        while at < len(self.tokens) and len(steps) < _MAX_STEPS:
            if self.is_sign(at, "!") and self.is_sign(at + 1, ".", "[", "("):
                at += 1  # TypeScript's "not null"
            elif self.is_sign(at, ".", "?.") and at + 1 < len(self.tokens):
                if self.tokens[at + 1].kind == "name":
                    steps.append(Step(".", self.text(at + 1), at, at + 1))
                    at += 2
                elif self.is_sign(at + 1, "(", "["):
                    at += 1
                else:
                    break
            elif self.is_sign(at, "(", "[") and at in self.pairs:
                closed = self.pairs[at]
                name, is_pieced = self.folded(at + 1, closed)
                kind = self.text(at)
                steps.append(Step(kind, name, at, closed, is_pieced))
                at = closed + 1
            elif self.tokens[at].kind == "template" and not self._is_continued(at):
                last = self._behind_template(at)
                text = self.text(at) if last == at else None
                steps.append(Step("(", text, at, last))  # `f`…`` calls it
                at = last + 1
            elif self.is_sign(at, "<") and (behind := self._behind_types(at)) is not None:
                if not self.is_sign(behind, "("):
                    break
                at = behind
            else:
                break
        return steps

    def _is_continued(self, at: int) -> bool:
        """Whether a piece of a template stands behind a `${…}` of it."""
        return self.is_sign(at - 1, "}") and self.tokens[at - 1].start == self.tokens[at].start

    def after(self, path: str, step: Step) -> str:
        """What a chain stands for one step on; empty where that is not simple."""
        if step.kind == "(":
            if path in _LOADERS and step.name:
                return step.name.removeprefix("node:")
            return path.removesuffix(".bind") if path.endswith(".bind") else ""
        if not path or step.name is None:
            return ""
        if path in _WORLDS:
            return step.name
        if step.name == "constructor" and path in _FUNCTIONS:
            return "Function"
        # What one calls a function by does not change which it is.
        if step.name in {"call", "apply"}:
            return path
        return f"{path}.{step.name}"

    def path(self, chain: JavaScriptChain) -> str:
        path = chain.base
        for step in chain.steps:
            path = self.after(path, step)
        return path

    def learn(self) -> None:
        """What names stand for: `const x = …`, `const {a: b} = …`, `import {a as b} from "…"`."""
        for number, token in checked(enumerate(self.tokens)):
            if token.kind == "sign" and token.text in _GIVES:
                self._learn_assigned(number)
            elif token.kind == "name" and token.text == "import":
                self._learn_import(number)

    def _learn_assigned(self, at: int) -> None:
        value = at + 1
        while self.text(value) in {"await", "new"} and value < at + 4:
            value += 1
        if value >= len(self.tokens):
            return
        target = self.tokens[at - 1] if at else None
        if target is None or (target.kind != "name" and not self.is_sign(at - 1, "}")):
            return
        self._learn_text(target, value)
        chain = self.chain(value)
        if chain is None:
            return
        path = self.path(chain)
        if target.kind == "name" and path and path != target.text and len(path) < 200:
            is_own = not self.is_sign(at - 2, ".", "?.")
            if is_own:
                self.meanings.setdefault(target.text, path)
        elif self.is_sign(at - 1, "}") and path and at - 1 in self.pairs:
            self._learn_parts(self.pairs[at - 1] + 1, at - 1, path, ":")

    def _learn_text(self, target: JavaScriptToken, value: int) -> None:
        given = self.tokens[value]
        if given.kind in {"string", "template"} and given.text in HIDDEN and target.kind == "name":
            self.texts.setdefault(target.text, given.text)

    def _learn_parts(self, first: int, last: int, path: str, renames: str) -> None:
        for number in range(first, min(last, first + 4 * _MAX_PIECES)):
            token = self.tokens[number]
            if token.kind != "name" or not self.is_sign(number - 1, "{", ","):
                continue
            is_renamed = self.text(number + 1) == renames
            own = self.text(number + 2) if is_renamed else token.text
            self.meanings.setdefault(own, f"{path}.{token.text}")

    def _learn_import(self, at: int) -> None:
        for number in range(at + 1, min(at + 4 * _MAX_PIECES, len(self.tokens) - 1)):
            token = self.tokens[number]
            if token.kind == "name" and token.text == "from":
                module = self.tokens[number + 1]
                if module.kind == "string":
                    self._learn_names(at + 1, number, module.text.removeprefix("node:"))
                return
            if token.kind in {"string", "number"} or self.is_sign(number, "(", ";", "."):
                return
            if token.kind == "name" and token.text == "import":
                return  # the next one

    def _learn_names(self, first: int, last: int, module: str) -> None:
        if self.tokens[first].kind == "name" and self.text(first) != "type":
            self.meanings.setdefault(self.text(first), module)
        if self.is_sign(first, "*"):
            self.meanings.setdefault(self.text(first + 2), module)
        self._learn_parts(first, last, module, "as")
