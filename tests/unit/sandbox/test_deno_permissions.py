"""Deno's permissions inside a real cell: each attack passes without them, in the same cell."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from cellwall.core.errors import BadInput
from cellwall.core.outcomes import Outcome, Status
from cellwall.core.types import Action, RunCode
from cellwall.runtime import wiring
from cellwall.runtime.home import local_principal
from cellwall.sandbox import languages
from cellwall.sandbox.linux import jobs

# What Deno must refuse beyond the walls of the cell; the value is the reason of the refusal.
ATTACKS = {
    "read": ("Deno.readTextFileSync('/etc/passwd')", "read access"),
    "write": ("Deno.writeTextFileSync('/dev/null', '')", "write access"),
    "run": ("new Deno.Command('/bin/true').outputSync()", "run access"),
    "ffi": ("Deno.dlopen('libc.so.6', {getpid: {parameters: [], result: 'i32'}})", "ffi access"),
    "sys": ("Deno.hostname()", "sys access"),
    "net": ("Deno.listen({hostname: '127.0.0.1', port: 8123})", "net access"),
}
DEEDS = ", ".join(f"{name}: () => {deed}" for name, (deed, _) in ATTACKS.items())
CODE = """
const attacks = {DEEDS};
for (const [name, deed] of Object.entries(attacks)) {
  try { deed(); console.log(name, "done"); } catch (error) { console.log(name, error.message); }
}
Deno.writeTextFileSync("/workspace/own", "mine");
console.log("own", Deno.readTextFileSync("/workspace/own"));
""".replace("DEEDS", DEEDS)


def run(code: str, language: str, folder: Path) -> dict[str, str]:
    config = folder / "config.toml"
    config.write_text('[sandbox]\njavascript = "deno"\n')
    config.chmod(0o600)

    async def work() -> Outcome:
        app = wiring.open_app(config=str(config))
        operation = RunCode(language, code.encode())
        who = local_principal("sdk")
        return await app.runtime.perform(
            Action(principal=who, operation=operation, limits=app.limits)
        )

    outcome = anyio.run(work)
    assert (outcome.status, outcome.stderr) == (Status.OK, "")
    return dict(line.split(" ", 1) for line in outcome.stdout.splitlines())


@pytest.mark.requirement("ISO-11")
@pytest.mark.slow
@pytest.mark.parametrize("language", ["javascript", "typescript"])
def test_deno_refuses_what_the_cell_alone_would_allow(
    language: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = run(CODE, language, tmp_path)
    for name, (_, reason) in ATTACKS.items():
        assert reason in found[name], (name, found)
    assert found["own"] == "mine"
    # The control: the same code in the same cell, without Deno's permissions.
    everything = ("read", "write", "env", "run", "ffi", "net")
    monkeypatch.setattr(languages, "_DENO_PERMISSIONS", [f"--allow-{name}" for name in everything])
    monkeypatch.setattr(languages, "_FOR_RUNNER", "--allow-sys")
    allowed = run(CODE, language, tmp_path)
    assert {name for name in ATTACKS if allowed[name] == "done"} == set(ATTACKS)


@pytest.mark.requirement("ISO-11")
@pytest.mark.parametrize(
    "name", ["DENO_PERMISSION_BROKER_PATH", "DENO_V8_FLAGS", "NODE_OPTIONS", "LD_PRELOAD"]
)
def test_no_variable_of_a_caller_takes_the_place_of_permissions(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(languages, "_deno", lambda: "/usr/bin/deno")
    action = Action(
        principal=local_principal("sdk"),
        operation=RunCode("typescript", b""),
        env={"MODE": "test"},
    )
    program, _ = jobs.program_of(action, only_deno=True)  # the control
    assert program.argv[0] == languages.DENO_INSIDE
    with pytest.raises(BadInput) as refused:
        jobs.program_of(replace(action, env={name: "/tmp/x"}), only_deno=True)
    assert refused.value.code == "CW-ENV-REFUSED"


@pytest.mark.requirement("ISO-11", "ISO-4")
def test_javascript_is_refused_without_deno_where_the_configuration_demands_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(languages, "_deno", lambda: None)
    monkeypatch.setattr(languages, "_node", lambda: "/usr/bin/node")
    assert (
        languages.program_for(RunCode("javascript", b"")).argv[0] == "/usr/bin/node"
    )  # the control
    with pytest.raises(BadInput, match="only in Deno") as refused:
        languages.program_for(RunCode("javascript", b""), only_deno=True)
    assert (refused.value.code, "pip install cellwall" in refused.value.hint) == (
        "CW-LANGUAGE-MISSING",
        True,
    )
