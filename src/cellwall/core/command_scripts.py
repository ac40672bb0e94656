"""The script in `sh -c SCRIPT` or `python -c SCRIPT`, which may be too long for an argument.

The kernel takes no argument of 128 KiB or more (MAX_ARG_STRLEN, execve(2)), whatever their sum. A
script of that size is given to its interpreter as a file instead; the policy judges the command as
it was asked for. A program that is no interpreter cannot be given such an argument at all. Pure.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

MAX_ARGUMENT_BYTES = 128 * 1024 - 1
_SHELLS = frozenset({"sh", "bash", "dash", "ash", "ksh", "zsh"})
_PYTHON = re.compile(r"python(?:3(?:\.[0-9]{1,2})?)?")
# One cluster of options that ends in `c`: the next word is the script.
_SCRIPT_FOLLOWS = re.compile(r"-[A-Za-z]*c")
_TAKES_A_VALUE = re.compile(r"-[A-Za-z]*[oXW]")


def long_script(argv: Sequence[str]) -> int | None:
    """The position of a script that is too long for an argument; None if there is none."""
    long = [at for at, word in enumerate(argv) if _is_long(word)]
    if len(long) != 1 or long[0] < 2 or interpreter_of(argv) is None:
        return None
    at = long[0]
    if _SCRIPT_FOLLOWS.fullmatch(argv[at - 1]) is None:
        return None
    # Only options may stand before: in `sh run.sh -c TEXT` the text is an argument of run.sh.
    before = iter(argv[1 : at - 1])
    for word in before:
        if not word.startswith("-") or word in {"-", "--"} or _SCRIPT_FOLLOWS.fullmatch(word):
            return None
        if _TAKES_A_VALUE.fullmatch(word):
            next(before, None)
    return at


def interpreter_of(argv: Sequence[str]) -> str | None:
    """`shell` or `python`, by the name of the program; None for any other."""
    name = argv[0].rpartition("/")[2]
    if name in _SHELLS:
        return "shell"
    return "python" if _PYTHON.fullmatch(name) else None


def run_from_file(
    argv: Sequence[str], path: str, *, is_removed: bool
) -> tuple[tuple[str, ...], bytes]:
    """The command that runs its long script from a file, and the content of the file.

    `is_removed`: the interpreter removes the file, and its directory, once it has opened it.
    """
    at = long_script(argv)
    if at is None:
        raise ValueError("the command has no long script")
    script, folder = os.fsencode(argv[at]), os.path.dirname(path)
    if interpreter_of(argv) == "shell":
        # Read by the shell itself: `$0`, the arguments, standard input and `exec` are unchanged.
        loader = f". {path}"
        if is_removed:
            script = f"/bin/rm -rf {folder};".encode() + script  # on the line of the first command
    else:
        remove = f"[__import__('os').unlink({path!r}), __import__('os').rmdir({folder!r})]"
        remove = remove if is_removed else "None"
        read = f"(lambda f: ({remove}, f.read(), f.close())[1])(open({path!r}, 'rb'))"
        loader = f"exec(compile({read}, '<string>', 'exec'))"
    return (*argv[:at], loader, *argv[at + 1 :]), script


def _is_long(word: object) -> bool:
    # A word of another type is refused later. UTF-8 takes at most four bytes.
    if not isinstance(word, str) or len(word) * 4 <= MAX_ARGUMENT_BYTES:
        return False
    return len(word.encode("utf-8", "surrogatepass")) > MAX_ARGUMENT_BYTES
