"""`loom checkpoint ls`, `verify` and `rm`: the checkpoints of a job, read from its store."""

import contextlib
import os
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from torchloom import settings
from torchloom.cli.command import LoomCommand, Number, examples
from torchloom.cli.output import age, echo, echo_json, table
from torchloom.errors import Failure, LoomError, NotFound, UserError, shorten

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from torchloom.accounts import Account
    from torchloom.checkpoint import Manifest, Storage
    from torchloom.launch.records.record import RunRecord

_UNKNOWN = ("not_found", "not_committed")  # the plane has no row of it
_ASIDE = re.compile(r"(ckpt_step_[0-9]{5,19})\.bad(-[0-9]+)?")
_UNFINISHED = ("writing", "committing", "failed", "removing", "removed")
_BEFORE = 4  # the column of the trigger
_FIELDS = (
    *("job", "step", "state", "reason", "created_at", "bytes", "world_size", "trigger"),
    *("metrics", "generation", "attempt", "place", "trainer", "path"),
)


@dataclass(frozen=True)
class StoredCheckpoints:
    """A job of this host and the store of its checkpoints."""

    record: "RunRecord"
    storage: "Storage"
    account: "Account | None" = None  # whose rights its store is used with, if not this user's

    def rights(self) -> "AbstractContextManager[None]":
        """Return what the store is used within."""
        from torchloom import accounts

        return accounts.rights(self.account)

    @property
    def job(self) -> str:
        return self.record.id

    def step(self, wanted: int | None) -> int:
        """Return the given step, else the newest; raise if it has no checkpoint."""
        steps = self.storage.committed()
        if wanted is None and steps:
            return steps[0]
        if wanted is None:
            raise UserError(
                f"{self.job} has no checkpoint yet; `loom checkpoint {self.job}` saves one"
            )
        if wanted not in steps:
            known = ", ".join(map(str, steps[:10])) or "none"
            raise NotFound("checkpoint of step", str(wanted), (), f"{self.job} has: {known}")
        return wanted


def kept(job: str, verb: str) -> StoredCheckpoints:
    """Return the checkpoint store of a job of this host."""
    from torchloom.client import chosen

    if chosen.is_elsewhere():
        raise chosen.NotElsewhere(f"`checkpoint {verb}`, which reads the store directly,")
    from torchloom.cli.account_runs import find_job_and_account, find_job_with_rights

    if verb != "rm":
        return of_record(find_job_with_rights(job or None))
    record, account = find_job_and_account(job or None)  # the plane is asked as this user
    if account is not None and "://" in record.checkpoints:
        raise UserError(
            f"the checkpoints of {record.id} are in {shorten(record.checkpoints)}, which only"
            f" {account.name} has keys for; remove them as that account"
        )
    return replace(of_record(record), account=account)


def of_record(record: "RunRecord") -> StoredCheckpoints:
    """Return the store of a run; runs of older versions have it in their own folder."""
    from torchloom.checkpoint import open_storage, root_of

    root = record.checkpoints or root_of("", record.id, settings.runs_dir())
    return StoredCheckpoints(record, open_storage(root, settings.environment()))


class TrainersOwn(UserError):
    """A checkpoint that the program's trainer saved in its own way."""

    code = "trainers_own"

    def __init__(self, verb: str, job: str, step: int, trainer: str, path: str) -> None:
        super().__init__(
            f"`{verb}` reads checkpoints of torchloom; that of step {step} of {job} was saved by"
            f" {trainer}: read {path} with {trainer}"
        )


def require_own(found: StoredCheckpoints, step: int, verb: str) -> None:
    """Raise TrainersOwn unless torchloom saved the checkpoint of a step."""
    trainer = found.storage.manifest(step).trainer
    if trainer is not None:
        raise TrainersOwn(verb, found.job, step, trainer.kind, trainer.path)


def job_and_steps(words: Sequence[str], most: int | None = None) -> tuple[str, list[int]]:
    """Parse `[JOB] [STEP ...]`: a first word that is not a number names the job."""
    job, steps = "", list(words)
    if steps and not steps[0].isdecimal():
        job = steps.pop(0)
    numbers = [step_named(word) for word in steps]
    if most is not None and len(numbers) > most:
        raise UserError(f"unexpected argument {steps[most]!r}; give only one step")
    return job, numbers


def step_named(word: str) -> int:
    """Parse a step number."""
    if not word.isdecimal() or len(word) > 19:
        raise UserError(f"{shorten(word)!r} is not a step; `loom checkpoint ls` lists the steps")
    return int(word)


