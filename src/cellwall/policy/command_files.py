"""The files that commands touch: by redirections, by their arguments, by names in code."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import unquote

from cellwall.core.verdict import Decision, Verdict
from cellwall.parsing.shell.clauses import is_descriptor
from cellwall.parsing.shell.command import Access, Command, File
from cellwall.parsing.shell.outputs import TEMPORARY, listed_below, number_of
from cellwall.parsing.shell.words import UNKNOWN, Number, Origin, Word, is_unknown_path, shown
from cellwall.policy.commands.opened import FROM_LIST, Code, CommandEffects
from cellwall.policy.file_subjects import NOWHERE, WILD, FileSubjects, named_files
from cellwall.policy.filled_folders import filled_folders, links_seen
from cellwall.policy.found_names import are_found
from cellwall.policy.name_tokens import texts_in, tokens_of
from cellwall.policy.paths import normalise
from cellwall.policy.rulebook import RuleBook, denied
from cellwall.policy.searches import (
    included,
    is_narrowed,
    is_plain_listing,
    names_asked_for,
    reaches,
    regexes,
    searches_in,
    shows_hidden,
    start_paths,
)
from cellwall.policy.subjects import MAX_PATH_CHARACTERS, Subject, Targets
from cellwall.policy.variables import exported_names
from cellwall.policy.written_files import WrittenFiles, patched_files

_ACCESSES: tuple[Access, ...] = ("read", "write")
_MAX_WILDCARDS = 64
_MAX_FOLDERS = 128
_SOME_NAME = "\ufffd"


@dataclass(slots=True)
class Files:
    """The files of one text, and the rules that decide on them."""

    book: RuleBook
    cwd: str
    """Where the text begins: what relative rules are relative to, wherever it moves."""
    home: str
    targets: Targets
    commands: list[Command] = field(default_factory=list)
    texts: list[Sequence[Command]] = field(default_factory=list)
    """The commands of each text that was read."""
    has_hints: dict[Access, bool] = field(default_factory=dict)
    """Whether a word of the text could name a file that may not be read, or written."""
    may_find: dict[tuple[Access, str, tuple[str, ...]], bool] = field(default_factory=dict)
    """Whether a search of the text may find a denied file, by where it is put into a path."""
    wildcards: int = 0
    trusted: dict[int, bool] = field(default_factory=dict)
    """By how many texts were read."""
    exports: dict[int, frozenset[str]] = field(default_factory=dict)
    """By how many commands were read."""
    noted: int = 0
    """Of how many commands it is known what they write."""
    writes: WrittenFiles = field(default_factory=WrittenFiles)
    subjects: FileSubjects = field(init=False)

    def __post_init__(self) -> None:
        self.subjects = FileSubjects(self.cwd, self.home, self.targets, self.commands)

    def look_around(self, commands: Sequence[Command]) -> None:
        """What names could come from: all commands of the text, and of the scripts in it."""
        self.texts.append(commands)
        self.commands.extend(commands)
        self.has_hints.clear()
        self.may_find.clear()

    @property
    def is_trusting(self) -> bool:
        """Names that commands print were found by them, not made up."""
        count = len(self.texts)
        if count not in self.trusted:
            self.trusted[count] = all(map(are_found, self.texts))
        return self.trusted[count]

    @property
    def written(self) -> WrittenFiles:
        """What the commands that were read so far write."""
        for command in self.commands[self.noted :]:
            self.writes.note(command)
        self.noted = len(self.commands)
        return self.writes

    @property
    def exported(self) -> frozenset[str]:
        """The variables that some command of the text gives to programs."""
        count = len(self.commands)
        if count not in self.exports:
            names = (name for each in self.commands for name in exported_names(each))
            self.exports[count] = frozenset(names)
        return self.exports[count]

    def input_word(self, *, is_null_separated: bool) -> Word:
        """What `xargs` adds to a command, as far as the commands before it tell."""
        feeding = [each.words for each in self.commands if each.is_feeding]
        is_sure = len(feeding) == 1 and len(self.texts) == 1 and not self._has_functions
        if is_sure and feeding[0] and all(word.is_literal for word in feeding[0]):
            number = number_of([word.text for word in feeding[0]])
            if number is not Number.NONE:
                return Word(UNKNOWN, is_split=True, number=number, origin=Origin.OUTPUT)
        base = listed_below(feeding) if self.is_trusting else ""
        if is_null_separated and base:
            return Word(f"{base.rstrip('/')}/{UNKNOWN}", origin=Origin.OUTPUT)
        return Word(UNKNOWN, is_split=True, origin=Origin.OUTPUT)

    @property
    def _has_functions(self) -> bool:
        return any(label.endswith("()") for each in self.commands for label in each.place)

    def redirected(self, file: File, command: Command) -> Iterator[Decision]:
        """A redirection is reading or writing like any other: no match is DENY."""
        what = f"{file.why} {shown([file.path])}"
        if UNKNOWN in file.path.text and file.access == "write":
            why = "which file it writes is known only when it runs; write its name"
            unclear = denied(why, what)
            is_own = file.path.origin is Origin.ENVIRONMENT and self.book.asks_otherwise
            yield replace(unclear, verdict=Verdict.ASK) if is_own else unclear
            return
        if is_unknown_path(file.path):
            yield from self._unknown(file, what)
            return
        if (refusal := self._made_up(file, command, what, is_free=False)) is not None:
            yield refusal
            return
        subjects = self._guessed(file, command)
        found = self.book.forbids(subjects, what)
        if found is None and UNKNOWN in file.path.text:
            found = denied("which file it reads is known only when it runs; write its name", what)
        decisions = [found] if found else [self.book.judge(each, what) for each in subjects]
        worst = max(decisions, key=lambda each: each.verdict)
        is_bounded = file.access == "write" and self.book.bounds_writing
        is_free = self.book.otherwise is Verdict.ALLOW and not is_bounded
        if worst.rule == "default" and is_free:  # `tee` and `cat` could do the same
            why = "a rule allows every command"
            worst = replace(worst, verdict=Verdict.ALLOW, rule="Bash(*)", reason=why)
        yield worst

    def named(
        self, command: Command, opened: CommandEffects, what: str, *, is_free: bool
    ) -> Iterator[Decision]:
        """What the arguments name. A command that is allowed may read what is not forbidden. It may
        write what rules for writing allow; without such rules, below the working directory and in
        /tmp, unless it is allowed to do anything (`is_free`)."""
        yield from self._judge_filled_folders(command, opened, what)
        if any(self.book.is_denied_anywhere(each, "read") for each in included(command)):
            yield denied("it searches files that may not be read; leave them out", what)
        named = named_files(command, opened)
        linked = links_seen(command, opened, self.commands)
        for file in (*named, *linked, *patched_files(command, self.written)):
            if file.path.text in NOWHERE or is_descriptor(file.path.text):
                continue
            if file.why == FROM_LIST:
                yield denied(f"{FROM_LIST}; name the files themselves", what)
                continue
            if is_unknown_path(file.path):
                yield from self._unknown(file, what, is_free=is_free)
                continue
            if (refusal := self._made_up(file, command, what, is_free=is_free)) is not None:
                yield refusal
            if len(file.path.text) > MAX_PATH_CHARACTERS:
                continue  # the kernel opens none that is longer
            if file.path.text.count("/") > _MAX_FOLDERS:
                yield denied("a path goes through more folders than can be judged in time", what)
                return
            self.wildcards += file.path.has_glob
            if self.wildcards > _MAX_WILDCARDS:
                yield denied("it names more files by wildcards than can be judged in time", what)
                return
            found = self._forbidden(file, command, what, is_free=is_free)
            if found is not None:
                yield found

    def _judge_filled_folders(
        self, command: Command, opened: CommandEffects, what: str
    ) -> Iterator[Decision]:
        """Folders that get names which stand nowhere in the text; the one that the text begins in
        is everyday."""
        for folder in filled_folders(command, opened):
            places = [each for each in command.directories if folder != "." or each != self.cwd]
            there = replace(command, directories=tuple(places))
            names = [folder]
            if ".git" in folder.split("/"):  # what lies there may be git's own
                names.append(posixpath.join(folder, "config"))
            files = [File("write", Word(each), "names are put into it") for each in names]
            guessed = [each for file in files for each in self._guessed(file, there)]
            subjects = [replace(each, is_whole=True) for each in guessed]
            if subjects and (found := self.book.forbids(subjects, what)) is not None:
                yield found

    def _forbidden(
        self, file: File, command: Command, what: str, *, is_free: bool
    ) -> Decision | None:
        """Why a file that has a name, or a part of one, may not be touched."""
        subjects = self._guessed(file, command)
        found = self.book.forbids(subjects, what)
        if found is None and UNKNOWN in file.path.text and self._may_find_denied(file, command):
            found = _found_somewhere(file.access, what, is_free=is_free)
        if found is None and _is_code_of_a_device(file, subjects):
            found = denied("the code that it runs comes from somewhere that is not known", what)
        if found is None and file.access == "write":
            writes = f"{what} writes {shown([file.path])}"
            found = self._unwritable(subjects, writes, is_free=is_free)
        return found

    def _guessed(self, file: File, command: Command) -> list[Subject]:
        """What is unknown in a path is taken for some name, for nothing, and for the home folder;
        the rest of it tells enough."""
        text = file.path.text
        if UNKNOWN not in text and not any(UNKNOWN in each for each in command.directories):
            return self.subjects.of_file(file, command)
        texts = {text.replace(UNKNOWN, _SOME_NAME), text.replace(UNKNOWN, "")}
        if text.startswith(UNKNOWN):
            texts.add(self.home + text[1:].replace(UNKNOWN, ""))
        if "/../" in text.partition(UNKNOWN)[2]:  # the folder above an unknown one
            texts.add(f"{self.home}/{text.rpartition('/../')[2]}".replace(UNKNOWN, ""))
        places = tuple(
            place for each in command.directories for place in self._guessed_places(each)
        )
        there = replace(command, directories=places)
        paths = [Word(each, has_glob=file.path.has_glob) for each in sorted(texts) if each]
        folder, slash, last = text.rpartition("/")
        is_new = text.startswith(TEMPORARY) and last == f"tmp.{UNKNOWN}" and self.is_trusting
        if UNKNOWN in last and last.strip(UNKNOWN) and not is_new:  # a part of the name is known
            wild = folder.replace(UNKNOWN, _SOME_NAME) + slash + last.replace(UNKNOWN, "*")
            paths.append(Word(wild, has_glob=True))
        elif UNKNOWN in last and WILD & set(folder):
            paths.append(Word(f"{folder}/*", has_glob=True))
        return [
            subject
            for path in paths
            for subject in self.subjects.of_file(replace(file, path=path), there, is_guess=True)
        ]

    def _guessed_places(self, directory: str) -> list[str]:
        """The same of a folder that `cd` went to."""
        if UNKNOWN not in directory:
            return [directory]
        if not directory.startswith(UNKNOWN):
            return [directory.replace(UNKNOWN, each) for each in (_SOME_NAME, "")]
        rest = directory[1:].replace(UNKNOWN, _SOME_NAME)
        return [f"{self.cwd}/{_SOME_NAME}{rest}", f"{self.home}{rest}"]

    def _made_up(
        self, file: File, command: Command, what: str, *, is_free: bool
    ) -> Decision | None:
        """A name of which a part is known, or in a folder that is not known: refused where the text
        itself, or a file, chooses the rest."""
        text = file.path.text
        is_part = UNKNOWN in text and file.path.origin is not Origin.ENVIRONMENT
        is_near = not text.startswith(("/", UNKNOWN))
        is_lost = is_near and any(UNKNOWN in each for each in command.directories)
        if not (is_part or is_lost):
            return None
        if self.is_trusting and not (file.access == "write" and self._hints("write")):
            return None
        why = f"which file it {file.access}s could be made up while it runs; write its name"
        refusal = denied(why, what)
        may_ask = is_free or (self.book.asks_otherwise and not self._hints(file.access))
        return replace(refusal, verdict=Verdict.ASK) if may_ask else refusal

    def _unwritable(
        self, subjects: Sequence[Subject], what: str, *, is_free: bool
    ) -> Decision | None:
        if self.book.bounds_writing:
            judged = [self.book.judge(each, what) for each in subjects]
            worst = max(judged, key=lambda each: each.verdict)
            return None if worst.verdict is Verdict.ALLOW else worst
        near = (f"{self.cwd.rstrip('/')}/", "/tmp/")
        paths = [path for each in subjects for path in each.paths]
        is_near = all(f"{path}/".startswith(near) for path in paths)
        if is_free or (is_near and all(each.paths for each in subjects)):
            return None
        return denied("no rule says that it may write outside of the working directory", what)

    def named_in(self, code: Code) -> Iterator[tuple[str, str]]:
        """Files that code names, by its texts: what may not be read cannot be read by it either."""
        for text in texts_in(code.text.text) if code.text is not None else ():
            if self.is_forbidden_name(text):
                yield "", f"{code.why}, and names {text[:60]!r}, which rules forbid"

    def is_forbidden_name(self, text: str, accesses: Sequence[Access] = _ACCESSES) -> bool:
        """Whether a text in code is the name of a file that may not be read, or written."""
        places = {text, self.at_home(text)}
        if text.lower().startswith("file:"):  # as `urlopen` and `fetch` take it
            places.add(unquote("/" + text[5:].lstrip("/").removeprefix("localhost/")))
        if text.startswith(("/.", ".")):  # `HOME + "/.ssh/id_rsa"`
            places.add(f"{self.home}/{text.lstrip('/')}")
        subjects = [
            self.subjects.of_path(access, Word(each), self.cwd)
            for access in accesses
            for each in sorted(places)
        ]
        return any(self.book.forbids([each], "") for each in subjects)

    def at_home(self, path: str) -> str:
        """`~` in front, as `expanduser` has it."""
        is_home = path == "~" or path.startswith("~/")
        return f"{self.home}{path[1:]}" if is_home else path

    def _unknown(self, file: File, what: str, *, is_free: bool = False) -> Iterator[Decision]:
        """A name that was found, or a variable of the person's own, is taken as it is. Where a rule
        allows everything, a person is asked about all others."""
        is_near = file.path.text in {UNKNOWN, f"./{UNKNOWN}", f"./{UNKNOWN}{UNKNOWN}"}
        is_far = file.access == "write" and not is_near
        if file.path.origin is Origin.ENVIRONMENT and not is_far:
            return
        is_led = self._hints(file.access) or self._may_find_denied(file)
        if is_far or not self.is_trusting or is_led:
            why = f"which file it {file.access}s could be made up while it runs; write its name"
            refusal = denied(why, what)
            may_ask = is_free or (self.book.asks_otherwise and not is_led)
            yield replace(refusal, verdict=Verdict.ASK) if may_ask else refusal

    def _may_find_denied(self, file: File, command: Command | None = None) -> bool:
        """Whether a search of the text could have found a file that is denied under this name."""
        places = command.directories if command is not None else ()
        key = (file.access, file.path.text, places)
        if key not in self.may_find:
            self.may_find[key] = self._may_search_find(file, command)
        return self.may_find[key]

    def _may_search_find(self, file: File, command: Command | None) -> bool:
        if any(map(shows_hidden, self.commands)) and self.book.is_last_name(".*", file.access):
            return True
        if not (searches := searches_in(self.commands)):
            return False
        names = {name for each in searches for name in names_asked_for(each)}
        if any(self.book.fits_secret(each, file.access) for x in searches for each in regexes(x)):
            return True
        if any(self.book.is_last_name(name, file.access) for name in names):
            return True
        if all(map(is_narrowed, searches)):
            return self._hints(file.access)
        anchored = self.book.anchored(file.access, self.home)
        folder, _, rest = file.path.text.partition(UNKNOWN)
        if folder and command is not None:
            places = [normalise(posixpath.join(each, folder)) for each in command.directories]
            is_open = bool(rest) or not all(map(is_plain_listing, searches))
            is_led = any(reaches(each, anchored, hidden=is_open) for each in places)
        else:
            is_led = any(
                reaches(place, anchored, hidden=not is_plain_listing(each))
                for each in searches
                for place in start_paths(each)
            )
        return is_led or self._hints(file.access)

    def _hints(self, access: Access) -> bool:
        if access not in self.has_hints:
            self.has_hints[access] = self._has_hints(access)
        return self.has_hints[access]

    def _has_hints(self, access: Access) -> bool:
        """Whether a word of the text could name a file that may not be touched so."""
        tokens = list(tokens_of(self.commands))
        if sum(token.has_glob for token in tokens) > _MAX_WILDCARDS:
            return True
        return any(
            self.book.is_like_secret(token, access)
            or self.book.forbids([self._hinted(access, token)], "") is not None
            for token in tokens
        )

    def _hinted(self, access: Access, token: Word) -> Subject:
        # What `.git/h*` finds is not looked up: the file that it leads to may be a new one.
        is_guess = ".git" in token.text.split("/")
        return self.subjects.of_path(access, token, "/", is_guess=is_guess)


def _found_somewhere(access: Access, what: str, *, is_free: bool) -> Decision:
    """Where a rule allows everything, a person is asked."""
    why = f"the search may find files that may not be {'read' if access == 'read' else 'written'}"
    refusal = denied(f"{why}; start it in a folder that holds none of them", what)
    return replace(refusal, verdict=Verdict.ASK) if is_free else refusal


def _is_code_of_a_device(file: File, subjects: Sequence[Subject]) -> bool:
    paths = [path for each in subjects for path in each.paths]
    return file.why.endswith("is run") and any(p.startswith(("/dev/", "/proc/")) for p in paths)
