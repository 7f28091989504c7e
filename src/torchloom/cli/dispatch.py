"""Find the verb's command, run it, and turn whatever goes wrong into words and an exit code."""

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
_AWAY = ("ls", "show", "logs", "stop", "run")  # what reads folders that a plane elsewhere has

_ROOM, _ACCESS = "free some disk space", "give yourself write access there"
_FOLDER = "move the file away that is where a folder should be"
_SYSTEM_ERRORS = {  # what is wrong with the machine, not with us; and the remedy
    errno.EROFS: _ACCESS,
    errno.EACCES: _ACCESS,
    errno.EPERM: _ACCESS,
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.ENOTDIR: _FOLDER,
    errno.EEXIST: _FOLDER,
    errno.ELOOP: "mend its links",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EIO: "see the system's log about its disk",
    errno.ESTALE: "see whether its file server is up",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "close other programs",
    errno.ENOMEM: "free some memory",
}
_STEERING = ("set", "pause", "resume", "checkpoint", "inspect")  # what asks the plane of a job


def dispatch(words: Sequence[str]) -> int:
    """Run a command line whose answer needs more than a table."""
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
    except Exception as error:  # a door: a bug is one line and a way to see more, never a screenful
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
    """Say what a file system or the system lacks, with the way out; nothing for any other error."""
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
        print(file=sys.stderr)  # the prompt belongs behind the ^C, on a new line
    return INTERRUPTED


def _global_options(words: list[str]) -> tuple[list[str], bool]:
    """Take what stands before the verb; TorchX's `--log_level` is understood."""
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
    """Fill the places of closed streams, or the next file opened would be taken for one."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def _set_up_output() -> None:
    """A character the terminal cannot show must not end a command, nor one steer it."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    guard_terminals()


def _set_up_logging(level: str) -> None:
    """Show more, or less, of what the rooms log; without a wish, warnings are shown as they are."""
    import logging

    levels = logging.getLevelNamesMapping()
    if level.upper() not in levels:
        raise UserError(f"no log level {shorten(level)!r}; write one of {', '.join(levels)}")
    logging.basicConfig(level=levels[level.upper()], format="loom: %(message)s")


def _run(words: list[str]) -> int:
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    if not words:
        raise UserError("no verb; `loom --help` lists them")
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
    """Steer a job in another engine's allocation from within; else return the words to go on."""
    from torchloom.schedulers.batch.index import engines

    if not any("://" in word for word in words) and not engines():
        return words
    from torchloom.cli.jobs.engine import steer

    return steer(verb, words)


def _command(verb: str) -> "click.Command":
    """Return the command of a verb; another one where jobs of a plane elsewhere are meant."""
    from torchloom.client.chosen import is_elsewhere

    if verb in _AWAY and is_elsewhere():
        from torchloom.cli.jobs.remote import COMMANDS

        return COMMANDS[verb]
    found: click.Command = import_module(f"torchloom.cli.commands.cmd_{verb}").command
    return found


def _launch(words: list[str]) -> int | None:
    """Launch without the library of the command line; nothing when its help is wanted.

    Its own grammar reads the words, and a warm launch must not wait for an import.
    """
    from torchloom.launch.grammar.command import LaunchCommand
    from torchloom.launch.grammar.parser import HelpAsked

    try:
        asked = LaunchCommand.parse(words, environment())
    except HelpAsked:
        return None
    from torchloom.cli.launch import launch

    gc.freeze()  # what was imported stays: no collection need look at it
    gc.enable()
    return launch(asked)


def _in_words(error: "click.ClickException") -> str:
    """Say what is wrong with the command line, with the nearest flag that exists."""
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
