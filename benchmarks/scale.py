"""The weaver under many agents: what they cost it, how soon it notices, that it wrongs nobody.

Ten thousand simulated agents (scale_agents.py) with ten ranks each, on real connections to the
plane's own NATS, beat once a second. The plane is a user's, started by `loom up`. Processor time is
the kernel's; what the weaver notices is what it tells a watcher at its door, timed where it is
heard; who died, and when, only the simulation knows.
"""

import os
import random
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks import planes
from benchmarks.figure import CannotMeasure, Figure, Lab, Subject, once, series
from benchmarks.planes import Plane, cpu
from benchmarks.scale_fleet import Fleet, fleet, note, until

from torchloom.rules.liveness import LivenessLimits

SAMPLES = 1
LADDER = (100, 1_000, 3_000, 10_000)
LOOKS = 10  # at the weaver's processor time, a second each
DEATHS = 210  # one at a time; and as many ranks
APART = 0.08  # seconds between two of them
SHARE = 0.3  # of the agents, dying at once
QUIET = 10  # seconds in which nobody may be wronged

Told = list[tuple[float, dict[str, Any]]]


def figures(lab: Lab) -> list[Figure]:
    """Return the figures; all are of one run."""

    @once
    def seen() -> "Seen":
        shown = Seen()
        with planes.up(lab) as running, fleet(running, LADDER[-1]) as agents:
            try:
                observe(running, agents, shown)
            except CannotMeasure as error:  # what was seen until then is seen
                note(f"not measured any further: {error}")
        return shown

    def found(name: str) -> Subject:
        return series(f"{LADDER[-1]:,} agents", lambda: getattr(seen(), name))

    def share(agents: int) -> Subject:
        return series(f"{agents:,} agents", lambda: seen().cpu.get(agents, []))

    late = "ms after the silence limit until a watcher hears that an agent is lost"
    return [
        Figure("weaver-cpu-100", "% of a core, 100 agents", share(100)),
        Figure("weaver-cpu-1000", "% of a core, 1,000 agents", share(1_000)),
        Figure("weaver-cpu-3000", "% of a core, 3,000 agents", share(3_000)),
        Figure("weaver-cpu", "% of a core, 10,000 agents, 100,000 ranks", share(10_000)),
        Figure("broker-cpu", "% of a core, NATS, 10,000 agents", found("broker")),
        Figure("simulation-cpu", "% of a core, those who simulate", found("simulation")),
        Figure("detection", late, found("late")),
        Figure("detection-exit", "ms until a watcher hears of a rank's exit", found("exits")),
        Figure("death-to-lost", "ms from an agent's death, limit included", found("lost")),
        Figure("mass-death", "ms after the limit, 30 % at once", found("mass_late")),
        Figure("mass-death-wronged", "false deaths in each second", found("mass_wronged")),
        Figure("broker-restart-wronged", "false deaths in each second", found("restart_wronged")),
        Figure("broker-restart", "s until all are greeted again", found("restart_took")),
        Figure("arrival", "s until 10,000 agents with 100,000 ranks are stored", found("arrival")),
        Figure("weaver-memory", "MB", found("memory")),
    ]


@dataclass
class Seen:
    """What one run showed."""

    cpu: dict[int, list[float]] = field(default_factory=dict)
    broker: list[float] = field(default_factory=list)
    simulation: list[float] = field(default_factory=list)
    late: list[float] = field(default_factory=list)
    exits: list[float] = field(default_factory=list)
    lost: list[float] = field(default_factory=list)
    mass_late: list[float] = field(default_factory=list)
    mass_wronged: list[float] = field(default_factory=list)
    restart_wronged: list[float] = field(default_factory=list)
    restart_took: list[float] = field(default_factory=list)
    arrival: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)


def observe(running: Plane, agents: Fleet, seen: Seen) -> None:
    """Let agents come, beat, die alone, die together, and lose their broker."""
    for count in LADDER:
        took = agents.grow_to(count)
        note(f"{count} agents are there after {took:.1f} s more")
        if count == LADDER[-1]:
            seen.arrival.append(took)
        time.sleep(2.0)
        parts = [[running.pid("weaver")], [running.pid("nats")], agents.pids()]
        seen.cpu[count], seen.broker, seen.simulation = busy(parts)
        note(f"the weaver takes {sum(seen.cpu[count]) / LOOKS:.1f} % of a core")
    seen.memory.append(resident(running.pid("weaver")))
    with running.watched() as told:
        note("agents die, one by one")
        die_alone(agents, told, seen)
        note("agents die together")
        die_together(agents, told, seen)
        note("the broker restarts")
        lose_broker(running, agents, told, seen)


