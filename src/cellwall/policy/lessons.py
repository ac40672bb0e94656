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

_MAX_SHOWN = 8
_MAX_REFUSED = 200


@dataclass(frozen=True, slots=True)
class ProposedRule:
    """A proposed rule, and what a person should know before accepting it."""

    rule: str
    stands_for: tuple[str, ...] = ()
    """The recorded calls that a wider rule replaces."""
    also_allows: str = ""
    answers: str = ""
    """The question that the rule lifts; empty: a plain allow."""

    def table(self, reason: str) -> dict[str, str]:
        """The `[[rule]]` table of a policy file."""
        table = {"verdict": "allow", "rule": self.rule, "reason": reason}
        return {**table, "answers": self.answers} if self.answers else table


@dataclass(frozen=True, slots=True)
class RefusedCall:
    """A call that no rule is proposed for."""

    call: str
    reason: str


@dataclass(frozen=True, slots=True)
class Lesson:
    """The proposals and refusals that follow from the recorded calls."""

    proposed: tuple[ProposedRule, ...] = ()
    refused: tuple[RefusedCall, ...] = ()
    seen: int = 0
    allowed_now: int = 0
    """Recorded calls that the current rules allow."""


def to_toml(lesson: Lesson) -> str:
    """A policy file; calls without a proposal stand in its comments."""
    count = lesson.seen - lesson.allowed_now
    lines = [
        f"# Proposed by `cellwall policy learn`, from {count} calls that no rule allows.",
        "# A misled agent may have made these calls: read each line before you keep it.",
        "",
    ]
    plain = [each for each in lesson.proposed if not each.answers]
    answering = [each for each in lesson.proposed if each.answers]
    if plain or not answering:
        lines += ["[permissions]", "allow = ["]
        for each in plain:
            lines += [f"  # {text}" for text in _comments(each)]
            lines.append(f"  {quote_toml(each.rule)},")
        lines.append("]")
    for each in answering:
        lines += [*rule_lines(each, "proposed by `cellwall policy learn`"), ""]
    if lesson.refused:
        lines += ["", "# No rule is proposed for these:"]
    for refused in lesson.refused[:_MAX_REFUSED]:
        lines += [f"#   {escaped(refused.call)}", f"#     {one_line(refused.reason, most=300)}"]
    if len(lesson.refused) > _MAX_REFUSED:
        lines.append(f"#   and {len(lesson.refused) - _MAX_REFUSED} more")
    return "\n".join(lines) + "\n"


def rule_lines(each: ProposedRule, reason: str) -> list[str]:
    """One `[[rule]]`, with notes for the reviewer in comments above it."""
    comments = [f"# {text}" for text in _comments(each)]
    keys = [f"{key} = {quote_toml(value)}" for key, value in each.table(reason).items()]
    return [*comments, "[[rule]]", *keys]


def _comments(each: ProposedRule) -> Iterator[str]:
    if each.stands_for:
        yield f"Stands for {len(each.stands_for)} that were seen:"
        yield from (f"  {escaped(text)}" for text in each.stands_for[:_MAX_SHOWN])
        if len(each.stands_for) > _MAX_SHOWN:
            yield f"  and {len(each.stands_for) - _MAX_SHOWN} more"
    if each.also_allows:
        yield f"Also allows {escaped(each.also_allows)}."


def quote_toml(text: str) -> str:
    """A TOML string of one line; invisible characters are escaped."""
    return '"' + "".join(map(_character, text)) + '"'


def _character(char: str) -> str:
    if char in {'"', "\\"}:
        return f"\\{char}"
    if escaped(char) == char:
        return char
    code = ord(char)
    if 0xD800 <= code <= 0xDFFF:  # a lone surrogate, which TOML cannot express
        return "?"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


# How a learnt rule spells a path, by the file that the rule is for.


