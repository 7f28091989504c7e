"""Checkpoints that a signal, the clock or the end of an allocation asks for: one command each."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from torchloom.bus.memory import Exchange
from torchloom.errors import UserError
from torchloom.messages.plane import Prepare
from torchloom.weaver import main
from torchloom.weaver.jobs.registry import SAVING
from torchloom.weaver.service import Weaver

from ...harness.fake_agents import rows, until, weaver_at
from .test_collection import ask, launched, states


def asked(folder: Path) -> list[tuple[Any, ...]]:
    """Return who wants a checkpoint, why, and what became of it."""
    query = "SELECT author, reason, state FROM commands WHERE kind = 'checkpoint' ORDER BY number"
    return rows(folder, query)


def turn_clock(weaver: Weaver, seconds: float) -> None:
    """Let the weaver believe that it is so much later."""
    weaver.triggers._now = lambda: time.time() + seconds


def test_a_signal_to_all_ranks_is_one_command_and_a_later_one_another(tmp_path: Path) -> None:
    async def scenario() -> int:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            node, ranks = await launched(exchange, world=3)
            for rank in ranks:
                await node.tell(rank, "checkpoint_wanted", why="SIGUSR1")
            await until(lambda: asked(tmp_path) == [("loom", "SIGUSR1", "applied")])
            await node.tell(ranks[0], "checkpoint_wanted", why="SIGUSR1")
            assert len(asked(tmp_path)) == 1
            turn_clock(weaver, 60)
            await node.tell(ranks[2], "checkpoint_wanted", why="SIGUSR1")
            await until(lambda: len(asked(tmp_path)) == 2)
            return len({said.command for said in node.of(Prepare)})

    assert asyncio.run(scenario()) == 2


def test_every_so_many_seconds_one_is_asked_for_by_whichever_weaver(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            node, ranks = await launched(exchange)
            await node.tell(ranks[0], "checkpointing", every_n_seconds=600, keep_last=3)
            turn_clock(weaver, 590)
            weaver.triggers.check()
            assert asked(tmp_path) == []
            turn_clock(weaver, 601)
            weaver.triggers.check()
            await until(lambda: asked(tmp_path) == [("loom", "every 600 s", "applied")])
            turn_clock(weaver, 0)
        async with weaver_at(tmp_path, exchange) as weaver:
            await node.hello()
            turn_clock(weaver, 590)  # seconds after the one that was asked for
            weaver.triggers.check()
            assert len(asked(tmp_path)) == 1
            turn_clock(weaver, 601)
            weaver.triggers.check()
            await until(lambda: len(asked(tmp_path)) == 2)

    asyncio.run(scenario())


def test_a_clock_that_is_set_back_by_an_hour_keeps_no_checkpoint_waiting(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            node, ranks = await launched(exchange)
            await node.tell(ranks[0], "checkpointing", every_n_seconds=600, keep_last=3)
            await node.tell(ranks[0], "checkpoint_wanted", why="SIGUSR1")
            await until(lambda: asked(tmp_path) == [("loom", "SIGUSR1", "applied")])
            turn_clock(weaver, -3600)
            await node.tell(ranks[1], "checkpoint_wanted", why="SIGUSR1")
            await until(lambda: asked(tmp_path) == [("loom", "SIGUSR1", "applied")] * 2)
            weaver.triggers.check()
            timed = ("loom", "every 600 s", "applied")
            await until(lambda: asked(tmp_path)[2:] == [timed])

    asyncio.run(scenario())


def test_before_an_allocation_ends_one_is_asked_for_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            node, _ = await launched(exchange, deadline=time.time() + 1000)
            for seconds in (800, 900, 950):
                turn_clock(weaver, seconds)
                weaver.triggers.check()
            await until(lambda: [row[2] for row in asked(tmp_path)] == ["applied"])
        async with weaver_at(tmp_path, exchange) as weaver:
            await node.hello()
            turn_clock(weaver, 960)
            weaver.triggers.check()

    asyncio.run(scenario())

    assert asked(tmp_path) == [("loom", "the allocation ends soon", "applied")]


def test_the_margin_before_an_allocations_end_can_be_set() -> None:
    words = ["--runtime", "/nonexistent", "--home", "/nonexistent"]

    assert main._options(words, {}).margin == 120.0
    assert main._options(words, {"LOOM_CHECKPOINT_MARGIN": "300"}).margin == 300.0
    with pytest.raises(UserError, match="LOOM_CHECKPOINT_MARGIN=soon: write seconds, such as 120"):
        main._options(words, {"LOOM_CHECKPOINT_MARGIN": "soon"})


def test_who_asks_for_a_checkpoint_hears_that_it_is_committed(tmp_path: Path) -> None:
    async def scenario() -> Any:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            node, ranks = await launched(exchange)
            await node.tell(ranks[0], "checkpointing", keep_last=3)
            await until(lambda: SAVING in weaver.jobs.all()[0].facts)
            asking = asyncio.create_task(ask(weaver, "checkpoint", author="ann", wait=10))
            await until(lambda: ranks[0].applied and ranks[1].applied)
            (_, step, _) = ranks[0].applied[0]
            for rank in ranks:
                await node.write(rank, step, trigger="command")
            return await asking

    answer = asyncio.run(scenario())

    found, step = answer["checkpoint"], answer["effective_step"]
    assert (answer["state"], answer["kind"], answer["author"]) == ("applied", "checkpoint", "ann")
    assert (found["step"], found["state"], found["trigger"]) == (step, "committed", "command")
    assert found["place"] == f"/runs/job-1/checkpoints/ckpt_step_{step:05d}"
    assert 0 <= found["seconds"] < 10


def test_who_asks_hears_how_it_stands_when_the_time_is_up_or_it_failed(tmp_path: Path) -> None:
    async def scenario() -> tuple[Any, Any]:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            node, ranks = await launched(exchange, world=1)
            await node.tell(ranks[0], "checkpointing", keep_last=3)
            await until(lambda: SAVING in weaver.jobs.all()[0].facts)
            nothing = await ask(weaver, "checkpoint", wait=0.3)
            node.codes = dict.fromkeys(range(10), "fenced")
            ranks[0].step = 4
            asking = asyncio.create_task(ask(weaver, "checkpoint", wait=10))
            await until(lambda: len(ranks[0].applied) == 2)
            await node.write(ranks[0], ranks[0].applied[1][1])
            return nothing, await asking

    nothing, failed = asyncio.run(scenario())

    assert (nothing["state"], nothing["checkpoint"]) == ("applied", None)
    assert (failed["checkpoint"]["state"], failed["checkpoint"]["reason"]) == ("failed", "fenced")


def test_a_step_that_is_committed_already_is_answered_with_that(tmp_path: Path) -> None:
    async def scenario() -> Any:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            node, ranks = await launched(exchange, world=1)
            await node.tell(ranks[0], "checkpointing", keep_last=3)
            await until(lambda: SAVING in weaver.jobs.all()[0].facts)
            await node.write(ranks[0], 2)
            await until(lambda: states(tmp_path) == {2: "committed"})
            return await ask(weaver, "checkpoint", at=2, wait=5)

    assert asyncio.run(scenario())["checkpoint"]["state"] == "committed"
