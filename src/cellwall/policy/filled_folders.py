"""Files whose names stand nowhere in a text. Pure.

An archive, a patch, a commit or another folder decides which names are put into a folder. A
relative symbolic link starts at its own folder, and not at the working directory.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from urllib.parse import unquote

from cellwall.parsing.shell.words import UNKNOWN, Command, File, Word
from cellwall.policy.commands.catalog import grammar
from cellwall.policy.commands.effects import CommandEffects
from cellwall.policy.commands.models import effects_of
from cellwall.policy.paths import brace_alternatives

_FOLDER_LAST = frozenset(("pax", "dpkg", "dpkg-deb"))
_MERGING = frozenset(("cp", "gcp", "rsync", "scp", "ditto"))
_RECURSIVE = frozenset(("-r", "-R", "-a", "--recursive", "--archive"))
_ONTO = frozenset(("-T", "--no-target-directory"))
_ANY: frozenset[str] = frozenset()
_UNPACKING = {
    "unzip": (_ANY, frozenset(("-l", "-t", "-v", "-Z", "-p", "-z"))),
    "unrar": (frozenset("xe"), _ANY),
    "7z": (frozenset("xe"), _ANY),
    "cpio": (frozenset(("-i", "-p", "--extract")), frozenset(("-t", "--list"))),
    "pax": (frozenset(("-r",)), _ANY),
    "dpkg": (frozenset(("-x", "-X", "--extract", "--vextract")), _ANY),
    "dpkg-deb": (frozenset(("-x", "-X", "-R", "--extract", "--vextract", "--raw-extract")), _ANY),
    "patch": (_ANY, frozenset(("--dry-run",))),
}
"""By program: with one of the first words it writes, with one of the second it does not."""
_RELATIVE = frozenset(("--no-absolute-filenames", "-t", "--list", "-o", "-p"))
_ANYWHERE = {
    "tar": (frozenset(("-P", "--absolute-names")), frozenset(("-c", "--create", "-t", "--list"))),
    "cpio": (frozenset(("-i", "--extract")), _RELATIVE),
}
"""By program: with one of the first words it takes absolute names, with the second not."""
_NAMED_BY_SERVER = {
    "curl": frozenset(("-J", "--remote-header-name")),
    "wget": frozenset(
        (
            *("-r", "-m", "-p", "-x", "-i", "--recursive", "--mirror", "--page-requisites"),
            *("--force-directories", "--content-disposition", "--trust-server-names"),
        )
    ),
}
_CHECKING_OUT = frozenset(
    (
        *("apply", "am", "checkout", "checkout-index", "cherry-pick", "merge", "pull", "read-tree"),
        *("rebase", "reset", "restore", "revert", "stash", "switch"),
    )
)
_CLONING = frozenset(("clone", "worktree", "submodule"))
_PLACES = ("--work-tree", "--prefix", "--directory")
_LINKING = frozenset(("ln", "gln", "cp", "gcp"))
_SYMBOLIC = frozenset(("-s", "--symbolic", "--symbolic-link"))
_MOVING = frozenset(("cp", "gcp", "mv", "gmv", "install", "rsync", "scp"))


def filled_folders(command: Command, effects: CommandEffects) -> Iterator[str]:
    """Folders that get names which the text does not spell; `.` is the working directory."""
    name, texts = command.program, command.arguments
    flags = {flag for text in texts for flag in flags_of(text)}
    if name == "tar" and texts:  # `tar xPf`
        flags.update(flags_of(f"-{texts[0].lstrip('-')}") if "/" not in texts[0] else ())
    written = [file.path.text for file in effects.files if file.access == "write"]
    if name == "git":
        yield from _filled_by_git(texts)
        if not _CLONING.isdisjoint(texts):
            yield from written
    elif name in _ANYWHERE and flags & _ANYWHERE[name][0] and not flags & _ANYWHERE[name][1]:
        yield "/"  # an archive may hold absolute names
    elif name in _MERGING:
        sources = [file.path.text for file in effects.files if file.access == "read"]
        is_merged = bool(flags & _ONTO) or any(map(_is_content, sources))
        if is_merged and not flags.isdisjoint(_RECURSIVE):
            yield from written
    elif name in _UNPACKING:
        needed, looking = _UNPACKING[name]
        if (not needed or needed & flags) and not looking & flags:
            named = [after for before, after in pairwise(texts) if before in {"-d", "--directory"}]
            yield from named or (texts[-1:] if name in _FOLDER_LAST else (".",))
    elif name in grammar().unpacking:
        yield from written
    elif not _NAMED_BY_SERVER.get(name, _ANY).isdisjoint(flags):
        yield from written or (".",)


def _filled_by_git(texts: Sequence[str]) -> Iterator[str]:
    if _CHECKING_OUT.isdisjoint(texts):
        return
    folders = [after for before, after in pairwise(texts) if before == "-C"]
    folder = posixpath.join(".", *folders)
    yield folder if folders else "."
    for text, after in pairwise([*texts, ""]):
        option, equals, value = text.partition("=")
        if option in _PLACES:
            yield posixpath.join(folder, value if equals else after)


def _is_content(source: str) -> bool:
    """Whether the contents of a folder are copied, and not the folder."""
    return source.endswith(("/", "/.", "/..")) or source in {".", ".."}


def links_seen(
    command: Command, effects: CommandEffects, others: Sequence[Command]
) -> Iterator[File]:
    """The targets of relative symbolic links, from the folder that a command puts the links into:
    links that the command makes, and links of the text that the command moves or copies."""
    made = _links_made(command)
    if not made and command.program in _MOVING:
        made = [text for each in others for text in _links_made(each)]
    for target in [file.path.text for file in effects.files if file.access == "write"]:
        for text in dict.fromkeys(made):
            for folder in (target, posixpath.dirname(target)):
                yield File("read", Word(posixpath.join(folder, text)), "a link leads there")


def _links_made(command: Command) -> list[str]:
    if command.program not in _LINKING:
        return []
    flags = {flag for word in command.words for flag in flags_of(word.text)}
    if flags.isdisjoint(_SYMBOLIC):
        return []
    reads = [file.path.text for file in effects_of(command.words).files if file.access == "read"]
    return [text for text in reads if not text.startswith("/")]


def flags_of(text: str) -> tuple[str, ...]:
    """`-rf` is `-r` and `-f`; any other word is itself."""
    is_cluster = text.startswith("-") and not text.startswith("--")
    return tuple(f"-{letter}" for letter in text[1:]) if is_cluster else (text,)


# Files that an address names: `file:` URLs, forms of curl, and where a download is put.
#
# curl takes `%2e` for a dot, makes several URLs of `{a,b}` and `[1-3]`, and puts parts of them
# into the name of its output (`#1`). Without a name for the output, curl uses the last name of the
# address.

_find_file_url = re.compile(r"(?i)\b(?:file|man|info):(?://[\w.-]*)?(?P<path>/.*)").search
_find_all_braces = re.compile(r"\{([^{}]*)\}").findall
_PART = re.compile(r"#[0-9]+")
_MAX_ALTERNATIVES = 64
_FORMS = frozenset(("-F", "--form"))
_NAMED_BY_ADDRESS = frozenset(("-O", "--remote-name", "--remote-name-all", "-J"))
_WGETS = frozenset(("wget", "wget2", "aria2c", "axel"))
_FOLDERS = frozenset(("--output-dir", "-P", "--directory-prefix", "-d", "--dir"))
_OUTPUTS = frozenset(("-O", "--output-document", "-o", "--out", "--output"))


def fetched_files(command: Command, effects: CommandEffects) -> Iterator[File]:
    """Files of addresses, which the models of the programs do not cover."""
    texts = command.arguments
    for text in texts:
        found = _find_file_url(text)
        if found is not None and UNKNOWN not in text:
            for path in dict.fromkeys([found["path"], *_spellings(found["path"])]):
                is_wild = "[" in path and path != found["path"]
                yield File("read", Word(path, has_glob=is_wild), "a file of this machine is read")
    name = command.program
    if name == "curl":
        yield from _of_forms(texts)
        parts = [
            each for text in texts for found in _find_all_braces(text) for each in found.split(",")
        ]
        for file in effects.files:
            for path in _expand_parts(file.path.text, parts) if file.access == "write" else ():
                yield File("write", Word(path), "a part of the address is put into the name")
    flags = {flag for text in texts for flag in flags_of(text)}
    is_named = name == "curl" and not flags.isdisjoint(_NAMED_BY_ADDRESS)
    if is_named or (name in _WGETS and flags.isdisjoint(_OUTPUTS)):
        yield from _named_by_address(texts)


def _spellings(path: str) -> list[str]:
    """What curl makes of the path of a `file:` URL; a range in brackets stays one."""
    found = brace_alternatives(unquote(path))
    return ["/"] if found is None else [re.sub(r"\[[^]]*\]", "[*]", each) for each in found]


def _expand_parts(path: str, parts: Sequence[str]) -> Iterator[str]:
    """The names that `#1` makes of the alternatives in an address."""
    pieces = _PART.split(path)
    count = len(pieces) - 1
    if count and len(parts) ** count > _MAX_ALTERNATIVES:
        yield "/"  # no name that could be judged
        return
    for chosen in product(parts, repeat=count) if count else ():
        yield pieces[0] + "".join(map("".join, zip(chosen, pieces[1:], strict=True)))


def _of_forms(texts: Sequence[str]) -> Iterator[File]:
    """`-F 'x=@a,b;headers=@c'` sends a, b and c."""
    for before, text in pairwise(["", *texts]):
        value = text if before in _FORMS else ""
        for option in _FORMS:
            value = value or text.removeprefix(option) if text.startswith(option) else value
        content = value.partition("=")[2]
        if content.startswith(("@", "<")):
            for part in re.split("[,;]", content):
                path = re.sub("^[^=@<]*=", "", part.strip()).lstrip("@<").strip("\"'")
                if path and UNKNOWN not in path:
                    yield File("read", Word(path), "it is sent")


def _named_by_address(texts: Sequence[str]) -> Iterator[File]:
    folder = next((after for before, after in pairwise(texts) if before in _FOLDERS), ".")
    for text in texts:
        option, equals, value = text.partition("=")
        if equals and option in _FOLDERS:
            folder = value
    for text in texts:
        if "://" in text:
            path = re.split("[?#]", text.partition("://")[2])[0].partition("/")[2]
            last = unquote(posixpath.basename(path))
            if last and UNKNOWN not in last and "/" not in last:
                where = Word(posixpath.join(folder, last))
                yield File("write", where, "it is named after the address")
