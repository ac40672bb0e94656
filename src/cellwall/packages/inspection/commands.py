"""Commands that people and scripts call by name (PKG-1). Pure.

A package that provides one of them is run in its place: the folder of an environment comes first
in PATH.
"""

from __future__ import annotations

from collections.abc import Iterable

_SYSTEM_COMMANDS = frozenset({
    "apt", "apt-get", "awk", "aws", "az", "bash", "brew", "cat", "chmod", "chown", "code", "conda",
    "cp", "curl", "dash", "docker", "env", "find", "gcc", "gcloud", "gh", "git", "go", "gpg",
    "grep", "helm", "java", "kill", "kubectl", "ln", "ls", "make", "mkdir", "mv", "node", "npm",
    "npx", "openssl", "perl", "pip", "pip3", "pnpm", "ps", "python", "python3", "rm", "rsync",
    "ruby", "scp", "sed", "sh", "ssh", "ssh-add", "sudo", "tar", "terraform", "touch", "unzip",
    "uv", "vault", "wget", "which", "xargs", "yarn", "zsh",
})  # fmt: skip


def shadowed_commands(provided: Iterable[str], package: str) -> list[str]:
    """The commands of the system among those that a package provides, but for its own name."""
    own = package.rpartition("/")[2]
    return sorted(_SYSTEM_COMMANDS.intersection(provided) - {own})
