"""Read a command line as Python itself does: interpreter, flags, program, arguments. Pure."""

import re
from collections.abc import Sequence
from typing import Literal

from torchloom.errors import UserError
from torchloom.specs.dataclass import dataclass

OUTSIDE_SHELLS = (":",)  # MPI launchers and srun read a bare colon as "and now another program"
_INTERPRETER = re.compile(r"python(\d+(\.\d+)*)?[tdm]?")
_WITH_VALUE = "WX"
_ALONE = "bBdEiIOPqRsSuvx"
_COLD_FLAGS = {
    "d": "-d prints while the parser works",
    "i": "-i stays interactive after the program",
    "S": "-S leaves site-packages out, and torch with them",
    "v": "-v prints while modules are imported",
    "x": "-x skips a line of the program",
}
_WARM_OPTIONS = ("faulthandler", "int_max_str_digits", "pycache_prefix", "utf8")
_COLD_VARIABLES = {
    "PYTHONDEVMODE": "development mode",
    "PYTHONDEBUG": "-d prints while the parser works",
    "PYTHONINSPECT": "-i stays interactive after the program",
    "PYTHONPROFILEIMPORTTIME": "imports are timed",
    "PYTHONTRACEMALLOC": "allocations are traced",
    "PYTHONVERBOSE": "-v prints while modules are imported",
    "PYTHONDUMPREFS": "objects are counted",
}
COLD_VARIABLES = tuple(_COLD_VARIABLES)


def program(words: Sequence[str], python: str, no_python: bool = False) -> tuple[str, ...]:
    """Return the command: `train.py` and `-m pkg.train` get the interpreter, others stay.

    With `no_python` the words are a program whatever they look like.
    """
    if not words:
        raise UserError("no command to launch; write `loom launch -n 4 -- python train.py`")
    first = words[0]
    if no_python:
        if first == "-m":
            raise UserError("--no-python and -m contradict each other; leave one out")
        return tuple(words)
    if first == "-m":
        if len(words) == 1:
            raise UserError("-m names no module; write `-m package.train`")
        return (python, "-u", *words)
    return (python, "-u", *words) if first.endswith(".py") else tuple(words)


def colon_proof(command: Sequence[str]) -> tuple[str, ...]:
    """Return a command without a bare colon: launchers split their whole line at it."""
    if not any(word in OUTSIDE_SHELLS for word in command):
        return tuple(command)
    import shlex

    return ("/bin/sh", "-c", f"exec {shlex.join(command)}")


What = Literal["file", "module", "code", "stdin"]


@dataclass(frozen=True, slots=True)
class PythonCommand:
    """`INTERPRETER FLAGS (TARGET | -m TARGET | -c TARGET | -) ARGS`, and the words as they came.

    Each flag is one word, its value with it (`-Werror`).
    """

    argv: tuple[str, ...]
    interpreter: str
    flags: tuple[str, ...]
    what: What
    target: str
    args: tuple[str, ...]

    @classmethod
    def parse(cls, argv: Sequence[str]) -> "PythonCommand | None":
        """Return the command; nothing when it is not Python, or runs no program (`--version`)."""
        if not argv or not _INTERPRETER.fullmatch(argv[0].rpartition("/")[2]):
            return None
        flags: list[str] = []
        words = list(argv[1:])
        while words:
            word = words.pop(0)
            if word == "--" and words:
                word = words.pop(0)
            elif word.startswith("-") and word != "-":
                found = _read_flag(word[1:], words, flags)
                if found == "more":
                    continue
                return found and cls(tuple(argv), argv[0], tuple(flags), *found, tuple(words))
            what: What = "stdin" if word == "-" else "file"
            return cls(tuple(argv), argv[0], tuple(flags), what, word, tuple(words))
        return cls(tuple(argv), argv[0], tuple(flags), "stdin", "", ())

    @property
    def sys_argv(self) -> list[str]:
        """What the program finds in `sys.argv` at first."""
        first = {"module": "-m", "code": "-c"}.get(self.what, self.target)
        return [first, *self.args]

    def through(self, entry: str) -> tuple[str, ...]:
        """Return the words that run the same program by way of an entry file of ours."""
        return (self.interpreter, *self.flags, entry, self.what, self.target, *self.args)

    def cold_because(self) -> str | None:
        """Return why an interpreter that is running already cannot run this, if it cannot."""
        for flag in self.flags:
            if flag.startswith("-X") and flag[2:].partition("=")[0] not in _WARM_OPTIONS:
                return f"{flag} changes how the interpreter starts"
            if flag[1:] in _COLD_FLAGS:
                return _COLD_FLAGS[flag[1:]]
        return None


def cold_variable(name: str) -> str:
    """Return what one of COLD_VARIABLES does to an interpreter."""
    return f"{name} is set: {_COLD_VARIABLES[name]}"


def _read_flag(
    letters: str, words: list[str], flags: list[str]
) -> tuple[What, str] | Literal["more"] | None:
    """Read one word of flags: what it runs if it says so, "more" when it needs the next word."""
    while letters:
        letter, letters = letters[0], letters[1:]
        if letter in "cm" or letter in _WITH_VALUE:
            if not letters and not words:
                return None
            value = letters or words.pop(0)
            if letter in "cm":
                return ("code" if letter == "c" else "module"), value
            flags.append(f"-{letter}{value}")
            return "more"
        if letter not in _ALONE:  # -h, -V, or what Python will complain about
            return None
        flags.append(f"-{letter}")
    return "more"
