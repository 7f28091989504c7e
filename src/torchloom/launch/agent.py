"""The agent of a job on one node: starts ranks through the keeper, keeps their logs, tells exits.

It decides nothing: the launch process says what to start and stop. It may die and come back: the
keeper has its ranks, their exits and the ends of their outputs.
"""

import contextlib
import errno
import os
import selectors
import signal
import socket
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchloom import settings
from torchloom.launch import descendants, link, ports, shared_memory
from torchloom.launch.contract import rank_environment
from torchloom.launch.descendants import Share
from torchloom.launch.errorfile import ErrorReport, put_aside
from torchloom.launch.frames import Connection, Message
from torchloom.launch.identity import ProcessId, host_name
from torchloom.launch.keeping import KeeperLink
from torchloom.launch.logforward import MOST_UNSENT
from torchloom.launch.orders import RankOrder, ReplicaOrder
from torchloom.launch.pump import Pump
from torchloom.launch.rank import Rank
from torchloom.launch.ranklogs import RankLogs
from torchloom.launch.showing import Showing
from torchloom.launch.signals import SignalPipe
from torchloom.launch.sockets import UPLINK
from torchloom.launch.stores import Stores
from torchloom.launch.terminal import Relay
from torchloom.launch.variables import (
    PAGE_VARIABLE,
    STORE_VARIABLE,
    TOKEN_VARIABLE,
    UPLINK_VARIABLE,
)
from torchloom.rules.replica import ReplicaKey
from torchloom.specs.dataclass import dataclass

if TYPE_CHECKING:  # a node of the plane's needs none
    from torchloom.launch.noderelay import NodeRelay

LAST_GRACE = 3.0  # seconds for ranks whose launch process is gone
_LOOK = 0.01  # seconds between looks at leftovers that were told to end, or at a zygote to come
_DRAIN = 1.0  # seconds to read what dead ranks left in their pipes
_BAD_NODE = (errno.EIO, errno.ESTALE, errno.ENODEV, errno.ENOTCONN, errno.ETIMEDOUT)


@dataclass(frozen=True, slots=True)
class Post:
    """Where an agent stands: whose it is, whom it answers to, what its only rank may read."""

    share: Share
    launcher: link.Address
    stdin: int | None = None
    terminal: socket.socket | None = None
    leash: int | None = None  # the agent goes when whoever holds the other end does
    seat: str = ""  # what all lives of one node's agent have in common
    place: int | None = None  # the node's number, where it knows it
    argv: tuple[str, ...] = ()  # instead of the launch process' own words, with its folder
    cwd: str = ""
    show: Showing | None = None  # what of the ranks' outputs is printed here; none: nothing


