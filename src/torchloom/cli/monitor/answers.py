"""Format the plane's replies as text."""

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any

from torchloom.cli.jobs.control import in_words, numbers, shown
from torchloom.cli.output import age, duration, printable, table

ACTIVE = ("QUEUED", "RUNNING", "RECOVERING", "PAUSED")
_OMITTED = ("command", "kind", "payload", "before", "after", "node", "agent", "device", "processes")
STEP_SECONDS = "loom/step_seconds"
_BARS = "▁▂▃▄▅▆▇█"


Fact = Mapping[str, Any]


def clock(time: str | None) -> str:
    """Return the local time of day of an instant."""
    return datetime.fromisoformat(time).astimezone().strftime("%H:%M:%S") if time else "-"


def seconds(value: float | None) -> str:
    """Return a short duration as text."""
    if not value or not math.isfinite(value):
        return "-"
    if value < 1:
        return f"{value * 1000:.3g} ms" if value < 0.1 else f"{value * 1000:.0f} ms"
    return f"{value:.2f} s" if value < 60 else duration(value)


def lags(ranks: Iterable[Fact]) -> dict[str, int]:
    """Return, by incarnation, how many steps each live rank is behind the fastest of its role."""
    living = [r for r in ranks if r["step"] is not None and r["state"] in ("up", "suspect")]
    first: dict[str, int] = {}
    for rank in living:
        first[rank["role"]] = max(first.get(rank["role"], 0), rank["step"])
    return {rank["incarnation"]: first[rank["role"]] - rank["step"] for rank in living}


def step(value: int | None) -> str:
    return "-" if value is None else str(value)


def jobs_text(jobs: Sequence[Fact], most: int | None) -> str:
    """Return jobs as a table, newest first."""
    rows = [
        (job["id"], job["name"], job["state"], step(job["step"]), lasted(job), job["reason"])
        for job in jobs[:most]
    ]
    text = table(("JOB", "NAME", "STATE", "STEP", "AGE", "REASON"), rows)
    left = len(jobs) - len(rows)
    return f"{text}\n({left} older: jobs --all)" if left else text


def lasted(job: Fact) -> str:
    """Return the time since a job started."""
    return age(job["started_at"] or job["created_at"])


def job_text(job: Fact, knobs: Sequence[Fact]) -> str:
    """Return one job as a few lines."""
    ranks = job["ranks"]
    values = " ".join(f"{knob['name']}={shown(knob['value'])}" for knob in knobs)
    facts = {
        "job": f"{job['id']} ({job['name']})" if job["name"] else job["id"],
        "state": f"{job['state']} {job['reason']} {job.get('warning', '')}".strip(),
        "step": step(job["step"]),
        "ranks": summary(ranks),
        "knobs": values or "none",
        "start": f"{lasted(job)} ago, attempt {job['attempt']}, generation {job['generation']}",
    }
    return "\n".join(f"{name:<7}{printable(value)}" for name, value in facts.items())


def summary(ranks: Sequence[Fact]) -> str:
    """Return the number of ranks per state, and the rank that is furthest behind."""
    if not ranks:
        return "none"
    states: dict[str, int] = {}
    for rank in ranks:
        states[rank["state"]] = states.get(rank["state"], 0) + 1
    text = ", ".join(f"{count} {state}" for state, count in sorted(states.items(), key=_up_first))
    behind = lags(ranks)
    worst = max(ranks, key=lambda rank: behind.get(rank["incarnation"], 0))
    lag = behind.get(worst["incarnation"], 0)
    return f"{text}; rank {worst['rank']} is {lag} behind" if lag > 1 else text


def _up_first(item: tuple[str, int]) -> tuple[bool, str]:
    return item[0] != "up", item[0]


def rank_cells(rank: Fact, lag: int | None) -> tuple[str, ...]:
    """Return the cells of a rank: number, state, step, lag, step time, node."""
    state = rank["state"]
    if state == "up" and rank["phase"] not in (None, "step"):
        state = rank["phase"]
    took = seconds(rank["step_seconds"])
    return str(rank["rank"]), state, step(rank["step"]), step(lag), took, rank["node"]


def ranks_text(ranks: Sequence[Fact]) -> str:
    """Return the ranks of a job as a table."""
    behind = lags(ranks)
    rows = [
        (*rank_cells(rank, behind.get(rank["incarnation"])), rank["replica"], rank["reason"])
        for rank in ranks
    ]
    heads = ("RANK", "STATE", "STEP", "LAG", "STEP TIME", "NODE", "REPLICA", "REASON")
    return table(heads, rows)


def knobs_text(knobs: Sequence[Fact]) -> str:
    """Return the knobs of a job as a table."""
    if not knobs:
        return "no knobs yet: the first optimizer step or run.knob() registers them"
    rows = [
        (knob["name"], shown(knob["value"]), knob["type"], _range(knob), numbers(knob["ranks"]))
        for knob in knobs
    ]
    return table(("KNOB", "VALUE", "TYPE", "RANGE", "RANKS"), rows)


def _range(knob: Fact) -> str:
    low, high = ("" if knob[end] is None else shown(knob[end]) for end in ("low", "high"))
    return f"{low}..{high}"


def devices_text(devices: Sequence[Fact]) -> str:
    """Return the devices as a table."""
    return table(("DEVICE", "NODE", "STATE", "RANKS", "REASON"), map(device_cells, devices))


def device_cells(device: Fact) -> tuple[str, ...]:
    ranks = ", ".join(device["processes"]) or "-"
    return device["uuid"], device["node"], device["state"], ranks, device["reason"]


def device_text(device: Fact) -> str:
    """Return the state of a device and the ranks that use it."""
    ranks = ", ".join(device["processes"]) or "no rank"
    return f"{device['uuid']} is {device['state']}; used by {ranks}"


