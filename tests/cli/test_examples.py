"""The help of every command has examples, and each is a command line that the command takes."""

import re
import shlex
from collections.abc import Iterator

import click
import pytest

from torchloom.cli.jobs.remote import COMMANDS as REMOTE
from torchloom.cli.verbs import VERBS

from .test_verbs import command

WIDTH = 80
_SHELL = re.compile(r"\)\"?$| [|>] .*")  # what follows in `eval "$(loom ..)"`, `loom .. > FILE`


def every_command() -> Iterator[tuple[str, click.Command]]:
    """Yield all verbs and their subcommands; those of a remote plane have names of their own."""
    for verb in VERBS:
        one = command(verb)
        yield f"loom {verb}", one
        inner = one.commands if isinstance(one, click.Group) else {}
        yield from ((f"loom {verb} {name}", each) for name, each in inner.items())
    yield from ((f"loom {name} (remote)", one) for name, one in REMOTE.items() if name)


COMMANDS = dict(every_command())


def help_of(path: str) -> str:
    """Return what `--help` prints on a terminal of 80 columns."""
    one = COMMANDS[path]
    settings = {**one.context_settings, "terminal_width": WIDTH}
    return one.get_help(click.Context(one, info_name=path.removesuffix(" (remote)"), **settings))


def examples_in(text: str) -> list[str]:
    """Return the lines of the section at the end of a help."""
    return [line[2:] for line in text.partition("\nExamples:\n")[2].splitlines()]


def words_of(line: str) -> list[str]:
    """Return the words of the `loom` in a line of shell, without what the shell does around it."""
    _, *words = shlex.split(_SHELL.sub("", line[line.index("loom ") :]), comments=True)
    return words


def parsed(words: list[str], root: click.Command) -> str:
    """Parse words as `loom` does, without running anything; return the path of the command."""
    context = root.make_context(f"loom {words[0]}", words[1:])
    while isinstance(context.command, click.Group) and (rest := _rest(context)):
        name, inner, args = context.command.resolve_command(context, rest)
        assert inner is not None
        context = inner.make_context(name, args, parent=context)
    return context.command_path


def _rest(context: click.Context) -> list[str]:
    return [*context._protected_args, *context.args]


@pytest.mark.parametrize("path", COMMANDS)
def test_a_command_has_one_to_four_examples_below_its_options(path: str) -> None:
    lines = examples_in(help_of(path))

    assert 1 <= len(lines) <= 4
    assert all(line and not line.startswith(" ") for line in lines)


@pytest.mark.parametrize("path", COMMANDS)
def test_an_example_is_taken_by_the_very_command_whose_help_shows_it(path: str) -> None:
    own = path.removesuffix(" (remote)")
    verb = own.split()[1]
    root = COMMANDS[path] if own != path else COMMANDS[f"loom {verb}"]

    taken = [parsed(words_of(line), root) for line in examples_in(help_of(path))]

    if isinstance(COMMANDS[path], click.Group):
        depth = len(own.split())  # a group may be in another
        assert all(one.split()[:depth] == own.split() for one in taken)
    else:
        assert set(taken) == {own}


@pytest.mark.parametrize("path", COMMANDS)
def test_the_help_of_a_command_fits_80_columns_and_cuts_no_sentence(path: str) -> None:
    lines = help_of(path).splitlines()

    assert max(map(len, lines)) <= WIDTH
    assert [line for line in lines if line.endswith("...") and "Usage:" not in line] == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            'loom stop gpt --reason "loss diverged"  # now',
            ["stop", "gpt", "--reason", "loss diverged"],
        ),
        ('eval "$(loom env load)"', ["env", "load"]),
        ("source <(loom completion bash)", ["completion", "bash"]),
        ("loom inspect gpt audit --yaml > log.yaml", ["inspect", "gpt", "audit", "--yaml"]),
        ("echo jobs | loom monitor", ["monitor"]),
        ('loom set gpt lr=1 --guard "loss>2"', ["set", "gpt", "lr=1", "--guard", "loss>2"]),
    ],
)
def test_the_words_of_a_line_are_found(line: str, words: list[str]) -> None:
    assert words_of(line) == words
