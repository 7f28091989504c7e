"""What every verb's command line has in common: `-h`, one value an option, `--key`."""

import shlex
import time
from typing import Any

import click

from torchloom.cli.output import say

_WORDS = "torchloom.words"  # of a click context: the words behind the verb
_REMINDER = 30.0  # seconds between two notices that an answer is waited for
_LONGEST_KEY = 200


class LoomCommand(click.Command):
    """A command that refuses an option it was given twice: one of the two would be lost."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        settings = kwargs.setdefault("context_settings", {})
        settings["help_option_names"] = ["-h", "--help"]
        super().__init__(*args, **kwargs)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the words, but first look whether an option stands among them again."""
        ctx.meta.setdefault(_WORDS, tuple(args))
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        for option in order:
            if _holds_one(option) and order.count(option) > 1:
                raise click.UsageError(f"{option.opts[0]} is given more than once", ctx)
        return super().parse_args(ctx, args)


class WaitNotice:
    """Says that an answer is waited for: at once, then every half minute."""

    def __init__(self, remedy: str) -> None:
        self._remedy = remedy
        self._next = 0.0

    @property
    def is_told(self) -> bool:
        """Tell whether the user knows that something is waited for."""
        return self._next > 0

    def __call__(self, why: str) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _REMINDER
            say(f"{why}; still waiting: {self._remedy}")


def key_option(function: Any) -> Any:
    """Add the option by which a command that may have been taken is repeated."""
    words = "Submit once, however often it is repeated."
    return click.option("--key", metavar="KEY", callback=_checked_key, help=words)(function)


def repeat_in_words(key: str) -> str:
    """Say how the command that is running now is repeated without doing anything twice."""
    context = click.get_current_context()
    words = context.meta.get(_WORDS, ())
    given = () if context.params.get("key") else ("--key", key)
    line = shlex.join((*context.command_path.split(), *given, *words))
    return f"Whether the job was taken is not known. This is safe to repeat:\n  {line}"


def _checked_key(context: click.Context, option: click.Parameter, key: str | None) -> str | None:
    if key is not None and not (0 < len(key) <= _LONGEST_KEY and key.isprintable()):
        raise click.BadParameter(f"a key has 1 to {_LONGEST_KEY} characters on one line")
    return key


def _holds_one(option: click.Parameter) -> bool:
    return isinstance(option, click.Option) and not option.multiple and not option.is_flag


class Number(click.IntRange):
    """A whole number; named so that the message about another word is English."""

    name = "number"
