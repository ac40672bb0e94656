"""What an agent asks for, and the rules that people write: commands, code, paths, hosts, files."""

from __future__ import annotations

import os
import tempfile
from urllib.parse import urlsplit

from cellwall.config.load import load_settings
from cellwall.config.settings_file import find_deep_line, index_lines
from cellwall.core.errors import BadInput, ConfigError
from cellwall.core.verdict import Verdict
from cellwall.parsing.shell.parser import NotUnderstood
from cellwall.parsing.shell.reader import read_shell
from cellwall.policy.calls import ToolCall
from cellwall.policy.code.sieve import look_at
from cellwall.policy.commands import awk, sed
from cellwall.policy.domains import HostPattern, host_of
from cellwall.policy.engine import Policy
from cellwall.policy.globs import literal_steps, names_match, parse_name
from cellwall.policy.policy_file import parse_policy
from cellwall.policy.rules import BadRule, Layer
from fuzz.targets import target, text_of, wild_text_of

_RULES = """
[permissions]
allow = ["Bash(git status)", "Bash(cat *)", "Bash(echo *)", "Read(./**)", "WebFetch(domain:*.example.com)"]
deny = ["Read(.env)", "Read(~/.ssh/**)"]
"""
_SHELL = (
    b"cat ", b"echo ", b"$(", b"`", b"${", b"}", b"<(", b" | ", b" && ", b"; ", b" > ", b" < .env", b"<<A\n", b"\nA\n", b"'", b'"', b"\\",
    b"eval ", b"bash -c ", b"find . -exec ", b"xargs ", b"sed -n ", b"awk '", b"env ", b"$HOME", b"~/.ssh/id_rsa", b".e*v", b"{a,b}", b"$'\\x41'", b"$'\\U", b"\\UFFFFFFFF",
    b"{1..", b"patch -p ", "\u00b2".encode(), b"9" * 40,
    b"for i in ", b"do ", b"done", b"if ", b"then ", b"fi", b"case ", b"esac", b"function ", b"() {", b"((", b"[[ ", b"git -c ", b"# ", b"&>",
)  # fmt: skip


def _policy() -> Policy:
    found = parse_policy(_RULES, file="p.toml", name="p.toml", layer=Layer.USER, folder="/conf")
    return Policy(found.rules)


_POLICY = _policy()


@target(
    "parsing.shell",
    "policy.judge",
    "policy.commands",
    "policy.command_patterns",
    tokens=_SHELL,
    max_bytes=400,
)
def shell_command(data: bytes) -> None:
    """Shell commands: read and judged, and nothing that was not understood is allowed"""
    text = wild_text_of(data)
    call = ToolCall("Bash", {"command": text}, cwd="/work", home="/home/u")
    decision = _POLICY.check(call)
    assert decision.reason.isprintable()
    try:
        read_shell(text, directories=("/work",), home="/home/u")
    except NotUnderstood as problem:
        assert str(problem)  # noqa: PT017
        assert decision.verdict is not Verdict.ALLOW


_CALLS = (
    b'{"tool":"Bash","input":{"command":"', b'{"tool":"Read","input":{"file_path":"', b'{"tool":"WebFetch","input":{"url":"https://',
    b'{"tool":"mcp__a__b","input":{"path":"', b'{"tool":"Code","input":{"language":"python","code":"', b'"}}', b"/../", b"~/.ssh/id_rsa", b".env",
    b"169.254.169.254", b"Bash(", b"Read(", b"WebFetch(", b")", b"Install(", b'{"tool":"Install","input":{"package":"pypi:',
)  # fmt: skip


@target("policy", tokens=_CALLS, max_bytes=600)
def tool_call(data: bytes) -> None:
    """Tool calls as agents write them: a decision that can be shown, or the declared error"""
    import json  # noqa: PLC0415  # one form of two

    text = wild_text_of(data)
    call: object = text
    if text.startswith("{"):
        try:
            call = json.loads(text)
        except (ValueError, RecursionError):
            return
    if not isinstance(call, str | dict):
        return
    try:
        decision = _POLICY.check(call, cwd="/work", home="/home/u")
    except BadInput as error:
        assert error.hint  # noqa: PT017
        return
    assert decision.verdict in Verdict
    assert decision.reason.isprintable()


_CODE = (
    b"import ", b"from os import ", b"open('", b"').read()", b"os.system(", b"__import__(", b"getattr(", b"exec(", b"lambda ", b"f'{", b"'''", b"def f():\n ",
    b"require('fs')", b"process", b"await ", b"=> ", b"`${", b"eval(", b"Function(", b"system(", b"qx{", b"%x(", b"IO.popen", b"\\x", b"\\u{", b"#{",
)  # fmt: skip
_LANGUAGES = ("python", "javascript", "typescript", "ruby", "perl", "php", "lua", "r")


@target("policy.code", "parsing.python", "parsing.javascript", tokens=_CODE)
def judged_code(data: bytes) -> None:
    """Code in eight languages that a rule allows: a reason to refuse, the programs it starts, or neither"""
    language = _LANGUAGES[data[0] % 8 if data else 0]
    found = look_at(language, wild_text_of(data[1:]))
    assert found.why is None or found.why.isprintable()


