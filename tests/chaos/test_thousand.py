"""A thousand faults, drawn from seeds, in chunks: what each cost is kept as evidence."""

import json
from typing import Any

import pytest

from ..harness import evidence
from ..harness.chaos_training import UNSEEN, Training, is_kept, same_books
from .conftest import Quiet, Start

pytestmark = [pytest.mark.process, pytest.mark.needs("torch"), pytest.mark.soak]
SUITE, FAULTS, EACH, SEED = "chaos", 1000, 50, 0
WORLD, STEPS, PACE = 4, 1500, 0.08
KINDS = ("kill", "stop", "raise", "kill-agent", "kill-weaver", "kill-nats", "corrupt-shard")


def done() -> list[dict[str, Any]]:
    """Return the chunks that an earlier run of this very commit has left, if any."""
    path = evidence.ROOT / f"docs/evidence/{SUITE}.json"
    before = json.loads(path.read_text()) if path.exists() else {}
    same = (before.get("commit"), before.get("seed")) == (evidence.commit(), SEED)
    return list(before["samples"]) if same else []


def keep(samples: list[dict[str, Any]]) -> None:
    """Write down what there is by now: a soak that is interrupted goes on there."""
    faults = [fault for sample in samples for fault in sample["faults"]]
    facts = {
        "faults": len(faults),
        "recovered": sum(fault["is_recovered"] for fault in faults),
        "named_wrongly": sum(fault["named_rightly"] is False for fault in faults),
        "committed_steps_lost": sum(fault["committed_steps_lost"] or 0 for fault in faults),
        "other_bits": sum(not sample["exact"] for sample in samples),
        "of": FAULTS,
    }
    evidence.write(SUITE, samples, seed=SEED, ranks=WORLD, steps=STEPS, **facts)


def struck(job: Training, seed: int, calm: Training) -> dict[str, Any]:
    """Strike a job, see it end, and return what is worth keeping."""
    is_kept(job.strike_drawn(seed, "1.5s", KINDS, EACH, calm.digests))
    job.ends()
    last = job.judged(calm.digests)
    is_kept(last, UNSEEN)
    assert last["exact"] is True
    same_books(job.books(), calm.books())
    return {name: last[name] for name in ("totals", "exact", "promises", "faults")}


def test_a_thousand_faults_lose_nothing(start: Start, undisturbed: Quiet) -> None:
    calm = undisturbed(WORLD, STEPS)
    samples = done()

    while sum(sample["totals"]["struck"] for sample in samples) < FAULTS:
        job = start(WORLD, STEPS, pace=PACE).ready()
        samples.append({"seed": SEED + len(samples), **struck(job, SEED + len(samples), calm)})
        keep(samples)

    struck_in_all = sum(sample["totals"]["struck"] for sample in samples)
    assert sum(sample["totals"]["recovered"] for sample in samples) == struck_in_all
