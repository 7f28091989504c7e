"""A rank of a trainer's job is killed: the others keep their processes, and every bit is the same.

Scripts kill their own ranks at exact places, by SIGKILL. All is judged by what they write: digests
of the weights after each step, their processes, the history of the trainer.
"""

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch.utils.data import DataLoader

from torchloom.worker.programs.live import advance, count_draws
from torchloom.worker.run.rng import generator_states, restore_generators

from ...harness import evidence
from ...harness.plane_jobs import Plane
from .trainer_jobs import Death, TrainerJob, cases, ending, undisturbed_jobs

SCRIPT = "replaced.py"
STEPS, KILLS = 24, 6
USUAL = {"MICRO": 2, "VARIED": 1, "OWN_SEED": 1, "SAVES": "steps"}
THREE = {**USUAL, "MICRO": 1}
_SPEED = ("_runtime", "_per_second")
Undisturbed = Callable[[int], TrainerJob]

with_plane = [
    pytest.mark.process,
    pytest.mark.needs("torch"),
    pytest.mark.needs("transformers"),
]


def job(out: Path, world: int = 2, **env: object) -> TrainerJob:
    env = {**(USUAL if world == 2 else THREE), "STEPS": STEPS, **env}
    return TrainerJob(SCRIPT, out, world=world, **env)


@pytest.fixture(scope="module")
def undisturbed(
    plane: Plane, warm: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Undisturbed]:
    """Give jobs in which no rank was killed, one for each number of ranks."""
    folder = tmp_path_factory.mktemp("live")
    with undisturbed_jobs(lambda world: job(folder / f"of-{world}", world)) as of:
        yield of


def recovered(
    base: Plane, out: Path, whole: TrainerJob, deaths: list[Death], **env: object
) -> TrainerJob:
    """Run a job with these deaths; all but the dead keep their processes, and all bits are those
    of the undisturbed one."""
    with ending(job(out, whole.world, WAIT=1, DIE=json.dumps(deaths), **env)) as one:
        one.let_die(base)
        assert one.over() == "COMPLETED"
    one.kept_all_but(deaths, whole, STEPS)
    for rank in range(whole.world):
        assert ended(one, rank) == ended(whole, rank)
    return one


def ended(one: TrainerJob, rank: int) -> Any:
    """Return the last step, the weights and the history of a rank, without its speed."""
    ((step, weights, history),) = one.lines("ends", rank)
    rows = [{k: v for k, v in row.items() if not k.endswith(_SPEED)} for row in history]
    rows = [{k: v for k, v in row.items() if "per_second" not in k} for row in rows]
    return step, weights, rows


def spent(one: TrainerJob, dead: int) -> dict[str, float]:
    """Return seconds from a kill to the survivor's next step, and those of the script's set-up."""
    lines = [(what, at) for what, _, at in one.lines("times", dead)]
    killed = next(at for what, at in lines if what == "killed")
    first, ready = (
        next(at for what, at in lines if what == kind and at > killed)
        for kind in ("first", "ready")
    )
    ends = (at for what, _, at in one.lines("times", 1 - dead) if what == "end")
    return {
        "kill_to_first_line": first - killed,
        "set_up": ready - first,
        "kill_to_next_step": next(at for at in ends if at > killed) - killed,
    }


SHORT: dict[str, list[Death]] = {
    "second_micro_batch": [(1, "forward", 5, 1)],
    "rank_0_before_log_and_evaluation": [(0, "end", 15, 0)],
}
LONG: dict[str, list[Death]] = {
    "first_step": [(1, "forward", 0, 0)],
    "rank_0_at_first_step": [(0, "backward", 0, 0)],
    "epoch_begin": [(0, "forward", 12, 0)],
    "end_of_epoch": [(1, "end", 12, 0)],
    "other_rank_counts_tokens": [(0, "collate", 5, 0)],
    "backward": [(1, "backward", 7, 0)],
    "rank_0_after_the_reduction": [(0, "reduced", 9, 0)],
    "before_log_and_save": [(1, "end", 10, 0)],
    "after_evaluation": [(1, "evaluated", 15, 0)],
    "after_the_last_step": [(0, "end", 24, 0)],
    "newcomer_dies_too": [(1, "forward", 9, 0), (1, "begin of newcomer", 2, 0)],
    "one_after_the_other": [(1, "forward", 9, 0), (0, "forward", 13, 0)],
}


