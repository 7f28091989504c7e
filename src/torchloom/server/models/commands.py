"""Commands to a running job, their previews and their outcomes."""

from typing import Annotated, Any, Literal

from pydantic import Field

from torchloom.server.models.common import Answer, Page, Request, Text


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


class CommandRank(Answer, schema="CommandRank"):
    """What one rank did."""

    rank: int
    state: str
    step: int | None


class Command(Answer, schema="Command"):
    """A command to a running job and its outcome."""

    id: str
    number: int
    job: str
    kind: str
    payload: Any
    at: int | None
    author: str
    reason: str
    asked_at: str | None
    state: str
    generation: int
    effective_step: int | None
    before: Any
    after: Any
    outcome: str
    ended_at: str | None
    ranks: list[CommandRank]
    checkpoint: Checkpoint | None = Field(
        default=None, description="of `checkpoint`, where it was asked for: what was saved"
    )


class Commands(Page, schema="Commands"):
    items: list[Command]


Scalar = bool | int | float | str


class CommandRequest(Request, schema="CommandRequest"):
    """Change a running job at one step on all its ranks."""

    verb: Literal["set", "undo", "pause", "resume", "resize", "stop", "checkpoint"]
    values: Annotated[dict[str, Scalar], Field(max_length=100)] | None = Field(
        default=None, description="of `set`: knobs and their new values"
    )
    hold: bool = Field(default=False, description="of `set`: schedules do not scale it")
    guard: Text | None = Field(default=None, description="of `set`: undo it when this holds")
    span: Annotated[int, Field(ge=1, le=1 << 40)] | None = Field(
        default=None, description="of `set`: for so many steps the guard watches"
    )
    command: Text | None = Field(default=None, description="of `undo`: which one; else the last")
    at: Annotated[int, Field(ge=0, lt=1 << 62)] | None = Field(
        default=None, description="the step to act at; else the next that all can"
    )
    workers: Annotated[int, Field(ge=1, le=100_000)] | None = Field(
        default=None,
        description="of `resize`, and of `resume` of a job that has ended: how many from now on",
    )
    from_step: Annotated[int, Field(ge=0, lt=1 << 62)] | None = Field(
        default=None, description="of `resume`: the checkpoint to resume from; else the newest"
    )
    until: Annotated[int, Field(ge=1, lt=1 << 62)] | None = Field(
        default=None,
        description="of `resume`: train up to this step; a completed job is extended to it",
    )
    from_scratch: bool = Field(
        default=False, description="of `resume`: start over, where there is no checkpoint"
    )
    unpause: bool = Field(
        default=False,
        description="of `resume`: only lift a pause; a job that has ended meanwhile stays ended",
    )
    release: bool = Field(
        default=False, description="of `pause`: save, end the ranks and give back what they had"
    )
    reason: Text = ""
    wait: Annotated[float, Field(ge=0, le=60)] = Field(
        default=30.0, description="seconds to wait for what becomes of it"
    )


class PreviewRequest(CommandRequest, schema="PreviewRequest"):
    """A command that is only previewed; `cancel` is what DELETE of a job does."""

    verb: Literal["set", "undo", "pause", "resume", "resize", "stop", "checkpoint", "cancel"]  # type: ignore[assignment]


class Change(Answer, schema="Change"):
    """A knob, the value in force and the one it would have."""

    name: str
    before: Any
    after: Any


class Preview(Answer, schema="Preview"):
    """What a command would do, or why it would be refused."""

    job: str
    verb: str
    ok: bool
    summary: str
    ranks: list[int] = Field(description="that would be asked")
    effective_step: int | None = Field(description="about when; null when it waits for no step")
    changes: list[Change]
    warnings: list[str]
    refused: dict[str, Any] | None = Field(description="a problem, as the command would give it")
    command: str = Field(description="the `loom` command that does the same")
