"""Runs inside a cell: installs packages beside the environment of a workspace, then exchanges both.

`stage` runs uv or npm in a copy of the environment, with the registry. `commit`, in a second cell
without network, exchanges the copy with the environment in one system call: a process that is
killed at any moment leaves the old environment or the new one. `discard` removes the copy.

Where there is no environment yet, `stage` installs in the /tmp of its cell, which processes of the
sandbox cannot reach, and leaves an archive of the tree beside the copy, with a MAC under a key from
its input: the caller recognizes an archive that was changed meanwhile. `fill` makes the environment
from such an archive, in one cell without network.

Processes of the sandbox can change every file of the workspace at any moment. So that `stage` does
not run their code with the registry, it executes no file of the workspace (PKG-3).

    /workspace/.cellwall-install/ID/         the copy: a user base of Python, or a package of npm
    /workspace/.cellwall-install/ID.base     the environment that was copied
    /workspace/.cellwall-install/ID.cache/   the cache of uv, where /tmp is too small for it
    /workspace/.cellwall-install/ID.tree     the MAC and the archive of a new environment
"""

from __future__ import annotations

# late imports: Python starts for each step, and these double its time
import errno
import os
import sys
import time

WORKSPACE = "/workspace"
STAGING = f"{WORKSPACE}/.cellwall-install"
_STALE_S = 3600.0
_MAX_SAID_BYTES = 1 << 20
_RENAME_EXCHANGE = 2
_AT_FDCWD = -100
# Beside the copy, where no wheel has data files.
_STAMP = ".base"
_CACHE = ".cache"
_TREE = ".tree"
_UV = "/opt/packages/uv"
_INSTALL = ("pip", "install", "--no-config", "--no-progress", "--only-binary=:all:")
# The registry proxy is the only peer of this cell. With TLS uv takes twice the time.
_INDEX = ("--default-index", "http://pypi.org/simple")
_MEMORY_CACHE = "/tmp/.cache/uv"  # with uv's answers about Python, see `templates/uv_answers.py`
_MEMORY_SHARE = 4
_NO_SPACE = f"(os error {errno.ENOSPC})".encode()
_NPM = ("install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier")
NPM_WITHOUT_GIT = {"npm_config_git": "/nonexistent", "npm_config_allow_git": "none"}
"""For a git dependency, npm runs npm in the clone, whose .npmrc can name any program as git, also
with `--ignore-scripts`. Variables overrule that file; npm before 11.10 knows only the first."""
_PROGRAMS = "/tmp/.cellwall-install"
"""/tmp belongs to this cell alone."""
_NEW_TREE = "/tmp/.cellwall-tree"
_MAX_TREE_BYTES = 60 << 20
NOT_EMPTY = 75
"""The exit code of `fill` where an environment exists by now."""
_NPM_FILES = ("package.json", "package-lock.json", "npm-shrinkwrap.json")


def main(
    step: str, ecosystem: str, name: str, base: str, memory_bytes: str, *requirements: str
) -> int:
    """`base` is the user base of Python in this workspace."""
    place = f"{STAGING}/{name}"
    if step == "discard":
        _remove(place)
        return 0
    target = f"{WORKSPACE}/node_modules" if ecosystem == "npm" else _site_packages(base)
    copy = f"{place}/node_modules" if ecosystem == "npm" else _site_packages(place)
    if step == "commit":
        return _commit(place, copy, target, base)
    if step == "fill":
        return _fill(place, copy, target, base)
    _prepare(place, copy, target)
    os.environ["PATH"] = _system_path(os.environ["PATH"])
    if ecosystem == "npm":
        code = _run_npm(place, requirements)
    else:
        code = _run_uv(place, requirements, int(memory_bytes), sys.stdin.buffer.read())
    if code != 0:
        _remove(place)
    return code


def _site_packages(base: str) -> str:
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    return f"{base}/lib/{version}/site-packages"


def _system_path(path: str) -> str:
    """Without the folder of programs that packages have installed: any file can be `npm` there."""
    return ":".join(each for each in path.split(":") if not each.startswith(WORKSPACE))


def _prepare(place: str, copy: str, target: str) -> None:
    """A copy of hard links: package managers replace files and do not write into them."""
    os.makedirs(STAGING, exist_ok=True)
    for each in os.scandir(STAGING):
        if time.time() - each.stat(follow_symlinks=False).st_mtime > _STALE_S:
            _remove(each.path)
    os.makedirs(os.path.dirname(copy))
    with open(f"{place}{_STAMP}", "w", encoding="ascii") as stamp:
        stamp.write(_stamp(target))
    if os.path.isdir(target):
        import shutil

        shutil.copytree(target, copy, symlinks=True, copy_function=_link)
    else:
        os.makedirs(copy)


def _link(source: str, target: str) -> None:
    import shutil

    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # a file system without hard links
        shutil.copy2(source, target, follow_symlinks=False)


