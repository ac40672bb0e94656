"""Screens a shell script by the outline of its commands (GRD-9)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from cellwall.guard.code.command_code import SHELLS, base_name, code_in, language_of
from cellwall.guard.code.findings import Findings
from cellwall.parsing.budget import checkpoint
from cellwall.parsing.shell.outline import (
    OutlineCommand,
    OutlineWord,
    ParseBudget,
    Stage,
    outline,
)

ScreenerOf = Callable[[str], Callable[[str, Findings], None] | None]
"""The screener of a language; None for a language without one."""
_MAX_DEPTH = 4
_INPUTS = frozenset({"-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"})
_FETCHERS = frozenset({"curl", "wget", "fetch", "lwp-request", "aria2c", "GET"})
# What starts another program, and which of its options take a word.
_WRAPPERS: dict[str, frozenset[str]] = {
    "sudo": frozenset({"-u", "-g", "-h", "-p", "-C", "-r", "-t", "-T", "-U", "-D", "-R"}),
    "doas": frozenset({"-u", "-C"}),
    "env": frozenset({"-u", "-C"}),
    "exec": frozenset({"-a"}),
    "nice": frozenset({"-n"}),
    "ionice": frozenset({"-c", "-n"}),
    "timeout": frozenset({"-k", "-s"}),
    "stdbuf": frozenset({"-i", "-o", "-e"}),
    "time": frozenset({"-o", "-f"}),
    "xargs": frozenset({"-I", "-n", "-P", "-L", "-d", "-E", "-s", "-a"}),
    "strace": frozenset({"-o", "-e", "-s"}),
    **dict.fromkeys(
        ("nohup", "command", "builtin", "setsid", "busybox", "toybox", "coproc", "chroot", "flock",
         "taskset", "chrt", "unshare", "fakeroot", "unbuffer"),
        frozenset[str](),
    ),
}  # fmt: skip
_POSITIONS = frozenset({"chroot", "flock", "taskset", "chrt"})
"""Wrappers whose first argument is not yet the program; numbers are skipped anyway."""
Inner = tuple[str, tuple[int, int], str]
"""Code that a script holds as a text, its place and its language."""
_DISK = re.compile(r"/dev/(?:sd|hd|vd|xvd|nvme|mmcblk|dm-|md\d|mapper/|disk/|k?mem\b|port\b)")
_NETWORK = re.compile(r"/dev/(?:tcp|udp)/")
_STARTUP = re.compile(
    r"/etc/cron|/var/spool/cron|/etc/rc\.local|/etc/init\.d/|/etc/systemd/system/|authorized_keys"
    r"|/\.(?:bashrc|profile|bash_profile|zshrc|config/autostart)|/etc/profile\.d/|/etc/ld\.so\.preload"
)
_BOMB = re.compile(r"([\w:.]{1,32})\s*\(\)\s*\{\s*\1\s*\|\s*\1\s*&\s*\}\s*;\s*\1")
_PRELOADS = frozenset({"LD_PRELOAD", "LD_AUDIT", "LD_LIBRARY_PATH", "DYLD_INSERT_LIBRARIES"})
_LETTERS = re.compile(r"[A-Za-z]['\"\\]+[A-Za-z]|\$'")


def screen_shell(code: str, findings: Findings, *, screener_of: ScreenerOf) -> None:
    """Screen a script, and by `screener_of` the code of other languages in it."""
    for bomb in _BOMB.finditer(code):
        findings.add("shell.bomb", *bomb.span())
        break
    _ShellScreener(code, findings, screener_of).script(code, None, 0)


class _ShellScreener:
    def __init__(self, code: str, findings: Findings, screener_of: ScreenerOf) -> None:
        self._code = code
        self._findings = findings
        self._screener_of = screener_of
        # Nested code is read again at each level: one bound for all levels together.
        self._left = len(code) + 20_000
        self._parses = ParseBudget()

    def script(self, code: str, span: tuple[int, int] | None, depth: int) -> None:
        """`span`: the place of a script that is a text inside the code; None for the whole code."""
        script = outline(code, self._parses)
        for unread in script.unread:
            self._findings.add("text.unparsable", *(span or unread))
        screener = _ScriptScreener(code, self._findings, span, self._screener_of)
        found = [
            *(each for stages in script.pipelines for each in screener.piped(stages)),
            *(each for command in script.commands for each in screener.command(command)),
        ]
        for inner, place, language in found:
            self._left -= len(inner)
            if depth >= _MAX_DEPTH or self._left < 0:
                self._findings.add("text.unparsable", *place)
            elif language == "shell":
                self.script(inner, place, depth + 1)
            elif (read := self._screener_of(language)) is not None:
                read(inner, self._findings.within(*place))
            else:
                self._findings.add("text.language", *place)


class _ScriptScreener:
    """Screens the commands of one script, which may be a text inside another script."""

    def __init__(
        self,
        code: str,
        findings: Findings,
        span: tuple[int, int] | None,
        screener_of: ScreenerOf,
    ) -> None:
        self._code = code
        self._findings = findings
        self._span = span
        self._screener_of = screener_of

    def _add(self, rule: str, start: int, end: int) -> None:
        self._findings.add(rule, *(self._span or (start, end)))

    def piped(self, stages: list[Stage]) -> Iterator[Inner]:
        """Output of one stage that a later stage runs. Yields code for an interpreter."""
        is_fetched = is_decoded = False
        for number, stage in enumerate(stages):
            checkpoint()
            for command in stage if number else ():
                name, arguments = _program_of(command)
                language = _input_language(name, arguments)
                if language is None:
                    continue
                rule = (
                    "shell.decode-run" if is_decoded
                    else "shell.download-run" if is_fetched
                    else "shell.pipe-to-shell" if language == "shell"
                    else ""
                )  # fmt: skip
                if rule:
                    first = min(each.start for each in stages[0])
                    self._add(rule, first, command.end)
                for feeding in stages[number - 1]:
                    yield from self._printed_code(feeding, language)
            for command in stage:
                name, arguments = _program_of(command)
                is_fetched |= name in _FETCHERS or _holds(command, _FETCHERS)
                is_decoded |= _decodes(name, arguments)

    def _printed_code(self, command: OutlineCommand, language: str) -> Iterator[Inner]:
        """The output of `echo …` and `cat <<E` that the interpreter behind them reads."""
        name, arguments = _program_of(command)
        place = self._span or (command.start, command.end)
        if name in {"echo", "printf"}:
            yield " ".join(word.text for word in arguments), place, language
        if name == "cat" and command.document is not None:
            start, end = command.document
            yield self._code[start:end], self._span or (start, end), language

    def command(self, command: OutlineCommand) -> Iterator[Inner]:
        name, arguments = _program_of(command)
        place = (command.start, command.end)
        self._check_any(command, name, arguments)
        match name:
            case "eval":
                self._add("shell.eval", *place)
                self._check_output_run(command, arguments)
                text = " ".join(word.text for word in arguments)
                yield text, self._span or place, "shell"
            case "trap" if len(arguments) > 1:
                yield arguments[0].text, self._span or place, "shell"
            case "source" | ".":
                is_input = any(word.text in _INPUTS for word in arguments)
                if is_input or any(word.is_fed for word in arguments):
                    self._add("shell.source", *place)
                    self._check_output_run(command, arguments)
            case "dd" | "shred" | "tee" | "cp":
                written = [word.text for word in arguments if not word.text.startswith("if=")]
                if any(_DISK.search(text) for text in written[name == "cp" :]):
                    self._add("shell.device-write", *place)
            case "history" if any(word.text in {"-c", "-d", "-cw"} for word in arguments):
                self._add("shell.history", *place)
            case "unset" | "export" | "set":
                self._check_variables(name, command, arguments)
            case "nc" | "ncat" | "netcat" | "socat":
                self._check_netcat(command, arguments)
        if name in SHELLS:
            self._check_output_run(command, arguments)
        elif language_of(name) is not None:
            self._check_output_run(
                command, arguments[:1] if arguments and arguments[0].is_fed else []
            )
        yield from self._argument_code(command)
        yield from self._stdin_code(command, _input_language(name, arguments))

    def _check_any(self, command: OutlineCommand, name: str, arguments: list[OutlineWord]) -> None:
        self._check_assignments(command)
        self._check_redirects(command)
        self._check_spelling(command)
        if _is_persistent(name, arguments):
            self._add("shell.persistence", command.start, command.end)

    def _argument_code(self, command: OutlineCommand) -> Iterator[Inner]:
        """`bash -c …`, `timeout 5 python3 -c …`"""
        place = self._span or (command.start, command.end)
        for given in code_in([word.text for word in command.words]):
            word = command.words[given.at]
            self._check_output_run(command, [word])
            if given.text is not None and (given.text.strip() or not word.is_expanded):
                yield given.text, place, given.language
            elif given.language == "shell" and given.text is not None:
                self._add("shell.eval", *place)  # `bash -c "$x"` is `eval "$x"`
            else:
                is_known = given.text is None or self._screener_of(given.language) is not None
                self._add("text.unparsable" if is_known else "text.language", *place)

    def _stdin_code(self, command: OutlineCommand, language: str | None) -> Iterator[Inner]:
        """`bash <<E`, `python3 - <<E`, `sh <<< "…"`"""
        if language is None:
            return
        if command.document is not None:
            start, end = command.document
            yield self._code[start:end], self._span or (start, end), language
        for sign, word in command.redirects:
            if sign == "<<<":
                yield word.text, self._span or (command.start, command.end), language

    def _check_output_run(self, command: OutlineCommand, arguments: list[OutlineWord]) -> None:
        """`eval "$(curl …)"`, `bash <(curl …)`, `sh -c "$(base64 -d …)"`, `bash <<< "$(…)"`."""
        sources = [*arguments, *(word for _, word in command.redirects)]
        for each in (inner for word in sources for inner in word.inner):
            name, words = _program_of(each)
            if name in _FETCHERS:
                self._add("shell.download-run", command.start, command.end)
            if _decodes(name, words):
                self._add("shell.decode-run", command.start, command.end)

    def _check_assignments(self, command: OutlineCommand) -> None:
        for name, word in command.assigned:
            if name in _PRELOADS and name != "LD_LIBRARY_PATH":
                self._add("shell.preload", command.start, command.end)
            is_off = name == "HISTFILE" and word.text in {"", "/dev/null"} and not word.is_expanded
            if is_off or (name in {"HISTSIZE", "HISTFILESIZE"} and word.text == "0"):
                self._add("shell.history", command.start, command.end)

    def _check_variables(
        self, name: str, command: OutlineCommand, arguments: list[OutlineWord]
    ) -> None:
        for word in arguments:
            variable, _, value = word.text.partition("=")
            if name == "unset" and variable == "HISTFILE":
                self._add("shell.history", command.start, command.end)
            if name == "export" and variable in _PRELOADS and variable != "LD_LIBRARY_PATH":
                self._add("shell.preload", command.start, command.end)
            if name == "export" and variable == "HISTFILE" and value == "/dev/null":
                self._add("shell.history", command.start, command.end)
            if name == "set" and word.text == "+o" and "history" in arguments[-1].text:
                self._add("shell.history", command.start, command.end)

    def _check_redirects(self, command: OutlineCommand) -> None:
        for sign, word in command.redirects:
            if _NETWORK.match(word.text):
                self._add("shell.network-device", command.start, command.end)
            if ">" in sign and _DISK.match(word.text):
                self._add("shell.device-write", command.start, command.end)
            if ">" in sign and _STARTUP.search(word.text):
                self._add("shell.persistence", command.start, command.end)
            if ">" in sign and word.text.endswith("_history"):
                self._add("shell.history", command.start, command.end)
        for word in command.words:
            if _NETWORK.match(word.text):
                self._add("shell.network-device", word.start, word.end)

    def _check_netcat(self, command: OutlineCommand, arguments: list[OutlineWord]) -> None:
        texts = [word.text for word in arguments]
        if any(re.fullmatch(r"-[a-z]*[ec]|--exec|--sh-exec", text) for text in texts) or any(
            re.match(r"(?i)(?:exec|system):", text) for text in texts
        ):
            self._add("shell.remote-shell", command.start, command.end)

    def _check_spelling(self, command: OutlineCommand) -> None:
        """A command's name that quotes, escapes or IFS hide from a search."""
        for word in command.words:
            if word.has_ifs and not word.is_fully_quoted and word.text and "=" not in word.text:
                self._add("shell.ifs", word.start, word.end)
        if not command.words:
            return
        name = command.words[0]
        written = self._code[name.start : name.end]
        # Only a plain name: paths and texts with blanks are quoted for good reasons.
        if name.is_split and not name.is_expanded and re.fullmatch(r"[\w.\-]{2,32}", name.text):
            if _LETTERS.search(written):
                self._add("shell.split-word", name.start, name.end)
        elif (
            name.is_expanded
            and not name.text
            and any(_decodes(*_program_of(each)) for each in name.inner)
        ):
            self._add("shell.decode-run", command.start, command.end)


