"""Who this process is in its job, as the launcher said it in the environment."""

import json
import math
import os
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchloom.messages.plane import VERSION, Boundary, Head, Knob, Register, Value
from torchloom.worker.environment import (
    AGENT_VARIABLE,
    ATTEMPT_VARIABLE,
    GENERATION_VARIABLE,
    HANG_LIMIT_VARIABLE,
    HANG_VARIABLE,
    JOB_SPEC_VARIABLE,
    JOB_VARIABLE,
    LIFE_VARIABLE,
    PAGE_VARIABLE,
    STORE_VARIABLE,
)
from torchloom.worker.threadlet.owner import started

ACTIONS = ("kill", "notify", "off")


@dataclass(frozen=True, slots=True)
class SubmittedJob:
    """Of a job what its program can use; nothing for a program that nobody submitted."""

    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    knobs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # value, min, max
    checkpointing: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None


def submitted(env: Mapping[str, str]) -> SubmittedJob:
    """Return what a rank's environment says of its job; what makes no sense says nothing."""
    try:
        spec = json.loads(env.get(JOB_SPEC_VARIABLE) or "{}")
    except ValueError:
        return SubmittedJob()
    if not isinstance(spec, dict):
        return SubmittedJob()
    knobs = {name: _knob(value) for name, value in _mapping(spec, "knobs").items()}
    seed = spec.get("seed")
    return SubmittedJob(
        hyperparameters=_mapping(spec, "hyperparameters"),
        knobs=knobs,
        checkpointing=_mapping(spec, "checkpointing"),
        seed=seed if type(seed) is int else None,
    )


def _mapping(spec: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = spec.get(name)
    return found if isinstance(found, dict) else {}


def _knob(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {"value": value}


def hang_settings(env: Mapping[str, str]) -> dict[str, Value]:
    """Return the settings; what makes no sense is noted and is none."""
    settings: dict[str, Value] = {}
    action, limit = env.get(HANG_VARIABLE, ""), env.get(HANG_LIMIT_VARIABLE, "")
    if action in ACTIONS:
        settings["action"] = action
    elif action:
        _ignore(HANG_VARIABLE, action, f"one of {', '.join(ACTIONS)}")
    if limit:
        seconds = _seconds(limit)
        if seconds > 0:
            settings["limit"] = seconds
        else:
            _ignore(HANG_LIMIT_VARIABLE, limit, "a number of seconds")
    return settings


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        return 0.0
    return seconds if math.isfinite(seconds) else 0.0


def _ignore(name: str, value: str, wanted: str) -> None:
    sys.stderr.write(f"loom: {name}={value!r} is ignored; it is to be {wanted}\n")


@dataclass(frozen=True, slots=True)
class RankIdentity:
    """One life of one rank: what is the same in everything it says."""

    job: str
    generation: int
    rank: int
    world_size: int
    local_rank: int
    role: str
    node: str
    replica: str
    devices: tuple[str, ...]
    agent: str
    page: str
    store: str
    pid: int
    started: int
    incarnation: str
    hang: dict[str, Value] = field(default_factory=dict)
    start_count: int = 1  # the how manieth process of its rank in this attempt
    attempt: int = 0

    @classmethod
    def of(cls, env: Mapping[str, str]) -> "RankIdentity":
        """Read the variables; a process that nobody launched is the only rank of its own job."""
        rank, local_rank = _number(env, "RANK"), _number(env, "LOCAL_RANK")
        role, node = env.get("LOOM_ROLE") or "trainer", env.get("LOOM_NODE") or os.uname().nodename
        return cls(
            job=env.get(JOB_VARIABLE) or f"local-{os.getpid()}",
            generation=_number(env, GENERATION_VARIABLE, _number(env, ATTEMPT_VARIABLE)),
            rank=rank,
            world_size=_number(env, "WORLD_SIZE", 1),
            local_rank=local_rank,
            role=role,
            node=node,
            replica=env.get("LOOM_REPLICA") or f"{role}/{rank}",
            devices=_devices(env, node, local_rank),
            agent=env.get(AGENT_VARIABLE, ""),
            page=env.get(PAGE_VARIABLE, ""),
            store=env.get(STORE_VARIABLE, ""),
            pid=os.getpid(),
            started=started(),
            incarnation=uuid.uuid4().hex,
            hang=hang_settings(env),
            start_count=_number(env, LIFE_VARIABLE, 1),
            attempt=_number(env, ATTEMPT_VARIABLE),
        )

    @property
    def own_folder(self) -> Path:
        """Return where a rank keeps what its next life on this node is to find."""
        name = f"{self.role}-a{self.attempt}-r{self.rank}"
        return Path(self.page).parent / "pages" / name

    def head(self) -> Head:
        """Return what stands at the head of each message."""
        return Head(VERSION, self.job, self.generation, self.rank, self.incarnation, self.role)

    def is_meant(self, head: Head) -> bool:
        """Tell whether a message is for this very life; an empty incarnation means whichever."""
        return head.generation == self.generation and self.is_named(head)

    def is_named(self, head: Head) -> bool:
        """Tell the same of one that may speak of another generation: members change."""
        return (head.job, head.rank) == (self.job, self.rank) and (
            head.incarnation in ("", self.incarnation)
        )

    def register(self, boundary: Boundary, knobs: tuple[Knob, ...]) -> Register:
        """Return how the rank introduces itself."""
        return Register(
            head=self.head(),
            role=self.role,
            local_rank=self.local_rank,
            node=self.node,
            pid=self.pid,
            started=self.started,
            replica=self.replica,
            devices=self.devices,
            boundary=boundary,
            knobs=knobs,
            world_size=self.world_size,
            page=self.page,
            hang=self.hang,
            life=self.start_count,
            attempt=self.attempt,
        )


def _number(env: Mapping[str, str], name: str, default: int = 0) -> int:
    text = env.get(name, "")
    return int(text) if text.isdecimal() else default


def _devices(env: Mapping[str, str], node: str, local_rank: int) -> tuple[str, ...]:
    """Return what the launcher dealt, by stable names; without an accelerator it is a CPU slot."""
    mask = _words(env.get("CUDA_VISIBLE_DEVICES", ""))
    named = [word for word in mask if word.startswith(("GPU-", "MIG-"))]
    dealt = [word for word in _words(env.get("LOOM_DEVICES", "")) if not _is_offer(word)]
    return tuple(dealt or named) or (f"{node}/cpu/{local_rank}",)


def _is_offer(word: str) -> bool:
    """Tell an agent's choice of what to offer, `cpu:4` or `0`, from the name of a device."""
    return ":" in word or word.isdecimal()


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]
