"""A sandbox provider for Inspect AI: the extra `cellwall[inspect]`.

    Task(dataset, solver=…, sandbox="cellwall")

The entry point of the group `inspect_ai` registers the provider, so nothing has to be imported.
"""

from __future__ import annotations

import errno
import os
import posixpath
from typing import Any, Literal, overload

from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentLimits,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
    sandboxenv,
)
from pydantic import BaseModel, ConfigDict

from cellwall import AsyncSandbox, CellwallError, Execution, Status, as_os_error, check_access

_WORKSPACE = "/workspace"
# As a shell answers: these are failures of the command, not of the sandbox.
_SHELL_EXIT_CODES = {"CW-COMMAND-NOT-FOUND": 127, "CW-CWD-NOT-FOUND": 1, "CW-BAD-DIRECTORY": 1}


class CellwallSandboxConfig(BaseModel):
    """For `SandboxEnvironmentSpec("cellwall", CellwallSandboxConfig(…))`: as `Sandbox.create`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    profile: str | None = None
    config: str | None = None
    policy: str | None = None
    workspace: str | None = None
    template: str = "python"
    packages: tuple[str, ...] = ()
    allow_domains: tuple[str, ...] = ()
    registries: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    envs: dict[str, str] = {}
    timeout: float | None = None
    memory: str | None = None
    limits: dict[str, int | float] = {}
    second_user: bool = False

    def __hash__(self) -> int:
        """Inspect keeps the sandboxes of a task by their configuration; pydantic hashes no dict."""
        return hash(self.model_dump_json())


@sandboxenv(name="cellwall")
class CellwallSandboxEnvironment(SandboxEnvironment):
    """One live sandbox for each sample."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        super().__init__()
        self.sandbox = sandbox

    @classmethod
    async def sample_init(
        cls, task_name: str, config: BaseModel | str | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        options = _checked(config).model_dump()
        # Inspect's limit counts for each stream.
        options["limits"].setdefault(
            "output_bytes", 2 * SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        )
        return {"default": cls(await AsyncSandbox.create(**options))}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: BaseModel | str | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        for environment in environments.values():
            await environment.as_type(cls).sandbox.kill()

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        return CellwallSandboxConfig(**config)

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Run a program; an action that Cellwall denies is a `PermissionError` with its reason.

        The user is `sandbox`, or `root`, unprivileged as well, with `second_user=True`.
        """
        try:
            done = await self.sandbox.commands.run(
                cmd,
                cwd=posixpath.join(_WORKSPACE, cwd or ""),
                envs=env,
                user=user,
                stdin=b"" if input is None else input,
                timeout=timeout,
            )
        except CellwallError as error:
            if error.code != "CW-NO-USER":
                raise
            raise SandboxUserUnsupportedError(str(error)) from None
        return _result(done)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Write a file, with the permissions that its mode gives the sandbox's user."""
        try:
            check_access(await self.sandbox.files.stat(file), file, "write")
            await self.sandbox.files.write(file, contents)
        except CellwallError as error:
            raise as_os_error(error, file) from None

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """Read a file, with the permissions that its mode gives the sandbox's user."""
        try:
            entry = await self.sandbox.files.stat(file)
            check_access(entry, file, "read")
            if entry is not None and entry.size_bytes > SandboxEnvironmentLimits.MAX_READ_FILE_SIZE:
                limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR
                raise OutputLimitExceededError(limit, None)
            content = await self.sandbox.files.read_bytes(file)
        except CellwallError as error:
            if error.code != "CW-PATH-OUTSIDE":
                raise as_os_error(error, file) from None
            content = await self._read_inside(file)
        return content.decode() if text else content

    async def _read_inside(self, file: str) -> bytes:
        """A file of the system, which code inside may read and the file API does not reach."""
        run = self.sandbox.commands.run
        done = await run(["cat", "--", file], cwd=_WORKSPACE, envs={"LC_ALL": "C"})
        _result(done)  # raises for a refusal
        for number in (errno.EISDIR, errno.ENOENT, errno.EACCES):
            if done.stderr.rstrip().endswith(os.strerror(number)):
                raise OSError(number, os.strerror(number), file)
        if done.exit_code:  # what was read before is not the file
            raise OSError(errno.EIO, os.strerror(errno.EIO), file)
        return done.outcome.stdout_bytes


def _checked(config: BaseModel | str | None) -> CellwallSandboxConfig:
    """Inspect passes a text where a task names a file: `sandbox=("cellwall", "cellwall.toml")`."""
    if isinstance(config, CellwallSandboxConfig):
        return config
    if config is None or isinstance(config, str):
        return CellwallSandboxConfig(config=config)
    raise TypeError("the sandbox 'cellwall' takes a CellwallSandboxConfig, or a configuration file")


def _result(done: Execution) -> ExecResult[str]:
    if done.limit == "wall":
        raise TimeoutError("the command ran longer than its time limit")
    if done.limit == "output":
        raise OutputLimitExceededError(
            SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, done.stdout + done.stderr
        )
    refusal = done.refusal
    if refusal is None:
        stderr = done.stderr
        if done.limit is not None:
            stderr += f"the run was ended by its {done.limit} limit\n"
        return ExecResult(done.status is Status.OK, done.exit_code or 0, done.stdout, stderr)
    if refusal.code in _SHELL_EXIT_CODES:
        return ExecResult(False, _SHELL_EXIT_CODES[refusal.code], "", f"{refusal.message}\n")
    if done.status is Status.DENIED or refusal.code == "CW-COMMAND-NOT-EXECUTABLE":
        raise PermissionError(errno.EACCES, str(refusal))
    raise SandboxUnavailableError(str(refusal))