@dataclass(frozen=True, slots=True)
class RuleFile:
    """The file that the proposals are for."""

    layer: Layer = Layer.SESSION
    folder: str = ""
    """The folder of paths with one leading slash; empty: none."""

    def spelled(self, path: str, subject: Subject, beneath: str) -> str:
        """The spelling by which a rule of that file matches this path alone.

        `./path` is another file for each working directory that the rule counts in: in the file of
        a user or a project that is every folder, or every folder of the project.
        """
        if self.layer not in {Layer.USER, Layer.PROJECT}:
            inside = below(subject.cwd, path)
            return f"/{path}" if inside is None else "/".join([".", *inside])
        inside = below(self.folder, path) if self.folder else None
        return "/".join(["", *inside]) if inside or (inside == () and beneath) else f"/{path}"


ANY_FOLDER = RuleFile()
"""A file for one session: its rules are relative to the working directory."""


def below(folder: str, path: str) -> tuple[str, ...] | None:
    """The names of the path below the folder; None for a path elsewhere."""
    names, start = names_of(path), names_of(folder)
    return names[len(start) :] if names[: len(start)] == start else None


def names_of(path: str) -> tuple[str, ...]:
    """The names of a path: its folders, and its own."""
    return tuple(name for name in path.split("/") if name)


# When several recorded calls become one wider rule, and how wide the rule is.

MAX_COMMANDS = 3
"""Up to this number, commands of one kind get a rule each."""
MIN_FILES = 3

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]*")
_PLAIN_OPTION = re.compile(r"-{0,2}[A-Za-z0-9][A-Za-z0-9_.:/=-]*")

# Programs whose second word names the operation.
_PROGRAMS = frozenset(
    {
        *("apt", "aws", "brew", "bun", "bundle", "cargo", "composer", "conda", "docker", "dotnet"),
        *("flutter", "gh", "git", "glab", "go", "helm", "kubectl", "npm", "pdm", "pip", "pip3"),
        *("pnpm", "podman", "poetry", "rustup", "systemctl", "terraform", "tofu", "uv", "yarn"),
    }
)
# Programs whose third word names the operation.
_THIRD = frozenset(
    {
        *("aws s3", "aws ec2", "docker compose", "docker container", "docker image"),
        *("docker network", "docker volume", "gh issue", "gh pr", "gh repo", "gh run"),
        *("git remote", "git stash", "git worktree", "go mod", "npm run", "pnpm run", "yarn run"),
        *("bun run", "composer run-script", "uv pip"),
    }
)
# Operations that run other code, reach other machines, or cannot be undone: one rule per command.
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
# The same by the verb alone, for all of these programs.
_NEVER_VERBS = frozenset(
    {
        *("add", "apply", "clone", "cp", "create", "delete", "deploy", "destroy", "exec", "i"),
        *("import", "install", "mv", "publish", "push", "remove", "require", "reset", "rm", "run"),
        *("sync", "uninstall", "update", "upgrade"),
    }
)
_HARMLESS = frozenset({"git add"})


def common_head(words: Sequence[Word]) -> tuple[str, ...]:
    """The program and sub-command that make commands one kind; empty if there is none."""
    texts = tuple(word.text for word in words[:3])
    if len(texts) < 2 or texts[0] not in _PROGRAMS:
        return ()
    two = " ".join(texts[:2])
    head = texts[: 3 if two in _THIRD else 2]
    is_plain = all(word.is_literal and _PLAIN.fullmatch(word.text) for word in words[: len(head)])
    is_never = two in _NEVER or (head[-1] in _NEVER_VERBS and two not in _HARMLESS)
    return head if is_plain and not is_never and len(texts) >= len(head) else ()


def common_words(head: tuple[str, ...], commands: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """The words that all commands begin with; empty if each command gets its own rule."""
    if not head or len(commands) <= MAX_COMMANDS:
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
            if count >= MIN_FILES and is_worth(folder):
                inside = sorted(
                    path for path in left if path[:depth] == folder and len(path) > depth
                )
                left.difference_update(inside)
                yield folder, inside
