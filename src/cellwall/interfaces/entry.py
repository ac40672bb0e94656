"""The entry point of `cellwall`. Hooks take a fast path, since an agent waits for each answer.

Nothing slow is imported here: a whole hook answer takes about as long as the import of `click`.
"""

from __future__ import annotations

import sys

REFUSED = 125  # CONTRACT: Cellwall refused, or failed itself
_ABOUT_HOOKS = frozenset({"install", "uninstall", "status", "--help", "-h"})


def main() -> int:
    """Run the program; returns its exit code."""
    words = sys.argv[1:]
    if is_hook(words):
        return _hook(words[1:])
    from cellwall.interfaces.cli.main import main as cli  # noqa: PLC0415  # heavy

    return cli(words)


def _hook(words: list[str]) -> int:
    try:
        from cellwall.interfaces.hooks.client import answer  # noqa: PLC0415  # only for hooks

        return answer(words)
    except BaseException:  # noqa: BLE001  # a broken installation must not let a tool through
        print("cellwall: Cellwall cannot be started, so it is refused", file=sys.stderr)
        return 2


def is_hook(words: list[str]) -> bool:
    """Whether an agent calls the hook. A usage error then blocks the tool, as hosts expect it."""
    return words[:1] == ["hook"] and not _ABOUT_HOOKS.intersection(words[1:2])


if __name__ == "__main__":  # python -I -m cellwall.interfaces.entry
    sys.exit(main())
