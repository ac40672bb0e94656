"""No hint and no document tells a person to install a package that is not ours.

A package index gives a name to whoever asks first: a hint with a stranger's name would install the
stranger's program in the place of Cellwall.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]

# A command behind `--` runs in a sandbox (`cellwall exec ID -- pip install NAME`).
_INSTALL = re.compile(
    r"(?<!-- )\b(?P<client>pip3?|uv pip|uv tool|uv|uvx|pipx|npm|npx|pnpm|yarn|apt|apt-get|dnf|apk|brew)"
    r" (?:(?:install|add|i|run|exec)(?= )|(?<=uvx |npx ))(?P<words>[^\n`;&|)]*)"
)
_WORD = re.compile(r"['\"]?([A-Za-z0-9@.][\w.@/-]*)(?:\[([\w,]+)\])?['\"]?[,.]?\Z")
# Packages of a distribution, which its own maintainers name, and why we ask for them.
_DISTRIBUTION = {
    "curl": "is what lines of the README start inside",
    "bubblewrap": "builds the outer namespaces",
    "docker.io": "builds containers, in the place of bubblewrap",
    "podman": "builds containers without root",
    "qemu-system-x86": "runs virtual machines",
    "qemu-system-arm": "runs virtual machines on Arm",
    "linux-image-amd64": "is the kernel of virtual machines",
    "linux-image-arm64": "is the kernel of virtual machines on Arm",
    "nodejs": "runs JavaScript",
    "python3": "runs Python inside",
    "bash": "runs shell code inside",
    "npm": "locks and installs packages of npm in a cell",
}
# Our own sources and files of the user's project: no index is asked for a name.
_LOCAL = frozenset((".", "-r", "--force-reinstall", "--upgrade"))
# Text about what agents type, judged by policy, is no hint to a person.
_JUDGED = ("policy/", "guard/detect/packs", "guard/code", "docs/guides/policy.md")


def named_packages(text: str) -> list[tuple[str, str, str]]:
    """Client, package and extras of every install command in a text."""
    found = []
    for match in _INSTALL.finditer(text):
        for word in match["words"].split():
            if word in _LOCAL or word.startswith("-"):
                continue
            package = _WORD.match(word)
            if package is None or package[1] in _LOCAL:
                break
            found.append((match["client"], package[1], package[2] or ""))
            if word.endswith((",", ".")):
                break
            if match["client"] in ("uvx", "npx", "pipx"):
                break
    return found


def problem(client: str, package: str, extras: str) -> str | None:
    if client in ("apt", "apt-get", "dnf", "apk", "brew"):
        return None if package in _DISTRIBUTION else f"{package} is no package of a distribution"
    if package != PROJECT["name"]:
        return f"{client} would install {package}, which is not ours"
    unknown = set(filter(None, extras.split(","))) - PROJECT["optional-dependencies"].keys()
    return f"there is no extra {sorted(unknown)}" if unknown else None


def texts() -> list[Path]:
    found = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("src/**/*.py")]
    return [path for path in found if not any(part in str(path) for part in _JUDGED)]


def test_every_install_hint_names_our_own_package():
    wrong = [
        f"{path.relative_to(ROOT)}: {reason}"
        for path in texts()
        for one in named_packages(path.read_text("utf-8"))
        if (reason := problem(*one)) is not None
    ]
    assert wrong == []


def test_the_search_finds_the_hints_that_are_there():
    found = {one for path in texts() for one in named_packages(path.read_text("utf-8"))}
    assert {("pip", "cellwall", "claude"), ("apt-get", "bubblewrap", "")} <= found


@pytest.mark.parametrize(
    "hint",
    [
        "pip install 'holdfast[claude]'",
        "uvx holdfast hook",
        "uv tool install holdfast",
        "npm install holdfast",
        "pipx run holdfast",
        "pip install cellwall[nothing]",
        "pip install cellwall-extras",
        "apt-get install cellwall",
    ],
)
def test_a_foreign_package_would_be_found(hint):
    assert any(problem(*one) for one in named_packages(f"Install the extra: `{hint}`."))
