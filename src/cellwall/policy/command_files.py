"""The files that commands touch: by redirections, by their arguments, by names in code."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import unquote

from cellwall.core.verdict import Decision, Verdict
from cellwall.parsing.shell.clauses import is_descriptor
from cellwall.parsing.shell.outputs import TEMPORARY, listed_below, number_of
from cellwall.parsing.shell.words import (
    UNKNOWN,
    Access,
    Command,
    File,
    Number,
    Origin,
    Word,
    is_unknown_path,
    render_words,
)
from cellwall.policy.command_facts import remembered
from cellwall.policy.commands.effects import FROM_LIST, Code, CommandEffects
from cellwall.policy.file_subjects import NOWHERE, WILD, FileSubjects, named_files
from cellwall.policy.filled_folders import filled_folders, links_seen
from cellwall.policy.found_names import (
    are_found,
    included_names,
    is_narrowed,
    is_plain_listing,
    names_asked_for,
    reaches,
    regexes,
    searches_in,
    shows_hidden,
    start_paths,
    texts_in,
    tokens_of,
)
from cellwall.policy.paths import normalise
from cellwall.policy.rulebook import RuleBook, refuse
from cellwall.policy.subjects import MAX_PATH_CHARACTERS, Subject, Targets
from cellwall.policy.variables import exported_names
from cellwall.policy.written_files import WrittenFiles, patched_files

_ACCESSES: tuple[Access, ...] = ("read", "write")
_MAX_WILDCARDS = 64
_MAX_FOLDERS = 128
_SOME_NAME = "\ufffd"


@dataclass(slots=True)
class CommandFiles:
    """The files of one text, and the rules that decide on them."""

    book: RuleBook
    cwd: str
    """The initial working directory, which relative rules are relative to."""
    home: str
    targets: Targets
    commands: list[Command] = field(default_factory=list)
    text_count: int = 0
    is_trusting: bool = True
    """All names that commands print come from searches."""
    exported: frozenset[str] = frozenset()
    """The variables that some command of the text exports."""
    written: WrittenFiles = field(default_factory=WrittenFiles)
    """The files that the commands read so far write."""
    has_hints: dict[Access, bool] = field(default_factory=dict)
    """By access: whether a word of the text could name a denied file."""
    may_find: dict[tuple[Access, str, tuple[str, ...]], bool] = field(default_factory=dict)
    """Whether a search of the text may find a denied file, by the path that uses its result."""
    wildcards: int = 0
    subjects: FileSubjects = field(init=False)

    def __post_init__(self) -> None:
        self.subjects = FileSubjects(self.cwd, self.home, self.targets, self.commands)

    def look_around(self, commands: Sequence[Command]) -> None:
        """Adds the commands of a text or script, which unknown names could come from."""
        self.text_count += 1
        self.commands.extend(commands)
        self.is_trusting = self.is_trusting and are_found(commands)
        self.exported |= {name for each in commands for name in exported_names(each)}
        for command in commands:
            self.written.note(command)
        self.has_hints.clear()
        self.may_find.clear()

    def input_word(self, *, is_null_separated: bool) -> Word:
        """The argument that `xargs` adds to a command, as far as the feeding commands show."""
        feeding = [each.words for each in self.commands if each.is_feeding]
        is_sure = len(feeding) == 1 and self.text_count == 1 and not self._has_functions
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

    def judge_redirection(self, file: File, command: Command) -> Iterator[Decision]:
        """A redirection is judged as a read or write of its file: no match is DENY."""
        what = f"{file.why} {render_words([file.path])}"
        if UNKNOWN in file.path.text and file.access == "write":
            why = "the file that it writes is known only at run time; write its name"
            is_own = file.path.origin is Origin.ENVIRONMENT and self.book.asks_otherwise
            yield refuse(why, what, is_asked=is_own)
            return
        if is_unknown_path(file.path):
            yield from self._judge_unknown(file, what)
            return
        if (refusal := self._refuse_chosen(file, command, what, is_free=False)) is not None:
            yield refusal
            return
        subjects = self._guess_subjects(file, command)
        found = self.book.forbids(subjects, what)
        if found is None and UNKNOWN in file.path.text:
            found = refuse("the file that it reads is known only at run time; write its name", what)
        decisions = [found] if found else [self.book.judge(each, what) for each in subjects]
        worst = max(decisions, key=lambda each: each.verdict)
        is_bounded = file.access == "write" and self.book.bounds_writing
        is_free = self.book.otherwise is Verdict.ALLOW and not is_bounded
        if worst.rule == "default" and is_free:  # `tee` and `cat` could do the same
            why = "a rule allows every command"
            worst = replace(worst, verdict=Verdict.ALLOW, rule="Bash(*)", reason=why)
        yield worst

    def judge_named(
        self, command: Command, effects: CommandEffects, what: str, *, is_free: bool
    ) -> Iterator[Decision]:
        """Decisions on the files of the arguments. An allowed command may read files that are not
        forbidden. It may write where rules allow writing; without such rules, below the working
        directory and in /tmp, unless a rule allows everything (`is_free`)."""
        named, filled, included = _names_of(command, effects)
        if filled:
            yield from self._judge_filled_folders(filled, command, what)
        if any(self.book.is_denied_anywhere(each, "read") for each in included):
            yield refuse("it searches files that may not be read; exclude them", what)
        linked = links_seen(command, effects, self.commands)
        for file in (*named, *linked, *patched_files(command, self.written)):
            if file.path.text in NOWHERE or is_descriptor(file.path.text):
                continue
            if file.why == FROM_LIST:
                yield refuse(f"{FROM_LIST}; name the files themselves", what)
                continue
            if is_unknown_path(file.path):
                yield from self._judge_unknown(file, what, is_free=is_free)
                continue
            if (refusal := self._refuse_chosen(file, command, what, is_free=is_free)) is not None:
                yield refusal
            if len(file.path.text) > MAX_PATH_CHARACTERS:
                continue  # the kernel opens no longer path
            if file.path.text.count("/") > _MAX_FOLDERS:
                yield refuse("a path goes through more folders than can be judged in time", what)
                return
            self.wildcards += file.path.has_glob
            if self.wildcards > _MAX_WILDCARDS:
                yield refuse("it names more files by wildcards than can be judged in time", what)
                return
            found = self._find_denial(file, command, what, is_free=is_free)
            if found is not None:
                yield found

    def _judge_filled_folders(
        self, folders: Sequence[str], command: Command, what: str
    ) -> Iterator[Decision]:
        """Decisions on folders that get names which the text does not spell; the initial working
        directory is ordinary."""
        for folder in folders:
            places = [each for each in command.directories if folder != "." or each != self.cwd]
            there = replace(command, directories=tuple(places))
            names = [folder]
            if ".git" in folder.split("/"):  # files there may be git's own
                names.append(posixpath.join(folder, "config"))
            files = [File("write", Word(each), "names are put into it") for each in names]
            guessed = [each for file in files for each in self._guess_subjects(file, there)]
            subjects = [replace(each, is_whole=True) for each in guessed]
            if subjects and (found := self.book.forbids(subjects, what)) is not None:
                yield found

    def _find_denial(
        self, file: File, command: Command, what: str, *, is_free: bool
    ) -> Decision | None:
        """The denial of a file with a known or partly known name; None: there is none."""
        subjects = self._guess_subjects(file, command)
        found = self.book.forbids(subjects, what)
        if found is None and UNKNOWN in file.path.text and self._may_find_denied(file, command):
            found = _found_somewhere(file.access, what, is_free=is_free)
        if found is None and _is_code_of_a_device(file, subjects):
            found = refuse("the source of the code is not known", what)
        if found is None and file.access == "write":
            writes = f"{what} writes {render_words([file.path])}"
            found = self._unwritable(subjects, writes, is_free=is_free)
        return found

    def _guess_subjects(self, file: File, command: Command) -> list[Subject]:
        """Subjects for a path with unknown parts: each part as some name, as nothing, and as the
        home folder."""
        text = file.path.text
        if UNKNOWN not in text and not any(UNKNOWN in each for each in command.directories):
            return self.subjects.of_file(file, command)
        texts = {text.replace(UNKNOWN, _SOME_NAME), text.replace(UNKNOWN, "")}
        if text.startswith(UNKNOWN):
            texts.add(self.home + text[1:].replace(UNKNOWN, ""))
        if "/../" in text.partition(UNKNOWN)[2]:  # the folder above an unknown one
            texts.add(f"{self.home}/{text.rpartition('/../')[2]}".replace(UNKNOWN, ""))
        places = tuple(place for each in command.directories for place in self._guess_places(each))
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

    def _guess_places(self, directory: str) -> list[str]:
        """The same for a folder that `cd` changed to."""
        if UNKNOWN not in directory:
            return [directory]
        if not directory.startswith(UNKNOWN):
            return [directory.replace(UNKNOWN, each) for each in (_SOME_NAME, "")]
        rest = directory[1:].replace(UNKNOWN, _SOME_NAME)
        return [f"{self.cwd}/{_SOME_NAME}{rest}", f"{self.home}{rest}"]

    def _refuse_chosen(
        self, file: File, command: Command, what: str, *, is_free: bool
    ) -> Decision | None:
        """A partly known name, or a name in an unknown folder: refused where the text itself, or a
        file, chooses the rest."""
        text = file.path.text
        is_part = UNKNOWN in text and file.path.origin is not Origin.ENVIRONMENT
        is_near = not text.startswith(("/", UNKNOWN))
        is_lost = is_near and any(UNKNOWN in each for each in command.directories)
        if not (is_part or is_lost):
            return None
        if self.is_trusting and not (file.access == "write" and self._hints("write")):
            return None
        why = f"the file that it {file.access}s could be chosen at run time; write its name"
        may_ask = is_free or (self.book.asks_otherwise and not self._hints(file.access))
        return refuse(why, what, is_asked=may_ask)

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
        return refuse("no rule allows writes outside the working directory", what)

    def find_named(self, code: Code) -> Iterator[tuple[str, str]]:
        """Denied files among the texts of code, with the reason."""
        for text in texts_in(code.text.text) if code.text is not None else ():
            if self.is_forbidden_name(text):
                yield "", f"{code.why}, and names {text[:60]!r}, which rules forbid"

    def is_forbidden_name(self, text: str, accesses: Sequence[Access] = _ACCESSES) -> bool:
        """Whether a text in code names a denied file."""
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
        """The path with a leading `~` expanded."""
        is_home = path == "~" or path.startswith("~/")
        return f"{self.home}{path[1:]}" if is_home else path

    def _judge_unknown(self, file: File, what: str, *, is_free: bool = False) -> Iterator[Decision]:
        """A name from a search, or a variable of the user, is accepted. Where a rule allows
        everything, a person is asked about all others."""
        is_near = file.path.text in {UNKNOWN, f"./{UNKNOWN}", f"./{UNKNOWN}{UNKNOWN}"}
        is_far = file.access == "write" and not is_near
        if file.path.origin is Origin.ENVIRONMENT and not is_far:
            return
        is_led = self._hints(file.access) or self._may_find_denied(file)
        if is_far or not self.is_trusting or is_led:
            why = f"the file that it {file.access}s could be chosen at run time; write its name"
            may_ask = is_free or (self.book.asks_otherwise and not is_led)
            yield refuse(why, what, is_asked=may_ask)

    def _may_find_denied(self, file: File, command: Command | None = None) -> bool:
        """Whether a search of the text could find a denied file with this name."""
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
        """Whether a word of the text could name a denied file."""
        tokens = list(tokens_of(self.commands))
        if sum(token.has_glob for token in tokens) > _MAX_WILDCARDS:
            return True
        return any(
            self.book.is_like_secret(token, access)
            or self.book.forbids([self._hint_subject(access, token)], "") is not None
            for token in tokens
        )

    def _hint_subject(self, access: Access, token: Word) -> Subject:
        # `.git/h*` is not looked up: it may lead to a new file.
        is_guess = ".git" in token.text.split("/")
        return self.subjects.of_path(access, token, "/", is_guess=is_guess)


@remembered
def _names_of(
    command: Command, effects: CommandEffects
) -> tuple[tuple[File, ...], tuple[str, ...], tuple[str, ...]]:
    """The files of the arguments, the folders that get unspelled names, and the searched names."""
    filled = tuple(filled_folders(command, effects))
    return tuple(named_files(command, effects)), filled, tuple(included_names(command))


def _found_somewhere(access: Access, what: str, *, is_free: bool) -> Decision:
    """A denial; a question where a rule allows everything."""
    why = f"the search may find files that may not be {'read' if access == 'read' else 'written'}"
    return refuse(f"{why}; start it in a folder that holds none of them", what, is_asked=is_free)


def _is_code_of_a_device(file: File, subjects: Sequence[Subject]) -> bool:
    paths = [path for each in subjects for path in each.paths]
    return file.why.endswith("is run") and any(p.startswith(("/dev/", "/proc/")) for p in paths)
