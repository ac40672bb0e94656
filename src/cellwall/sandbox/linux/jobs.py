"""A run request, and its program, variables and files inside a cell."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cellwall.core.command_scripts import long_script, run_from_file
from cellwall.core.errors import BadInput
from cellwall.core.files import SECOND_HOME
from cellwall.core.ids import new_id
from cellwall.core.languages import canonical
from cellwall.core.network import CellNetwork
from cellwall.core.packages import PACKAGES_IN_WORKSPACE
from cellwall.core.sandbox_ports import Slot, ToolCaller, WorkspaceLease
from cellwall.core.skills import Skill
from cellwall.core.types import (
    Action,
    Json,
    OutputSink,
    RunCode,
    RunCommand,
    WorkspaceMount,
)
from cellwall.core.users_inside import SANDBOX_USER, SECOND_USER
from cellwall.sandbox import languages
from cellwall.sandbox.linux import cgroups, visible_host
from cellwall.sandbox.linux.channels import CHANNEL_FDS_INSIDE
from cellwall.sandbox.linux.layers import PACKAGES_INSIDE, PYTHON

_SCRIPT_INSIDE = "/code/script"


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRunRequest:
    """The arguments of `Sandbox.run`, and the time at which it was called."""

    action: Action
    slot: Slot
    workspace: WorkspaceLease
    sink: OutputSink | None = None
    tools: ToolCaller | None = None
    skills: Sequence[Skill] = ()
    network: CellNetwork | None = None
    started: float = field(default_factory=time.monotonic)

    @property
    def mount(self) -> WorkspaceMount:
        return self.workspace.mount


def program_of(action: Action, *, only_deno: bool) -> tuple[languages.Program, bytes]:
    """The program to start, and the code it runs; see `languages.program_for`."""
    match action.operation:
        case RunCommand(background=True):
            raise BadInput(
                "only a live sandbox has a background",
                hint="Use Sandbox.create() and its commands.run(…, background=True).",
                code="CW-NO-BACKGROUND",
            )
        case RunCommand(argv):
            if long_script(argv) is None:
                return languages.Program(argv, ""), b""
            argv, script = run_from_file(argv, _SCRIPT_INSIDE, is_removed=False)
            return languages.Program(argv, _SCRIPT_INSIDE), script
        case RunCode() as operation:
            has_network = bool(action.allow_domains or action.registries)
            program = languages.program_for(operation, has_network=has_network, only_deno=only_deno)
            if program.argv[0] == languages.DENO_INSIDE:
                _check_deno_variables(action.env)
            return program, operation.code
        case _:
            raise BadInput("only commands and code run in a sandbox")


def _check_deno_variables(env: Mapping[str, str]) -> None:
    """DENO_PERMISSION_BROKER_PATH hands every decision about a permission to a socket, which code
    in the cell can serve; preloaded code runs before any decision."""
    named = [name for name in env if name.startswith(("DENO_", "LD_")) or name == "NODE_OPTIONS"]
    if named:
        raise BadInput(
            f"Deno takes permissions or code from the variable {min(named)[:60]!r}",
            hint="Leave out variables that begin with DENO_ or LD_, and NODE_OPTIONS.",
            code="CW-ENV-REFUSED",
        )


def home_of(mount: WorkspaceMount) -> str:
    """The home directory inside: a user's own directory is never used as one."""
    return "/workspace" if mount.home else "/tmp"


def user_base(*, home: bool) -> str:
    """Python's user base inside: below the home of a private workspace, which `pip` uses as well;
    in a user's directory apart from the user's own files."""
    return "/workspace/.local" if home else f"/workspace/{PACKAGES_IN_WORKSPACE}"


def _installed_packages(mount: WorkspaceMount) -> dict[str, str]:
    """Variables by which programs find the packages of a user's directory, if it has any."""
    if mount.home or mount.dir_fd is None:
        return {}
    try:
        found = os.stat(PACKAGES_IN_WORKSPACE, dir_fd=mount.dir_fd, follow_symlinks=False)
    except OSError:
        return {}
    return {"PYTHONUSERBASE": user_base(home=False)} if stat.S_ISDIR(found.st_mode) else {}


def working_directory(action: Action) -> str:
    """The directory in which the program starts."""
    return action.operation.cwd if isinstance(action.operation, RunCommand) else "/workspace"


def is_second(action: Action) -> bool:
    """Whether the program runs as the second user; code always runs as the first."""
    return isinstance(action.operation, RunCommand) and action.operation.user == SECOND_USER


def environment(
    action: Action, program: languages.Program | None, mount: WorkspaceMount
) -> Mapping[str, str]:
    """Starts empty (ISO-3): variables programs cannot do without, then those the caller named."""
    as_second = is_second(action)
    home = SECOND_HOME if as_second else home_of(mount)
    user = SECOND_USER if as_second else SANDBOX_USER
    # The first user writes in the workspace and may rename what lies in /tmp. The second one
    # imports from neither, and has its temporary files at home.
    installed = {} if as_second else _installed_packages(mount)
    base = installed.get("PYTHONUSERBASE", f"{home}/.local")
    return {
        # Last: programs that code installs add commands and shadow none that a policy rule names.
        "PATH": f"{visible_host.SEARCH_PATH}:{base}/bin",
        "HOME": home,
        "USER": user,
        "LOGNAME": user,
        "LANG": "C.UTF-8",
        "TMPDIR": SECOND_HOME if as_second else "/tmp",
        "SHELL": "/bin/sh",
        "CELLWALL": "1",
        # Hooks copied from a template would be refused where .git/hooks is protected (FS-4).
        "GIT_TEMPLATE_DIR": "/.cellwall/empty",
        **installed,
        **_packages(action, base),
        **dict(program.env if program is not None else ()),
        **action.env,
        **action.brief,
    }


