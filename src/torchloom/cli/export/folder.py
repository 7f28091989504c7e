"""What a run's own folder tells of it, with or without a plane: its state, its ranks, its logs."""

import contextlib
import json
from collections.abc import Mapping
from typing import Any

from torchloom.cli.cmd_show import first_error
from torchloom.launch.records.folder import RunFolder
from torchloom.launch.records.record import RankRecord, RunRecord
from torchloom.server.drafts import Draft
from torchloom.server.joblogs import Line, merged, outputs_of, tail_of
from torchloom.server.topics.entries import entry_of
from torchloom.specs.api import AppState
from torchloom.weaver.runs import origin, provenance

_ROOM = 600_000  # letters of all ranks' lines together
_WIDEST = 4000  # letters of one line


def surroundings(job: str) -> dict[str, Any] | None:
    """Return what was recorded when a run began; else the words and variables it was given."""
    folder = RunFolder.named(job)
    with contextlib.suppress(OSError, ValueError):
        found: dict[str, Any] = json.loads((folder.path / provenance.FILE).read_bytes())
        return found
    known = origin.of_folder(folder)
    if known is None:
        return None
    words, names = origin.without_secrets(known.argv), origin.variables(known.env)
    return {"cwd": known.cwd, "argv": words, "env": names}


def happened(job: str) -> list[dict[str, Any]]:
    """Return what the run's own history has, as lines of a timeline."""
    entries = (_entry(number, event) for number, event in enumerate(RunFolder.named(job).events()))
    return [entry for entry in entries if entry is not None]


def _entry(number: int, event: Mapping[str, Any]) -> dict[str, Any] | None:
    facts = {name: value for name, value in event.items() if name not in ("time", "event")}
    rank, reason = facts.get("rank"), str(facts.get("reason") or "")
    body = {"seq": number, "time": event["time"], "kind": event["event"], "facts": facts}
    return entry_of(Draft("", "event", -1, 0.0, {**body, "rank": rank, "reason": reason}, {}))


def error_of(record: RunRecord) -> dict[str, Any] | None:
    """Return what went wrong first, in as many words as are known."""
    if record.first_error:
        return dict(record.first_error)
    words = first_error(record)
    return {"message": words} if words else None


def rank_shape(rank: RankRecord, host: str) -> dict[str, Any]:
    """Return a rank as a plane would show it."""
    return {
        "rank": rank.rank,
        "local_rank": rank.local_rank,
        "role": rank.role,
        "replica": str(rank.replica),
        "node": rank.process.host if rank.process else host,
        "pid": rank.process.pid if rank.process else 0,
        "state": "up" if rank.state is AppState.RUNNING else rank.state.name.lower(),
        "reason": "",
        "step": None,
        "phase": None,
        "device_uuids": [],
        "generation": rank.generation,
    }


def last_lines(record: RunRecord | None, count: int) -> list[dict[str, Any]]:
    """Return the last lines of each rank, all of them together not too much for a file."""
    if record is None or count == 0:
        return []
    share = _ROOM // max(1, len(record.ranks))
    return [_tail(record, rank, count, share) for rank in record.ranks]


def _tail(record: RunRecord, rank: RankRecord, count: int, room: int) -> dict[str, Any]:
    own = [one for one in outputs_of(record, [rank.rank]) if one.role == rank.role]
    starts = {one.key: tail_of(one, count) for one in own}
    lines = list(merged(own, starts, record.truth().is_over()))
    kept = _fitting(lines[-count:], room)
    older = len(kept) < len(lines) or any(starts.values())
    return {"rank": rank.rank, "role": rank.role, "older": older, "items": kept}


def _fitting(lines: list[Line], room: int) -> list[dict[str, Any]]:
    """Return the newest lines that there is room for, oldest first."""
    kept: list[dict[str, Any]] = []
    for line in reversed(lines):
        text = line.text if len(line.text) <= _WIDEST else f"{line.text[:_WIDEST]} ..."
        room -= len(text)
        if room < 0:
            break
        key = f"{line.output.key}:{line.start}"
        kept.append({"key": key, **line.shape(), "message": text})
    return kept[::-1]
