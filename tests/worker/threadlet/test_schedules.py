"""A learning rate changed from outside ends in the weights of a program with the change in it."""

import json

import pytest

from torchloom.bus.messages import Applied

from .conftest import Ranks

KINDS = [
    *("constant", "hand", "lambda", "cosine", "exponential", "onecycle"),
    *("two", "accumulation", "amp", "adam", "foreach", "fused"),
    *("tensor", "subclass", "groups", "closure", "raises"),
]

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]


def steer(ranks: Ranks, kind: str, knob: str = "lr", hold: bool = False) -> tuple[dict, Applied]:
    """Run a program of this kind, change its lr on the way; return what it printed and said."""
    gate, agent = ranks.folder / "gate", ranks.agent
    running = ranks.start("schedules.py", KIND=kind, PAUSE="0.001", WATCH="1", GATE=str(gate))
    agent.wait_for_boundaries(1, knob)
    command = agent.prepare(range(1), "knob", {"name": knob, "value": 0.02, "hold": hold})
    agent.decide(command, agent.promises(command, 1))
    gate.touch()
    printed = ranks.printed(running)[0]
    (applied,) = agent.wait(Applied)
    return json.loads(printed), applied


def written_in(ranks: Ranks, kind: str, applied: Applied, **more: str) -> dict:
    """Run the program with the same change written into it, in plain torch."""
    change = json.dumps([applied.step, applied.after])
    text = ranks.run("schedules.py", attach=False, KIND=kind, CHANGE=change, **more)
    return json.loads(text[0])


@pytest.mark.parametrize("kind", KINDS)
def test_the_weights_are_those_of_a_program_with_the_change_written_in(
    ranks: Ranks, kind: str
) -> None:
    steered, applied = steer(ranks, kind)

    expected = written_in(ranks, kind, applied)

    assert steered["weights"] == expected["weights"]
    assert steered["left"] == expected["left"]


def test_a_held_value_stays_whatever_the_schedule_says(ranks: Ranks) -> None:
    steered, applied = steer(ranks, "cosine", hold=True)

    expected = written_in(ranks, "cosine", applied, HOLD="1")

    assert steered["weights"] == expected["weights"]
    assert set(steered["used"][applied.step :]) == {0.02}
    assert len(set(steered["used"][: applied.step])) == applied.step


def test_what_is_told_is_what_the_step_used(ranks: Ranks) -> None:
    steered, applied = steer(ranks, "exponential")

    before = 0.05
    for _ in range(applied.step):
        before *= 0.99

    assert (applied.before, applied.after) == (pytest.approx(before), 0.02)
    assert steered["used"][applied.step - 1] == pytest.approx(before / 0.99)
    assert steered["used"][applied.step] == 0.02
    assert steered["used"][applied.step + 1] == pytest.approx(0.02 * 0.99)


def test_a_second_optimizer_has_knobs_of_its_own(ranks: Ranks) -> None:
    steered, applied = steer(ranks, "two", knob="opt2.lr")

    plain = json.loads(ranks.run("schedules.py", attach=False, KIND="two")[0])

    assert (applied.before, applied.after) == (0.01, 0.02)
    assert steered["used"] == [0.05] * len(steered["used"])
    assert steered["weights"] != plain["weights"]


def test_a_program_that_nobody_steers_is_the_same_to_the_last_bit(ranks: Ranks) -> None:
    watched = ranks.run("schedules.py", KIND="onecycle")
    plain = ranks.run("schedules.py", attach=False, KIND="onecycle")

    assert watched == plain
