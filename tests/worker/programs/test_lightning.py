"""Lightning programs without a line of torchloom: what they log, and where they resume."""

import csv
import json
import os
from pathlib import Path
from typing import Any

import pytest

from torchloom.checkpoint import open_storage
from torchloom.messages.plane import Applied, Decided, Event, Metrics, Register, Write

from ...harness.home import until
from ..run.conftest import commit
from ..threadlet.conftest import Ranks
from ..threadlet.fake_agent import FakeAgent, listening

pytestmark = [pytest.mark.process, pytest.mark.needs("torch"), pytest.mark.needs("lightning")]
SCRIPT = str(Path(__file__).parent / "scripts" / "fit.py")
EPOCHS = {"max_epochs": 2, "num_sanity_val_steps": 0}
STEPS = {"max_steps": 31, "num_sanity_val_steps": 0}


def lines(ranks: Ranks, what: str, rank: int = 0) -> list[Any]:
    """Return what the program of a rank wrote."""
    path = ranks.folder / f"{what}-{rank}"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def numbers(agent: FakeAgent, *names: str) -> list[tuple[int, str, float]]:
    """Return step, name and value of what rank 0 has sent under these names, in order."""
    return [
        (int(row[0]), name, float(row[at]))  # type: ignore[arg-type]
        for metrics in agent.of(Metrics, 0)
        for row in metrics.rows
        for at, name in enumerate(metrics.names, 2)
        if name in names
    ]


