"""The door: answer the quick questions at once, find the verb, turn errors into exit codes."""

import contextlib
import gc
import os
import sys
from collections.abc import Sequence

_NO_RUN = frozenset(("-h", "--help", "--dryrun", "--dry-run"))


def run() -> None:
    """Be the `loom` of a shell: leave at once, without the interpreter's long good-bye."""
    gc.disable()  # while modules are imported nothing becomes garbage; the dispatcher turns it on
    if sys.argv[1:2] == ["launch"] and not _NO_RUN.intersection(sys.argv):
        _start_ahead()
    code = main()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or nobody reads
            stream.flush()
    os._exit(code)


def _start_ahead() -> None:
    """Let the run's first process import its modules on another core: 50 ms that nobody waits for.

    Where a standard stream is closed its number must stay free for what will take its place.
    """
    if sys.stdin and sys.stdout and sys.stderr:
        from torchloom.launch.supervisor.detached import start_ahead

        start_ahead()


def main(words: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    words = list(sys.argv[1:] if words is None else words)
    answer = _quick_answer(words[1:] if words[:1] == ["--debug"] else words)
    if answer is not None:
        return _print(answer)
    from torchloom.cli.dispatch import dispatch

    return dispatch(words)


def _quick_answer(words: list[str]) -> str | None:
    """Return what needs no CLI library, no scheduler and no state."""
    from torchloom.cli.verbs import help_text

    if not words or words[0] in ("--help", "-h") or words == ["help"]:
        return help_text()
    if words[0] in ("--version", "-V", "version"):
        from torchloom import __version__

        return f"torchloom {__version__}\n"
    if words[0] == "completion" and len(words) == 2:
        from torchloom.cli.completion import SCRIPTS

        return SCRIPTS.get(words[1])
    if words[0] == "__complete":
        from torchloom.cli.completion import complete

        return "".join(f"{word}\n" for word in complete(words[1:]))
    return None


def _print(text: str) -> int:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # nothing left to say at exit either
    return 0
