"""What is said of a change is so: judged by what each rank's steps did to its own weight."""

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from torchloom.client import plane as client
from torchloom.client.plane import leave
from torchloom.errors import LoomError

from ..harness.home import until
from ..harness.plane_jobs import PATIENCE, SCRIPTS, Job, Plane, loom

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]


def moves(job: Job, rank: int) -> list[float]:
    """Return by how much each step moved a rank's weight, from the weights it wrote itself."""
    weights = [0.0, *(float(row.digest) for row in job.rows(rank))]
    return [before - after for before, after in pairwise(weights)]


@contextlib.contextmanager
def refusal(code: str) -> Iterator[list[str]]:
    """Expect that what is asked is refused with this code; its words are there afterwards."""
    words: list[str] = []
    with pytest.raises(LoomError) as refused:
        yield words
    assert refused.value.code == code, refused.value
    words.append(str(refused.value))


def test_arguments_in_the_config_do_not_hide_the_optimizers_lr(start: Callable[..., Job]) -> None:
    job = start("argued.py", 2).ready("weight_decay")

    at = job.set({"lr": 0.01})["effective_step"]
    with refusal("not_a_knob") as why:
        job.set({"epochs": 1})
    job.passes(10)
    (listed,) = [knob for knob in client.ask("knobs", job=job.id) if knob["name"] == "lr"]
    job.end()

    assert "that no step has read" in why[0]
    assert listed["value"] == 0.01
    for rank in range(2):
        done = moves(job, rank)
        assert done == pytest.approx([0.05] * at + [0.01] * (len(done) - at))
        assert {row.used["lr"] for row in job.rows(rank)[at:]} == {0.01}


def test_a_part_of_a_training_is_not_changed_alone(start: Callable[..., Job]) -> None:
    job = start("argued.py", 1, MEMBERS=2).ready("weight_decay")

    with refusal("refused") as why:
        job.set({"lr": 0.01})
    with refusal("refused"):
        client.ask("pause", None, job=job.id, wait=PATIENCE)
    job.passes(10, range(2))
    warned = client.ask("job", job=job.id)["warning"]
    job.end()

    assert "partly attached: the program trains with 2 ranks" in why[0]
    assert "loom launch -n 2" in why[0]
    assert warned == "partly attached: its program trains with 2 ranks"
    for rank in range(2):
        assert moves(job, rank) == pytest.approx([0.05] * len(job.rows(rank)))


def test_what_has_no_step_boundary_is_refused_and_goes_on(start: Callable[..., Job]) -> None:
    job = start("argued.py", 1, MEMBERS=2, ALONE=1)
    job.passes(2, range(2))

    with refusal("no_boundary") as paused:
        client.ask("pause", None, job=job.id, wait=1.0)
    with refusal("no_boundary"):
        client.ask("set", None, job=job.id, values={"lr": 0.01}, wait=0.5)
    job.passes(10, range(2))
    audit = job.audit()
    job.end()

    assert "have torchloom start them: `loom launch -n N train.py`" in paused[0]
    assert [(one["kind"], one["state"]) for one in audit] == [("pause", "aborted")]


def test_a_change_right_after_the_start_waits_for_the_first_step(
    start: Callable[..., Job],
) -> None:
    job = start("argued.py", 2)

    at = job.set({"lr": 0.01})["effective_step"]
    job.passes(10)
    job.end()

    done = moves(job, 1)
    assert done == pytest.approx([0.05] * at + [0.01] * (len(done) - at))


def test_the_list_of_knobs_has_the_lr_of_now(start: Callable[..., Job]) -> None:
    job = start("kinds.py", 1, KIND="cosine", PAUSE=0.03).ready()

    def now() -> float:
        (knob,) = [one for one in client.ask("knobs", job=job.id) if one["name"] == "lr"]
        value: float = knob["value"]
        return value

    first = now()
    until(lambda: now() < 0.7 * first, PATIENCE)
    value = now()
    used = [row.used["lr"] for row in job.rows(0)]
    job.end()

    assert value in used
    assert used.index(value) > len(used) // 3  # a schedule that goes down: of late


def test_replica_groups_of_one_training_are_not_parted(start: Callable[..., Job]) -> None:
    first = start("argued.py", 1, REPLICA="a").ready("weight_decay")
    second = start("argued.py", 1, REPLICA="b").ready("weight_decay")

    with refusal("other_replicas") as why:
        first.set({"lr": 0.01})
    for job in (first, second):
        job.passes(5)
    untouched = [moves(job, 0) for job in (first, second)]
    second.end()
    at = first.set({"lr": 0.02})["effective_step"]
    first.passes(5)
    first.end()

    assert second.id in why[0]
    for done in untouched:
        assert done == pytest.approx([0.05] * len(done))
    assert moves(first, 0)[at:] == pytest.approx([0.02] * len(moves(first, 0)[at:]))


PLAIN = """
import os, time, torch
weight = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))
optimizer = torch.optim.SGD([weight], lr=0.05)
file = open(os.environ["OUT"] + "/rank-0", "w", buffering=1)
file.write("{}\\n")
for step in range(1_000_000):
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    file.write(f'[{step}, 0, {{}}, "{weight.item()!r}"]\\n')
    time.sleep(0.005)
"""


def test_a_single_program_that_starts_cold_is_changed_too_while_its_plane_comes_up(
    plane: Plane, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "plain.py"
    script.write_text(PLAIN)
    monkeypatch.setenv("LOOM_WARM", "0")
    leave()

    started = json.loads(loom("run", "--json", "-e", f"OUT={tmp_path}", str(script)))
    job = Job.of(started["id"], 1, tmp_path)
    try:
        told = json.loads(loom("set", "--json", job.id, "lr=0.01"))
        job.passes(5)
    finally:
        job.end()

    done, at = moves(job, 0), told["effective_step"]
    assert done == pytest.approx([0.05] * at + [0.01] * (len(done) - at))


COMPONENT = """
from torchloom.specs import AppDef, Role

def two(script: str, out: str) -> AppDef:
    env = {{"OUT": out, "MEET": "2"}}
    told = dict(image="", entrypoint={python!r}, args=[script])
    roles = [Role(name, env=dict(env, MEET_AS=rank), **told) for name, rank in ROLES]
    return AppDef("two", roles)

ROLES = [("actor", "0"), ("critic", "1")]
"""


def test_roles_that_train_together_are_not_parted(
    start: Callable[..., Job], tmp_path: Path
) -> None:
    component = tmp_path / "component.py"
    component.write_text(COMPONENT.format(python=sys.executable))
    script = str(SCRIPTS / "argued.py")

    words = ("--script", script, "--out", str(tmp_path))
    started: dict[str, Any] = json.loads(loom("run", "--json", f"{component}:two", *words))
    job = Job.of(started["id"], 2, tmp_path)
    try:
        job.passes(2)
        with refusal("refused") as why:
            job.set({"lr": 0.01})
        job.passes(5)
    finally:
        job.end()

    assert "partly attached: the program trains with 2 ranks" in why[0]
    for rank in range(2):
        assert moves(job, rank) == pytest.approx([0.05] * len(job.rows(rank)))
