"""The checks of `cellwall serve` under a real systemd: the printed units, by the guide's own lines.

Runs as root inside a machine with nothing but cgroup v2. The lines come from docs/guides/serve.md.
"""

from __future__ import annotations

import http.client
import json
import os
import pathlib
import pwd
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

from tap import PATIENCE, Check, equal, run_checks, say, within

START_S = 1200
WALL_S = START_S * PATIENCE
INSTALLED = "/opt/cellwall"
UNITS = "/etc/systemd/system"
USER, UID = "tester", 1000
PORT = 8750
# Software emulation: a start takes longer than the minute of the unit, a cell longer than its time.
CONFIG = "/etc/cellwall/config.toml"
SLOW = (
    f"[Service]\nTimeoutStartSec={WALL_S}\nWatchdogSec={120 * PATIENCE}\n"
    f"Environment=CELLWALL_CONFIG={CONFIG}\n"
)
BOMB = ["python3", "-c", "held = []\nwhile True: held.append(b'x' * 1_000_000)"]

_checks: list[tuple[str, Check]] = []
_tokens: dict[str, str] = {}


def check(name: str) -> Callable[[Check], Check]:
    def register(function: Check) -> Check:
        _checks.append((name, function))
        return function

    return register


def sh(line: str, *before: str) -> str:
    done = subprocess.run(
        [*before, "sh", "-ec", line],
        capture_output=True, text=True, check=False, timeout=WALL_S, cwd="/",
    )  # fmt: skip
    if done.returncode:
        raise AssertionError(f"{line}: {done.returncode} {done.stdout}{done.stderr}")
    return done.stdout


def as_tester(line: str) -> str:
    return sh(line, "runuser", "-u", USER, "--", "env", "-C", f"/home/{USER}", f"HOME=/home/{USER}",
              f"XDG_RUNTIME_DIR=/run/user/{UID}")  # fmt: skip


def block_after(heading: str) -> list[str]:
    """The lines of the first block of code behind this text of the guide."""
    text = pathlib.Path("/job/serve.md").read_text(encoding="utf-8").partition(heading)[2]
    block = re.search(r"```\w+\n(.*?)```", text, re.DOTALL)
    assert block is not None, heading
    return block[1].splitlines()


def install() -> None:
    """An installation like one of `pip install`: an interpreter, packages, programs beside it."""
    sh(f"python3 -m venv --without-pip {INSTALLED}; cp /job/bin/shfmt {INSTALLED}/bin/")
    sh(f"mount --bind /job/lib/python3/site-packages {INSTALLED}/lib/python3*/site-packages")
    program = pathlib.Path(INSTALLED, "bin/cellwall")
    program.write_text(
        f"#!{INSTALLED}/bin/python\nimport sys\nfrom cellwall.interfaces.entry import main\n"
        "sys.exit(main())\n",
        encoding="ascii",
    )
    program.chmod(0o755)
    os.symlink(program, "/usr/local/bin/cellwall")


