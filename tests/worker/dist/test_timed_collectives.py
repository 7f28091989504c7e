"""Timed collectives are those that ran: as many, of that size, and as long as a peer was late."""

from dataclasses import dataclass
from typing import Any

import pytest

from torchloom.worker.dist.comm import CollectiveCall, calls_of, every_of, metrics_of

LATE = 0.3  # seconds
ENGINES = """
import time
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed import _functional_collectives as functional
from torchloom.worker.dist.comm import CollectiveProfile
rank = dist.setup_torch()
say, logged = dist.comm.collectives(), {}

def log(step, values, at=None):
    logged[step] = values

def ddp(step):
    replicated(torch.ones(2, 8)).sum().backward()

def fsdp(step):
    sharded(torch.ones(2, 64)).sum().backward()

def functions(step):
    distributed.all_reduce(torch.ones(100))
    functional.all_gather_tensor(torch.ones(30), 0, distributed.group.WORLD).sum()

def own(step):
    say.allreduce(torch.ones(10, dtype=torch.float64), "mean")
    say.broadcast(torch.ones(7, dtype=torch.int64))

def late(step):
    if rank == 1:
        time.sleep(LATE)
    say.allreduce(torch.ones(1))

replicated = nn.parallel.DistributedDataParallel(nn.Linear(8, 8))
sharded = fully_shard(nn.Linear(64, 64, bias=False))
for part in (ddp, ddp, fsdp):
    part(0)  # what torch does once only: DDP lays out its buckets in the second pass
profile = CollectiveProfile(2, log)
for step, part in enumerate((own, own, ddp, ddp, fsdp, fsdp, functions, own, own, own, late)):
    profile.reach(step)
    part(step)
profile.stop()
say.allreduce(torch.ones(1))
profile.stop()
tell(logged)
dist.cleanup()
"""


@pytest.mark.process
def test_every_collective_of_a_timed_step_is_counted_whoever_calls_it(ranks: Any) -> None:
    first, second = ranks.group(ENGINES.replace("LATE", str(LATE)), 2)

    for rows in (first, second):
        moved = {
            step: {
                name.removesuffix("/bytes"): value
                for name, value in values.items()
                if name.endswith("/bytes")
            }
            for step, values in rows.items()
        }
        assert moved == {
            "2": {"comm": 288, "comm/gloo/all_reduce": 288},  # 8 x 8 weights, 8 of a bias
            "4": {
                "comm": 8192 + 16384,
                "comm/gloo/all_gather": 8192,  # half of 64 x 64 weights
                "comm/gloo/all_reduce": 16384,  # how gloo reduces and scatters
            },
            "6": {
                "comm": 400 + 120,
                "comm/gloo/all_reduce": 400,
                "comm/gloo/all_gather": 120,
            },
            "8": {"comm": 80 + 56, "comm/gloo/all_reduce": 80, "comm/gloo/broadcast": 56},
            "10": {"comm": 4, "comm/gloo/all_reduce": 4},
        }
        assert {rows[step]["comm/gloo/all_reduce/calls"] for step in rows} == {1}
        assert all(values["comm/seconds"] > 0 for values in rows.values())
    assert first["10"]["comm/seconds"] >= 0.9 * LATE  # it waited, and the late one did not
    assert second["10"]["comm/seconds"] < first["10"]["comm/seconds"]


def test_no_moment_is_counted_twice() -> None:
    calls = [
        CollectiveCall("gloo/all_reduce", 8, 0, 4_000_000_000),
        CollectiveCall("gloo/all_reduce", 8, 1_000_000_000, 2_000_000_000),
        CollectiveCall("gloo/all_gather", 4, 3_000_000_000, 6_000_000_000),
        CollectiveCall("gloo/all_gather", 4, 8_000_000_000, 9_000_000_000),
    ]

    assert metrics_of(calls) == {
        "comm/gloo/all_reduce/seconds": 5.0,
        "comm/gloo/all_reduce/bytes": 16,
        "comm/gloo/all_reduce/calls": 2,
        "comm/gloo/all_gather/seconds": 4.0,
        "comm/gloo/all_gather/bytes": 8,
        "comm/gloo/all_gather/calls": 2,
        "comm/seconds": 7.0,
        "comm/bytes": 24,
    }
    assert metrics_of([]) == {"comm/seconds": 0.0, "comm/bytes": 0}


@dataclass(frozen=True)
class ProfiledEvent:
    """An event as torch's profiler gives it."""

    title: str
    sizes: tuple[Any, ...] = ()
    types: tuple[str, ...] = ()

    def name(self) -> str:
        return self.title

    def shapes(self) -> tuple[Any, ...]:
        return self.sizes

    def dtypes(self) -> tuple[str, ...]:
        return self.types

    def start_ns(self) -> int:
        return 5

    def duration_ns(self) -> int:
        return 2


def test_of_nccl_the_bytes_are_the_calls_and_the_algorithm_is_the_kernels() -> None:
    kernel = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    events = [
        ProfiledEvent("aten::mm", ([4, 4],), ("float",)),
        ProfiledEvent("nccl:all_reduce", ([4, 4],), ("c10::BFloat16",)),
        ProfiledEvent(kernel),
        ProfiledEvent("c10d::allreduce_", ([4, 4],), ("float",)),
    ]

    assert calls_of(events) == [
        CollectiveCall("nccl/all_reduce", 32, 5, 7),
        CollectiveCall("nccl/allreduce_ring_ll", 0, 5, 7),
    ]


@pytest.mark.parametrize(
    ("variable", "submitted", "every"),
    [("", {}, 0), ("", {"comm_timing": 5}, 5), ("3", {"comm_timing": 5}, 3), ("0", {}, 0)],
)
def test_who_asks_says_how_often(
    monkeypatch: pytest.MonkeyPatch, variable: str, submitted: dict[str, int], every: int
) -> None:
    monkeypatch.setenv("LOOM_COMM_TIMING", variable)

    assert every_of(submitted) == every


def test_what_is_no_number_of_steps_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOOM_COMM_TIMING", "often")

    assert every_of({"comm_timing": 5}) == 5
    assert capsys.readouterr().err == (
        "loom: LOOM_COMM_TIMING='often' is ignored; it must be a number of steps\n"
    )
