"""The words after a component's name: which argument each belongs to, and the help about them."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torchloom.errors import shorten
from torchloom.specs.arguments import (
    REQUIRED,
    Argument,
    ArgumentError,
    Kind,
    UnknownArgument,
    arguments_of,
    display_name,
    type_name,
)
from torchloom.specs.docstrings import get_fn_docstring

_NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+")


def read_words(
    component: str, arguments: Sequence[Argument], words: Sequence[str]
) -> dict[str, Any]:
    """Return the text of each flag; words from the first free one on are the variadic's."""
    flags = _flags(arguments)
    given: dict[str, Any] = {}
    position = 0
    while position < len(words) and _is_flag(words[position], flags):
        argument, text = _match(component, words[position], flags)
        if text is None:
            text = _value_after(component, words, position, flags)
            position += 1
        given[argument.name] = text
        position += 1
    free = list(words[position:])
    return given | _free_words(component, arguments, free[1:] if free[:1] == ["--"] else free)


def asks_for_help(arguments: Sequence[Argument], words: Sequence[str]) -> bool:
    """Say whether `--help` stands among the component's own words; `-h` is a component's to use."""
    flags = _flags(arguments)
    if "--help" in flags:
        return False
    position = 0
    while position < len(words) and _is_flag(words[position], flags):
        if words[position] == "--help":
            return True
        position += 2 if words[position] in flags else 1
    return False


def component_help(component: Any) -> str:
    """Return the help text of a component function, or of what the finder found."""
    fn: Callable[..., object] = getattr(component, "fn", component)
    name = getattr(component, "name", None) or display_name(fn)
    description, _ = get_fn_docstring(fn)
    arguments = arguments_of(fn)
    free = next((argument for argument in arguments if argument.kind is Kind.VARIADIC), None)
    usage = f"usage: loom run {name} [arguments]" + (f" [--] [{free.name} ...]" if free else "")
    rows = [row for argument in arguments for row in _help_rows(argument)]
    return "\n".join([usage, "", description, "", "arguments:", *rows]) + "\n"


def _flags(arguments: Sequence[Argument]) -> dict[str, Argument]:
    return {flag: argument for argument in arguments for flag in argument.flags}


def _value_after(
    component: str, words: Sequence[str], position: int, flags: Mapping[str, Argument]
) -> str:
    """Return the word after a flag, unless it looks like the next flag."""
    flag = words[position]
    value = words[position + 1] if position + 1 < len(words) else None
    if value is None or value in flags or (value.startswith("--") and " " not in value):
        raise ArgumentError(f"{component}: {flag} needs a value, as in `{flag}=VALUE`")
    return value


def _free_words(
    component: str, arguments: Sequence[Argument], words: list[str]
) -> dict[str, list[str]]:
    variadic = next((argument for argument in arguments if argument.kind is Kind.VARIADIC), None)
    if not words:
        return {}
    if variadic:
        return {variadic.name: words}
    raise ArgumentError(
        f"{component} takes no free words, but got {shorten(words[0])!r};"
        f" its arguments are {', '.join(_flags(arguments)) or 'none'}"
    )


def _is_flag(word: str, flags: Mapping[str, Argument]) -> bool:
    if not word.startswith("-") or word in {"-", "--"}:
        return False
    if word.partition("=")[0] in flags:
        return True
    return not _NEGATIVE_NUMBER.fullmatch(word) and " " not in word


def _match(component: str, word: str, flags: Mapping[str, Argument]) -> tuple[Argument, str | None]:
    """Return the argument a word like --name, --name=text, --na or -j2 means, and its text."""
    head, equals, tail = word.partition("=")
    text = tail if equals else None
    long = "--" + head.removeprefix("--").replace("-", "_")
    if head in flags or long in flags:
        return flags.get(head) or flags[long], text
    if not head.startswith("--"):
        if word[:2] in flags:
            return flags[word[:2]], word[2:]
        raise UnknownArgument(component, head, flags)
    meant = {flags[flag].name: flags[flag] for flag in flags if flag.startswith(long)}
    if len(meant) == 1:
        return next(iter(meant.values())), text
    if meant:
        names = ", ".join(f"--{name}" for name in meant)
        raise ArgumentError(f"{component}: {head} could mean {names}; write it out")
    raise UnknownArgument(component, head, flags)


def _help_rows(argument: Argument) -> list[str]:
    import textwrap

    flags = ", ".join(argument.flags) or f"{argument.name} ..."
    if argument.kind is Kind.VARIADIC or argument.default in (None, ""):
        note = ""
    elif argument.default is REQUIRED:
        note = "(required)"
    else:
        note = f"(default: {argument.default})"
    head = f"  {flags} {type_name(argument.type)}" if argument.flags else f"  {flags}"
    text = " ".join(part for part in (argument.help, note) if part)
    body = textwrap.wrap(text, 70, initial_indent=" " * 8, subsequent_indent=" " * 8)
    return [head, *body]
