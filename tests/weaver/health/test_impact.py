"""What is foreseen of a device is what the rules do about it, by job."""

from typing import Any

import pytest

from torchloom.rules import response
from torchloom.rules.devices import DeviceState, DRMap, MappedRank, RankId
from torchloom.rules.response import FailurePolicy, LossRecovery
from torchloom.weaver.health.responses import impact_of

# Ranks 0 and 1 are one replica group, 2 and 3 another; each has a device, and another job the last.
MAP = DRMap().register(
    *(
        MappedRank(RankId("gpt", "trainer", rank), frozenset({f"GPU-{rank}"}), "AABB"[rank])
        for rank in range(4)
    ),
    MappedRank(RankId("other", "trainer", 0), frozenset({"GPU-3"})),
)


def outlook(
    state: DeviceState, *devices: str, policy: FailurePolicy | None = None, drmap: DRMap = MAP
) -> list[dict[str, Any]]:
    policies = {} if policy is None else {"gpt": policy, "other": policy}
    before = response.State(drmap, policies, frozenset({"gpt"}) if policy == LIVE else frozenset())
    said = {name: response.DeviceReported(name, state, "") for name in devices}
    effects = {name: response.step(before, one)[1] for name, one in said.items()}
    return impact_of(effects, {name: MAP.processes_on(name) for name in devices})


LIVE = FailurePolicy(LossRecovery.LIVE)


@pytest.mark.parametrize(
    ("policy", "then", "ends"),
    [
        (LIVE, "replaced", [1]),
        (FailurePolicy(LossRecovery.RESTART), "restarted", [0, 1]),
        (FailurePolicy(LossRecovery.SHRINK), "shrunk", [0, 1]),
        (FailurePolicy(LossRecovery.FAIL), "failed", [0, 1, 2, 3]),
    ],
)
def test_a_device_that_fails_ends_whom_the_jobs_policy_says(
    policy: FailurePolicy, then: str, ends: list[int]
) -> None:
    assert outlook(DeviceState.FAILED, "GPU-1", policy=policy) == [
        {"job": "gpt", "ranks": [1], "ends": ends, "then": then}
    ]


def test_every_job_on_a_device_is_named() -> None:
    policy = FailurePolicy(LossRecovery.RESTART)

    assert outlook(DeviceState.FAILED, "GPU-3", policy=policy) == [
        {"job": "gpt", "ranks": [3], "ends": [2, 3], "then": "restarted"},
        {"job": "other", "ranks": [0], "ends": [0], "then": "restarted"},
    ]


def test_devices_that_are_drained_or_well_again_end_nobody() -> None:
    stay = [{"job": "gpt", "ranks": [0, 1], "ends": [], "then": "stays"}]

    assert outlook(DeviceState.DRAINING, "GPU-0", "GPU-1") == stay
    assert outlook(DeviceState.HEALTHY, "GPU-0", "GPU-1") == []  # they are
    assert outlook(DeviceState.FAILED, "GPU-9") == []  # nobody uses it


def test_a_device_that_is_so_already_concerns_nobody() -> None:
    before = MAP.mark("GPU-0", DeviceState.DRAINING)

    assert outlook(DeviceState.DRAINING, "GPU-0", "GPU-2", drmap=before) == [
        {"job": "gpt", "ranks": [2], "ends": [], "then": "stays"}
    ]
    assert outlook(DeviceState.HEALTHY, "GPU-0", "GPU-2", drmap=before) == [
        {"job": "gpt", "ranks": [0], "ends": [], "then": "stays"}
    ]
