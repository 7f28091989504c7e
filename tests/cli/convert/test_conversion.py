"""Plain programs and what `loom convert` makes of them: a table, and what holds for any layout."""

import ast
import builtins
import re
import symtable
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import pytest

from torchloom.cli.convert.conversion import ConversionPlan, convert
from torchloom.cli.convert.source import SourceText, counted, unified_diff

from ...docs.page import patched

TABLE = Path(__file__).with_name("programs.txt").read_text()
_ROW = re.compile(
    r"^######## (\w+)\n(.*?)^######## becomes\n(.*?)^######## with notes\n", re.M | re.S
)
_NOTES = re.compile(r"^######## with notes\n(.*?)(?=^######## |\Z)", re.M | re.S)
PROGRAMS = {name: (before, after) for name, before, after in _ROW.findall(TABLE)}
NOTES = dict(zip(PROGRAMS, _NOTES.findall(TABLE), strict=True))


def converted(text: str) -> ConversionPlan:
    plan = convert(text, "train")
    assert plan.refused == ()
    return plan


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_becomes_what_the_table_has(name: str) -> None:
    before, after = PROGRAMS[name]

    plan = converted(before)

    assert plan.new == after
    assert "".join(f"{one.line}: {one.text}\n" for one in plan.notes) == NOTES[name]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_converted_program_is_not_converted_again(name: str) -> None:
    after = PROGRAMS[name][1]

    plan = convert(after, "train")

    assert (plan.new, plan.refused, plan.is_needed) == (after, (), False)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_converted_program_reads_no_name_that_was_taken_out(name: str) -> None:
    before, after = PROGRAMS[name]

    new = unbound(after) - unbound(before)

    assert new == set()


def unbound(text: str) -> set[str]:
    """Return the names that functions of a program read, and nothing of it binds."""
    bound: set[str] = set(dir(builtins))
    read: set[str] = set()
    tables = [symtable.symtable(text, "train.py", "exec")]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        for symbol in table.get_symbols():
            if symbol.is_assigned() or symbol.is_imported() or symbol.is_parameter():
                bound.add(symbol.get_name())
            elif symbol.is_referenced():
                read.add(symbol.get_name())
    return read - bound


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_diff_makes_the_new_text_of_the_old_one(name: str) -> None:
    before, after = PROGRAMS[name]

    diff = unified_diff(before, after, "train.py")

    assert diff.startswith("--- train.py\n+++ train.py\n@@ ")
    assert patched(before, diff) == after


@pytest.mark.parametrize("name", PROGRAMS)
@hypothesis.given(data=st.data())
@hypothesis.settings(max_examples=20, deadline=None)
def test_comments_anywhere_stay_and_change_nothing(name: str, data: st.DataObject) -> None:
    before, after = PROGRAMS[name]
    source = SourceText(before)
    free = [line for line in range(2, len(source.lines) + 1) if line not in source.in_strings]
    chosen = data.draw(st.sets(st.sampled_from(free), max_size=8))

    plan = converted(
        "".join(
            f"{indented(text)}# note {line} é\n{text}" if line in chosen else text
            for line, text in enumerate(source.lines, 1)
        )
    )

    ast.parse(plan.new)
    assert without_notes(plan.new) == without_notes(after)
    left = set(map(int, re.findall(r"# note (\d+) é", plan.new)))
    gone = chosen - left
    removed = [line for line in before.splitlines() if line not in after.splitlines()]
    assert all(source.lines[line - 1].rstrip("\n") in removed for line in gone)


def indented(line: str) -> str:
    return line[: len(line) - len(line.lstrip())].strip("\n")


def without_notes(text: str) -> list[str]:
    lines = [line for line in text.splitlines() if "# note" not in line]
    return [line for line in lines if line.strip()]


@pytest.mark.parametrize("name", PROGRAMS)
def test_lines_end_as_they_did(name: str) -> None:
    before, after = PROGRAMS[name]

    plan = converted(before.replace("\n", "\r\n"))

    assert plan.new == after.replace("\n", "\r\n")


def test_a_last_line_without_an_end_is_kept_so() -> None:
    before, after = PROGRAMS["single"]

    plan = converted(before.removesuffix("\n"))
    diff = unified_diff(plan.old, plan.new, "train.py")

    assert plan.new == after.removesuffix("\n")
    assert diff.count("\\ No newline at end of file\n") == 2


def test_lines_that_are_only_indented_are_counted_apart() -> None:
    count = counted("a\nif b:\n    c\nd\n", "a\nwith x:\n    if b:\n        c\n")

    assert (count.added, count.removed, count.indented) == (1, 1, 2)
    assert str(count) == "1 line added, 1 removed, 2 lines indented"
