"""`run.wrap` takes the strategy of the job or of the program, deals samples by it, and refuses."""

import json
from pathlib import Path
from typing import Any

import pytest

from ...harness.forked_ranks import Zygote, free_port, seats
from .conftest import SCRIPTS

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]
PLAN = {"layers.*.up": "colwise", "layers.*.down": "rowwise"}
TENSOR = {"strategy": "tensor_parallel"}


class Programs:
    """Runs `program.py` on some ranks."""

    def __init__(self, zygote: Zygote, folder: Path) -> None:
        self._zygote = zygote
        self._folder = folder

    def ended(self, world: int, job: dict[str, Any], **told: Any) -> list[tuple[int, str]]:
        env = {"OUT": str(self._folder), "TOLD": json.dumps(told), "LOOM_JOB_SPEC": json.dumps(job)}
        script = (SCRIPTS / "program.py").read_text()
        return self._zygote.run(script, seats(world, free_port(), **env))

    def run(self, world: int, job: dict[str, Any], **told: Any) -> list[dict[str, Any]]:
        ended = self.ended(world, job, **told)
        assert [code for code, _ in ended] == [0] * world, ended
        return [json.loads((self._folder / f"rank-{rank}").read_text()) for rank in range(world)]


@pytest.fixture
def programs(zygote: Zygote, tmp_path: Path) -> Programs:
    return Programs(zygote, tmp_path)


def job(**distributed: Any) -> dict[str, Any]:
    return {"name": "a", "script": "a.py", "distributed": distributed}


def test_a_program_is_trained_by_the_strategy_of_its_job(programs: Programs) -> None:
    ranks = programs.run(2, job(strategy="fsdp"))

    assert [rank["kind"] for rank in ranks] == ["FSDPNet"] * 2
    assert [rank["kinds"] for rank in ranks] == [["DTensor"]] * 2
    assert not set(ranks[0]["dealt"]) & set(ranks[1]["dealt"])
    assert sorted(ranks[0]["dealt"] + ranks[1]["dealt"]) == list(range(16))


def test_a_program_may_choose_the_strategy_and_the_plan_itself(programs: Programs) -> None:
    wrap = {"strategy": "hybrid", "mesh": {"dp_shard": 2, "tp": 2}, "plan": PLAN}

    ranks = programs.run(4, job(strategy="fsdp"), wrap=wrap)

    first, second, third, last = (rank["dealt"] for rank in ranks)
    assert first == second  # of one tensor-parallel group: the same samples
    assert third == last
    assert sorted(first + third) == list(range(16))


def test_one_process_gets_its_model_back(programs: Programs) -> None:
    (rank,) = programs.run(1, job(strategy="fsdp"))

    assert (rank["kind"], rank["kinds"]) == ("Net", ["Parameter"])
    assert sorted(rank["dealt"]) == list(range(16))


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (
            {"wrap": TENSOR},
            "BadTensorPlan: Net has no plan for tensor parallelism: give run.wrap plan=",
        ),
        (
            {"wrap": {**TENSOR, "plan": {**PLAN, "layers.*.middle": "colwise"}}},
            "BadTensorPlan: the plan names layers.*.middle, and the model has no such module",
        ),
        (
            {"wrap": {**TENSOR, "plan": {"layers.*.up": "columns"}}},
            "BadTensorPlan: layers.*.up: no style 'columns'; take one of colwise, rowwise,"
            " sequence",
        ),
        (
            {"wrap": {**TENSOR, "plan": PLAN}, "tied": True},
            "BadTensorPlan: layers.0.up and layers.1.up share a weight, which a plan cannot divide",
        ),
        (
            {"wrap": {"strategy": "fsdp", "plan": PLAN}},
            "BadTensorPlan: a plan is for tensor parallelism, and the mesh has no tp",
        ),
        ({"wrap": {"plan": PLAN}}, "PlanWithoutStrategy: a plan is for the strategies"),
        (
            {"wrap": {"strategy": "fsdp", "mesh": {"dp_shard": 4}}},
            "SpecError: distributed.mesh: dp_shard 4 is 4 workers, and the job has 2",
        ),
    ],
)
def test_what_cannot_be_divided_is_refused_before_the_first_step(
    programs: Programs, told: dict[str, Any], words: str
) -> None:
    ended = programs.ended(2, job(), **told)

    assert [code for code, _ in ended] == [1, 1]
    assert all(words in text for _, text in ended), ended


def test_a_layer_that_ranks_cannot_share_evenly_is_refused(programs: Programs) -> None:
    ended = programs.ended(8, job(), wrap={**TENSOR, "plan": PLAN})

    assert [code for code, _ in ended] == [1] * 8
    words = "layers.0.up has a weight of (12, 8): 12 cannot be divided among tp 8"
    assert all(words in text for _, text in ended), ended
