"""Read Google docstrings: what a component says about itself and about its arguments."""

import inspect
import re
from collections.abc import Callable
from typing import NamedTuple

ARGUMENT_SECTIONS = frozenset({"Args", "Arguments", "Parameters", "Params"})
OTHER_SECTIONS = frozenset(
    {"Attributes", "Example", "Examples", "Raises", "Return", "Returns", "Yield", "Yields"}
)

_HEADER = re.compile(r"^(\w+)(?: \w+)?:$")
_ENTRY = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:(.*)$")


class Docstring(NamedTuple):
    """The parts of a docstring that become help text."""

    description: str
    arguments: dict[str, str]


def parse_docstring(text: str) -> Docstring:
    """Split a docstring (already dedented) into its description and one text per argument."""
    description: list[str] = []
    arguments: list[str] = []
    section = ""
    for line in text.strip().splitlines():
        section = _section_after(line, section)
        if section in ARGUMENT_SECTIONS and line[:1].isspace():
            arguments.append(line)
        elif not section:
            description.append(line)
    return Docstring("\n".join(description).strip(), _entries(arguments))


def get_fn_docstring(fn: Callable[..., object]) -> tuple[str, dict[str, str]]:
    """Return a function's description and the description of each of its arguments."""
    described = parse_docstring(inspect.getdoc(fn) or "")
    arguments = dict.fromkeys(inspect.signature(fn).parameters, "") | described.arguments
    return described.description or f"{fn.__name__} (add a docstring to describe it)", arguments


def _section_after(line: str, current: str) -> str:
    """Return the section a line belongs to; a header opens one, other flush text ends arguments."""
    header = _HEADER.match(line)
    if header and header[1] in ARGUMENT_SECTIONS | OTHER_SECTIONS:
        return header[1]
    if current in ARGUMENT_SECTIONS and line and not line[0].isspace():
        return "rest"
    return current


def _entries(lines: list[str]) -> dict[str, str]:
    """Return name -> text; what is indented deeper than the first entry continues its entry."""
    found: dict[str, list[str]] = {}
    margin = min((_indent(line) for line in lines if line.strip()), default=0)
    current: list[str] = []
    for line in lines:
        entry = _ENTRY.match(line.strip()) if _indent(line) == margin else None
        if entry:
            current = found.setdefault(entry[1], [])
            line = entry[2]
        current.append(line.strip())
    return {name: " ".join(part for part in parts if part) for name, parts in found.items()}


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
