"""Search patterns of clients: checked before use, and run in a process that can be killed.

Python's `re` holds the interpreter while it searches, so a time limit in a thread would not help:
`(a+)+$` on one line would stop the server. A search runs in `matcher` and has two seconds in all.
"""

import asyncio
import contextlib
import json
import sys
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torchloom.errors import UserError

LONGEST = 1000  # characters of a pattern
PATIENCE = 2.0  # seconds of searching for one page
_MATCHER = Path(__file__).with_name("matcher.py")
_MOST = 4  # searches at once
_LONGEST_ANSWER = 1 << 22


class BadPattern(UserError):
    """A pattern that is no regular expression, or too long."""

    code = "bad_pattern"


class PatternTooSlow(UserError):
    """A pattern that took too long on these lines."""

    code = "pattern_too_slow"

    def __init__(self) -> None:
        super().__init__(
            f"the pattern took more than {PATIENCE:.0f} s; write it without nested"
            " repetitions, or narrow the search by rank or time"
        )


def checked(pattern: str) -> str:
    """Return a pattern that is not too long; what else is wrong with it shows when it is used."""
    if len(pattern) > LONGEST:
        raise BadPattern(f"a pattern has at most {LONGEST} characters, this one has {len(pattern)}")
    return pattern


class Patterns:
    """Processes that search; one that is done serves the next search."""

    def __init__(self) -> None:
        self._idle: list[Process] = []
        self._room = asyncio.Semaphore(_MOST)

    async def search(self, pattern: str, texts: Sequence[str], seconds: float) -> list[int]:
        """Return which texts match; a pattern that is too slow is the client's error."""
        if seconds <= 0:
            raise PatternTooSlow
        async with self._one() as process:
            answer: list[int] | str = await _asked(process, [pattern, seconds, list(texts)])
        if isinstance(answer, str):
            raise BadPattern(f"this is not a regular expression: {answer}")
        return answer

    async def scan(self, pattern: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Return where lines of a piece of a file match, and where the piece ends."""
        async with self._one() as process:
            request = {"pattern": pattern, "limit": PATIENCE, **asked}
            answer: dict[str, Any] | str = await _asked(process, request)
        if isinstance(answer, str):
            raise BadPattern(f"this is not a regular expression: {answer}")
        return answer

    @contextlib.asynccontextmanager
    async def _one(self) -> AsyncIterator[Process]:
        async with self._room:
            process = self._idle.pop() if self._idle else await _start()
            try:
                yield process
            except BaseException:
                await _end(process)
                raise
            self._idle.append(process)

    async def close(self) -> None:
        """End the processes."""
        while self._idle:
            await _end(self._idle.pop())


class Budget:
    """How much longer a page may search."""

    def __init__(self, seconds: float = PATIENCE) -> None:
        self._until = time.monotonic() + seconds

    @property
    def left(self) -> float:
        return self._until - time.monotonic()


async def _asked(process: Process, question: Any) -> Any:
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(question).encode() + b"\n")
        await process.stdin.drain()
        line = await process.stdout.readline()
    except ConnectionError:
        line = b""
    if not line:
        raise PatternTooSlow
    return json.loads(line)


async def _start() -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-ISWignore",
        str(_MATCHER),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=_LONGEST_ANSWER,
    )


async def _end(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()
