"""What a wheel does when it is installed and imported, from its files (PKG-1, PKG-3).

A wheel runs no code when it is installed. It can run code at every later start of Python (a `.pth`
file, `sitecustomize`, a module that takes the place of another package or of the standard library),
at every start of a tool (an entry point that the tool loads), and when it is imported.
"""

from __future__ import annotations

import base64
import configparser
import sys
from collections.abc import Iterator

from packaging.utils import canonicalize_name

from cellwall.core.verdict import Verdict
from cellwall.packages.inspection.archives import Member
from cellwall.packages.inspection.code_screening import CodeScreening, Language
from cellwall.packages.inspection.commands import shadowed_commands
from cellwall.packages.inspection.findings import ArtifactFinding
from cellwall.packages.inspection.wheel_record import (
    check_folders,
    check_metadata,
    check_record,
    is_for_any_platform,
)
from cellwall.packages.names import Ecosystem
from cellwall.packages.popular import imported_package, popular_rank

_NATIVE = (".so", ".pyd", ".dll", ".dylib", ".a", ".o", ".exe")
_MODULES = (".py", ".pyc", ".so", ".pyd")
_START_UP_MODULES = frozenset({"sitecustomize", "usercustomize"})
# Backports of modules, and packages older than the module of their name.
_BACKPORTS = frozenset(
    {"dataclasses", "enum", "typing", "pathlib", "contextvars", "graphlib", "tomllib", "zoneinfo"}
)
# Entry points of these groups are loaded by a tool without being asked for.
_AUTOMATIC_GROUPS = frozenset({
    "pytest11", "distutils.commands", "distutils.setup_keywords", "egg_info.writers",
    "setuptools.finalize_distribution_options", "flake8.extension", "hypothesis",
    "opentelemetry_configurator", "opentelemetry_distro", "opentelemetry_pre_instrument",
})  # fmt: skip
# Folders of an environment that are not of one package; lib64 is a link to lib there.
_OF_SYSTEM = frozenset(
    ["bin", "etc", "lib", "lib64", "Lib", "libexec", "local", "sbin", "Scripts", "usr"]
)
_SHADOWED_RANK = 1500
"""A top-level module with the name of a package of this rank is likely to be imported by others."""
_MAX_LISTED = 5


def inspect_wheel(
    members: Iterator[Member], name: str, version: str, metadata_sha256: str | None = None
) -> list[ArtifactFinding]:
    """The findings on a wheel of this canonical name and version. Reads the archive to its end.

    `metadata_sha256`: the hash of the metadata that the index serves apart from the wheel.
    """
    reader = _WheelReader(name, version, metadata_sha256)
    for member in members:
        reader.add(member)
    return reader.findings()


