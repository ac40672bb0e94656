"""Runs inside cells: builds a wheel from a source archive (PEP 517).

`environment` runs in a cell with the registry and without the source: a virtual environment with
the build requirements, as wheels. `build` runs in a cell without network, on the same files: it
unpacks the source, asks the backend for further requirements, and builds where there are none but
those that the environment has. The supervisor judges every file that is left here.

    /workspace/source/         the unpacked archive
    /workspace/environment/    the virtual environment
    /workspace/requires.json   the answer of `get_requires_for_build_wheel`
    /workspace/wheel/          the wheel
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tarfile

WORKSPACE = "/workspace"
SOURCE = f"{WORKSPACE}/source"
ENVIRONMENT = f"{WORKSPACE}/environment"
REQUIRES = f"{WORKSPACE}/requires.json"
WHEEL = f"{WORKSPACE}/wheel"
MORE_REQUIREMENTS = 75
"""The exit code of `build`: the backend needs more than the environment has."""
# The times of files in the wheel; the first time that a ZIP file can have.
_EPOCH = "315532800"

# Executed by the Python of the environment, in the folder of the source.
_HOOK = """
import importlib, json, os, sys
name, paths, requires, wheel, known, more = json.loads(sys.argv[1])
here = os.getcwd()
kept = [each for each in sys.path if each not in ("", here)]
sys.path[:] = [os.path.join(here, each) for each in paths] + kept
module, _, attribute = name.partition(":")
backend = importlib.import_module(module)
for each in filter(None, attribute.split(".")):
    backend = getattr(backend, each)
asked = getattr(backend, "get_requires_for_build_wheel", lambda _settings: [])(None)
with open(requires, "w", encoding="utf-8") as file:
    json.dump(list(asked), file)
if not set(asked) <= set(known):
    sys.exit(more)
backend.build_wheel(wheel, None)
"""


def main(step: str, *arguments: str) -> int:
    """The exit code of one step."""
    if step == "environment":
        return _make_environment(*arguments)
    return _build(*arguments)


def _make_environment(uv: str, *requirements: str) -> int:
    code = _spawn(
        uv, "venv", "--no-config", "--quiet", "--no-project", "--python", sys.executable,
        ENVIRONMENT,
    )  # fmt: skip
    if code != 0 or not requirements:
        return code
    return _spawn(
        uv, "pip", "install", "--no-config", "--quiet", "--only-binary", ":all:",
        "--python", ENVIRONMENT, "--", *requirements,
    )  # fmt: skip


def _build(archive: str, backend: str, paths: str, known: str) -> int:
    """`paths` and `known` are lists in JSON: `backend-path`, and what the environment has."""
    os.mkdir(WHEEL)
    os.chdir(_unpack(archive))
    os.environ |= {"VIRTUAL_ENV": ENVIRONMENT, "SOURCE_DATE_EPOCH": _EPOCH}
    os.environ["PATH"] = f"{ENVIRONMENT}/bin:{os.environ.get('PATH', '/usr/bin:/bin')}"
    asked = (backend, json.loads(paths), REQUIRES, WHEEL, json.loads(known), MORE_REQUIREMENTS)
    return _spawn(f"{ENVIRONMENT}/bin/python", "-c", _HOOK, json.dumps(asked))


def _unpack(archive: str) -> str:
    """The folder of the project. The archive was inspected: no member leads out of it."""
    os.mkdir(SOURCE)
    if archive.endswith(".zip"):
        shutil.unpack_archive(archive, SOURCE)
    else:
        with tarfile.open(archive) as members:
            if hasattr(tarfile, "data_filter"):
                members.extraction_filter = tarfile.data_filter
            members.extractall(SOURCE)  # noqa: S202  # in a cell, see above
    folders = os.listdir(SOURCE)
    return f"{SOURCE}/{folders[0]}" if len(folders) == 1 else SOURCE


def _spawn(*words: str) -> int:
    try:
        child = os.posix_spawnp(words[0], words, os.environ)  # noqa: TID251  # inside a cell
    except OSError as error:
        print(f"{words[0]}: {error.strerror}", file=sys.stderr)
        return 127
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
