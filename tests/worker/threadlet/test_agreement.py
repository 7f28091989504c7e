"""Ranks agree on the step of a change, whoever is slow, stopped or dead."""

import json
import os
import random
import signal
import time
from itertools import pairwise
from pathlib import Path

import pytest

from torchloom.bus.progress_page import PageView
from torchloom.messages.plane import Applied, Decided, RankRefusal, Ready, Register, Write

from ...harness.home import until
from .conftest import Ranks
from .fake_agent import FakeAgent

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]


def written(folder: Path, rank: int) -> list[tuple[int, float, float]]:
    """Return what a rank wrote itself: step, the lr it used, when."""
    lines = (folder / f"rank-{rank}").read_text().splitlines()
    return [tuple(json.loads(line)) for line in lines if line.endswith("]")]


def changes(folder: Path, rank: int) -> list[tuple[int, float]]:
    """Return the steps in which a rank began to use another lr."""
    rows = written(folder, rank)
    return [(b[0], b[1]) for a, b in pairwise(rows) if a[1] != b[1]]


def pid_of(agent: FakeAgent, rank: int) -> int:
    return agent.of(Register, rank)[-1].pid


def reached(ranks: Ranks, rank: int, step: int) -> None:
    """Come back when a rank has begun this step, by its own file."""
    until(lambda: (rows := written(ranks.folder, rank)) and rows[-1][0] >= step)


def test_random_changes_act_at_one_step_on_all_ranks_none_lost_none_twice(ranks: Ranks) -> None:
    world, agent, chance = 3, ranks.agent, random.Random(1)
    running = ranks.start("ddp.py", world)
    agent.wait_for_boundaries(world, "lr")
    expected = []

    while len(expected) < 25:
        value = 0.5 + chance.random()
        command, effective = agent.command(world, "knob", {"name": "lr", "value": value})
        if effective is not None:
            said = agent.wait(Applied, world, command=command)
            assert {(one.step, one.after) for one in said} == {(effective, value)}
            expected.append((effective, value))
    _, last = agent.insist(world, "stop")
    ranks.printed(running)

    assert [changes(ranks.folder, rank) for rank in range(world)] == [expected] * world
    assert [written(ranks.folder, rank)[-1][0] for rank in range(world)] == [last - 1] * world


def test_ranks_that_nothing_aligns_agree_all_the_same(ranks: Ranks) -> None:
    world, agent = 3, ranks.agent
    running = ranks.start("ddp.py", world, SYNC="0", PAUSES="[0.002, 0.002, 0.01]")
    agent.wait_for_boundaries(world, "lr")

    _, effective = agent.insist(world, "knob", {"name": "lr", "value": 0.25})
    reached(ranks, 0, effective)
    _, last = agent.insist(world, "stop")
    ranks.printed(running)

    assert [changes(ranks.folder, rank) for rank in range(world)] == [[(effective, 0.25)]] * world
    assert [written(ranks.folder, rank)[-1][0] for rank in range(world)] == [last - 1] * world


def test_a_weaver_that_dies_before_it_decides_costs_a_quarter_second_once(ranks: Ranks) -> None:
    world, agent = 2, ranks.agent
    running = ranks.start("ddp.py", world)
    agent.wait_for_boundaries(world, "lr")

    command = agent.prepare(range(world), "knob", {"name": "lr", "value": 0.25})
    promises = agent.promises(command, world)
    limits = {one.head.rank: one.step + 1 + one.ahead for one in promises}
    agent.wait(Decided, world, command=command)
    agent.insist(world, "stop")
    ranks.printed(running)

    waits = [
        (b[0], b[2] - a[2])
        for rank in range(world)
        for a, b in pairwise(written(ranks.folder, rank))
        if b[2] - a[2] > 0.2 and b[0] == limits[rank]
    ]
    assert [changes(ranks.folder, rank) for rank in range(world)] == [[], []]
    assert {one.effective for one in agent.of(Decided, command=command)} == {None}
    assert waits  # at least one of them was at its limit, and went on by itself
    assert all(0.25 <= seconds < 5 for _, seconds in waits)


@pytest.mark.parametrize("told", [0, 1, 2])
def test_a_weaver_that_dies_while_it_tells_the_outcome_splits_nobody(
    ranks: Ranks, told: int
) -> None:
    world, agent = 3, ranks.agent
    running = ranks.start("ddp.py", world)
    agent.wait_for_boundaries(world, "lr")

    command = agent.prepare(range(world), "knob", {"name": "lr", "value": 0.25})
    effective = agent.decide(command, agent.promises(command, world))
    agent.tell(range(told), command, effective)
    agent.wait(Decided, 1, rank=2, command=command)
    reached(ranks, 0, (effective or 0) + 5)
    agent.insist(world, "stop")
    ranks.printed(running)

    expected = [] if effective is None else [(effective, 0.25)]
    assert [changes(ranks.folder, rank) for rank in range(world)] == [expected] * world


def test_a_late_proposal_loses_against_a_rank_that_waited_too_long(ranks: Ranks) -> None:
    world, agent = 2, ranks.agent
    running = ranks.start("ddp.py", world)
    agent.wait_for_boundaries(world, "lr")

    command = agent.prepare(range(world), "knob", {"name": "lr", "value": 0.25})
    agent.promises(command, world)
    agent.wait(Decided, world, command=command)
    agent.say(0, Write, command, 10_000)
    agent.wait(Decided, world + 1, command=command)
    applied = agent.set(world, "lr", 0.125)  # and the next one works
    agent.insist(world, "stop")
    ranks.printed(running)

    assert {one.effective for one in agent.of(Decided, command=command)} == {None}
    assert changes(ranks.folder, 0) == changes(ranks.folder, 1) == [(applied[0].step, 0.125)]


