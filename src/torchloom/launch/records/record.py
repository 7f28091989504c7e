"""What is known of a run: its launch process writes it, every verb reads it, the dead are found
out."""

import time
from collections.abc import Mapping
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Any

from torchloom.launch.grammar.values import PolicyFields
from torchloom.launch.host.identity import ProcessIdentity, host_name
from torchloom.specs.api import NONE, AppState
from torchloom.specs.dataclass import dataclass

LAUNCHER_LOST = "launcher_lost"
RANKS_ENDED = "ranks_ended"
RECORD_DAMAGED = "record_damaged"
TERMINAL = frozenset({AppState.SUCCEEDED, AppState.FAILED, AppState.CANCELLED})


@dataclass(frozen=True, slots=True)
class RankRecord:
    """One rank: where it ran last and how it ended."""

    role: str
    replica: int
    rank: int
    local_rank: int
    state: AppState = AppState.PENDING
    process: ProcessIdentity | None = None
    attempt: int = 0
    exit_code: int | None = None
    logs: str = ""
    started_at: str | None = None
    ended_at: str | None = None
    warmth: str = ""  # "warm", or "cold" and why
    life: int = 1  # the number of the rank's process in this attempt
    generation: int = 0  # that it was born into
    step: int | None = None  # that it was in when it ended, by its own page

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "RankRecord":
        return cls(
            **{
                **_known(cls, data),
                "state": AppState[data["state"]],
                "process": _process(data["process"]),
            }
        )


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run as its launch process last saw it."""

    id: str
    name: str
    session: str
    owner: str
    host: str
    log_dir: str
    created_at: str
    state: AppState = AppState.SUBMITTED
    reason: str = ""
    error: str = NONE
    restarts: int = 0
    generation: int = 0  # the highest that was ever asked for
    started_at: str | None = None
    ended_at: str | None = None
    guard: ProcessIdentity | None = None
    launcher: ProcessIdentity | None = None
    lost_log_bytes: int = 0
    parent: str = ""  # the run whose rank launched this one, as torchrun's shim does
    ranks: tuple[RankRecord, ...] = field(default_factory=tuple)
    policy: PolicyFields = field(default_factory=dict)  # as the command line said it
    checkpoints: str = ""  # the root of its checkpoints, where it may have any
    saves: bool = False  # it was described as a job that does
    deadline: int = 0  # unix seconds when its allocation ends; 0: unknown
    first_error: Mapping[str, Any] = field(default_factory=dict)  # by time: rank, words, traceback
    shell: ProcessIdentity | None = None  # the leader of the session that started it
    step: int | None = None  # that all its ranks had reached at the end, as far as is known

    def to_dict(self) -> dict[str, Any]:
        data = asdict(self)
        data["state"] = self.state.name
        for rank in data["ranks"]:
            rank["state"] = AppState(rank["state"]).name
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "RunRecord":
        return cls(
            **{
                **_known(cls, data),
                "state": AppState[data["state"]],
                "guard": _process(data.get("guard")),
                "launcher": _process(data.get("launcher")),
                "shell": _process(data.get("shell")),
                "ranks": tuple(RankRecord.from_dict(rank) for rank in data["ranks"]),
            }
        )

    def log_path(self, rank: RankRecord) -> Path:
        """Return the folder of a rank's logs."""
        return Path(self.log_dir) / rank.logs

    def is_over(self) -> bool:
        return self.state in TERMINAL

    def truth(self) -> "RunRecord":
        """Return the record as it must be read now: one whose launcher is gone has failed.

        The launch process writes the end, the guard where that cannot; so if a run is not over and
        both are gone (killed, or the host was booted anew), no process will ever end it.
        """
        if self.is_over() or any(_may_live(owner) for owner in self.owners()):
            return self
        return self.lost()

    def owners(self) -> tuple[ProcessIdentity, ...]:
        """Return the processes that may still write the run's end."""
        return tuple(owner for owner in (self.guard, self.launcher) if owner is not None)

    def wait_end(self, timeout: float) -> bool:
        """Sleep until no process owns the run, woken by the kernel; false if time ran out."""
        deadline = time.monotonic() + timeout
        return all(owner.wait_exit(deadline - time.monotonic()) for owner in self.owners())

    def lost(self) -> "RunRecord":
        """Return how the run ended when its launch process vanished."""
        ranks = tuple(
            replace(rank, state=AppState.FAILED) if rank.state not in TERMINAL else rank
            for rank in self.ranks
        )
        return replace(self, state=AppState.FAILED, reason=LAUNCHER_LOST, ranks=ranks)

    def why(self) -> str:
        """Return the reason of its state; one that ended well has the word for that."""
        return self.reason or (RANKS_ENDED if self.state is AppState.SUCCEEDED else "")


def _process(data: dict[str, Any] | None) -> ProcessIdentity | None:
    return ProcessIdentity.from_dict(data) if data else None


def _known(cls: type, data: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what only a newer torchloom knows."""
    return {name: data[name] for name in cls.__slots__ if name in data}  # type: ignore[attr-defined]


def _may_live(owner: ProcessIdentity) -> bool:
    """A process of another host cannot be looked at from here; its record is believed."""
    return owner.is_alive() if owner.is_here() else owner.host != host_name()
