"""The options of a run as plain data, and the action they ask for; the command line, the MCP server
and the supervisor share them."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cellwall.core.errors import BadInput
from cellwall.core.limits import parse_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from cellwall.core.types import Action, RunCode, RunCommand
    from cellwall.runtime.wiring import App

_CHUNK_BYTES = 1 << 20
_HERE = ".:cow"


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
    """The options of `run` and `code`, as the user typed them."""

    profile: str | None
    config: str | None
    policy: str | None
    workspace: str | None
    here: bool
    env: tuple[str, ...]
    allow_domain: tuple[str, ...]
    secret: tuple[str, ...]
    passphrase_fd: int | None
    timeout: float | None
    memory: str | None
    cpus: float | None
    processes: int | None
    disk: str | None
    output: str | None
    open_files: int | None
    file_size: str | None
    template: str
    package: tuple[str, ...]
    skill: tuple[str, ...]
    stdin: bool
    as_json: bool
    own_path: bool = False
    """Only `run` has this option."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "workspace", chosen_workspace(self.workspace, here=self.here))
        object.__setattr__(self, "here", False)

    def with_template(
        self, *, interface: str, on_progress: Callable[[str], None]
    ) -> SandboxOptions:
        """The same options with the packages built into a template."""
        if not self.package:
            return self
        from cellwall.interfaces.requests import template_with  # noqa: PLC0415  # seldom

        template = template_with(
            self.package,
            self.template,
            config=self.config,
            profile=self.profile,
            interface=interface,
            on_progress=on_progress,
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
        sizes = {
            "disk_bytes": _bytes(self.disk, "disk"),
            "output_bytes": _bytes(self.output, "output"),
            "file_size_bytes": _bytes(self.file_size, "file size"),
            "cpus": self.cpus,
            "processes": self.processes,
            "open_files": self.open_files,
        }
        return {
            "profile": self.profile,
            "config": self.config,
            "policy": self.policy,
            "workspace": self.workspace,
            "envs": variables(self.env),
            "allow_domains": self.allow_domain,
            "secrets": self.secret,
            "timeout": self.timeout,
            "memory": self.memory,
            "template": self.template,
            "skills": self.skill,
            "limits": {name: size for name, size in sizes.items() if size is not None},
        }

    def action(
        self, app: App, operation: RunCommand | RunCode, *, stdin: bytes | None = None
    ) -> Action:
        """The action that the runtime carries out; raises `BadInput` for a wrong option."""
        from cellwall.core.types import Action  # noqa: PLC0415  # keeps --help quick
        from cellwall.interfaces.requests import (  # noqa: PLC0415
            named_policy,
            parse_workspace,
            with_limits,
        )
        from cellwall.runtime.wiring import principal  # noqa: PLC0415  # heavy

        assert not self.package  # noqa: S101  # see `with_template`
        limits = with_limits(
            app.limits,
            timeout=self.timeout,
            memory=self.memory,
            cpus=self.cpus,
            processes=self.processes,
            open_files=self.open_files,
            disk_bytes=_bytes(self.disk, "disk"),
            output_bytes=_bytes(self.output, "output"),
            file_size_bytes=_bytes(self.file_size, "file size"),
        )
        return Action(
            principal=principal("cli"),
            operation=operation,
            workspace=parse_workspace(self.workspace, at_own_path=self.own_path),
            limits=limits,
            env=variables(self.env),
            allow_domains=self.allow_domain,
            secrets=self.secret,
            stdin=stdin,
            template=self.template,
            policy=named_policy(self.policy),
            skills=self.skill,
        )


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
