"""The names of languages; which program runs them is the sandbox's affair."""

from __future__ import annotations

from cellwall.core.errors import BadInput

ALIASES = {
    "python": "python",
    "py": "python",
    "python3": "python",
    "shell": "shell",
    "sh": "shell",
    "bash": "shell",
    "javascript": "javascript",
    "js": "javascript",
    "node": "javascript",
    "typescript": "typescript",
    "ts": "typescript",
    "c": "c",
    "cpp": "cpp",
    "c++": "cpp",
    "cxx": "cpp",
    "go": "go",
    "golang": "go",
    "java": "java",
    "rust": "rust",
    "rs": "rust",
}

BY_EXTENSION = {
    ".py": "python",
    ".sh": "shell",
    ".bash": "shell",
    ".js": "javascript",
    ".mjs": "javascript",
    ".ts": "typescript",
    ".c": "c",
    ".cc": "cpp",
    ".cpp": "cpp",
    ".cxx": "cpp",
    ".go": "go",
    ".java": "java",
    ".rs": "rust",
}

NAMES = tuple(sorted(set(ALIASES.values())))


def canonical(language: str) -> str:
    """The canonical name of a language; the error for an unknown one lists all names."""
    name = ALIASES.get(language.strip().lower())
    if name is None:
        raise BadInput(
            f"unknown language {language[:40]!r}",
            hint=f"Use one of: {', '.join(NAMES)}.",
            code="CW-UNKNOWN-LANGUAGE",
        )
    return name
