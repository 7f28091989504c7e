"""Pages of the verbs, from the commands themselves."""

from collections.abc import Iterator
from importlib import import_module

import click
from pages.text import code, escaped, fence, prose, section, table

from torchloom.cli.verbs import ALIASES, GROUPS, VERBS

_GLOBAL = (
    ("`--version`", "Print the version."),
    ("`--help`, `-h`", "List the verbs."),
    ("`--debug`", "Show where an error was raised."),
    ("`--log_level LEVEL`", "Log level of the package; warnings are shown by default."),
)
_EXITS = (
    ("0", "Success."),
    ("1", "The command failed; the message says why."),
    ("2", "The command line or a file is wrong, or a name is unknown."),
    ("124", "`loom launch --timeout`: no output for too long."),
    ("130", "Interrupted by Ctrl-C."),
    ("141", "The reader of a pipe has closed it."),
)
_JOB = """\
`JOB` is an id, a prefix of one that is unique, a name (the newest job of that name), a handle
such as `slurm://torchx/12`, or `@` for the newest job."""


def pages() -> dict[str, str]:
    """Return the pages by path, below `reference/`."""
    found = {f"cli/{verb}.md": _verb(verb) for verb in VERBS}
    return {"cli/index.md": _index(), **found}


def command_of(verb: str) -> click.Command:
    """Return the command of a verb."""
    found: click.Command = import_module(f"torchloom.cli.commands.cmd_{verb}").command
    return found


def _index() -> str:
    by_verb: dict[str, list[str]] = {}
    for alias, words in ALIASES.items():
        by_verb.setdefault(" ".join(words), []).append(alias)
    aliases = [(", ".join(map(code, names)), code(f"loom {to}")) for to, names in by_verb.items()]
    return section(
        "# Command line",
        fence("text", "loom [--version] [--debug] VERB ..."),
        *(
            section(f"## {group}", table(("verb", "does"), map(_row, names)))
            for group, names in GROUPS.items()
        ),
        "## Naming a job",
        _JOB,
        "## Options before the verb",
        table(("option", "does"), _GLOBAL),
        "## Aliases",
        "Verbs of other tools, TorchX's among them, do what these do.",
        table(("alias", "is"), aliases),
        "## Exit codes",
        table(("code", "means"), _EXITS),
    )


def _row(verb: str) -> tuple[str, str]:
    summary = VERBS[verb].summary
    return f"[`{verb}`]({verb}.md)", escaped(summary[0].upper() + summary[1:])


def _verb(verb: str) -> str:
    command = command_of(verb)
    aliases = [name for name, words in ALIASES.items() if words[0] == verb]
    shown = [f"`{name}` (`{' '.join(ALIASES[name])}`)" for name in aliases]
    return section(
        f"# loom {verb}",
        *_command(command, click.Context(command, info_name=f"loom {verb}"), 2),
        f"Aliases: {', '.join(shown)}." if shown else "",
        "See also: [all verbs](index.md).",
    )


def _command(command: click.Command, context: click.Context, level: int) -> Iterator[str]:
    yield fence("text", " ".join([context.command_path, *command.collect_usage_pieces(context)]))
    yield prose(command.help)
    options = [each for each in command.params if isinstance(each, click.Option)]
    rows = [_option(each, context) for each in options if not each.hidden]
    if rows:
        yield table(("option", "does", "default", "variable"), rows)
    if command.epilog:
        yield fence("console", _commands(command.epilog))
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is None or inner.hidden:
                continue
            yield f"{'#' * level} {context.command_path} {name}"
            yield from _command(inner, click.Context(inner, parent=context, info_name=name), level)


def _commands(epilog: str) -> str:
    """Return the examples of a command's help as they are typed."""
    lines = [line.strip() for line in epilog.splitlines() if line.startswith("  ")]
    return "\n".join(line if line.startswith("#") else f"$ {line}" for line in lines)


def _option(option: click.Option, context: click.Context) -> tuple[str, str, str, str]:
    value = "" if option.is_flag or option.count else f" {_metavar(option, context)}"
    *others, last = (*option.opts, *option.secondary_opts)
    names = ", ".join(map(code, (*others, f"{last}{value}")))
    variable = option.envvar if isinstance(option.envvar, str) else ""
    text = escaped(option.help or "")
    if isinstance(option.type, click.IntRange) and option.type.min is not None:
        text += f" At least {option.type.min}."
    return names, text, _default(option), code(variable)


def _metavar(option: click.Option, context: click.Context) -> str:
    if option.metavar:
        return option.metavar
    if isinstance(option.type, click.Choice):
        return "|".join(map(str, option.type.choices))
    return option.type.name.removesuffix(" range").upper()


def _default(option: click.Option) -> str:
    value = option.default
    plain = isinstance(value, str | int | float) and not isinstance(value, bool)
    return code(str(value)) if plain and value != "" and not option.is_flag else ""
