"""A run that goes on from a checkpoint does, step for step, what an undisturbed one does."""

import json
import shutil
from typing import Any

import pytest

from .conftest import Lives

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]
EVERY: dict[str, Any] = {"every_n_steps": 4}


def resumed(lives: Lives, world: int, until: int, at: int, **told: Any) -> tuple[Any, Any]:
    """Return the rows of an undisturbed run from a step on, and those of one that was resumed."""
    whole = lives.run(world, **told)
    lives.run(world, checkpointing=EVERY, env={"LOOM_UNTIL": until}, **told)
    assert at in lives.storage.committed()
    again = lives.run(world, resume=at, checkpointing=EVERY, **told)
    return [[row for row in rows if row["step"] >= at] for rows in whole], again


@pytest.mark.parametrize("world", [3, 4])
def test_ranks_that_go_on_have_the_bits_of_those_that_never_stopped(
    lives: Lives, world: int
) -> None:
    expected, found = resumed(lives, world, until=7, at=4, dropout=0.3, samples=120)

    assert len(found[0]) == 2 * -(-120 // (4 * world)) - 4
    assert found == expected
    assert [json.loads(text.splitlines()[-1])["from"] for text in lives.printed] == [4] * world
    assert [one["exact"] for one in lives.events("restored")] == [True] * world


@pytest.mark.parametrize(
    ("world", "told"),
    [
        (1, {"loader": "own", "workers": 2, "persistent": True, "dropout": 0.5}),
        (1, {"loader": "stock", "workers": 2, "optimizer": "adamw"}),
        (2, {"loader": "stock", "initial": 11, "dropout": 0.2}),
        (2, {"loader": "sampler", "optimizer": "adamw"}),
        (1, {"loader": "steps", "steps": 10}),
        (2, {"accumulate": 3, "amp": True, "dropout": 0.2}),
        (2, {"loops": 2, "epochs": 1, "samples": 48, "loader": "sampler"}),
        (2, {"options": {"gradient_as_bucket_view": True}}),
    ],
)
def test_loaders_optimizers_and_accumulated_gradients_go_on(
    lives: Lives, world: int, told: dict[str, Any]
) -> None:
    expected, found = resumed(lives, world, until=11, at=8, **told)

    assert len(found[0]) > 0
    assert found == expected
    whys = {one["why"] for one in lives.events("restored")}
    assert whys == {"the program reads its own data" if told.get("loader") == "steps" else ""}


@pytest.mark.parametrize(
    ("world", "told"),
    [
        (2, {"epochs": 1, "samples": 48}),
        (1, {"epochs": 1, "samples": 48, "loader": "stock"}),
        (1, {"epochs": 1, "loader": "steps", "steps": 12}),
        (1, {"epochs": 1, "loops": 2, "samples": 24}),
    ],
)
def test_a_run_that_is_extended_goes_on_as_if_its_program_had_asked_for_more(
    lives: Lives, world: int, told: dict[str, Any]
) -> None:
    lives.run(world, checkpointing=EVERY, **told)
    end = lives.storage.latest()
    assert end is not None
    longer = {**told, "loops": told["loops"] + 1} if "loops" in told else {**told, "epochs": 3}
    extra = {"LOOM_OWN_END": end, "LOOM_UNTIL": end + 5}

    again = lives.run(world, resume=end, checkpointing=EVERY, env=extra, **told)
    earlier = lives.run(world, resume=4, checkpointing=EVERY, env=extra, **told)
    whole = lives.run(world, env={"LOOM_UNTIL": end + 5}, **longer)

    assert [row["step"] for row in again[0]] == list(range(end, end + 5))
    assert again == [rows[end:] for rows in whole]
    assert earlier == [rows[4:] for rows in whole], "from an earlier checkpoint"


def test_what_joins_the_ranks_can_be_built_anew_between_two_steps(lives: Lives) -> None:
    whole = lives.run(3, dropout=0.3, accumulate=2)

    again = lives.run(3, dropout=0.3, accumulate=2, rebuilds=[4, 9])

    assert again == whole


def test_the_switch_of_ddp_leaves_out_the_averages_that_no_sync_leaves_out(lives: Lives) -> None:
    expected = lives.run(3, dropout=0.3, accumulate=3)

    found = lives.run(3, dropout=0.3, accumulate=3, switch=True)

    assert found == expected


def test_each_sample_of_an_epoch_is_seen_once_over_two_lives_with_other_ranks(
    lives: Lives,
) -> None:
    first = lives.run(4, checkpointing=EVERY, samples=91, batch_size=3, env={"LOOM_UNTIL": 4})
    second = lives.run(2, resume=4, samples=91, batch_size=3, epochs=1)

    seen = [at for rows in (*first, *second) for row in rows for at in row["samples"]]
    assert sorted(seen) == list(range(91))
    assert [row["step"] for row in second[0]] == list(range(4, 11))
    assert {one["why"] for one in lives.events("restored")} == {"world size 4 -> 2"}
    assert not any(one["exact"] for one in lives.events("restored"))


def test_more_ranks_than_before_take_up_the_rest_as_well(lives: Lives) -> None:
    first = lives.run(2, checkpointing=EVERY, samples=61, batch_size=3, env={"LOOM_UNTIL": 4})
    second = lives.run(3, resume=4, samples=61, batch_size=3, epochs=1)

    seen = [at for rows in (*first, *second) for row in rows for at in row["samples"]]
    assert sorted(seen) == list(range(61))


def test_a_damaged_checkpoint_is_told_and_the_one_before_is_taken_by_all_ranks(
    lives: Lives,
) -> None:
    whole = lives.run(2)
    lives.run(2, checkpointing=EVERY, env={"LOOM_UNTIL": 10})
    assert lives.storage.committed() == [10, 8, 4]
    for step, name in ((10, "worker_1.pt"), (8, "worker_0.pt")):
        path = lives.root / f"ckpt_step_{step:05}" / name
        path.write_bytes(path.read_bytes()[:-9] + b"\0damaged\0")

    again = lives.run(2, resume=10)

    assert again == [[row for row in rows if row["step"] >= 4] for rows in whole]
    damaged = {(one["step"], one["name"]) for one in lives.events("checkpoint_damaged")}
    assert damaged == {(10, "worker_1.pt"), (8, "worker_0.pt")}
    assert [one["step"] for one in lives.events("restored")] == [4, 4]


def test_what_one_rank_cannot_read_no_rank_goes_on_from(lives: Lives) -> None:
    whole = lives.run(2)
    lives.run(2, checkpointing=EVERY, env={"LOOM_UNTIL": 9})
    other = shutil.copytree(lives.root, lives.folder / "other")
    (other / "ckpt_step_00008" / "worker_0.pt").unlink()

    place = str(other / "ckpt_step_00008")
    again = lives.run(2, resume=8, each={1: {"LOOM_RESUME": place}})

    assert again == [[row for row in rows if row["step"] >= 4] for rows in whole]
    assert lives.events("checkpoint_damaged", 0) == []
    assert [one["step"] for one in lives.events("checkpoint_damaged", 1)] == [8]


def test_a_run_whose_checkpoints_are_all_damaged_begins_anew_and_says_so(lives: Lives) -> None:
    whole = lives.run(2)
    lives.run(2, checkpointing=EVERY, env={"LOOM_UNTIL": 4})
    (lives.root / "ckpt_step_00004" / "worker_1.pt").unlink()

    again = lives.run(2, resume=4)

    assert again == whole
    assert {one["why"] for one in lives.events("restored")} == {
        f"no checkpoint of {lives.root} is intact"
    }


def test_a_later_life_of_a_run_that_has_saved_nothing_begins_at_the_beginning(
    lives: Lives,
) -> None:
    whole = lives.run(1)

    again = lives.run(1, resume="1")

    assert again == whole
    assert json.loads(lives.printed[0]) == {"resumed": False, "from": None, "applied": 48}
    assert lives.events("restored") == []


def test_a_checkpoint_of_another_run_can_be_gone_on_from(lives: Lives) -> None:
    whole = lives.run(1)
    lives.run(1, checkpointing=EVERY, env={"LOOM_UNTIL": 4})
    place, lives.root = lives.storage.place_of(4), lives.folder / "other"

    again = lives.run(1, resume=place, checkpointing=EVERY)

    assert again == [[row for row in rows if row["step"] >= 4] for rows in whole]
    assert lives.storage.committed()[-1] == 8


def test_the_seed_of_a_run_is_that_of_its_first_life_or_the_jobs(lives: Lives) -> None:
    seeded = {"LOOM_JOB_SPEC": json.dumps({"seed": 41})}
    whole = lives.run(2, initial=1)
    lives.run(2, checkpointing=EVERY, initial=1, env={"LOOM_UNTIL": 4})
    again = lives.run(2, resume=4, initial=2)
    first = lives.run(2, initial=1, env=seeded)
    second = lives.run(2, initial=2, env=seeded)

    assert again == [[row for row in rows if row["step"] >= 4] for rows in whole]
    assert first == second != whole
