"""The queue: it is told the time, requests and events, and says what the hosts are to do.

It does no I/O. What is to be sent stands in `outbox`; `wake` is when it must be told the time next.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from .depend import Verdict, judge
from .job import Cause, Job, State, job_of
from .place import Room, place
from .vendor import Steps, Vendor
from .wire import Message

ON_HOSTS = (State.RUNNING, State.SUSPENDED, State.ENDING)


@dataclass
class Node:
    """A host as the queue knows it."""

    name: str
    room: Room
    address: tuple[str, int]
    lost: float | None = None  # since when it is silent


@dataclass
class Course:
    """What is under way for a job that has hosts."""

    awaited: set[str] = field(default_factory=set)  # hosts that have not answered yet
    steps: list[tuple[float, str]] = field(default_factory=list)  # signals to come
    warned: bool = False
    writes: list[Message] | None = None  # what the first host does when the others are clean


class Queue:
    """All jobs and hosts of one batch system."""

    def __init__(self, vendor: Vendor) -> None:
        self.vendor = vendor
        self.jobs: dict[str, Job] = {}
        self.nodes: dict[str, Node] = {}
        self.outbox: list[tuple[str, Message]] = []
        self.wake = math.inf
        self._courses: dict[str, Course] = {}
        self._number = 0

    def submit(self, records: list[Message], now: float) -> int:
        """Take a job, or all elements of an array; return its number."""
        self._number += 1
        for record in records:
            job = job_of({**record, "number": self._number})
            job.queued = job.changed = now
            if job.depend and self.vendor.depend_holds:
                job.holds.append("s")
            job.state = State.HELD if job.holds else State.QUEUED
            self.jobs[job.key] = job
        return self._number

    def kill(self, job: Job, now: float, force: bool = False) -> None:
        """End a job: at once where it does not run, else in the vendor's steps."""
        if job.state in (State.QUEUED, State.HELD):
            job.cause, job.ended = Cause.KILLED, now
            self._become(job, State.FINISHED, now)
        elif job.state in (State.RUNNING, State.SUSPENDED):
            job.cause = Cause.KILLED
            self._end_by(job, self.vendor.kill_steps(force), now)

    def requeue(self, job: Job, now: float, hold: str = "") -> None:
        """Kill a running job and put it back where it was."""
        job.cause = Cause.REQUEUED
        if hold:
            job.holds.append(hold)
        self._end_by(job, self.vendor.requeue_steps(), now)

    def revive(self, job: Job, now: float, hold: str = "") -> None:
        """Put a job that has ended back in the queue."""
        job.holds = [hold] if hold else []
        job.hosts, job.started, job.ended, job.exit = [], None, None, None
        job.cause = Cause.ITSELF
        self._become(job, State.HELD if job.holds else State.QUEUED, now)

    def signal(self, job: Job, name: str, ends: bool = False) -> None:
        """Send a signal to the processes of the job, where the vendor sends it to."""
        hosts = job.places[:1] if self.vendor.signals_first_host else job.places
        self._tell(hosts, {"op": "signal", "job": job.key, "signal": name, "ends": ends})

    def _freeze(self, job: Job, name: str) -> None:
        self._tell(job.places, {"op": "signal", "job": job.key, "signal": name})

    def suspend(self, job: Job, by_system: bool, now: float) -> None:
        """Stop every process of a running job."""
        self._freeze(job, "SIGSTOP")
        job.by_system = by_system
        self._become(job, State.SUSPENDED, now)

    def resume(self, job: Job, now: float) -> None:
        """Let a suspended job go on; the time it stood still does not count."""
        self._freeze(job, "SIGCONT")
        job.stopped += now - job.changed
        self._become(job, State.RUNNING, now)

    def set_holds(self, job: Job, holds: list[str], now: float) -> None:
        """Hold a waiting job, or release it."""
        job.holds = holds
        if job.state in (State.QUEUED, State.HELD):
            self._become(job, State.HELD if holds else State.QUEUED, now)

    def node_up(self, node: Node, running: Mapping[str, int | None], now: float) -> None:
        """A host is there, with these jobs and how their scripts ended on it.

        What it should have and has not is lost; what was told on a line that broke is told again.
        """
        self.nodes[node.name] = node
        ours = self._placed_on(node.name)
        for key in running.keys() - {job.key for job in ours}:
            self.outbox.append((node.name, {"op": "clean", "job": key}))
        for job in ours:
            status = running.get(job.key)
            if job.key not in running:
                self._lose(job, node.name, now)
            elif node.name in self._courses[job.key].awaited:
                if job.state is State.ENDING:
                    self.outbox.append((node.name, {"op": "clean", "job": job.key}))
                else:
                    self.event(node.name, {"event": "joined", "job": job.key}, now)
            elif status is not None:
                event = {"event": "ended", "job": job.key, "status": status}
                self.event(node.name, event, now)

    def node_down(self, name: str, now: float) -> None:
        """A host is silent; its jobs are not given up yet."""
        if self.nodes[name].lost is None:
            self.nodes[name].lost = now

    def event(self, host: str, message: Message, now: float) -> None:
        """Take what a host tells of a job."""
        job = self.jobs.get(message["job"])
        course = self._courses.get(message["job"])
        if job is None or course is None or host not in job.places:
            return
        if message["event"] == "joined" and host in course.awaited:
            course.awaited.discard(host)
            if not course.awaited:
                self._tell(job.places[:1], {"op": "start", "job": job.key} | self.vendor.start(job))
        elif message["event"] == "ended" and job.state is not State.ENDING:
            self._take_exit(job, message["status"], now)
        elif message["event"] == "cleaned":
            self._is_clean(job, host, now)

    def advance(self, now: float) -> None:
        """Do what is due: signals, limits, lost hosts, dependencies; then start what fits."""
        self.wake = math.inf
        for key, course in list(self._courses.items()):
            self._keep_time(self.jobs[key], course, now)
        for job in list(self.jobs.values()):
            if job.state in ON_HOSTS:
                self._look_for_hosts(job, now)
            elif job.state is not State.FINISHED and job.depend:
                self._look_at_others(job, now)
        for job in self.jobs.values():
            if job.state is State.QUEUED and self._may_start(job, now):
                self._start(job, now)

    def _keep_time(self, job: Job, course: Course, now: float) -> None:
        while course.steps and course.steps[0][0] <= now:
            self.signal(job, course.steps.pop(0)[1], ends=True)
        if course.steps:
            self.wake = min(self.wake, course.steps[0][0])
        if job.state is not State.RUNNING or job.limit is None or job.cause:
            return
        end = (job.started or now) + job.limit + job.stopped
        if job.warning and not course.warned:
            if now >= end - job.warning[1]:
                course.warned = True
                self.signal(job, job.warning[0])
            else:
                self.wake = min(self.wake, end - job.warning[1])
        if now < end:
            self.wake = min(self.wake, end)
            return
        job.cause = Cause.LIMIT
        text = self.vendor.over_limit(job, now)
        self._tell(job.places[:1], {"op": "say", "job": job.key, "text": text})
        self._end_by(job, self.vendor.limit_steps(), now)

    def _look_for_hosts(self, job: Job, now: float) -> None:
        for host in job.places:
            lost = self.nodes[host].lost
            waits = job.state is not State.ENDING and not self.vendor.gives_up(job)
            if lost is None or waits:
                continue
            if now >= lost + self.vendor.site.settings["host_patience"]:
                self._lose(job, host, now)
                return
            self.wake = min(self.wake, lost + self.vendor.site.settings["host_patience"])

    def _look_at_others(self, job: Job, now: float) -> None:
        verdict = judge(job, self.jobs)
        if verdict is Verdict.SATISFIED:
            job.depend = []
            self.set_holds(job, [hold for hold in job.holds if hold != "s"], now)
        elif verdict is Verdict.IN_VAIN and self.vendor.depend_holds:
            job.cause, job.ended = Cause.DEPENDENCY, now
            self._become(job, State.FINISHED, now)

    def _may_start(self, job: Job, now: float) -> bool:
        if job.after > now:
            self.wake = min(self.wake, job.after)
            return False
        if job.depend:
            return False
        if job.at_once is None:
            return True
        array = (other for other in self.jobs.values() if other.number == job.number)
        return sum(other.state in ON_HOSTS for other in array) < job.at_once

    def _start(self, job: Job, now: float) -> None:
        hosts = place(job.chunks, job.arrange, self.rooms(job.exclusive))
        if hosts is None:
            return
        job.hosts, job.cause, job.exit, job.stopped = hosts, Cause.ITSELF, None, 0.0
        job.started, job.ended, job.runs = now, None, job.runs + 1
        self._become(job, State.RUNNING, now)
        self._courses[job.key] = Course(set(job.places))
        mother = self.nodes[job.places[0]]
        join = {"op": "join", "job": job.key, "env": self.vendor.task_env(job), "cwd": job.cwd}
        self._tell(job.places, {**join, "mother": mother.address, "first": job.places[0]})
        if job.limit is not None:
            self.wake = min(self.wake, now)  # its limit is looked at in the next round

    def rooms(self, whole: bool = False) -> dict[str, Room]:
        """Return what is left on each host that is there; with `whole`, of those nobody uses."""
        left = {name: node.room for name, node in self.nodes.items() if node.lost is None}
        for job in self.jobs.values():
            for host, chunk in zip(job.hosts, job.chunks, strict=False):
                if job.state in ON_HOSTS and host in left:
                    left[host] = left[host].less(chunk)
                    if whole or job.exclusive:
                        del left[host]
        return left

    def _take_exit(self, job: Job, status: int, now: float) -> None:
        job.exit = status
        if status in job.requeue_on and not job.cause:
            job.cause = Cause.REQUEUED
        self._clean(job, now)

    def _clean(self, job: Job, now: float) -> None:
        """End what is left on the job's hosts, on the first one last: it gathers the output."""
        self._become(job, State.ENDING, now)
        job.ended = now
        there = [host for host in job.places if self.nodes[host].lost is None]
        course = self._courses[job.key] = Course(set(there))
        if job.places[0] in there:
            course.awaited.discard(there.pop(0))
            course.writes = [] if self._goes_on(job) else self.vendor.finish(job)
        self._tell(there, {"op": "clean", "job": job.key})
        self._is_clean(job, "", now)

    def _is_clean(self, job: Job, host: str, now: float) -> None:
        course = self._courses[job.key]
        course.awaited.discard(host)
        if course.awaited:
            return
        if course.writes is None:
            self._settle(job, now)
            return
        first = job.places[:1]
        self._tell(first, {"op": "finish", "job": job.key, "writes": course.writes})
        self._tell(first, {"op": "clean", "job": job.key})
        course.awaited, course.writes = set(first), None

    def _lose(self, job: Job, host: str, now: float) -> None:
        if job.state is State.ENDING:
            course = self._courses[job.key]
            course.writes = course.writes if host != job.places[0] else None
            self._is_clean(job, host, now)
            return
        if job.cause is Cause.ITSELF:
            job.cause = Cause.HOST
        self._clean(job, now)

    def _goes_on(self, job: Job) -> bool:
        return job.cause is Cause.REQUEUED or (job.cause is Cause.HOST and job.rerunnable)

    def _settle(self, job: Job, now: float) -> None:
        del self._courses[job.key]
        if not self._goes_on(job):
            self._become(job, State.FINISHED, now)
            return
        job.hosts, job.started, job.ended = [], None, None
        self._become(job, State.HELD if job.holds else State.QUEUED, now)

    def _end_by(self, job: Job, steps: Steps, now: float) -> None:
        if job.state is State.SUSPENDED:
            self._freeze(job, "SIGCONT")
        when, due = now, []
        for name, pause in steps:
            due.append((when, name))
            when += pause
        self._courses[job.key].steps = due

    def _become(self, job: Job, state: State, now: float) -> None:
        job.state, job.changed = state, now

    def _placed_on(self, host: str) -> list[Job]:
        return [job for job in self.jobs.values() if job.state in ON_HOSTS and host in job.places]

    def _tell(self, hosts: list[str], message: Message) -> None:
        self.outbox += [(host, message) for host in hosts]