def size(count: int) -> str:
    """Return a size in short form: 812 B, 4.1 MB, 2.3 GB."""
    amount, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if amount < 999.5 or unit == "TB":
            break
        amount /= 1000
    return f"{count} B" if unit == "B" else f"{amount:.3g} {unit}"


@click.command("rm", cls=LoomCommand, epilog=examples("loom checkpoint rm gpt 1000 2000"))
@click.argument("words", nargs=-1, metavar="JOB STEP...")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--force", is_flag=True, help="Also remove the newest checkpoint.")
@click.option("--reason", default="", metavar="WHY", help="Recorded with the event.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list of steps and states.")
def rm(words: tuple[str, ...], yes: bool, force: bool, reason: str, as_json: bool) -> None:
    """Remove checkpoints of JOB.

    The newest committed checkpoint, from which the job would resume, is only removed with --force.
    """
    from torchloom.client import chosen

    job, steps = job_and_steps(words)
    if not steps:
        raise UserError("name the job and the steps to remove; `loom checkpoint ls` lists them")
    steps = list(dict.fromkeys(steps))
    found = None if chosen.is_elsewhere() else kept(job, "rm")
    if found is not None:
        with found.rights():
            _check(found, steps, force)
    _agree(steps, force, yes)
    theirs = _of_trainers(found, steps)
    done: list[dict[str, Any]] = []
    for step in steps:
        done.append({"step": step, "state": _remove(found, job, step, force, reason)})
        if not as_json:
            echo(_removal_in_words(**done[-1], where=theirs.get(step, "")))
    if as_json:
        echo_json(done)


def _of_trainers(found: StoredCheckpoints | None, steps: Iterable[int]) -> dict[int, str]:
    """Return what stays of the checkpoints that a program's trainer saved: its own files."""
    if found is None:
        return {}
    from torchloom.checkpoint import BadManifest

    left = {}
    for step in steps:
        with found.rights(), contextlib.suppress(BadManifest):
            if (one := found.storage.manifest(step).trainer) is not None:
                left[step] = f"; the files of {one.kind} stay in {one.path}"
    return left


def _removal_in_words(step: int, state: str, where: str) -> str:
    if state == "removed":
        return f"checkpoint of step {step} removed{where}"
    return f"checkpoint of step {step} will be removed as soon as the store is reachable"


def _check(found: StoredCheckpoints, steps: list[int], force: bool) -> None:
    """Refuse before any checkpoint is removed: a failed command changes nothing."""
    there = found.storage.committed()
    for step in steps:
        if step not in there:
            known = ", ".join(map(str, there[:10])) or "none"
            raise NotFound("checkpoint of step", str(step), (), f"{found.job} has: {known}")
    newest = found.storage.latest()
    if newest in steps and not force:
        raise UserError(
            f"step {newest} is the newest checkpoint of {found.job}, from which it would restart "
            "or resume; --force removes it"
        )


def _agree(steps: list[int], force: bool, yes: bool) -> None:
    if yes:
        return
    what = f"the checkpoint of step {steps[0]}" if len(steps) == 1 else f"{len(steps)} checkpoints"
    if not sys.stdin.isatty():
        raise UserError(f"this removes {what}; without a terminal, confirm with --yes")
    more = ", possibly the newest, from which the job would resume" if force else ""
    click.confirm(f"remove {what}{more}?", abort=True)


def _remove(found: StoredCheckpoints | None, job: str, step: int, force: bool, reason: str) -> str:
    """Remove one checkpoint through the plane; without a plane, from the store directly."""
    from torchloom.client import chosen
    from torchloom.client.errors import NoPlane

    if found is None:
        with chosen.client() as other:
            name = chosen.meant(other, job)
            return str(other.remove_checkpoint(name, step, force, reason)["state"])
    asked = {"job": found.job, "step": step, "force": force, "reason": reason}
    try:
        return str(chosen.ask("checkpoint_remove", None, **asked)["state"])
    except LoomError as error:
        if not isinstance(error, NoPlane) and error.code not in _UNKNOWN:
            raise
        with found.rights():
            found.storage.remove(step)
        return "removed"


class SomeDamaged(Failure):
    """A checkpoint is damaged."""

    code = "damaged_checkpoint"


