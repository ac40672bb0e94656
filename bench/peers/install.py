"""Installs the peers: Debian packages on the host, all others into the scratch directory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence

from peers.job import PYTHON, Place

# The program that shows a package is there, by package; the products that need it.
_DEBIAN = {
    "bubblewrap": ("bwrap", ("bubblewrap", "srt", "codex")),
    "firejail": ("firejail", ("firejail",)),
    "runc": ("runc", ("runc", "runsc", "docker")),
    "runsc": ("runsc", ("runsc",)),
    "docker.io": ("dockerd", ("docker", "llm-sandbox")),
    "npm": ("npm", ("srt", "codex")),
    "socat": ("socat", ("srt",)),
    "ripgrep": ("rg", ("srt",)),
    "python3-venv": ("", ("sandlock", "nono-py", "llm-sandbox", "deno")),
}
_PYPI = {
    "sandlock": "sandlock",
    "nono-py": "nono-py",
    "llm-sandbox": "llm-sandbox[docker]",
    "deno": "deno",
}
_NPM = {"srt": "@anthropic-ai/sandbox-runtime", "codex": "@openai/codex"}
_WITHIN_S = 600.0
_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"


def failures_file(place: Place) -> str:
    return place.installed("failures.json")


def read_failures(place: Place) -> dict[str, str]:
    """The products that could not be installed, and why."""
    try:
        with open(failures_file(place), encoding="utf-8") as file:
            found: dict[str, str] = json.load(file)
    except FileNotFoundError:
        return {}
    return found


def install(place: Place, tell: Callable[[str], None]) -> dict[str, str]:
    """Install what is missing; one product that fails does not stop the others."""
    os.makedirs(place.installed(), exist_ok=True)
    failed: dict[str, str] = {}
    for package, (program, products) in _DEBIAN.items():
        is_there = shutil.which(program, path=_PATH) if program else _has_venv()
        if not is_there and (reason := _install_debian(package, tell)):
            failed |= dict.fromkeys(products, reason)
    for product, requirement in _PYPI.items():
        folder = place.installed(product)
        if not os.path.exists(os.path.join(folder, "bin", "python")):
            reason = _run([PYTHON, "-m", "venv", folder], tell)
            if reason:
                failed[product] = reason
                continue
        words = [os.path.join(folder, "bin", "python"), "-m", "pip", "install", "--quiet"]
        reason = _run([*words, "--disable-pip-version-check", requirement], tell)
        if reason:
            failed[product] = reason
    for product, package in _NPM.items():
        folder = place.installed("npm")
        words = ["npm", "install", "--no-audit", "--no-fund", "--prefix", folder, package]
        reason = _run(words, tell)
        if reason:
            failed[product] = reason
    with open(failures_file(place), "w", encoding="utf-8") as file:
        json.dump(failed, file, indent=2)
    return failed


def _has_venv() -> bool:
    words = [PYTHON, "-c", "import ensurepip"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def _install_debian(package: str, tell: Callable[[str], None]) -> str:
    if os.geteuid() != 0:
        return f"apt-get install {package} needs root"
    words = ["apt-get", "install", "-y", "-q", "--no-install-recommends", package]
    return _run(words, tell)


def _run(words: Sequence[str], tell: Callable[[str], None]) -> str:
    """Empty, or the command and the last line of its error."""
    shown = " ".join(os.path.basename(words[0]) if n == 0 else w for n, w in enumerate(words))
    tell(shown)
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            words, env=env, capture_output=True, text=True, timeout=_WITHIN_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{words[0]}: {error}"[:300]
    if done.returncode == 0:
        return ""
    print(done.stderr, file=sys.stderr)
    last = (done.stderr.strip() or done.stdout.strip()).rpartition("\n")[2]
    return f"{os.path.basename(words[0])} {words[-1]}: {last}"[:300]
