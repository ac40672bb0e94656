"""A pool ends every template that it has started, whenever it is closed."""

from __future__ import annotations

import os
import shutil
import signal
import threading

import pytest

from cellwall.core.errors import SandboxFailed
from cellwall.runtime import wiring
from cellwall.sandbox.linux import pool
from cellwall.sandbox.linux.layers import SHELL
from cellwall.sandbox.linux.template import Template
from conftest import need


@pytest.mark.requirement("ISO-8")
@pytest.mark.slow
def test_a_template_that_starts_while_its_pool_closes_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    need(shutil.which("bwrap"), "bubblewrap")
    monkeypatch.setenv("CELLWALL_PATH", "warm")
    app = wiring.open_app()
    started: list[int] = []

    class Overtaken(Template):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)  # type: ignore[arg-type]  # as it was called
            started.append(os.pidfd_open(self.pid))
            app.pool.close()

    try:
        with monkeypatch.context() as patch:
            patch.setattr(pool, "Template", Overtaken)
            with pytest.raises(SandboxFailed) as refused:
                app.pool.template(SHELL, wait=True)
        assert refused.value.code == "CW-TEMPLATE-GONE"
        (shim,) = started
        # Waited for by `close`: the process is no child of ours any more.
        with pytest.raises(ProcessLookupError):
            signal.pidfd_send_signal(shim, 0)
        assert app.pool.counts() == (0, 0)
        # The control: the next one is not closed meanwhile, and lives.
        template = app.pool.template(SHELL, wait=True)
        assert template is not None
        assert template.is_alive()
    finally:
        for descriptor in started:
            os.close(descriptor)
        app.close()


@pytest.mark.requirement("LIM-4")
@pytest.mark.slow
def test_a_call_after_the_close_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of an exit handler come after `close`, when a template is started by its caller."""
    need(shutil.which("bwrap"), "bubblewrap")
    monkeypatch.setenv("CELLWALL_PATH", "warm")
    app = wiring.open_app()
    found: list[Template | None] = []
    try:
        app.pool.close()

        def ask() -> None:
            found.extend(app.pool.template(SHELL, wait=False) for _ in range(3))

        calling = threading.Thread(target=ask, daemon=True)
        calling.start()
        calling.join(60)
        assert not calling.is_alive(), "the caller waits for a lock that it holds"
        assert [each is not None for each in found] == [False, False, True]
    finally:
        app.close()
