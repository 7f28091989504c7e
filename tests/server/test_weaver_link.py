"""The server's line to the weaver: kept open, told apart from a dead one, never mixed up."""

import asyncio
import contextlib
import json
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from torchloom.server.weaver_link import WeaverAway, WeaverLink, WeaverRefused

HEADER = struct.Struct("!IH")
Script = Callable[[dict[str, Any]], Awaitable[list[dict[str, Any]]]]


class Door:
    """Answers each question as a script says; counts who calls."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.calls = 0
        self.writers: list[asyncio.StreamWriter] = []

    async def called(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.calls += 1
        self.writers.append(writer)
        try:
            while True:
                length, _ = HEADER.unpack(await reader.readexactly(HEADER.size))
                for said in await self.script(json.loads(await reader.readexactly(length))):
                    text = json.dumps(said).encode()
                    writer.write(HEADER.pack(len(text), 0) + text)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


async def echo(asked: dict[str, Any]) -> list[dict[str, Any]]:
    await asyncio.sleep(asked.get("pause", 0))
    return [{"ok": asked.get("number")}]


@asynccontextmanager
async def at(path: Path, script: Script = echo) -> AsyncIterator[tuple[Door, WeaverLink]]:
    door, link = Door(script), WeaverLink(path)
    server = await asyncio.start_unix_server(door.called, str(path))
    try:
        yield door, link
    finally:
        link.close()
        server.close()
        for writer in door.writers:
            writer.close()


def test_questions_one_after_another_use_one_connection(tmp_path: Path) -> None:
    async def scenario() -> tuple[list[Any], int]:
        async with at(tmp_path / "door") as (door, link):
            found = [await link.ask("x", number=number) for number in range(50)]
            return found, door.calls

    assert asyncio.run(scenario()) == (list(range(50)), 1)


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_answers_to_many_at_once_are_not_mixed_up(tmp_path: Path, loop: Any) -> None:
    """More call at once than the kernel lets wait."""

    async def scenario() -> tuple[list[Any], int]:
        async with at(tmp_path / "door") as (door, link):
            asks = [link.ask("x", number=n, pause=(n % 7) / 1000) for n in range(500)]
            return await asyncio.gather(*asks), door.calls

    with asyncio.Runner(loop_factory=loop) as runner:
        found, calls = runner.run(scenario())

    assert found == list(range(500))
    assert calls <= 500


def test_who_gave_up_leaves_no_answer_for_the_next(tmp_path: Path) -> None:
    async def scenario() -> Any:
        async with at(tmp_path / "door") as (_, link):
            with pytest.raises(WeaverAway, match=r"no answer within 0\.01 s"):
                await link.ask("x", number=1, pause=0.2, patience=0.01)
            task = asyncio.create_task(link.ask("x", number=2, pause=0.2))
            await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return await link.ask("x", number=3)

    assert asyncio.run(scenario()) == 3


def test_a_door_that_was_closed_and_opened_again_is_noticed(tmp_path: Path) -> None:
    async def scenario() -> Any:
        async with at(tmp_path / "door") as (door, link):
            await link.ask("x", number=1)
            door.writers[0].close()
            await asyncio.sleep(0.05)
            return await link.ask("x", number=2), door.calls

    assert asyncio.run(scenario()) == (2, 2)


def test_nobody_there_is_said_in_words(tmp_path: Path) -> None:
    link = WeaverLink(tmp_path / "nobody")

    with pytest.raises(WeaverAway, match="does not answer") as caught:
        asyncio.run(link.ask("status"))

    assert "loom up --status" in caught.value.remedy


def test_a_refusal_keeps_its_code_field_and_remedy(tmp_path: Path) -> None:
    async def refuse(asked: dict[str, Any]) -> list[dict[str, Any]]:
        said = {"error": "no", "code": "bad_spec", "exit_code": 2, "field": "name"}
        return [{**said, "remedy": "give one"}]

    async def scenario() -> WeaverRefused:
        async with at(tmp_path / "door", refuse) as (_, link):
            with pytest.raises(WeaverRefused) as caught:
                await link.ask("submit")
            return caught.value

    error = asyncio.run(scenario())
    assert (str(error), error.code, error.exit_code) == ("no", "bad_spec", 2)
    assert (error.field, error.remedy) == ("name", "give one")


def test_a_watch_yields_until_the_weaver_goes(tmp_path: Path) -> None:
    async def events(asked: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"event": {"seq": n}, "next": {"weaver": n}} for n in range(3)]

    async def scenario() -> list[int]:
        async with at(tmp_path / "door", events) as (door, link):
            seen: list[int] = []
            with contextlib.suppress(WeaverAway):
                async for said in link.watch(job="a"):
                    seen.append(said["event"]["seq"])
                    if len(seen) == 3:
                        door.writers[0].close()
                seen.append(-1)  # it must not end as if all were said
            return seen

    assert asyncio.run(scenario()) == [0, 1, 2]


def test_half_a_letter_of_an_answer_is_replaced(tmp_path: Path) -> None:
    async def odd(asked: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"ok": ["cut \udc80", "whole \U0001f600"]}]

    async def scenario() -> Any:
        async with at(tmp_path / "door", odd) as (_, link):
            return await link.ask("x")

    assert asyncio.run(scenario()) == ["cut ?", "whole \U0001f600"]
