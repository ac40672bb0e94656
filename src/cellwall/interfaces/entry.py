"""The entry point of `cellwall`. Hooks take a fast path, since an agent waits for each answer.

Nothing slow is imported here: a whole hook answer takes about as long as the import of `click`.
"""

# ruff: noqa: PLC0415  # late imports: a hook answers in less time than click takes to import

from __future__ import annotations

import sys

from cellwall.interfaces import is_hook


def main() -> int:
    """Run the program; returns its exit code."""
    words = sys.argv[1:]
    if is_hook(words):
        return _hook(words[1:])
    from cellwall.interfaces.cli.main import main as cli

    return cli(words)


def _hook(words: list[str]) -> int:
    try:
        from cellwall.interfaces.hooks.client import answer

        return answer(words)
    except BaseException:  # noqa: BLE001  # a broken installation must not let a tool through
        print("cellwall: Cellwall cannot start, so the call is refused", file=sys.stderr)
        return 2


if __name__ == "__main__":  # python -I -m cellwall.interfaces.entry
    sys.exit(main())