@target("policy.commands.sed", "policy.commands.awk", tokens=(
    b"s/a/b/", b"e", b"w ", b"r ", b"{", b"}", b";", b"s/a/b/e", b"y/a/b/", b"[", b"]", b"\\", b"BEGIN {", b"system(", b"print > ", b"| getline", b"/",
    b"$1", b'"', b"@load", b"#",
), max_bytes=300)  # fmt: skip
def sed_and_awk(data: bytes) -> None:
    """Scripts of sed and awk: their effects, or not understood"""
    text = wild_text_of(data)
    assert all(isinstance(each, str) for each in (*sed.judge(text).reads, *awk.judge(text).reads))


@target("policy.globs", "policy.domains", "policy.paths", tokens=(
    b"**", b"*", b"?", b"[a-z]", b"[!", b"\\", b"..", b"/", b"~", b"domain:", b"*.example.com", b"https://", b"xn--", b"[::1]", b"127.1", b"@",
), max_bytes=200)  # fmt: skip
def rule_pattern(data: bytes) -> None:
    """Globs, hosts and URLs of rules: a pattern accepts its own literal; hosts agree with urlsplit"""
    text = text_of(data)
    try:
        pattern = parse_name(text)
    except BadRule as error:
        assert error.hint  # noqa: PT017
    else:
        if not set(text) & set("*?[]\\/"):
            assert pattern.accepts(text)
    if text and "\0" not in text:
        steps = literal_steps(text)
        assert names_match(steps, [part for part in text.split("/") if part]) or "/" in text
    try:
        host = host_of(text)
    except BadInput as error:
        assert str(error).isprintable()  # noqa: PT017
    else:
        second = urlsplit(text).hostname or ""
        assert second.rstrip(".").isascii() is False or host.strip("[]") in {
            second.rstrip("."),
            host.strip("[]"),
        }
        assert host_of(f"https://{host}/") == host
    try:
        HostPattern.parse(text)
    except BadRule as error:
        assert error.hint  # noqa: PT017


_POLICY_TOKENS = (
    b"[permissions]\n", b'allow = ["', b'"]\n', b"deny = [", b"[[rule]]\n", b'verdict = "ask"\n', b'rule = "Bash(git push *)"\n', b'match = ["',
    b'not_match = ["', b'reason = "', b"until = 2026-01-01\n", b'{"permissions":{"allow":["', b'"defaultMode":"plan"', b"Read(", b"WebFetch(domain:",
    b"Install(pypi:", b"\\u001b", b"1e999", b"'''", b"#", b"[[", b"]]", b"{", b"}",
)  # fmt: skip
_NAMES = ("policy.toml", "policy.json", "settings.json")


@target(
    "policy.policy_file",
    "policy.positions",
    "policy.rule_parser",
    "policy.rules",
    tokens=_POLICY_TOKENS,
)
def policy_file(data: bytes) -> None:
    """Policy files in TOML and JSON: rules with their lines, or one error that names line and hint"""
    name, text = _NAMES[data[0] % 3 if data else 0], text_of(data[1:])
    try:
        found = parse_policy(text, file=name, name=name, layer=Layer.USER, folder="/conf")
    except ConfigError as error:
        assert error.hint  # noqa: PT017
        assert error.message.replace("\n", "").isprintable()  # noqa: PT017
        assert all(line.startswith(f"{name}:") for line in error.message.splitlines())  # noqa: PT017
        return
    lines = text.count("\n") + 1
    assert all(1 <= rule.source.line <= lines and rule.text.isprintable() for rule in found.rules)


_CONFIG_TOKENS = (
    b'profile = "paranoid"\n', b"[limits]\n", b"[egress]\n", b"[audit]\n", b"[guard]\n", b"[server]\n", b"[vault]\n", b"[packages]\n", b"[alerts]\n",
    b"memory = ", b'"1g"', b"timeout_s = ", b"allow = [", b"[[", b"]]", b"= true\n", b"= -1\n", b"'''", b'"""', b"a.b.c = 1\n", b"{", b"}", b"inf", b"nan",
)  # fmt: skip


@target("config", tokens=_CONFIG_TOKENS)
def configuration(data: bytes) -> None:
    """Configuration files: settings, or one error that names the line and has a hint"""
    text = text_of(data)
    if find_deep_line(text, most=16) is None:
        last = text.count("\n") + 1
        assert all(1 <= line <= last for line in index_lines(text).values())
    with tempfile.NamedTemporaryFile(suffix=".toml") as file:
        file.write(data)
        file.flush()
        os.chmod(file.name, 0o600)
        try:
            settings = load_settings(file=file.name, environ={"HOME": "/nonexistent"})
        except ConfigError as error:
            assert error.hint  # noqa: PT017
            assert error.message.replace("\n", "").isprintable()  # noqa: PT017
            return
    assert settings.profile
