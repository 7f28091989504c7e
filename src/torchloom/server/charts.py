"""Curves as columns: how the metrics of a job are sent to whoever draws them."""

from typing import Any

from torchloom.weaver.store.series.curves import Curve


def columns(curve: Curve) -> dict[str, Any]:
    """Return one series, an entry a bucket."""
    return {
        "name": curve.name,
        "rank": curve.rank,
        "role": curve.role,
        "steps": curve.step_last,
        "first_steps": curve.step_first,
        "times": curve.time,
        "min": curve.min,
        "max": curve.max,
        "last": curve.last,
        "counts": curve.count,
        "nans": curve.nans,
    }
