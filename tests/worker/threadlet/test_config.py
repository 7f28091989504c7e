"""What is said of a config with knobs in it, judged by what each step did to the weight."""

import json
from typing import Any

import pytest

from torchloom.messages.plane import Applied, Event, RankRefusal, Register
from torchloom.worker.threadlet.threadlet import Threadlet

from ...harness.home import until
from .conftest import Ranks

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]


def lasting(ranks: Ranks, running: Any) -> dict[str, Any]:
    """Stop the program; return what it noted of its steps."""
    ranks.agent.insist(1, "stop")
    noted: dict[str, Any] = json.loads(ranks.printed(running)[0].splitlines()[-1])
    return noted


def test_an_optimizers_knob_goes_before_a_config_entry_of_its_name(ranks: Ranks) -> None:
    agent = ranks.agent
    running = ranks.start("config.py")
    agent.wait_for_boundaries(1, "weight_decay")

    (applied,) = agent.set(1, "lr", 0.125)
    noted = lasting(ranks, running)

    steps = len(noted["moves"])
    expected = [0.5] * applied.step + [0.125] * (steps - applied.step)
    assert noted["moves"] == pytest.approx(expected)
    assert noted["shown"] == expected
    assert (applied.before, applied.after) == (0.5, 0.125)


@pytest.mark.parametrize("mode", ["follows", "late"])
def test_a_program_that_puts_its_config_into_its_optimizer_gets_no_change_twice(
    ranks: Ranks, mode: str
) -> None:
    agent = ranks.agent
    running = ranks.start("config.py", MODE=mode)
    agent.wait_for_boundaries(1, "weight_decay")

    (down,) = agent.set(1, "lr", 0.125)
    (up,) = agent.set(1, "lr", 0.25)
    noted = lasting(ranks, running)

    steps = range(len(noted["moves"]))
    wanted = [0.5 if s < down.step else 0.125 if s < up.step else 0.25 for s in steps]
    warm = [1.0 if mode == "late" else min(1.0, (step + 1) / 4) for step in steps]
    assert noted["shown"] == wanted
    assert noted["moves"] == pytest.approx([lr * w for lr, w in zip(wanted, warm, strict=True)])


def test_what_a_step_did_not_use_is_no_silent_success(ranks: Ranks) -> None:
    agent = ranks.agent
    running = ranks.start("config.py", MODE="pinned")
    agent.wait_for_boundaries(1, "weight_decay")

    (applied,) = agent.set(1, "lr", 0.125)
    (event,) = [one for one in agent.wait(Event, 2) if one.kind == "knob_not_used"]
    noted = lasting(ranks, running)

    assert set(noted["moves"]) == {0.5}
    assert (applied.before, applied.after) == (0.5, 0.5)
    assert event.facts == {"name": "lr", "set": 0.125, "used": 0.5, "step": applied.step}


def test_config_that_no_step_reads_is_no_knob(ranks: Ranks) -> None:
    agent = ranks.agent
    running = ranks.start("config.py")
    agent.wait_for_boundaries(1, "weight_decay")

    whys = [agent.refusal("knob", {"name": n, "value": 1}) for n in ("epochs", "device")]
    registered = agent.of(Register)[-1]
    lasting(ranks, running)

    assert all("that no step has read" in why and "run.knob(" in why for why in whys)
    unused = {knob.name: knob.value for knob in registered.knobs if not knob.is_used}
    assert unused == {"epochs": 400, "temperature": 0.7, "device": "device(type='cpu')"}


@pytest.mark.parametrize("mode", ["", "attached"])
def test_a_change_is_applied_by_the_read_in_a_step(ranks: Ranks, mode: str) -> None:
    agent = ranks.agent
    running = ranks.start("config.py", MODE=mode)
    agent.wait_for_boundaries(1, "weight_decay")

    command, at = agent.insist(1, "knob", {"name": "clip", "value": 2.0})
    agent.set(1, "lr", 0.25)  # which is later, and acked
    unread = agent.of(Applied, command=command)
    (ranks.folder / "rank-0.read").touch()
    (applied,) = agent.wait(Applied, command=command)
    until(lambda: "temperature" in _used(agent.of(Register)[-1]))
    (warm,) = agent.set(1, "temperature", 0.5)
    (ranks.folder / "rank-0.end").touch()
    noted = lasting(ranks, running) if not mode else json.loads(ranks.printed(running)[0])

    assert unread == []
    first, clip, temperature = noted["clips"][0]
    assert (applied.step, applied.before, applied.after) == (first, 1.0, 2.0)
    assert first > at
    assert (clip, temperature) == (2.0, 0.7)
    assert all(t == (0.5 if s >= warm.step else 0.7) for s, _, t in noted["clips"])


def test_a_change_that_is_set_again_before_a_read_has_come_to_nothing(ranks: Ranks) -> None:
    agent = ranks.agent
    running = ranks.start("config.py")
    agent.wait_for_boundaries(1, "weight_decay")

    command, _ = agent.insist(1, "knob", {"name": "clip", "value": 2.0})
    later, _ = agent.insist(1, "knob", {"name": "clip", "value": 3.0})
    (refused,) = agent.wait(RankRefusal, command=command)
    (ranks.folder / "rank-0.read").touch()
    agent.wait(Applied, command=later)
    noted = lasting(ranks, running)

    assert refused.why == "clip was set again before a step had read it"
    assert {clip for _, clip, _ in noted["clips"]} == {3.0}


def test_a_newcomer_knows_what_the_steps_of_its_peers_read() -> None:
    peer, newcomer = Threadlet({}), Threadlet({})
    for one in (peer, newcomer):
        one.knobs.configure("temperature", 0.7)
        one.knobs.configure("epochs", 400)
    knob = peer.knobs.get("temperature")
    assert knob is not None
    peer.acts.read(knob)

    newcomer.catch_up(5, peer.orders())

    assert _used(newcomer.register()) == _used(peer.register()) == {"temperature"}


def _used(registered: Register) -> set[str]:
    return {knob.name for knob in registered.knobs if knob.is_used}
