"""The options of new sandboxes and of single runs. Light: a single run imports them first."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cellwall.interfaces.sdk.execution import TextSink
    from cellwall.interfaces.sdk.tools import HostFunction
    from cellwall.runtime.approvals import AnswerQuestion


class SandboxChoices(TypedDict, total=False):
    """The options of every new sandbox."""

    profile: str | None
    config: str | None
    workspace: str | None
    allow_domains: Sequence[str]
    registries: Sequence[str]
    secrets: Sequence[str]
    envs: Mapping[str, str] | None
    timeout: float | None
    memory: str | int | None
    limits: Mapping[str, float] | None
    tools: Mapping[str, HostFunction] | None
    template: str
    packages: Sequence[str]
    skills: Sequence[str]
    policy: str | None
    on_question: AnswerQuestion | None


class CreateOptions(SandboxChoices, total=False):
    """The options of `Sandbox.create`."""

    language: str
    keep_alive: float | None
    from_snapshot: str | None
    second_user: bool


class OneShot(SandboxChoices, total=False):
    """The options of `run_code` and `run_command`."""

    stdin: bytes | str | None
    on_stdout: TextSink | None
    on_stderr: TextSink | None
    user: str | None
    """Of `run_command`: `sandbox`, or `root`, a second unprivileged user."""
