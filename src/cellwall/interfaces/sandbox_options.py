"""Parses users' options and builds the action of a run; all interfaces share this module, so that
options mean the same everywhere."""

# ruff: noqa: PLC0415  # late imports: a run in a warm supervisor takes less time than these modules

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from cellwall.core.errors import BadInput
from cellwall.core.limits import Limits, parse_size

if TYPE_CHECKING:
    from cellwall.core.ports import ApproverPort
    from cellwall.core.types import Action, RunCode, RunCommand, WorkspaceRequest
    from cellwall.runtime.app import App


_CHUNK_BYTES = 1 << 20
_HERE = ".:cow"
_MODES = frozenset({"ro", "rw", "cow"})


def chosen_workspace(named: str | None, *, here: bool) -> str | None:
    """The workspace that `--workspace` and `--here` name together."""
    if here and named is not None:
        raise BadInput(
            "--here and --workspace exclude each other",
            hint="Write --here for this directory, copy-on-write; or --workspace DIR:ro|rw|cow.",
            code="CW-USAGE",
        )
    return _HERE if here else named


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxOptions:
    """The options of `run` and `code`, as the user typed them; the defaults are those of click."""

    profile: str | None = None
    config: str | None = None
    policy: str | None = None
    workspace: str | None = None
    here: bool = False
    env: tuple[str, ...] = ()
    allow_domain: tuple[str, ...] = ()
    secret: tuple[str, ...] = ()
    passphrase_fd: int | None = None
    timeout: float | None = None
    memory: str | None = None
    cpus: float | None = None
    processes: int | None = None
    disk: str | None = None
    output: str | None = None
    open_files: int | None = None
    file_size: str | None = None
    template: str = "python"
    package: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    skill: tuple[str, ...] = ()
    stdin: bool = False
    as_json: bool = False
    own_path: bool = False
    """Only `run` has this option."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "workspace", chosen_workspace(self.workspace, here=self.here))
        object.__setattr__(self, "here", False)

    def with_template(
        self,
        *,
        interface: str,
        on_progress: Callable[[str], None],
        ask: ApproverPort | None = None,
    ) -> SandboxOptions:
        """The same options with the packages built into a template."""
        if not self.package:
            return self

        template = template_with(
            self.package,
            self.template,
            config=self.config,
            profile=self.profile,
            interface=interface,
            on_progress=on_progress,
            ask=ask,
        )
        return replace(self, template=template, package=())

    def to_message(self) -> dict[str, Any]:
        """For the supervisor, whose working directory differs: paths become absolute."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        for name in ("config", "workspace", "policy"):
            if fields[name]:
                fields[name] = os.path.abspath(fields[name])
        return fields

    def for_sdk(self) -> dict[str, Any]:
        """The keyword arguments of `Sandbox.create`; packages are built before."""
        assert not self.package  # noqa: S101  # a package must not be dropped silently
        return {
            "profile": self.profile,
            "config": self.config,
            "policy": self.policy,
            "workspace": self.workspace,
            "envs": variables(self.env),
            "allow_domains": self.allow_domain,
            "registries": self.packages,
            "secrets": self.secret,
            "timeout": self.timeout,
            "memory": self.memory,
            "template": self.template,
            "skills": self.skill,
            "limits": {name: each for name, each in self._limits().items() if each is not None},
        }

    def action(
        self,
        app: App,
        operation: RunCommand | RunCode,
        *,
        stdin: bytes | None = None,
        asked_in: str = "",
    ) -> Action:
        """The action that the runtime carries out; raises `BadInput` for a wrong option."""
        from cellwall.core.types import Action, RunCommand
        from cellwall.core.users_inside import SECOND_USER
        from cellwall.runtime.home import local_principal

        assert not self.package  # noqa: S101  # see `with_template`
        limits = with_limits(app.limits, timeout=self.timeout, memory=self.memory, **self._limits())
        return Action(
            principal=local_principal("cli"),
            operation=operation,
            workspace=parse_workspace(self.workspace, at_own_path=self.own_path),
            limits=limits,
            env=variables(self.env),
            allow_domains=self.allow_domain,
            registries=self.packages,
            secrets=self.secret,
            stdin=stdin,
            template=self.template,
            policy=named_policy(self.policy),
            asked_in=asked_in,
            skills=self.skill,
            second_user=isinstance(operation, RunCommand) and operation.user == SECOND_USER,
        )

    def _limits(self) -> dict[str, float | None]:
        """The limits beside time and memory; None: as configured."""
        return {
            "disk_bytes": _bytes(self.disk, "disk"),
            "output_bytes": _bytes(self.output, "output"),
            "file_size_bytes": _bytes(self.file_size, "file size"),
            "cpus": self.cpus,
            "processes": self.processes,
            "open_files": self.open_files,
        }


