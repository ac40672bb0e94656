"""Why this host refuses namespaces, and the command that changes it (ISO-12).

`gather_namespaces` reads the host and tries bubblewrap in two steps; `explain` is pure. The order
of the causes matters: each is one that, while it holds, would hide those after it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cellwall.sandbox.linux.cgroups import in_container
from cellwall.sandbox.linux.programs import refusal_of
from cellwall.sandbox.linux.run_cgroup import read_number, read_text

# No new line of the shell is needed: one command, as root. The profile confines nothing; it only
# names the one program that may make user namespaces.
APPARMOR_COMMAND = (
    "printf 'abi <abi/4.0>,\\ninclude <tunables/global>\\nprofile bwrap /usr/bin/bwrap "
    "flags=(unconfined) {\\n  userns,\\n}\\n' | sudo tee /etc/apparmor.d/bwrap >/dev/null && "
    "sudo apparmor_parser -r /etc/apparmor.d/bwrap"
)
CONTAINER_OPTIONS = (
    "--security-opt seccomp=unconfined --security-opt apparmor=unconfined "
    "--security-opt systempaths=unconfined"
)
_MASKS = re.compile(r"^\S+ \S+ \S+ \S+ /proc/\S+ ", re.MULTILINE)
_FILTERED = "2"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceFacts:
    """What decides whether an ordinary process gets namespaces here."""

    max_user_namespaces: int | None = 15_000
    userns_clone: int | None = 1
    apparmor_restricts: bool = False
    apparmor_label: str = "unconfined"
    in_container: bool = False
    is_filtered: bool = False
    """A seccomp filter is already on this process, as in a container."""
    is_proc_masked: bool = False
    """Parts of /proc are covered; the kernel then refuses to mount a new one."""
    user_refusal: str = ""
    """bubblewrap's message if it gets no user namespace at all."""
    refusal: str = ""
    """bubblewrap's message if it gets not all namespaces with a new /proc."""


@dataclass(frozen=True, slots=True)
class Cause:
    """Why namespaces are refused, and the command that changes it."""

    found: str
    hint: str


def gather_namespaces(bubblewrap: str | None) -> NamespaceFacts:
    """Read the facts of this host."""
    status = read_text("/proc/self/status")
    filtered = re.search(r"^Seccomp:\t(\d)", status, re.MULTILINE)
    walls = ("--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc")
    refusal = refusal_of([bubblewrap, *walls, "true"]) if bubblewrap else ""
    # The second trial only where the first failed: it tells the causes apart.
    alone = ("--unshare-user", "--ro-bind", "/", "/")
    return NamespaceFacts(
        max_user_namespaces=read_number("/proc/sys/user/max_user_namespaces"),
        userns_clone=read_number("/proc/sys/kernel/unprivileged_userns_clone"),
        apparmor_restricts=read_number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
        == 1,
        apparmor_label=read_text("/proc/self/attr/current").strip("\0\n ") or "unconfined",
        in_container=in_container(),
        is_filtered=filtered is not None and filtered[1] == _FILTERED,
        is_proc_masked=bool(_MASKS.search(read_text("/proc/self/mountinfo"))),
        user_refusal=refusal_of([bubblewrap, *alone, "true"]) if bubblewrap and refusal else "",
        refusal=refusal,
    )


def explain(facts: NamespaceFacts) -> Cause | None:
    """The cause of a refusal; None where nothing was refused."""
    if facts.max_user_namespaces == 0:
        return Cause(
            "user.max_user_namespaces is 0", "sudo sysctl -w user.max_user_namespaces=15000"
        )
    if facts.userns_clone == 0:
        return Cause(
            "kernel.unprivileged_userns_clone is 0: switched off for users",
            "sudo sysctl -w kernel.unprivileged_userns_clone=1",
        )
    if not facts.refusal:
        return None
    if facts.apparmor_restricts and not facts.in_container:
        return Cause(
            f"AppArmor gives a user namespace only to programs with a profile, as on Ubuntu 24.04 "
            f"({facts.refusal})",
            APPARMOR_COMMAND,
        )
    if not facts.in_container and not facts.is_proc_masked:
        return Cause(
            facts.refusal, "Run `bwrap --unshare-all --ro-bind / / --proc /proc true` to see why."
        )
    return Cause(f"{_cause_in_container(facts)} ({facts.refusal})", _container_hint(facts))


def _cause_in_container(facts: NamespaceFacts) -> str:
    if facts.user_refusal and facts.apparmor_restricts and facts.apparmor_label == "unconfined":
        return "AppArmor of the container's host refuses user namespaces"
    if facts.user_refusal and facts.is_filtered:
        return "the seccomp filter of this container refuses new namespaces and mounts"
    if facts.apparmor_label != "unconfined":
        return f"the AppArmor profile {facts.apparmor_label[:60]} of this container refuses mounts"
    if facts.is_proc_masked:
        return "parts of /proc are masked in this container, so the kernel refuses a new /proc"
    return "this container gives no namespaces"


def _container_hint(facts: NamespaceFacts) -> str:
    if facts.user_refusal and facts.apparmor_restricts and facts.apparmor_label == "unconfined":
        return (
            "On the container's host, as root: sysctl -w "
            "kernel.apparmor_restrict_unprivileged_userns=0 (docs/guides/hosts.md)."
        )
    return f"Start the container with: {CONTAINER_OPTIONS} (docs/guides/hosts.md)."
