"""The rules that a question proposes (POL-8). Pure.

A rule is proposed, the narrowest first, only where its text means exactly the words that were seen:
no quotes, patterns or operators. A person writes other rules into the policy by hand.
"""

from __future__ import annotations

import re

from cellwall.core.approvals import Proposal
from cellwall.core.verdict import Decision, Verdict

# Characters without meaning to a shell or a rule: no quote, blank, `*`, `$`, `~`, bracket.
_WORD = re.compile(r"[A-Za-z0-9_./:@=+,%^-]+")
_MAX_RULE = 300
_PATH = re.compile(r"[A-Za-z0-9_./@+,%-]+(?: [A-Za-z0-9_./@+,%-]+)*")
_DOMAIN = re.compile(r"https?://((?:[a-z0-9-]{1,63}\.){1,8}[a-z]{2,63})(?:[:/?#].*)?", re.DOTALL)
_PACKAGE = re.compile(r"(?:pypi|npm):(?:@[a-z0-9._~-]{1,100}/)?[a-z0-9._~-]{1,214}")
_PORT = re.compile(r"connect to port ([0-9]{1,5}) of the sandbox")
_TOOL = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,127}")
_FILE_TOOLS = frozenset({"Read", "Edit", "Write"})
# Programs whose first argument is a subcommand, and the subcommands that run any other program: a
# pattern after one of these would allow everything.
_RUNS_ANYTHING = {
    "cargo": {"run", "install"},
    "docker": {"run", "exec", "compose", "build"},
    "gh": {"api", "alias", "extension"},
    "git": {"config", "submodule", "filter-branch", "bisect", "rebase", "difftool", "mergetool"},
    "go": {"run", "generate", "tool", "install"},
    "kubectl": {"exec", "run", "debug", "cp"},
    "npm": {"exec", "x", "run", "config", "install-test", "init"},
    "pip": {"install", "config"},
    "pnpm": {"exec", "dlx", "run", "config", "create"},
    "systemctl": {"edit", "link", "set-environment"},
    "uv": {"run", "tool", "x"},
    "yarn": {"exec", "dlx", "run", "config", "create", "node"},
}


def propose(tool: str, text: str, decision: Decision) -> tuple[Proposal, ...]:
    """Rules that would allow this call; none where no short literal text matches exactly it."""
    if tool == "Bash":
        asking = asking_parts(decision)
        if any(part.source.startswith("built-in") for part in asking):
            return ()  # built-in questions are asked whatever a rule says
        # Two parts that ask would need two rules; only one is offered.
        subjects = {part.subject for part in asking if part.subject}
        if len(subjects) > 1:
            return ()
        return _for_command(subjects.pop() if subjects else text)
    if tool in _FILE_TOOLS:
        return _for_path(tool, text)
    if tool == "WebFetch":
        return _for_address(text)
    if tool in {"Install", "Port"}:
        return _for_package(text) if tool == "Install" else _for_port(text)
    if _TOOL.fullmatch(tool) and tool not in {"Code", "Process"}:
        return (Proposal(tool, f"every call of {tool}, with any arguments"),)
    return ()


def asking_parts(decision: Decision) -> tuple[Decision, ...]:
    """The innermost parts whose verdict is ASK."""
    found: list[Decision] = []
    for part in decision.parts:
        if part.verdict is Verdict.ASK:
            found += asking_parts(part) or (part,)
    return tuple(found)


def _for_command(text: str) -> tuple[Proposal, ...]:
    words = text.split(" ")
    if not all(_WORD.fullmatch(word) for word in words) or "=" in words[0]:
        return ()
    # `git push:*` is the legacy spelling of a pattern.
    if len(text) > _MAX_RULE or text.endswith(":"):
        return ()
    same = "this exact command again, in every session and folder"
    proposals = [Proposal(f"Bash({text})", same)]
    if len(words) > 1 and words[1] not in _RUNS_ANYTHING.get(words[0], {words[1]}):
        begin = " ".join(words[:2])
        if not words[1].startswith("-"):
            also = f"every command that begins with `{begin}`, whatever follows"
            proposals.append(Proposal(f"Bash({begin} *)", also))
    return tuple(proposals)


def _for_path(tool: str, text: str) -> tuple[Proposal, ...]:
    parts = text.split("/")
    if not _PATH.fullmatch(text) or ".." in parts or len(text) > _MAX_RULE:
        return ()
    if not text.startswith("/") or text.startswith("//"):
        return ()  # a relative path has another meaning in each directory
    return (Proposal(f"{tool}(/{text})", "this exact file again, in every session"),)


def _for_package(text: str) -> tuple[Proposal, ...]:
    if _PACKAGE.fullmatch(text) is None:
        return ()
    also = "every version of this package in every session, where no check denies the version"
    return (Proposal(f"Install({text})", also),)


def _for_port(text: str) -> tuple[Proposal, ...]:
    found = _PORT.fullmatch(text)
    if found is None:
        return ()
    return (Proposal(f"Port({found[1]})", f"every connection to port {found[1]} of a sandbox"),)


def _for_address(text: str) -> tuple[Proposal, ...]:
    found = _DOMAIN.fullmatch(text)
    if found is None:
        return ()
    domain = found[1]
    return (Proposal(f"WebFetch(domain:{domain})", f"every page of {domain}"),)