class _WheelReader:
    def __init__(self, name: str, version: str, metadata_sha256: str | None) -> None:
        self._name = name
        self._version = version
        self._metadata_sha256 = metadata_sha256
        self._findings: list[ArtifactFinding] = []
        self._hashes: dict[str, str] = {}
        self._digests: dict[str, str] = {}
        self._described: dict[str, bytes] = {}
        """The files of `.dist-info` by their names in that folder."""
        self._folders: set[str] = set()
        self._native: list[str] = []
        self._bytecode: dict[str, bytes] = {}
        """The header of each file."""
        self._modules: dict[str, str] = {}
        """Top-level modules, each with the file that makes it one."""
        self._scripts: set[str] = set()
        self._screening = CodeScreening()

    def add(self, member: Member) -> None:
        content = member.read(member.size)
        digest = base64.urlsafe_b64encode(member.sha256).rstrip(b"=")
        self._hashes[member.name] = f"sha256={digest.decode()}"
        top, _, rest = member.name.partition("/")
        if top.endswith(".dist-info"):
            self._folders.add(top)
            self._described.setdefault(rest, content)
            self._digests.setdefault(rest, member.sha256.hex())
            return
        path = member.name
        if top.endswith(".data"):
            kind, _, path = rest.partition("/")
            self._check_data(member.name, kind, path)
            if kind == "data":
                kind, path = _place_of(path)
            if kind == "scripts":
                self._scripts.add(path)
            if kind not in {"purelib", "platlib"}:
                is_python = kind == "scripts" and _is_python_script(content)
                language = Language.PYTHON if is_python else None
                self._screening.add(member.name, content, size=member.size, language=language)
                return
        self._add_installed(path, content, member.size)
        if member.name.endswith(_NATIVE):
            self._native.append(member.name)

    def _add_installed(self, path: str, content: bytes, size: int) -> None:
        """A file below site-packages. `.data/purelib` is copied there as well."""
        top, _, rest = path.partition("/")
        is_start_up = not rest and path.endswith(".pth")
        if is_start_up:
            self._check_pth(path, content)
        if not rest and path.endswith(".start"):  # PEP 829
            self._report("pth-code", Verdict.DENY, f"{path} runs code at every start of Python")
        if path.endswith(_MODULES) and (not rest or rest.startswith("__init__.")):
            module = top.partition(".")[0]
            self._modules.setdefault(module, path)
            is_start_up = module in _START_UP_MODULES
        if path.endswith(".pyc"):
            self._bytecode[path] = content[:8]
        self._screening.add(path, content, size=size, is_start_up=is_start_up)

    def _check_pth(self, name: str, content: bytes) -> None:
        # site.py executes a line that begins with `import` and a space or a tab. Since Python 3.13
        # its lines are those of str: a form feed begins one, and a byte order mark is skipped.
        lines = content.decode("utf-8-sig", "replace").splitlines()
        if any(line.lstrip().startswith(("import ", "import\t")) for line in lines):
            text = f"{name} runs code at every start of Python"
            self._report("pth-code", Verdict.DENY, text)
        else:
            self._report("pth", Verdict.ASK, f"{name} adds folders to Python's path")

    def _check_data(self, name: str, kind: str, path: str) -> None:
        if kind not in {"purelib", "platlib", "scripts", "headers", "data"}:
            self._report("data", Verdict.DENY, f"{name} belongs to no kind of wheel data")
        elif kind == "data" and (path == "pyvenv.cfg" or path.partition("/")[0] in _OF_SYSTEM):
            self._report("data", Verdict.ASK, f"{name} is installed outside of the package")

    def _report(self, code: str, verdict: Verdict, text: str) -> None:
        self._findings.append(ArtifactFinding(code, verdict, text))

    def findings(self) -> list[ArtifactFinding]:
        self._check_modules()
        self._check_entry_points()
        found = self._findings + self._screening.findings()
        found += check_folders(self._folders, self._name, self._version)
        found += check_metadata(
            self._described.get("METADATA"),
            self._name,
            self._version,
            self._metadata_sha256,
            self._digests.get("METADATA", ""),
        )
        found += check_record(self._described.get("RECORD"), self._hashes)
        found += self._check_binaries()
        return found

    def _check_modules(self) -> None:
        for module in sorted(self._modules):
            if module in _START_UP_MODULES:
                text = f"{module} runs at every start of Python"
                self._report("start-up-module", Verdict.DENY, text)
            elif module in sys.stdlib_module_names - _BACKPORTS:
                text = f"the module {module} takes the name of a module of Python itself"
                self._report("shadows-stdlib", Verdict.ASK, text)
            elif (owner := self._shadowed_package(module)) is not None:
                text = f"the module {module} takes the place of the package {owner}"
                self._report("shadows-package", Verdict.ASK, text)

    def _shadowed_package(self, module: str) -> str | None:
        own = canonicalize_name(module)
        owner = imported_package(Ecosystem.PYPI, own) or own
        rank = popular_rank(Ecosystem.PYPI, owner)
        # `opencv-python-headless` provides cv2 as `opencv-python` does: variants share a name.
        words = {self._name.replace("-", ""), *self._name.split("-")}
        is_own = owner == self._name or own in words or bool(set(owner.split("-")) & words)
        return owner if rank is not None and rank <= _SHADOWED_RANK and not is_own else None

    def _check_entry_points(self) -> None:
        parser = configparser.RawConfigParser(delimiters=("=",), strict=False)
        parser.optionxform = str  # type: ignore[assignment,method-assign]  # the documented way
        try:
            parser.read_string(self._described.get("entry_points.txt", b"").decode("utf-8"))
        except (configparser.Error, UnicodeDecodeError):
            self._report("entry-points", Verdict.ASK, "entry_points.txt cannot be read")
            return
        for group in parser.sections():
            names = list(parser[group])
            if group.strip() in {"console_scripts", "gui_scripts"}:
                self._scripts.update(names)
                # Installers join the name with their folder of programs, and some check nothing.
                if any("/" in each or "\\" in each or each in {".", ".."} for each in names):
                    text = "a program has a path for its name"
                    self._findings.append(
                        ArtifactFinding("script-path", Verdict.DENY, text, is_proof=True)
                    )
            elif group in _AUTOMATIC_GROUPS and names:
                text = f"{group} loads code of the package in every run: {_shorten(names)}"
                self._report("loaded-automatically", Verdict.ALLOW, text)
        if taken := shadowed_commands(self._scripts, self._name):
            text = f"provides commands of the system: {', '.join(taken)}"
            self._report("system-command", Verdict.DENY, text)

    def _check_binaries(self) -> Iterator[ArtifactFinding]:
        sources = self._hashes.keys()
        alone = [path for path in self._bytecode if _source_of(path) not in sources]
        if alone:
            text = f"bytecode without its source: {_shorten(alone)}"
            yield ArtifactFinding("bytecode", Verdict.ASK, text)
        # (PEP 552) Bytecode with a hash of its source runs in the place of the source, whatever it
        # was compiled from; with a time it is out of date as soon as the source is unpacked.
        hashed = [path for path, header in self._bytecode.items() if header[4:] != bytes(4)]
        if replaced := [path for path in hashed if path not in alone]:
            text = f"bytecode that runs in the place of its source: {_shorten(replaced)}"
            yield ArtifactFinding("bytecode", Verdict.ASK, text)
        if not self._native:
            return
        if is_for_any_platform(self._described.get("WHEEL")):
            text = f"native code in a wheel for any platform: {_shorten(self._native)}"
            yield ArtifactFinding("native-code", Verdict.ASK, text)
        else:
            text = f"native code: {_shorten(self._native)}"
            yield ArtifactFinding("native-code", Verdict.ALLOW, text)


def _place_of(path: str) -> tuple[str, str]:
    """The kind of wheel data that a file below `data` is, which is the root of the environment."""
    top, _, rest = path.partition("/")
    if top in {"bin", "sbin", "Scripts"}:
        return "scripts", rest
    for folder in ("/site-packages/", "/dist-packages/"):
        before, found, inside = path.partition(folder)
        if found and before.partition("/")[0] in {"lib", "lib64", "Lib", "local"}:
            return "purelib", inside
    return "data", path


def _is_python_script(content: bytes) -> bool:
    first = content.partition(b"\n")[0]
    return first.startswith(b"#!") and b"python" in first


def _source_of(path: str) -> str:
    folder, _, name = path.rpartition("/")
    if folder.endswith("__pycache__"):
        return f"{folder.removesuffix('__pycache__')}{name.partition('.')[0]}.py"
    return path[:-1]


def _shorten(names: list[str]) -> str:
    more = len(names) - _MAX_LISTED
    return ", ".join(names[:_MAX_LISTED]) + (f" and {more} more" if more > 0 else "")