# A plain `pip install` writes below the home: to the workspace of a sandbox that has its own, else
# to /tmp, never into a user's directory. System packages are read-only here, so the marker with
# which distributions lock them (PEP 668) protects nothing. A cache would count against the disk
# limit. A refused host stays refused, and with more retries pip would wait for half a minute.
_PIP_CONF = b"""\
[global]
break-system-packages = true
disable-pip-version-check = true
no-cache-dir = true
no-warn-script-location = true
retries = 1
"""


def _packages(action: Action, base: str) -> dict[str, str]:
    """A Python started inside finds packages installed inside, then those of the template. The
    interpreter of `run_code` ignores environment variables."""
    if not package_paths(action):
        return {}
    installed = f"{base}/lib/python{languages.python_version()}/site-packages"
    return {"PYTHONPATH": f"{installed}:{PACKAGES_INSIDE}"}


def base_files(*, home: str, has_second_user: bool = False) -> dict[str, bytes]:
    """Files of every root file system, of a cold cell or of a template."""
    users = visible_host.PASSWD_OF_TWO if has_second_user else visible_host.PASSWD
    return {
        "/etc/passwd": users.format(home=home).encode(),
        "/etc/group": visible_host.GROUP.encode(),
        "/etc/hosts": visible_host.HOSTS.encode(),
        "/etc/nsswitch.conf": visible_host.NSSWITCH.encode(),
        "/etc/pip.conf": _PIP_CONF,
        "/.cellwall/nothing": b"",
        visible_host.PROC_STAT: visible_host.proc_stat(),
    }


def cold_files(
    program: languages.Program, code: bytes, *, home: str, has_second_user: bool = False
) -> dict[str, bytes]:
    """The files of a cold cell."""
    files = base_files(home=home, has_second_user=has_second_user)
    if program.code_path:
        files[program.code_path] = code
    return files | languages.inside_files() if program.is_interpreter else files


def interpreter_request(
    program: languages.Program, code: bytes, action: Action, env: Mapping[str, str] | None = None
) -> tuple[dict[str, Json], bytes] | None:
    """The first frame for a one-shot interpreter; no `env`: it was started with its variables."""
    if not program.is_interpreter:
        return None
    frame: dict[str, Json] = {
        "code": 1,
        "once": True,
        "env": env or {},
        "stdin": None,
        "tools": list(action.tools),
        "paths": package_paths(action) if env is None else [],  # else the template has them
        "language": language_of(action),
    }
    return frame, code


def language_of(action: Action) -> str:
    """The canonical name; one interpreter runs both JavaScript and TypeScript."""
    return canonical(action.operation.language) if isinstance(action.operation, RunCode) else ""


def package_paths(action: Action) -> list[str]:
    """Directories in which a cold interpreter finds the packages of its template."""
    return [] if action.template == PYTHON.name else [PACKAGES_INSIDE]


_SAVE_AND_RUN = (
    'folder=$(mktemp -d) && head -c "$1" >"$folder/$2" || exit 125; '
    'name=$folder/$2; shift 2; exec "$@" "$name"'
)


def command_for(program: languages.Program, code: bytes) -> tuple[str, ...]:
    """The command by which a live cell runs code that comes first on standard input."""
    *words, path = program.argv
    name = os.path.basename(path)
    return ("/bin/sh", "-c", _SAVE_AND_RUN, "sh", str(len(code)), name, *words)


# Attack: the other user inside reads the path in the command line, and makes the file, a link or a
# pipe before. mkdir takes none of them, and the directory is closed to that user.
_SAVE = 'mkdir -m 700 "${2%/*}" && head -c "$1" >"$2" || exit 125; shift 2; exec "$@"'


def live_command(action: Action, argv: tuple[str, ...]) -> tuple[tuple[str, ...], bytes]:
    """The command for a live cell, and what comes first on its standard input: a script that is
    too long for an argument, which a first program saves to a file."""
    if long_script(argv) is None:
        return argv, b""
    folder = SECOND_HOME if is_second(action) else "/tmp"  # as for the variables
    path = f"{folder}/.cellwall-script-{new_id('scr')}/script"  # of the cell
    argv, script = run_from_file(argv, path, is_removed=True)
    return ("/bin/sh", "-c", _SAVE, "sh", str(len(script)), path, *argv), script


def program_descriptors(
    program: languages.Program, numbers: Mapping[int, int]
) -> Mapping[int, int]:
    """Only an interpreter gets the pipes for frames."""
    return {
        inside: number
        for inside, number in numbers.items()
        if inside not in CHANNEL_FDS_INSIDE or program.is_interpreter
    }


def block_device_of(mount: WorkspaceMount) -> str | None:
    """The disk behind a workspace, whose bandwidth is limited."""
    if mount.dir_fd is None:
        return None
    return cgroups.block_device(os.fstat(mount.dir_fd).st_dev)
