"""Documents, hints and examples name only commands and options that the program has.

Each command line is read by the parser of the real command tree, and nothing is run.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import click
import pytest

from cellwall.interfaces import is_hook
from cellwall.interfaces.cli.commands import COMMANDS, cli

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
# What agents type, judged by policy, is quoted there: `run`, `code` and `exec` mean other programs.
_ABOUT_OTHER_PROGRAMS = {ROOT / "docs/guides/policy.md"}
_HOOK_OPTIONS = {"--agent", "--config", "--profile", "--policy", "--dangerously-outside", "--after"}
_DEV_TEST_OPTIONS = {"--fast", "--long", "--providers", "--report", "--types", "--vm"}
_DEV_SOURCES = {
    "bench": ("bench/run.py",),
    "docs": ("docs/site/build.py",),
    "fuzz": ("tests/fuzz/run.py", "tests/fuzz/campaigns.py"),
    "release": ("release/build.py",),
}
"""Where a command of `./dev` has its options and names."""

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`([^`\n]+)`")
_PROGRAM = re.compile(r"(?:^|(?<=[\s(|;&=]))(?:\S*/)?(?P<name>cellwall|\./dev)(?= )")
# In a string of ours: between backticks, as an example on a line of its own, or behind a colon.
_IN_STRINGS = re.compile(
    r"`((?:cellwall|\./dev) [^`]+)`|^[ \t]+(?:[^`\n]*\| )?(?:\w+=\$\()?(cellwall [a-z-](?:\\\n|[^\n])*)"
    r"|(?:: |[Uu]se )((?:cellwall|\./dev) [a-z-][^\n`;]*)",
    re.MULTILINE,
)
_MAYBE = re.compile(r"(?:cellwall|\./dev) (?!import )[a-z-]")
_PLACEHOLDER = re.compile(r"(?<=\s)(?:…|\.\.\.)(?=\s|$)|[\[\]]")
_WORDS_OF_A_PERSON = re.compile(r"[A-Z][A-Z_]*|X")


# From a text to the words of a command


def commands_in_shell(text: str) -> Iterator[list[str]]:
    """Each call of `cellwall` or `./dev` in lines of a shell."""
    lines = iter(text.replace("\\\n", " ").splitlines())
    for first in lines:
        line = first.removeprefix("$ ")
        words = _split(line)
        for more in lines if words is None else ():  # a quoted text goes on in the next line
            line = f"{line}\n{more}"
            words = _split(line)
            if words is not None:
                break
        if words is None and _PROGRAM.search(line):
            yield ["cellwall", f"quotes without an end: {line}"]
        yield from _calls(words or [])


def _split(line: str) -> list[str] | None:
    lexer = shlex.shlex(line, posix=True, punctuation_chars="();<>|&")
    lexer.whitespace_split = True
    try:
        return list(lexer)
    except ValueError:
        return None


def _calls(words: list[str]) -> Iterator[list[str]]:
    """The words are cut at the shell's operators; a comment is cut by the lexer."""
    call: list[str] | None = None
    for word in [*words, ";"]:
        if set(word) <= set("();<>|&"):
            if call is not None:
                yield call
            call = None
        elif call is not None:
            call.append(word)
        elif word == "./dev" or word.rpartition("/")[2] == "cellwall":
            call = ["./dev" if word == "./dev" else "cellwall"]


def commands_in_words(text: str) -> Iterator[list[str]]:
    """Of a command in a sentence: placeholders stand in it, and `a|b` means either."""
    found = _PLACEHOLDER.sub(" ", text).strip().removesuffix(".")
    either = [
        re.split(r"\|(?=\w)", word) if "'" not in word else [word] for word in found.split(" ")
    ]
    if any(len(each) > 1 for each in either) and " | " not in found:
        for chosen in product(*either):
            yield from commands_in_shell(" ".join(chosen))
        return
    yield from commands_in_shell(found)


def commands_in_markdown(text: str, *, has_short_forms: bool) -> Iterator[list[str]]:
    for language, block in _FENCE.findall(text):
        if language in {"sh", "bash", "console"}:
            yield from commands_in_shell(block)
    for inline in _INLINE.findall(_FENCE.sub("", text)):
        if _PROGRAM.match(inline):
            yield from commands_in_words(inline)
        elif has_short_forms and inline.split()[0] in COMMANDS and " --" in inline:
            yield from commands_in_words(f"cellwall {inline}")


def commands_in_source(text: str) -> Iterator[list[str]]:
    if _MAYBE.search(text) is None:
        return
    tree = ast.parse(text)
    formatted = (node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr))
    parts = {id(part) for node in formatted for part in node.values}
    for node in ast.walk(tree):
        if id(node) in parts:
            continue  # read as a part of the whole text
        for literal in _literals(node):
            for found in _IN_STRINGS.findall(literal):
                yield from commands_in_words(next(filter(None, found)))


def _literals(node: ast.AST) -> Iterable[str]:
    if isinstance(node, ast.JoinedStr):
        yield "".join(
            str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values
        )
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value


# What the program has


def problem(words: list[str]) -> str | None:
    """Why this is no command line of ours; None if it is one."""
    program, *rest = words
    if program == "./dev":
        return _dev_problem(rest)
    if is_hook(rest):
        unknown = [each for each in rest if each.startswith("--") and each not in _HOOK_OPTIONS]
        return f"the hook has no {unknown[0]}" if unknown else None
    return _click_problem(cli, rest, None)