class TestJobs:
    pytestmark: ClassVar = with_plane

    @pytest.mark.shows("Hugging Face `Trainer`", "live")
    @pytest.mark.parametrize("deaths", cases(SHORT, LONG))
    def test_a_killed_rank_is_replaced_live_with_the_same_bits(
        self, undisturbed: Undisturbed, plane: Plane, tmp_path: Path, deaths: list[Death]
    ) -> None:
        whole = undisturbed(2)

        one = recovered(plane, tmp_path / "job", whole, deaths)

        assert one.kinds(plane)["recovered"]["inexact"] == []
        files = "files/checkpoint-20/model.safetensors"
        assert (one.out / files).read_bytes() == (whole.out / files).read_bytes()

    @pytest.mark.soak
    def test_a_rank_whose_peer_has_finished_the_step_takes_that(
        self, undisturbed: Undisturbed, plane: Plane, tmp_path: Path
    ) -> None:
        torn: Death = (1, "reduced", 14, 0)

        recovered(
            plane, tmp_path / "job", undisturbed(3), [(2, "reduced", 14, 0)], BREAK=json.dumps(torn)
        )

    @pytest.mark.soak
    def test_two_of_three_ranks_are_killed_in_one_step(
        self, undisturbed: Undisturbed, plane: Plane, tmp_path: Path
    ) -> None:
        deaths: list[Death] = [(0, "forward", 6, 0), (2, "forward", 6, 0)]

        recovered(plane, tmp_path / "job", undisturbed(3), deaths)

    @pytest.mark.soak
    def test_a_kill_costs_what_the_script_needs_to_set_up(
        self, undisturbed: Undisturbed, plane: Plane, tmp_path: Path
    ) -> None:
        """Write how long it takes; a busy machine takes longer, so nothing is asserted of that."""
        whole, samples = undisturbed(2), []

        for at in range(KILLS):
            dead = at % 2
            one = recovered(
                plane, tmp_path / f"job-{at}", whole, [(dead, "forward", 9 + at % 3, 0)]
            )
            samples.append(spent(one, dead))

        evidence.write("live-trainers", samples, load=os.getloadavg(), unit="s")

    def test_a_death_in_an_evaluation_is_no_live_recovery(
        self, plane: Plane, warm: None, tmp_path: Path
    ) -> None:
        with ending(job(tmp_path / "job", WAIT=1, DIE='[[1, "evaluation", 15, 0]]')) as one:
            one.let_die(plane)
            assert one.over() == "FAILED"  # it may not restart

        facts = one.kinds(plane)["live_ended"]
        assert (facts["cause"], facts["why"]) == (
            "unfit",
            {"0": "a rank was lost in an evaluation"},
        )

    @pytest.mark.parametrize(
        ("more", "why"),
        [
            ({"COMPILED": 1}, "its model is compiled"),
            pytest.param(
                {"NOISY": 1},
                "its dataset draws random numbers, which a newcomer cannot draw again",
                marks=pytest.mark.soak,
            ),
        ],
    )
    def test_what_cannot_be_repeated_is_restarted_and_says_why(
        self, plane: Plane, warm: None, tmp_path: Path, more: dict[str, Any], why: str
    ) -> None:
        with ending(job(tmp_path / "job", DIE='[[1, "forward", 9, 0]]', **more)) as one:
            assert one.over() == "FAILED"  # it may not restart

        assert one.events(plane, "not_live", 1) == [{"why": why}]
        assert len(one.lines("starts", 0)) == len(one.lines("starts", 1)) == 1


class TestReasons:
    """Ways to train that mean a restart; the real ones need devices that are not here."""

    pytestmark: ClassVar = [pytest.mark.needs("transformers")]

    @pytest.mark.parametrize("kind", ["FSDP", "DEEPSPEED", "MEGATRON_LM", "XLA"])
    def test_what_is_no_ddp_is_named(self, kind: str, tmp_path: Path) -> None:
        from accelerate.utils import DistributedType
        from transformers import Trainer, TrainingArguments

        from torchloom.worker.programs.huggingface_live import why_not

        arguments = TrainingArguments(str(tmp_path), use_cpu=True, report_to="none")
        trainer = Trainer(torch.nn.Linear(2, 2), arguments)
        own = trainer.accelerator.state._shared_state
        trained_by = own["distributed_type"]
        own["distributed_type"] = DistributedType(kind)
        try:
            assert why_not(trainer) == f"it trains by {kind}"
        finally:
            own["distributed_type"] = trained_by


class TestNames:
    """The private names of the installed version, and what is said of another one."""

    pytestmark: ClassVar = [pytest.mark.needs("transformers")]

    def test_the_installed_version_is_known(self) -> None:
        from transformers import Trainer

        from torchloom.worker.programs.huggingface_live import why_unknown

        class Own(Trainer):
            def training_step(self, *args: Any, **kwargs: Any) -> Any:
                return super().training_step(*args, **kwargs)

        assert why_unknown(Trainer, Trainer) == ""
        assert why_unknown(Own, Trainer) == ""

    def test_each_name_that_is_missing_or_another_is_named(self) -> None:
        from transformers import Trainer

        from torchloom.worker.programs.huggingface_live import PRIVATE, why_unknown

        for name, (parameters, uses) in PRIVATE.items():

            class Other(Trainer):
                pass

            setattr(Other, name, None)
            assert why_unknown(Other, Other) == f"Trainer.{name} is missing in this version"
            setattr(Other, name, _without_parameters)
            expected = next((f"takes no {one}" for one in parameters), "")
            expected = expected or next((f"does not use {one}" for one in uses), "")
            assert expected in why_unknown(Other, Other)

    def test_a_loop_of_the_programs_own_is_not_known(self) -> None:
        from transformers import Trainer

        from torchloom.worker.programs.huggingface_live import why_unknown

        class Own(Trainer):
            def _inner_training_loop(self, *args: Any, **kwargs: Any) -> Any:
                return super()._inner_training_loop(*args, **kwargs)

        assert why_unknown(Own, Trainer) == "Own has its own _inner_training_loop"


def _without_parameters() -> None:
    """Stand for a method of another version."""


@contextlib.contextmanager
def kept() -> Iterator[None]:
    states = generator_states()
    try:
        yield
    finally:
        restore_generators(states)


class TestDraws:
    pytestmark: ClassVar = [pytest.mark.needs("torch")]

    @pytest.mark.parametrize("count", [0, 1, 5])
    def test_iterators_over_data_are_counted_and_repeated(self, count: int) -> None:
        with kept():
            before = generator_states()
            for _ in range(count):
                iter(DataLoader([1, 2, 3]))
            after = generator_states()
            restore_generators(before)
            advance(count_draws(before, after))

            assert count_draws(before, after) == count
            assert torch.equal(torch.get_rng_state(), after["torch"])

    def test_other_draws_are_not_known(self) -> None:
        with kept():
            before = generator_states()
            torch.randn(17)
            assert count_draws(before, generator_states()) is None
            with pytest.raises(RuntimeError, match="random numbers are drawn"):
                advance(None)
