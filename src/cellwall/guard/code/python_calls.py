"""The functions and modules whose use is a finding. Data of `python_screening`."""

from __future__ import annotations

_PROCESS = (
    "os.system os.popen os.fork os.forkpty os.posix_spawn os.posix_spawnp os.execl os.execle "
    "os.execlp os.execlpe os.execv os.execve os.execvp os.execvpe os.spawnl os.spawnle os.spawnlp "
    "os.spawnlpe os.spawnv os.spawnve os.spawnvp os.spawnvpe os.startfile pty.spawn pty.fork "
    "subprocess.run subprocess.call subprocess.Popen subprocess.check_call subprocess.check_output "
    "subprocess.getoutput subprocess.getstatusoutput commands.getoutput commands.getstatusoutput "
    "asyncio.create_subprocess_exec asyncio.create_subprocess_shell "
    "asyncio.subprocess.create_subprocess_exec asyncio.subprocess.create_subprocess_shell "
    "_posixsubprocess.fork_exec posix.system posix.fork posix.execv posix.execve nt.system "
    "anyio.run_process anyio.open_process"
)
_SHELL = (
    "os.system os.popen posix.system nt.system subprocess.getoutput subprocess.getstatusoutput "
    "commands.getoutput commands.getstatusoutput asyncio.create_subprocess_shell "
    "asyncio.subprocess.create_subprocess_shell"
)
_DESERIALISE = (
    "pickle.load pickle.loads pickle.Unpickler cPickle.load cPickle.loads _pickle.load "
    "_pickle.loads dill.load dill.loads cloudpickle.load cloudpickle.loads marshal.load "
    "marshal.loads shelve.open joblib.load jsonpickle.decode yaml.unsafe_load yaml.full_load "
    "yaml.unsafe_load_all pandas.read_pickle"
)
_DECODERS = (
    "base64.b64decode base64.b32decode base64.b16decode base64.b85decode base64.a85decode "
    "base64.standard_b64decode base64.urlsafe_b64decode base64.decodebytes base64.decodestring "
    "binascii.unhexlify binascii.a2b_base64 binascii.a2b_hex binascii.a2b_uu zlib.decompress "
    "bz2.decompress lzma.decompress gzip.decompress bytes.fromhex bytearray.fromhex codecs.decode "
    "marshal.loads"
)
_FETCHERS = (
    "urllib.request.urlopen urllib.urlopen urllib2.urlopen requests.get requests.post httpx.get "
    "httpx.post requests.request"
)

SIMPLE: dict[str, str] = {
    "eval": "python.eval",
    "exec": "python.exec",
    "execfile": "python.exec",
    "compile": "python.compile",
    "code.InteractiveInterpreter": "python.exec",
    "code.InteractiveConsole": "python.exec",
    "code.interact": "python.exec",
    "code.compile_command": "python.compile",
    "codeop.compile_command": "python.compile",
    "runpy.run_path": "python.exec",
    "runpy.run_module": "python.exec",
    "timeit.timeit": "python.exec",
    "timeit.repeat": "python.exec",
    "timeit.Timer": "python.exec",
    "cProfile.run": "python.exec",
    "cProfile.runctx": "python.exec",
    "profile.run": "python.exec",
    "profile.runctx": "python.exec",
    "pdb.run": "python.exec",
    "pdb.runeval": "python.eval",
    "types.CodeType": "python.code-object",
    "types.FunctionType": "python.code-object",
    "sys._getframe": "python.frames",
    "sys._current_frames": "python.frames",
    "inspect.currentframe": "python.frames",
    "inspect.stack": "python.frames",
    "gc.get_objects": "python.objects",
    "gc.get_referrers": "python.objects",
    "gc.get_referents": "python.objects",
    "sys.settrace": "python.hooks",
    "sys.setprofile": "python.hooks",
    "threading.settrace": "python.hooks",
    "sys.addaudithook": "python.hooks",
    **dict.fromkeys(_PROCESS.split(), "python.process"),
    **dict.fromkeys(_SHELL.split(), "python.shell"),
    **dict.fromkeys(_DESERIALISE.split(), "python.deserialise"),
}
RUNS = frozenset({"eval", "exec", "execfile", "compile", "types.CodeType", "types.FunctionType"})
DECODERS = frozenset(_DECODERS.split())
FETCHERS = frozenset(_FETCHERS.split())
IMPORTS = frozenset({"__import__", "importlib.import_module", "importlib.__import__"})
# Give what a dotted name in a text stands for.
RESOLVERS = frozenset({"pydoc.locate", "pkgutil.resolve_name"})
# Give a function that fetches an attribute by its name.
GETTERS = frozenset({"operator.attrgetter", "operator.methodcaller"})
NATIVE_MODULES = frozenset({"ctypes", "cffi", "_ctypes"})

