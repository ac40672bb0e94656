"""Files that a shell text writes itself, with what is known of their content. Pure.

A file that the text writes and then runs is inline code by another door: `echo CODE > x.py; python3
x.py`. What comes from the network or out of a decoder is never known.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from cellwall.policy.paths import normalise
from cellwall.policy.shell.command import Command
from cellwall.policy.shell.models import open_known
from cellwall.policy.shell.opened import File
from cellwall.policy.shell.words import UNKNOWN, Word

_FETCHERS = frozenset(
    [
        "curl",
        "wget",
        "aria2c",
        "http",
        "https",
        "lwp-download",
        "fetch",
        "scp",
        "sftp",
        "rsync",
        "nc",
        "ncat",
    ]
)
_DECODERS = frozenset(
    [
        "base64",
        "base32",
        "basenc",
        "xxd",
        "openssl",
        "gpg",
        "uudecode",
        "gunzip",
        "zcat",
        "gzip",
        "xz",
    ]
)


class Content(Enum):
    """Why the content of a file is not known."""

    UNKNOWN = "it is put together while the text runs"
    FOREIGN = "it comes from the network, or out of a decoder"


@dataclass(slots=True)
class WrittenFiles:
    """By path."""

    contents: dict[str, str | Content] = field(default_factory=dict)

    def note(self, command: Command) -> None:
        """What one command writes by redirections, by `tee`, or from the network."""
        name = command.words[0].text.rpartition("/")[2] if command.words else ""
        text: str | Content | None = printed_text(command)
        if text is None:
            is_foreign = name in _FETCHERS | _DECODERS
            text = Content.FOREIGN if is_foreign else Content.UNKNOWN
        for file in (*command.files, *_written_by(name, command)):
            if file.access == "write":
                for path in _places(file.path, command):
                    self._put(path, text, is_added=file.why.endswith(">>"))

    def _put(self, path: str, text: str | Content, *, is_added: bool) -> None:
        before = self.contents.get(path, "") if is_added else ""
        if isinstance(text, str) and isinstance(before, str):
            self.contents[path] = f"{before}{text}\n"
        else:
            self.contents[path] = before if before is Content.FOREIGN else _unknown(text)

    def find(self, word: Word, command: Command) -> str | Content | None:
        """What the text has written into a file; None if it has not."""
        places = _places(word, command)
        return next((self.contents[path] for path in places if path in self.contents), None)

    def find_name(self, names: frozenset[str]) -> str:
        """The first file of one of these names that the text writes; empty if there is none."""
        return next((path for path in self.contents if posixpath.basename(path) in names), "")


def _unknown(text: str | Content) -> Content:
    return text if isinstance(text, Content) else Content.UNKNOWN


def _places(word: Word, command: Command) -> Iterator[str]:
    for directory in command.directories:
        yield normalise(posixpath.join(directory, word.text))


def _written_by(name: str, command: Command) -> Iterator[File]:
    if name == "tee":
        for word in command.words[1:]:
            if not word.text.startswith("-"):
                yield File("write", word, "redirection >")
    elif name in _FETCHERS:
        yield from (file for file in open_known(command.words).files if file.access == "write")
        for word in command.words[1:]:
            if "://" in word.text:  # `wget URL` and `curl -O URL` name the file after the address
                last = posixpath.basename(word.text.partition("?")[0])
                yield File("write", Word(last or UNKNOWN), "it is named after the address")


def printed_text(command: Command) -> str | None:
    """What a command prints, if the text says so: `echo TEXT`, `cat <<EOF`."""
    name = command.words[0].text if command.words else ""
    if name in {"cat", "tee"} and command.stdin_text is not None:
        text = command.stdin_text.text
    elif name in {"echo", "printf"} and all(word.is_literal for word in command.words):
        words = [word.text for word in command.words[1:] if word.text not in {"-e", "-n", "-ne"}]
        text = " ".join(words).replace("\\n", "\n").replace("\\t", "\t")
    else:
        return None
    return None if UNKNOWN in text else text
