"""Files that a shell text writes itself, with what is known of their content. Pure.

A file that the text writes and then runs is inline code: `echo CODE > x.py; python3 x.py`. Content
from the network or from a decoder is never known, whatever copies, pipes and folders it passes.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from fnmatch import fnmatchcase
from typing import Final

from cellwall.parsing.shell.outputs import printed_text
from cellwall.parsing.shell.words import UNKNOWN, Command, File, Word
from cellwall.policy.commands.effects import CommandEffects
from cellwall.policy.commands.models import effects_of
from cellwall.policy.paths import normalise

_FETCHERS = frozenset(
    [
        *("curl", "wget", "aria2c", "http", "https", "lwp-download", "fetch", "scp", "sftp"),
        *("rsync", "nc", "ncat"),
    ]
)
_DECODERS = frozenset(
    [
        *("base64", "base32", "basenc", "xxd", "openssl", "gpg", "uudecode", "gunzip", "zcat"),
        *("gzip", "xz"),
    ]
)
_FOREIGN = _FETCHERS | _DECODERS
"""Programs whose output has content that the text does not spell."""
_COPIERS = frozenset(("cp", "gcp", "mv", "gmv", "ln", "link", "install"))
_UNPACKERS = frozenset(("tar", "bsdtar", "unzip", "7z", "cpio", "bsdcpio", "pax", "unar"))
_KEEPING = frozenset(
    [
        *("chmod", "chown", "chgrp", "chattr", "setfacl", "setfattr", "chcon", "touch", "mkdir"),
        *("rm", "rmdir", "unlink", "test", "[", "git"),
    ]
)
"""Programs that write no content into the files they name; git writes committed content."""
_BUILDERS = frozenset(
    [
        *("cc", "gcc", "g++", "c++", "clang", "clang++", "rustc", "go", "javac", "tsc", "ld"),
        *("as", "make", "cmake", "ninja", "cargo", "zig", "nasm", "ghc", "ocamlc", "swiftc"),
        "esbuild",
    ]
)
"""Programs that build outputs of files; unknown only where the text wrote an input."""
_OF_INPUTS = _COPIERS | _UNPACKERS | _BUILDERS


class Content(Enum):
    """Why the content of a file is not known."""

    UNKNOWN = "it is put together while the text runs"
    FOREIGN = "it comes from the network, or out of a decoder"


@dataclass(slots=True)
class WrittenFiles:
    """The files that a text has written so far, by path."""

    contents: dict[str, str | Content] = field(default_factory=dict)
    has_foreign: bool = False
    """Some command of the text fetches or decodes: what is unknown may be from there."""
    flow: list[str | Content] = field(default_factory=list)
    """What the commands of the pipe so far print."""

    def note(self, command: Command) -> None:
        """What one command writes: by redirections, by its arguments, or from the network."""
        name = command.program
        self.has_foreign = self.has_foreign or name in _FOREIGN
        effects = effects_of(command.words) if command.words else CommandEffects()
        reads = [file.path for file in (*effects.files, *command.files) if file.access == "read"]
        inputs = [found for path in reads if (found := self.find(path, command)) is not None]
        if command.stdin == "pipe":
            inputs += self.flow
        text = self._content_printed(name, command, inputs)
        self._follow(command, text)
        for file in command.files:
            if file.access == "write":
                self._write(file, command, text)
        for file in _written_by(name, command, effects):
            self._note_argument(file, name, command, reads, inputs, text)

    def _content_printed(
        self, name: str, command: Command, inputs: Sequence[str | Content]
    ) -> str | Content:
        known = printed_text(command)
        if known is not None:
            return known
        if name in _FOREIGN or Content.FOREIGN in inputs:
            return Content.FOREIGN
        if name in {"cat", "tee"} and len(inputs) == 1 and len(command.words) <= 2:
            return inputs[0]
        return Content.UNKNOWN

    def _follow(self, command: Command, text: str | Content) -> None:
        if command.stdin != "pipe":
            self.flow = []
        if command.is_feeding:
            self.flow.append(text)

    def _note_argument(
        self,
        file: File,
        name: str,
        command: Command,
        reads: Sequence[Word],
        inputs: Sequence[str | Content],
        text: str | Content,
    ) -> None:
        """A file among the arguments."""
        if name not in _OF_INPUTS:
            self._write(file, command, text if name in _PRINTERS else _unknown(text))
            return
        if not inputs:
            return  # made of files that existed before
        is_copied = name in _COPIERS and len(inputs) == 1
        content = inputs[0] if is_copied else max(map(_unknown, inputs), key=_weight)
        self._write(file, command, content)
        for source in reads if name in _COPIERS else ():
            inside = posixpath.join(file.path.text, posixpath.basename(source.text))
            found = self.find(source, command)
            if found is not None:
                self._write(File("write", Word(inside), file.why), command, found)

    def _write(self, file: File, command: Command, text: str | Content) -> None:
        for path in _places(file.path, command):
            self._put(path, text, is_added=file.why.endswith(">>"))

    def _put(self, path: str, text: str | Content, *, is_added: bool) -> None:
        before = self.contents.get(path)
        if before is None or before == text:
            self.contents[path] = (
                text if not (is_added and before) else _join_contents(before, text)
            )
        elif is_added:
            self.contents[path] = _join_contents(before, text)
        else:
            # Conditions and order decide which content the file has when it runs.
            self.contents[path] = max(_unknown(before), _unknown(text), key=_weight)

    def find(self, word: Word, command: Command) -> str | Content | None:
        """The content that the text wrote into a file; None if it wrote none."""
        for path in _places(word, command):
            if path in self.contents:
                return self.contents[path]
            if self._lies_in_foreign(path):
                return Content.FOREIGN
            if word.has_glob or UNKNOWN in path:
                glob = path.replace(UNKNOWN, "*")
                fits = [each for each in self.contents if fnmatchcase(each, glob)]
                if fits:
                    found = [self.contents[each] for each in fits]
                    return found[0] if len(found) == 1 else max(map(_unknown, found), key=_weight)
        return None

    def _lies_in_foreign(self, path: str) -> bool:
        """`wget -P DIR`, `tar -C DIR`: in a folder that foreign content was put into."""
        above = posixpath.dirname(path)
        while above not in {"/", ""}:
            if self.contents.get(above) is Content.FOREIGN:
                return True
            above = posixpath.dirname(above)
        return False

    def find_name(self, names: frozenset[str]) -> str:
        """The first file of one of these names that the text writes; empty if there is none."""
        return next((path for path in self.contents if posixpath.basename(path) in names), "")


_PRINTERS = _FETCHERS | {"tee", "sponge"}
"""Programs whose output is also the content of the files they name."""


def _weight(content: str | Content) -> int:
    return 2 if content is Content.FOREIGN else 1 if content is Content.UNKNOWN else 0


def _join_contents(before: str | Content, text: str | Content) -> str | Content:
    if isinstance(before, str) and isinstance(text, str):
        return before + text
    return max(_unknown(before), _unknown(text), key=_weight)


def _unknown(text: str | Content) -> Content:
    return text if isinstance(text, Content) else Content.UNKNOWN


def _places(word: Word, command: Command) -> Iterator[str]:
    for directory in command.directories:
        yield normalise(posixpath.join(directory, word.text))


def _written_by(name: str, command: Command, effects: CommandEffects) -> Iterator[File]:
    """The files among its arguments that a command writes content into."""
    if name in _KEEPING:
        return
    is_added = name == "tee" and any(word.text in {"-a", "--append"} for word in command.words)
    for file in effects.files:
        if file.access == "write" and UNKNOWN not in file.path.text:
            yield File("write", file.path, ">>" if is_added else file.why)
    if name in _FETCHERS:
        for word in command.words[1:]:
            if "://" in word.text:  # `wget URL` and `curl -O URL` name the file after the address
                last = posixpath.basename(word.text.partition("?")[0])
                yield File("write", Word(last or UNKNOWN), "it is named after the address")


# The files that a patch on standard input, or among the arguments, would write.
#
# A patch names its files itself: `patch -p1 <<EOF`, `git apply`, and `apply_patch`, which some
# agents carry out without a shell. Each name is judged as a file that the command writes.

_PATCHERS: Final = frozenset(("patch", "gpatch", "apply_patch", "applypatch"))
_GIT: Final = frozenset(("apply", "am"))
_HEADER: Final = re.compile(
    r"^[ \t]*(?:\*\*\* (?:Add File|Update File|Delete File|Move to):|\+\+\+ |--- |\*\*\* (?=\S+\t)"
    r"|Index: )[ \t]*(?P<path>[^\t\n\r]+)|^diff --git (?P<two>[^\n\r]+)"
    r"|^(?:rename|copy) (?:to|from) +(?P<bare>[^\t\n\r]+)",
    re.MULTILINE,
)
_STRIP: Final = re.compile(r"(?:-[A-Za-z]*p|--strip=)(\d{1,2})\Z")
_LEVEL: Final = re.compile(r"[0-9]{1,2}")
_FOLDER: Final = re.compile(r"(?:-d|--directory=)(.+)\Z")
_FOLDER_OPTIONS: Final = ("-d", "--directory")
_MAX_FILES: Final = 200
_ALL_LEVELS: Final = tuple(range(8))


def patched_files(command: Command, written: WrittenFiles) -> Iterator[File]:
    """Each file that a patch which stands in the text, or in a file that the text itself writes,
    would write."""
    texts = [word.text for word in command.words]
    name = texts[0].rpartition("/")[2]
    is_git = name == "git" and not _GIT.isdisjoint(texts[1:])
    if name not in _PATCHERS and not is_git:
        return
    patches = [each.text for each in (command.stdin_text, command.piped) if each is not None]
    patches += texts[1:] if name in ("apply_patch", "applypatch") else []
    reads = [file.path for file in command.files if file.access == "read"]
    contents = [written.find(word, command) for word in (*reads, *command.words[1:])]
    patches += [each for each in contents if isinstance(each, str)]
    levels = _levels(name, texts, is_git=is_git)
    folder = _folder(texts)
    for path, is_bare in [each for text in patches for each in _paths(text)][:_MAX_FILES]:
        # git writes the names of renames without `a/` and `b/`, and takes one folder less off.
        for level in {max(0, each - 1) for each in levels} if is_bare else levels:
            parts = path.split("/", level)
            if len(parts) == level + 1 and parts[level]:
                yield File(
                    "write", Word(posixpath.join(folder, parts[level])), "the patch names it"
                )


def _levels(name: str, texts: list[str], *, is_git: bool) -> tuple[int, ...]:
    """How many leading folders of a name are stripped; without an option `patch` guesses."""
    for at, text in enumerate(texts[1:], start=1):
        found = _STRIP.match(text) or (text in ("-p", "--strip") and at + 1 < len(texts))
        if found:
            number = found[1] if isinstance(found, re.Match) else texts[at + 1]
            # More digits than a path has folders, or digits of other alphabets: not a level.
            return (int(number),) if _LEVEL.fullmatch(number) else _ALL_LEVELS
    return (1,) if is_git else (0,) if name in ("apply_patch", "applypatch") else _ALL_LEVELS


def _folder(texts: list[str]) -> str:
    for at, text in enumerate(texts[1:-1], start=1):
        if text in _FOLDER_OPTIONS:
            return texts[at + 1]
    return next((found[1] for text in texts[1:] if (found := _FOLDER.match(text))), "")


def _paths(text: str) -> Iterator[tuple[str, bool]]:
    """Each path, and whether the path has no leading folder to strip."""
    for found in _HEADER.finditer(text):
        named = found["two"].split() if found["two"] else [found["path"] or found["bare"]]
        for each in named:
            path = each.strip().strip('"')
            if path != "/dev/null" and UNKNOWN not in path:
                yield path, found["bare"] is not None
