"""Creates a first policy: inspects a project's folder, writes the file, trusts that content.

The folder may be hostile: no link is followed, no read blocks or is unbounded. The file is created
atomically, and never replaces a symbolic link.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice

from cellwall.admin.policy_learning import read_plain
from cellwall.admin.policy_trust import Offered, PolicyTrust, parsed_as
from cellwall.config.load import load_settings
from cellwall.core.errors import BadInput, CellwallError
from cellwall.core.types import Permission, Principal
from cellwall.core.verdict import Verdict
from cellwall.policy.engine import Policy
from cellwall.policy.policy_file import parse_policy
from cellwall.policy.rules import Layer
from cellwall.policy.starter import ProjectFiles, StarterPolicy, start
from cellwall.runtime.agent_processes import refuse_agents
from cellwall.runtime.approver_key import AskPassphrase
from cellwall.runtime.judging import require
from cellwall.runtime.policies import effective_policy
from cellwall.runtime.policy_places import PROJECT_FILES, absolute, project_files, user_policy

__all__ = ["Written", "begin", "beside", "place_of", "write"]

_MAX_ENTRIES = 10_000
_MAX_BYTES = 1 << 20
_NAMES = {
    "package.json": ("package.json",),
    "composer.json": ("composer.json",),
    "Makefile": ("GNUmakefile", "makefile", "Makefile"),
    "justfile": ("justfile", "Justfile", ".justfile"),
}
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Written:
    """The written policy file."""

    path: str
    start: StarterPolicy
    is_trusted: bool


def begin(folder: str | None) -> StarterPolicy:
    """The policy for a folder; None: for a user in every folder."""
    if folder is None:
        return _check_policy(start(ProjectFiles()))
    try:
        with os.scandir(folder) as entries:
            files = frozenset(entry.name for entry in islice(entries, _MAX_ENTRIES))
    except OSError as error:
        raise BadInput(
            "the folder cannot be read", hint="Change to the project's folder.", detail=str(error)
        ) from None
    texts, notes = {}, []
    for known, names in _NAMES.items():
        name = next((each for each in names if each in files), None)
        if name is None:
            continue
        try:
            texts[known] = _read_text(os.path.join(folder, name))
        except (OSError, ValueError):
            notes.append(f"{name} was left out: not readable as text, or too large")
    found = start(ProjectFiles(files, texts))
    return _check_policy(replace(found, notes=(*notes, *found.notes)))


def _read_text(path: str) -> str:
    raw = read_plain(path, max_bytes=_MAX_BYTES)
    if len(raw) > _MAX_BYTES:
        raise ValueError("too large")
    return raw.decode("utf-8").removeprefix("\ufeff")


def _check_policy(found: StarterPolicy) -> StarterPolicy:
    """Raise for a policy that could not be loaded."""
    name = "policy.toml"
    parsed = parse_policy(found.text, file=name, name=name, layer=Layer.PROJECT, folder="/project")
    Policy.of(parsed.rules)
    return found


def place_of(*, is_user: bool, path: str | None, cwd: str, environ: Mapping[str, str]) -> str:
    """The path for the new policy file."""
    if path is not None:
        return os.path.join(cwd, path)
    if is_user:
        return user_policy(environ)
    if os.path.realpath(cwd) in {os.path.realpath(os.path.expanduser("~")), "/"}:
        raise BadInput(
            "your home folder is not a project: policy files in it are not searched",
            hint="Change to the project's folder, or use --user for your own rules.",
            code="CW-NO-PROJECT",
        )
    return os.path.join(cwd, PROJECT_FILES[0])


def write(
    found: StarterPolicy,
    path: str,
    *,
    is_forced: bool,
    who: Principal,
    ask: AskPassphrase | None = None,
) -> Written:
    """Write the file, readable by all and writable by the owner. `ask` asks for the passphrase of
    the approver, where a key is configured."""
    # Before any file is touched, whatever the path.
    refuse_agents("a policy")
    require(load_settings(environ=os.environ), who, Permission.POLICY_WRITE)
    data = found.text.encode()
    trust = PolicyTrust()
    signer = trust.unlock(ask)  # a file without a signature would refuse every call
    with _open_parent(path) as folder:
        _install(folder, os.path.basename(path), data, is_forced=is_forced)
    is_project = any(path.endswith("/" + name) for name in PROJECT_FILES)
    if is_project or signer is not None:
        # A person has just requested exactly this text, so it needs no review.
        place = absolute(path)
        file = parse_policy(found.text, file=path, name=path, layer=parsed_as(place), folder="/")
        offered = Offered(os.path.realpath(path), path, file.sha256, file.rules, place)
        trust.trust(offered, who=who, signer=signer)
    return Written(path, found, is_project or signer is not None)


def beside(path: str, *, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Notes on other policy files that apply beside the new one."""
    if not path.endswith("/" + PROJECT_FILES[0]):
        return ()
    folder = os.path.dirname(os.path.dirname(path))
    others = [name for name in PROJECT_FILES[1:] if os.path.lexists(os.path.join(folder, name))]
    others += project_files(os.path.dirname(folder))
    notes = [f"{each} applies as well; its denials and questions hold" for each in others]
    if os.path.lexists(user_policy(environ)):
        notes.append("your own policy applies as well; the stricter verdict holds")
    return tuple(notes)