def _stamp(target: str) -> str:
    """Changes with every installation by Cellwall, and with most by others."""
    try:
        found = os.stat(target)
    except OSError:
        return "none"
    return f"{found.st_ino} {found.st_mtime_ns}"


def _run_uv(place: str, requirements: tuple[str, ...], memory_bytes: int, key: bytes) -> int:
    """`key`: for the MAC of the archive of a new environment; empty where there is one."""
    os.chdir("/")  # where no file of the workspace is read for a requirement
    words: tuple[str, ...] = (_UV, *_INSTALL, *_INDEX)
    if _has_small_tmp(memory_bytes):
        # The files of the cache are written to memory, and removed with the cell. A new tree in
        # memory as well consists of links to them.
        place_words = ("--prefix", place, "--link-mode=copy")
        if key:
            os.mkdir(_NEW_TREE)
            place_words = ("--prefix", _NEW_TREE, "--link-mode=hardlink")
        code, said = _spawn_and_read(
            *words, *place_words, "--python", sys.executable, "--cache-dir", _MEMORY_CACHE,
            "--", *requirements,
        )  # fmt: skip
        if code == 0 and key:
            _take_new_tree(place, key)
        if code == 0 or _NO_SPACE not in said:
            sys.stderr.buffer.write(said)
            return code
        _remove_tree(_MEMORY_CACHE)
        _remove_tree(_NEW_TREE)
    words += ("--prefix", place)
    # Beside the environment, so that uv links its files: /tmp is on another file system.
    cache = f"{place}{_CACHE}"
    try:
        python = _described_python()
        return _spawn(*words, "--python", python, "--cache-dir", cache, "--", *requirements)
    finally:
        _remove_tree(cache)


def _take_new_tree(place: str, key: bytes) -> None:
    """Copy the tree from memory into the workspace, and leave its archive for the caller."""
    files = _files_below(_NEW_TREE)
    for path, mode, _ in files:
        with open(f"{_NEW_TREE}/{path}", "rb") as file:
            _write_file(f"{place}/{path}", mode, file.read())
    head = "".join(f"{mode:o} {size} {path}\n" for path, mode, size in files)
    total = sum(size for _, _, size in files)
    if total > _MAX_TREE_BYTES or head.count("\n") != len(files):
        return
    import hmac

    mac = hmac.new(key, digestmod="sha256")
    with open(f"{place}{_TREE}", "xb") as archive:

        def add(data: bytes) -> None:
            mac.update(data)
            archive.write(data)

        add(os.fsencode(f"{head}\n"))
        for path, _, _ in files:
            with open(f"{_NEW_TREE}/{path}", "rb") as file:
                add(file.read())
        archive.write(mac.digest())


def _files_below(tree: str) -> list[tuple[str, int, int]]:
    """Path, mode and size of each file; wheels have no links."""
    found = []
    for folder, _, names in os.walk(tree):
        for name in names:
            path = os.path.join(folder, name)
            if path != f"{tree}/.lock":  # of uv
                info = os.lstat(path)
                found.append((os.path.relpath(path, tree), info.st_mode & 0o777, info.st_size))
    return found