def _program_of(command: OutlineCommand) -> tuple[str, list[OutlineWord]]:
    """The program behind all wrappers, without its folder, and its arguments."""
    words = command.words
    at = 0
    while at < len(words):
        name = base_name(words[at].text)
        options = _WRAPPERS.get(name)
        if options is None:
            return name, words[at + 1 :]
        at += 1
        while at < len(words) and (
            words[at].text.startswith("-") or "=" in words[at].text or words[at].text[:1].isdigit()
        ):
            at += 1 + (words[at].text in options)
        at += name in _POSITIONS and at < len(words) and not words[at - 1].text[:1].isdigit()
    return "", []


def _input_language(name: str, arguments: list[OutlineWord]) -> str | None:
    """The language of code that a program reads from a pipe; None if an argument names code."""
    plain = [word.text for word in arguments]
    if name in {"source", "."}:
        return "shell" if plain and plain[0] in _INPUTS else None
    language = language_of(name)
    if language is None:
        return None
    if language != "shell":
        return language if not plain or plain[0] in _INPUTS else None
    if any(True for _ in code_in([name, *plain])):
        return None
    script = next((text for text in plain if not text.startswith("-")), None)
    reads_stdin = any(text in {"-s", "-"} for text in plain)
    return "shell" if reads_stdin or script is None or script in _INPUTS else None


def _is_persistent(name: str, arguments: list[OutlineWord]) -> bool:
    """Whether the command arranges that a program runs again later."""
    texts = [word.text for word in arguments]
    if name in {"crontab", "at", "batch"}:
        return {"-l", "-r", "-V"}.isdisjoint(texts)
    if name == "systemctl":
        return "enable" in texts
    return name == "tee" and any(_STARTUP.search(text) for text in texts)


def _decodes(name: str, arguments: list[OutlineWord]) -> bool:
    texts = [word.text for word in arguments]
    if name in {"base64", "base32", "basenc"}:
        return any(re.fullmatch(r"-[a-z]*[dD][a-z]*|--decode", text) for text in texts)
    if name == "xxd":
        return any(text.startswith("-r") for text in texts)
    if name == "openssl":
        return "-d" in texts
    if name in {"printf", "echo"}:
        return any(text.count("\\x") >= 4 or text.count("\\0") >= 4 for text in texts)
    return name in {"uudecode", "rev"}


def _holds(command: OutlineCommand, names: frozenset[str]) -> bool:
    return any(_program_of(each)[0] in names for word in command.words for each in word.inner)
