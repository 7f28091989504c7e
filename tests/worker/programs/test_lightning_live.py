"""A rank of a Lightning job is killed: the others keep their processes, and every bit is the same.

Scripts kill their own ranks at exact places, by SIGKILL. All is judged by what they write: digests
of weights and buffers after each step, their processes, the metrics of each epoch.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

from ...harness.plane_jobs import Plane
from .trainer_jobs import Death, TrainerJob, cases, ending, undisturbed_jobs

SCRIPT = "fitted.py"
STEPS = 14  # an epoch has six with two micro-batches, on two ranks
USUAL = {"MICRO": 2, "STEPS": STEPS, "OWN_SEED": 1}
Undisturbed = Callable[[int], TrainerJob]


@pytest.fixture(scope="module")
def undisturbed(
    plane: Plane, warm: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Undisturbed]:
    """Give jobs in which no rank was killed, one for each number of ranks."""
    folder = tmp_path_factory.mktemp("live")
    with undisturbed_jobs(
        lambda world: TrainerJob(SCRIPT, folder / f"of-{world}", world=world, **USUAL)
    ) as of:
        yield of


def recovered(
    base: Plane, out: Path, whole: TrainerJob, deaths: list[Death], **env: object
) -> TrainerJob:
    """Run a job with these deaths; all but the dead keep their processes, and all bits are those
    of the undisturbed one."""
    env = {**USUAL, "WAIT": 1, "DIE": json.dumps(deaths), **env}
    with ending(TrainerJob(SCRIPT, out, world=whole.world, **env)) as one:
        one.let_die(base)
        assert one.over() == "COMPLETED"
    one.kept_all_but(deaths, whole, STEPS)
    for rank in range(whole.world):
        assert one.lines("epochs", rank) == whole.lines("epochs", rank)
        ((step, weights, files),) = one.lines("ends", rank)
        ((known_step, known_weights, known_files),) = whole.lines("ends", rank)
        assert (step, weights) == (known_step, known_weights)
        assert [Path(file).name for file in files] == [Path(file).name for file in known_files]
    return one


def is_same(one: Any, other: Any) -> bool:
    """Compare what two files of a trainer have."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    return bool(torch.equal(one, other)) if isinstance(one, torch.Tensor) else bool(one == other)


def saved(one: TrainerJob, step: int) -> dict[str, Any]:
    """Return what its callback has saved at a step, without the names of its files."""
    (path,) = (one.out / "files").glob(f"*step={step}.ckpt")
    found: dict[str, Any] = torch.load(path, weights_only=False)
    del found["callbacks"]
    return found


SHORT: dict[str, list[Death]] = {
    "second_micro_batch": [(1, "forward", 3, 1)],
    "rank_0_before_a_checkpoint": [(0, "end", 5, 0)],
}
LONG: dict[str, list[Death]] = {
    "first_step": [(1, "forward", 0, 0)],
    "rank_0_at_first_step": [(0, "backward", 0, 0)],
    "epoch_begin": [(1, "forward", 6, 0)],
    "rank_0_at_epoch_begin": [(0, "forward", 6, 0)],
    "rank_0_in_the_middle": [(0, "forward", 8, 1)],
    "rank_0_after_the_reduction": [(0, "reduced", 9, 0)],
    "before_a_checkpoint": [(1, "end", 10, 0)],
    "one_after_the_other": [(1, "forward", 3, 0), (0, "forward", 9, 0)],
}


class TestJobs:
    pytestmark: ClassVar = [
        pytest.mark.process,
        pytest.mark.needs("torch"),
        pytest.mark.needs("lightning"),
    ]

    @pytest.mark.shows("Lightning `Trainer`", "live")
    @pytest.mark.parametrize("deaths", cases(SHORT, LONG))
    def test_a_killed_rank_is_replaced_live_with_the_same_bits(
        self, undisturbed: Undisturbed, plane: Plane, tmp_path: Path, deaths: list[Death]
    ) -> None:
        whole = undisturbed(2)

        one = recovered(plane, tmp_path / "job", whole, deaths)

        assert one.kinds(plane)["recovered"]["inexact"] == []
        for step in (5, 10):
            assert is_same(saved(one, step), saved(whole, step)), step

    @pytest.mark.soak
    def test_a_rank_whose_peer_has_finished_the_step_takes_that(
        self, undisturbed: Undisturbed, plane: Plane, tmp_path: Path
    ) -> None:
        torn: Death = (1, "computed", 8, 1)

        recovered(
            plane, tmp_path / "job", undisturbed(3), [(2, "reduced", 8, 0)], BREAK=json.dumps(torn)
        )

    @pytest.mark.soak
    def test_two_of_three_ranks_are_killed_in_one_step(
        self, undisturbed: Undisturbed, plane: Plane, tmp_path: Path
    ) -> None:
        deaths: list[Death] = [(0, "forward", 2, 0), (2, "forward", 2, 0)]

        recovered(plane, tmp_path / "job", undisturbed(3), deaths)

    def test_a_death_in_an_evaluation_is_no_live_recovery(
        self, plane: Plane, warm: None, tmp_path: Path
    ) -> None:
        env = {**USUAL, "WAIT": 1, "DIE": '[[1, "evaluation", 6, 0]]'}
        with ending(TrainerJob(SCRIPT, tmp_path / "job", **env)) as one:
            one.let_die(plane)
            assert one.over() == "FAILED"  # it may not restart, and no rank takes all of its grace

        facts = one.kinds(plane)["live_ended"]
        assert (facts["cause"], facts["why"]) == (
            "unfit",
            {"0": "a rank was lost before the end of an evaluation"},
        )

    @pytest.mark.soak
    @pytest.mark.parametrize(
        ("more", "why"),
        [
            ("manual", "its optimization is manual"),
            ("noisy", "its dataset draws random numbers, which a newcomer cannot draw again"),
        ],
    )
    def test_what_cannot_be_repeated_is_restarted_and_says_why(
        self, plane: Plane, warm: None, tmp_path: Path, more: str, why: str
    ) -> None:
        env = {**USUAL, "MICRO": 1, "KINDS": more, "DIE": '[[1, "forward", 9, 0]]'}
        with ending(TrainerJob(SCRIPT, tmp_path / "job", **env)) as one:
            assert one.over() == "FAILED"  # it may not restart

        assert one.events(plane, "not_live", 1) == [{"why": why}]
        assert len(one.lines("starts", 0)) == len(one.lines("starts", 1)) == 1