# Names that nobody needs to hide unless a reader should not see them.
HIDDEN = frozenset(
    {
        "__import__", "__builtins__", "__class__", "__bases__", "__base__", "__mro__",
        "__globals__", "__subclasses__", "__code__", "__dict__", "__getattribute__",
        "eval", "exec", "system", "popen", "os", "subprocess", "builtins", "ctypes", "pty",
        "marshal",
    }
)  # fmt: skip

# Modules that many others hold: `shutil.os.system` is `os.system`.
_HELD = frozenset(
    {"os", "posix", "subprocess", "builtins", "sys", "pickle", "marshal", "importlib"}
)
# Worth knowing also where they are only handed on, as to `map`. Classes are not: they stand in
# annotations.
HANDED = frozenset(
    path for path, rule in SIMPLE.items()
    if rule in {"python.process", "python.shell", "python.exec", "python.eval"}
    and "." in path and path.rpartition(".")[2].islower()
)  # fmt: skip

LOOKS = frozenset({"__subclasses__", "__globals__", "func_globals", "__builtins__", "f_builtins"})
FRAMES = frozenset({"f_back", "f_globals", "f_locals", "gi_frame", "cr_frame", "ag_frame"})
CLIMBS = frozenset(
    {
        "__class__", "__base__", "__bases__", "__mro__", "mro", "__subclasses__", "__globals__",
        "func_globals", "__builtins__", "f_builtins", "__getattribute__", "gi_frame", "cr_frame",
        "ag_frame", "f_back", "f_globals", "__init__",
    }
)  # fmt: skip
_UP = frozenset({"__base__", "__bases__", "__mro__", "mro"})
_FAR = frozenset({"__builtins__", "builtins", "__import__", "os", "sys", "eval", "exec", "open"})


def starred() -> dict[str, tuple[str, ...]]:
    """What `from module import *` brings of all that is looked up here."""
    known = {*SIMPLE, *IMPORTS, *DECODERS, *FETCHERS, *RESOLVERS, *GETTERS}
    found: dict[str, tuple[str, ...]] = {}
    for module, _, name in (path.rpartition(".") for path in sorted(known)):
        if module and not name.startswith("_"):
            found[module] = (*found.get(module, ()), name)
    return found


def shortened(path: str) -> str:
    """From the last module on that others hold."""
    parts = path.split(".")
    for at in range(len(parts) - 2, 0, -1):
        if parts[at] in _HELD:
            kept = parts[at + 1 :] if parts[at] == "builtins" else parts[at:]
            return ".".join(kept)
    return path


def is_escape(names: tuple[str, ...], base: str) -> bool:
    """Whether names that are climbed through, one after the other, lead where escapes go."""
    found = set(names)
    if "__subclasses__" in found and (found & _UP or base == "object"):
        return True
    for at, name in enumerate(names):
        rest = names[at + 1 :]
        if name in {"__globals__", "func_globals", "f_globals"} and not _FAR.isdisjoint(rest):
            return True
        if name in {"gi_frame", "cr_frame", "ag_frame"} and "f_back" in rest:
            return True
        if name == "f_builtins" and rest:
            return True
    return False
