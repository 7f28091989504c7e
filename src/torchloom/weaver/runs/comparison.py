"""Compare runs: what they were given, what came out, and what surrounded them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torchloom.errors import UserError
from torchloom.history import compare
from torchloom.weaver.runs.search import Reads, shown

MOST = 20  # runs that are compared at once
_WHOLE = ("config", "timeline", "spec", "recorded", "artifacts", "checkpoints")  # not in a list
_SUMS = ("state", "steps", "samples", "wall_seconds", "restarts", "faults")
_SOURCE = ("commit", "branch", "dirty", "diff")
_GIVEN = (
    *("model", "dataset", "script", "module", "command", "args", "env", "resources"),
    *("distributed", "recovery", "elastic", "seed", "scheduler", "options"),
)


class BadComparison(UserError):
    """So many runs cannot be compared."""

    code = "bad_comparison"


def compared(store: Reads, run_ids: Sequence[str]) -> dict[str, Any]:
    """Return how runs differ; the order is that of their names."""
    if not 2 <= len(run_ids) <= MOST:
        raise BadComparison(f"name 2 to {MOST} runs to compare, not {len(run_ids)}")
    runs = [shown(store, run_id) for run_id in run_ids]
    given = [_given(run) for run in runs]
    records = [run["recorded"] or {} for run in runs]
    return {
        "runs": [_brief(run) for run in runs],
        "config": _rows(compare.differences(given)),
        "same": compare.shared(given),
        "metrics": _metrics([run["metrics"] for run in runs]),
        "summary": _rows(compare.differences(list(map(_sums, runs)), _SUMS)),
        "git": _rows(compare.differences(list(map(_source, records)), _SOURCE)),
        "packages": _rows(_versions(records)),
        "environment": _rows(compare.differences(list(map(_environment, records)))),
    }


def _brief(run: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in run.items() if name not in _WHOLE}


def _given(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a run was given: its config, and of its spec what makes a difference."""
    spec = run["spec"] or {}
    argv = (run["recorded"] or {}).get("argv")
    words = {"argv": argv[1:]} if argv and not spec else {}
    return {**{name: spec[name] for name in _GIVEN if name in spec}, **words, **run["config"]}


def _metrics(found: Sequence[Mapping[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    rows = []
    for name in sorted({name for metrics in found for name in metrics}):
        its = [metrics.get(name, {}) for metrics in found]
        goals = {one["goal"] for one in its if one.get("goal")} or {compare.goal_of(name)}
        goal = goals.pop() if len(goals) == 1 else None  # runs may name different ones
        best = [_best(one, goal) for one in its]
        columns = {
            "last": [one.get("last") for one in its],
            "best": best,
            "best_step": [
                one.get("best_step") if value is not None else None
                for one, value in zip(its, best, strict=True)
            ],
        }
        winner = compare.winner(best, goal == "min") if goal else None
        rows.append({"name": name, "goal": goal, **columns, "winner": winner})
    return rows


def _best(metric: Mapping[str, Any], goal: compare.Goal | None) -> Any:
    """Return the best of a metric, where there is one; an old summary may hold an infinite one."""
    value = metric.get("best") if goal else None
    return value if compare.is_number(value) else None


def _sums(run: Mapping[str, Any]) -> dict[str, Any]:
    summary = run["summary"] or {}
    counts = {name: summary.get(name) for name in _SUMS[1:-1]}
    faults = len(summary["faults"]) if summary else None
    return {**counts, "state": run["state"], "steps": counts["steps"], "faults": faults}


def _source(record: Mapping[str, Any]) -> dict[str, Any]:
    git = record.get("git") or {}
    digest = (git.get("diff") or {}).get("sha256")
    return {**{name: git.get(name) for name in _SOURCE[:-1]}, "diff": digest}


def _versions(records: Sequence[Mapping[str, Any]]) -> list[compare.RunDifference]:
    """Return the packages that differ: their names may have dots."""
    columns = [record.get("packages") or {} for record in records]
    names = sorted({name for column in columns for name in column})
    rows = [
        compare.RunDifference(
            name,
            tuple(column.get(name) for column in columns),
            tuple(name not in column for column in columns),
        )
        for name in names
    ]
    return [row for row in rows if len(set(row.values)) > 1]


def _environment(record: Mapping[str, Any]) -> dict[str, Any]:
    hardware = record.get("hardware") or {}
    devices = [one for one in hardware.get("devices", ()) if one["kind"] != "cpu"]
    return {
        "python": record.get("python"),
        "torch": record.get("torch"),
        "host": hardware.get("host"),
        "cpu": hardware.get("cpu"),
        "cores": hardware.get("cores"),
        "memory_mb": hardware.get("memory_mb"),
        "devices": len(devices),
        "world_size": record.get("world_size"),
        "env": (record.get("env") or {}).get("values") or {},
    }


def _rows(found: Iterable[compare.RunDifference]) -> list[dict[str, Any]]:
    return [row.to_dict() for row in found]