class TestCounts:
    """The progress of all loops, taken before each step."""

    pytestmark: ClassVar = [pytest.mark.needs("lightning")]

    def test_the_progress_of_a_moment_is_what_lightning_saved_then(self) -> None:
        from lightning.pytorch import Trainer

        from torchloom.worker.programs.lightning_parts import LoopCounts, counters_of

        loop = Trainer(logger=False, accelerator="cpu").fit_loop
        counters = counters_of(loop)
        before, counts = loop.state_dict(), LoopCounts(counters)
        for values, names in counters:
            values.update({name: values[name] + 1 for name in names})
        later = loop.state_dict()

        assert _numbers(later) == [number + 1 for number in _numbers(before)]
        assert counts.read(loop.state_dict) == before
        assert loop.state_dict() == later
        counts.put_back()
        assert loop.state_dict() == before


def _numbers(state: Any) -> list[int]:
    """Return all numbers of a state, in order."""
    if isinstance(state, dict):
        return [number for one in state.values() for number in _numbers(one)]
    return [int(state)]


class TestReasons:
    """Strategies and models that mean a restart; the real ones need devices that are not here."""

    pytestmark: ClassVar = [pytest.mark.needs("lightning")]

    def test_what_is_no_ddp_with_automatic_optimization_is_named(self) -> None:
        from lightning.pytorch import LightningModule, Trainer
        from lightning.pytorch.strategies import (
            DDPStrategy,
            FSDPStrategy,
            ModelParallelStrategy,
            SingleDeviceStrategy,
        )

        from torchloom.worker.programs.lightning_parts import why_not

        def why(strategy: Any, **own: Any) -> str:
            module, loop = LightningModule(), Trainer(logger=False, accelerator="cpu").fit_loop
            vars(module).update(own)
            given = SimpleNamespace(lightning_module=module, fit_loop=loop, strategy=strategy)
            given.callbacks = list[Any]()
            return why_not(given)

        assert why(FSDPStrategy()) == "it trains by FSDPStrategy"
        assert why(ModelParallelStrategy()) == "it trains by ModelParallelStrategy"
        assert why(SingleDeviceStrategy()) == "it trains by SingleDeviceStrategy"
        assert why(DDPStrategy(), _automatic_optimization=False) == "its optimization is manual"


class TestNames:
    """The private names of the installed version, and what is said of another one."""

    pytestmark: ClassVar = [pytest.mark.needs("lightning")]

    @staticmethod
    def kinds() -> dict[str, type]:
        from lightning.pytorch import Trainer

        from torchloom.worker.programs.lightning_parts import kinds_of

        return kinds_of(Trainer(logger=False, accelerator="cpu").fit_loop)

    def test_the_installed_version_is_known(self) -> None:
        from torchloom.worker.programs.lightning_parts import why_unknown

        assert why_unknown(self.kinds()) == ""

    def test_each_name_that_is_missing_or_another_is_named(self) -> None:
        from torchloom.worker.programs.lightning_parts import PRIVATE, why_unknown

        there = self.kinds()
        for kind, methods in PRIVATE.items():
            for name, (parameters, uses) in methods.items():
                missing = type(kind, (there[kind],), {name: None})
                said = why_unknown({**there, kind: missing})
                assert said == f"{kind}.{name} is missing in this version"
                other = type(kind, (there[kind],), {name: _without_parameters})
                expected = next((f"takes no {one}" for one in parameters), "")
                expected = expected or next((f"does not use {one}" for one in uses), "")
                assert expected in why_unknown({**there, kind: other})


def _without_parameters() -> None:
    """Stand for a method of another version."""
