"""Markdown of facts: tables, escaped prose, docstrings."""

import inspect
import re
from collections.abc import Iterable, Sequence

_SECTION = re.compile(
    r"(Args|Arguments|Attributes|Returns|Raises|Yields|Example|Examples|Note|Usage):+"
)
_ENTRY = re.compile(r"\*{0,2}(?P<names>\w+(?:, \w+)*)(?: \([^)]*\))?:\s*(?P<text>.*)")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; columns in which no row has anything are left out."""
    rows = [[cell(each) for each in row] for row in rows]
    kept = [at for at in range(len(head)) if any(row[at] for row in rows)]
    lines = [[head[at] for at in kept], ["---" for _ in kept]]
    lines += [[row[at] for at in kept] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell(text: str) -> str:
    """Return text for one cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def code(text: str) -> str:
    """Return text as code."""
    return f"`{text}`" if text else ""


def section(*parts: str) -> str:
    """Return parts that stand apart, without empty ones."""
    return "\n\n".join(part.strip("\n") for part in parts if part.strip())


def fence(language: str, text: str) -> str:
    """Return a block of code."""
    return f"```{language}\n{text.rstrip()}\n```"


def first_sentence(doc: str) -> str:
    """Return the summary of a docstring."""
    return " ".join(doc.strip().partition("\n\n")[0].split())


def prose(doc: str | None) -> str:
    """Return a docstring as Markdown: paragraphs, lists of arguments, examples."""
    parts: list[str] = []
    for block in re.split(r"\n\s*\n", inspect.cleandoc(doc or "").replace("\b\n", "")):
        parts += _block(block.strip("\n"))
    return section(*_joined_code(parts))


def _block(block: str) -> list[str]:
    lines = block.splitlines()
    if not lines:
        return []
    if head := _SECTION.fullmatch(lines[0].strip()):
        body = inspect.cleandoc("\n".join(["", *lines[1:]]))
        return [f"**{head[1]}**", *_section_body(head[1], body)]
    if all(line.startswith((" ", ">>>")) for line in lines):
        return [_example(inspect.cleandoc("\n" + block))]
    if any(re.search(r"\S {3,}\S", line) for line in lines) and len(lines) > 1:
        return [fence("text", block)]  # columns
    return [escaped(block)]


def _section_body(kind: str, body: str) -> list[str]:
    if not body:
        return []
    if kind.startswith(("Example", "Usage")):
        return [_example(body)]
    entries: list[str] = []
    for line in body.splitlines():
        entry = _ENTRY.match(line) if not line.startswith(" ") else None
        if entry:
            names = ", ".join(map(code, entry["names"].split(", ")))
            entries.append(f"- {names}: {escaped(entry['text'])}")
        elif entries:
            entries[-1] += f" {escaped(line.strip())}"
        else:
            return [escaped(body)]
    return ["\n".join(entries)]


def _example(body: str) -> str:
    """Return an example; one with prompts is shown as it is, for nothing here runs it."""
    return fence("text" if not body.startswith(">>>") else "pycon", body)


def _joined_code(parts: list[str]) -> list[str]:
    """Return parts in which blocks of code that follow each other are one."""
    joined: list[str] = []
    for part in parts:
        before = joined[-1] if joined else ""
        opening = part.partition("\n")[0]
        if part.startswith("```") and before.startswith(opening) and before.endswith("```"):
            joined[-1] = before[:-4] + "\n\n" + part.partition("\n")[2]
        else:
            joined.append(part)
    return joined


def escaped(text: str) -> str:
    """Return prose in which nothing outside of code is taken for HTML or emphasis."""
    pieces = re.split(r"(``.+?``|`[^`]*`)", text)
    for at in range(0, len(pieces), 2):
        pieces[at] = re.sub(r"([<*\[\]])", r"\\\1", pieces[at])
    return "".join(pieces)
