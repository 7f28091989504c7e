"""GPUs that fail: what the driver's library was heard to say, and what the weaver hears of it."""

import asyncio
import ctypes
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from torchloom.bus import subjects
from torchloom.bus.codec import decode
from torchloom.bus.memory import Exchange, MemoryBus
from torchloom.launch.node_agent import gpus
from torchloom.launch.node_agent.gpus import GpuHealth, HealthWatch, NvmlGpus, Xid, judge
from torchloom.launch.node_agent.service import NodeAgent
from torchloom.launch.node_agent.uplink import AgentIdentity
from torchloom.messages.plane import NO_RANK, VERSION, Device, DeviceEvent, Head, Message

from ...harness.async_wait import come_true, live
from .nvml.recorded import NVMLError, RecordedNvml
from .weaving import Database, FakeWeaver

UUID = "GPU-1d5f0489-8ece-45e0-b018-95a132420001"
AGENT = Head(VERSION, "", 0, NO_RANK, "boot/1")


class Hearer:
    """The way to the weaver, which may be away."""

    def __init__(self) -> None:
        self.is_there = True
        self.heard: list[tuple[str, str, str]] = []

    async def say(self, said: DeviceEvent) -> bool:
        if self.is_there:
            assert (said.head, said.source) == (AGENT, "nvml")
            self.heard.append((said.device, said.state, said.reason))
        return self.is_there


def test_a_well_gpu_is_read() -> None:
    nvml = RecordedNvml("start", "well", "quiet")

    found = NvmlGpus(nvml)

    assert found.devices() == (Device(UUID, "cuda", 0, 150754820096),)
    assert found.health(UUID) == GpuHealth(35, 0, False, False)
    assert found.wait(0.2) is None
    nvml.done()


def test_what_a_gpu_does_not_count_is_not_known() -> None:
    found = NvmlGpus(RecordedNvml("start", "small"))
    found.devices()

    assert found.health(UUID) == GpuHealth(51)


def watched(*recordings: str) -> tuple[RecordedNvml, NvmlGpus]:
    nvml = RecordedNvml("start", *recordings)
    return nvml, NvmlGpus(nvml)


def test_a_program_that_uses_foreign_memory_is_not_the_gpus_fault() -> None:
    async def story() -> None:
        (nvml, found), hearer = watched("fault"), Hearer()
        watch = HealthWatch(AGENT, found, hearer.say)

        await watch.look_for_errors()

        nvml.done()
        assert hearer.heard == []

    asyncio.run(story())


def test_a_gpu_that_falls_off_the_bus_has_failed_and_that_is_said_once() -> None:
    async def story() -> None:
        (nvml, found), hearer = watched("off_the_bus"), Hearer()
        watch = HealthWatch(AGENT, found, hearer.say)

        await watch.look_for_errors()
        await watch.look_at_counters()

        nvml.done()
        assert hearer.heard == [(UUID, "failed", "xid_79")]
        assert watch.facts[UUID]["is_lost"]

    asyncio.run(story())


def test_a_row_that_waits_for_a_reset_has_the_gpu_left() -> None:
    async def story() -> None:
        (nvml, found), hearer = watched("remap"), Hearer()
        watch = HealthWatch(AGENT, found, hearer.say)

        await watch.look_for_errors()
        await watch.look_at_counters()

        nvml.done()
        assert hearer.heard == [(UUID, "draining", "xid_63")]
        facts = watch.facts[UUID]
        assert facts["slowed_by"] == ("software thermal", "hardware thermal")
        assert (facts["temperature"], facts["uncorrected"], facts["remap_pending"]) == (93, 2, True)

    asyncio.run(story())


def test_what_nobody_was_there_to_hear_is_said_later() -> None:
    async def story() -> None:
        (_, found), hearer = watched("off_the_bus"), Hearer()
        watch = HealthWatch(AGENT, found, hearer.say)
        hearer.is_there = False
        await watch.look_for_errors()

        hearer.is_there = True
        await watch.look_at_counters()

        assert hearer.heard == [(UUID, "failed", "xid_79")]

    asyncio.run(story())


