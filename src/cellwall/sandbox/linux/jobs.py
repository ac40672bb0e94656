"""What an action means inside a cell: which program, its environment, its files."""

from __future__ import annotations

import os
from collections.abc import Mapping

from cellwall.core.errors import BadInput
from cellwall.core.ports import WorkspaceLease
from cellwall.core.types import Action, Json, RunCode, RunCommand
from cellwall.sandbox import languages
from cellwall.sandbox.linux import cgroups, rootfs
from cellwall.sandbox.linux.channels import CHANNEL_FDS_INSIDE
from cellwall.sandbox.linux.template_spec import PACKAGES_INSIDE, PYTHON


def program_of(action: Action) -> tuple[languages.Program, bytes]:
    """What to start, and the code it gets."""
    match action.operation:
        case RunCommand(background=True):
            raise BadInput(
                "only a live sandbox has a background",
                hint="Use Sandbox.create() and its commands.run(…, background=True).",
                code="CW-NO-BACKGROUND",
            )
        case RunCommand(argv):
            return languages.Program(argv, ""), b""
        case RunCode() as operation:
            has_network = bool(action.allow_domains)
            return languages.program_for(operation, has_network=has_network), operation.code
        case _:
            raise BadInput("only commands and code run in a sandbox")


def directory_of(action: Action) -> str:
    """Where it starts."""
    return action.operation.cwd if isinstance(action.operation, RunCommand) else "/workspace"


def environment(
    action: Action, program: languages.Program | None, *, home: str
) -> Mapping[str, str]:
    """From nothing (ISO-3): what programs cannot do without, then what the caller named."""
    return {
        # Last: what code has put there adds commands, and replaces none that a rule names.
        "PATH": f"{rootfs.SEARCH_PATH}:{home}/.local/bin",
        "HOME": home,
        "USER": "sandbox",
        "LOGNAME": "sandbox",
        "LANG": "C.UTF-8",
        "TMPDIR": "/tmp",
        "SHELL": "/bin/sh",
        "CELLWALL": "1",
        # Hooks copied from a template would be refused where .git/hooks is protected (FS-4).
        "GIT_TEMPLATE_DIR": "/.cellwall/empty",
        **_packages(action, home),
        **dict(program.env if program is not None else ()),
        **action.env,
        **action.brief,
    }


# A plain `pip install` goes below the home: to the workspace of a sandbox that has one of its own,
# else to /tmp, and never into a directory of the user's. The system's packages are read-only here,
# so the lock that distributions put on them (PEP 668) protects nothing. A cache would count against
# the disk limit. A host that is refused stays refused, and pip would ask for half a minute.
_PIP_CONF = b"""\
[global]
break-system-packages = true
disable-pip-version-check = true
no-cache-dir = true
no-warn-script-location = true
retries = 1
"""


def _packages(action: Action, home: str) -> dict[str, str]:
    """A Python that is started inside finds the packages of the template, too, and before them
    those that were installed inside. The interpreter of `run_code` ignores variables."""
    if not package_paths(action):
        return {}
    installed = f"{home}/.local/lib/python{languages.python_version()}/site-packages"
    return {"PYTHONPATH": f"{installed}:{PACKAGES_INSIDE}"}


def base_files(*, home: str) -> dict[str, bytes]:
    """What every root has, cold or a template's."""
    return {
        "/etc/passwd": rootfs.PASSWD.format(home=home).encode(),
        "/etc/group": rootfs.GROUP.encode(),
        "/etc/hosts": rootfs.HOSTS.encode(),
        "/etc/nsswitch.conf": rootfs.NSSWITCH.encode(),
        "/etc/pip.conf": _PIP_CONF,
        "/.cellwall/nothing": b"",
        rootfs.PROC_STAT: rootfs.proc_stat(),
    }


def files(program: languages.Program, code: bytes, *, home: str) -> dict[str, bytes]:
    """A cold cell's files."""
    files = base_files(home=home)
    if program.code_path:
        files[program.code_path] = code
    return files | languages.inside_files() if program.is_interpreter else files


def request(
    program: languages.Program, code: bytes, action: Action, env: Mapping[str, str] | None = None
) -> tuple[dict[str, Json], bytes] | None:
    """What a one-shot interpreter is told; without `env` it has been started with its own."""
    if not program.is_interpreter:
        return None
    told: dict[str, Json] = {
        "code": 1,
        "once": True,
        "env": env or {},
        "stdin": None,
        "tools": list(action.tools),
        "paths": package_paths(action) if env is None else [],  # else the template has them
    }
    return told, code


def package_paths(action: Action) -> list[str]:
    """Where a cold interpreter finds the packages of its template."""
    return [] if action.template == PYTHON.name else [PACKAGES_INSIDE]


_SAVE_AND_RUN = (
    'folder=$(mktemp -d) && head -c "$1" >"$folder/$2" || exit 125; '
    'name=$folder/$2; shift 2; exec "$@" "$name"'
)


def command_for(program: languages.Program, code: bytes) -> tuple[str, ...]:
    """How a cell that already stands runs code, which comes first on its standard input."""
    *words, path = program.argv
    name = os.path.basename(path)
    return ("/bin/sh", "-c", _SAVE_AND_RUN, "sh", str(len(code)), name, *words)


def given(program: languages.Program, numbers: Mapping[int, int]) -> Mapping[int, int]:
    """A program that tells no value has no use for a descriptor that nobody else gives it."""
    return {
        inside: number
        for inside, number in numbers.items()
        if inside not in CHANNEL_FDS_INSIDE or program.is_interpreter
    }


def io_device(workspace: WorkspaceLease) -> str | None:
    """The disk behind a workspace, whose bandwidth is limited."""
    directory = workspace.mount.dir_fd
    return None if directory is None else cgroups.block_device(os.fstat(directory).st_dev)
