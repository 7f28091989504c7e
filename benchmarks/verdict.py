"""Turn samples and a target into a row: the one place that says whether a target is met."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.figure import Figure

ENOUGH = 10
STATS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "median": statistics.median,
    "max": max,
    "min": min,
    "mean": statistics.fmean,
    "p99": lambda values: sorted(values)[math.ceil(0.99 * len(values)) - 1],
}
MANY = 200  # samples that a p99 takes


def row(
    area: str,
    figure: Figure,
    samples: Sequence[float],
    peer_samples: Sequence[float],
    target: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return the row of a figure, without the machine and the commit."""
    stat = STATS[target["stat"] if target else "median"]
    ours = stat(samples) if samples else None
    peer = stat(peer_samples) if peer_samples else None
    n = min(len(samples), len(peer_samples)) if figure.peer else len(samples)
    ratio = ours / peer if ours is not None and peer else None
    return {
        "area": area,
        "name": figure.name,
        "ours": ours,
        "peer": peer,
        "peer_name": figure.peer.name if figure.peer else None,
        "peer_version": figure.peer.version if figure.peer else None,
        "peer_command": figure.peer.command if figure.peer else None,
        "ratio": ratio,
        "unit": figure.unit,
        "target": dict(target) if target else None,
        "met": met(ours, ratio, n, target),
        "n": n,
        "samples": {"ours": list(samples), "peer": list(peer_samples)},
    }


def met(
    ours: float | None, ratio: float | None, n: int, target: Mapping[str, Any] | None
) -> bool | None:
    """Say whether enough samples reach the whole target; what is missing never counts.

    None of what is only to be reported, and was.
    """
    enough = MANY if target and target["stat"] == "p99" else ENOUGH
    if target and ours is not None and target.get("reported"):
        return None
    if not target or ours is None or n < target.get("samples", enough):
        return False
    least, limit, share = (target.get(word) for word in ("at_least", "at_most", "of_peer_at_most"))
    if least is None and limit is None and share is None:
        return False
    within = (limit is None or ours <= limit) and (least is None or ours >= least)
    beside = share is None or (ratio is not None and ratio <= share)
    return within and beside
