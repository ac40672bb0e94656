"""`user=` of the unmodified SDK: of commands, terminals and files (INT-2, ISO-1)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from e2b import CommandExitException, SandboxException
from e2b_code_interpreter import Sandbox

from cellwall.sandbox.linux import cgroups
from conftest import need
from interfaces.e2b.conftest import options
from interfaces.http.running_service import UNANSWERED, RunningService, running_service

TWO: dict[str, Any] = {"metadata": {"cellwall.second_user": "true"}}


@pytest.fixture(scope="module")
def allowing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    need(cgroups.choose(cgroups.gather()).way != "none", "cgroups with memory, pids and cpu")
    need(os.geteuid() == 0, "root: an ordinary user maps one uid")
    config = f'{UNANSWERED}[sandbox]\nsecond_user = "allow"\n'
    with running_service(tmp_path_factory.mktemp("cellwall-users"), config=config) as found:
        yield found


@pytest.mark.requirement("INT-2", "ISO-1")
def test_root_and_user_are_two_where_the_sandbox_asks_for_both(allowing: RunningService) -> None:
    with Sandbox.create(**TWO, **options(allowing)) as sandbox:
        for name, uid in (("root", "0"), ("user", "1000"), (None, "1000")):
            ran = sandbox.commands.run("id -u", **({"user": name} if name else {}))
            assert ran.stdout == f"{uid}\n"
        background = sandbox.commands.run("id -u", user="root", background=True)
        assert background.wait().stdout == "0\n"
        sandbox.commands.run("umask 077; echo secret > /root/own", user="root")
        with pytest.raises(CommandExitException):
            sandbox.commands.run("cat /root/own", user="user")
        assert sandbox.commands.run("cat /root/own", user="root").stdout == "secret\n"
        with pytest.raises(SandboxException, match="no user 'postgres'"):
            sandbox.commands.run("id", user="postgres")


@pytest.mark.requirement("INT-2", "ISO-1")
def test_files_are_reached_by_path_for_every_user(allowing: RunningService) -> None:
    with Sandbox.create(**TWO, **options(allowing)) as sandbox:
        for name in ("root", "user"):
            sandbox.files.write(f"/tmp/of-{name}", name, user=name)
            assert sandbox.files.read(f"/tmp/of-{name}", user=name) == name
            sandbox.files.write(f"folder/of-{name}", name, user=name)
            assert sandbox.commands.run(f"cat folder/of-{name}", user=name).stdout == name
        sandbox.files.write("/root/own", "secret", user="root")
        assert sandbox.commands.run("stat -c %u /root/own", user="root").stdout == "0\n"


@pytest.mark.requirement("INT-2")
def test_in_a_sandbox_of_one_user_every_name_is_that_user(allowing: RunningService) -> None:
    with Sandbox.create(**options(allowing)) as sandbox:
        for name in ("root", "user", "postgres"):
            assert sandbox.commands.run("id -u", user=name).stdout == "1000\n"


@pytest.mark.requirement("INT-2", "POL-11")
def test_metadata_gives_no_second_user_where_the_configuration_does_not(
    service: RunningService,
) -> None:
    with pytest.raises(SandboxException, match="second user"):
        Sandbox.create(**TWO, **options(service))