def _click_problem(
    command: click.Command, words: list[str], parent: click.Context | None
) -> str | None:
    context = click.Context(command, parent=parent, **command.context_settings)
    try:
        values, rest, _ = command.make_parser(context).parse_args(list(words))
    except click.UsageError as error:
        return error.format_message()
    for each in command.params:
        if wrong := _value_problem(each, values.get(each.name or "")):
            return wrong
    if not isinstance(command, click.Group):
        return f"too many words: {rest}" if rest else None
    if not rest or _WORDS_OF_A_PERSON.fullmatch(rest[0]):
        return None
    found = command.get_command(context, rest[0])
    if found is None:
        return f"there is no command {rest[0]}"
    return _click_problem(found, rest[1:], context)


def _value_problem(parameter: click.Parameter, value: Any) -> str | None:
    is_free = not isinstance(value, str) or _WORDS_OF_A_PERSON.fullmatch(value)
    if is_free or not isinstance(parameter.type, click.Choice) or parameter.multiple:
        return None
    chosen = [parameter.type.normalize_choice(each, None) for each in parameter.type.choices]
    return None if value in chosen else f"{value} is none of {chosen}"


def _dev_problem(words: list[str]) -> str | None:
    script = (ROOT / "dev").read_text("utf-8")
    known = re.findall(r"^  ([a-z]+)\)", script.partition("case $command in")[2], re.MULTILINE)
    command, *rest = [*words, ""]
    options = [each for each in rest if each.startswith("--")]
    names = [each for each in rest if each and not each.startswith("--")]
    if command not in known:
        return f"./dev has no {command}"
    if command == "run" and names:
        return _click_problem(cli, ["run", *rest[:-1]], None)
    if command == "test" and not set(options) <= _DEV_TEST_OPTIONS:
        return f"./dev test has no {options}"
    sources = _DEV_SOURCES.get(command)
    if sources is None:
        return None
    text = "".join((ROOT / source).read_text("utf-8") for source in sources)
    unknown = [each for each in options if f'"{each}"' not in text]
    name = names[0] if names else "NAME"
    is_target = command == "fuzz" and (ROOT / f"tests/fuzz/corpora/{name}.txt").exists()
    is_known = is_target or _WORDS_OF_A_PERSON.fullmatch(name) or f'"{name}"' in text
    return None if is_known and not unknown else f"./dev {command} has no {name} {unknown}"


# All that we tell


def told() -> Iterator[tuple[str, list[str]]]:
    for path in DOCUMENTS:
        name, text = str(path.relative_to(ROOT)), path.read_text("utf-8")
        found = commands_in_markdown(text, has_short_forms=path not in _ABOUT_OTHER_PROGRAMS)
        yield from ((name, words) for words in found)
    newest = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text("utf-8"), flags=re.MULTILINE)[1]
    found = commands_in_markdown(newest, has_short_forms=False)  # it tells what is gone, too
    yield from (("CHANGELOG.md", words) for words in found)
    for path in sorted((ROOT / "src").rglob("*.py")):
        name = str(path.relative_to(ROOT))
        found = commands_in_source(path.read_text("utf-8"))
        yield from ((name, words) for words in found)


def test_every_command_line_that_is_told_exists():
    found = list(told())
    wrong = [
        f"{name}: {shlex.join(words)}: {why}" for name, words in found if (why := problem(words))
    ]
    assert wrong == [], "\n".join(wrong)
    # The control: the search sees what is there.
    assert len({tuple(words) for _, words in found}) > 150
    named = {words[1] for _, words in found if words[0] == "cellwall" and len(words) > 1}
    assert named >= COMMANDS.keys() - {"completion"}


@pytest.mark.parametrize(
    "text",
    [
        *("`cellwall policy blast-area`", "`cellwall audit search --principal ann`"),
        *("```sh\necho x | cellwall rnu -- ls\n```", "`cellwall vault init|sett`"),
        *("```sh\ncellwall code \\\n  --no-such -c '1'\n```", "`cellwall diff A B`"),
        *("`cellwall hook install --agent clippy --nope`", "`cellwall hook --nope`"),
        *("`./dev tset`", "`./dev test --quick`", "`./dev bench speed`", "`./dev fuzz everything`"),
        *("`run --no-such-option`", "`cellwall mcp install --client emacs`"),
        *("```console\n$ cellwall run --timeout\n```", "`cellwall run -w . -- ls`"),
    ],
)
def test_a_command_line_that_does_not_exist_is_found_in_a_document(text):
    found = list(commands_in_markdown(text, has_short_forms=True))
    assert found
    assert any(problem(words) for words in found)


@pytest.mark.parametrize(
    "source",
    [
        'hint = "Look: `cellwall policy shwo`."',
        'hint = f"see: cellwall aproval {name} --yes"',
        'epilog = """\nExamples:\n  echo x | cellwall redact --no-such\n"""',
        'hint = "Use cellwall runs -- CMD."',
    ],
)
def test_a_command_line_that_does_not_exist_is_found_in_a_string(source):
    found = list(commands_in_source(source))
    assert any(problem(words) for words in found)
