"""Functions and modules whose use is a finding."""

from __future__ import annotations

from cellwall.parsing.python.calls import DECODERS, FETCHERS, PROCESS
from cellwall.parsing.python.names import RESOLVERS

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
    **dict.fromkeys(PROCESS, "python.process"),
    **dict.fromkeys(_SHELL.split(), "python.shell"),
    **dict.fromkeys(_DESERIALISE.split(), "python.deserialise"),
}
IMPORTS = frozenset({"__import__", "importlib.import_module", "importlib.__import__"})
# Give a function that fetches an attribute by its name.
GETTERS = frozenset({"operator.attrgetter", "operator.methodcaller"})
NATIVE_MODULES = frozenset({"ctypes", "cffi", "_ctypes"})

# Names that honest code does not hide from a reader.
HIDDEN = frozenset(
    {
        "__import__", "__builtins__", "__class__", "__bases__", "__base__", "__mro__",
        "__globals__", "__subclasses__", "__code__", "__dict__", "__getattribute__",
        "eval", "exec", "system", "popen", "os", "subprocess", "builtins", "ctypes", "pty",
        "marshal",
    }
)  # fmt: skip

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


def _starred() -> dict[str, tuple[str, ...]]:
    known = {*SIMPLE, *IMPORTS, *DECODERS, *FETCHERS, *RESOLVERS, *GETTERS}
    names: dict[str, tuple[str, ...]] = {}
    for module, _, name in (path.rpartition(".") for path in sorted(known)):
        if module and not name.startswith("_"):
            names[module] = (*names.get(module, ()), name)
    return names


STARRED = _starred()
"""The names of these tables that `from module import *` binds, for each module."""


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
