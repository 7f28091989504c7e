"""Checkpoints as ranks make them: the real savers, the real store, a commit at the end."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from torchloom.checkpoint import Draft, Manifest, Shard, Storage, open_storage
from torchloom.worker.saving import Saver

State = Mapping[str, Any]


def commit(root: Path, step: int, shared: State, owns: Sequence[State], **facts: Any) -> Storage:
    """Have each rank save its part, and commit the whole; return the store."""
    storage = open_storage(str(root), {})
    told: list[dict[str, Any]] = []
    generation, attempt = facts.get("generation", 0), facts.get("attempt", 0)
    for rank, own in enumerate(owns):
        saver = Saver(
            storage,
            rank=rank,
            world_size=len(owns),
            generation=generation,
            attempt=attempt,
            report=lambda kind, said: told.append({"kind": kind, **said}),
        )
        saver.save(step, shared, own, {})
        assert saver.wait(30)
        saver.close()
    shards = tuple(
        Shard(one["name"], one["size"], one["hash"], one["rank"])
        for one in sorted(told, key=lambda one: one["rank"])
    )
    manifest = {
        "job_id": "train-1",
        "run_id": "train-1",
        "step": step,
        "epoch": 0,
        "world_size": len(owns),
        "strategy": "ddp",
        "backend": "gloo",
        "shards": shards,
        "optimizer_state": True,
        "rng_state": True,
        "generation": generation,
        "attempt": attempt,
        "created_at": "2026-01-31T12:00:00.000+00:00",
        "trigger": "every_n_steps",
        **facts,
    }
    storage.commit(Draft(step, generation, attempt), Manifest(**manifest))
    return storage


def network() -> torch.nn.Module:
    """Return a model with parameters and buffers, the same one each time."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8))


def stepped(model: torch.nn.Module) -> torch.optim.Optimizer:
    """Return an optimizer of a model that has taken a step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(6, 4).cumsum(0)).pow(3).sum().backward()
    optimizer.step()
    return optimizer


def state_of(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer | None, ranks: int = 2
) -> tuple[State, list[State]]:
    """Return what all ranks share and what is each one's own, as the run API has it."""
    tracked = {} if optimizer is None else {"optimizer": optimizer.state_dict()}
    shared = {"models": {"model": dict(model.named_parameters())}, "tracked": tracked, "knobs": {}}
    own = {"buffers": {"model": dict(model.named_buffers())}, "tracked": {}, "seed": 7}
    return shared, [own] * ranks
