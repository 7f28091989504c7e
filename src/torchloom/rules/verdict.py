"""Find from stacks, taken twice, the rank that blocks a job: its peers wait for it elsewhere.

A rank is named only if others wait for it and it stood still: between the two samples neither its
stack nor its CPU time nor its reported progress changed, and its step takes longer than usual. A
rank that works is never named, however long that takes.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from torchloom.rules.hang import StackFinding

_PLACES = 3  # that a sentence names
BUSY = 0.25  # of a CPU, from which on a process is taken to work
STANDS = 1.0  # seconds; a rank that moved later than that is not sampled
SLOW = 3.0  # steps, as long as its last one, that a rank may stand before it is sampled
_PEERS = re.compile(
    r"(^|/)torch/(distributed/(?!checkpoint/|elastic/)|nn/parallel/distributed\.py)"
)
_CORE = re.compile(r"(^|/)torch/distributed/(distributed_c10d|c10d_logger)\.py$")
_LOADER = re.compile(r"(^|/)(torch/utils/data|torchdata)/")
_DEVICE = re.compile(r"(^|/)torch/(cuda|xpu|mps|accelerator)/")
_BACKWARD = ("torch/autograd/graph.py", "_engine_run_backward")
_ITS_DEVICE = re.compile(r"\.(item|cpu|tolist|synchronize)\(")
_ITS_PEERS = re.compile(r"\.wait\(")
_FOREIGN = re.compile(r"/(site|dist)-packages/|/lib/python3[.0-9]*/|^<frozen")
_READING = re.compile(r"pipe_|read|write|wait_for_partner|wait_woken|nfs|rpc_|fuse|inode|page|io_")


class VerdictKind(StrEnum):
    """What a rank does while it makes no progress."""

    COLLECTIVE = "waiting in a collective"
    DEVICE = "waiting for its device"
    COMPUTING = "computing"
    STOPPED = "stopped"
    IO = "blocked in IO"
    LOADER = "data loader"
    WAITING = "waiting"
    UNKNOWN = "unknown"


_WAITS = (VerdictKind.COLLECTIVE, VerdictKind.DEVICE)  # for another


@dataclass(frozen=True, slots=True)
class StackFrame:
    """One call of a stack; `text` is the line of the program, where it could be read."""

    function: str
    file: str
    line: int
    text: str = ""

    @property
    def place(self) -> tuple[str, str, int]:
        return self.function, self.file, self.line

    def __str__(self) -> str:
        return f"{self.function} ({'/'.join(self.file.split('/')[-2:])}:{self.line})"


@dataclass(frozen=True, slots=True)
class StackSample:
    """What was seen of a process at one moment: its main thread's calls, the innermost first."""

    at: float  # of its agent's clock
    cpu: float  # seconds that the process has computed so far
    state: str = ""  # the kernel's letter
    waits_in: str = ""  # the kernel's function, where it is known
    frames: tuple[StackFrame, ...] = ()
    step: int | None = None  # as the rank itself reports, like the rest; None where it does not
    phase: int | None = None
    still: float = 0.0  # seconds since it last did
    lasted: float = 0.0  # seconds that its last step took


@dataclass(frozen=True, slots=True)
class RankSamples:
    """A rank's step, and the samples that were taken of it."""

    step: int | None
    looks: tuple[StackSample, ...] = ()


@dataclass(frozen=True, slots=True)
class RankActivity:
    """What the samples of one rank mean."""

    kind: VerdictKind
    has_moved: bool
    where: str = ""
    advances: bool = False  # from step to step, by its own report
    is_usual: bool = False  # no longer in its step, by that report, than in others


@dataclass(frozen=True, slots=True)
class HangVerdict:
    """Ranks that stand and block others; ranks that others wait for, working or not; and why."""

    culprits: tuple[int, ...]
    awaited: tuple[int, ...]
    kind: VerdictKind
    words: str