class Agent:
    """One life of a node's agent."""

    def __init__(self, post: Post) -> None:
        self._post = post
        self._node = post.share.node
        self._inherited = settings.environment()
        self._token = self._inherited.get(TOKEN_VARIABLE, "")
        self._challenge = link.nonce()
        self._selector = selectors.DefaultSelector()
        self._signals = SignalPipe()
        self._selector.register(self._signals.fileno(), selectors.EVENT_READ, self._on_signals)
        self._relay: Relay | None = None
        self._uplink = str(settings.plane_dir() / UPLINK)
        self._noderelay: NodeRelay | None = None
        self._ranks: dict[int, Rank] = {}
        self._todo: deque[Message] = deque()
        self._starting: dict[ReplicaKey, list[Rank]] = {}
        self._failed: dict[ReplicaKey, OSError] = {}
        self._newcomers: set[int] = set()  # that the keeper has not answered for
        self._kill_at: dict[ReplicaKey, float] = {}
        self._last_output = time.monotonic()
        self._quiet_limit = 0.0
        self._leaving = False
        self._orphan_limit = 0.0
        self._lost_bytes = 0
        self._pump = Pump(
            self._selector, self._on_output, lambda: self._launcher.unsent > MOST_UNSENT
        )
        self._keeper = KeeperLink(post.share, self._selector, self._on_keeper, self._on_no_keeper)
        self._stores = Stores(post.share, self._keeper)
        self.code = 0  # how the job ended
        if post.leash is not None:
            self._selector.register(post.leash, selectors.EVENT_READ, self._on_leash)
        self._launcher = Connection(
            post.launcher.connect(), self._selector, self._on_launcher, self._on_launcher_gone
        )
        self._logs = RankLogs(post.share, post.show, self._launcher.send)

    def run(self) -> None:
        """Serve until the launch process ends the job, or is gone."""
        if not self._keeper.find():
            self._introduce()
        while not self._leaving:
            self._turn()
        self._stores.close()
        self._launcher.finish()

    def _introduce(self) -> None:
        """Tell the launch process who is here, and which ranks an agent before has left."""
        hello: dict[str, Any] = {"say": "hello", "host": host_name(), "challenge": self._challenge}
        hello["process"] = _process(ProcessId.mine())
        hello |= {"seat": self._post.seat, "place": self._post.place}
        hello["ranks"] = [self._shown(rank) for rank in self._ranks.values()]
        self._launcher.send(hello)

    def _turn(self, longest: float | None = None) -> None:
        for key, ready in self._selector.select(self._patience(longest)):
            key.data(ready)
        self._work()
        self._pump.resume()
        self._look_after_relay()
        now = time.monotonic()
        for replica in [key for key, when in self._kill_at.items() if when <= now]:
            del self._kill_at[replica]
            self._send_signal(replica, signal.SIGKILL)
        if self._quiet_limit and now >= self._last_output + self._quiet_limit:
            self._launcher.send({"say": "quiet", "seconds": now - self._last_output})
            self._last_output = now

    def _patience(self, longest: float | None) -> float | None:
        if self._todo:
            longest = _LOOK if longest is None else min(longest, _LOOK)
        moments = [*self._kill_at.values()]
        if self._quiet_limit:
            moments.append(self._last_output + self._quiet_limit)
        waits = [max(0.0, when - time.monotonic()) for when in moments]
        if self._noderelay and (again := self._noderelay.patience) is not None:
            waits.append(again)
        return min([*waits, *([] if longest is None else [longest])], default=None)

    def _on_signals(self, _ready: int) -> None:
        """The keeper may be a child of this process: its end shows in its connection."""
        if self._signals.read():
            self._look_after_relay(descendants.reap())

    # What the launch process says.

    def _on_launcher(self, message: Message, _fds: list[int]) -> None:
        match message["do"]:
            case "prove":
                answer = link.proof(self._token, "agent", message["challenge"])
                self._launcher.send({"say": "proof", "proof": answer})
            case "job":
                self._take_job(message)
            case "end":
                self.code = message["code"]
                self._end(message["grace"])
            case _:
                if message["do"] == "stop":
                    self._take_back(ReplicaKey(*message["key"]))
                self._todo.append(message)
                self._work()

    def _work(self) -> None:
        """Do what was asked for in its order; what needs a keeper waits for it."""
        while self._todo:
            message = self._todo[0]
            if "order" in message and not self._has_keeper(message["order"]):
                return
            self._todo.popleft()
            self._act(message)

    def _take_back(self, key: ReplicaKey) -> None:
        """Forget a start that still waits for its keeper: its ranks ended before they began."""
        for message in [each for each in self._todo if each["do"] == "start"]:
            order = self._order(message["order"])
            if order.key == key:
                self._todo.remove(message)
                facts = {"role": order.role, "index": order.index, "attempt": order.attempt}
                facts |= {"life": order.life, "code": -int(signal.SIGTERM)}
                ranks = [{**facts, "local_rank": rank.local_rank} for rank in order.ranks]
                self._launcher.send({"say": "exited", "ranks": ranks})

    def _has_keeper(self, data: Mapping[str, Any]) -> bool:
        order = self._order(data)
        env = rank_environment(
            self._inherited, order, order.ranks[0].variables, self._node, Path(), {}
        )
        return self._keeper.prepare(order, env, self._orphan_limit)

    def _order(self, data: Mapping[str, Any]) -> ReplicaOrder:
        """Return an order in the words of this host, where it has its own."""
        order = ReplicaOrder.from_dict(data)
        if not self._post.argv:
            return order
        return replace(order, argv=self._post.argv, cwd=self._post.cwd, env={})

    def _act(self, message: Message) -> None:
        match message["do"]:
            case "start":
                self._start(self._order(message["order"]))
            case "store":
                self._host_store(self._order(message["order"]), message["address"])
            case "fork":
                self._fork(self._order(message["order"]))
            case "meet":
                self._meet(self._order(message["order"]), message["address"])
            case "end_life":
                self._end_life(ReplicaKey(*message["key"]), *message["life"])
            case "stop":
                self._stop(ReplicaKey(*message["key"]), message["signum"], message["grace"])
            case "signal":
                for rank in self._alive():
                    self._keeper.signal(rank.number, message["signum"])

    def _take_job(self, message: Message) -> None:
        if self._token and not link.is_proof(
            message.get("proof"), self._token, "launcher", self._challenge
        ):
            self._on_launcher_gone()  # whoever that is, it is not ours
            return
        self._quiet_limit = message["quiet_limit"]
        self._orphan_limit = message["orphan_limit"]
        self._logs.settle(message["log_dir"], message["marker"])
        self._settle_uplink(message["uplink"])
        if self._post.terminal is not None and self._relay is None:
            self._lend_terminal(self._post.terminal)

    def _settle_uplink(self, uplink: str) -> None:
        """Take notice of where ranks speak to the plane; on another host it is through our own."""
        if uplink:
            self._uplink = uplink
        elif self._noderelay is None:
            from torchloom.launch.noderelay import NodeRelay

            self._noderelay = NodeRelay(self._post.share, self._post.launcher)
            self._uplink = str(self._noderelay.address)
        if self._noderelay is not None and self._alive():  # an agent before has started them
            self._noderelay.start()

    def _look_after_relay(self, ended: Sequence[tuple[int, int]] = ()) -> None:
        if self._noderelay is not None and (why := self._noderelay.look(ended)):
            self._launcher.send({"say": "unwatched", "why": why})

    def _end_relay(self) -> None:
        """Have what it holds brought away, unless nobody is left who could take it."""
        if self._noderelay is not None:
            limit = self._noderelay.leave(at_once=not self._launcher.is_open)
            deadline = time.monotonic() + limit
            while self._noderelay.is_there and time.monotonic() < deadline:
                self._turn(_LOOK)
            self._noderelay.leave(at_once=True)

    def _lend_terminal(self, channel: socket.socket) -> None:
        self._relay = self._pump.relay = Relay(channel, self._selector)
        for rank in self._alive():
            for fd in rank.outputs:
                self._relay.attach(fd)

    def _on_leash(self, _ready: int) -> None:
        """Whoever started this agent is gone: so are its ranks, and the others are told."""
        if self._post.leash is None:
            return
        signums = os.read(self._post.leash, 1024)
        for signum in signums:  # for the ranks here
            for rank in self._alive():
                self._keeper.signal(rank.number, signum)
        if not signums:
            self._selector.unregister(self._post.leash)
            self._launcher.send({"say": "leaving"})
            self._on_launcher_gone()

    def _on_launcher_gone(self) -> None:
        """Nobody decides any more: end the ranks, politely but soon."""
        if not self._leaving:
            self._leaving = True
            self.code = 1
            for key in {rank.key for rank in self._alive()}:
                self._stop(key, signal.SIGTERM, LAST_GRACE)
            self._end(LAST_GRACE)

    # Starting.

    def _start(self, order: ReplicaOrder) -> None:
        key = order.key
        self._kill_at.pop(key, None)  # the grace was for the life before
        for rank in [rank for rank in self._ranks.values() if rank.key == key]:
            self._bury(rank)
        self._last_output = time.monotonic()
        self._starting[key] = []
        self._failed.pop(key, None)
        settled = ports.settle(order.ports)
        for rank_order in order.ranks:
            self._starting[key].append(self._start_rank(order, rank_order, settled))

    def _fork(self, order: ReplicaOrder) -> None:
        """Start one rank while the others of its replica live, once however often it is said."""
        mine = order.ranks[0]
        before = [rank for rank in self._ranks.values() if rank.is_place_of(order, mine)]
        if any(rank.attempt == order.attempt and rank.life >= order.life for rank in before):
            return
        self._last_output = time.monotonic()
        owner = f"{order.role}-a{order.attempt}-r{mine.variables.get('RANK', '')}"
        shared_memory.hand_on(self._post.share.app_id, owner, order.life)
        started = self._start_rank(order, mine, ports.settle(order.ports))
        self._newcomers.add(started.number)
        for rank in before:
            self._bury(rank)  # after the start: to find what it left running takes a while

    def _start_rank(self, order: ReplicaOrder, mine: RankOrder, settled: Mapping[str, int]) -> Rank:
        log = self._logs.of(mine.logs)
        forwarded = self._logs.forwarded(mine.logs)
        lived = (order.life, order.generation)
        rank = Rank(order.key, mine.local_rank, order.attempt, forwarded, log, *lived)
        rank.beside = {
            "rank": mine.variables.get("RANK", ""),
            "copies": order.copies and f"{order.copies}/{mine.local_rank}",
            "copied": mine.copied,
        }
        rank.log = log = self._logs.dressed(rank)
        with contextlib.suppress(OSError):  # without it the rank has no logs, and no error file
            log.directory.mkdir(parents=True, exist_ok=True)
        put_aside(rank.error_file, _before(order))
        variables = dict(mine.variables)
        here = {
            STORE_VARIABLE: self._stores.settle(order, variables),
            PAGE_VARIABLE: shared_memory.make_page(self._post.share.app_id, rank.page),
            UPLINK_VARIABLE: self._uplink,
        }
        env = rank_environment(
            self._inherited, order, variables, self._node, log.directory, settled, here
        )
        if self._relay is None:
            given = rank.pipes(self._post.stdin)
        else:
            given = rank.terminal(self._relay.attach)
        rank.number = self._keeper.start(
            order.argv, env, order.cwd, given, list(rank.outputs), rank.note, bool(self._relay)
        )
        self._ranks[rank.number] = rank
        return rank

    def _host_store(self, order: ReplicaOrder, address: str) -> None:
        env = rank_environment(self._inherited, order, {}, self._node, Path(), {})
        port = self._stores.host(order, env, address)
        answer = {"say": "store", "role": order.role, "attempt": order.attempt}
        self._launcher.send({**answer, "port": port.number, "hosted": port.hosted})

    def _meet(self, order: ReplicaOrder, address: str) -> None:
        """Have a store for a later generation of an attempt that is under way."""
        answer = {"say": "met", "attempt": order.attempt, "generation": order.generation}
        if order.file_store:
            store = self._stores.file_of(order.role, order.generation)
            self._launcher.send({**answer, "store": store})
            return
        env = rank_environment(self._inherited, order, {}, self._node, Path(), {})
        port = self._stores.host(order, env, address)
        store = f"tcp://{address}:{port.number}" if port.hosted else ""
        self._launcher.send({**answer, "store": store})

    # What the keeper says.

    def _on_keeper(self, message: Message, fds: list[int]) -> None:
        match message["say"]:
            case "hello":
                self._found(message["children"], fds)
            case "started":
                self._started(message)
            case "failed":
                self._start_failed(message)
            case "exited":
                self._exited(message["children"])

    def _found(self, children: list[Mapping[str, Any]], fds: list[int]) -> None:
        """Take over what an agent before has started."""
        if not self._keeper.was_found:
            return
        for child in children:
            kept, fds = fds[: child["kept"]], fds[child["kept"] :]
            self._keeper.number = max(self._keeper.number, child["id"])
            note = child["note"]
            if "role" not in note:  # a store; its attempt needs no agent to end it
                continue
            rank = Rank.from_note(note, self._logs.at(Path(note["directory"]), note["logs"]))
            rank.number = child["id"]
            rank.log = self._logs.dressed(rank)
            for fd, stream in zip(kept, ("stdout", "stderr"), strict=False):
                rank.watch(fd, stream)
            rank.started(child)
            self._ranks[rank.number] = rank
            self._pump.watch(rank)
        self._introduce()

    def _started(self, shown: Mapping[str, Any]) -> None:
        rank = self._ranks.get(shown["id"])
        if rank is None:
            return
        rank.started(shown)
        self._pump.watch(rank)
        if rank.number in self._newcomers:
            self._newcomers.discard(rank.number)
            self._launcher.send({"say": "started", "ranks": [self._shown(rank)]})
        else:
            self._answered(rank.key)
        self._learn_to_read_pages()
        if self._noderelay is not None:
            self._noderelay.start()  # after the ranks, which need not wait for it

    def _learn_to_read_pages(self) -> None:
        """Import now what an exit needs: it is to be told at once."""
        import torchloom.bus.page  # noqa: F401

    def _start_failed(self, message: Message) -> None:
        rank = self._ranks.pop(message["id"], None)
        if rank is None:
            return
        for fd in list(rank.outputs):
            rank.close(fd)
        error = OSError(message["errno"], message["what"] or "")
        if rank.number in self._newcomers:
            self._newcomers.discard(rank.number)
            self._launcher.send({**rank.note, "say": "not_forked", "cause": _why(error)})
            return
        self._starting[rank.key].remove(rank)
        self._failed.setdefault(rank.key, error)
        self._answered(rank.key)

    def _answered(self, key: ReplicaKey) -> None:
        """Tell of a replica once the keeper has answered for all of its ranks."""
        crew = self._starting.get(key, [])
        if any(rank.process is None for rank in crew):
            return
        self._starting.pop(key, None)
        place = {"role": key.role, "index": key.index}
        if key in self._failed:
            self._send_signal(key, signal.SIGKILL)
            error = self._failed.pop(key)
            bad = error.errno in _BAD_NODE
            failed = {"say": "start_failed", **place, "cause": _why(error)}
            self._launcher.send({**failed, "bad_node": bad})
        self._launcher.send({"say": "started", **place, "ranks": list(map(self._shown, crew))})

    def _exited(self, children: list[Mapping[str, int]]) -> None:
        ended = []
        for child in children:
            self._stores.exited(child["id"])
            rank = self._ranks.get(child["id"])
            if rank is not None:
                rank.code = child["code"]
                self._pump.drain(rank)
                ended.append(self._shown(rank))
        if ended:
            self._launcher.send({"say": "exited", "ranks": ended})

    def _shown(self, rank: Rank) -> dict[str, Any]:
        shown = {**rank.note, "code": rank.code, "warm": self._keeper.warmth}
        shown["process"] = _process(rank.process) if rank.process else None
        if rank.code and (report := ErrorReport.read(rank.error_file)):
            shown["error"] = [report.text, report.written]
        if rank.code:
            shown["step"] = self._last_step(rank)
        return shown

    def _last_step(self, rank: Rank) -> int:
        """Return the step a rank was in when it ended, by its page; -1 when it tells none."""
        from torchloom.bus.page import PageView

        view = PageView.open(shared_memory.page(self._post.share.app_id, rank.page))
        if view is None:
            return -1
        reading = view.read()
        view.close()
        return reading.step if reading and reading.applied else -1

    def _on_no_keeper(self) -> None:
        """The keeper is gone, and the kernel has ended its ranks."""
        ended = [rank for rank in self._ranks.values() if rank.is_alive]
        for rank in ended:
            rank.code = -signal.SIGKILL
            self._pump.drain(rank)
        if ended and not self._leaving:
            self._launcher.send({"say": "exited", "ranks": list(map(self._shown, ended))})

    # Stopping.

    def _stop(self, key: ReplicaKey, signum: int, grace: float) -> None:
        self._kill_at[key] = time.monotonic() + grace
        self._send_signal(key, signum)
        self._send_signal(key, signal.SIGCONT)  # a stopped process sees its signal only then

    def _end_life(self, key: ReplicaKey, local_rank: int, attempt: int, life: int) -> None:
        """End one process of a rank at once, and no other."""
        for rank in self._alive():
            if rank.is_life(key, local_rank, attempt, life):
                self._keeper.signal(rank.number, signal.SIGKILL)

    def _send_signal(self, key: ReplicaKey, signum: int) -> None:
        for rank in self._alive():
            if rank.key == key:
                self._keeper.signal(rank.number, signum)

    def _alive(self) -> list[Rank]:
        return [rank for rank in self._ranks.values() if rank.is_alive]

    def _bury(self, rank: Rank) -> None:
        """End what the attempt before left running, so that it cannot disturb the next."""
        del self._ranks[rank.number]
        self._keeper.bury(rank.number)
        self._lost_bytes += rank.log.lost

    def _end(self, grace: float) -> None:
        """End whatever the job left running here, politely first, and read its last words."""
        self._leaving = True
        self._todo.clear()
        deadline = time.monotonic() + grace
        self._keeper.sweep(signal.SIGTERM)
        while self._keeper.has_more and time.monotonic() < deadline:
            self._turn(_LOOK)
            self._keeper.look_again()
        self._keeper.end()
        while not self._keeper.is_gone:
            self._turn(_LOOK)
        self._pump.finish(_DRAIN)
        self._logs.say_hidden()
        self._lost_bytes += sum(rank.log.lost for rank in self._ranks.values())
        self._end_relay()
        self._launcher.send({"say": "cleared", "lost": self._lost_bytes})
        if self._relay is not None:
            self._relay.close()

    def _on_output(self) -> None:
        self._last_output = time.monotonic()


def _before(order: ReplicaOrder) -> int | str:
    """Return under which name the error of the life before is kept."""
    return order.attempt - 1 if order.life == 1 else f"{order.attempt}-{order.life - 1}"


def _why(error: OSError) -> str:
    return f"{error.strerror}: {os.strerror(error.errno or 0)}"


def _process(process: ProcessId) -> dict[str, Any]:
    return {
        "host": process.host,
        "boot": process.boot,
        "pid": process.pid,
        "started": process.started,
    }
