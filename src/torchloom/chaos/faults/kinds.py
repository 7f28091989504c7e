"""The table of fault kinds: target, conditions, and the reasons that a job may report."""

from collections.abc import Iterable
from dataclasses import dataclass

from torchloom.errors import UserError, nearest, shorten

RANK = "rank"  # the target of most kinds


@dataclass(frozen=True, slots=True)
class FaultKind:
    """One kind of fault."""

    name: str
    hits: str  # a rank, a part of the plane, a link, a file
    summary: str  # what it does, in one line
    root: bool = False
    seconds: float | None = None  # default duration; None: it does not last
    reasons: tuple[str, ...] = ()  # reasons that the job may report; empty: none is required
    ends_rank: bool = False  # the process that is hit ends and is replaced
    fields: tuple[str, ...] = ()  # fields of a plan's entry beside `at` and `kind`
    needs: str = ""  # the condition, as text

    @property
    def lasts(self) -> bool:
        """Tell whether there is something to undo."""
        return self.seconds is not None


_GIVEN_UP = ("hang_rank_{rank}", "heartbeat_timeout_worker_{rank}", "exit_signal_9_rank_{rank}")

KINDS: dict[str, FaultKind] = {
    kind.name: kind
    for kind in (
        FaultKind(
            "kill",
            RANK,
            "SIGKILL to a rank",
            reasons=("exit_signal_9_rank_{rank}",),
            ends_rank=True,
            fields=("rank",),
        ),
        FaultKind(
            "stop",
            RANK,
            "SIGSTOP to a rank, later SIGCONT",
            seconds=2.0,
            reasons=_GIVEN_UP,
            fields=("rank", "lasts"),
        ),
        FaultKind(
            "raise",
            RANK,
            "an exception in a training step of a rank",
            reasons=("exit_code_1_rank_{rank}",),
            ends_rank=True,
            fields=("rank",),
            needs="a program with `run.steps()`",
        ),
        FaultKind("kill-agent", "agent", "SIGKILL to this node's agent"),
        FaultKind("kill-weaver", "weaver", "SIGKILL to the weaver"),
        FaultKind("kill-nats", "nats", "SIGKILL to NATS", needs="the plane's own NATS"),
        FaultKind(
            "kill-postgres",
            "postgres",
            "SIGKILL to Postgres; restarted later",
            seconds=1.0,
            fields=("lasts",),
            needs="LOOM_DATABASE on this machine, run by the same user, or root",
        ),
        FaultKind(
            "cut-link",
            "link",
            "a network interface goes down",
            root=True,
            seconds=2.0,
            reasons=("node_lost_.*", "exit_code_[0-9]+_rank_[0-9]+"),
            fields=("link", "lasts"),
            needs="an interface without this machine's default route",
        ),
        FaultKind(
            "slow-link",
            "link",
            "a network interface sends at 1 Mbit/s",
            root=True,
            seconds=3.0,
            fields=("link", "lasts"),
            needs="an interface without a traffic shaper",
        ),
        FaultKind(
            "corrupt-shard",
            "shard",
            "one byte of the newest checkpoint changes",
            seconds=5.0,
            fields=("rank", "lasts"),
            needs="checkpoints on a local disk, two of them committed",
        ),
        FaultKind(
            "disk-full",
            "disk",
            "the checkpoints' file system is full",
            seconds=3.0,
            fields=("mb", "lasts"),
            needs="checkpoints on a tmpfs of their own, at most 1024 MB large",
        ),
        FaultKind(
            "clock-step",
            "clock",
            "a rank's clock jumps",
            seconds=3.0,
            fields=("rank", "by", "lasts"),
            needs="ranks under libfaketime with FAKETIME_TIMESTAMP_FILE",
        ),
    )
}


class UnknownKind(UserError):
    """There is no fault of this kind."""

    code = "unknown_fault"

    def __init__(self, name: str) -> None:
        hint = nearest(name, KINDS)
        known = f"known: {', '.join(KINDS)}"
        words = [f"no kind of fault {shorten(name)!r}", hint, known]
        super().__init__("; ".join(word for word in words if word))


def kind_of(name: str) -> FaultKind:
    """Return the kind of this name."""
    if name not in KINDS:
        raise UnknownKind(name)
    return KINDS[name]


def kinds_of(words: str) -> tuple[FaultKind, ...]:
    """Parse `kill,stop` into kinds, each once, in order."""
    names = [word.strip() for word in words.split(",") if word.strip()]
    if not names:
        raise UserError(f"--kinds is empty; known: {', '.join(KINDS)}")
    return tuple(kind_of(name) for name in dict.fromkeys(names))


def table_rows(kinds: Iterable[FaultKind] = KINDS.values()) -> list[tuple[str, ...]]:
    """Return the rows of `loom chaos --kinds help` and of the documentation."""
    return [
        (
            kind.name,
            kind.summary,
            "root" if kind.root else "-",
            "-" if kind.seconds is None else f"{kind.seconds:g} s",
            kind.needs or "-",
        )
        for kind in kinds
    ]
