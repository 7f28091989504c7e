"""What the ranks of this host use: processor and memory, and the GPUs that they named as theirs.

Nobody stores it: it is measured while somebody listens, and what was missed stays so.
"""

import contextlib
import importlib
import time
from collections.abc import Iterable
from typing import Any

import psutil

from torchloom.launch.host.identity import ProcessIdentity
from torchloom.server.drafts import Draft
from torchloom.weaver.store.rows import RankProcessRow
from torchloom.weaver.views import when

_NVML = "pynvml"  # of the package nvidia-ml-py, which may find no driver


class Meters:
    """Measure ranks, each figure since the one before; of one thread at a time."""

    def __init__(self) -> None:
        self._processes: dict[str, psutil.Process] = {}
        self._nvml = _nvml()

    def measure(
        self, job: str, ranks: Iterable[RankProcessRow], now: float | None = None
    ) -> list[Draft]:
        """Return what each rank of a job that lives on this host uses."""
        at = time.time() if now is None else now
        found = []
        for rank in ranks:
            with contextlib.suppress(psutil.Error):
                if (process := self._process(rank)) is not None:
                    found.append(_draft(job, rank, at, self._usage(process, rank.devices)))
        return found

    def _process(self, rank: RankProcessRow) -> psutil.Process | None:
        """Return the very process that registered as this rank, if it is one of this host."""
        here = ProcessIdentity.of(rank.pid)
        if here is None or here.started != str(rank.started):
            self._processes.pop(rank.incarnation, None)
            return None
        if rank.incarnation not in self._processes:
            process = self._processes[rank.incarnation] = psutil.Process(rank.pid)
            process.cpu_percent(None)  # from now on
        return self._processes[rank.incarnation]

    def _usage(self, process: psutil.Process, devices: Iterable[str]) -> dict[str, Any]:
        with process.oneshot():
            cpu, memory = process.cpu_percent(None), process.memory_info().rss
        gpus = [usage for uuid in devices if (usage := self._gpu(uuid)) is not None]
        return {"cpu": cpu, "memory": memory, "gpu": gpus}

    def _gpu(self, uuid: str) -> dict[str, Any] | None:
        nvml = self._nvml
        if nvml is None or not uuid.startswith("GPU-"):
            return None
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
            busy = nvml.nvmlDeviceGetUtilizationRates(handle).gpu
            memory = nvml.nvmlDeviceGetMemoryInfo(handle).used
        except nvml.NVMLError:
            return None
        return {"uuid": uuid, "busy": float(busy), "memory": int(memory)}


def _draft(job: str, rank: RankProcessRow, at: float, usage: dict[str, Any]) -> Draft:
    body = {
        "type": "resource",
        **usage,
        "seq": int(at * 1000),
        "time": when(at),
        "rank": rank.rank,
        "role": rank.role,
        "node": rank.node,
        "job": job,
    }
    return Draft(job, "resource", rank.rank, at, body, {})


def _nvml() -> Any:
    try:
        nvml = importlib.import_module(_NVML)
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:  # no driver, no GPUs
        return None
    return nvml