def test_a_library_that_fails_is_let_be(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def devices(self) -> tuple[Device, ...]:
            return (Device(UUID, "cuda", 0),)

        def health(self, uuid: str) -> GpuHealth:
            return GpuHealth()

        def wait(self, seconds: float) -> Xid | None:
            raise NVMLError(999)

        def close(self) -> None: ...

    asyncio.run(HealthWatch(AGENT, Broken(), Hearer().say).run())

    assert "GPUs are no longer watched: NVML error 999" in caplog.text


@pytest.mark.parametrize(
    ("health", "verdict"),
    [
        (GpuHealth(), (None, "")),
        (GpuHealth(temperature=95, uncorrected=7, slowed_by=("hardware",)), (None, "")),
        (GpuHealth(remap_pending=True), ("draining", "row_remap_pending")),
        (GpuHealth(remap_pending=True, remap_failed=True), ("draining", "row_remap_failed")),
        (GpuHealth(is_lost=True), ("failed", "gpu_is_lost")),
    ],
)
def test_what_counters_mean(health: GpuHealth, verdict: tuple[str | None, str]) -> None:
    assert judge(health) == verdict


def test_without_library_or_driver_there_are_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpus.find("no_such_module_of_ours") is None

    def fail() -> None:
        raise NVMLError(12)

    silent = ModuleType("silent_nvml")
    silent.__dict__.update(NVMLError=NVMLError, nvmlInit=fail)
    monkeypatch.setitem(sys.modules, "silent_nvml", silent)
    assert gpus.find("silent_nvml") is None


class Driver:
    """A library that hands out pointers, as the real one does, never the same object twice."""

    class _Device(ctypes.Structure):
        pass

    NVMLError = NVMLError

    def __init__(self) -> None:
        self._memory = (ctypes.c_char * 64)()

    def __getattr__(self, name: str) -> Any:
        return {
            "nvmlEventTypeXidCriticalError": 8,
            "nvmlDeviceGetCount": lambda: 2,
            "nvmlDeviceGetHandleByIndex": self._pointer,
            "nvmlDeviceGetUUID": lambda handle: f"GPU-{_address(handle) - self._begin}",
            "nvmlDeviceGetSupportedEventTypes": lambda handle: 8,
            "nvmlEventSetWait_v2": lambda events, ms: SimpleNamespace(
                device=self._pointer(1), eventData=79
            ),
        }.get(name, lambda *args: None)

    @property
    def _begin(self) -> int:
        return ctypes.addressof(self._memory)

    def _pointer(self, index: int) -> Any:
        return ctypes.cast(self._begin + index, ctypes.POINTER(self._Device))


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def test_the_gpu_of_an_error_is_known_without_asking_it() -> None:
    assert NvmlGpus(Driver()).wait(1.0) == Xid("GPU-1", 79)


class Failing:
    """A node whose GPU falls off the bus at once."""

    def __init__(self) -> None:
        self._errors = [Xid(UUID, 79)]

    def devices(self) -> tuple[Device, ...]:
        return (Device(UUID, "cuda", 0),)

    def health(self, uuid: str) -> GpuHealth:
        return GpuHealth()

    def wait(self, seconds: float) -> Xid | None:
        time.sleep(0.01)  # as the library blocks
        return self._errors.pop() if self._errors else None

    def close(self) -> None: ...


@pytest.mark.process
def test_an_agent_tells_the_weaver_of_its_gpu_when_there_is_one(tmp_path: Path) -> None:
    async def story() -> None:
        exchange, heard = Exchange(), list[tuple[str, Message]]()
        listening, bus = MemoryBus(exchange), MemoryBus(exchange, subjects.inbox("here"))

        async def hear(subject: str, data: bytes, reply: str) -> None:
            heard.append((subject, decode(data, DeviceEvent)))

        await listening.subscribe(subjects.AGENT_DEVICES, hear)
        me = AgentIdentity("here", "host", "boot", 1)
        address, spool = tmp_path / "run" / "a.sock", tmp_path / "spool"
        relay = NodeAgent(me, bus, address, spool, gpus=Failing())
        running = asyncio.create_task(relay.run())
        await come_true(lambda: address.with_suffix(".json").exists())

        await FakeWeaver(MemoryBus(exchange), Database()).start()
        await come_true(lambda: heard)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

        said = DeviceEvent(me.head(), UUID, "failed", "nvml", "xid_79")
        assert heard == [(subjects.devices("here"), said)]

    live(story)
