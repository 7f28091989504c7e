"""`loom checkpoint verify`: read and hash everything, or train a stretch again and compare."""

import time
from typing import Any

import click

from torchloom.cli.checkpoints.stores import Kept, job_and_steps, kept, size
from torchloom.cli.command import LoomCommand, Number
from torchloom.cli.output import echo, echo_json
from torchloom.errors import Failure, UserError


class SomeDamaged(Failure):
    """Not every checkpoint that was looked at is what was committed."""

    code = "damaged_checkpoint"


@click.command("verify", cls=LoomCommand)
@click.argument("words", nargs=-1, metavar="[JOB] [STEP]")
@click.option("--all", "everything", is_flag=True, help="Every checkpoint, not the newest alone.")
@click.option("--replay", is_flag=True, help="Train on from it, twice, and compare all bits.")
@click.option("--steps", type=Number(1), metavar="K", help="To replay; default: to the next one.")
@click.option("--keep", is_flag=True, help="Leave the runs of a replay, with their logs.")
@click.option("--json", "as_json", is_flag=True, help="Print an object, with --all a list.")
def verify(
    words: tuple[str, ...],
    everything: bool,
    replay: bool,
    steps: int | None,
    keep: bool,
    as_json: bool,
) -> int:
    """Read and hash the checkpoint of STEP, or the newest; exit code 1 if it is damaged.

    --replay runs the job's program again from there, twice, and compares every tensor before
    every step, and with what the job itself saved later: `bit-exact`, or what differs first.
    """
    job, numbers = job_and_steps(words, 1)
    step = numbers[0] if numbers else None
    if everything and (step is not None or replay):
        raise UserError("--all checks every checkpoint by its hashes; leave STEP and --replay out")
    if not replay and (steps is not None or keep):
        raise UserError("--steps and --keep are for --replay")
    found = kept(job, "verify")
    if replay:
        from torchloom.cli.checkpoints.replay import replay as compare

        return compare(found, step, steps, keep, as_json)
    return _all(found, as_json) if everything else _one(found, found.step(step), as_json)


def _one(found: Kept, step: int, as_json: bool) -> int:
    told = _checked(found, step)
    if as_json:
        echo_json(told)
        return 0 if told["state"] == "whole" else 1
    if told["state"] != "whole":
        raise SomeDamaged(_in_words(told))
    echo(_in_words(told))
    return 0


def _all(found: Kept, as_json: bool) -> int:
    """Check each, and say of each how it is before the next is read: they may be large."""
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


def _checked(found: Kept, step: int) -> dict[str, Any]:
    from torchloom.checkpoint import MANIFEST, BadManifest, Damaged

    row: dict[str, Any] = {"job": found.job, "step": step, "state": "whole", "shard": None}
    row |= {"reason": "", "place": found.storage.place_of(step), "bytes": None, "shards": None}
    began = time.monotonic()
    try:
        found.storage.verify(step)
        manifest = found.storage.manifest(step)
        row |= {"bytes": manifest.size, "shards": len(manifest.shards)}
    except Damaged as error:
        row |= {"state": "damaged", "shard": error.name, "reason": error.why}
    except BadManifest as error:
        row |= {"state": "damaged", "shard": MANIFEST, "reason": error.why}
    return {**row, "seconds": round(time.monotonic() - began, 3)}


def _in_words(row: dict[str, Any]) -> str:
    what = f"the checkpoint of step {row['step']}"
    if row["state"] != "whole":
        return f"{what} is damaged: {row['shard']}: {row['reason']}"
    shards = "1 shard" if row["shards"] == 1 else f"{row['shards']} shards"
    took = f"{row['seconds'] * 1000:.0f} ms" if row["seconds"] < 1 else f"{row['seconds']:.1f} s"
    return f"{what} is whole: {shards}, {size(row['bytes'])} hashed in {took}"
