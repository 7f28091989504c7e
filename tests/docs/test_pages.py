"""Each page of the tutorials and guides is true: its blocks are run, in order."""

import re
from pathlib import Path

import pytest

from .page import blocks, needs
from .run import pages, run_page
from .world import PROBES, ROOT


def _page(path: Path) -> object:
    asked = ("torch", *needs(path.read_text()))
    probes = sorted({probe for what in asked for probe in PROBES[what]})
    marks = [pytest.mark.needs(probe) for probe in probes]
    return pytest.param(path, id=str(path.relative_to(ROOT / "docs")), marks=marks)


@pytest.mark.process
@pytest.mark.parametrize("page", [_page(path) for path in pages()])
def test_every_block_of_a_page_does_what_the_page_shows(page: Path) -> None:
    run_page(page)


def test_few_commands_of_the_pages_are_not_run() -> None:
    left_out = [
        f"{page.name}:{block.line}: {block.not_run}"
        for page in pages()
        for block in blocks(page.read_text())
        if block.not_run
    ]

    print("\n".join(left_out))
    assert len(left_out) <= 6, left_out


def test_every_reason_for_not_running_stands_before_a_block() -> None:
    for page in pages():
        text = page.read_text()
        written = len(re.findall(r"<!--\s*not run:", text))
        assert written == sum(block.not_run is not None for block in blocks(text)), page
