"""Read a page of the manual: what it needs, and its fenced blocks in order."""

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

NEEDS = re.compile(r"<!--\s*needs:\s*([\w, -]+?)\s*-->")
NOT_RUN = re.compile(r"<!--\s*not run:\s*(.+?)\s*-->")
_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})\s*(?P<info>[^`]*)$")
_OPTION = re.compile(r'(?P<name>[\w-]+)="(?P<value>[^"]*)"|(?P<word>[\w.+-]+)')


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block, with the line of the page on which it begins."""

    line: int
    language: str
    body: str
    words: tuple[str, ...] = ()
    title: str | None = None
    not_run: str | None = None  # the reason why no test runs it


@dataclass(frozen=True, slots=True)
class Command:
    """What is typed at one prompt, and the lines that the page shows as its output."""

    line: int
    words: str
    expected: list[str] = field(default_factory=list)
    refused: bool = False


class Malformed(ValueError):
    """A page has something that no test can follow."""


def blocks(text: str) -> list[Block]:
    """Return the fenced blocks of a page; those inside notes and tabs are indented."""
    found: list[Block] = []
    lines = text.splitlines()
    reason: str | None = None
    at = 0
    while at < len(lines):
        if opened := _FENCE.match(lines[at]):
            end = _end(lines, at, opened["fence"])
            body = textwrap.dedent("\n".join(lines[at + 1 : end]))
            found.append(_block(at + 1, opened["info"], body, reason))
            at = end
        if lines[at].strip():
            marked = NOT_RUN.search(lines[at])
            reason = marked[1] if marked else None
        at += 1
    return found


def needs(text: str) -> tuple[str, ...]:
    """Return what the page needs of the machine beside torch, by its first line."""
    first = NEEDS.match(text.lstrip())
    return tuple(first[1].replace(",", " ").split()) if first else ()


def commands(block: Block) -> Iterator[Command]:
    """Return what a console block types; a line that ends with a backslash is continued."""
    command: Command | None = None
    lines = iter(enumerate(block.body.splitlines(), block.line + 1))
    for number, line in lines:
        if not line.startswith("$ "):
            if command is None:
                raise Malformed(f"line {number}: a console block begins with `$ `, not {line!r}")
            command.expected.append(line)
            continue
        if command:
            yield command
        words = line[2:]
        while words.endswith("\\"):
            words = f"{words[:-1]} {next(lines, (0, ''))[1].removeprefix('> ').strip()}"
        command = Command(number, words, [], "refused" in block.words)
    if command:
        yield command


def patched(text: str, diff: str) -> str:
    """Return the text after a diff: its hunks are parted by `@@` or `...` lines."""
    hunks: list[list[str]] = [[]]
    for line in diff.splitlines():
        if line.startswith(("--- ", "+++ ")):
            continue
        if line.startswith("@@") or line.strip() == "...":
            hunks.append([])
        else:
            hunks[-1].append(line)
    for hunk in filter(None, hunks):
        old = "".join(f"{line[1:]}\n" for line in hunk if not line.startswith("+"))
        new = "".join(f"{line[1:]}\n" for line in hunk if not line.startswith("-"))
        if text.count(old) != 1:
            raise Malformed(f"the diff fits {text.count(old)} places of the file:\n{old}")
        text = text.replace(old, new)
    return text


def is_part_of(path: Path, body: str) -> bool:
    """Say whether the body is the file, or lines of it that follow each other."""
    whole = [line.rstrip() for line in path.read_text().splitlines()]
    part = [line.rstrip() for line in body.strip("\n").splitlines()]
    windows = (whole[at : at + len(part)] for at in range(len(whole) - len(part) + 1))
    return any(textwrap.dedent("\n".join(one)).splitlines() == part for one in windows)


def _end(lines: list[str], start: int, fence: str) -> int:
    for at in range(start + 1, len(lines)):
        if lines[at].strip() == fence:
            return at
    raise Malformed(f"line {start + 1}: the block has no end")


def _block(line: int, info: str, body: str, reason: str | None) -> Block:
    language, _, rest = info.strip().partition(" ")
    title, words = None, []
    for option in _OPTION.finditer(rest):
        if option["name"] == "title":
            title = option["value"]
        elif option["word"]:
            words.append(option["word"])
    return Block(line, language, body, tuple(words), title, reason)
