"""Patterns of strangers stop nobody."""

import asyncio
import random
import re
import time
from pathlib import Path
from typing import Any

import pytest

from torchloom.server.logs import matcher
from torchloom.server.logs.lines import Output, lines_of
from torchloom.server.logs.patterns import LONGEST, BadPattern, Patterns, PatternTooSlow, checked

from ...harness.home import TIMEOUT, allowed, children

pytestmark = pytest.mark.process

CATASTROPHE = "(a+)+$"
LINES = ["a" * 40 + "!", "short"]


async def ticking(work: asyncio.Future[object]) -> float:
    """Return the longest time for which the loop stood still while something was done."""
    longest, last = 0.0, time.monotonic()
    while not work.done():
        await asyncio.sleep(0.005)
        now = time.monotonic()
        longest, last = max(longest, now - last), now
    return longest


def test_a_search_says_which_lines_match() -> None:
    async def searches() -> list[list[int]]:
        pool = Patterns()
        try:
            return [
                await pool.search("lo+ss", ["loss 1", "x", "looss"], 5.0),
                await pool.search("^$", ["", "a"], 5.0),
                await pool.search("é|\\d{2}", ["é", "12", "1"], 5.0),
            ]
        finally:
            await pool.close()

    assert asyncio.run(searches()) == [[0, 2], [0], [0, 1]]


def test_a_catastrophic_pattern_is_ended_while_the_server_goes_on() -> None:
    async def search() -> tuple[float, float, list[int]]:
        pool = Patterns()
        began = time.monotonic()
        work = asyncio.ensure_future(pool.search(CATASTROPHE, LINES, 0.5))
        stood_still = await ticking(work)
        took = time.monotonic() - began
        with pytest.raises(PatternTooSlow, match="repetitions"):
            work.result()
        after = await pool.search("short", LINES, 5.0)
        await pool.close()
        return stood_still, took, after

    stood_still, took, after = asyncio.run(search())

    assert stood_still < allowed(0.2)
    assert took < allowed(1.5)
    assert after == [1]


def test_searches_do_not_wait_for_a_slow_one_and_leave_no_process() -> None:
    async def searches() -> tuple[bool, list[int]]:
        pool = Patterns()
        slow = asyncio.ensure_future(pool.search(CATASTROPHE, LINES, 4.0))
        found = await pool.search("short", LINES, TIMEOUT)
        was_waited_for = slow.done()
        with pytest.raises(PatternTooSlow):
            await slow
        await pool.close()
        return was_waited_for, found

    before = children()
    was_waited_for, found = asyncio.run(searches())

    assert found == [1]
    assert not was_waited_for
    assert children() <= before


@pytest.mark.parametrize("pattern", ["(", "[", "*", "(?P<x", "(" * 900, "a{99999999999}"])
def test_what_is_no_pattern_is_refused_in_words(pattern: str) -> None:
    async def search() -> None:
        pool = Patterns()
        try:
            await pool.search(checked(pattern), [], 5.0)
        finally:
            await pool.close()

    with pytest.raises(BadPattern, match="not a regular expression"):
        asyncio.run(search())


def test_a_pattern_may_not_be_endless() -> None:
    with pytest.raises(BadPattern, match=str(LONGEST)):
        checked("a" * (LONGEST + 1))


PATTERNS = [
    "ab",
    "a.b",
    "ab|ba",
    "(?:ab)+c",
    "^a",
    "b$",
    "(?i)AB",
    "[ab]c",
    "é",
    "a\\b",
    "(a|é)b?c",
    "\\d",
    "x*",
    "(?i)K|ß",
    "a{2,}",
    "(?<!a)b",
    "^$",
]


def test_a_file_that_is_searched_in_pieces_has_the_lines_that_match_one_by_one(
    tmp_path: Path,
) -> None:
    chance = random.Random(7)
    path = tmp_path / "stdout.log"
    for _ in range(60):
        words = chance.choices(
            [*"abcé1 K", "\u212a", "\r", "\n", "\n", "\xff"], k=chance.randint(0, 80)
        )
        data = "".join(words).encode("latin-1" if chance.random() < 0.3 else "utf-8", "replace")
        data = data.replace(b"1", b"a" * matcher.LONGEST, 1) if chance.random() < 0.2 else data
        path.write_bytes(data)
        is_final = chance.random() < 0.5
        lines = list(lines_of(Output("key", tmp_path, "stdout", "", 0), 0, is_final))
        for pattern in PATTERNS:
            wanted = [(line.start, line.end) for line in lines if re.search(pattern, line.text)]

            assert scanned(path, pattern, is_final, chance) == wanted, (pattern, data)


def scanned(path: Path, pattern: str, is_final: bool, chance: random.Random) -> list[Any]:
    """Search a file to its end, in pieces that end after a few matches or at any time."""
    found: list[tuple[int, int]] = []
    start = 0
    while True:
        asked = {"pattern": pattern, "path": str(path), "start": start, "is_final": is_final}
        asked |= {"bytes": chance.choice([matcher.LONGEST * 2, 1 << 20])}
        asked |= {"most": chance.choice([1, 2, 100]), "seconds": 0.0}
        answer = matcher.found_in_file(asked)
        assert isinstance(answer, dict)
        found += answer["lines"]
        if answer["end"] == start:
            return found
        start = answer["end"]


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        ("loss=nan", [b"loss=nan"]),
        (r"step \d+ loss", [b" loss"]),
        ("error|warning", [b"error", b"warning"]),
        ("(?:OOM)+!", [b"OOM"]),
        ("(?i)ERROR", [b"error"]),
        ("(?i)é", []),
        ("(?i:error)", []),
        (r"\d+", []),
        ("(ab)?", []),
        ("a|b*", []),
        ("(?x) a b", []),
    ],
)
def test_the_text_that_a_match_must_hold_is_known_of_plain_patterns(
    pattern: str, texts: list[bytes]
) -> None:
    found = matcher.needed(pattern)

    assert [len(text) for text in found] == [len(text) for text in texts]
    assert all(re.search(pattern, text.decode()) or len(found) == 1 for text in found)
