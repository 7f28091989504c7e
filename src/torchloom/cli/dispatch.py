"""Find the verb's command, run it, and turn whatever goes wrong into words and an exit code."""

import logging
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module

import click

from torchloom.cli.verbs import ALIASES, VERBS
from torchloom.errors import LoomError, NotFound, nearest

INTERRUPTED = 130
BROKEN_PIPE = 141


class ExitWith(Exception):
    """Leave with this code; all that had to be said was said."""

    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(str(code))


def dispatch(words: Sequence[str]) -> int:
    """Run a command line whose answer needs more than a table."""
    words, debug = _global_options(list(words))
    try:
        return _run(words)
    except ExitWith as leave:
        return leave.code
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except click.ClickException as error:
        return _say(_in_words(error), error.exit_code)
    except LoomError as error:
        return _say(str(error), error.exit_code, debug)
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return BROKEN_PIPE
    except Exception as error:  # a door: a bug is one line and a way to see more, never a screenful
        what = f"{type(error).__name__}: {error}"
        return _say(f"this is a bug in torchloom: {what}; `loom --debug ..` shows where", 1, debug)


def _global_options(words: list[str]) -> tuple[list[str], bool]:
    """Take what stands before the verb; TorchX's `--log_level` is understood."""
    debug, level = False, "WARNING"
    while words and words[0].startswith("-"):
        flag, _, value = words[0].partition("=")
        if flag == "--debug":
            debug = True
        elif flag in ("--log_level", "--log-level"):
            level = value or (words.pop(1) if len(words) > 1 else level)
        else:
            break
        words = words[1:]
    known = logging.getLevelNamesMapping()
    logging.basicConfig(level=known.get(level.upper(), logging.WARNING), format="loom: %(message)s")
    return words, debug


def _run(words: list[str]) -> int:
    if not words:
        raise click.UsageError("no verb; `loom --help` lists them")
    verb, *rest = words
    if verb in ALIASES:
        verb, *extra = ALIASES[verb]
        rest = [*extra, *rest]
    if verb not in VERBS:
        raise NotFound("verb", verb, [*VERBS, *ALIASES], "`loom --help` lists them")
    command: click.Command = import_module(f"torchloom.cli.cmd_{verb}").command
    result = command.main(rest, prog_name=f"loom {verb}", standalone_mode=False)
    return result if isinstance(result, int) else 0


def _in_words(error: click.ClickException) -> str:
    """Say what is wrong with the command line, with the nearest flag that exists."""
    message = error.format_message()
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        flags = [flag for p in error.ctx.command.params for flag in (*p.opts, *p.secondary_opts)]
        message = f"no option {error.option_name!r}"
        message += f"; {hint}" if (hint := nearest(error.option_name, flags)) else ""
    if isinstance(error, click.UsageError) and error.ctx is not None:
        message = f"{message.rstrip('.')}; `{error.ctx.command_path} --help` explains"
    return message


def _say(message: str, code: int, debug: bool = False) -> int:
    if debug:
        traceback.print_exc()
    click.echo(f"loom: {message}", err=True)
    sys.stdout.flush()
    return code
