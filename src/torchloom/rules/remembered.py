"""Turn what is stored of a live recovery into plain values, and back."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from torchloom.rules.election import Move, Origin, Plan, What
from torchloom.rules.escalation import Mode
from torchloom.rules.generation import Phase, Record
from torchloom.rules.membership import Seat


def record_to_dict(record: Record) -> dict[str, Any]:
    """Return it as JSON can hold it."""
    return {**asdict(record), "lost": sorted(record.lost)}


def record_from_dict(row: Mapping[str, Any]) -> Record:
    """Read back what `record_to_dict` wrote."""
    step, times = row["reforms"]
    return Record(
        **{
            **row,
            "seats": tuple(Seat(**seat) for seat in row["seats"]),
            "phase": Phase(row["phase"]),
            "mode": Mode(row["mode"]),
            "lost": frozenset(row["lost"]),
            "plan": _plan_from_dict(row["plan"]) if row["plan"] else None,
            "strikes": tuple((rank, at, count) for rank, at, count in row["strikes"]),
            "reforms": (step, times),
            "inexact": tuple(row["inexact"]),
        }
    )


def _plan_from_dict(row: Mapping[str, Any]) -> Plan:
    moves = tuple(Move(**{**move, "what": What(move["what"])}) for move in row["moves"])
    return Plan(row["start"], Origin(row["origin"]), moves, tuple(row["inexact"]))
