"""Installs our hooks in an agent's settings file, and removes them.

1. Open the file, never through a link.   2. Parse and merge; an unreadable file is left alone.
3. Back up the old content beside it.   4. Replace it atomically, if it has not changed since.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cellwall.admin.installed_hooks import installed_hooks
from cellwall.config.load import load_settings
from cellwall.core.errors import BadInput, CellwallError, ConfigError
from cellwall.interfaces.edited_file import EditedFile, SettingsChange
from cellwall.interfaces.hooks.agents.agent import Agent
from cellwall.interfaces.hooks.agents.registry import agent_named
from cellwall.interfaces.hooks.command_lines import hook_command, options_of
from cellwall.interfaces.hooks.settings_text import (
    add_hooks,
    own_hooks,
    parse_settings,
    remove_hooks,
)
from cellwall.runtime.home import state_home
from cellwall.runtime.policies import effective_policy
from cellwall.runtime.signed_grants import signed_grants


def commands_for(agent: Agent, environ: Mapping[str, str], **options: Any) -> dict[str, str]:  # noqa: ANN401  # those of `hook_command`
    """The command for each event of the agent."""
    layout = agent.layout
    fixed = {"agent": agent.name, "is_posix_shell": agent.is_posix_shell, **options}
    plain = hook_command(environ=environ, **fixed)
    # Where the request does not name its event, the command line does.
    about_result = (
        hook_command(environ=environ, after=True, **fixed) if agent.names_no_event else plain
    )
    return dict.fromkeys(layout.before, plain) | dict.fromkeys(layout.after, about_result)


def check_files(environ: Mapping[str, str], *, config: str | None, policy: str | None) -> None:
    """Check the named files: a hook with a missing or invalid file would deny every call."""
    if config is None and policy is None:
        return
    file = None if config is None else os.path.abspath(config)
    settings = load_settings(file=file, environ=environ)
    if policy is not None:
        grants = signed_grants(state_home(environ), settings)
        named = (os.path.abspath(policy),)
        effective_policy(named=named, cwd="/", environ=environ, grants=grants)


def install(
    file: str, agent: Agent, commands: Mapping[str, str], *, is_dry: bool
) -> SettingsChange:
    """Add our hooks, or update them."""
    layout = agent.layout
    with _settings_file(file, agent).open(makes=not is_dry) as folder:
        old = None if folder is None else folder.read()
        before = b"" if old is None else old.data
        after = add_hooks(before, layout, commands)
        if after == before or is_dry or folder is None:
            return SettingsChange(file, after != before, None, after)
        backup = None
        if old is not None and not any(own_hooks(before, layout).values()):
            backup = folder.back_up(before)
        folder.replace(after, old)
        return SettingsChange(file, True, backup, after)


def uninstall(file: str, agent: Agent, *, is_dry: bool) -> SettingsChange:
    """Remove our hooks; restores the old bytes where nothing else has changed."""
    layout = agent.layout
    with _settings_file(file, agent).open(makes=False) as folder:
        old = None if folder is None else folder.read()
        if old is None or folder is None:
            return SettingsChange(file, is_changed=False)
        there = own_hooks(old.data, layout)
        if not any(there.values()):
            return SettingsChange(file, False, None, old.data)
        commands = {event: hooks[0][1][layout.key] for event, hooks in there.items() if hooks}
        is_whole = len(commands) == len(layout.events)
        for name in folder.backups() if is_whole else ():
            kept = folder.read(name)
            if kept is not None and _is_before(kept.data, agent, commands, old.data):
                if not is_dry:
                    folder.replace(kept.data, old)
                    folder.remove_backup(name)
                return SettingsChange(file, True, None, kept.data)
        if is_whole and _is_before(b"", agent, commands, old.data):  # `install` created the file
            if not is_dry:
                folder.remove(old)
            return SettingsChange(file, True, None, None)
        after = remove_hooks(old.data, layout)
        if not is_dry:
            folder.replace(after, old)
        return SettingsChange(file, True, None, after)


def _is_before(kept: bytes, agent: Agent, commands: Mapping[str, str], now: bytes) -> bool:
    """Whether a backup is the content before `install`: it differs only by our hooks.

    Attack: a repository can ship a backup file. One that contains a hook of ours is not used: real
    backups date from before the first hook, and the shipped hook may start anything.
    """
    layout = agent.layout
    try:
        return (
            not any(own_hooks(kept, layout).values()) and add_hooks(kept, layout, commands) == now
        )
    except BadInput:
        return False


@dataclass(frozen=True, slots=True)
class HookState:
    """The state of our hooks in one settings file."""

    file: str
    problems: tuple[str, ...]
    is_installed: bool
    is_outside: bool = False
    options: tuple[str, ...] = ()
    """Options given at `install`: `--config FILE`, `--policy FILE`."""
    is_off: bool = False
    """A setting in this file disables our hooks, wherever they are installed."""


def state_of(file: str, agent: Agent, *, environ: Mapping[str, str]) -> HookState | None:
    """None: there is no such file."""
    layout = agent.layout
    with _settings_file(file, agent).open(makes=False) as folder:
        content = None if folder is None else folder.read()
    if content is None:
        return None
    installed = own_hooks(content.data, layout)
    problems = [f"no hook for {event}" for event, hooks in installed.items() if not hooks]
    chosen: list[dict[str, Any]] = []
    for event, hooks in installed.items():
        for matcher, hook in hooks:
            options = _options(hook[layout.key], agent, environ, after=event in layout.after)
            chosen.append(options or {})
            problems += _problems(agent, matcher, hook, is_known=options is not None)
    off = agent.disabled_by(parse_settings(content.data, layout))
    problems += [f"{off}: the agent does not run the hook"] if off else []
    configured, trouble = _configured_outside({each.get("config") for each in chosen}, environ)
    problems += trouble
    outside = configured or any(each.get("dangerously_outside") for each in chosen)
    named = [f"--{n} {each[n]}" for each in chosen for n in ("config", "policy") if each.get(n)]
    told_problems, told_options = tuple(dict.fromkeys(problems)), tuple(dict.fromkeys(named))
    return HookState(file, told_problems, bool(chosen), outside, told_options, bool(off))


def missing_hooks(environ: Mapping[str, str]) -> dict[str, str]:
    """What is wrong with the hooks that were installed, by settings file; empty where nothing is.
    A project that is gone needs no hook."""
    found: dict[str, str] = {}
    for file, name in installed_hooks(environ).items():
        if not os.path.isdir(os.path.dirname(os.path.dirname(file))):
            continue
        try:
            state = state_of(file, agent_named(name), environ=environ)
        except CellwallError as error:
            found[file] = error.message
            continue
        if state is None or not state.is_installed:
            found[file] = "the hook is gone"
        elif state.problems:
            found[file] = "; ".join(state.problems)
    return found


def _configured_outside(
    files: set[str | None], environ: Mapping[str, str]
) -> tuple[bool, list[str]]:
    """Whether a hook's configuration runs commands outside; and problems with the files."""
    outside, problems = False, []
    for file in files:
        try:
            settings = load_settings(file=file, environ=environ)
            outside = outside or settings.hook.dangerously_outside
        except ConfigError as error:
            problems.append(f"its configuration cannot be read, so every call is denied: {error}")
    return outside, problems


