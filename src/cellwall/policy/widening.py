"""When several things that were seen become one wider rule, and how wide. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence

from cellwall.parsing.shell.words import Word

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
