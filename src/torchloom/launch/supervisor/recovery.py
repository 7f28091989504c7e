"""Drive the recovery rule of a run: pass it events, carry out its effects through the agents."""

import contextlib
import selectors
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from torchloom.launch.host.sockets import Timers
from torchloom.launch.protocol import StopReplica
from torchloom.launch.records.record_writer import RunRecordWriter
from torchloom.launch.records.request import LaunchRequest, RankGroup
from torchloom.launch.supervisor.live_recovery import RankReplacement
from torchloom.launch.supervisor.nodes import Nodes
from torchloom.launch.supervisor.reports import RankErrors
from torchloom.launch.supervisor.starts import LiveRanks, Seating, Starts, key_of
from torchloom.rules import recovery, replicas
from torchloom.rules.replicas import (
    AppVerdict,
    Finish,
    ProgressMark,
    Replace,
    Start,
    Stop,
    Wait,
)
from torchloom.settings import environment
from torchloom.specs.states import Place, ReplicaKey

if TYPE_CHECKING:
    from torchloom.checkpoint import Storage

NOTHING = "1"  # in the place of a checkpoint: this is no first start, and none is committed
_ENDS_WATCH = (replicas.Idle, replicas.Cancelled, replicas.Leaving)


Note = Callable[..., None]


class SavedCheckpoints:
    """The checkpoints of a run as its launch process sees them; one without any costs nothing."""

    def __init__(self, request: LaunchRequest, note: Note) -> None:
        self._request = request
        self._note = note
        self._store: Storage | None = None

    @property
    def may_exist(self) -> bool:
        """Tell whether the run saves, or has saved something."""
        root = self._request.checkpoints
        return bool(root) and (
            self._request.saves or root.startswith("s3://") or Path(root).is_dir()
        )

    def newest(self) -> int:
        """Return the step of the newest checkpoint; -1 when there is none, or none can be seen."""
        from torchloom.checkpoint import CheckpointError

        try:
            step = self._storage().latest() if self.may_exist else None
        except CheckpointError:
            return -1
        return -1 if step is None else step

    def prepare(self) -> None:
        """Open the checkpoint storage while the ranks that are to be replaced end."""
        from torchloom.errors import LoomError

        if self.may_exist:
            with contextlib.suppress(LoomError):  # the restart itself reports it
                self._storage()

    def resume_point(self, generation: int, reason: str, alone: bool = True) -> str:
        """Return the checkpoint that a generation resumes from, and note it before its ranks start.

        From now on no older generation commits; unless others of it live on, as replicas do that
        are restarted one by one. A store that does not answer is a CheckpointError.
        """
        if not self.may_exist:
            return NOTHING
        store = self._storage()
        if alone:
            store.fence(generation)
            self._clear(store, generation)
        step = self._wanted(store, generation)
        place = NOTHING if step is None else store.place_of(step)
        shown = "" if step is None else place
        self._note("resuming", step=step, place=shown, generation=generation, reason=reason)
        return place

    def _clear(self, store: "Storage", generation: int) -> None:
        """Delete what older generations have not committed.

        In one host's folder this runs in the background. In a bucket it is a part of the fence, and
        where hosts look for each other's marks these must be gone before there are new ones.
        """
        if self._request.nodes or self._request.checkpoints.startswith("s3://"):
            store.clear_drafts(generation)
        else:
            Thread(target=_cleared, args=(store, generation), daemon=True).start()

    def _wanted(self, store: "Storage", generation: int) -> int | None:
        """Return the step to resume from; checkpoints after a chosen one are set aside."""
        chosen = self._request.resume_from
        if chosen is None or generation != self._request.generation:
            return store.latest()
        store.manifest(chosen)
        for step in store.committed():
            if step > chosen:
                self._note("set_aside", step=step, place=store.set_aside(step))
        return chosen

    def _storage(self) -> "Storage":
        if self._store is None:
            from torchloom.checkpoint import open_storage

            self._store = open_storage(self._request.checkpoints, environment())
        return self._store


