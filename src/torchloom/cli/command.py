"""What every verb's command line has in common: `-h`, and one value an option, once."""

from typing import Any

import click


class LoomCommand(click.Command):
    """A command that refuses an option it was given twice: one of the two would be lost."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        settings = kwargs.setdefault("context_settings", {})
        settings["help_option_names"] = ["-h", "--help"]
        super().__init__(*args, **kwargs)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the words, but first look whether an option stands among them again."""
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        for option in order:
            if _holds_one(option) and order.count(option) > 1:
                raise click.UsageError(f"{option.opts[0]} is given more than once", ctx)
        return super().parse_args(ctx, args)


def _holds_one(option: click.Parameter) -> bool:
    return isinstance(option, click.Option) and not option.multiple and not option.is_flag


class Number(click.IntRange):
    """A whole number; named so that the message about another word is English."""

    name = "number"