def logged(folder: Path, *names: str) -> list[tuple[int, str, float]]:
    """Return the same of what the program's own logger wrote."""
    with (folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    return [(int(r["step"]), name, float(r[name])) for r in rows for name in names if r[name]]


def wait_for_lr(agent: FakeAgent, world: int) -> None:
    """Come back when all ranks have an optimizer: `lr` is a hyperparameter, too."""

    def known(rank: int) -> bool:
        said = agent.of(Register, rank)
        return bool(said) and any(one.name == "lr" and one.is_used for one in said[-1].knobs)

    until(lambda: all(map(known, range(world))))


def hold(ranks: Ranks, step: int) -> None:
    (ranks.folder / "hold").write_text(str(step))


def release(ranks: Ranks) -> None:
    (ranks.folder / "hold").unlink()


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_what_a_trainer_logs_is_recorded_at_its_own_steps(ranks: Ranks, package: str) -> None:
    agent, more = ranks.agent, {**EPOCHS, "log_every_n_steps": 5, "val_check_interval": 5}
    hold(ranks, 4)

    env = {"FILES": str(ranks.folder), "LOGS": "logs", "PACKAGE": package}
    running = ranks.start(ranks.closing(SCRIPT), 2, TRAINER=json.dumps(more), **env)
    wait_for_lr(agent, 2)
    command = agent.prepare(range(2), "knob", {"name": "lr", "value": 0.002})
    changed = agent.decide(command, agent.promises(command, 2))
    agent.tell(range(2), command, changed)
    release(ranks)
    ranks.printed(running)

    steps = lines(ranks, "steps")
    own = {step: lr for _, step, lr, _, _ in steps}
    used = {step: lr if step < changed else 0.002 * lr / own[changed] for step, lr in own.items()}
    names = ("train_loss", "val_loss", "epoch")
    assert numbers(agent, *names) == logged(ranks.folder / "logs", *names)
    assert [step for step, _, _ in numbers(agent, "loss")] == list(range(24))
    assert {step: moved for _, step, _, moved, _ in steps} == pytest.approx(used, rel=1e-9)
    assert {one.step for one in agent.of(Applied, command=command)} == {changed}
    assert lines(ranks, "ends", 0) == lines(ranks, "ends", 1)
    known = {one.name: one.value for one in agent.of(Register, 0)[-1].knobs}
    assert (known["width"], known["more"]) == (16, {"depth": 2})
    totals = [one.facts["total_steps"] for one in agent.of(Event) if "total_steps" in one.facts]
    assert totals == [24]


# Ranks, arguments of the Trainer, other words; the steps of checkpoints on demand.
MIDDLE, END = 15, 24  # of an epoch of 24 batches
CASES = {
    "epochs": (1, {**EPOCHS, "val_check_interval": 3}, {"KINDS": "noisy"}, (MIDDLE, END)),
    "steps": (1, {**STEPS, "val_check_interval": 5}, {"KINDS": "workers generator"}, (MIDDLE, END)),
    "ranks": (2, {**EPOCHS, "accumulate_grad_batches": 5}, {}, (2, 3)),
    "one step an epoch": (1, {"max_steps": 4, "accumulate_grad_batches": 24}, {}, (2,)),
    "plateau": (1, {**EPOCHS, "val_check_interval": 1}, {"KINDS": "plateau"}, (MIDDLE, END)),
    "callback": (1, STEPS, {"SAVES": '{"save_top_k": -1}'}, ()),
}


def demand(agent: FakeAgent, world: int, step: int) -> None:
    """Have all ranks save before a step."""
    command = agent.prepare(range(world), "checkpoint", {})
    agent.promises(command, world)
    agent.say(0, Write, command, step)
    agent.wait(Decided, 1, rank=0, command=command)
    agent.tell(range(world), command, step)


def saved(ranks: Ranks, world: int, wanted: tuple[int, ...], **env: str) -> list[int]:
    """Run the program to its end with checkpoints on demand; return the steps of all."""
    ranks.agent.close()
    hold(ranks, 0)
    with listening(ranks.agent.path) as agent:
        ranks.agent = agent
        running = ranks.start(ranks.closing(SCRIPT), world, **env)
        agent.wait_for_boundaries(world)
        for step in wanted:
            demand(agent, world, step)
        release(ranks)
        ranks.printed(running)
        return commit(agent, open_storage(env["LOOM_CHECKPOINT_ROOT"], os.environ))


def resumed(ranks: Ranks, world: int, step: int, **env: str) -> dict[str, Any]:
    """Run it again from a checkpoint; return what it said of that."""
    place = f"{env['LOOM_CHECKPOINT_ROOT']}/ckpt_step_{step:05}"
    with listening(ranks.agent.path) as agent:
        ranks.agent = agent
        more = {"LOOM_RESUME": place, "LOOM_GENERATION": "1"}
        ranks.run(ranks.closing(SCRIPT), world, **more, **env)
        (facts,) = [one.facts for one in agent.of(Event, 0) if one.kind == "restored"]
    return facts


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_training_has_the_bits_of_an_undisturbed_one(ranks: Ranks, case: str) -> None:
    world, trainer, more, wanted = CASES[case]
    trainer = {"enable_checkpointing": "SAVES" in more, **trainer}
    root = str(ranks.folder / "saved")
    env = {"FILES": str(ranks.folder), "TRAINER": json.dumps(trainer), "LOOM_CHECKPOINT_ROOT": root}

    found = saved(ranks, world, wanted, **env, **more)
    undisturbed = {step: row for _, step, *row in lines(ranks, "steps")}
    last = max(undisturbed)

    assert found == sorted({*wanted, *((END, last + 1) if case == "callback" else ())})
    for step in (step for step in found if step <= last):
        (ranks.folder / "steps-0").unlink()
        facts = resumed(ranks, world, step, **env, **more)
        again = {step: row for _, step, *row in lines(ranks, "steps")}
        assert (facts["step"], facts["exact"], facts["why"]) == (step, True, "")
        assert again == {at: row for at, row in undisturbed.items() if at >= step}
        assert lines(ranks, "ends")[-1] == lines(ranks, "ends")[0]


def test_a_trainer_that_the_user_skips_is_not_observed(ranks: Ranks) -> None:
    env = {"FILES": str(ranks.folder), "TRAINER": json.dumps(EPOCHS)}
    ranks.run_and_close(SCRIPT, LOOM_ATTACH_SKIP="lightning", **env)

    names = {name for one in ranks.agent.of(Metrics) for name in one.names}
    assert "loss" in names  # as of any loop
    assert not {"train_loss", "val_loss"} & names
    assert len(lines(ranks, "ends")) == 1


def test_a_program_that_passes_its_own_checkpoint_has_its_way(ranks: Ranks) -> None:
    root = str(ranks.folder / "saved")
    env = {"FILES": str(ranks.folder), "TRAINER": json.dumps(EPOCHS), "LOOM_CHECKPOINT_ROOT": root}
    env["SAVES"] = '{"every_n_train_steps": 10, "save_top_k": -1}'
    assert saved(ranks, 1, (), **env)[:2] == [10, 20]
    (own,) = (ranks.folder / "files").glob("*step=10.ckpt")
    (ranks.folder / "steps-0").unlink()

    facts = resumed(ranks, 1, 20, OWN=str(own), **env)

    assert (facts["step"], facts["path"]) == (10, str(own))
    assert lines(ranks, "steps")[0][1] == 10


@pytest.mark.parametrize(
    ("kinds", "saves", "step", "why"),
    [
        ("stream", "", 7, "the order of an IterableDataset is its own"),
        (
            "",
            '{"every_n_train_steps": 24, "save_top_k": -1}',
            24,
            "it was saved before the validation after this",
        ),
    ],
    ids=["a stream of data", "a callback before the validation"],
)
def test_what_is_not_repeated_is_named(
    ranks: Ranks, kinds: str, saves: str, step: int, why: str
) -> None:
    trainer = {"enable_checkpointing": bool(saves), **EPOCHS}
    env = {"TRAINER": json.dumps(trainer), "LOOM_CHECKPOINT_ROOT": str(ranks.folder / "saved")}
    env |= {"FILES": str(ranks.folder), "KINDS": kinds} | ({"SAVES": saves} if saves else {})

    saved(ranks, 1, () if saves else (step,), **env)
    facts = resumed(ranks, 1, step, **env)

    assert (facts["step"], facts["exact"]) == (step, False)
    assert why in facts["why"]
