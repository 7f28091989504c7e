"""Events reach the parts in the order of the table; a failed task ends the weaver."""

import asyncio
import inspect
from dataclasses import is_dataclass
from pathlib import Path

import pytest

from torchloom.bus.memory import Exchange
from torchloom.weaver import events
from torchloom.weaver.events import (
    BackgroundTasks,
    Dispatcher,
    JobStopping,
    JobVacated,
    RankEventReported,
    on,
)

from ..harness.fake_agents import weaver_at


def test_listeners_of_an_event_are_called_in_the_order_of_the_table() -> None:
    calls: list[tuple[str, str]] = []
    dispatcher = Dispatcher()
    dispatcher.connect(
        on(
            JobVacated,
            lambda event: calls.append(("first", event.job)),
            lambda event: calls.append(("second", event.job)),
        )
    )

    dispatcher.publish(JobVacated("a"))
    dispatcher.publish(JobStopping("a"))

    assert calls == [("first", "a"), ("second", "a")]


def test_the_table_is_set_once() -> None:
    dispatcher = Dispatcher()
    dispatcher.connect(on(JobVacated, print))

    with pytest.raises(AssertionError, match="set once"):
        dispatcher.connect(on(JobStopping, print))


def test_a_weaver_has_a_listener_for_every_event(tmp_path: Path) -> None:
    kinds = {kind for _, kind in inspect.getmembers(events, is_dataclass)}

    async def scenario() -> None:
        async with weaver_at(tmp_path, Exchange()) as weaver:
            table = weaver.events._table
            assert {kind for kind in kinds if kind.__module__ == events.__name__} == set(table)
            assert all(table.values())
            owners = [listener.__self__ for listener in table[RankEventReported]]
            parts = [weaver.losses, weaver.responses, weaver.experiments, weaver.triggers]
            assert owners == parts  # a loss is noted before a response may end its ranks
            vacated = [listener.__self__ for listener in table[JobVacated]]
            assert vacated == [weaver.coordinator.queue, weaver.live_recovery]

    asyncio.run(scenario())


def test_the_first_failure_of_a_task_is_raised_and_a_cancelled_task_is_none() -> None:
    async def fail(error: Exception) -> None:
        raise error

    async def scenario() -> None:
        tasks = BackgroundTasks()
        tasks.start(asyncio.sleep(60), "cancelled").cancel()
        tasks.start(fail(ValueError("first")), "one")
        tasks.start(fail(ValueError("second")), "two")

        with pytest.raises(ValueError, match="first"):
            await tasks.failure()

    asyncio.run(scenario())
