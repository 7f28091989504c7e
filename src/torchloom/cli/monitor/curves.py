"""Curves as bars of text, and their numbers in the unit that their name tells."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from torchloom.cli.monitor.answers import seconds
from torchloom.cli.output import table

STEP_SECONDS = "loom/step_seconds"
_BARS = "▁▂▃▄▅▆▇█"


def number(name: str, value: float) -> str:
    """Return a metric's value, in the unit that its name tells."""
    if name == STEP_SECONDS:
        return seconds(value)
    if name.startswith("loom/") and name.endswith("memory"):
        return f"{value / 2**30:.2f} GiB" if value >= 2**30 else f"{value / 2**20:.0f} MiB"
    if name == "loom/cpu":
        return f"{value:.0%}"
    return f"{value:.5g}"


def spark(values: Sequence[float], width: int, height: int = 1) -> list[str]:
    """Return a curve as lines of bars, top first; the highest of each bucket, `!` where none is."""
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
    """Return metrics as people look for them: losses, the program's own, then what we measure."""
    return sorted(names, key=lambda name: (_place(name), name))


def _place(name: str) -> int:
    if name.startswith("loom/"):
        return 2 if name == STEP_SECONDS else 3
    return 0 if "loss" in name.lower() else 1


def metrics_text(series: Sequence[Mapping[str, Any]], width: int = 40) -> str:
    """Return each curve with its newest value."""
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
