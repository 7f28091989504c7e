"""`loom checkpoint ls`: what a job has saved, newest first, read from the store itself."""

import os
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from torchloom.cli.command import LoomCommand
from torchloom.cli.output import age, echo, echo_json, table
from torchloom.errors import LoomError

if TYPE_CHECKING:
    from torchloom.checkpoint import Storage
    from torchloom.cli.checkpoints.stores import Kept

_ASIDE = re.compile(r"(ckpt_step_[0-9]{5,19})\.bad(-[0-9]+)?")
_UNFINISHED = ("writing", "committing", "failed", "removing", "removed")
_FIELDS = (
    *("job", "step", "state", "reason", "created_at", "bytes", "world_size", "trigger"),
    *("metrics", "generation", "attempt", "place"),
)


@click.command("ls", cls=LoomCommand)
@click.argument("job", required=False, default="")
@click.option("--all", "everything", is_flag=True, help="Also drafts that are being written.")
@click.option("--json", "as_json", is_flag=True, help="Print a list.")
def ls(job: str, everything: bool, as_json: bool) -> None:
    """List the checkpoints of JOB, newest first; without JOB, of the only active one."""
    from torchloom.client import chosen

    if chosen.is_elsewhere():
        with chosen.client() as other:
            rows = other.checkpoints(chosen.meant(other, job))
            found = _of_a_plane(rows, everything)
    else:
        from torchloom.cli.checkpoints.stores import kept

        found = listed(kept(job, "ls"), everything)
    if as_json:
        echo_json(found)
    elif found:
        echo(
            table(("STEP", "AGE", "SIZE", "RANKS", "TRIGGER", "STATE", "METRICS"), map(_row, found))
        )
    else:
        echo("no checkpoints")


def listed(kept: "Kept", everything: bool = False) -> list[dict[str, Any]]:
    """Return every checkpoint in a store; damage is seen by sizes here, not by hashes."""
    from torchloom.checkpoint import draft_of, step_of

    storage, rows = kept.storage, []
    names = _names(storage)
    named = {step for step in map(step_of, names) if step is not None}
    newest = None if _is_folder(storage) else storage.latest()
    for step in {*storage.committed(), *named}:
        rows.append(_committed(storage, kept.job, step, newest))
    for name in names:
        draft, aside = draft_of(name), _ASIDE.fullmatch(name)
        if aside and (of := step_of(aside[1])) is not None:
            rows.append(_bare(storage, kept.job, of, "set aside", "it was damaged", name))
        elif draft and everything:
            row = _bare(storage, kept.job, draft.step, "writing", "", name)
            rows.append({**row, "generation": draft.generation, "attempt": draft.attempt})
    return sorted(rows, key=lambda row: (-row["step"], row["state"] != "committed", row["place"]))


def _names(storage: "Storage") -> list[str]:
    """Return what a folder holds beside committed checkpoints; a bucket shows only these."""
    try:
        return sorted(os.listdir(storage.root)) if _is_folder(storage) else []
    except OSError:
        return []


def _is_folder(storage: "Storage") -> bool:
    return storage.root.startswith("/")


def _committed(storage: "Storage", job: str, step: int, newest: int | None) -> dict[str, Any]:
    try:
        manifest = storage.manifest(step)
    except LoomError as error:
        why = getattr(error, "why", "") or "is missing"
        return _bare(storage, job, step, "damaged", f"manifest.json: {why}")
    if _is_folder(storage):
        damage = _damage(storage.place_of(step), manifest.shards)
    else:  # of a bucket, only those that a restart would pass over
        damage = "" if newest is not None and step <= newest else "a shard is missing or too short"
    return {
        **_bare(storage, job, step, "damaged" if damage else "committed", damage),
        "created_at": manifest.created_at,
        "bytes": manifest.size,
        "world_size": manifest.world_size,
        "trigger": manifest.trigger,
        "metrics": dict(manifest.metrics),
        "generation": manifest.generation,
        "attempt": manifest.attempt,
    }


def _damage(place: str, shards: Iterable[Any]) -> str:
    """Return the first shard that is not as long as it was, and why; nothing where all are."""
    for shard in shards:
        try:
            there = os.stat(os.path.join(place, shard.name)).st_size
        except OSError:
            return f"{shard.name}: is missing"
        if there != shard.size:
            return f"{shard.name}: has {there} bytes, not {shard.size}"
    return ""


def _bare(
    storage: "Storage", job: str, step: int, state: str, reason: str, name: str = ""
) -> dict[str, Any]:
    place = f"{storage.root}/{name}" if name else storage.place_of(step)
    known = {"job": job, "step": step, "state": state, "reason": reason, "place": place}
    return {
        **dict.fromkeys(_FIELDS),
        "trigger": "",
        "metrics": {},
        "created_at": _when(place),
    } | known


def _when(place: str) -> str | None:
    """Return when a folder was last written to."""
    try:
        at = os.stat(place).st_mtime
    except OSError:
        return None
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")


def _of_a_plane(rows: Iterable[Mapping[str, Any]], everything: bool) -> list[dict[str, Any]]:
    """Return what a plane elsewhere knows of, in the same shape."""
    shown = (row for row in rows if everything or row["state"] not in _UNFINISHED)
    return [{name: row.get(name) for name in _FIELDS} for row in shown]


def _row(one: Mapping[str, Any]) -> tuple[str, ...]:
    from torchloom.cli.checkpoints.stores import size

    why = f": {one['reason']}" if one["reason"] else ""
    metrics = " ".join(f"{name}={value:g}" for name, value in (one["metrics"] or {}).items())
    return (
        str(one["step"]),
        age(one["created_at"]),
        "-" if one["bytes"] is None else size(one["bytes"]),
        str(one["world_size"] or "-"),
        one["trigger"] or "-",
        f"{one['state']}{why}",
        metrics,
    )