def judge(ranks: Mapping[int, RankSamples]) -> HangVerdict:
    """Return the verdict on the stacks and steps of a job's ranks."""
    sights = {rank: see(standing.looks) for rank, standing in sorted(ranks.items())}
    waiting = [r for r, sight in sights.items() if sight.kind in _WAITS and not sight.has_moved]
    away = [rank for rank in sights if rank not in waiting]
    if not waiting:
        return _none_waits(sights)
    if not away:
        return _all_wait(ranks, sights)
    furthest = max((s for r in waiting if (s := ranks[r].step) is not None), default=None)
    awaited = [r for r in away if _is_not_past(ranks[r].step, furthest)]
    stand = [
        r for r in awaited if not sights[r].has_moved and sights[r].kind is not VerdictKind.UNKNOWN
    ]
    stand.sort(key=lambda rank: (ranks[rank].step or 0, rank))
    named = stand or awaited or away
    words = f"{_describe(sights, named)} while {_describe(sights, waiting)}"
    return HangVerdict(tuple(stand), tuple(awaited), sights[named[0]].kind, words)


def see(looks: tuple[StackSample, ...]) -> RankActivity:
    """Return what one rank does; with less than two samples its movement is not known."""
    if len(looks) < 2:
        return RankActivity(VerdictKind.UNKNOWN, True, _where(looks[-1].frames) if looks else "")
    first, last = looks[0], looks[-1]
    advances = (first.step, first.phase) != (last.step, last.phase)
    has_moved = [f.place for f in first.frames] != [f.place for f in last.frames]
    states = {first.state, last.state}
    works = last.cpu - first.cpu > BUSY * max(last.at - first.at, 1e-9)
    kind = _kind(
        last, works or "R" in states, states
    )  # on a full machine a runnable process gets little
    if kind is VerdictKind.STOPPED:
        return RankActivity(kind, False, _where(last.frames))
    is_usual = last.step is not None and kind not in _WAITS and not stands(last.still, last.lasted)
    moves = (
        advances or has_moved or is_usual or kind in (VerdictKind.COMPUTING, VerdictKind.UNKNOWN)
    )
    return RankActivity(kind, moves, _where(last.frames), advances, is_usual)


def stands(still: float, lasted: float) -> bool:
    """Return whether a rank has been in its step for longer than its steps usually take."""
    return still > max(STANDS, SLOW * lasted)


def finding(verdict: HangVerdict, ranks: Mapping[int, RankSamples]) -> StackFinding:
    """Return what `rules/hang` compares over time: the culprit, and a fingerprint of its stack."""
    if not verdict.culprits:
        return StackFinding(None, "", verdict.words)
    culprit = verdict.culprits[0]
    calls = (f"{frame}" for frame in ranks[culprit].looks[-1].frames)
    return StackFinding(culprit, "\n".join((verdict.kind, *calls)), verdict.words)


def numbers(ranks: Iterable[int]) -> str:
    """Return ranks as people write them: `ranks 0-2, 7`."""
    left, spans = sorted(ranks), list[str]()
    plural = "s" if len(left) > 1 else ""
    while left:
        first = last = left.pop(0)
        while left and left[0] == last + 1:
            last = left.pop(0)
        spans.append(str(first) if first == last else f"{first}-{last}")
    return f"rank{plural} {', '.join(spans)}"


def _kind(look: StackSample, is_busy: bool, states: Collection[str]) -> VerdictKind:
    if states == {"T"}:
        return VerdictKind.STOPPED
    if not look.frames:
        return (
            VerdictKind.COMPUTING
            if is_busy
            else VerdictKind.IO
            if states == {"D"}
            else VerdictKind.UNKNOWN
        )
    inner = look.frames[0]
    if _is_for_peers(inner, is_busy):
        return VerdictKind.COLLECTIVE
    if _DEVICE.search(inner.file) or _ITS_DEVICE.search(inner.text):
        return VerdictKind.DEVICE
    if is_busy:
        return VerdictKind.COMPUTING
    if any(_LOADER.search(frame.file) for frame in look.frames):
        return VerdictKind.LOADER
    if states == {"D"} or _READING.search(look.waits_in):
        return VerdictKind.IO
    return VerdictKind.UNKNOWN if "t" in states else VerdictKind.WAITING  # a debugger holds it


def _is_for_peers(inner: StackFrame, is_busy: bool) -> bool:
    """Return whether a rank waits for the others; one that works waits only in torch's own wait."""
    if _CORE.search(inner.file):
        return True
    ended = inner.file.endswith(_BACKWARD[0]) and inner.function.endswith(_BACKWARD[1])
    is_own = not _FOREIGN.search(inner.file) and _ITS_PEERS.search(inner.text)
    return not is_busy and bool(ended or is_own or _PEERS.search(inner.file))


