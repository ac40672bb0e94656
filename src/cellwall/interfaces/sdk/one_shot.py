"""Single runs in fresh sandboxes, in this process; and the packages of every new sandbox."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Unpack

import anyio

from cellwall.core.cancellation import cancelled_by, check_cancelled
from cellwall.core.errors import BadInput
from cellwall.core.languages import canonical
from cellwall.core.packages import parse_request
from cellwall.core.text import to_bytes
from cellwall.core.types import Action, RunCode, RunCommand
from cellwall.core.users_inside import SANDBOX_USER, no_second_user, parse_user
from cellwall.interfaces.sandbox_options import (
    listed_words,
    named_policy,
    parse_workspace,
    skill_names,
    template_with,
    with_limits,
)
from cellwall.interfaces.sdk.execution import Execution, argv_of, text_sink
from cellwall.interfaces.sdk.options import OneShot, SandboxChoices
from cellwall.interfaces.sdk.tools import ToolBroker
from cellwall.runtime import wiring
from cellwall.runtime.app import App
from cellwall.runtime.approvals import CallbackApprover
from cellwall.runtime.home import local_principal


async def run_code(
    code: str | bytes, *, language: str = "python", **options: Unpack[OneShot]
) -> Execution:
    """Run code once in a fresh sandbox; nothing is kept."""
    text = to_bytes(code, what="the code")
    return await _one_shot(RunCode(canonical(language), text), **options)


async def run_command(command: str | Sequence[str], **options: Unpack[OneShot]) -> Execution:
    """Run a command once in a fresh sandbox: a string by the shell, a list directly."""
    return await _one_shot(RunCommand(argv_of(command)), **options)


async def _one_shot(operation: RunCommand | RunCode, **options: Unpack[OneShot]) -> Execution:
    operation = _with_user(operation, options)
    unknown = options.keys() - OneShot.__annotations__.keys()
    if unknown:
        # A misspelt limit must not be dropped silently.
        raise BadInput(
            f"unknown option: {', '.join(sorted(unknown))}"[:200],
            hint=f"Use: {', '.join(OneShot.__annotations__)}.",
            code="CW-UNKNOWN-OPTION",
        )
    config, profile = options.get("config"), options.get("profile")
    options["template"] = await template_for(
        options.get("packages", ()), options.get("template", "python"), config, profile
    )
    app = wiring.shared_app(config, profile)
    offered = options.get("tools")
    broker = ToolBroker(offered) if offered else None
    action = single_action(app, operation, options)
    if broker is not None and isinstance(operation, RunCode):
        action = replace(action, tools=broker.names)
    sink = text_sink(options.get("on_stdout"), options.get("on_stderr"))
    answer = options.get("on_question")
    approver = CallbackApprover(answer) if answer else None
    return Execution.of(await app.runtime.perform(action, sink=sink, tools=broker, ask=approver))


def single_action(
    app: App, operation: RunCommand | RunCode, options: OneShot, *, asked_in: str = ""
) -> Action:
    """The action of a single run; in this process, or for a client of the supervisor, whose
    working directory is `asked_in`."""
    operation, stdin = _with_user(operation, options), options.get("stdin")
    return Action(
        principal=local_principal("sdk"),
        operation=operation,
        workspace=replace(parse_workspace(options.get("workspace")), base=asked_in),
        limits=with_limits(
            app.limits,
            timeout=options.get("timeout"),
            memory=options.get("memory"),
            **(options.get("limits") or {}),
        ),
        env=dict(options.get("envs") or {}),
        stdin=None if stdin is None else to_bytes(stdin, what="standard input"),
        allow_domains=listed_words(options.get("allow_domains", ()), "allow_domains"),
        registries=listed_words(options.get("registries", ()), "registries"),
        secrets=listed_words(options.get("secrets", ()), "secrets"),
        template=options.get("template", "python"),
        skills=skill_names(options.get("skills", ())),
        policy=named_policy(options.get("policy")),
        asked_in=asked_in,
        second_user=isinstance(operation, RunCommand) and operation.user != SANDBOX_USER,
    )


def _with_user(operation: RunCommand | RunCode, options: OneShot) -> RunCommand | RunCode:
    named = parse_user(options.get("user"))
    if isinstance(operation, RunCommand):
        return operation if named == operation.user else replace(operation, user=named)
    if named != SANDBOX_USER:
        raise no_second_user()  # code always runs as the first
    return operation


async def template_for(
    packages: Sequence[str], template: str, config: str | None, profile: str | None
) -> str:
    """The template with the packages, built in a thread that a cancellation ends."""
    if not parse_request(packages):
        return template
    is_cancelled, has_begun, has_ended = (threading.Event() for _ in range(3))

    def prepare() -> str:
        has_begun.set()
        try:
            with cancelled_by(is_cancelled.is_set):
                check_cancelled()  # cancelled before the build began
                return prepare_template(packages, template, config, profile)
        finally:
            has_ended.set()

    try:
        return await anyio.to_thread.run_sync(prepare, abandon_on_cancel=True)
    except anyio.get_cancelled_exc_class():
        # A build takes minutes: end its pip now and wait for the cleanup.
        is_cancelled.set()
        if not has_begun.is_set():
            raise
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(has_ended.wait)
        raise


def prepare_template(
    packages: Sequence[str], template: str, config: str | None, profile: str | None
) -> str:
    """The template with the packages; built in this process, also for the supervisor."""
    if not parse_request(packages):
        return template
    return template_with(
        packages,
        template,
        config=config,
        profile=profile,
        interface="sdk",
        on_progress=_tell_progress,
    )


def build_packages(options: SandboxChoices) -> None:
    """Build the packages into a template, outside of the loop: Ctrl-C ends a build at once."""
    if "packages" in options:
        template, config = options.get("template", "python"), options.get("config")
        options["template"] = prepare_template(
            options["packages"], template, config, options.get("profile")
        )
        options["packages"] = ()


def _tell_progress(text: str) -> None:
    """Report the progress of a build on standard error."""
    print(f"cellwall: {text}", file=sys.stderr, flush=True)