def permits(named: Sequence[str], *, config: str | None, environ: Mapping[str, str]) -> bool:
    """Whether a rule for the working directory allows a call or has a person asked about one."""
    files = (*load_settings(file=config, environ=environ).policy.files, *named)
    policy = effective_policy(named=files, cwd=os.getcwd(), environ=environ, grants=None)
    return any(
        rule.verdict is not Verdict.DENY
        for rule in policy.rules
        if rule.layer is not Layer.BUILT_IN
    )


@contextmanager
def _open_parent(path: str) -> Iterator[int]:
    """The folder of the file, created if missing, and never a symbolic link."""
    place = os.path.dirname(path)
    try:
        parent, name = os.path.split(place)
        os.makedirs(parent, mode=0o755, exist_ok=True)
        with suppress(FileExistsError):
            os.mkdir(place, mode=0o755)
        folder = os.open(os.path.join(os.path.realpath(parent), name), _DIRECTORY)
    except OSError as error:
        raise _write_error(error) from None
    try:
        yield folder
    except OSError as error:
        raise _write_error(error) from None
    finally:
        os.close(folder)


def _install(folder: int, name: str, data: bytes, *, is_forced: bool) -> None:
    with suppress(FileNotFoundError):
        there = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISREG(there.st_mode):
            raise BadInput(
                "a symbolic link or folder exists at the path of the policy",
                hint="Remove it, or name another file with --path.",
                code="CW-POLICY-THERE",
            )
        if not is_forced:
            raise _exists_error()
    draft = f".{name}.{secrets.token_hex(8)}"
    file = os.open(draft, _NEW, 0o600, dir_fd=folder)
    try:
        with os.fdopen(file, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fchmod(stream.fileno(), 0o644)
            os.fsync(stream.fileno())
        if is_forced:
            os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
        else:  # unlike a rename, a hard link never replaces a file created meanwhile
            os.link(draft, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        raise _exists_error() from None
    finally:
        with suppress(FileNotFoundError):
            os.unlink(draft, dir_fd=folder)
    os.fsync(folder)


def _exists_error() -> BadInput:
    return BadInput(
        "a policy exists already",
        hint="--force replaces it, --stdout prints the new one.",
        code="CW-POLICY-THERE",
    )


def _write_error(error: OSError) -> CellwallError:
    is_link = error.errno in {errno.ELOOP, errno.ENOTDIR}
    why = (
        "its folder is a symbolic link or no folder"
        if is_link
        else os.strerror(error.errno or errno.EIO)
    )
    return CellwallError(
        f"the policy could not be written: {why}",
        hint="Check the folder's permissions, name another file with --path, or use --stdout.",
        code="CW-POLICY-UNWRITTEN",
        detail=str(error),
    )
