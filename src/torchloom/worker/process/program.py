"""Run the user's Python program in this process as `python` itself would, to the last exit code.

Loaded by its path in a cold rank, which must start as fast as a plain interpreter: so it imports
next to nothing, and says its types to the checker only.
"""

import builtins
import ctypes
import os
import sys
from _functools import partial  # type: ignore[import-not-found]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import FrameType, ModuleType
    from typing import Any, NoReturn

    from torchloom.launch.keeper.python_command import PythonCommand, What

_IN_OBJECT = 24  # where a frame object points to the interpreter's own frame
_PREVIOUS = {(3, 11): 48, (3, 12): 8, (3, 13): 8}  # where that points to the one below
_WITH_ENTRY = ((3, 12), (3, 13))  # the first frame of a C call stands on an empty one
_STORE_VARIABLE = "LOOM_STORE"
_AGENT_VARIABLE, _PAGE_VARIABLE = "LOOM_AGENT", "LOOM_PAGE"
_UNOPENED, _UNFLUSHED = 2, 120  # Python's own exit codes


def hide_caller(module: "ModuleType") -> None:
    """Cut the link below the module's first frame, which the caller is about to enter through C."""
    caller = sys._getframe(1)
    offset = _PREVIOUS.get(sys.version_info[:2])
    if offset is None or sys.implementation.name != "cpython":
        return

    def entered(frame: "FrameType", event: str, _arg: object) -> None:
        if event == "call" and frame.f_globals is module.__dict__:
            sys.setprofile(None)
            _cut(frame, caller, offset)

    sys.setprofile(entered)


def _cut(frame: "FrameType", caller: "FrameType", offset: int) -> None:
    link = _word(id(frame) + _IN_OBJECT).value + offset
    below = _word(id(caller) + _IN_OBJECT).value
    if sys.version_info[:2] in _WITH_ENTRY and _word(link).value != below:
        link = _word(link).value + offset
    if _word(link).value == below:
        _word(link).value = 0


def _word(address: int) -> ctypes.c_size_t:
    return ctypes.c_size_t.from_address(address)


_kept: "list[object]" = []  # what the program must not find, and we cannot drop


class ProgramCommand:
    """A command line, read: as the interpreter got it, and what it runs with which arguments."""

    def __init__(self, argv: "list[str]", what: "What", target: str, args: "list[str]") -> None:
        self.argv = argv
        self.what = what
        self.target = target
        self.sys_argv = [{"module": "-m", "code": "-c"}.get(what, target), *args]


def become(command: "PythonCommand", env: "Mapping[str, str]", verdict: int) -> "NoReturn":
    """Turn a fork of the zygote into the program; its session, descriptors and folder are set.

    Whatever a fork cannot become, or must not by the keeper's verdict, a fresh interpreter still
    can: then it is executed.
    """
    from torchloom.launch.keeper import spawn
    from torchloom.worker.process import fork_cleanup

    try:
        fork_cleanup.renew(command, env)
        if not spawn.may_run(verdict):
            execute(command, env)
    except Exception:  # nothing of the program has run yet, and the job must not pay for our fault
        execute(command, env)
    words = ProgramCommand(list(command.argv), command.what, command.target, list(command.args))
    run(words, hide_caller)


def execute(command: "PythonCommand", env: "Mapping[str, str]") -> "NoReturn":
    """Replace this process by a fresh interpreter that runs the program."""
    entry = os.path.join(os.path.dirname(os.path.dirname(__file__)), "start.py")
    os.execve(sys.executable, command.through(entry), dict(env))


def run(words: ProgramCommand, hide_caller: "Callable[[ModuleType], None]") -> "NoReturn":
    """Run the program as a fresh `__main__` and end the process as Python ends it."""
    if _STORE_VARIABLE in os.environ:
        from torchloom.worker.process import rendezvous

        rendezvous.install()
    sys.argv = words.sys_argv
    sys.orig_argv = words.argv
    if _AGENT_VARIABLE in os.environ or _PAGE_VARIABLE in os.environ:
        _attach()
    _replace_main()
    entry, args = _entry(words)
    hide_caller(sys.modules["runpy" if isinstance(entry, partial) else "__main__"])
    try:
        failed = entry(*args) == -1  # a module's run returns its names instead
    except SystemExit as leaving:
        _leave(_exit_code(leaving.code))
    except BaseException as error:  # the interpreter prints all of them, and so must this
        _show(error)
        failed = True
    _leave(1 if failed else 0, failed and getattr(sys, "last_type", None) is KeyboardInterrupt)


def _attach() -> None:
    """Put a threadlet beside the program, which runs without one where that cannot be."""
    try:
        from torchloom.worker.threadlet import attach

        attach.attach()
    except Exception as error:  # an interpreter without torchloom, or another one's
        sys.stderr.write(f"loom: this program is run without a threadlet: {error}\n")


