"""The queue's daemon: what commands ask and hosts tell goes in, what hosts are to do goes out."""

import contextlib
import importlib
import json
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from .job import Job, State
from .place import Room
from .queue import Node, Queue
from .vendor import Site
from .wire import Message, messages, receive, send


class Server:
    """One lock around the queue; a thread for each line, and one that keeps the time."""

    def __init__(self, queue: Queue, nodes: dict[str, dict[str, int]]) -> None:
        self._queue = queue
        for name, room in nodes.items():  # none has told yet that it is there
            queue.nodes[name] = Node(name, Room(**room), ("", 0), lost=0.0)
        self._lines: dict[str, socket.socket] = {}
        self._turn = threading.Condition()

    def serve(self, listener: socket.socket) -> None:
        """Serve until killed."""
        threading.Thread(target=self._keep_time, daemon=True).start()
        while True:
            line, peer = listener.accept()
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._attend, args=(line, peer[0]), daemon=True).start()

    def _keep_time(self) -> None:
        with self._turn:
            while True:
                wait = self._queue.wake - time.time()
                self._turn.wait(None if math.isinf(wait) else max(0.0, wait))
                self._go_on()

    def _go_on(self) -> None:
        """Let the queue do what is due, and send what it says."""
        self._queue.advance(time.time())
        while self._queue.outbox:
            host, message = self._queue.outbox.pop(0)
            with contextlib.suppress(OSError, KeyError):  # its end will be noticed by who reads
                send(self._lines[host], message)

    def _attend(self, line: socket.socket, peer: str) -> None:
        with line, contextlib.suppress(OSError):
            request = receive(line)
            if request is None:
                return
            if request["op"] == "register":
                self._attend_node(line, peer, request)
                return
            with self._turn:
                answer = getattr(self, f"do_{request['op']}")(request)
                self._go_on()
                self._turn.notify()
            send(line, answer)

    def _attend_node(self, line: socket.socket, peer: str, request: Message) -> None:
        name = request["name"]
        line.settimeout(self._queue.vendor.site.settings["beat_timeout"])
        with self._turn:
            node = Node(name, self._queue.nodes[name].room, (peer, request["port"]))
            self._lines[name] = line
            self._queue.node_up(node, request["jobs"], time.time())
            self._go_on()
        for message in messages(line):
            with self._turn:
                if message["event"] == "beat":
                    send(line, {"op": "beat"})
                    continue
                self._queue.event(name, message, time.time())
                self._go_on()
                self._turn.notify()
        with self._turn:
            if self._lines[name] is line:
                self._queue.node_down(name, time.time())
                self._go_on()
                self._turn.notify()

    def do_list(self, request: Message) -> Message:
        """Tell all that is known."""
        queue = self._queue
        left = queue.rooms()
        nodes = [
            {
                "name": node.name,
                "address": node.address,
                "up": node.lost is None,
                "room": vars(node.room),
                "left": vars(left.get(node.name, node.room)),
            }
            for node in queue.nodes.values()
        ]
        jobs = [job.as_dict() for job in queue.jobs.values()]
        return {"jobs": jobs, "nodes": nodes, "now": time.time()}

    def do_submit(self, request: Message) -> Message:
        """Take jobs."""
        return {"number": self._queue.submit(request["jobs"], time.time())}

    def do_kill(self, request: Message) -> Message:
        """End jobs."""
        now, force = time.time(), request.get("force", False)
        return self._each(request, lambda job: self._queue.kill(job, now, force))

    def do_requeue(self, request: Message) -> Message:
        """Put running jobs back in the queue."""

        def requeue(job: Job) -> None:
            if job.state in (State.RUNNING, State.SUSPENDED):
                self._queue.requeue(job, time.time(), request.get("hold", ""))

        return self._each(request, requeue)

    def do_revive(self, request: Message) -> Message:
        """Put jobs that have ended back in the queue."""

        def revive(job: Job) -> None:
            if job.state is State.FINISHED:
                self._queue.revive(job, time.time(), request.get("hold", ""))

        return self._each(request, revive)

    def do_signal(self, request: Message) -> Message:
        """Send running jobs a signal."""

        def signal(job: Job) -> None:
            if job.state in (State.RUNNING, State.SUSPENDED):
                self._queue.signal(job, request["signal"])

        return self._each(request, signal)

    def do_suspend(self, request: Message) -> Message:
        """Stop running jobs; `system` says that the owner did not ask for it."""

        def suspend(job: Job) -> None:
            if job.state is State.RUNNING:
                self._queue.suspend(job, request.get("system", False), time.time())

        return self._each(request, suspend)

    def do_resume(self, request: Message) -> Message:
        """Let suspended jobs go on."""

        def resume(job: Job) -> None:
            if job.state is State.SUSPENDED:
                self._queue.resume(job, time.time())

        return self._each(request, resume)

    def do_holds(self, request: Message) -> Message:
        """Add and take away holds."""

        def change(job: Job) -> None:
            kept = [hold for hold in job.holds if hold not in request.get("take", [])]
            added = [hold for hold in request.get("add", []) if hold not in kept]
            self._queue.set_holds(job, kept + added, time.time())

        return self._each(request, change)

    def do_forget(self, request: Message) -> Message:
        """Forget finished jobs, as a history does that is over."""
        for key in request["keys"]:
            if self._queue.jobs[key].state is State.FINISHED:
                del self._queue.jobs[key]
        return {}

    def _each(self, request: Message, act: Callable[[Job], None]) -> Message:
        """Act on each job; return what each of them was before."""
        before = {}
        for key in request["keys"]:
            job = self._queue.jobs.get(key)
            before[key] = str(job.state) if job else None
            if job:
                act(job)
        return {"before": before}


def main(folder: Path, words: list[str]) -> None:
    """Run the daemon of the site that a folder describes."""
    site = json.loads((folder / "site.json").read_text())
    vendor = importlib.import_module(f"tests.harness.cluster.{site['vendor']}.vendor")
    queue = Queue(
        vendor.vendor(
            Site(site["server"], site["home"], site["bin"], site["settings"], site["queues"])
        )
    )
    listener = socket.create_server((site["bind"], site["port"]))
    partial = folder / "port.partial"
    partial.write_text(str(listener.getsockname()[1]))
    partial.replace(folder / "port")
    if "--owned" in words:
        threading.Thread(target=end_with_owner, daemon=True).start()
    Server(queue, site["nodes"]).serve(listener)


def end_with_owner() -> None:
    """End when the other end of stdin closes, however the test ended."""
    sys.stdin.read()
    os._exit(0)