def _cleared(store: "Storage", generation: int) -> None:
    from torchloom.checkpoint import CheckpointError

    with contextlib.suppress(CheckpointError):  # the next restart tries it again
        store.clear_drafts(generation)


class RecoveryDriver:
    """The rule's state of one app, and what was decided but is not done yet."""

    def __init__(
        self,
        request: LaunchRequest,
        selector: selectors.BaseSelector,
        nodes: Nodes,
        writer: RunRecordWriter,
        reports: RankErrors,
    ) -> None:
        self.state = replicas.initial(request.rules(), nodes.names, request.attempt)
        self.verdict: AppVerdict | None = None
        self.grace = request.grace
        self.polite = int(signal.SIGTERM)  # the first signal that a replica gets
        self._request = request
        self._nodes = nodes
        self._writer = writer
        self._reports = reports
        self._events: deque[replicas.Event] = deque()
        self._decided: list[Start] = []
        self._began: dict[ReplicaKey, float] = {}
        self._why = "resumed"  # what the next start is for
        self.later = Timers()  # restarts that wait; ranks that were asked to leave and did not
        self.live_ranks = LiveRanks(self._seat)
        self.saved = SavedCheckpoints(request, writer.note)
        self.starts = Starts(request, nodes, Seating(self._seat, self._group, self._generation))
        shared = (self.later, self.live_ranks, nodes, self.starts, writer, reports)
        self.live = RankReplacement(request, selector, *shared, self)

    # How the run is placed.

    def needed(self) -> list[str]:
        """Return the nodes of all replicas that are to run."""
        seats = self.state.seats.items()
        return [name for key, name in seats if key not in self.state.dropped]

    def on(self, node: str) -> list[ReplicaKey]:
        """Return the replicas whose seat is on a node."""
        return [key for key, name in self.state.seats.items() if name == node]

    def stopping(self) -> list[ReplicaKey]:
        """Return the replicas that were signalled to end and have not."""
        phases = ((key, replica.phase) for key, replica in self.state.replicas.items())
        return [key for key, phase in phases if phase is replicas.ReplicaPhase.STOPPING]

    def rank_at(self, place: Place) -> int:
        """Return the number of a rank in its group; alone, its place on its node."""
        role, index, local_rank = place
        group = self._group(role)
        return group.rank(index, local_rank) if index in group.members else local_rank

    def _seat(self, key: ReplicaKey) -> str:
        return self.state.seats[key]

    def _group(self, role: str) -> RankGroup:
        return RankGroup(self._request.role(role), self.state.members(role))

    def _generation(self, attempt: int) -> int:
        return self.live.generation(attempt)

    # Events of the rule.

    def take(self, *events: replicas.Event) -> None:
        """Have the rule decide about these, one after the other, and do what it says."""
        is_at_it = bool(self._events)
        self._events.extend(events)
        if any(isinstance(event, _ENDS_WATCH) for event in events):
            self._events.extend(self.live.untold())
        if is_at_it:
            return  # the call that is under way handles these too
        while self._events:
            restarts = self.state.restarts
            self.state, effects = recovery.step(self.state, self._events[0])
            is_restart = self.state.restarts != restarts
            if is_restart:
                self._restarts(self._events[0])
            for effect in effects:
                self._do(effect)
            if is_restart:
                self.saved.prepare()
            self._order_starts()
            self._events.popleft()

    def came(self, keys: Sequence[ReplicaKey], steps: Sequence[int] = ()) -> None:
        """Pass the rule how far replicas came that are about to fail, if the run saves."""
        if not keys or not self._request.saves or self.state.verdict is not None:
            return
        saved, step = self.saved.newest(), max(steps, default=-1)
        for key in dict.fromkeys(keys):
            lived = time.monotonic() - self._began.get(key, time.monotonic())
            self.take(replicas.Reached(key, ProgressMark(saved, step, lived)))

    def exit_of(self, place: Place, code: int) -> replicas.RankExited:
        """Return a rank's end in the words of the rule."""
        return replicas.RankExited(key_of(place), place[2], code == 0, self.cause(place, code))

    def cause(self, place: Place, code: int) -> str:
        """Return the reason that a rank's end is."""
        how = f"exit_code_{code}" if code >= 0 else f"exit_signal_{-code}"
        if self._request.role(place[0]).distributed:
            return f"{how}_rank_{self.rank_at(place)}"
        return f"{how}_{place[0]}_{place[1]}"

    # Effects of the rule.

    def _do(self, effect: replicas.Effect) -> None:
        match effect:
            case Start():
                self._decided.append(effect)
            case Stop():
                self._stop(effect.key)
            case Replace():
                facts = {"lost": effect.lost, "spare": effect.spare, "evidence": effect.evidence}
                self._writer.note("node_replaced", replica=effect.key.index, **facts)
            case Wait():
                due = replicas.WaitOver(effect.number)
                self.later.put(effect.number, effect.seconds, lambda: self.take(due))
                self._writer.note("backoff", seconds=effect.seconds, reason=self._why)
            case Finish():
                self.verdict = effect.verdict

    def _restarts(self, event: replicas.Event) -> None:
        match event:
            case replicas.RankExited() | replicas.Idle() | replicas.LiveEnded():
                self._why = event.cause
            case replicas.NodeLost():
                self._why = f"node_lost_{event.node}"
        error = self._reports.error_summary(self._why)
        restarts = self.state.restarts
        self._writer.restarted(restarts, self._generation(restarts), self._why, error)

    def _order_starts(self) -> None:
        """Have the replicas started that were decided on together."""
        starts, self._decided = self._decided, []
        again = [start for start in starts if start.attempt > 0]
        is_ready = not again or self._find_resume_point(again)
        for start in starts:
            ranks = self._request.role(start.key.role).ranks_of(start.key.index)
            self.live_ranks.begin(start.key, ranks, start.attempt)
            self._began[start.key] = time.monotonic()
            if is_ready:
                self.starts.order(start)
        if starts and is_ready:
            self._reports.begin_again()
            self.live.begin(starts[0].attempt)
        elif starts:
            self._not_started(starts)

    def _find_resume_point(self, starts: Sequence[Start]) -> bool:
        """Find the checkpoint for ranks that start again; false when storage does not answer."""
        from torchloom.errors import LoomError

        attempt = max(start.attempt for start in starts)
        going = {start.key for start in starts}
        others = {key for key, at in self.state.replicas.items() if at.alive} - going
        try:
            place = self.saved.resume_point(self._generation(attempt), self._why, alone=not others)
        except LoomError as error:
            self._why = f"checkpoints_unavailable: {error}"
            return False
        self.starts.resume_from(attempt, place)
        return True

    def _not_started(self, starts: Sequence[Start]) -> None:
        """Take starts that came to nothing for failures, with the usual retries."""
        for start in starts:
            self._came_to_nothing(start.key, self._why)

    def _came_to_nothing(self, key: ReplicaKey, why: str) -> None:
        for place in self.live_ranks.forget(key):
            self._events.append(replicas.RankExited(key, place[2], False, why))

    def _stop(self, key: ReplicaKey) -> None:
        """End a replica; one whose start is still held is only withdrawn."""
        if self.starts.withdraw(key):
            self._came_to_nothing(key, "not_started")
        else:
            self.send_stop(key)

    def send_stop(self, key: ReplicaKey) -> None:
        """Signal a replica to end, on every node that has ranks of it."""
        order = StopReplica((key.role, key.index), self.polite, self.grace)
        for node in self.live_ranks.nodes_of(key):
            self._nodes.tell(node, order)