def _write_file(path: str, mode: int, content: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    try:
        file = os.open(path, flags, mode)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        file = os.open(path, flags, mode)
    with open(file, "wb", buffering=0) as written:
        if written.write(content) != len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _fill(place: str, copy: str, target: str, base: str) -> int:
    """Make the environment from the archive of the input, in the steps of an installation."""
    if os.path.lexists(target):
        return NOT_EMPTY
    _prepare(place, copy, target)
    archive = sys.stdin.buffer
    try:
        listed = []
        while (line := archive.readline().rstrip(b"\n")) != b"":
            listed.append(os.fsdecode(line).split(" ", 2))
        for mode, size, path in listed:
            content = archive.read(int(size))
            if len(content) != int(size):
                raise OSError("the archive ended early")
            _write_file(f"{place}/{path}", int(mode, 8), content)
    except BaseException:
        _remove(place)
        raise
    code = _commit(place, copy, target, base)
    if code == 0:
        count = sum(path.endswith(".dist-info/METADATA") for _, _, path in listed)
        print(f"Installed {count} package" + "s" * (count != 1), file=sys.stderr)  # as uv does
    return code


def _has_small_tmp(memory_bytes: int) -> bool:
    """Whether a full /tmp leaves enough of the memory for uv."""
    found = os.statvfs("/tmp")  # of this cell alone
    return found.f_blocks * found.f_frsize <= memory_bytes // _MEMORY_SHARE


def _spawn_and_read(*words: str) -> tuple[int, bytes]:
    """The exit code, and the first part of what the program wrote to standard error."""
    # Not a memory file, which the filter refuses without a cgroup.
    unnamed = os.open("/tmp", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    with open(unnamed, "w+b") as file:
        code = _spawn(*words, stderr=file.fileno())
        file.seek(0)
        return code, file.read(_MAX_SAID_BYTES)


def _described_python() -> str:
    """A program that prints what uv asks of a Python, and runs nothing.

    uv queries an interpreter by a script that it writes into its cache, which is in the workspace.
    It is asked here once, with a cache of its own, and the answer is kept.
    """
    import shlex

    os.mkdir(_PROGRAMS)
    program, answer = f"{_PROGRAMS}/python", f"{_PROGRAMS}/answer"
    cache = ("--cache-dir", f"{_PROGRAMS}/cache")
    _write_program(program, f'{shlex.quote(sys.executable)} "$@" | tee {answer}')
    _spawn(_UV, "python", "find", "--no-config", "--no-project", "--quiet", *cache, program)
    _write_program(program, f"exec cat {answer}")
    return program


def _write_program(path: str, script: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"#!/bin/sh\n{script}\n")
    os.chmod(path, 0o700)


def _copy(source: str, target: str) -> None:
    import shutil

    shutil.copy2(source, target)


def _run_npm(place: str, requirements: tuple[str, ...]) -> int:
    for name in _NPM_FILES:
        if os.path.isfile(f"{WORKSPACE}/{name}"):
            _copy(f"{WORKSPACE}/{name}", f"{place}/{name}")
    os.chdir(place)
    # No .npmrc of the workspace or the home is read: the registry proxy has the public name.
    os.environ |= {"npm_config_cache": "/tmp/.npm", "npm_config_prefix": "/tmp/.npm-global"}
    os.environ |= {"npm_config_userconfig": os.devnull}
    os.environ |= {"npm_config_registry": "https://registry.npmjs.org/"}
    os.environ |= NPM_WITHOUT_GIT  # package.json is a file of the workspace
    return _spawn("npm", *_NPM, "--prefix", place, "--", *requirements)


def _spawn(*words: str, stderr: int = 2) -> int:
    to = [(os.POSIX_SPAWN_DUP2, stderr, 2)]
    try:
        child = os.posix_spawnp(words[0], words, os.environ, file_actions=to)  # noqa: TID251  # inside a cell
    except OSError as error:
        print(f"{words[0]}: {error.strerror}", file=sys.stderr)
        return 127
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _commit(place: str, copy: str, target: str, base: str) -> int:
    with open(f"{place}{_STAMP}", encoding="ascii") as stamp:
        if stamp.read() != _stamp(target):
            _remove(place)
            print("the environment was changed meanwhile; install again", file=sys.stderr)
            return 1
    os.makedirs(os.path.dirname(target), exist_ok=True)
    try:
        os.rename(copy, target)  # over nothing, or over an empty directory
    except OSError:
        os.makedirs(target, exist_ok=True)
        _exchange(copy, target)
    if copy.endswith("/node_modules"):
        for name in _NPM_FILES:
            if os.path.isfile(f"{place}/{name}"):
                os.replace(f"{place}/{name}", f"{WORKSPACE}/{name}")
    else:
        try:
            _move_others(place, base)
            _keep_out_of_git(base)
        except OSError as error:  # a link to a protected place; the packages are in the environment
            print(f"programs of the packages are missing: {error.strerror}", file=sys.stderr)
    _remove(place)
    return 0


def _keep_out_of_git(base: str) -> None:
    """As for virtual environments; the home of a sandbox is no repository."""
    if os.path.basename(base).startswith(".cellwall"):
        with open(f"{base}/.gitignore", "w", encoding="ascii") as file:
            file.write("*\n")


def _move_others(place: str, base: str) -> None:
    """Programs and data files of packages, which lie beside site-packages."""
    for folder, names, files in os.walk(place):
        if folder == place and "lib" in names:
            names.remove("lib")
        inside = os.path.relpath(folder, place)
        for name in files:
            os.makedirs(os.path.join(base, inside), exist_ok=True)
            os.replace(os.path.join(folder, name), os.path.join(base, inside, name))


def _exchange(copy: str, target: str) -> None:
    import ctypes

    call = ctypes.CDLL(None, use_errno=True).renameat2
    paths = _AT_FDCWD, os.fsencode(copy), _AT_FDCWD, os.fsencode(target)
    if call(*paths, _RENAME_EXCHANGE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), target)


def _remove(place: str) -> None:
    _remove_tree(place)
    _remove_tree(f"{place}{_CACHE}")
    for path in (place, f"{place}{_CACHE}", f"{place}{_TREE}", f"{place}{_STAMP}"):
        try:
            os.unlink(path)
        except OSError:
            pass
    try:
        os.rmdir(STAGING)
    except OSError:  # another installation uses it
        pass


def _remove_tree(path: str) -> None:
    """Mostly empty directories are left."""
    try:
        for folder, _, _ in os.walk(path, topdown=False):
            os.rmdir(folder)
    except OSError:
        import shutil

        shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
