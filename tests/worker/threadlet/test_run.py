"""A program that writes `loom.init()`: steps, numbers, knobs, handlers."""

import json

import pytest

from torchloom.messages.plane import Applied, Event, Goodbye, Metrics, RankRefusal, Register

from .conftest import Ranks

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]


def logged(ranks: Ranks, name: str) -> list[tuple[int, object]]:
    """Return the points of a series as the agent got them."""
    return [
        (row[0], row[2 + message.names.index(name)])
        for message in ranks.agent.of(Metrics)
        if name in message.names
        for row in message.rows
    ]


def test_steps_go_over_the_epochs_and_every_number_arrives(ranks: Ranks) -> None:
    told = json.loads(ranks.run("api.py", attach=True, BATCHES="30")[0])

    expected = [(30 * epoch + i, epoch, float(i)) for epoch in range(2) for i in range(30)]
    ranks.agent.wait(Goodbye)
    assert [tuple(row) for row in told["numbers"]] == expected
    assert told["applied"] == 60
    assert logged(ranks, "loss") == [(number, batch) for number, _, batch in expected]
    assert logged(ranks, "total") == [(number, number + 1.0) for number, _, _ in expected]
    assert logged(ranks, "half") == [(number, number / 2) for number, _, _ in expected]
    assert ranks.agent.wait(Goodbye)[0].step == 60


@pytest.mark.parametrize(("source", "totals"), [("loader", [60]), ("stream", [None])])
def test_rank_0_reports_how_many_steps_a_loop_with_a_length_has(
    ranks: Ranks, source: str, totals: list[int | None]
) -> None:
    ranks.run("api.py", attach=True, BATCHES="30", SOURCE=source)

    ranks.agent.wait(Goodbye)
    told = [event for event in ranks.agent.of(Event) if event.kind == "job"]
    found = [event.facts["total_steps"] for event in told if "total_steps" in event.facts]
    assert found == totals


def test_the_step_behind_which_a_program_leaves_its_loop_is_counted(ranks: Ranks) -> None:
    told = json.loads(ranks.run("api.py", BATCHES="30", BREAK_AFTER="7")[0])

    assert told["applied"] == 7
    assert ranks.agent.wait(Goodbye)[0].step == 7


def test_a_run_registers_its_knobs_and_where_its_steps_begin(ranks: Ranks) -> None:
    ranks.run("api.py", BATCHES="5")

    ranks.agent.wait(Goodbye)
    last = ranks.agent.of(Register)[-1]
    used = [knob for knob in last.knobs if knob.is_used]
    knobs = {knob.name: (knob.value, knob.type, knob.low, knob.high) for knob in used}
    assert last.boundary == "api"
    assert [knob.name for knob in last.knobs if not knob.is_used] == ["name"]
    assert knobs == {
        "temperature": (0.7, "float", None, None),
        "clip": (1.0, "float", 0.0, 10.0),
        "sync_every": (None, "int", None, None),
        "broken": (None, "float", None, None),
        "lr": (0.5, "float", 0.0, None),
        "weight_decay": (0, "float", 0.0, None),
        "momentum": (0, "float", 0.0, 1.0),
    }
    assert (last.role, last.node, last.replica) == ("trainer", "here", "hi")
    assert last.devices == ("here/cpu/0",)


def test_knobs_and_handlers_change_at_the_step_that_was_agreed(ranks: Ranks) -> None:
    agent = ranks.agent
    running = ranks.start("api.py", BATCHES="100000")
    agent.wait_for_boundaries(1, "lr")

    (warm,) = agent.set(1, "temperature", 0.5)
    (often,) = agent.set(1, "sync_every", 8)
    (slow,) = agent.set(1, "lr", 0.125)
    command, save = agent.insist(1, "checkpoint")
    agent.wait(Applied, command=command)
    _, last = agent.insist(1, "stop")
    told = json.loads(ranks.printed(running)[0])

    assert (warm.before, warm.after, often.before, often.after) == (0.7, 0.5, None, 8)
    assert told["temperatures"] == [0.7] * warm.step + [0.5] * (last - warm.step)
    assert told["heard"] == [[warm.step, 0.5], [often.step, 8]]
    assert told["lrs"] == [0.5] * 2 * slow.step + [0.125] * 2 * (last - slow.step)
    assert told["saved"] == [save]
    assert len(told["numbers"]) == told["applied"] == last
    assert told["config"] == {"temperature": 0.5, "name": "x", "clip": 1.0, "sync_every": 8} | {
        "broken": None
    }


def test_several_knobs_of_one_command_act_in_one_step(ranks: Ranks) -> None:
    agent = ranks.agent
    running = ranks.start("api.py", BATCHES="100000")
    agent.wait_for_boundaries(1, "lr")

    values = {"temperature": 0.5, "clip": 2.0, "lr": 0.25}
    command, at = agent.insist(1, "knob", {"values": values})
    (applied,) = agent.wait(Applied, command=command)
    agent.insist(1, "stop")
    ranks.printed(running)

    assert applied.step == at
    assert applied.before == {"temperature": 0.7, "clip": 1.0, "lr": 0.5}
    assert applied.after == values


def test_values_out_of_range_or_of_another_type_are_refused(ranks: Ranks) -> None:
    agent = ranks.agent
    running = ranks.start("api.py", BATCHES="100000")
    agent.wait_for_boundaries(1, "lr")

    whys = [
        agent.refusal("knob", {"name": name, "value": value})
        for name, value in (("clip", 11), ("clip", "x"), ("sync_every", 1.5), ("sync_every", True))
    ]
    agent.insist(1, "stop")
    ranks.printed(running)

    assert whys == [
        "clip must be at most 10, not 11.0",
        "clip takes a finite number, not 'x'",
        "sync_every takes a whole number, not 1.5",
        "sync_every takes a whole number, not True",
    ]


def test_a_handler_that_fails_is_told_and_training_goes_on(ranks: Ranks) -> None:
    agent = ranks.agent
    running = ranks.start("api.py", BATCHES="100000")
    agent.wait_for_boundaries(1, "lr")

    command, at = agent.insist(1, "knob", {"name": "broken", "value": 1.0})
    (refused,) = agent.wait(RankRefusal, command=command)
    _, last = agent.insist(1, "stop")
    printed = ranks.printed(running)[0]

    assert refused.why == f"failed in step {at}: ZeroDivisionError: division by zero"
    assert "ZeroDivisionError" in printed
    assert json.loads(printed.splitlines()[-1])["applied"] == last


def test_a_loss_that_is_no_number_is_an_event_once(ranks: Ranks) -> None:
    ranks.run("nan.py")

    ranks.agent.wait(Goodbye)
    events = [(one.kind, one.step, one.facts) for one in ranks.agent.of(Event)]
    assert events == [
        ("init", 0, {"project": ""}),
        ("job", 0, {"total_steps": 8}),
        ("nan", 3, {"name": "loss", "value": "nan"}),
        ("nan", 6, {"name": "loss", "value": "inf"}),
    ]
