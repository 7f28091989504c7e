"""Base classes of the verbs' command lines: `-h`, examples, no repeated options, `--key`."""

import shlex
import time
from typing import Any

import click

from torchloom.cli.output import say

HELP = ("-h", "--help")
_WORDS = "torchloom.words"  # in a click context: the words after the verb
_REMINDER = 30.0  # seconds between two notices
_LONGEST_KEY = 200


class _WithExamples(click.Command):
    """A command with `-h`, whose epilog is printed as written: it holds the examples."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        settings = kwargs.setdefault("context_settings", {})
        settings["help_option_names"] = list(HELP)
        super().__init__(*args, **kwargs)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples below the options, without wrapping their lines."""
        if self.epilog:
            formatter.write(f"\n{self.epilog}\n")


class LoomCommand(_WithExamples):
    """A command that refuses an option given twice: click would drop one of them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words after a check that no option is repeated."""
        ctx.meta.setdefault(_WORDS, tuple(args))
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        for option in order:
            if _holds_one(option) and order.count(option) > 1:
                raise click.UsageError(f"{option.opts[0]} is given more than once", ctx)
        return super().parse_args(ctx, args)


class LoomGroup(_WithExamples, click.Group):
    """A command with commands of its own."""

    command_class = LoomCommand


class WaitNotice:
    """Prints that a reply is still pending: at once, then every half minute."""

    def __init__(self, remedy: str) -> None:
        self._remedy = remedy
        self._next = 0.0

    @property
    def is_shown(self) -> bool:
        """Tell whether a notice has been printed."""
        return self._next > 0

    def __call__(self, why: str) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _REMINDER
            say(f"{why}; still waiting: {self._remedy}")


def examples(*lines: str) -> str:
    """Return the epilog of a command: command lines that a user could type."""
    return "\n  ".join(["Examples:", *lines])


def key_option(function: Any) -> Any:
    """Add `--key`, which makes a repeated submission safe."""
    words = "Idempotency key: the same key never submits twice."
    return click.option("--key", metavar="KEY", callback=_checked_key, help=words)(function)


def repeat_in_words(key: str) -> str:
    """Return how to repeat the running command without submitting twice."""
    context = click.get_current_context()
    words = context.meta.get(_WORDS, ())
    given = () if context.params.get("key") else ("--key", key)
    line = shlex.join((*context.command_path.split(), *given, *words))
    return f"The plane may or may not have accepted the job. It is safe to repeat:\n  {line}"


def _checked_key(context: click.Context, option: click.Parameter, key: str | None) -> str | None:
    if key is not None and not (0 < len(key) <= _LONGEST_KEY and key.isprintable()):
        raise click.BadParameter(f"a key has 1 to {_LONGEST_KEY} characters on one line")
    return key


def _holds_one(option: click.Parameter) -> bool:
    return isinstance(option, click.Option) and not option.multiple and not option.is_flag


class Number(click.IntRange):
    """An integer, called a number in error messages."""

    name = "number"
