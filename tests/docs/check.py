"""Check blocks of pages that no test runs: what is shown must be read by what would read it."""

import re
import shlex
from collections.abc import Iterator
from importlib import import_module

import click
import yaml

from torchloom.cli.verbs import ALIASES, VERBS
from torchloom.specs.jobspec_shape import PROGRAMS, job_from_dict

from .page import Block, patched
from .run import DATA, readable

TEXT = ("", "text", "pycon")  # drawings and output; lines in them that type loom are checked too
_PROMPT = re.compile(r"^(?:\[\w+\])?\$ (.*)$")
_COMMAND = re.compile(r"^\s*((?:\$|(?:\w+=\S*\s+)*(?:loom|pip|python3?|make|torchrun))\s.*)$", re.M)
_USAGE = re.compile(r"^loom .*(?:\[|\.\.\.|─)")  # what may be typed, or a drawing
_INSIDE = re.compile(r"\$\((loom [^()|]*)")
_OPERATORS = ("|", "||", "&&", ";", "&", ">", ">>", "<", "2>", "(", ")")


def check(block: Block) -> None:
    """Raise ValueError where a block says what torchLoom or Python would not read."""
    if block.language in (*TEXT, "console"):
        for line in block.body.splitlines():
            if typed := _PROMPT.match(line):
                check_line(typed[1])
            elif line.startswith("loom ") and not _USAGE.match(line):
                check_line(line)
    elif block.language == "python":
        compile(block.body, f"line {block.line}", "exec")  # SyntaxError is a ValueError's cousin
    elif block.language == "diff":
        patched("".join(f"{line[1:]}\n" for line in _old(block.body)), block.body)
    elif block.language in DATA:
        readable(block)
        if block.language in ("yaml", "yml"):
            _check_jobs(block.body)
    else:
        raise ValueError(f"no test checks a block of the kind `{block.language}`")


def commands_shown(text: str) -> list[str]:
    """Return the lines of a drawing that a reader would type, with or without a prompt."""
    return [found[1] for found in _COMMAND.finditer(text)]


def check_line(line: str) -> None:
    """Raise ValueError where a line types a verb or an option that loom does not have."""
    for words in loom_commands(line):
        parse(words)


def loom_commands(line: str) -> Iterator[list[str]]:
    """Yield the words after `loom` of each command of a line of a shell."""
    for inner in _INSIDE.findall(line):
        yield from loom_commands(inner)
    outside = re.sub(r"\$\([^()]*\)", "VALUE", line)
    typed = re.split(r"\s{3,}|\s+#\s", outside)[0]  # what it is for is written beside it
    lexer = shlex.shlex(typed.rstrip("\\"), posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    for word in [*lexer, ";"]:
        if word in _OPERATORS:
            while words and re.fullmatch(r"\w+=.*", words[0]):
                words.pop(0)
            if words[:1] == ["loom"]:
                yield words[1:]
            words = []
        else:
            words.append(word)


def parse(words: list[str]) -> None:
    """Parse a command line as loom does, without running it."""
    if words[:1] in ([], ["--help"], ["-h"], ["help"], ["--version"]):
        return
    verb, *rest = words
    if verb in ALIASES:
        verb, *extra = ALIASES[verb]
        rest = [*extra, *rest]
    if verb not in VERBS:
        raise ValueError(f"loom has no verb {verb!r}")
    if verb == "launch" and not {"-h", "--help"} & set(rest):
        from torchloom.errors import LoomError
        from torchloom.launch.grammar.command import LaunchCommand

        try:
            LaunchCommand.parse(rest, {})
        except LoomError as error:
            raise ValueError(f"loom {' '.join(words)}: {error}") from error
        return
    command = import_module(f"torchloom.cli.commands.cmd_{verb}").command
    _parse(command, _context(command, f"loom {verb}"), rest)


def _parse(command: click.Command, context: click.Context, words: list[str]) -> None:
    try:
        _, rest, _ = command.make_parser(context).parse_args(args=list(words))
    except click.UsageError as error:
        raise ValueError(f"{context.command_path} {' '.join(words)}: {error.message}") from error
    if isinstance(command, click.Group) and rest:
        inner = command.get_command(context, rest[0])
        if inner is not None:
            _parse(inner, _context(inner, rest[0], context), rest[1:])


def _context(
    command: click.Command, name: str, parent: click.Context | None = None
) -> click.Context:
    return click.Context(command, parent=parent, info_name=name, **command.context_settings)


def _check_jobs(text: str) -> None:
    """Read what is a whole job as the product does; parts of one are only YAML."""
    from torchloom.specs.exceptions import SpecError

    for found in yaml.safe_load_all(text):
        if isinstance(found, dict) and "name" in found and set(PROGRAMS) & found.keys():
            try:
                job_from_dict(found)
            except SpecError as error:
                raise ValueError(str(error)) from error


def _old(diff: str) -> list[str]:
    lines = [line for line in diff.splitlines() if not line.startswith(("+", "@@", "--- "))]
    return [line for line in lines if line.strip() != "..."]