def audit_text(commands: Sequence[Fact]) -> str:
    """Return the audit log as a table."""
    rows = [
        (
            str(each["number"]),
            clock(each["asked_at"]),
            each["author"],
            each["state"],
            "; ".join(in_words(dict(each))),
            each["outcome"] or each["reason"],
        )
        for each in commands
    ]
    return table(("#", "AT", "BY", "STATE", "WHAT", "WHY"), rows)


def event_cells(event: Fact) -> tuple[str, ...]:
    """Return the cells of an event: time, kind, rank, description."""
    rank = "" if event["rank"] < 0 else str(event["rank"])
    return clock(event["time"]), event["kind"], rank, _description(event)


def _description(event: Fact) -> str:
    facts = event["facts"]
    parts = [_main(facts), event.get("reason") or ""]
    if event["step"] is not None and event["step"] >= 0:
        parts.append(f"at step {event['step']}")
    if author := event.get("author"):
        parts.append(f"by {author}")
    rest = [
        f"{name}={shown(value)}"
        for name, value in facts.items()
        if name not in _OMITTED and value not in ("", None)
    ]
    return " ".join(part for part in (*parts, *rest) if part)


def _main(facts: Fact) -> str:
    """Return the subject of an event: values of a command, states before and after, a place."""
    payload = facts.get("payload")
    if isinstance(payload, dict) and payload:
        wanted = " ".join(f"{name}={_wanted(value)}" for name, value in payload.items())
        return f"{', '.join(payload)} {moved}" if (moved := _moved(facts)) else wanted
    if "before" in facts and "after" in facts:
        return f"{facts.get('kind', '')} {_moved(facts)}".strip()
    return " ".join(
        str(facts[name]) for name in ("kind", "device", "node", "agent") if name in facts
    )


def _wanted(value: Any) -> str:
    return shown(value["value"] if isinstance(value, dict) and "value" in value else value)


def _moved(facts: Fact) -> str:
    before, after = facts.get("before"), facts.get("after")
    if before is None and after is None:
        return ""
    return shown(after) if before is None else f"{shown(before)} -> {shown(after)}"


def events_text(events: Sequence[Fact]) -> str:
    """Return events as a table, oldest first."""
    return table(("TIME", "EVENT", "RANK", "WHAT"), map(event_cells, events))


def plane_text(status: Fact) -> str:
    """Return the status of the weaver."""
    dropped = ", ".join(f"{count} {what}" for what, count in status["dropped"].items())
    facts = {
        "weaver": f"{status['host']} pid {status['pid']}, epoch {status['epoch']}",
        "up": f"for {age(status['started_at'])}",
        "bus": "connected" if status["connected"] else "disconnected",
        "has": f"{status['jobs']} active jobs, {status['agents']} agents, {status['ranks']} ranks",
        "stored": f"{status['stored']} records, {status['backlog']} waiting",
        "dropped": dropped or "nothing",
    }
    return "\n".join(f"{name:<9}{value}" for name, value in facts.items())


def number(name: str, value: float) -> str:
    """Return a metric's value in the unit of its name."""
    if name == STEP_SECONDS:
        return seconds(value)
    if name.startswith("loom/") and name.endswith("memory"):
        return f"{value / 2**30:.2f} GiB" if value >= 2**30 else f"{value / 2**20:.0f} MiB"
    if name == "loom/cpu":
        return f"{value:.0%}"
    return f"{value:.5g}"


def spark(values: Sequence[float], width: int, height: int = 1) -> list[str]:
    """Return a curve as lines of bars, top first: the maximum of each bucket, `!` if not finite."""
    found = _buckets(values, width)
    finite = [value for value in found if math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    tall = height * len(_BARS) - 1
    levels = [
        (round((value - low) / (high - low) * tall) if high > low else tall // 2)
        if math.isfinite(value)
        else None
        for value in found
    ]
    return ["".join(_bar(level, row) for level in levels) for row in reversed(range(height))]


def _buckets(values: Sequence[float], width: int) -> list[float]:
    if len(values) <= width:
        return list(values)
    edges = [n * len(values) // width for n in range(width + 1)]
    return [_peak(values[a:b]) for a, b in pairwise(edges)]


def _peak(values: Sequence[float]) -> float:
    bad = [value for value in values if not math.isfinite(value)]
    return bad[0] if bad else max(values)


def _bar(level: int | None, row: int) -> str:
    if level is None:
        return "!" if row == 0 else " "
    above = level - row * len(_BARS)
    if above < 0:
        return " "
    return _BARS[min(above, len(_BARS) - 1)]


def ordered(names: Iterable[str]) -> list[str]:
    """Return metric names in order: losses, the program's others, then loom/ metrics."""
    return sorted(names, key=lambda name: (_place(name), name))


def _place(name: str) -> int:
    if name.startswith("loom/"):
        return 2 if name == STEP_SECONDS else 3
    return 0 if "loss" in name.lower() else 1


def metrics_text(series: Sequence[Mapping[str, Any]], width: int = 40) -> str:
    """Return the curves with their newest values as a table."""
    rows = []
    for curve in sorted(series, key=lambda one: (_place(one["name"]), one["name"], one["rank"])):
        values = [as_float(point[2]) for point in curve["points"]]
        if values:
            last = number(curve["name"], values[-1])
            at = str(curve["points"][-1][0])
            rows.append((curve["name"], str(curve["rank"]), at, last, spark(values, width)[0]))
    return table(("METRIC", "RANK", "STEP", "LAST", "CURVE"), rows)


def as_float(value: Any) -> float:
    return value if isinstance(value, int | float) else math.nan