def _options(
    command: str, agent: Agent, environ: Mapping[str, str], *, after: bool
) -> dict[str, Any] | None:
    options = options_of(command, environ, is_posix_shell=agent.is_posix_shell)
    if options is None or options.get("agent", "claude-code") != agent.name:
        return None
    return options if options.get("after", False) == (after and agent.names_no_event) else None


def _problems(agent: Agent, matcher: str, hook: dict[str, Any], *, is_known: bool) -> list[str]:
    layout = agent.layout
    problems = []
    expected = layout.entry(hook[layout.key])
    if not is_known:
        command = hook[layout.key][:200]
        problems.append(f"it starts something else than we would; install it again: {command}")
    elif {**hook, "matcher": ""} != {**expected, "matcher": ""}:
        problems.append("it is not as `hook install` writes it, see its keys and its timeout")
    for name, word in (("onFailure", "block"), ("failClosed", True)):
        if name in expected and hook.get(name) != word:
            problems.append(f'without "{name}" a failure of the hook may let the tool through')
    if matcher not in {"*", ""}:
        problems.append(f"only for the tools {matcher!r}")
    if hook.get("async") or hook.get("asyncRewake") or hook.get("if"):
        problems.append("it does not decide every call before the call")
    return problems


def _settings_file(file: str, agent: Agent) -> EditedFile:
    hint = "Name the settings file itself with --settings, and look at what is there."
    folders = agent.own_folders if os.path.basename(os.path.dirname(file)) == "hooks" else 1
    return EditedFile(file, code="CW-HOOK-SETTINGS", hint=hint, own_folders=folders)