def _is_not_past(step: int | None, furthest: int | None) -> bool:
    """Return whether the waiting ranks may wait for a rank in this step."""
    return step is None or furthest is None or step <= furthest


def _none_waits(sights: Mapping[int, RankActivity]) -> HangVerdict:
    """Without a rank that is blocked there is none to blame."""
    kinds = {sight.kind for sight in sights.values()}
    kind = kinds.pop() if len(kinds) == 1 else VerdictKind.UNKNOWN
    words = f"no rank waits for another: {_describe(sights, sights)}" if sights else "no stacks"
    return HangVerdict((), (), kind, words)


def _all_wait(ranks: Mapping[int, RankSamples], sights: Mapping[int, RankActivity]) -> HangVerdict:
    """All are in a collective: only a rank that is behind in steps can be named."""
    words = f"all ranks wait for each other: {_describe(sights, sights)}"
    steps = {rank: standing.step for rank, standing in ranks.items()}
    known = {rank: step for rank, step in steps.items() if step is not None}
    is_clear = all(sight.kind is VerdictKind.COLLECTIVE for sight in sights.values())
    if not is_clear or len(known) < len(steps) or len(set(known.values())) == 1:
        return HangVerdict((), (), VerdictKind.COLLECTIVE, words)
    lowest = min(known.values())
    behind = tuple(rank for rank, step in sorted(known.items()) if step == lowest)
    ahead = [rank for rank in sights if rank not in behind]
    late = f"{_describe(sights, behind)} in step {lowest}"
    words = f"{late} while {_describe(sights, ahead)} in step {max(known.values())}"
    return HangVerdict(behind, behind, VerdictKind.COLLECTIVE, words)


def _describe(sights: Mapping[int, RankActivity], ranks: Iterable[int]) -> str:
    """Return what ranks do, those at one place together."""
    groups: dict[str, list[int]] = {}
    for rank in ranks:
        groups.setdefault(_does(sights[rank]), []).append(rank)
    parts = [
        f"{numbers(group)} {_plural(what) if group[1:] else what}"
        for what, group in list(groups.items())[:_PLACES]
    ]
    if len(groups) > _PLACES:
        parts.append(f"others elsewhere ({len(groups) - _PLACES} places)")
    return " and ".join(parts)


def _does(sight: RankActivity) -> str:
    """Return what one rank does; for one that advances the place means nothing."""
    if sight.advances:
        return _ADVANCES
    place = f" in {sight.where}" if sight.where else ""
    if sight.has_moved and sight.kind in (VerdictKind.WAITING, VerdictKind.IO, VerdictKind.LOADER):
        return f"{_IN_TIME if sight.is_usual else _MOVES}{place}"
    return f"{_VERBS[sight.kind]}{place}"


def _plural(what: str) -> str:
    verb, _, rest = what.partition(" ")
    return f"{_PLURAL[verb]} {rest.replace('its ', 'their ', 1)}".rstrip()


_VERBS = {
    VerdictKind.COLLECTIVE: "waits for its peers",
    VerdictKind.DEVICE: "waits for its device",
    VerdictKind.COMPUTING: "computes",
    VerdictKind.STOPPED: "is stopped by a signal",
    VerdictKind.IO: "is blocked in IO",
    VerdictKind.LOADER: "waits for its data loader",
    VerdictKind.WAITING: "stands still",
    VerdictKind.UNKNOWN: "is not known to stand still",
}
_ADVANCES = "goes from step to step"
_IN_TIME = "takes no longer than usual"
_MOVES = "moves within its step"
_PLURAL = {
    "waits": "wait",
    "computes": "compute",
    "is": "are",
    "stands": "stand",
    "goes": "go",
    "takes": "take",
    "moves": "move",
}


def _where(frames: tuple[StackFrame, ...]) -> str:
    """Return the innermost call and the one of the user's program that led there."""
    if not frames:
        return ""
    own = next((frame for frame in frames if not _FOREIGN.search(frame.file)), None)
    if own is None or own is frames[0]:
        return str(frames[0])
    return f"{frames[0]} from {own}"
