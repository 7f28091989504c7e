"""The text of a manifest, made of what ranks and the plane know of a checkpoint."""

from collections.abc import Iterable
from datetime import UTC, datetime

from torchloom.checkpoint import Manifest, Shard, shard_name
from torchloom.rules.command import Entry
from torchloom.rules.committing import Collected, knob_position
from torchloom.weaver.store.rows import Checkpoint, Job


def manifest_of(
    job: Job, row: Checkpoint, collected: Collected, entries: Iterable[Entry], now: float
) -> str:
    """Return what is to be committed. It is stored: said again, it must be the same text."""
    facts = collected.facts
    parts = sorted((int(rank), part) for rank, part in collected.parts.items())
    manifest = Manifest(
        job_id=job.id,
        run_id=job.run_id,
        step=row.step,
        epoch=facts["epoch"],
        world_size=collected.world_size,
        strategy=facts["strategy"],
        backend=facts["backend"],
        shards=tuple(Shard(shard_name(rank), *part, rank) for rank, part in parts),
        optimizer_state=facts["optimizer_state"],
        rng_state=facts["rng_state"],
        generation=row.generation,
        attempt=row.attempt,
        created_at=datetime.fromtimestamp(now, UTC).isoformat(),
        knobs=knob_position(entries, row.step),
        versions=facts["versions"],
        metrics=facts["metrics"],
        trigger=facts["trigger"],
    )
    return manifest.to_json()
