"""The packages of a template, judged again before a cell gets them (PKG-1, PKG-2).

A template is a tree of packages that is built once and shared by later sandboxes: the second
install costs no resolution, no download and no unpacking. Each package was judged when the tree was
built. What may have changed since is judged again, without the network:

  (1) the rules of the policy files that apply to the action;
  (2) the feed: a version that is known to be malicious by now.

A denial refuses the action. A question was answered when the tree was built. Once for each action,
and in a live sandbox, which keeps its packages, once a minute.
"""

# ruff: noqa: PLC0415  # late imports: most runs have no template with packages

from __future__ import annotations

import time
from collections.abc import Mapping

import anyio

from cellwall.config.models import Settings
from cellwall.core.errors import Denied
from cellwall.core.types import Action
from cellwall.core.verdict import Verdict
from cellwall.runtime.policy_places import project_folder
from cellwall.sandbox.templates import environments
from cellwall.sandbox.templates.definitions import PYTHON, SHIPPED, UV

_FRESH_S = 60.0
"""As long as an index of the registry proxy is used."""


class TemplatePackages:
    """Implements `TemplatesPort`."""

    def __init__(self, settings: Settings, home: str, environ: Mapping[str, str]) -> None:
        self._settings = settings
        self._home = home
        self._environ = environ
        self._fresh_until_s: dict[str, float] = {}
        """By session."""

    async def check(self, action: Action) -> None:
        # The shipped locks name their files by hash, and are chosen with Cellwall itself.
        if action.template in (PYTHON, UV, *SHIPPED):
            return
        session = action.session_id
        if session is not None and time.monotonic() < self._fresh_until_s.get(session, 0.0):
            return
        await anyio.to_thread.run_sync(self._check, action)
        if session is not None:
            self._fresh_until_s[session] = time.monotonic() + _FRESH_S

    def end_session(self, session_id: str) -> None:
        self._fresh_until_s.pop(session_id, None)

    def _check(self, action: Action) -> None:
        environment = environments.find(self._home, action.template)
        if environment is None:
            return  # not built: the sandbox refuses, with a hint
        from cellwall.packages.names import Ecosystem, canonical_name
        from cellwall.runtime.package_judging import open_judge, rules_now
        from cellwall.runtime.signed_grants import signed_grants

        named = action.policy or self._settings.policy.files
        decide = rules_now(
            named=named,
            cwd=project_folder(action),
            environ=self._environ,
            grants=signed_grants(self._home, self._settings),
        )
        judge = open_judge(self._settings, self._home, decide)
        for name, version in environment.packages:
            verdict = judge.judge_installed(
                Ecosystem.PYPI, canonical_name(Ecosystem.PYPI, name), version
            )
            if verdict.verdict is Verdict.DENY:
                strictest = max(verdict.reasons, key=lambda each: each.verdict)
                raise Denied(
                    f"the template {action.template} has {name} {version}: {strictest.text}",
                    hint=f"Remove it with `cellwall template remove {action.template}`, and use "
                    "other packages.",
                    code="CW-PACKAGE-REFUSED",
                )