def read_bounded(descriptor: int, max_bytes: int) -> bytes | None:
    """All bytes up to the end of file, or None if they exceed `max_bytes`."""
    parts: list[bytes] = []
    left = max_bytes + 1
    while left > 0 and (part := os.read(descriptor, min(left, _CHUNK_BYTES))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts) if left > 0 else None


def _bytes(text: str | None, what: str) -> int | None:
    return None if text is None else parse_size(text, what=what)


def variables(pairs: tuple[str, ...]) -> dict[str, str]:
    """The variables of `--env` options."""
    variables = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            # Docker's `--env NAME` copies the caller's variable; here every value is written out.
            raise BadInput(
                f"--env {name[:60]!r} has no value",
                hint="Write --env NAME=VALUE.",
                code="CW-BAD-ENV",
            )
        variables[name] = value
    return variables


def parse_workspace(text: str | None, *, at_own_path: bool = False) -> WorkspaceRequest:
    """`DIR`, `DIR:ro`, `DIR:rw` or `DIR:cow`; without a mode it is read-only."""
    from cellwall.core.types import WorkspaceMode, WorkspaceRequest

    if text is None and at_own_path:
        raise BadInput(
            "without a workspace there is no path to show",
            hint="Write --workspace DIR:rw --own-path.",
            code="CW-BAD-WORKSPACE",
        )
    if text is None:
        return WorkspaceRequest()
    directory, colon, mode = text.rpartition(":")
    if not colon or "/" in mode:
        return WorkspaceRequest(WorkspaceMode.READ_ONLY, text, at_own_path)
    if mode in _MODES:
        return WorkspaceRequest(WorkspaceMode(mode), directory, at_own_path)
    raise BadInput(
        f"{mode[:20]!r} is not a workspace mode",
        hint="Write DIR:ro, DIR:rw or DIR:cow.",
        code="CW-BAD-WORKSPACE",
    )


def skill_names(names: Sequence[str]) -> tuple[str, ...]:
    """A list of names; a single string would be read as a list of letters."""
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise BadInput(
            "skills are given as a list of names",
            hint='Write skills=["name"].',
            code="CW-SKILL-NAME",
        )
    return tuple(names)


def listed_words(words: Sequence[str], what: str) -> tuple[str, ...]:
    """A list of strings; a single string would be read as a list of letters."""
    if isinstance(words, str) or not all(isinstance(word, str) for word in words):
        raise BadInput(f"{what} is given as a list of texts", hint=f'Write {what}=["…"].')
    return tuple(words)


def named_policy(path: str | None) -> tuple[str, ...]:
    """A policy file that a person names for an action."""
    return () if path is None else (os.path.abspath(path),)


def with_limits(
    limits: Limits,
    *,
    timeout: float | None = None,
    memory: str | int | None = None,
    **others: float | None,
) -> Limits:
    """The profile's limits with overrides. CPU time grows with the wall time."""
    changes: dict[str, float | int] = {
        name: value for name, value in others.items() if value is not None
    }
    if timeout is not None:
        changes["wall_s"] = float(timeout)
        changes.setdefault("cpu_s", max(float(timeout), limits.cpu_s))
    if memory is not None:
        changes["memory_bytes"] = parse_size(memory, what="memory")
    if not changes:
        return limits
    known = {spec.name for spec in fields(Limits)}
    if not changes.keys() <= known:
        raise BadInput(f"unknown limit: {', '.join(sorted(changes.keys() - known))}")
    return replace(limits, **changes)  # type: ignore[arg-type]  # checked by Limits itself


def template_with(
    packages: Sequence[str],
    template: str,
    *,
    config: str | None,
    profile: str | None,
    interface: str,
    on_progress: Callable[[str], None],
    ask: ApproverPort | None = None,
) -> str:
    """The template with these packages; built once, and found again by its content."""
    from cellwall.admin.templates import PYTHON, SHIPPED, Templates
    from cellwall.runtime.home import local_principal

    if template != PYTHON:
        shipped = f", or name the packages of {template} as well" if template in SHIPPED else ""
        raise BadInput(
            "a sandbox has a template or packages, not both",
            hint=f"Leave the template out{shipped}.",
            code="CW-USAGE",
        )
    templates = Templates(config=config, profile=profile)
    return templates.build_request(
        packages, principal=local_principal(interface), on_progress=on_progress, ask=ask
    )
