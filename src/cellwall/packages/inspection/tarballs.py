"""What an npm package does when it is installed and loaded (PKG-1, PKG-3)."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from cellwall.core.verdict import Verdict
from cellwall.packages.inspection.archives import Member, strip_root
from cellwall.packages.inspection.behaviours import Behaviour, ObservedBehaviour, When, judge_code
from cellwall.packages.inspection.code_screening import (
    JAVASCRIPT,
    CodeScreening,
    Language,
)
from cellwall.packages.inspection.commands import shadowed_commands
from cellwall.packages.inspection.findings import ArtifactFinding
from cellwall.packages.inspection.javascript_code import observe_javascript
from cellwall.packages.inspection.npm_files import (
    SpareFiles,
    entry_files,
    is_loaded,
    started_files,
    words_of,
)
from cellwall.packages.inspection.signs import signs_of_command, signs_of_text

MAX_MANIFEST_BYTES = 1024 * 1024
INSTALL_SCRIPTS = ("preinstall", "install", "postinstall")
# Run for packages from git and folders only, so no question; a screening costs nothing.
_SCREENED_SCRIPTS = (*INSTALL_SCRIPTS, "prepare", "prepublish", "preprepare", "postprepare")
# npm installs what lies in `node_modules` of a package, and runs the scripts of each.
_INSTALLED = re.compile(r"((?:node_modules/(?:@[^/]+/)?[^/]+/)*)(package\.json|binding\.gyp)")
_NATIVE = (".node", ".so", ".dll", ".dylib", ".exe")
# Sends what the shell puts in its place: `curl -d "$(env)" …`, `curl http://x/$(whoami)`.
_SENDING = re.compile(r"\b(?:curl|wget|nslookup|dig|ping|nc)\b[^\n]{0,300}?(?:\$\(|`|\$[A-Z_]{3})")


@dataclass(frozen=True, slots=True)
class _NpmManifest:
    findings: tuple[ArtifactFinding, ...]
    scripts: Mapping[str, str]
    entries: tuple[str, ...] = ()


def inspect_tarball(members: Iterator[Member], name: str, version: str) -> list[ArtifactFinding]:
    """The findings on a tarball of this package and version. Reads the archive to its end."""
    reader = _TarballReader()
    for path, member in strip_root(members):
        reader.add(path, member)
    return reader.findings(name, version)


class _TarballReader:
    def __init__(self) -> None:
        self._manifests: dict[str, bytes] = {}
        """By folder: that of the package itself is empty, those of bundled ones are below."""
        self._builds: set[str] = set()
        self._native: list[str] = []
        self._paths: list[str] = []
        self._screening = CodeScreening(runs_javascript=True)
        self._spare = SpareFiles()

    def add(self, path: str, member: Member) -> None:
        data = member.read(member.size)
        self._paths.append(path)
        found = _INSTALLED.fullmatch(path)
        if found is not None and found[2] == "package.json":
            self._manifests[found[1]] = data if member.size <= MAX_MANIFEST_BYTES else b""
        elif found is not None:
            self._builds.add(found[1])
        if path.endswith(_NATIVE):
            self._native.append(path)
        if is_loaded(path):
            self._spare.note_names(path, data)
        else:
            self._spare.add(path, data)
        if is_loaded(path) or not path.endswith(JAVASCRIPT):
            self._screening.add(path, data, size=member.size)

    def findings(self, name: str, version: str) -> list[ArtifactFinding]:
        own = _read_manifest(
            self._manifests.pop("", b""),
            name,
            version,
            has_build_file="" in self._builds,
            files=self._paths,
        )
        found = list(own.findings)
        scripts = {("", each): command for each, command in own.scripts.items()}
        for folder, data in self._manifests.items():
            bundled = _read_bundled(data, has_build_file=folder in self._builds)
            if bundled is None or bundled.findings:
                text = f"bundles {folder[:200].rstrip('/')}, which runs code when it is installed"
                found.append(ArtifactFinding("install-script", Verdict.ASK, text))
            if bundled is not None:
                scripts |= {(folder, each): text for each, text in bundled.scripts.items()}
        installing = frozenset(
            path
            for (folder, _), script in scripts.items()
            for path in started_files(script, folder)
        )
        found += self._screen_named(own.entries, installing)
        found += self._screening.findings(installing)
        for (folder, script), command in scripts.items():
            found += judge_code(f"{folder}package.json: {script}", observe_command(command))
        if self._native:
            text = f"native code: {', '.join(self._native[:5])}"
            found.append(ArtifactFinding("native-code", Verdict.ALLOW, text))
        return found

    def _screen_named(
        self, entries: Sequence[str], installing: frozenset[str]
    ) -> list[ArtifactFinding]:
        """Files that Node or a script runs, and that are not in the place of code."""
        found: list[ArtifactFinding] = []
        for path, data in self._spare.take((*installing, *entries)):
            if path in installing and not path.endswith(JAVASCRIPT):
                text = data.decode("utf-8", "replace")
                found += judge_code(path, observe_command(text))
            self._screening.add(path, data, language=Language.JAVASCRIPT)
        if self._spare.is_incomplete:
            text = "the package runs a file that is too long to be inspected"
            found.append(ArtifactFinding("not-inspected", Verdict.ASK, text))
        return found


def _deny(code: str, text: str) -> ArtifactFinding:
    return ArtifactFinding(code, Verdict.DENY, text, is_proof=True)


def _is_below(path: str, folder: str) -> bool:
    """Whether a file is a command of `directories.bin`."""
    inside = posixpath.normpath(f"/{folder}").lstrip("/")
    return path.startswith(f"{inside}/") if inside else "/" not in path


def _read_bundled(data: bytes, *, has_build_file: bool) -> _NpmManifest | None:
    """The manifest of a bundled package, which npm installs like any other; None: not readable."""
    try:
        manifest = json.loads(data)
        name, version = manifest["name"], manifest["version"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    read = _read_manifest(data, name, version, has_build_file=has_build_file)
    return replace(read, findings=tuple(e for e in read.findings if e.code == "install-script"))


def _read_manifest(
    data: bytes, name: str, version: str, *, has_build_file: bool, files: Sequence[str] = ()
) -> _NpmManifest:
    try:
        manifest: Any = json.loads(data)
        scripts, commands = manifest.get("scripts") or {}, manifest.get("bin") or {}
        is_same = (manifest["name"], manifest["version"]) == (name, version)
        provided = [name] if isinstance(commands, str) else list(commands)
        folder = (manifest.get("directories") or {}).get("bin") or ""
        run = [each for each in INSTALL_SCRIPTS if each in scripts]
        screened = {each: str(scripts[each]) for each in _SCREENED_SCRIPTS if each in scripts}
        entries = tuple(entry_files(manifest))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return _NpmManifest((_deny("metadata", "package.json cannot be read"),), {})
    findings = []
    if not is_same:
        text = f"package.json names another package or version than {name} {version}"
        findings.append(_deny("metadata", text))
    if has_build_file and not run:
        run = ["install (binding.gyp)"]  # npm then runs node-gyp
    if run:
        text = f"runs code when it is installed: {', '.join(run)}"
        findings.append(ArtifactFinding("install-script", Verdict.ASK, text))
    provided += [each for each in files if folder and _is_below(each, str(folder))]
    # npm takes the last part of such a name.
    names = {re.split(r"[/\\:]", each)[-1] for each in provided}
    if taken := shadowed_commands(names, name):
        text = f"provides commands of the system: {', '.join(taken)}"
        findings.append(ArtifactFinding("system-command", Verdict.DENY, text))
    return _NpmManifest(tuple(findings), screened, entries)


def observe_command(command: str) -> Iterator[ObservedBehaviour]:
    """What a command of the shell does when the package is installed."""
    signs = [*signs_of_text(command), *signs_of_command(command)]
    yield from (ObservedBehaviour(each, 1, When.INSTALL) for each in signs)
    if _SENDING.search(command[:4096]):
        for each in (Behaviour.READ_HOST, Behaviour.SEND):
            yield ObservedBehaviour(each, 1, When.INSTALL)
    words = words_of(command)
    for flag, code in pairwise(words):
        if flag in {"-e", "--eval", "-p", "--print"}:
            yield from observe_javascript(code.encode(), is_install=True)