def call(
    method: str, path: str, body: object = None, *, token: str = "", port: int = PORT
) -> tuple[int, Any]:
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=WALL_S)
    headers = {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    line.request(method, path, None if body is None else json.dumps(body), headers)
    answer = line.getresponse()
    data = answer.read()
    line.close()
    return answer.status, json.loads(data) if data else None


def sign_in(**more: str) -> None:
    """By password. An access token ends after 15 minutes, which one check may take here."""
    body = {"name": "ann", "password": "correct horse battery", **more}
    status, tokens = call("POST", "/v1/auth/token", body)
    equal(status, 200)
    _tokens["ann"] = tokens["access_token"]


def run(token: str, *command: str, **session: object) -> Any:
    status, made = call("POST", "/v1/sessions", session, token=token)
    equal(status, 201)
    body = {"command": list(command)}
    status, outcome = call("POST", f"/v1/sessions/{made['id']}/commands", body, token=token)
    equal(status, 200)
    return outcome


def main_pid(*words: str) -> int:
    return int(sh(" ".join(["systemctl", *words, "show", "-P", "MainPID", "cellwall"])))


def status_of(pid: int) -> dict[str, str]:
    text = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return {
        key: value.strip() for key, _, value in (row.partition(":") for row in text.split("\n"))
    }


def cells() -> list[str]:
    """Every process in a cgroup of a cell."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            group = pathlib.Path(f"/proc/{pid}/cgroup").read_text(encoding="ascii")
        except OSError:
            continue
        if "/cellwall-act_" in group or "/cellwall-sbx_" in group:
            found.append(group)
    return found


@check("the lines of the guide start the service under an account of its own")
def system_unit() -> None:
    install()
    os.makedirs(os.path.dirname(CONFIG))
    pathlib.Path(CONFIG).write_text("[limits]\nwall_s = 600\n", encoding="ascii")
    for each in ("service", "user"):
        folder = f"{UNITS}/cellwall.service.d" if each == "service" else (
            f"/home/{USER}/.config/systemd/user/cellwall.service.d"
        )  # fmt: skip
        pathlib.Path(folder).mkdir(parents=True)
        pathlib.Path(folder, "slow.conf").write_text(SLOW, encoding="ascii")
    sh(f"chown -R {USER}:{USER} /home/{USER}/.config")
    for line in block_after("For an account of its own, as root:"):
        said = sh(line)
    link = re.search(r"#sign-in=(cwl_[\w-]+)", said)  # the last line reads the journal
    assert link is not None, said
    sign_in(link=link[1])
    equal(sh("systemctl is-active cellwall"), "active\n")


@check("the process has an ordinary uid, no capability, and sees no home of others")
def without_privileges() -> None:
    pid = main_pid()
    found = status_of(pid)
    uid = str(pwd.getpwnam("cellwall").pw_uid)
    equal(found["Uid"].split(), [uid] * 4)
    equal((found["CapEff"], found["CapBnd"], found["NoNewPrivs"], found["Seccomp"]),
          ("0" * 16, "0" * 16, "1", "2"))  # fmt: skip
    inside = ("nsenter", "-t", str(pid), "-m", "runuser", "-u", "cellwall", "--")
    equal(sh("ls /home/* 2>/dev/null | wc -l; touch /usr/x /etc/x /var/x 2>/dev/null || :; "
             "test -w /var/lib/cellwall && echo writable", *inside), "0\nwritable\n")  # fmt: skip


@check("a command of a user runs, in a cgroup of the account's own manager")
def runs_command() -> None:
    outcome = run(_tokens["ann"], "echo", "hi")
    equal((outcome["status"], outcome["exit_code"], outcome["error"]), ("ok", 0, None))
    # The first scan of the guard loads its patterns, longer than its time under emulation.
    within(START_S, lambda: run(_tokens["ann"], "echo", "hi")["stdout"] == "hi\n", "the output")


@check("a memory bomb ends at the limit, which the account's manager enforces")
def memory_limit() -> None:
    outcome = run(_tokens["ann"], *BOMB, memory="64m")
    equal((outcome["status"], outcome["limit"]), ("limit", "memory"))
    equal(call("GET", "/v1/healthz")[0], 200)


@check("the guide's commands for the account work, and doctor finds nothing missing")
def operator() -> None:
    line = re.search(
        r"`(runuser -u cellwall [^`]+ )user list`",
        pathlib.Path("/job/serve.md").read_text(encoding="utf-8"),
    )
    assert line is not None
    assert "ann" in sh(f"{line[1]}user list")
    said = sh(f"{line[1]}doctor --service --json")
    # The image has no JavaScript: interpreters are not part of the service.
    missing = [
        each["name"]
        for each in json.loads(said)["checks"]
        if each["status"] == "missing" and not each["name"].startswith("language ")
    ]
    equal(missing, [])


@check("after kill -9 systemd starts it again: accounts stay, no cell remains")
def killed() -> None:
    before = main_pid()
    os.kill(before, signal.SIGKILL)
    within(START_S, lambda: main_pid() not in {0, before} and _answers(), "a new process")
    within(60, lambda: not cells(), f"cells: {cells()}")
    sign_in()
    equal(run(_tokens["ann"], "echo", "again")["status"], "ok")


def _answers(port: int = PORT) -> bool:
    try:
        return call("GET", "/v1/healthz", port=port)[0] == 200
    except OSError:
        return False


@check("a service that does not react is ended by the watchdog and started again")
def hung() -> None:
    before = main_pid()
    os.kill(before, signal.SIGSTOP)
    within(START_S, lambda: main_pid() not in {0, before} and _answers(), "a new process")
    assert "watchdog" in sh("journalctl -u cellwall -o cat").lower()


@check("systemd ends it in order: no process, no cell, no failure")
def stopped() -> None:
    sh("systemctl stop cellwall")
    equal((sh("systemctl show -P Result cellwall"), main_pid()), ("success\n", 0))
    within(60, lambda: not cells(), f"cells: {cells()}")


@check("a socket of systemd below 1024 starts the service at the first connection")
def activated() -> None:
    sh(f"cellwall serve --print-unit socket > {UNITS}/cellwall.socket")
    folder = pathlib.Path(f"{UNITS}/cellwall.socket.d")
    folder.mkdir()
    listen = "[Socket]\nListenStream=\nListenStream=127.0.0.1:80\n"
    (folder / "port.conf").write_text(listen, encoding="ascii")
    sh("systemctl daemon-reload; systemctl enable --now cellwall.socket")
    equal(main_pid(), 0)
    equal(call("GET", "/v1/healthz", port=80), (200, {"status": "ok"}))
    assert main_pid() != 0


@check("the socket keeps the port open while the service restarts")
def kept_open() -> None:
    sh("systemctl stop cellwall.service")
    equal(main_pid(), 0)
    sh("systemctl restart --no-block cellwall.service")
    equal(call("GET", "/v1/healthz", port=80)[0], 200)
    sh("systemctl disable --now cellwall.socket cellwall.service")


@check("the lines of the guide start the service of an ordinary account")
def user_unit() -> None:
    for line in block_after("For your own account:"):
        if line.startswith(("loginctl", "journalctl")):  # polkit and a journal of the account
            continue
        as_tester(line)
    token = as_tester("cellwall user add bob --role owner > /dev/null; "
                      "cellwall token create --user bob").strip()  # fmt: skip
    equal(run(token, "echo", "hi")["status"], "ok")
    equal(run(token, *BOMB, memory="64m")["limit"], "memory")
    as_tester("systemctl --user stop cellwall")
    within(60, lambda: not cells(), f"cells: {cells()}")


@check("the units drop what they can")
def exposure() -> None:
    said = sh("systemd-analyze security --no-pager cellwall.service | tail -n 1")
    say(f"# {textwrap.shorten(said, 100)}")
    level = re.search(r"(\d+\.\d)", said)
    assert level is not None, said
    assert float(level[1]) < 4.0, said


if __name__ == "__main__":
    run_checks(_checks)
    sys.exit(0)
