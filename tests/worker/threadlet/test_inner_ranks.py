"""Which processes inside a rank report for ranks of its job."""

import os
from pathlib import Path

import pytest

from torchloom.worker.threadlet import inner_ranks, owner

PYTHON = "/usr/bin/python3"
LAUNCHED = {"RANK": "1", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ([PYTHON, "/venv/bin/torchrun", "train.py"], True),
        ([PYTHON, "-u", "/venv/bin/accelerate", "launch", "train.py"], True),
        ([PYTHON, "-m", "torch.distributed.run", "train.py"], True),
        ([PYTHON, "-m", "train", "torch.distributed.run"], False),
        ([PYTHON, "train.py", "torchrun"], False),
        ([PYTHON, "-c", "torchrun"], False),
        ([PYTHON, "-m"], False),
        ([PYTHON], False),
    ],
)
def test_a_launcher_is_known_by_its_name(argv: list[str], expected: bool) -> None:
    assert inner_ranks.is_launcher(argv) is expected


def test_a_rank_is_a_launchers_where_its_place_is_not_that_of_the_job() -> None:
    outer = {"RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "job"}
    inner_ranks.admit(outer)

    assert not inner_ranks.has_own_place(outer)
    assert inner_ranks.has_own_place({**outer, **LAUNCHED})
    assert not inner_ranks.has_own_place({**outer, **LAUNCHED, "RANK": "2"})
    assert not inner_ranks.has_own_place(LAUNCHED)  # nothing has admitted ranks here


def test_children_search_our_folder_first_and_once() -> None:
    env = {"PYTHONPATH": "/own"}

    inner_ranks.admit(env)
    inner_ranks.admit(env)

    first, *rest = env["PYTHONPATH"].split(os.pathsep)
    assert (Path(first) / "sitecustomize.py").is_file()
    assert rest == ["/own"]


def test_a_seat_is_taken_by_one_process_and_free_after_its_end(tmp_path: Path) -> None:
    env = {**LAUNCHED, "LOOM_PAGE": str(tmp_path / "page"), "LOOM_INNER": "//", "LOOM_LIFE": "3"}
    seat = tmp_path / "inner-trainer-0" / "seat-1"
    seat.parent.mkdir()

    seat.write_text(f"{os.getppid()}:{owner.started(os.getppid())}")
    refused = inner_ranks.take_own_place(dict(env))
    seat.write_text(f"{os.getppid()}:1")  # that process has ended, and its number was given again
    taken = inner_ranks.take_own_place(env)

    assert refused == {}
    assert {name: taken[name] for name in ("RANK", "WORLD_SIZE", "LOOM_LIFE")} == {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOOM_LIFE": "1",
    }
    assert taken["LOOM_PAGE"] == str(seat.with_name("page-1"))
    assert seat.read_text() == owner.own_name() == env["LOOM_THREADLET_OWNER"]
    assert not inner_ranks.has_own_place(env)  # its own children are no ranks
    assert "LOOM_LIFE" not in env


def test_a_job_that_is_on_another_host_or_has_ended_gets_no_folder_again(tmp_path: Path) -> None:
    folder = tmp_path / "loom-job"
    env = {**LAUNCHED, "LOOM_PAGE": str(folder / "page"), "LOOM_INNER": "//"}

    with pytest.raises(FileNotFoundError):
        inner_ranks.take_own_place(env)

    assert not inner_ranks.is_on_host(env)
    assert inner_ranks.is_on_host({})  # a job without a folder
    assert not folder.exists()