@click.command(
    "verify",
    cls=LoomCommand,
    epilog=examples("loom checkpoint verify gpt --all", "loom checkpoint verify gpt 2000 --replay"),
)
@click.argument("words", nargs=-1, metavar="[JOB] [STEP]")
@click.option("--all", "everything", is_flag=True, help="Verify every checkpoint.")
@click.option("--replay", is_flag=True, help="Train from it twice and compare every bit.")
@click.option("--steps", type=Number(1), metavar="K", help="Steps to replay; default: to the next.")
@click.option("--keep", is_flag=True, help="Keep the runs of a replay and their logs.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object; a list with --all.")
def verify(
    words: tuple[str, ...],
    everything: bool,
    replay: bool,
    steps: int | None,
    keep: bool,
    as_json: bool,
) -> int:
    """Verify the hashes of a checkpoint.

    STEP defaults to the newest checkpoint. Exits with 1 if it is damaged.

    --replay runs the job's program twice from there, compares every tensor before every step, and
    compares with the job's later checkpoints. Prints `bit-exact`, or the first difference.
    """
    job, numbers = job_and_steps(words, 1)
    step = numbers[0] if numbers else None
    if everything and (step is not None or replay):
        raise UserError("--all cannot be combined with STEP or --replay")
    if not replay and (steps is not None or keep):
        raise UserError("--steps and --keep need --replay")
    found = kept(job, "verify")
    if replay:
        from torchloom.cli.checkpoints.replay import replay as compare

        return compare(found, step, steps, keep, as_json)
    return _all(found, as_json) if everything else _one(found, found.step(step), as_json)


def _one(found: StoredCheckpoints, step: int, as_json: bool) -> int:
    row = _checked(found, step)
    if as_json:
        echo_json(row)
        return 0 if row["state"] == "whole" else 1
    if row["state"] != "whole":
        raise SomeDamaged(_in_words(row))
    echo(_in_words(row))
    return 0


def _all(found: StoredCheckpoints, as_json: bool) -> int:
    """Verify all checkpoints; print each result before the next one is read."""
    rows = []
    for step in found.storage.committed():
        rows.append(_checked(found, step))
        if not as_json:
            echo(_in_words(rows[-1]))
    bad = [row for row in rows if row["state"] != "whole"]
    if as_json:
        echo_json(rows)
        return 1 if bad else 0
    if bad:
        raise SomeDamaged(f"{len(bad)} of {len(rows)} checkpoints of {found.job} are damaged")
    if not rows:
        echo("no checkpoints")
    return 0


def _checked(found: StoredCheckpoints, step: int) -> dict[str, Any]:
    from torchloom.checkpoint import MANIFEST, BadManifest, Damaged

    row: dict[str, Any] = {"job": found.job, "step": step, "state": "whole", "shard": None}
    row |= {"reason": "", "place": found.storage.place_of(step), "bytes": None, "shards": None}
    row |= {"trainer": "", "path": ""}
    began = time.monotonic()
    try:
        found.storage.verify(step)
        manifest = found.storage.manifest(step)
        row |= {"bytes": manifest.size, "shards": len(manifest.shards)}
        if (trainer := manifest.trainer) is not None:
            files = {"trainer": trainer.kind, "path": trainer.path}
            row |= {"shards": len(trainer.files), **files}
    except Damaged as error:
        row |= {"state": "damaged", "shard": error.name, "reason": error.why}
    except BadManifest as error:
        row |= {"state": "damaged", "shard": MANIFEST, "reason": error.why}
    return {**row, "seconds": round(time.monotonic() - began, 3)}


def _in_words(row: dict[str, Any]) -> str:
    what = f"the checkpoint of step {row['step']}"
    if row["state"] != "whole":
        return f"{what} is damaged: {row['shard']}: {row['reason']}"
    word = "shard" if not row["trainer"] else "file"
    shards = f"{row['shards']} {word}" + ("" if row["shards"] == 1 else "s")
    if row["trainer"]:
        shards += f" of {row['trainer']} in {row['path']}"
    took = f"{row['seconds'] * 1000:.0f} ms" if row["seconds"] < 1 else f"{row['seconds']:.1f} s"
    return f"{what} is whole: {shards}, {size(row['bytes'])} hashed in {took}"


