"""Every block of every page is run or checked by a test, or is no more than a picture."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from . import output
from .check import check, check_line, commands_shown, loom_commands
from .page import Block, blocks, commands
from .run import DATA, pages
from .world import ROOT

RUN = set(pages())
OTHERS = sorted(set((ROOT / "docs").rglob("*.md")) - RUN)


def faults(path: Path) -> list[str]:
    """Return what is wrong with the blocks of a page that no test runs."""
    found = []
    for block in blocks(path.read_text()):
        try:
            check(block)
        except (ValueError, SyntaxError) as error:
            found.append(f"{path.relative_to(ROOT)}:{block.line}: {error}")
    return found


def printed(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines that a page shows as output, with their numbers."""
    for block in blocks(path.read_text()):
        for command in commands(block) if block.language == "console" else ():
            yield from enumerate(command.expected, command.line + 1)


def test_every_block_of_a_tutorial_or_guide_is_of_a_kind_that_is_run() -> None:
    kinds = ("console", "python", "text", *DATA)

    left = [
        f"{path.relative_to(ROOT)}:{block.line}: `{block.language}` without a title is not run"
        for path in sorted(RUN)
        for block in blocks(path.read_text())
        if block.language not in kinds and not block.title
    ]
    hidden = [
        f"{path.relative_to(ROOT)}:{block.line}: a command in a block that no test runs"
        for path in sorted(RUN)
        for block in blocks(path.read_text())
        if block.language == "text" and not block.title and commands_shown(block.body)
    ]

    assert left + hidden == []


def test_no_page_says_two_things_of_how_long_its_jobs_took() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {fault}"
        for path in sorted(RUN)
        for fault in output.contradictions(printed(path))
    ]

    assert found == []


@pytest.mark.parametrize("folder", sorted({path.parent for path in OTHERS}), ids=lambda f: f.name)
def test_every_block_of_another_page_can_be_read(folder: Path) -> None:
    found = [fault for path in OTHERS if path.parent == folder for fault in faults(path)]

    assert found == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("loom run -n 4 train.py", ["loom run -n 4 train.py"]),
        ("    loss\n$ ls", ["$ ls"]),
        ("  pip install 'torchloom[s3]'", ["pip install 'torchloom[s3]'"]),
        ("A=1 B=$PWD/x python -m this", ["A=1 B=$PWD/x python -m this"]),
        ("make demo\nmake: nothing to do", ["make demo"]),
        ("loom: 1 of 2 are damaged\npython3.11\nn1 slots=2", []),
    ],
)
def test_a_command_is_seen_without_its_prompt(text: str, found: list[str]) -> None:
    assert commands_shown(text) == found


@pytest.mark.parametrize(
    "line",
    [
        "loom run -n 2 train.py --of-the-script",
        "loom checkpoint verify @ --replay    train twice",
        "loom set left lr=0.1 --reason 'a b' && loom down",
        "A=1 loom launch --nproc_per_node 4 train.py | head",
        "loom top",
        "kill $(loom up --status | awk '{print $2}')",
        "make demo",
    ],
)
def test_a_line_that_loom_understands_is_taken(line: str) -> None:
    check_line(line)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("loom rum train.py", "no verb 'rum'"),
        ("loom ls --newest", "--newest"),
        ("ls | loom logs --nothing", "--nothing"),
        ("loom checkpoint verify --twice", "--twice"),
        ("kill $(loom up --stat)", "--stat"),
        ("loom launch --nproc_per_node", "nproc"),
    ],
)
def test_a_line_that_loom_does_not_understand_is_seen(line: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        check_line(line)


@pytest.mark.parametrize(
    ("language", "body"),
    [
        ("python", "def a(:\n"),
        ("yaml", "a: ["),
        ("yaml", "name: a\nscript: b.py\nresources: {workers: 0}"),
        ("json", "{"),
        ("console", "$ loom ls --newest"),
        ("", "$ loom ls --newest"),
        ("text", "loom ls --newest     lists them"),
        ("bash", "loom ls"),
    ],
)
def test_a_block_that_cannot_be_read_is_seen(language: str, body: str) -> None:
    with pytest.raises((ValueError, SyntaxError)):
        check(Block(1, language, body))


def test_every_command_of_a_line_is_found() -> None:
    line = "A=1 loom ls -s slurm | loom logs x; echo loom; echo $(loom show y)"

    assert list(loom_commands(line)) == [["show", "y"], ["ls", "-s", "slurm"], ["logs", "x"]]
