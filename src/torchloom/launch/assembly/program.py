"""From what the user wrote to what a rank executes: python in front of scripts and modules."""

from collections.abc import Sequence

from torchloom.errors import UserError

OUTSIDE_SHELLS = (":",)  # MPI launchers and srun read a bare colon as "and now another program"


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
