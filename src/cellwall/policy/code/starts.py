"""What one piece of inline code starts, reads and writes. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from cellwall.parsing.shell.command import Access, File
from cellwall.parsing.shell.words import UNKNOWN, Word

MAX_STARTS: Final = 64


@dataclass(slots=True)
class Starts:
    """Collects what one piece of code does."""

    scripts: list[Word] = field(default_factory=list)
    """Text for a shell."""
    commands: list[tuple[Word, ...]] = field(default_factory=list)
    """Argument vectors."""
    files: list[File] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    """Where it moves to, as far as that is written out: its commands may run there."""
    unknown: str = ""
    """Why nobody can tell all that it starts; empty if everything is written out."""
    texts: list[str] = field(default_factory=list)
    """Texts that it puts together of known ones: each may be a path, or an address."""
    asked: str = ""
    """Why a person is asked where a rule allows everything; empty if nobody has to be."""

    def script(self, text: str | None) -> None:
        if text is None or UNKNOWN in text:
            self.doubt("it starts a command that is put together while it runs")
        else:
            self.scripts.append(Word(text))

    def command(self, words: list[str | None] | None) -> None:
        """The program must be known; an argument that is not is judged as any unknown word."""
        if not words or words[0] is None or UNKNOWN in words[0]:
            self.doubt("it starts a program whose name is put together while it runs")
        else:
            self.commands.append(tuple(Word(UNKNOWN if each is None else each) for each in words))

    def text(self, text: str | None) -> None:
        if text and UNKNOWN not in text and len(self.texts) < MAX_STARTS:
            self.texts.append(text)

    def delete(self, path: str | None, flags: str) -> None:
        if path is not None and path.strip(UNKNOWN):
            self.commands.append((Word("rm"), Word(flags), Word(path)))

    def file(self, access: Access, path: str | None) -> None:
        if path is not None and path.strip(UNKNOWN):
            self.files.append(File(access, Word(path), f"the code {access}s it"))

    def pattern(self, path: str) -> None:
        """Names that match are listed, and may be read."""
        self.files.append(File("read", Word(path, has_glob=True), "the code lists it"))

    def doubt(self, why: str) -> None:
        self.unknown = self.unknown or why

    def ask(self, why: str) -> None:
        self.asked = self.asked or why

    @property
    def is_too_much(self) -> bool:
        return len(self.scripts) + len(self.commands) + len(self.files) > MAX_STARTS
