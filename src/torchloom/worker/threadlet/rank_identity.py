"""The identity of this process in its job, from the launcher's variables."""

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
    INCARNATION_VARIABLE,
    JOB_SPEC_VARIABLE,
    JOB_VARIABLE,
    PAGE_VARIABLE,
    STORE_VARIABLE,
)
from torchloom.worker.threadlet.owner import started

ACTIONS = ("kill", "notify", "off")


@dataclass(frozen=True, slots=True)
class SubmittedJob:
    """The parts of a submitted job that its program uses; empty if none was submitted."""

    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    knobs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # value, min, max
    checkpointing: Mapping[str, Any] = field(default_factory=dict)
    distributed: Mapping[str, Any] = field(default_factory=dict)
    compression: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None


def submitted(env: Mapping[str, str]) -> SubmittedJob:
    """Return the submitted job of a rank's environment; malformed parts are ignored."""
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
        distributed=_mapping(spec, "distributed"),
        compression=_mapping(spec, "compression"),
        seed=seed if type(seed) is int else None,
    )


def _mapping(spec: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = spec.get(name)
    return found if isinstance(found, dict) else {}


def _knob(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {"value": value}


def hang_settings(env: Mapping[str, str]) -> dict[str, Value]:
    """Return the hang settings; invalid ones are reported and ignored."""
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
    sys.stderr.write(f"loom: {name}={value!r} is ignored; it must be {wanted}\n")


@dataclass(frozen=True, slots=True)
class RankIdentity:
    """One process of one rank: the facts that are in all of its messages."""

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
    start_count: int = 1  # which process of its rank this is in the attempt
    attempt: int = 0

    @classmethod
    def of(cls, env: Mapping[str, str]) -> "RankIdentity":
        """Read the variables; a process without a launcher is the only rank of its own job."""
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
            start_count=_number(env, INCARNATION_VARIABLE, 1),
            attempt=_number(env, ATTEMPT_VARIABLE),
        )

    @property
    def own_folder(self) -> Path:
        """The folder in which a rank keeps state for its next process on this node."""
        name = f"{self.role}-a{self.attempt}-r{self.rank}"
        return Path(self.page).parent / "pages" / name

    def head(self) -> Head:
        """Return the head of the rank's messages."""
        return Head(VERSION, self.job, self.generation, self.rank, self.incarnation, self.role)

    def is_meant(self, head: Head) -> bool:
        """Tell whether a message is for this process; an empty incarnation means any."""
        return head.generation == self.generation and self.is_named(head)

    def is_named(self, head: Head) -> bool:
        """Tell whether a membership message, which may name another generation, is for it."""
        return (head.job, head.rank) == (self.job, self.rank) and (
            head.incarnation in ("", self.incarnation)
        )

    def register(self, boundary: Boundary, knobs: tuple[Knob, ...]) -> Register:
        """Return the message that registers the rank."""
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
    """Return the stable names of the assigned devices; without one, a CPU slot."""
    mask = _words(env.get("CUDA_VISIBLE_DEVICES", ""))
    named = [word for word in mask if word.startswith(("GPU-", "MIG-"))]
    dealt = [word for word in _words(env.get("LOOM_DEVICES", "")) if not _is_offer(word)]
    return tuple(dealt or named) or (f"{node}/cpu/{local_rank}",)


def _is_offer(word: str) -> bool:
    """Tell whether a word is an agent's offer, `cpu:4` or `0`, and not the name of a device."""
    return ":" in word or word.isdecimal()


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]
