"""Entry point of `loom`: answer `--help` and completion at once, dispatch everything else."""

import contextlib
import gc
import os
import sys
from collections.abc import Sequence

_NO_RUN = frozenset(("-h", "--help", "--dryrun", "--dry-run"))


def run() -> None:
    """Run `loom` from a shell; exit without the interpreter's slow shutdown."""
    gc.disable()  # imports create no garbage; the dispatcher enables it again
    if sys.argv[1:2] == ["launch"] and not _NO_RUN.intersection(sys.argv):
        _start_ahead()
    code = main()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(
            OSError, ValueError, AttributeError
        ):  # closed, or without a reader
            stream.flush()
    os._exit(code)


def _start_ahead() -> None:
    """Start the run's first process now, so that its 50 ms of imports run on another core.

    If a standard stream is closed, nothing is started: its descriptor must stay free.
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
    """Return the output of a command line that needs no click, no scheduler and no state."""
    from torchloom.cli.verbs import help_text

    if not words or words[0] in ("--help", "-h") or words in (["help"], ["help", "--all"]):
        return help_text(whole="--all" in words)
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
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the flush at exit must not fail again
    return 0