def busy(parts: Sequence[Sequence[int]]) -> list[list[float]]:
    """Return the share of a core that each group of processes takes, second by second."""
    shares: list[list[float]] = [[] for _ in parts]
    for _ in range(LOOKS):
        began, before = time.monotonic(), [sum(map(cpu, pids)) for pids in parts]
        time.sleep(1.0)
        passed, after = time.monotonic() - began, [sum(map(cpu, pids)) for pids in parts]
        for share, new, old in zip(shares, after, before, strict=True):
            share.append(100 * (new - old) / passed)
    return shares


def resident(pid: int) -> float:
    """Return the megabytes that a process holds."""
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def die_alone(agents: Fleet, told: Told, seen: Seen) -> None:
    """End agents and ranks of others one by one; see when each is noticed."""
    chosen = random.sample(sorted(agents.living), 2 * DEATHS)
    died: dict[str, tuple[float, float]] = {}
    ended: dict[str, float] = {}
    for doomed, host in zip(chosen[:DEATHS], chosen[DEATHS:], strict=True):
        died |= agents.end(doomed)
        ended |= agents.tell("end", [host])
        time.sleep(APART)
    until(lambda: len(lost_in(told)) >= DEATHS and len(gone_in(told)) >= DEATHS)
    lost, gone = lost_in(told), gone_in(told)
    if wrong := lost.keys() - died.keys():
        raise CannotMeasure(f"{len(wrong)} agents that live were given up: {sorted(wrong)[:3]}")
    silence = LivenessLimits().silence
    seen.late = [1e3 * (lost[name] - beat - silence) for name, (_, beat) in died.items()]
    seen.lost = [1e3 * (lost[name] - at) for name, (at, _) in died.items()]
    seen.exits = [1e3 * (gone[name] - at) for name, at in ended.items()]


def die_together(agents: Fleet, told: Told, seen: Seen) -> None:
    """End a share of all agents at once; the others must not be blamed."""
    before = set(lost_in(told))
    died = agents.end(*random.sample(sorted(agents.living), int(SHARE * len(agents.living))))
    until(lambda: len(lost_in(told)) >= len(before) + len(died))
    seen.mass_wronged = wronged(agents, told, min(at for at, _ in died.values()))
    lost, silence = lost_in(told), LivenessLimits().silence
    seen.mass_late = [1e3 * (lost[name] - beat - silence) for name, (_, beat) in died.items()]


def lose_broker(running: Plane, agents: Fleet, told: Told, seen: Seen) -> None:
    """Kill NATS, which the plane starts again; everybody must find back and nobody be blamed."""
    killed = time.monotonic()
    os.kill(running.pid("nats"), signal.SIGKILL)
    agents.wait_for_greetings(killed)
    seen.restart_took.append(agents.last_greeting() - killed)
    limits = LivenessLimits()  # silence counts again only after this
    seen.restart_wronged = wronged(agents, told, killed, limits.comeback + limits.silence)


def wronged(agents: Fleet, told: Told, since: float, more: float = 0.0) -> list[float]:
    """Wait, and return how many agents that live were given up in each second since."""
    time.sleep(QUIET + more)
    alive = {f"sim-{number}" for number in agents.living}
    false = [at for name, at in lost_in(told).items() if name in alive]
    seconds = int(time.monotonic() - since)
    return [float(sum(since + s <= at < since + s + 1 for at in false)) for s in range(seconds)]


def lost_in(told: Told) -> dict[str, float]:
    """Return the agents that a watcher heard to be lost, and when."""
    events = [(at, event) for at, event in list(told) if event["kind"] == "agent_lost"]
    return {event["facts"]["agent"]: at for at, event in events}


def gone_in(told: Told) -> dict[str, float]:
    """Return the ranks that a watcher heard to be gone, and when."""
    events = [(at, event) for at, event in list(told) if event["kind"] == "rank_gone"]
    return {f"{event['job']}/{event['rank']}": at for at, event in events}
