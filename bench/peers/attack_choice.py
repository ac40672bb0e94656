"""Which attacks of the catalog a peer is measured by, and in which column they are counted.

Left out, because their verdict would say nothing about a peer: attacks on the init of a cell, on
Cellwall's own egress, vault, policy and records; listings of directories, which an own root has as
well; and writes that the host's file modes refuse to an ordinary user without any sandbox.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cellwall.redteam.attack import Attack
from cellwall.redteam.catalog import attacks

LAYERS = ("system calls", "isolation", "files", "network", "secrets", "limits")
"""The columns. System calls of the layer isolation have one of their own: most are no way out by
themselves, but code of the kernel that hostile code can reach."""
_PROCESS_KEYS = (
    "see-a-process-of-the-host",
    "signal-a-process-of-the-host",
    "pidfd-of-a-process-of-the-host",
    "read-the-environment-of-a-process-of-the-host",
    "find-a-key-in-a-keyring-of-the-host",
    "read-a-key-by-its-number",
    "system-v-shared-memory-of-the-host",
    "system-v-semaphores-of-the-host",
    "system-v-queue-of-the-host",
    "posix-queue-of-the-host",
    "posix-shared-memory-of-the-host",
)
_NEIGHBOUR_KEYS = ("file-in-tmp", "file-in-dev-shm", "port", "abstract-socket", "socket-in-tmp")
_NOT_LIMITS = ("limits/one-large-file-with-SIGXFSZ-ignored",)  # judged by the limit's name alone
KEY_OF_SSH = "files/read-a-key-in-the-ssh-directory"
_SEARCHES = {"environment": "environment", "environment-of-init": "processes"}


@dataclass(frozen=True, slots=True)
class Choice:
    """An attack and its column."""

    attack: Attack
    layer: str


def chosen() -> tuple[Choice, ...]:
    """In the order of the columns."""
    found = [Choice(attack, layer) for attack in attacks() if (layer := _layer(attack))]
    found += [_search(attack) for attack in attacks() if _is_search(attack)]
    by_path = next(each for each in found if each.attack.id == "files/read-by-its-path")
    ssh = replace(by_path.attack, id=KEY_OF_SSH, title="A file of the host: a key in ~/.ssh")
    found.append(Choice(ssh, "files"))
    return tuple(sorted(found, key=lambda each: LAYERS.index(each.layer)))


def _layer(attack: Attack) -> str:
    match attack.program:
        case "kernel_calls":
            return "system calls"
        case "set_id":
            return "isolation"
        case "processes" if attack.key in _PROCESS_KEYS:
            return "isolation"
        case "neighbours" if attack.key in _NEIGHBOUR_KEYS:
            return "isolation"
        case "files" if not attack.key.startswith(("see-", "read-the-accounts")):
            return "files"
        case "network":
            return "network"
        case "" if attack.layer == "limits" and attack.id not in _NOT_LIMITS:
            return "limits"
        case _:
            return ""


def _is_search(attack: Attack) -> bool:
    return attack.layer == "secrets" and attack.data.get("search") in _SEARCHES.values()


def _search(attack: Attack) -> Choice:
    known = replace(attack, program="secret_search", key=str(attack.data["search"]))
    return Choice(known, "secrets")
