"""What an npm package does when it is installed and loaded (PKG-1, PKG-3)."""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from cellwall.core.verdict import Verdict
from cellwall.packages.inspection.archives import Member
from cellwall.packages.inspection.behaviours import Behaviour, Observation, When, judge_code
from cellwall.packages.inspection.code_screening import CodeScreening
from cellwall.packages.inspection.commands import shadowed_commands
from cellwall.packages.inspection.findings import ArtifactFinding
from cellwall.packages.inspection.javascript_code import observe_javascript
from cellwall.packages.inspection.signs import signs_of_command, signs_of_text

MAX_MANIFEST_BYTES = 1024 * 1024
INSTALL_SCRIPTS = ("preinstall", "install", "postinstall")
# Run for packages from git and folders only, so no question; a screening costs nothing.
_SCREENED_SCRIPTS = (*INSTALL_SCRIPTS, "prepare", "prepublish", "preprepare", "postprepare")
_NOT_LOADED = frozenset({"test", "tests", "__tests__", "docs", "example", "examples", "benchmark"})
_NATIVE = (".node", ".so", ".dll", ".dylib", ".exe")
# Sends what the shell puts in its place: `curl -d "$(env)" …`, `curl http://x/$(whoami)`.
_SENDING = re.compile(r"\b(?:curl|wget|nslookup|dig|ping|nc)\b[^\n]{0,300}?(?:\$\(|`|\$[A-Z_]{3})")


@dataclass(frozen=True, slots=True)
class _Manifest:
    findings: tuple[ArtifactFinding, ...]
    scripts: Mapping[str, str]


def inspect_tarball(members: Iterator[Member], name: str, version: str) -> list[ArtifactFinding]:
    """The findings on a tarball of this package and version. Reads the archive to its end."""
    data: bytes | None = None
    has_build_file, native, screening = False, [], CodeScreening()
    for member in members:
        path = member.name.partition("/")[2]
        if path == "package.json":
            data = member.read(MAX_MANIFEST_BYTES)
        elif path == "binding.gyp":
            has_build_file = True
        if _NOT_LOADED.isdisjoint(path.split("/")[:-1]):
            screening.add(path, member.read(member.size))
        if path.endswith(_NATIVE):
            native.append(path)
    manifest = _read_manifest(data, name, version, has_build_file=has_build_file)
    installing = frozenset(
        path for script in manifest.scripts.values() for path in _started_files(script)
    )
    found = [*manifest.findings, *screening.findings(installing)]
    for script, command in manifest.scripts.items():
        found += judge_code(f"package.json: {script}", _observe_script(command))
    if native:
        text = f"native code: {', '.join(native[:5])}"
        found.append(ArtifactFinding("native-code", Verdict.ALLOW, text))
    return found


def _deny(code: str, text: str) -> ArtifactFinding:
    return ArtifactFinding(code, Verdict.DENY, text, is_proof=True)


def _read_manifest(
    data: bytes | None, name: str, version: str, *, has_build_file: bool
) -> _Manifest:
    try:
        manifest: Any = json.loads(data or b"")
        scripts, commands = manifest.get("scripts") or {}, manifest.get("bin") or {}
        is_same = (manifest["name"], manifest["version"]) == (name, version)
        provided = {name.rpartition("/")[2]} if isinstance(commands, str) else set(commands)
        run = [each for each in INSTALL_SCRIPTS if each in scripts]
        screened = {each: str(scripts[each]) for each in _SCREENED_SCRIPTS if each in scripts}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return _Manifest((_deny("metadata", "package.json cannot be read"),), {})
    findings = []
    if not is_same:
        text = f"package.json names another package or version than {name} {version}"
        findings.append(_deny("metadata", text))
    if has_build_file and not run:
        run = ["install (binding.gyp)"]  # npm then runs node-gyp
    if run:
        text = f"runs code when it is installed: {', '.join(run)}"
        findings.append(ArtifactFinding("install-script", Verdict.ASK, text))
    if taken := shadowed_commands(provided, name):
        text = f"provides commands of the system: {', '.join(taken)}"
        findings.append(ArtifactFinding("system-command", Verdict.DENY, text))
    return _Manifest(tuple(findings), screened)


def _started_files(script: str) -> Iterator[str]:
    """The files of the package that a script runs: `node scripts/install.js`."""
    for word in _words(script):
        path = posixpath.normpath(word)
        yield path
        yield f"{path}.js"
        yield f"{path}/index.js"


def _words(script: str) -> list[str]:
    try:
        return shlex.split(script.replace("&&", " ").replace(";", " "))
    except ValueError:
        return script.split()


def _observe_script(command: str) -> Iterator[Observation]:
    signs = [*signs_of_text(command), *signs_of_command(command)]
    yield from (Observation(each, 1, When.INSTALL) for each in signs)
    if _SENDING.search(command[:4096]):
        for each in (Behaviour.READ_HOST, Behaviour.SEND):
            yield Observation(each, 1, When.INSTALL)
    words = _words(command)
    for flag, code in pairwise(words):
        if flag in {"-e", "--eval", "-p", "--print"}:
            yield from observe_javascript(code.encode(), is_install=True)
