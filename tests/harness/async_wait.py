"""How tests of asynchronous things run, and wait."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


def live(story: Callable[[], Awaitable[T]]) -> T:
    """Live through a story, which has four minutes at most: machines may be loaded."""

    async def within() -> T:
        async with asyncio.timeout(240):
            return await story()

    return asyncio.run(within())


async def come_true(condition: Callable[[], object], patience: float = 90.0) -> None:
    """Come back when the condition holds; fail when it does not in time."""
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.005)
