"""Proposals of `policy learn`: counted calls, common parts, and how a rule spells a path. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from cellwall.core.showing import escaped, one_line
from cellwall.parsing.shell.words import Word
from cellwall.policy.rules import Layer
from cellwall.policy.subjects import Subject

_SHOWN_MOST = 8
_REFUSED_MOST = 200


@dataclass(frozen=True, slots=True)
class Proposed:
    """A proposed rule, and what a person should know before accepting it."""

    rule: str
    stands_for: tuple[str, ...] = ()
    """What was seen, where the rule is wider than one of them."""
    also_allows: str = ""
    answers: str = ""
    """The question that it lifts; empty: it is a plain allow."""

    def table(self, reason: str) -> dict[str, str]:
        """As `[[rule]]` of a policy file."""
        told = {"verdict": "allow", "rule": self.rule, "reason": reason}
        return {**told, "answers": self.answers} if self.answers else told


@dataclass(frozen=True, slots=True)
class Refused:
    """A call that no rule is proposed for."""

    call: str
    reason: str


@dataclass(frozen=True, slots=True)
class Lesson:
    """The proposals and refusals that follow from the recorded calls."""

    proposed: tuple[Proposed, ...] = ()
    refused: tuple[Refused, ...] = ()
    seen: int = 0
    allowed_now: int = 0
    """How many of them the rules allow by now."""


def to_toml(lesson: Lesson) -> str:
    """A policy of its own; what is not proposed stands in its comments."""
    count = lesson.seen - lesson.allowed_now
    lines = [
        f"# Proposed by `cellwall policy learn`, from {count} calls that no rule allows.",
        "# Whoever asked for them may have been misled: read each line before you keep it.",
        "",
    ]
    plain = [each for each in lesson.proposed if not each.answers]
    answering = [each for each in lesson.proposed if each.answers]
    if plain or not answering:
        lines += ["[permissions]", "allow = ["]
        for each in plain:
            lines += [f"  # {text}" for text in _comments(each)]
            lines.append(f"  {quoted(each.rule)},")
        lines.append("]")
    for each in answering:
        lines += [*rule_lines(each, "proposed by `cellwall policy learn`"), ""]
    if lesson.refused:
        lines += ["", "# No rule is proposed for these:"]
    for refused in lesson.refused[:_REFUSED_MOST]:
        lines += [f"#   {escaped(refused.call)}", f"#     {one_line(refused.reason, most=300)}"]
    if len(lesson.refused) > _REFUSED_MOST:
        lines.append(f"#   and {len(lesson.refused) - _REFUSED_MOST} more")
    return "\n".join(lines) + "\n"


def rule_lines(each: Proposed, reason: str) -> list[str]:
    """One `[[rule]]`, with what a person should know in comments above it."""
    told = [f"# {text}" for text in _comments(each)]
    return [*told, "[[rule]]", *(f"{key} = {quoted(v)}" for key, v in each.table(reason).items())]


def _comments(each: Proposed) -> Iterator[str]:
    if each.stands_for:
        yield f"Stands for {len(each.stands_for)} that were seen:"
        yield from (f"  {escaped(text)}" for text in each.stands_for[:_SHOWN_MOST])
        if len(each.stands_for) > _SHOWN_MOST:
            yield f"  and {len(each.stands_for) - _SHOWN_MOST} more"
    if each.also_allows:
        yield f"Also allows {escaped(each.also_allows)}."


def quoted(text: str) -> str:
    """A TOML string of one line, whatever the text is; what is not plainly seen is written out."""
    return '"' + "".join(map(_character, text)) + '"'


def _character(char: str) -> str:
    if char in {'"', "\\"}:
        return f"\\{char}"
    if escaped(char) == char:
        return char
    code = ord(char)
    if 0xD800 <= code <= 0xDFFF:  # no text at all, and TOML has no word for it
        return "?"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


# How a learnt rule spells a path, by the file that the rule is for.


@dataclass(frozen=True, slots=True)
class Place:
    """The file that the proposals are for."""

    layer: Layer = Layer.SESSION
    folder: str = ""
    """What a path with one slash in front is relative to in it; empty: nothing is."""

    def spelled(self, path: str, subject: Subject, beneath: str) -> str:
        """A path as a rule of that file means no other one.

        `./path` is another file for each working directory that the rule counts in: in the file of
        a user or a project that is every folder, or every folder of the project.
        """
        if self.layer not in {Layer.USER, Layer.PROJECT}:
            inside = below(subject.cwd, path)
            return f"/{path}" if inside is None else "/".join([".", *inside])
        inside = below(self.folder, path) if self.folder else None
        return "/".join(["", *inside]) if inside or (inside == () and beneath) else f"/{path}"


ANY_FOLDER = Place()
"""A file that is named for one session: its rules follow the working directory."""


def below(folder: str, path: str) -> tuple[str, ...] | None:
    """The names from the folder on; None if it lies elsewhere."""
    names, start = names_of(path), names_of(folder)
    return names[len(start) :] if names[: len(start)] == start else None


def names_of(path: str) -> tuple[str, ...]:
    """Of the folders on the way, and its own."""
    return tuple(name for name in path.split("/") if name)


# When several things that were seen become one wider rule, and how wide.

COMMANDS_MOST = 3
"""So many commands of one kind still get a rule each."""
FILES_LEAST = 3

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]*")
_PLAIN_OPTION = re.compile(r"-{0,2}[A-Za-z0-9][A-Za-z0-9_.:/=-]*")

# Programs whose second word says what they do.
_PROGRAMS = frozenset(
    {
        *("apt", "aws", "brew", "bun", "bundle", "cargo", "composer", "conda", "docker", "dotnet"),
        *("flutter", "gh", "git", "glab", "go", "helm", "kubectl", "npm", "pdm", "pip", "pip3"),
        *("pnpm", "podman", "poetry", "rustup", "systemctl", "terraform", "tofu", "uv", "yarn"),
    }
)
# Where the third word says it.
_THIRD = frozenset(
    {
        *("aws s3", "aws ec2", "docker compose", "docker container", "docker image"),
        *("docker network", "docker volume", "gh issue", "gh pr", "gh repo", "gh run"),
        *("git remote", "git stash", "git worktree", "go mod", "npm run", "pnpm run", "yarn run"),
        *("bun run", "composer run-script", "uv pip"),
    }
)
# Run whatever follows, leave the machine, or cannot be undone: each such command is its own rule.
_NEVER = frozenset(
    {
        *("bun add", "bun x", "bundle exec", "cargo install", "cargo publish", "cargo run"),
        *("conda run", "docker build", "docker exec", "docker push", "docker run", "docker cp"),
        *("gh api", "gh alias", "gh extension", "gh auth", "gh secret"),
        *("git bisect", "git clean", "git config", "git difftool", "git filter-branch"),
        *("git mergetool", "git push", "git rebase", "git reset", "git submodule", "git clone"),
        *("go generate", "go get", "go install", "go run", "go tool", "kubectl apply"),
        *("kubectl cp", "kubectl debug", "kubectl delete", "kubectl exec", "kubectl run"),
        *("npm config", "npm exec", "npm i", "npm init", "npm install", "npm publish", "npm x"),
        *("pdm run", "pip config", "pip install", "pip3 install", "podman exec", "podman run"),
        *("pnpm add", "pnpm config", "pnpm create", "pnpm dlx", "pnpm exec", "pnpm publish"),
        *("poetry add", "poetry publish", "poetry run", "systemctl edit", "systemctl link"),
        *("terraform apply", "terraform destroy", "tofu apply", "tofu destroy", "uv add"),
        *("uv publish", "uv run", "uv tool", "yarn add", "yarn create", "yarn dlx", "yarn exec"),
        *("yarn node", "yarn publish"),
    }
)
# The same by the word that says what is done, for all of these programs.
_NEVER_VERBS = frozenset(
    {
        *("add", "apply", "clone", "cp", "create", "delete", "deploy", "destroy", "exec", "i"),
        *("import", "install", "mv", "publish", "push", "remove", "require", "reset", "rm", "run"),
        *("sync", "uninstall", "update", "upgrade"),
    }
)
_HARMLESS = frozenset({"git add"})


def common_head(words: Sequence[Word]) -> tuple[str, ...]:
    """The program and its sub-command, by which commands are of one kind; empty if it has none."""
    texts = tuple(word.text for word in words[:3])
    if len(texts) < 2 or texts[0] not in _PROGRAMS:
        return ()
    two = " ".join(texts[:2])
    head = texts[: 3 if two in _THIRD else 2]
    is_plain = all(word.is_literal and _PLAIN.fullmatch(word.text) for word in words[: len(head)])
    is_never = two in _NEVER or (head[-1] in _NEVER_VERBS and two not in _HARMLESS)
    return head if is_plain and not is_never and len(texts) >= len(head) else ()


def common_words(head: tuple[str, ...], commands: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """The words that all of them begin with, from their head on; empty if each stays by itself."""
    if not head or len(commands) <= COMMANDS_MOST:
        return ()
    common = len(head)
    for place in range(common, min(map(len, commands))):
        words = {command[place] for command in commands}
        if len(words) > 1 or _PLAIN_OPTION.fullmatch(words.pop()) is None:
            break
        common = place + 1
    return commands[0][:common]


def shared_folders(
    files: Collection[tuple[str, ...]], is_worth: Callable[[tuple[str, ...]], bool]
) -> Iterator[tuple[tuple[str, ...], list[tuple[str, ...]]]]:
    """The narrowest folders that enough of the files share, each with those files."""
    left = set(files)
    for depth in range(max(map(len, left), default=0) - 1, 0, -1):
        counts = Counter(path[:depth] for path in left if len(path) > depth)
        for folder, count in sorted(counts.items()):
            if count >= FILES_LEAST and is_worth(folder):
                inside = sorted(
                    path for path in left if path[:depth] == folder and len(path) > depth
                )
                left.difference_update(inside)
                yield folder, inside
