"""A keeper finds out by itself that an imported file is no longer what it was."""

from pathlib import Path

import pytest

from torchloom.launch.keeper.spawn import SpawnOrder
from torchloom.worker.process.zygote import ZygoteForks

ORDER = SpawnOrder(argv=("true",), env={}, cwd="/", fds=())
COUNT = 250  # files: more than are looked at in one turn


@pytest.fixture
def files(tmp_path: Path) -> dict[str, tuple[int, ...]]:
    """Return the state of imported files, as a zygote has it."""
    found = {}
    for number in range(COUNT):
        path = tmp_path / f"m{number:03}.py"
        path.write_text("old\n")
        status = path.stat()
        found[str(path)] = (status.st_mtime_ns, status.st_size)
    return found


def overwrite(path: str) -> None:
    Path(path).write_text("newer\n")


@pytest.mark.parametrize("number", [0, 99, 100, COUNT - 1])
def test_a_file_that_was_replaced_before_the_exit_is_found_without_an_order(
    files: dict[str, tuple[int, ...]], number: int
) -> None:
    forks, path = ZygoteForks(files), list(files)[number]
    overwrite(path)

    forks.forget()
    while forks.look_ahead():
        pass

    assert forks.are_known
    assert forks.why_cold(ORDER) == f"{path} has changed since it was imported"


def test_an_order_that_comes_first_has_the_rest_of_the_files_looked_at(
    files: dict[str, tuple[int, ...]],
) -> None:
    forks, path = ZygoteForks(files), list(files)[-1]
    overwrite(path)

    forks.forget()
    assert forks.look_ahead()

    assert forks.why_cold(ORDER) == f"{path} has changed since it was imported"


def test_what_was_seen_before_an_exit_does_not_count_after_it(
    files: dict[str, tuple[int, ...]],
) -> None:
    forks = ZygoteForks(files)
    forks.forget()
    assert forks.look_ahead()  # the first files are as they were
    path = next(iter(files))
    overwrite(path)

    forks.forget()

    assert "has changed" in forks.why_cold(ORDER)


def test_files_that_are_all_there_are_looked_at_in_turns(files: dict[str, tuple[int, ...]]) -> None:
    forks = ZygoteForks(files)

    forks.forget()
    turns = 1
    while forks.look_ahead():
        turns += 1

    assert turns == 4  # the last finds that none is left
