"""Whoever writes an outcome first, wins: in a file, in torch's store, and alone."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from torchloom.worker.threadlet.control import (
    FileOutcomes,
    NoStore,
    Outcomes,
    from_text,
    open_outcomes,
    to_text,
)


def race(outcomes: list[Outcomes], key: str) -> set[str]:
    """Have each of them write another value at once; return what they take for the first one."""
    start, found = threading.Barrier(len(outcomes)), []

    def write(number: int) -> None:
        start.wait()
        found.append(outcomes[number].first(key, to_text(number)))

    threads = [threading.Thread(target=write, args=(n,)) for n in range(len(outcomes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == len(outcomes)
    return set(found)


@pytest.fixture
def served() -> Iterator[str]:
    """Serve torch's store as a job over hosts has it; return its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        words = [sys.executable, "-m", "torchloom.worker.process.store", str(listener.fileno())]
        with subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[listener.fileno()]
        ) as server:
            assert server.stdout is not None
            assert server.stdout.readline() == b"ready\n"
            yield f"tcp://127.0.0.1:{listener.getsockname()[1]}"
            server.kill()


def test_an_outcome_reads_back_as_it_was_written() -> None:
    assert [from_text(to_text(one)) for one in (None, 0, 412)] == [None, 0, 412]


def test_ranks_of_one_host_see_the_first_entry(tmp_path: Path) -> None:
    each = [open_outcomes(f"file://{tmp_path}/store", 4, 0) for _ in range(4)]

    winners = [race(each, f"command/{number}") for number in range(50)]

    assert all(len(found) == 1 for found in winners)
    assert not [name for name in os.listdir(tmp_path / "store.outcomes") if name.startswith(".")]


def test_a_writer_that_died_half_way_keeps_nobody_from_deciding(tmp_path: Path) -> None:
    outcomes = FileOutcomes(tmp_path / "outcomes")
    (tmp_path / "outcomes" / ".1-1").write_text("commi")

    assert outcomes.first("command/x/../y", "abort") == "abort"
    assert outcomes.first("command/x/../y", "commit 3") == "abort"


@pytest.mark.process
@pytest.mark.needs("torch")
def test_ranks_of_several_hosts_see_the_first_entry(served: str) -> None:
    import torch.distributed  # noqa: F401

    each = [open_outcomes(served, 4, generation=2) for _ in range(4)]
    later = open_outcomes(served, 4, generation=3)

    winners = [race(each, f"command/{number}") for number in range(20)]

    assert all(len(found) == 1 for found in winners)
    assert later.first("command/0", "commit 99") == "commit 99"


def test_a_process_that_is_alone_agrees_with_itself() -> None:
    outcomes = open_outcomes("", 1, 0)

    assert [outcomes.first("a", value) for value in ("commit 1", "abort")] == ["commit 1"] * 2


@pytest.mark.parametrize(
    ("store", "world", "why"),
    [
        ("", 2, "no store to agree in"),
        pytest.param(
            *("tcp://127.0.0.1:1", 2, "does not answer|not loaded"), marks=pytest.mark.process
        ),
    ],
)
def test_ranks_without_a_store_are_told_so(store: str, world: int, why: str) -> None:
    opening: Callable[[], object] = lambda: open_outcomes(store, world, 0)  # noqa: E731

    with pytest.raises(NoStore, match=why):
        opening()
