"""Code inside a text: among the arguments, on standard input, or in a file that the text itself
writes and then runs. Only this module judges such code. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cellwall.parsing.shell.outputs import printed_text
from cellwall.parsing.shell.words import UNKNOWN, Command, Word
from cellwall.policy.code.sieve import Starts, screen
from cellwall.policy.code.starts import starts_in
from cellwall.policy.command_addresses import code_trouble
from cellwall.policy.command_files import CommandFiles
from cellwall.policy.commands.catalog import grammar
from cellwall.policy.commands.effects import STDIN, Code, CommandEffects, Inner, ShellScript
from cellwall.policy.commands.unmodelled import is_typed_command
from cellwall.policy.unguarded import code_guard_trouble
from cellwall.policy.written_files import Content

SHELLS = frozenset(("sh", "bash", "dash", "zsh", "ksh"))
_REOPENED = {"sed": ("sed", "-e"), "awk": ("awk",)}
OPENED = SHELLS | _REOPENED.keys()
"""Languages whose code is parsed; code of others is searched for the commands it starts."""
UNKNOWN_TEXT = (
    "the shell script is known only at run time; write the commands themselves, and pass "
    "values as arguments: `sh -c 'cmd \"$1\"' _ VALUE`, where VALUE may be {} of find or xargs"
)
NOT_WRITTEN_OUT = (
    "the code on standard input is not known; write the code into the "
    "command, as `-c`, `<<'EOF'` or `echo '…' |`, or into a file that you name"
)
_WRITTEN = "a script that this text writes"
_IN_A_FILE = "code in a file of this text"
_EXTENSIONS = {
    **dict.fromkeys(("py", "pyw", "pth"), "python"),
    **dict.fromkeys(("js", "cjs", "mjs", "ts", "mts", "cts", "jsx", "tsx"), "node"),
    **dict.fromkeys(("rb", "rake", "gemspec"), "ruby"),
    **dict.fromkeys(("pl", "pm", "t"), "perl"),
    "php": "php",
    "lua": "lua",
}
_FINDERS = {
    "python": frozenset(
        {
            *("python", "pypy", "ipython", "pytest", "py.test", "tox", "nox", "pip", "pipx", "uv"),
            *("uvx", "poetry", "pdm", "hatch", "rye", "pipenv", "coverage", "flask", "gunicorn"),
            *("uvicorn", "celery", "django-admin", "jupyter", "make", "./manage.py", "manage.py"),
        }
    ),
    "node": frozenset(
        {
            *("node", "nodejs", "npm", "npx", "yarn", "pnpm", "bun", "bunx", "deno", "tsx"),
            *("ts-node", "jest", "vitest", "mocha", "ava", "vite", "webpack", "eslint", "next"),
        }
    ),
    "ruby": frozenset(("ruby", "irb", "rake", "bundle", "rspec", "rails", "gem")),
    "perl": frozenset(("perl", "prove")),
    "php": frozenset(("php", "phpunit", "composer", "artisan")),
    "lua": frozenset(("lua", "luajit", "busted", "nvim")),
}
"""Programs that find and run code of the language by themselves."""
_COMPILED = frozenset(
    ("c", "cc", "cpp", "cxx", "h", "hpp", "rs", "java", "kt", "zig", "swift", "nim")
)


def codes_of(
    files: CommandFiles, command: Command, effects: CommandEffects
) -> Iterator[tuple[Code, bool]]:
    """Code that the text spells. True: a rule can spell the code, so that the code is judged as a
    whole; False: the code is in a file that the text itself writes."""
    for code in effects.codes:
        yield code, code.language not in OPENED
    if effects.reads_stdin_as not in OPENED:
        for code in code_on_stdin(command, effects):
            yield code, True
    for language, text in ran_files(files, command, effects):
        if language not in OPENED and isinstance(text, str):
            yield Code(language, Word(text), STDIN, _IN_A_FILE), False
    for language, text in imported_files(files, command):
        yield Code(language, Word(text), STDIN, _IN_A_FILE), False


def ran_files(
    files: CommandFiles, command: Command, effects: CommandEffects
) -> Iterator[tuple[str, str | Content]]:
    """Files of code that the text itself writes, and then runs."""
    runs = list(effects.runs)
    if effects.reads_stdin_as is not None and command.stdin == "file":
        reads = [file.path for file in command.files if file.access == "read"]
        runs += [(effects.reads_stdin_as, path) for path in reads[-1:]]
    program = command.words[0]
    own = files.written.find(program, command) if "/" in program.text else None
    if own is not None:
        runs.append((_language_of(own), program))
    for language, path in runs:
        content = files.written.find(path, command)
        if content is not None:
            yield language, content


def imported_files(files: CommandFiles, command: Command) -> Iterator[tuple[str, str]]:
    """Code that the text writes under a name that an interpreter, or a program that starts one,
    may load: a module, a test configuration, a package script."""
    program = command.program.rstrip("0123456789.")
    for path, content in files.written.contents.items():
        language = _EXTENSIONS.get(path.rpartition(".")[2], "")
        if isinstance(content, str) and program in _FINDERS.get(language, ()):
            yield language, content


def _language_of(content: str | Content) -> str:
    """The language of a file that is started by its name, from its first line."""
    first = content.partition("\n")[0] if isinstance(content, str) else ""
    known = ("python", "perl", "ruby", "node", "php", "lua")
    return next((name for name in known if first.startswith("#!") and name in first), "sh")


def find_started_commands(
    files: CommandFiles, command: Command, effects: CommandEffects
) -> Iterator[ShellScript | Inner]:
    """The scripts and commands that a command starts: by its arguments, from standard input, from
    a file of the text."""
    yield from effects.scripts
    yield from effects.inner
    texts = [(language, text, _WRITTEN) for language, text in ran_files(files, command, effects)]
    if effects.reads_stdin_as is not None and command.stdin_text is not None:
        texts.append((effects.reads_stdin_as, command.stdin_text.text, "its standard input"))
    for language, text, why in texts:
        if language in SHELLS and isinstance(text, str):
            yield ShellScript(Word(text), why)
        elif language in _REOPENED and isinstance(text, str):
            # A sed or awk program is judged as an argument.
            yield Inner((*map(Word, _REOPENED[language]), Word(text)), why)


def demands_of_files(
    files: CommandFiles, command: Command, effects: CommandEffects
) -> Iterator[tuple[str, str]]:
    """Demands of files that the text itself writes and then runs."""
    for language, text in ran_files(files, command, effects):
        if isinstance(text, Content):
            is_foreign = text is Content.FOREIGN or files.written.has_foreign
            option = "" if is_foreign else STDIN
            yield option, f"the text writes the file that it then runs, and {text.value}"
        elif language not in OPENED and (why := starts_in(language, text).unknown):
            yield STDIN, f"the text writes the code that it then runs: {why}"
        if language not in SHELLS and isinstance(text, str):
            yield from files.find_named(Code(language, Word(text), "", "the code is run"))
    name = command.program
    manifests = grammar().manifests.get(name)
    if manifests and (path := files.written.find_name(manifests)):
        is_foreign = files.written.contents[path] is Content.FOREIGN
        option = "" if is_foreign else STDIN
        yield option, f"the text writes {path}, which decides what {name} runs"


def runs_unknown(files: CommandFiles, command: Command, effects: CommandEffects) -> str:
    """Why a person is asked even where a rule allows everything; empty: no question."""
    for _, text in ran_files(files, command, effects):
        if text is Content.UNKNOWN:
            return f"the text writes the file that it then runs, and {text.value}"
    name = command.program
    manifests = grammar().manifests.get(name)
    if manifests and (path := files.written.find_name(manifests)):
        return f"the text writes {path}, which decides what {name} runs"
    for path, content in files.written.contents.items():
        is_compiled = path.rpartition(".")[2] in _COMPILED and isinstance(content, str)
        if is_compiled and starts_in("", str(content)).unknown and "/" in command.words[0].text:
            return f"the text writes {path}, which may start commands, and runs a program"
    return ""


def has_typed_commands(files: CommandFiles, command: Command) -> bool:
    """A here-document for an interactive program always counts as commands; of a pipe only output
    that the text spells is known."""
    if command.stdin != "pipe":
        return command.stdin_text is not None
    feeding = [each for each in files.commands if each.is_feeding]
    return any(is_typed_command(printed_text(each) or "") for each in feeding)


def with_piped_code(command: Command, effects: CommandEffects) -> Command:
    """`echo CODE | python3` is judged as a here-document."""
    if effects.reads_stdin_as is None or command.piped is None:
        return command
    return replace(command, stdin="text", stdin_text=command.piped)


def code_on_stdin(command: Command, effects: CommandEffects) -> Iterator[Code]:
    """The text on standard input, where the command runs it."""
    if effects.reads_stdin_as is not None and command.stdin_text is not None:
        option = "-" if Word("-") in command.words else STDIN
        yield Code(effects.reads_stdin_as, command.stdin_text, option, "code on its standard input")


def code_troubles(files: CommandFiles, code: Code, starts: Starts) -> Iterator[tuple[str, str]]:
    """Denied addresses, files and uses of Cellwall in code, each with the rule; file names that
    the code joins of known texts included."""
    text = code.text.text if code.text is not None else ""
    made = "\n".join(map(repr, starts.texts))
    for _, trouble in files.find_named(Code(code.language, Word(made), "", code.why)):
        yield "arguments", trouble
    for each in (text, made):
        if (reached := code_trouble(code.language, each)) is not None:
            yield "addresses", reached
    if (unguarded := code_guard_trouble(code.language, text, made)) is not None:
        yield "unguarded", unguarded


def is_code_unknown(code: Code) -> bool:
    """One unknown character can end a string or a comment of the code, so that any code follows:
    no rule can allow such code, as no rule can allow `sh -c "$x"`."""
    is_known = code.text is not None and UNKNOWN not in code.text.text and not code.text.has_glob
    return not is_known and code.language not in OPENED


def screen_code(code: Code) -> str | None:
    """Why the code is not harmless; None if it is."""
    if code.text is None or UNKNOWN in code.text.text or is_code_unknown(code):
        return f"{code.why}: the code is known only at run time"
    found = screen(code.language, code.text.text)
    return None if found is None else f"{code.why}: {found}"


def spell_out(option: str) -> str:
    """How a person can allow a command that needs a rule of its own."""
    if option == STDIN:
        return "write the code to a file of the project and run that, or ask for a rule for it"
    return f"only a rule that spells out {option!r} allows it"
