"""What a job has saved, and whether it is whole."""

from typing import Literal

from pydantic import Field

from torchloom.server.models.common import Answer
from torchloom.server.paging import Page


class Checkpoint(Answer, schema="Checkpoint"):
    """One writing of a checkpoint, and what became of it."""

    job: str
    step: int
    generation: int
    attempt: int
    state: Literal["writing", "committing", "committed", "failed", "removing", "removed", "damaged"]
    world_size: int
    bytes: int
    place: str
    metrics: dict[str, float]
    trigger: str
    reason: str
    created_at: str | None
    committed_at: str | None
    seconds: float | None = Field(description="from its first shard until it was committed")


class Checkpoints(Page, schema="Checkpoints"):
    items: list[Checkpoint]


class Check(Answer, schema="Check"):
    """One reading of a checkpoint, hashed, and what came of it."""

    id: str
    job: str
    step: int
    state: Literal["waiting", "running", "whole", "damaged", "failed"]
    bytes: int
    read: int = Field(description="bytes that were read so far")
    shard: str | None = Field(description="the file that is damaged")
    reason: str
    author: str
    asked_at: str | None
    seconds: float | None = Field(description="how long the reading took, when it is over")
