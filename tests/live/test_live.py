"""A rank dies and the others do not: wherever it is hit, whoever it is, no bit is another."""

import json
import os
import signal
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from torchloom.client import plane as door

from ..harness import evidence
from ..harness import step_records as ledgers
from ..harness.home import allowed, processes_of, until
from ..harness.live_training import LONG, STEPS, WORLD, Proof
from ..harness.plane_jobs import PATIENCE, Plane, loom
from . import matrix
from .conftest import Quiet
from .matrix import Case

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]
MIDDLE = STEPS // 2
SHORT = list(matrix.runs(matrix.pairs()))


@pytest.fixture
def proofs(tmp_path: Path) -> Iterator[list[Proof]]:
    """Give a place for trainings; what still runs is ended after the test."""
    found: list[Proof] = []
    yield found
    for proof in found:
        if processes_of(proof.id):
            loom("stop", "--now", proof.id)


@pytest.fixture
def hurt(plane: Plane, warm: None, tmp_path: Path, proofs: list[Proof]) -> Any:
    """Start trainings that are hurt."""

    def begin(model: str, *hits: str, **more: Any) -> Proof:
        proofs.append(Proof(model, tmp_path / f"job-{len(proofs)}", hits, **more))
        return proofs[-1]

    return begin


def names(cases: list[Case]) -> str:
    return f"{cases[0].model}-{SHORT.index(cases)}"


def test_the_short_form_has_all_pairs() -> None:
    found = matrix.pairs()

    assert {(one.model, one.place) for one in found} == {
        (model, place) for model in matrix.MODELS for place in matrix.PLACES
    }
    assert {(one.model, one.victim) for one in found} == {
        (model, victim) for model in matrix.MODELS for victim in matrix.VICTIMS
    }
    assert len({(one.place, one.victim) for one in found}) == len(found) == 40


@pytest.mark.parametrize("cases", SHORT, ids=names)
def test_ranks_hit_anywhere_are_replaced_and_the_others_never_stop(
    cases: list[Case], undisturbed: Quiet, hurt: Any
) -> None:
    expected = undisturbed(cases[0].model)

    proof = hurt(cases[0].model, *matrix.hits_of(cases))

    proof.holds(expected, least=len(cases))


@pytest.mark.soak
def test_all_victims_at_all_places_of_all_trainings(undisturbed: Quiet, hurt: Any) -> None:
    samples = []

    for cases in matrix.runs(matrix.everything()):
        proof = hurt(cases[0].model, *matrix.hits_of(cases))
        proof.holds(undisturbed(cases[0].model), least=len(cases))
        samples.append({"cases": [vars(case) for case in cases], "hits": proof.hits})

    facts = {"ranks": WORLD, "steps": STEPS, "other_bits": 0, "survivors_lost": 0}
    evidence.write("live-matrix", samples, cases=len(matrix.everything()), **facts)


@pytest.mark.parametrize("part", ["weaver", "nats", "agent"])
def test_a_part_of_the_plane_dies_in_the_middle_of_a_recovery(
    part: str, plane: Plane, undisturbed: Quiet, hurt: Any
) -> None:
    expected = undisturbed("cnn")

    proof = hurt("cnn", f"1:{MIDDLE}:allreduce:SIGKILL")
    until(proof.was_hit, LONG)
    time.sleep(0.02)  # somewhere in it
    plane.back(part, plane.kill(part))

    proof.holds(expected)


def test_a_part_of_the_plane_that_is_away_is_waited_for(
    plane: Plane, undisturbed: Quiet, hurt: Any
) -> None:
    expected = undisturbed("mlp")

    proof = hurt("mlp", f"2:{MIDDLE}:backward:SIGKILL", pace=0.1)
    until(lambda: proof.step() >= MIDDLE - 3, LONG)
    pid = plane.kill("weaver", signal.SIGSTOP)
    until(proof.was_hit, LONG)
    time.sleep(3.0)  # nobody decides anything
    os.kill(pid, signal.SIGCONT)

    proof.holds(expected)


def test_a_rank_that_stands_is_given_up_at_its_limit_and_replaced(
    undisturbed: Quiet, hurt: Any
) -> None:
    expected = undisturbed("gpt")

    proof = hurt("gpt", f"1:{MIDDLE}:backward:SIGSTOP", LOOM_HANG_LIMIT=4)

    proof.holds(expected)
    codes = {(told["local_rank"], told["code"]) for told in proof.events("exit") if told["code"]}
    assert codes == {(1, -9)}


def test_an_exception_of_one_rank_is_its_own(undisturbed: Quiet, hurt: Any) -> None:
    expected = undisturbed("mlp")

    proof = hurt("mlp", f"0:{MIDDLE}:forward:raise")

    proof.holds(expected)


def test_an_exception_that_comes_every_time_ends_the_job_with_it(hurt: Any) -> None:
    proof = hurt("mlp", f"1:{MIDDLE}:forward:raises", retries=0)

    proof.over("FAILED")

    assert "this step cannot be done" in json.dumps(proof.record()["first_error"])
    assert "this step cannot be done" in loom("show", proof.id)
    applied = [line.step for lives in proof.ranks() for line in ledgers.lines_of(lives)]
    assert max(applied) == MIDDLE - 1


def test_a_change_that_was_agreed_on_before_a_death_acts_behind_it(hurt: Any) -> None:
    proof = hurt("mlp", f"1:{MIDDLE}:allreduce:SIGKILL", pace=0.1)
    until(lambda: proof.step() >= 4, LONG)

    said = door.ask("set", None, job=proof.id, values={"lr": 0.01}, at=MIDDLE + 5, wait=PATIENCE)
    proof.over()

    assert (said["state"], said["effective_step"]) == ("applied", MIDDLE + 5)
    assert proof.was_hit()
    ranks = proof.ranks()
    ledgers.one_attempt(ranks)
    ledgers.survivors_survived(ranks, proof.deaths())
    for lives in ranks:
        ledgers.chain(lives)
        for line in ledgers.lines_of(lives):
            assert line.rate == (0.05 if line.step < MIDDLE + 5 else 0.01)


def test_without_a_plane_it_is_a_restart(
    undisturbed: Quiet, hurt: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = undisturbed("mlp")
    monkeypatch.setenv("LOOM_HOME", str(tmp_path / "home"))  # which has none
    monkeypatch.setenv("LOOM_PLANE", "0")

    proof = hurt("mlp", f"1:{MIDDLE}:forward:SIGKILL", watched=False)
    proof.over()

    ranks = proof.ranks()
    ledgers.same_steps(ranks, expected)
    assert [len(lives) for lives in ranks] == [2, 2, 2]
    assert proof.record()["restarts"] == 1
    ended = datetime.fromisoformat(proof.events("succeeded")[0]["time"]).timestamp()
    last = max(ledgers.lines_of(lives)[-1].time for lives in ranks)
    assert ended - last < allowed(15.0)  # nobody is there to wait for
