"""What the rules would have done about devices, by job: for whoever asks before it is done."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torchloom.rules import response
from torchloom.rules.drmap import ProcessId

# What becomes of a job, the gravest last.
STAYS, REPLACED, RESTARTED, SHRUNK, FAILED = ("stays", "replaced", "restarted", "shrunk", "failed")
_GRAVITY = (STAYS, REPLACED, RESTARTED, SHRUNK, FAILED)

Effects = Mapping[str, Sequence[response.Effect]]  # by device
Users = Mapping[str, Iterable[ProcessId]]


def foreseen(effects: Effects, users: Users) -> list[dict[str, Any]]:
    """Return of each job which ranks use these devices, which of them end, and what then."""
    everything = [effect for some in effects.values() for effect in some]
    changed = [name for name, some in effects.items() if some]
    using = {process for name in changed for process in users[name]}
    return [
        {
            "job": job,
            "ranks": sorted(process.rank for process in using if process.job == job),
            "ends": sorted(_ended(job, everything)),
            "then": max((_then(job, one) for one in everything), key=_GRAVITY.index),
        }
        for job in sorted({process.job for process in using})
    ]


def _ended(job: str, effects: Iterable[response.Effect]) -> set[int]:
    kills = [one for one in effects if isinstance(one, response.Kill | response.GiveUp)]
    return {one.process.rank for one in kills if one.process.job == job}


def _then(job: str, effect: response.Effect) -> str:
    match effect:
        case response.Fail(job=name) if name == job:
            return FAILED
        case response.Shrink(job=name) if name == job:
            return SHRUNK
        case response.Restart(job=name) if name == job:
            return REPLACED if effect.recovery == "live" else RESTARTED
        case response.GiveUp() if effect.process.job == job:
            return REPLACED
        case _:
            return STAYS