def test_a_rank_stopped_between_promise_and_outcome_agrees_when_it_goes_on(ranks: Ranks) -> None:
    world, agent = 2, ranks.agent
    running = ranks.start("ddp.py", world, SYNC="0", PAUSES="[0.004, 0.004]")
    agent.wait_for_boundaries(world, "lr")

    command = agent.prepare(range(world), "knob", {"name": "lr", "value": 0.25})
    promises = agent.promises(command, world)
    stopped = pid_of(agent, 1)
    os.kill(stopped, signal.SIGSTOP)
    effective = agent.decide(command, promises)
    agent.tell(range(world), command, effective)
    reached(ranks, 0, max(one.step + 1 + one.ahead for one in promises) + 20)
    os.kill(stopped, signal.SIGCONT)
    agent.insist(world, "stop")
    ranks.printed(running)

    expected = [] if effective is None else [(effective, 0.25)]
    assert changes(ranks.folder, 0) == changes(ranks.folder, 1) == expected


def test_a_rank_killed_between_promise_and_outcome_stops_nobody_else(ranks: Ranks) -> None:
    world, agent = 3, ranks.agent
    running = ranks.start("ddp.py", world, SYNC="0", STEPS="400", PAUSES="[0.004, 0.004, 0.004]")
    agent.wait_for_boundaries(world, "lr")

    command = agent.prepare(range(world), "knob", {"name": "lr", "value": 0.25})
    agent.promises(command, world)
    os.kill(pid_of(agent, 0), signal.SIGKILL)
    codes = [code for code, _ in running.result(timeout=60)]

    assert codes == [-signal.SIGKILL, 0, 0]
    assert changes(ranks.folder, 1) == changes(ranks.folder, 2) == []
    assert {one.effective for one in agent.of(Decided, command=command)} == {None}


def test_a_rank_in_a_long_evaluation_answers_and_nobody_is_split(ranks: Ranks) -> None:
    world, agent = 2, ranks.agent
    running = ranks.start("ddp.py", world, EVALUATION="1.0")
    until(lambda: (ranks.folder / "page-1").exists())
    view = PageView.open(ranks.folder / "page-1")
    assert view is not None
    until(lambda: (reading := view.read()) is not None and reading.step >= 31)

    _, effective = agent.command(world, "knob", {"name": "lr", "value": 0.25})
    reached(ranks, 0, (effective or 0) + 5)
    agent.insist(world, "stop")
    ranks.printed(running)

    expected = [] if effective is None else [(effective, 0.25)]
    assert changes(ranks.folder, 0) == changes(ranks.folder, 1) == expected


def test_the_same_prepare_again_gets_the_same_promise(ranks: Ranks) -> None:
    agent = ranks.agent
    running = ranks.start("ddp.py", SYNC="0")
    agent.wait_for_boundaries(1, "lr")

    payload = {"name": "lr", "value": 0.25}
    for _ in range(2):
        agent.prepare(range(1), "knob", payload, "twice")
    agent.wait(Decided, command="twice")
    promised = agent.of(Ready, command="twice")[0]
    reached(ranks, 0, promised.step + promised.ahead + 2)  # it is said before it is settled
    agent.prepare(range(1), "knob", payload, "twice")
    agent.wait(Decided, 2, command="twice")
    agent.insist(1, "stop")
    ranks.printed(running)

    promises = agent.of(Ready, command="twice")
    assert [promises[0]] * len(promises) == promises
    assert changes(ranks.folder, 0) == []


def test_what_cannot_be_done_is_refused_in_words(ranks: Ranks) -> None:
    agent = ranks.agent
    running = ranks.start("ddp.py", SYNC="0", STEPS="100000", PAUSES="[0.002]")
    agent.wait_for_boundaries(1, "lr")

    whys = [
        agent.refusal("knob", payload)
        for payload in (
            {"name": "rl", "value": 1.0},
            {"name": "lr", "value": "fast"},
            {"name": "lr", "value": -1},
            {"name": "lr", "value": float("nan")},
            {"name": "opt2.lr", "value": 1.0},
            {},
        )
    ] + [agent.refusal("checkpoint", {})]
    agent.insist(1, "stop")
    ranks.printed(running)

    assert whys == [
        "no knob 'rl'; did you mean 'lr'?",
        "lr takes a finite number, not 'fast'",
        "lr must be at least 0, not -1.0",
        "lr takes a finite number, not nan",
        "no knob 'opt2.lr'; known: lr, weight_decay, momentum",
        "no knob ''; known: lr, weight_decay, momentum",
        "the program has no way to save: add one with run.on('checkpoint', f), or pass"
        " its state to run.wrap and run.track",
    ]
    assert len(agent.of(Applied)) == 1  # the stop
    assert len(agent.of(RankRefusal)) == len(whys)


def test_a_pause_holds_all_ranks_at_one_step_until_they_are_resumed(ranks: Ranks) -> None:
    world, agent = 2, ranks.agent
    running = ranks.start("ddp.py", world, SYNC="0", PAUSES="[0.002, 0.005]")
    agent.wait_for_boundaries(world, "lr")

    name, paused = agent.insist(world, "pause")
    agent.wait(Applied, world, command=name)
    time.sleep(0.4)  # longer than a rank would wait for an outcome
    held = [written(ranks.folder, rank)[-1][0] for rank in range(world)]
    agent.insist(world, "resume")
    for rank in range(world):
        reached(ranks, rank, paused + 5)
    name, again = agent.insist(world, "pause")
    agent.wait(Applied, world, command=name)
    agent.insist(world, "stop")  # a paused rank stops where it is
    ranks.printed(running)

    assert held == [paused - 1] * world
    assert [written(ranks.folder, rank)[-1][0] for rank in range(world)] == [again - 1] * world
