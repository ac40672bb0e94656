"""Why a host refuses namespaces: hosts that we do not have, and this one."""

from __future__ import annotations

import shutil

import pytest

from cellwall.sandbox.namespace_causes import (
    APPARMOR_COMMAND,
    NamespaceFacts,
    explain,
    gather_namespaces,
)
from conftest import need

NO = "bwrap: No permissions to create new namespace"
NO_PROC = "bwrap: Can't mount proc on /newroot/proc: Operation not permitted"


@pytest.mark.requirement("ISO-12")
@pytest.mark.parametrize(
    ("facts", "found", "hint"),
    [
        (NamespaceFacts(max_user_namespaces=0), "user.max_user_namespaces", "sysctl"),
        (NamespaceFacts(userns_clone=0), "kernel.unprivileged_userns_clone", "sysctl"),
        (
            NamespaceFacts(apparmor_restricts=True, user_refusal=NO, refusal=NO),
            "AppArmor gives a user namespace only to programs with a profile",
            APPARMOR_COMMAND,
        ),
        (
            NamespaceFacts(in_container=True, is_filtered=True, user_refusal=NO, refusal=NO),
            "the seccomp filter of this container",
            "seccomp=unconfined",
        ),
        (
            NamespaceFacts(
                in_container=True, apparmor_label="docker-default (enforce)", refusal=NO_PROC
            ),
            "the AppArmor profile docker-default",
            "apparmor=unconfined",
        ),
        (
            NamespaceFacts(in_container=True, is_proc_masked=True, refusal=NO_PROC),
            "parts of /proc are masked",
            "systempaths=unconfined",
        ),
        (
            NamespaceFacts(in_container=True, apparmor_restricts=True, user_refusal=NO, refusal=NO),
            "AppArmor of the container's host",
            "kernel.apparmor_restrict_unprivileged_userns=0",
        ),
        (NamespaceFacts(refusal=NO), NO, "bwrap --unshare-all"),
    ],
)
def test_each_cause_is_named_with_the_command_that_changes_it(
    facts: NamespaceFacts, found: str, hint: str
) -> None:
    cause = explain(facts)
    assert cause is not None
    assert found in cause.found
    assert hint in cause.hint


@pytest.mark.requirement("ISO-12")
@pytest.mark.parametrize(
    "facts", [NamespaceFacts(), NamespaceFacts(apparmor_restricts=True, in_container=True)]
)
def test_host_on_which_bubblewrap_works_has_no_cause(facts: NamespaceFacts) -> None:
    assert explain(facts) is None


@pytest.mark.requirement("ISO-12")
def test_namespaces_of_this_host_are_tried() -> None:
    bubblewrap = shutil.which("bwrap")
    need(bubblewrap, "bubblewrap")
    assert explain(gather_namespaces(bubblewrap)) is None
    refused = gather_namespaces("/bin/false")
    assert (refused.refusal, refused.user_refusal) == ("exit code 1", "exit code 1")