@click.command(
    "ls",
    cls=LoomCommand,
    epilog=examples("loom checkpoint ls gpt", "loom checkpoint ls gpt --all --json"),
)
@click.argument("job", required=False, default="")
@click.option("--all", "everything", is_flag=True, help="Include checkpoints being written.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def ls(job: str, everything: bool, as_json: bool) -> None:
    """List the checkpoints of JOB, newest first.

    JOB defaults to the only active job.
    """
    from torchloom.client import chosen

    if chosen.is_elsewhere():
        with chosen.client() as other:
            rows = other.checkpoints(chosen.meant(other, job))
            found = _of_a_plane(rows, everything)
    else:
        found = listed(kept(job, "ls"), everything)
    if as_json:
        echo_json(found)
    elif found:
        echo(table(*_shown(found)))
    else:
        echo("no checkpoints")


def listed(kept: "StoredCheckpoints", everything: bool = False) -> list[dict[str, Any]]:
    """Return every checkpoint in a store; damage is detected by file sizes, not by hashes."""
    from torchloom.checkpoint import draft_of, step_of

    storage, rows = kept.storage, []
    names = _names(storage)
    named = {step for step in map(step_of, names) if step is not None}
    newest = None if _is_folder(storage) else storage.latest()
    for step in {*storage.committed(), *named}:
        row = _committed(storage, kept.job, step, newest)
        rows += [row] if everything or row["state"] not in _UNFINISHED else []
    for name in names:
        draft, aside = draft_of(name), _ASIDE.fullmatch(name)
        if aside and (of := step_of(aside[1])) is not None:
            rows.append(_bare(storage, kept.job, of, "set aside", "it was damaged", name))
        elif draft and everything:
            row = _bare(storage, kept.job, draft.step, "writing", "", name)
            rows.append({**row, "generation": draft.generation, "attempt": draft.attempt})
    return sorted(rows, key=lambda row: (-row["step"], row["state"] != "committed", row["place"]))


def _names(storage: "Storage") -> list[str]:
    """Return all names in a store's folder; empty for a bucket, which lists only committed ones."""
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
    trainer = manifest.trainer
    if trainer is not None and not trainer.exists():
        state, damage = "removed", f"{trainer.kind} removed {trainer.path}"
    else:
        damage = _damage(storage, manifest, newest)
        state = "damaged" if damage else "committed"
    return {
        **_bare(storage, job, step, state, damage),
        "created_at": manifest.created_at,
        "bytes": manifest.size,
        "world_size": manifest.world_size,
        "trigger": manifest.trigger,
        "metrics": dict(manifest.metrics),
        "generation": manifest.generation,
        "attempt": manifest.attempt,
        "trainer": trainer.kind if trainer else "",
        "path": trainer.path if trainer else "",
    }


def _damage(storage: "Storage", manifest: "Manifest", newest: int | None) -> str:
    """Return the first file of a wrong size, and why; empty if there is none."""
    from torchloom.checkpoint import Damaged

    step = manifest.step
    if not _is_folder(storage):  # in a bucket, only those that a restart would skip are reported
        return "" if newest is not None and step <= newest else "a shard is missing or too short"
    try:
        if manifest.trainer is not None:
            manifest.trainer.check_sizes(step)
    except Damaged as error:
        return f"{error.name}: {error.why}"
    return _wrong_shard(storage.place_of(step), manifest.shards)


def _wrong_shard(place: str, shards: Iterable[Any]) -> str:
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
        "trainer": "",
        "path": "",
        "created_at": _when(place),
    } | known


def _when(place: str) -> str | None:
    """Return the time of the last write to a folder."""
    try:
        at = os.stat(place).st_mtime
    except OSError:
        return None
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")


def _of_a_plane(rows: Iterable[Mapping[str, Any]], everything: bool) -> list[dict[str, Any]]:
    """Return the checkpoints of a remote plane in the same format."""
    shown = (row for row in rows if everything or row["state"] not in _UNFINISHED)
    return [{name: row.get(name) for name in _FIELDS} for row in shown]


def _shown(found: Sequence[Mapping[str, Any]]) -> tuple[Sequence[str], list[tuple[str, ...]]]:
    """Return heads and rows of a table; who saved one is shown if a trainer saved some."""
    heads = ["STEP", "AGE", "SIZE", "RANKS", "TRIGGER", "STATE", "METRICS"]
    rows = [_row(one) for one in found]
    if any(one["trainer"] for one in found):
        heads.insert(_BEFORE, "SAVED BY")
        names = [one["trainer"] or "torchloom" for one in found]
        rows = [
            (*row[:_BEFORE], name, *row[_BEFORE:]) for row, name in zip(rows, names, strict=True)
        ]
    return heads, rows


def _row(one: Mapping[str, Any]) -> tuple[str, ...]:
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
