"""Find the verb's command, run it, and turn errors into a message and an exit code."""

import errno
import gc
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from torchloom.cli.output import guard_terminals, mute, one_line, say
from torchloom.cli.verbs import ALIASES, REMARKS, VERBS, WRITTEN, WRITTEN_OPTIONS
from torchloom.errors import LoomError, NotFound, UserError, nearest, shorten
from torchloom.settings import environment, loom_home

if TYPE_CHECKING:
    import click

INTERRUPTED = 130
BROKEN_PIPE = 141
_LONGEST = 1000  # characters of a message: a hostile value must not flood the terminal
_REMOTE = ("ls", "show", "logs", "stop", "run")  # they read run folders; a remote plane has those

_ROOM, _ACCESS = "free some disk space", "give yourself write access there"
_FOLDER = "remove the file that is in the place of a folder"
_SYSTEM_ERRORS = {  # problems of the machine, with the remedy
    errno.EROFS: _ACCESS,
    errno.EACCES: _ACCESS,
    errno.EPERM: _ACCESS,
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.ENOTDIR: _FOLDER,
    errno.EEXIST: _FOLDER,
    errno.ELOOP: "fix its symbolic links",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EIO: "check the system log for disk errors",
    errno.ESTALE: "check whether its file server is up",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "close other programs",
    errno.ENOMEM: "free some memory",
}
_STEERING = ("set", "pause", "resume", "checkpoint", "inspect")  # sent to the plane of a job


def dispatch(words: Sequence[str]) -> int:
    """Run a command line that `main` does not answer by itself; return its exit code."""
    debug = False
    try:
        _open_standard_streams()
        words, debug = _global_options(list(words))
        return _run(words)
    except LoomError as error:
        return _fail(str(error), error.exit_code, debug)
    except KeyboardInterrupt:
        return _interrupted()
    except BrokenPipeError:
        mute(1)
        return BROKEN_PIPE
    except Exception as error:  # an entry point: a bug prints one line, never a traceback
        return _other(error, debug)


def _other(error: Exception, debug: bool) -> int:
    """Return the code for what click raised, or for a bug."""
    import click

    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, click.ClickException):
        return _fail(_in_words(error), error.exit_code, debug)
    if isinstance(error, click.Abort):
        return _interrupted()
    if isinstance(error, OSError) and (why := _of_the_system(error)):
        return _fail(why, 1, debug)
    what = f"{type(error).__name__}: {error}"
    return _fail(f"this is a bug in torchloom: {what}; `loom --debug ..` shows where", 1, debug)


def _of_the_system(error: OSError) -> str:
    """Return a message with a remedy for an error of the system; nothing for any other error."""
    if error.errno not in _SYSTEM_ERRORS:
        return ""
    place = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else ""
    what = f"cannot use {place}" if place else "the system refused"
    remedy = _SYSTEM_ERRORS[error.errno]
    home = str(loom_home())
    if place == home or place.startswith(home + os.sep):
        remedy += ", or set LOOM_HOME to another folder"
    return f"{what}: {error.strerror}; {remedy}"


def _interrupted() -> int:
    if os.isatty(2):
        print(file=sys.stderr)  # a new line after the ^C
    return INTERRUPTED


def _global_options(words: list[str]) -> tuple[list[str], bool]:
    """Read the options before the verb; TorchX's `--log_level` is accepted."""
    debug, level = False, None
    while words and words[0].startswith("-"):
        flag, equals, value = words[0].partition("=")
        if flag == "--debug":
            debug = True
        elif flag in ("--log_level", "--log-level"):
            level = value if equals or len(words) < 2 else words.pop(1)
        else:
            break
        words = words[1:]
    _set_up_output()
    if level is not None:
        _set_up_logging(level)
    return words, debug


def _open_standard_streams() -> None:
    """Open closed standard streams on /dev/null: else the next file opened would become one."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def _set_up_output() -> None:
    """Let unprintable characters fail no command, and escape sequences control no terminal."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    guard_terminals()


def _set_up_logging(level: str) -> None:
    """Set the log level of the package; by default warnings are shown."""
    import logging

    levels = logging.getLevelNamesMapping()
    if level.upper() not in levels:
        raise UserError(f"no log level {shorten(level)!r}; write one of {', '.join(levels)}")
    logging.basicConfig(level=levels[level.upper()], format="loom: %(message)s")


def _run(words: list[str]) -> int:
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    if not words:
        raise UserError("no verb given; `loom --help` lists them")
    verb, *rest = words
    if verb in REMARKS and all(word.startswith("-") for word in rest):
        say(REMARKS[verb])
    if verb in ALIASES:
        verb, *extra = ALIASES[verb]
        rest = [*extra, *rest]
    if verb not in VERBS:
        if verb in WRITTEN:
            raise NotFound("verb", verb, (), WRITTEN[verb])
        raise NotFound("verb", verb, [*VERBS, *ALIASES], "`loom --help` lists them")
    if verb == "launch" and (code := _launch(rest)) is not None:
        return code
    if verb in _STEERING:
        steered = _steered(verb, rest)
        if isinstance(steered, int):
            return steered
        rest = steered
    command = _command(verb)
    gc.enable()
    with command.make_context(f"loom {verb}", rest) as context:
        result = command.invoke(context)
    return result if isinstance(result, int) else 0


def _steered(verb: str, words: list[str]) -> int | list[str]:
    """Run the verb inside the job's allocation and return its exit code; else return the words."""
    from torchloom.schedulers.batch.index import engines

    if not any("://" in word for word in words) and not engines():
        return words
    from torchloom.cli.jobs.engine import steer

    return steer(verb, words)


def _command(verb: str) -> "click.Command":
    """Return the command of a verb; for a plane on another host, the one that uses HTTP."""
    from torchloom.client.chosen import is_elsewhere

    if verb in _REMOTE and is_elsewhere():
        from torchloom.cli.jobs.remote import COMMANDS

        return COMMANDS[verb]
    found: click.Command = import_module(f"torchloom.cli.commands.cmd_{verb}").command
    return found


def _launch(words: list[str]) -> int | None:
    """Launch without importing click; return None when `--help` was asked for.

    The launch has its own parser, and a warm launch must not wait for an import.
    """
    from torchloom.launch.grammar.command import LaunchCommand
    from torchloom.launch.grammar.parser import HelpAsked

    try:
        asked = LaunchCommand.parse(words, environment())
    except HelpAsked:
        return None
    from torchloom.cli.launch import launch

    gc.freeze()  # modules stay loaded: the collector need not scan them
    gc.enable()
    return launch(asked)


def _in_words(error: "click.ClickException") -> str:
    """Return what is wrong with the command line, with the nearest known option."""
    import click

    message = error.format_message().rstrip(".")
    context = error.ctx if isinstance(error, click.UsageError) else None
    if isinstance(error, click.NoSuchOption) and context is not None:
        flags = [flag for p in context.command.params for flag in (*p.opts, *p.secondary_opts)]
        others = WRITTEN_OPTIONS.get(context.command.name or "", {})
        hint = others.get(error.option_name.replace("_", "-"), nearest(error.option_name, flags))
        message = f"no option {shorten(error.option_name)!r}{hint and f'; {hint}'}"
    if context is not None:
        message = f"{message}; `{context.command_path} --help` explains"
    return message


def _fail(message: str, code: int, debug: bool) -> int:
    if debug:
        import traceback

        traceback.print_exc()
    say(one_line(message, _LONGEST))
    return code
