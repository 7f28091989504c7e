"""A learning rate changed from outside ends in the weights of a program with the change in it."""

import json

import pytest

from torchloom.messages.plane import Applied, Planned

from .conftest import Ranks
from .fake_agent import listening

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


@pytest.mark.shows("Plain loop", "lr")
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


@pytest.mark.parametrize("kind", ["cosine", "groups", "tensor"])
@pytest.mark.parametrize("hold", [False, True])
def test_an_undone_change_leaves_the_schedule_as_it_would_be_without(
    ranks: Ranks, kind: str, hold: bool
) -> None:
    agent = ranks.agent
    running = ranks.start("schedules.py", KIND=kind, PAUSE="0.005", WATCH="1", STEPS="300")
    agent.wait_for_boundaries(1, "lr")

    wish = {"name": "lr", "value": 0.02, "hold": hold}
    first, second = (agent.insist(1, "knob", wish)[0] for _ in range(2))
    for command in (second, first):
        agent.insist(1, "knob", {"name": "lr", "value": 0.05, "undo": command})
    printed = json.loads(ranks.printed(running)[0])

    plain = json.loads(ranks.run("schedules.py", attach=False, KIND=kind, STEPS="300")[0])
    (a, b, c, d) = (one.step for one in agent.wait(Applied, 4))
    same = [n for n in range(300) if printed["used"][n] == plain["used"][n]]
    assert a <= b <= c <= d
    assert same == [*range(a), *range(d, 300)]
    assert agent.of(Applied)[-1].after == plain["used"][d]


def test_what_is_undone_before_it_was_done_again_changes_nothing(ranks: Ranks) -> None:
    ranks.agent.close()
    changes = (
        Planned("bad/1", 100, {"name": "lr", "value": 0.25}, True),
        Planned("undo/1", 2, {"name": "lr", "value": 0.05, "undo": "bad"}),
    )
    with listening(ranks.agent.path, changes) as agent:
        used = ranks.run("schedules.py", KIND="cosine", WATCH="1", LOOM_ATTEMPT="1")
        plain = ranks.run("schedules.py", attach=False, KIND="cosine")

    assert agent.of(Applied)[0].command == "undo/1"
    assert json.loads(used[0])["used"][:100] == json.loads(plain[0])["used"][:100]
