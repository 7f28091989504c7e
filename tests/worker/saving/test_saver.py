"""Saving costs a copy, no more memory the next time, and no training when the store is away."""

import errno
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from torchloom.checkpoint import Draft, LocalStorage, open_storage
from torchloom.checkpoint.stream import Disk
from torchloom.worker.saving import Reader, Saver, Unsaveable, load

from ...harness.home import allowed, until
from ...harness.s3_server import running_s3
from .alike import alike
from .world import commit, local, manifest_of, saver_of, shards_of

pytestmark = pytest.mark.needs("torch")

Told = list[tuple[str, dict[str, Any]]]


class Gate(Disk):
    """A disk whose writes can be held up, or fail."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.is_reached = threading.Event()
        self.error = 0
        self.nices: set[tuple[int, int]] = set()

    def write(self, descriptor: int, view: memoryview) -> int:
        self.is_reached.set()
        self.open.wait(30)
        thread = threading.get_native_id()
        self.nices.add((os.getpriority(os.PRIO_PROCESS, thread), os.sched_getscheduler(thread)))
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        return super().write(descriptor, view)


def gated(folder: Path) -> tuple[LocalStorage, Gate]:
    gate = Gate()
    return LocalStorage(str(folder / "checkpoints"), gate), gate


def state(value: float = 0.0, size: int = 1000) -> dict[str, torch.Tensor]:
    return {"weight": torch.full((size,), float(value))}


def in_thread(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


def test_a_shard_is_told_with_its_facts(tmp_path: Path) -> None:
    told: Told = []
    storage = local(tmp_path)
    saver = saver_of(storage, told, rank=1, world_size=2, generation=4, attempt=2)

    seconds = saver.save(9, state(), {}, {"epoch": 3, "trigger": "every"})

    assert saver.wait(30)
    [(kind, facts)] = told
    assert kind == "checkpoint_shard"
    assert 0 < facts.pop("stall") <= seconds
    assert facts.pop("seconds") > 0
    path = Path(storage.root) / "ckpt_step_00009.g4-2" / "worker_1.pt"
    assert facts.pop("size") == path.stat().st_size
    assert facts.pop("hash").startswith("blake3:")
    assert facts == {
        "step": 9,
        "generation": 4,
        "attempt": 2,
        "name": "worker_1.pt",
        "rank": 1,
        "world_size": 2,
        "epoch": 3,
        "trigger": "every",
    }
    saver.close()


def test_what_is_saved_is_the_state_at_the_call(tmp_path: Path) -> None:
    storage, gate = gated(tmp_path)
    told: Told = []
    saver = saver_of(storage, told)
    live = {"weight": torch.ones(100), "list": [1, 2]}
    gate.open.clear()

    saver.save(1, live, {}, {})
    live["weight"].zero_()
    live["list"].append(3)
    gate.open.set()
    assert saver.wait(30)

    storage.commit(Draft(1, 0, 0), manifest_of(1, shards_of(told)))
    assert alike(load(storage, 1, Reader(0, 1)).shared, {"weight": torch.ones(100), "list": [1, 2]})
    saver.close()


def test_state_may_change_its_shape_between_saves(tmp_path: Path) -> None:
    storage = local(tmp_path)
    told: Told = []
    saver = saver_of(storage, told)
    states: Sequence[Any] = [
        {"a": torch.ones(3)},
        {"a": torch.ones(30_000), "words": "x" * 200_000},
        {"a": torch.ones(3), "b": [torch.zeros(2)]},
        {},
    ]

    for step, each in enumerate(states):
        saver.save(step, each, {}, {})
        assert saver.wait(30)
        storage.commit(Draft(step, 0, 0), manifest_of(step, shards_of(told)[-1:]))

    assert all(
        alike(load(storage, step, Reader(0, 1)).shared, each) for step, each in enumerate(states)
    )
    saver.close()


def test_state_that_cannot_be_saved_is_refused_and_the_next_is_saved(tmp_path: Path) -> None:
    told: Told = []
    saver = saver_of(local(tmp_path), told)

    with pytest.raises(Unsaveable, match=r"shared\.a\.0"):
        saver.save(1, {"a": [object()]}, {}, {})

    saver.save(2, state(), {}, {})
    assert saver.wait(30)
    assert [facts["step"] for _, facts in told] == [2]
    saver.close()


def test_twenty_saves_take_the_memory_of_one(tmp_path: Path) -> None:
    storage = local(tmp_path)
    told: Told = []
    saver = saver_of(storage, told)
    large = state(size=8_000_000)
    for step in range(3):
        saver.save(step, large, {}, {})
        assert saver.wait(30)
        storage.discard(Draft(step, 0, 0))
    before, maps = resident(), mappings()

    for step in range(3, 23):
        saver.save(step, large, {"position": step * 1000}, {})
        assert saver.wait(30)
        storage.discard(Draft(step, 0, 0))

    assert resident() - before < 8 * 2**20
    assert mappings() - maps < 5
    saver.close()


def test_prepared_memory_is_there_before_the_first_save(tmp_path: Path) -> None:
    saver = saver_of(local(tmp_path), [])
    large = state(size=8_000_000)
    before = resident()

    saver.prepare(large, {})
    prepared = resident()
    saver.save(1, large, {}, {})

    assert prepared - before > 30 * 2**20
    assert resident() - prepared < 2 * 2**20
    assert saver.wait(30)
    saver.close()


def test_the_writer_has_the_lowest_priority_and_the_caller_keeps_its_own(tmp_path: Path) -> None:
    storage, gate = gated(tmp_path)
    ours = (os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0))
    saver = saver_of(storage, [])

    saver.save(1, state(), {}, {})

    assert saver.wait(30)
    assert gate.nices == {(19, os.SCHED_IDLE)}
    assert (os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)) == ours
    saver.close()


def test_a_save_waits_while_the_last_one_is_being_written(tmp_path: Path) -> None:
    storage, gate = gated(tmp_path)
    told: Told = []
    saver = saver_of(storage, told)
    gate.open.clear()
    saver.save(1, state(1), {}, {})
    assert gate.is_reached.wait(30)

    second = in_thread(lambda: saver.save(2, state(2), {}, {}))
    second.join(0.2)
    assert second.is_alive()
    gate.open.set()
    second.join(30)

    assert saver.wait(30)
    assert [(kind, facts["step"]) for kind, facts in told] == [
        ("checkpoint_shard", 1),
        ("checkpoint_shard", 2),
    ]
    for step, value in ((1, 1.0), (2, 2.0)):
        storage.commit(Draft(step, 0, 0), manifest_of(step, shards_of(told)[step - 1 : step]))
        assert alike(load(storage, step, Reader(0, 1)).shared, state(value))
    saver.close()


def test_a_store_that_takes_nothing_does_not_stop_the_training(tmp_path: Path) -> None:
    storage, gate = gated(tmp_path)
    told: Told = []
    saver = saver_of(storage, told, patience=0.2)
    gate.open.clear()
    saver.save(1, state(1), {}, {})

    seconds = saver.save(2, state(2), {}, {})

    assert 0.1 < seconds < 10
    assert [(kind, facts["step"], facts["retrying"]) for kind, facts in told] == [
        ("checkpoint_failed", 2, False)
    ]
    gate.open.set()
    assert saver.wait(30)
    storage.commit(Draft(1, 0, 0), manifest_of(1, shards_of(told)))
    assert alike(load(storage, 1, Reader(0, 1)).shared, state(1))
    saver.close()


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_store_that_comes_back_gets_the_same_checkpoint(tmp_path: Path, error: int) -> None:
    storage, gate = gated(tmp_path)
    told: Told = []
    saver = saver_of(storage, told)
    gate.error = error
    saver.save(1, state(1), {}, {})
    until(lambda: bool(told))

    assert not saver.wait(0)
    gate.error = 0
    assert saver.wait(30)

    failed, written = told
    why = os.strerror(error)
    assert failed == ("checkpoint_failed", {"step": 1, "why": why, "retrying": True})
    assert written[0] == "checkpoint_shard"
    storage.commit(Draft(1, 0, 0), manifest_of(1, shards_of(told)))
    assert alike(load(storage, 1, Reader(0, 1)).shared, state(1))
    saver.close()


def test_while_the_store_is_away_the_newest_checkpoint_takes_over(tmp_path: Path) -> None:
    storage, gate = gated(tmp_path)
    told: Told = []
    saver = saver_of(storage, told)
    gate.error = errno.ENOSPC
    stalls = []
    for step in (1, 2, 3):
        stalls.append(saver.save(step, state(step), {}, {}))
        until(lambda step=step: ("checkpoint_failed", step, True) in short(told))

    gate.error = 0
    assert saver.wait(30)

    assert short(told) == [
        ("checkpoint_failed", 1, True),
        ("checkpoint_failed", 1, False),
        ("checkpoint_failed", 2, True),
        ("checkpoint_failed", 2, False),
        ("checkpoint_failed", 3, True),
        ("checkpoint_shard", 3, None),
    ]
    assert max(stalls) < allowed(3)
    saver.close()


def short(told: Told) -> list[tuple[str, int, bool | None]]:
    return [(kind, facts["step"], facts.get("retrying")) for kind, facts in told]


class Broken:
    """A store with an error that nobody thought of."""

    root = "/nowhere"

    def write_shard(self, *_: object) -> Any:
        raise ZeroDivisionError("division by zero")


def test_an_error_nobody_thought_of_is_told_and_ends_nothing(tmp_path: Path) -> None:
    told: Told = []
    saver = saver_of(Broken(), told)  # type: ignore[arg-type]

    for step in (1, 2):
        saver.save(step, state(), {}, {})
        assert not saver.wait(30)

    why = "ZeroDivisionError: division by zero"
    assert told == [
        ("checkpoint_failed", {"step": step, "why": why, "retrying": False}) for step in (1, 2)
    ]
    saver.close()


def test_closing_gives_up_what_the_store_refuses(tmp_path: Path) -> None:
    storage, gate = gated(tmp_path)
    told: Told = []
    saver = saver_of(storage, told)
    gate.error = errno.EIO
    threads = set(threading.enumerate())
    saver.save(1, state(), {}, {})
    until(lambda: bool(told))

    began = time.monotonic()
    saver.close()

    assert time.monotonic() - began < allowed(4)
    assert short(told) == [("checkpoint_failed", 1, True), ("checkpoint_failed", 1, False)]
    assert set(threading.enumerate()) <= threads


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")
def test_a_fork_cannot_use_it_and_the_parent_goes_on(tmp_path: Path) -> None:
    storage = local(tmp_path)
    told: Told = []
    saver = saver_of(storage, told)
    saver.save(1, state(1), {}, {})
    assert saver.wait(30)

    child = os.fork()
    if not child:
        os._exit(code_of(saver))
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 42
    saver.save(2, state(2), {}, {})
    assert saver.wait(30)
    assert [facts["step"] for _, facts in told] == [1, 2]
    saver.close()


def code_of(saver: Saver) -> int:
    """Return 42 when a fork may do nothing but close."""
    saver.close()
    for call in (lambda: saver.save(9, {}, {}, {}), lambda: saver.wait(0)):
        try:
            call()
        except RuntimeError:
            continue
        return 1
    return 42


def test_chunks_are_all_that_is_written_at_once(tmp_path: Path) -> None:
    """So a tensor of more than 2 GiB is no larger write than any other."""
    largest: list[int] = []

    class Measured(Disk):
        def write(self, descriptor: int, view: memoryview) -> int:
            largest.append(len(view))
            return super().write(descriptor, view)

    storage = LocalStorage(str(tmp_path / "checkpoints"), Measured())
    large = state(1, size=20_000_000)

    commit(storage, 1, large, [{}])

    assert max(largest) <= 2**28
    assert sum(largest) > 80_000_000
    assert alike(load(storage, 1, Reader(0, 1)).shared, large)


@pytest.mark.process
@pytest.mark.needs("s3")
def test_s3_takes_the_same_shards(tmp_path: Path) -> None:
    with running_s3(tmp_path / "s3") as server:
        storage = open_storage(server.url("run/checkpoints"), server.env)
        shared = state(3, size=3_000_000)

        commit(storage, 5, shared, [{"rank": 0}, {"rank": 1}])

        loaded = load(storage, 5, Reader(1, 2))
    assert alike(loaded.shared, shared)
    assert (loaded.own, loaded.exact_world) == ({"rank": 1}, True)


def resident() -> int:
    """Return the bytes of memory that this process has, as the kernel counts them."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def mappings() -> int:
    """Return how many pieces this process's memory is made of."""
    return len(Path("/proc/self/maps").read_text().splitlines())
