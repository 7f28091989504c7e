"""Texts that a user reads contain none of the turns of phrase that a native reader stumbles over.

The texts are the messages in the package, the texts of the dashboard, the real output of `--help`
for every command, and the manual with README and its neighbours. The manual has the docstrings of
the public API and the first sentence of each module's. `test_words` bans words in all of them, too.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

import pytest

from torchloom.cli.verbs import help_text

from ..cli.test_examples import COMMANDS, help_of
from .source import nodes
from .test_words import PACKAGE, ROOT, banned_in

STUMBLES = {
    r"(?<!there )(?<!here )\bis no (?!longer\b|limit\b)[a-z]": "is not a ..",
    r"there are: ": "known: ..",
    r"\bwhat there is\b": "lists the jobs",
    r"\bmend(s|ed)?\b": "fix",
    r"\banew\b": "again",
    r"\bhung up\b": "closed the connection",
    r"\bparted by\b": "separated by",
    r"\bcame to nothing\b": "had no effect",
    r"\bwhat (came|comes|became|becomes) of\b|\bcame of it\b": "the outcome",
    r"\bin earnest\b": "in practice",
    r"\bbesides[,:]": "also",
    r"\bfor ever\b": "forever",
    r"\bwould go\b": "would be removed",
    r"\bis to be had\b|\bnot to be had\b": "is available",
    r"\bis good once\b|\bgood until\b": "works once, valid until",
    r"\bany more\b": "no longer",
    r"\bbeside,? [\w`]": "next to, besides, compared with",
    r"\bdoes not (live|come up)\b": "is not running, did not start",
    r"\bhow (it is|they are)\b(?! ([a-z]+ed|kept|built|made|written)\b)": "its state",
    r"\bwho is charged\b": "account that is charged",
    r"\basked for\b": "requested",
    r"\btake[sn]? (it|them) out\b": "remove",
}
BESIDE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
_ALL = re.compile("|".join(f"(?:{pattern})" for pattern in STUMBLES), re.IGNORECASE)
_COMMENT = re.compile(r"/\*.*?\*/|(?<!:)//[^\n]*", re.DOTALL)


def stumbles_in(text: str) -> list[str]:
    """Return the phrases of a text that a reader stumbles over, also across line breaks."""
    return [found.group() for found in _ALL.finditer(re.sub(r"\s+", " ", text))]


def messages(path: Path) -> Iterator[str]:
    """Yield the texts of a module: its string literals without docstrings."""
    described = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    bodies = [node.body for node in nodes(path) if isinstance(node, described)]
    skipped = {id(body[0].value) for body in bodies if body and isinstance(body[0], ast.Expr)}
    for node in nodes(path):
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(part) for part in node.values}
            yield "X".join(str(part.value) for part in node.values if _is_text(part))
        elif _is_text(node) and id(node) not in skipped:
            yield str(node.value)


def _is_text(node: ast.AST) -> TypeGuard[ast.Constant]:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


@pytest.mark.parametrize(
    "room", sorted({one.relative_to(PACKAGE).parts[0] for one in PACKAGE.rglob("*.py")})
)
def test_no_message_of_a_room_makes_its_reader_stumble(room: str) -> None:
    paths = [PACKAGE / room] if room.endswith(".py") else sorted((PACKAGE / room).rglob("*.py"))

    found = {
        f"{path.relative_to(ROOT)}: {text[:90]}": words
        for path in paths
        for text in messages(path)
        if (words := stumbles_in(text))
    }

    assert found == {}


def test_no_text_of_the_dashboard_makes_its_reader_stumble() -> None:
    source = ROOT / "dashboard" / "src"
    paths = [path for path in sorted(source.rglob("*.ts*")) if ".test." not in path.name]

    found = {
        path.relative_to(source).as_posix(): words
        for path in paths
        if (words := stumbles_in(_COMMENT.sub(" ", path.read_text())))
    }

    assert len(paths) > 100
    assert found == {}


def test_no_page_makes_its_reader_stumble() -> None:
    paths = [*sorted((ROOT / "docs").rglob("*.md")), *(ROOT / name for name in BESIDE)]

    found = {
        path.relative_to(ROOT).as_posix(): words
        for path in paths
        if (words := stumbles_in(path.read_text()))
    }

    assert len(paths) > 100
    assert found == {}


@pytest.mark.parametrize("path", ["loom", "loom help --all", *COMMANDS])
def test_no_help_makes_its_reader_stumble(path: str) -> None:
    text = help_of(path) if path in COMMANDS else help_text(whole=path != "loom")

    assert stumbles_in(text) == []
    assert banned_in(text) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("'x' is no\n   address of a server", ["is no a"]),
        ("there is no job 'x'; it is no longer there; 0 is no limit", []),
        ("no engine 'x'; there are: local", ["there are: "]),
        ("a node, and how it is; how it is reported; how they are kept", ["how it is"]),
    ],
)
def test_phrases_are_found_in_a_text(text: str, found: list[str]) -> None:
    assert stumbles_in(text) == found