def _replace_main() -> None:
    _kept.append(sys.modules["__main__"])
    main = type(sys)("__main__")
    main.__loader__ = sys.__loader__
    if sys.version_info < (3, 14):
        main.__annotations__ = {}
    main.__dict__["__builtins__"] = builtins
    for name in ("__main__", "__mp_main__"):  # the second is made when multiprocessing is imported
        if name in sys.modules:
            sys.modules[name] = main


def _entry(words: ProgramCommand) -> "tuple[Callable[..., Any], tuple[Any, ...]]":
    """Return what of the interpreter's own entries runs this; those print what is not caught."""
    python = ctypes.pythonapi
    match words.what:
        case "file":
            return _file_entry(words)
        case "module":
            _put_first(os.getcwd())
            return _module_entry(words.target, True)
        case "code":
            _put_first("")
            text = words.target.encode("utf-8", "surrogateescape")
            return python.PyRun_SimpleStringFlags, (text, None)
        case "stdin":
            _put_first("")
            stdin = ctypes.c_void_p.in_dll(python, "stdin")
            return python.PyRun_AnyFileExFlags, (stdin, b"<stdin>", 0, None)


def _put_first(folder: str) -> None:
    if not sys.flags.safe_path:
        sys.path.insert(0, folder)


def _file_entry(words: ProgramCommand) -> "tuple[Callable[..., Any], tuple[Any, ...]]":
    path = _absolute(words.target)
    if _is_archive(path):
        sys.path.insert(0, path)
        return _module_entry("__main__", False)
    _put_first(os.path.dirname(os.path.realpath(path)))
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        found = f"[Errno {error.errno}] {error.strerror}"
        sys.stderr.write(f"{words.argv[0]}: can't open file {path!r}: {found}\n")
        _leave(_UNOPENED)
    python = ctypes.pythonapi
    python.fdopen.restype = ctypes.c_void_p
    stream = ctypes.c_void_p(python.fdopen(fd, b"rb"))
    return python.PyRun_AnyFileExFlags, (stream, os.fsencode(path), 1, None)


def _absolute(path: str) -> str:
    """Return the path as `__file__` of a main program has it: absolute, otherwise as given."""
    if os.path.isabs(path):
        return path
    return os.path.join(os.getcwd(), path.removeprefix("./"))


def _is_archive(path: str) -> bool:
    """Tell whether Python would run `__main__` inside this folder or archive."""
    for hook in sys.path_hooks:
        try:
            hook(path)
        except ImportError:
            continue
        return True
    return False


def _module_entry(name: str, set_argv0: bool) -> "tuple[Callable[..., Any], tuple[Any, ...]]":
    import runpy

    main = runpy._run_module_as_main  # type: ignore[attr-defined]
    return partial(main), (name, set_argv0)  # entered through C, as the interpreter does


def _show(error: BaseException) -> None:
    """Print what was not caught as the interpreter does, without the frames below the program."""
    error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    sys.last_exc = error  # type: ignore[attr-defined,unused-ignore]
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except SystemExit as leaving:
        _leave(_exit_code(leaving.code))
    except BaseException as second:  # what the hook itself raises is printed too
        second.__traceback__ = second.__traceback__ and second.__traceback__.tb_next
        sys.stderr.write("Error in sys.excepthook:\n")
        sys.__excepthook__(type(second), second, second.__traceback__)
        sys.stderr.write("\nOriginal exception was:\n")
        sys.__excepthook__(type(error), error, error.__traceback__)


def _exit_code(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code if -(2**31) <= code < 2**31 else -1
    if sys.stderr is not None:
        sys.stderr.write(f"{code}\n")
    return 1


def _leave(code: int, interrupted: bool = False) -> "NoReturn":
    """End as Python ends: threads joined, exit functions, buffers, destructors, C's own exit."""
    if "threading" in sys.modules:
        sys.modules["threading"]._shutdown()
    import atexit

    atexit._run_exitfuncs()
    if not interrupted:
        ctypes.pythonapi.Py_Exit(code if _flushed() else _UNFLUSHED)
    import gc
    import signal

    sys.modules["__main__"].__dict__.clear()
    gc.collect()
    _flushed()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
    os._exit(128 + signal.SIGINT)  # not reached: the signal is no longer handled


def _flushed() -> bool:
    """Flush as the interpreter would a moment later: it would name our frame in its complaint."""
    stream = sys.stdout
    try:
        if stream is not None and not getattr(stream, "closed", False):
            stream.flush()
    except BaseException as error:  # whatever a program has put there
        import traceback

        if sys.stderr is not None:
            where = f"in: {stream!r}" if sys.version_info < (3, 13) else "on flushing sys.stdout:"
            sys.stderr.write(f"Exception ignored {where}\n")
            traceback.print_exception(type(error), error, None)
        sys.stdout = None
        return False
    return True
