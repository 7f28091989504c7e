"""Patterns of strangers stop nobody."""

import asyncio
import time

import pytest

from torchloom.server.patterns import LONGEST, BadPattern, Patterns, PatternTooSlow, checked

from ..living import TIMEOUT, allowed, children

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

    with pytest.raises(BadPattern, match="no regular expression"):
        asyncio.run(search())


def test_a_pattern_may_not_be_endless() -> None:
    with pytest.raises(BadPattern, match=str(LONGEST)):
        checked("a" * (LONGEST + 1))
